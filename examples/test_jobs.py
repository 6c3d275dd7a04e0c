from harness.testing import Faults, Slurm


def test_job_prints_and_is_recorded(slurm: Slurm) -> None:
    job = slurm.submit("echo hello from $SLURM_JOB_USER", "--time=5")
    assert job.wait().state == "COMPLETED"
    assert job.output() == "hello from alice\n"
    assert (job.record().account, job.record().exit_code) == ("physics", 0)


def test_user_cannot_cancel_another_users_job(slurm: Slurm) -> None:
    job = slurm.submit("sleep 600")
    job.wait("RUNNING")
    refused = slurm.as_user("bob").run("scancel", str(job.job_id), check=False)
    assert "Access/permission denied" in refused.stderr
    assert job.cancel().state == "CANCELLED"


def test_each_task_of_an_array_knows_its_index(slurm: Slurm) -> None:
    array = slurm.submit("echo task $SLURM_ARRAY_TASK_ID", "--array=1-3")
    assert [task.state for task in array.wait_all()] == ["COMPLETED"] * 3
    assert [task.output() for task in array.tasks().values()] == [
        "task 1\n",
        "task 2\n",
        "task 3\n",
    ]


def test_job_continues_while_slurmctld_is_down(slurm: Slurm, faults: Faults) -> None:
    job = slurm.submit("until [ -e go.$SLURM_JOB_ID ]; do sleep 0.2; done; echo done")
    job.wait("RUNNING")
    with faults.injected("stop-daemon tiny slurmctld"):
        assert slurm.run("squeue", check=False).exit_code == 1
        slurm.run("touch", f"go.{job.job_id}")
    assert job.wait().state == "COMPLETED"
    assert job.output() == "done\n"
