from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness import slurm
from harness.errors import WaitTimeout
from harness.slurm import Record, Sibling, SlurmCluster
from harness.ssh import Result, Ssh

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


class LocalSsh(Ssh):
    """Runs commands here, with programs of the test's own before all others."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs

    def run(self, host: str, command: Any, *, stdin: str = "", **_: Any) -> Result:
        path = {"PATH": f"{self.programs}:/usr/bin:/bin"}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, env=path)
        return Result(0, done.stdout, done.stderr)


def cluster_with(tmp_path: Path, program: str, text: str) -> SlurmCluster:
    (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / program).chmod(0o755)
    return SlurmCluster(LocalSsh(tmp_path), "c", "ctl")


def test_one_script_is_submitted_with_several_sets_of_options(tmp_path: Path) -> None:
    cluster = cluster_with(tmp_path, "sbatch", f'echo "$*" >> {tmp_path}/seen; cat >> {tmp_path}/seen; echo "7;c"')
    assert cluster.submit_each("#!/bin/sh\necho '$HOME' \"\n", [["-J", "a b"], ["-J", "$c"]], "alice") == [7, 7]
    script = "#!/bin/sh\necho '$HOME' \"\n"
    assert (tmp_path / "seen").read_text() == f"--parsable -J a b\n{script}--parsable -J $c\n{script}"


def test_submission_that_fails_ends_the_others(tmp_path: Path) -> None:
    cluster = cluster_with(tmp_path, "sbatch", f"echo x >> {tmp_path}/seen; exit 1")
    with pytest.raises(subprocess.CalledProcessError):
        cluster.submit_each("#!/bin/sh\n", [[], []], "alice")
    assert (tmp_path / "seen").read_text() == "x\n"


def test_array_has_ended_when_all_its_tasks_have(tmp_path: Path) -> None:
    squeue = f"""
        echo >> {tmp_path}/looks
        if [ $(wc -l < {tmp_path}/looks) = 1 ]; then
            echo "9|COMPLETED|n1|j|alice|None|8"; echo "8|PENDING||j|alice|None|8"
        else
            echo "9|COMPLETED|n1|j|alice|None|8"; echo "8|COMPLETED|n1|j|alice|None|8"
        fi"""
    ended = cluster_with(tmp_path, "squeue", squeue).wait_for([8], {"COMPLETED"}, timeout=5)
    assert {job.job_id for job in ended} == {8, 9}


def test_of_many_jobs_the_states_are_counted(tmp_path: Path) -> None:
    squeue = 'for i in $(seq 30); do echo "$i|FAILED|n1|j|alice|None|1"; done'
    with pytest.raises(WaitTimeout, match=r"seen: 30 FAILED$"):
        cluster_with(tmp_path, "squeue", squeue).wait_for([1], {"COMPLETED"})
