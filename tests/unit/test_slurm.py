from __future__ import annotations

from harness import slurm
from harness.slurm import Record, Sibling

# As Slurm 24.11 prints them.
FEDERATION = """\
Federation: cloudburst
Self:       on-prem:198.18.0.11:6817 ID:1 FedState:ACTIVE Features:onsite
Sibling:    aws:198.18.1.10:6817 ID:2 FedState:ACTIVE Features:cloud PersistConnSend/Recv:Yes/Yes Synced:Yes
"""


def test_federation_is_read() -> None:
    assert slurm.parse_federation(FEDERATION) == [
        Sibling("on-prem", 1, "ACTIVE", synced=True),
        Sibling("aws", 2, "ACTIVE", synced=True),
    ]


def test_sibling_without_both_connections_is_not_synced() -> None:
    for broken in ("Send/Recv:Yes/No", "Send/Recv:No/Yes"):
        text = FEDERATION.replace("Send/Recv:Yes/Yes", broken)
        assert [one.synced for one in slurm.parse_federation(text)] == [True, False]
    assert [one.synced for one in slurm.parse_federation(FEDERATION.replace("Synced:Yes", "Synced:No"))] == [
        True,
        False,
    ]


def test_no_federation_is_empty() -> None:
    assert slurm.parse_federation("No federation information available.\n") == []


def test_record_of_a_job_and_of_its_step() -> None:
    line = "67108866|aws|j.sh|alice|physics|CANCELLED by 2001|0:15|aws2|1700000000|1700000001|1700000009|8"
    job = Record(
        *(67108866, "", "aws", "j.sh", "alice", "physics", "CANCELLED", 0, 15, "aws2"),
        *(1700000000, 1700000001, 1700000009, 8),
    )
    assert slurm.parse_record(line) == job
    assert slurm.parse_record(line.replace("67108866|", "67108866.batch|")).step == "batch"


def test_times_that_are_not_yet_are_none() -> None:
    line = "7|aws|j|alice|physics|PENDING|0:0|None assigned|1700000000|Unknown|Unknown|0"
    record = slurm.parse_record(line)
    assert (record.submit, record.start, record.end) == (1700000000, None, None)


def test_origin_is_in_the_bits_above_the_local_id() -> None:
    assert [slurm.origin_id(job_id) for job_id in (1, 67108865, 134217732)] == [0, 1, 2]


def test_every_state_that_a_job_does_not_leave_is_known() -> None:
    assert "REVOKED" in slurm.FINISHED
    assert not {"RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "REQUEUED"} & slurm.FINISHED
