from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import golden
from harness.cluster import node_state, slurm
from harness.cluster.slurm import Record, Reservation, Sibling, SlurmCluster
from harness.errors import CannotVerify, CommandFailed, LateAnswer, WaitTimeout
from harness.ssh import Result, Ssh
from harness.wait import wait_until

# As Slurm 24.11 prints them.
FEDERATION = """\
Federation: cloudburst
Self:       on-prem:198.18.0.11:6817 ID:1 FedState:ACTIVE Features:onsite
Sibling:    aws:198.18.1.10:6817 ID:2 FedState:ACTIVE Features:cloud \
PersistConnSend/Recv:Yes/Yes Synced:Yes
"""


def test_federation_is_read() -> None:
    assert slurm.parse_federation(FEDERATION) == [
        Sibling("on-prem", 1, "ACTIVE", synced=True),
        Sibling("aws", 2, "ACTIVE", synced=True),
    ]


def test_sibling_without_both_connections_is_not_synced() -> None:
    for broken in ("Send/Recv:Yes/No", "Send/Recv:No/Yes"):
        text = FEDERATION.replace("Send/Recv:Yes/Yes", broken)
        assert [sibling.synced for sibling in slurm.parse_federation(text)] == [True, False]
    assert [
        sibling.synced
        for sibling in slurm.parse_federation(FEDERATION.replace("Synced:Yes", "Synced:No"))
    ] == [
        True,
        False,
    ]


def test_no_federation_is_empty() -> None:
    assert slurm.parse_federation("No federation information available.\n") == []


def parsed(line: str) -> Record:
    return slurm.parse_record(line.replace("|", slurm.SEPARATOR))


def test_name_of_a_job_may_contain_what_separates_columns_elsewhere() -> None:
    line = "7|c|NAME|alice|physics|FAILED|7:0|n1|1|2|3|1|normal|main|1|60|/||||"
    text = line.replace("|", slurm.SEPARATOR).replace("NAME", "a|b")
    assert slurm.parse_record(text).name == "a|b"


def test_record_of_a_job_and_of_its_step() -> None:
    line = (
        "67108866|aws|j.sh|alice|physics|CANCELLED by 2001|0:15|aws2|"
        "1700000000|1700000001|1700000009|8"
    )
    line += "|normal|batch|2|60|/home/alice|2048K|2001|1700000000|cpu=2"
    job = Record(
        *(67108866, "", "aws", "j.sh", "alice", "physics", "CANCELLED", 0, 15, "aws2"),
        *(1700000000, 1700000001, 1700000009, 8),
        *("normal", "batch", 2, "60", "/home/alice", 2 << 20, "2001", 1700000000, "cpu=2"),
    )
    assert parsed(line) == job
    assert parsed(line.replace("67108866|", "67108866.batch|")).step == "batch"


def test_times_that_are_not_known_yet_are_none() -> None:
    line = (
        "7|aws|j|alice|physics|PENDING|0:0|None assigned|1700000000|Unknown|Unknown|"
        "0|normal|batch|0|60|/home/alice||2001|Unknown|"
    )
    record = parsed(line)
    assert (record.submit, record.start, record.end) == (1700000000, None, None)


def test_job_that_slurmctld_remembers_is_like_its_record() -> None:
    line = (
        "JobId=7 ArrayJobId=6 ArrayTaskId=1 JobName=a job UserId=alice(2001) GroupId=alice(2001)"
        " Account=physics"
        " QOS=normal JobState=FAILED Reason=NonZeroExitCode Restarts=0 ExitCode=3:0"
        " RunTime=00:01:05"
        " TimeLimit=1-00:30:00 SubmitTime=1700000000 StartTime=1700000001 EndTime=1700000066"
        " Partition=batch"
        " NodeList=c[1-2] NumNodes=2 NumCPUs=4 ReqTRES=cpu=4 AllocTRES=cpu=4"
        " EligibleTime=1700000000 WorkDir=/home/alice StdErr=/dev/null"
    )
    assert slurm.parse_remembered(line, "aws") == Record(
        *(
            7,
            "",
            "aws",
            "a job",
            "alice",
            "physics",
            "FAILED",
            3,
            0,
            "c[1-2]",
            1700000000,
            1700000001,
            1700000066,
            65,
        ),
        *("normal", "batch", 4, "1470", "/home/alice", None, "2001", 1700000000, "cpu=4"),
    )
    waiting = (
        line.replace("FAILED", "PENDING")
        .replace("c[1-2]", "(null)")
        .replace("NumCPUs=4", "NumCPUs=4-8")
    )
    seen = slurm.parse_remembered(waiting, "aws")
    assert (seen.start, seen.end, seen.node_list, seen.cpus) == (None, None, "", 4)


