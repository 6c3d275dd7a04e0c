import pytest

from harness.pytest_plugin.clients import Rest
from harness.testing import Slurm


@pytest.mark.scenario("../scenarios/rest.yml")
def test_job_submitted_over_rest_runs(rest: Rest, slurm: Slurm) -> None:
    submit = f"/slurm/{rest.versions()[-1]}/job/submit"
    job = {"current_working_directory": "/home/alice", "environment": ["PATH=/usr/bin:/bin"]}
    answer = rest.client.post(submit, json={"script": "#!/bin/sh\necho hello\n", "job": job})
    assert slurm.submission(answer.json()["job_id"]).wait().state == "COMPLETED"
