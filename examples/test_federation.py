import pytest

from harness.testing import Federation, Slurm


@pytest.mark.scenario("../scenarios/federation.yml")
def test_job_goes_to_the_sibling_when_the_origin_is_full(
    federation: Federation, slurm: Slurm
) -> None:
    for _ in range(2):
        slurm.submit("sleep 600", "--exclusive", f"--clusters={federation.origin.name}").wait(
            "RUNNING"
        )
    job = slurm.submit("echo in $SLURM_CLUSTER_NAME")
    assert job.wait().state == "COMPLETED"
    assert job.ran_on() == federation.sibling.name
    assert job.output() == "in aws\n"