def test_name_of_a_component_of_a_heterogeneous_job_is_its_own() -> None:
    line = (
        "JobId=8 HetJobId=7 HetJobOffset=1 JobName=a job HetJobIdSet=7-8 UserId=alice(2001)"
        " Account=physics QOS=normal JobState=RUNNING ExitCode=0:0 RunTime=00:00:05"
        " TimeLimit=00:01:00 SubmitTime=1700000000 StartTime=1700000001 EndTime=1700000061"
        " Partition=batch NodeList=c2 NumCPUs=1"
    )
    assert slurm.parse_remembered(line, "aws").name == "a job"


def test_origin_is_in_the_bits_above_the_local_id() -> None:
    assert [slurm.origin_id(job_id) for job_id in (1, 67108865, 134217732)] == [0, 1, 2]


def test_node_in_maintenance_takes_no_jobs_whatever_the_release_calls_it() -> None:
    for state in ("MAINT", "IDLE+MAINTENANCE", "IDLE+DRAIN", "DOWN+NOT_RESPONDING", "MIXED+MAINT"):
        assert node_state.is_out_of_service(state), state
    for state in ("IDLE", "MIXED", "ALLOCATED+PLANNED", "IDLE+CLOUD+POWERED_DOWN", "IDLE+RESERVED"):
        assert not node_state.is_out_of_service(state), state


def test_reservation_is_for_users_who_may_use_it() -> None:
    line = (
        "ReservationName=r StartTime=1 EndTime=2 Nodes=n[1-2] Users=bob Groups=(null)"
        " Accounts=physics State=ACTIVE"
    )
    assert slurm.parse_reservation(line) == Reservation("r", 1, 2, "n[1-2]", "bob,physics")


