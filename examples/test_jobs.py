from harness.testing import Faults, Slurm


def test_job_prints_and_is_accounted_for(slurm: Slurm) -> None:
    job = slurm.submit("echo hello from $SLURM_JOB_USER", "--time=5")
    assert job.wait().state == "COMPLETED"
    assert job.output() == "hello from alice\n"
    assert (job.record().account, job.record().exit_code) == ("physics", 0)


def test_nobody_cancels_a_job_of_somebody_else(slurm: Slurm) -> None:
    job = slurm.submit("sleep 100")
    job.wait("RUNNING")
    refused = slurm.as_user("bob").run("scancel", str(job.job_id), check=False)
    assert "Access/permission denied" in refused.stderr
    assert job.cancel().state == "CANCELLED"


def test_job_goes_on_while_slurmctld_is_away(slurm: Slurm, faults: Faults) -> None:
    job = slurm.submit("sleep 3; echo done")
    job.wait("RUNNING")
    with faults.injected("stop-daemon tiny slurmctld"):
        assert slurm.run("squeue", check=False).exit_code == 1
    assert job.wait().state == "COMPLETED"
    assert job.output() == "done\n"
