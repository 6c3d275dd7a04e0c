"""The scenario with a login host: each of its checks is seen to fail."""

from __future__ import annotations

import pytest

from harness import faults
from harness.cluster import slurm
from harness.faults import Fault
from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import kept_up, sabotages

login = kept_up("login")


@pytest.mark.parametrize("sabotage", sabotages("LOGIN"))
def test_check_fails_on_a_broken_login_host(login: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(login, sabotage)


def test_full_home_costs_jobs_their_output_and_slurm_does_not_notice(login: OpenRun) -> None:
    (cluster,) = slurm.clusters(login.ssh, login.plan).values()

    def ended(*commands: str) -> tuple[str, str]:
        """Run a job; return its state, and the output that is in its user's home."""
        output = "/home/alice/full-home.out"
        script = "\n".join(["#!/bin/sh", *commands, ""])
        job_id = cluster.submit(script, f"--output={output}", user="alice")
        cluster.wait_for([job_id])
        return cluster.job(job_id).state, login.ssh.run("login", ["cat", output]).stdout

    with faults.injected(login, Fault("fill-disk", "login", "/home")):
        assert ended("echo text", "true") == ("COMPLETED", "")
        assert ended("echo text") == ("FAILED", "")
    assert ended("echo text") == ("COMPLETED", "text\n")