def test_every_state_that_a_job_does_not_leave_is_known() -> None:
    assert "REVOKED" in slurm.FINISHED
    assert not {"RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "REQUEUED"} & slurm.FINISHED


class LocalSsh(Ssh):
    """Runs commands here, with programs of the test's own before all others."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs

    def run(self, host: str, command: Any, *, stdin: str = "", **_: Any) -> Result:
        path = {"PATH": f"{self.programs}:/usr/bin:/bin"}
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, env=path
        )
        if done.returncode:
            raise CommandFailed(host, " ".join(command), done.returncode, done.stdout, done.stderr)
        return Result(0, done.stdout, done.stderr)


def cluster_with(tmp_path: Path, program: str, text: str, timeout: float = 120) -> SlurmCluster:
    (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / program).chmod(0o755)
    return SlurmCluster(LocalSsh(tmp_path), "c", "ctl", timeout)


def test_one_script_is_submitted_with_several_sets_of_options(tmp_path: Path) -> None:
    cluster = cluster_with(
        tmp_path, "sbatch", f'echo "$*" >> {tmp_path}/seen; cat >> {tmp_path}/seen; echo "7;c"'
    )
    assert cluster.submit_each(
        "#!/bin/sh\necho '$HOME' \"\n", [["-J", "a b"], ["-J", "$c"]], "alice"
    ) == [7, 7]
    script = "#!/bin/sh\necho '$HOME' \"\n"
    assert (tmp_path / "seen").read_text() == "".join(
        f"--comment=slurm-harness --parsable -J {name}\n{script}" for name in ("a b", "$c")
    )


def test_submission_that_fails_ends_the_others(tmp_path: Path) -> None:
    cluster = cluster_with(tmp_path, "sbatch", f"echo x >> {tmp_path}/seen; exit 1")
    with pytest.raises(CommandFailed):
        cluster.submit_each("#!/bin/sh\n", [[], []], "alice")
    assert (tmp_path / "seen").read_text() == "x\n"


def test_array_has_ended_when_all_its_tasks_have(tmp_path: Path) -> None:
    squeue = f"""
        echo >> {tmp_path}/looks
        if [ $(wc -l < {tmp_path}/looks) = 1 ]; then
            echo "9|COMPLETED|n1|alice|None|8||j"; echo "8|PENDING||alice|None|8||j"
        else
            echo "9|COMPLETED|n1|alice|None|8||j"; echo "8|COMPLETED|n1|alice|None|8||j"
        fi"""
    ended = cluster_with(tmp_path, "squeue", squeue).wait_for([8], {"COMPLETED"}, timeout=60)
    assert {job.job_id for job in ended} == {8, 9}


LATE = "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1"


def late_once(tmp_path: Path) -> str:
    return f"""
        echo >> {tmp_path}/looks
        [ $(wc -l < {tmp_path}/looks) -gt 1 ] || {{ {LATE}; }}"""


def test_query_is_repeated_if_its_answer_was_late(tmp_path: Path) -> None:
    squeue = f'{late_once(tmp_path)}; echo "8|COMPLETED|n1|alice|None|8||j"'
    assert [job.job_id for job in cluster_with(tmp_path, "squeue", squeue).jobs()] == [8]


def test_wait_goes_on_after_an_answer_that_was_late(tmp_path: Path) -> None:
    cluster = cluster_with(tmp_path, "scontrol", late_once(tmp_path))
    answer = wait_until(
        lambda: cluster.run("scontrol", "update", "JobId=8", "Nice=1"),
        lambda answer: answer.exit_code == 0,
        what="the update",
        timeout=5,
    )
    assert len((tmp_path / "looks").read_text()) == 2, answer


def test_wait_shows_that_no_answer_came_in_time(tmp_path: Path) -> None:
    with pytest.raises(WaitTimeout, match=r"last state: .*Socket timed out on send/recv operation"):
        cluster_with(tmp_path, "squeue", LATE, timeout=2).wait_for([8], timeout=0)


def test_submission_without_an_answer_in_time_may_have_succeeded(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as caught:
        cluster_with(tmp_path, "sbatch", LATE).run("sbatch", "script")
    assert not isinstance(caught.value, LateAnswer)


def test_states_of_many_jobs_are_counted(tmp_path: Path) -> None:
    squeue = 'for i in $(seq 30); do echo "$i|FAILED|n1|alice|None|1||j"; done'
    with pytest.raises(WaitTimeout, match=r"last state: 30 FAILED$"):
        cluster_with(tmp_path, "squeue", squeue).wait_for([1], {"COMPLETED"})


def test_priorities_have_the_order_of_the_jobs_that_were_asked_for(tmp_path: Path) -> None:
    cluster = cluster_with(tmp_path, "squeue", "echo '10|main|high|950'; echo '9|main|low|1000'")
    assert cluster.priorities([9, 10]) == [("main", "low", 1000), ("main", "high", 950)]
    assert cluster.priorities([8, 9]) == [("main", "low", 1000)]


@pytest.mark.parametrize("separator", [" ", "_"])
def test_wait_for_a_job_that_is_held_after_a_failed_launch_ends_early(
    tmp_path: Path, separator: str
) -> None:
    reason = separator.join(("launch", "failed", "requeued", "held"))
    cluster = cluster_with(tmp_path, "squeue", f'echo "8|PENDING||alice|{reason}|8||j"')
    with pytest.raises(WaitTimeout, match=r"cannot succeed any more .* 8 PENDING \(launch"):
        cluster.wait_for([8], {"COMPLETED"}, timeout=60)
    assert cluster.wait_for([8], {"PENDING"}, timeout=60)


def test_names_and_comments_of_others_do_not_confuse_the_queue(tmp_path: Path) -> None:
    squeue = (
        'printf "%s\\n" "7|RUNNING|n1|alice|None|7|two" "lines|a|b"'
        ' "8|RUNNING|n1|bob|None|8|slurm-harness|c"'
    )
    jobs = cluster_with(tmp_path, "squeue", squeue.replace('two"', 'two|a|b"')).jobs()
    assert [(job.job_id, job.name, job.ours) for job in jobs] == [(7, "a|b", False), (8, "c", True)]


def test_job_that_slurmctld_has_forgotten_is_found_in_accounting(tmp_path: Path) -> None:
    cluster_with(tmp_path, "squeue", "true")
    (tmp_path / "sacct").write_text(
        "#!/bin/sh\nfor word; do [ ${word#--delimiter} = $word ] || with=${word#*=}; done\n"
        "echo '7|c|j|alice|physics|FAILED|7:0|n1|1|2|3|1|normal|main|1|60|/||||' | tr '|' $with\n"
    )
    (tmp_path / "sacct").chmod(0o755)
    cluster = SlurmCluster(LocalSsh(tmp_path), "c", "ctl", accounting=True)
    assert [job.state for job in cluster.wait_for([7], {"FAILED"})] == ["FAILED"]


def test_wait_for_nodes_that_other_users_jobs_occupy_gives_no_verdict(tmp_path: Path) -> None:
    squeue = 'echo "7|RUNNING|n[1-2]|bob|None|7||x"; echo "8|PENDING||alice|{}|8|slurm-harness|x"'
    with pytest.raises(CannotVerify, match=r"busy with jobs of others: n\[1-2\] with job 7 of bob"):
        cluster_with(tmp_path, "squeue", squeue.format("Resources")).wait_for([8], timeout=0.1)
    with pytest.raises(WaitTimeout, match=r"waiting: 8 PENDING \(QOSMaxJobsPerUserLimit\)"):
        cluster_with(tmp_path, "squeue", squeue.format("QOSMaxJobsPerUserLimit")).wait_for(
            [8], timeout=0.1
        )


@pytest.mark.parametrize("answers", [True, False])
def test_member_that_lost_its_sibling_at_the_start_is_restarted(answers: bool) -> None:
    shown = {
        "onprem-ctl": "Self: on-prem:a:6817 ID:1 FedState:ACTIVE Features:\n"
        "Sibling: aws:b:6817 ID:2 FedState:ACTIVE Features: PersistConnSend/Recv:No/No Synced:No",
        "aws-ctl": "Self: aws:b:6817 ID:2 FedState:ACTIVE Features:\nSibling: on-prem:a:6817 ID:1"
        " FedState:ACTIVE Features: PersistConnSend/Recv:Yes/Yes Synced:Yes",
    }
    restarted = []

    class Members(Ssh):
        def __init__(self) -> None:
            pass

        def run(self, host: str, command: Any, **_: Any) -> Result:
            if "is-failed" in command:
                return Result(1, "", "")
            if command[0] == "systemctl":
                restarted.append((host, *command[1:]))
            elif not answers:
                raise CommandFailed(host, "scontrol show federation", 1, "", "Unable to contact")
            return Result(0, shown[host], "")

    plan, said = golden.plan_of("federation"), list[str]()
    slurm.connect_siblings(plan, slurm.clusters(Members(), plan), said.append, timeout=0.1)
    assert restarted == [("onprem-ctl", "restart", "slurmctld")] * answers
    restarting = ["on-prem lost its connection to aws at the start: restarting its slurmctld"]
    assert said == restarting * answers


def test_nobody_waits_for_siblings_of_a_controller_that_has_failed() -> None:
    class Failed(Ssh):
        def __init__(self) -> None:
            pass

        def run(self, host: str, command: Any, **_: Any) -> Result:
            if "is-failed" in command:
                return Result(0, "", "")
            asked.append(host)
            raise CommandFailed(host, " ".join(command), 1, "", "Unable to contact")

    plan, asked = golden.plan_of("federation"), list[str]()
    slurm.connect_siblings(plan, slurm.clusters(Failed(), plan), print, timeout=60)
    assert asked == ["onprem-ctl"]


@pytest.mark.parametrize(("scenario", "ends"), [("single-node", True), ("ha", False)])
def test_wait_for_a_cluster_ends_when_its_only_controller_has_failed(
    scenario: str, ends: bool
) -> None:
    class Failed(Ssh):
        def __init__(self) -> None:
            self.asked = 0

        def run(self, host: str, command: Any, *, check: bool = True, **_: Any) -> Result:
            if command[0] == "systemctl":
                return Result(0, "", "")
            self.asked += 1
            raise CommandFailed(
                "n1", "scontrol show node", 1, "", "Unable to contact slurm controller"
            )

    plan, ssh = golden.plan_of(scenario), Failed()
    clusters = slurm.clusters(ssh, plan)
    message = f"slurmctld of {next(iter(clusters))} has failed on " if ends else "timed out after"
    with pytest.raises(WaitTimeout, match=message):
        slurm.wait_until_ready(plan, clusters, timeout=2)
    assert (ssh.asked == 1) == ends


class Controller:
    """A cluster whose slurmctld gives these answers, the last one again and again."""

    name = "one"

    def __init__(self, *answers: str, failed: bool = False) -> None:
        self.answers = [*answers]
        self.failed = failed

    def run(self, *command: str) -> None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer:
            raise CommandFailed(
                "n1", " ".join(command), 1, "", f"slurm_reconfigure error: {answer}"
            )

    def controller_failed(self) -> bool:
        return self.failed


def test_reconfiguration_whose_answer_is_late_is_repeated_and_one_that_fails_is_not() -> None:
    late, invalid = "Socket timed out on send/recv operation", "Invalid argument"
    slurm.reconfigure(Controller(late, ""))  # type: ignore[arg-type]
    with pytest.raises(CommandFailed, match=invalid):
        slurm.reconfigure(Controller(invalid, ""))  # type: ignore[arg-type]
    with pytest.raises(WaitTimeout, match=f"cannot succeed any more.*{late}"):
        slurm.reconfigure(Controller(late, failed=True))  # type: ignore[arg-type]
