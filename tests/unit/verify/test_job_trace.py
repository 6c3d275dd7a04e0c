"""What jobs record about themselves, whatever happens to them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness.verify import job_trace
from harness.verify.job_trace import JobTrace


def test_trace_of_a_killed_job_has_no_end() -> None:
    assert job_trace.parse("job_id=67108871\ncluster=aws\nhost=aws3\nstart=1000\n") == JobTrace(
        *(67108871, "aws", "aws3", 1000, None, None)
    )


HOME = {"home": "/home/alice", "directory": "/home/alice", "owner": "alice"}
AT_HOME = JobTrace(
    *(67108871, "aws", "aws3", 1000, 1010, 0),
    user="alice",
    notes=HOME | {"output": "/home/alice/slurm-harness-67108871.out"},
)


@pytest.mark.parametrize(
    ("notes", "wrong"),
    [
        ({}, []),
        ({"directory": "/tmp"}, ["ran in /tmp, not in /home/alice"]),
        ({"owner": "bob"}, ["its output belongs to bob, not to alice"]),
        (
            {"output": "/tmp/out"},
            [f"its output went to /tmp/out, not to {AT_HOME.notes['output']}"],
        ),
    ],
)
def test_job_directory_and_output_outside_of_home_are_found(
    notes: dict[str, str], wrong: list[str]
) -> None:
    assert job_trace.misplaced(replace(AT_HOME, notes={**AT_HOME.notes, **notes})) == wrong


def test_notes_of_a_body_are_read() -> None:
    text = "job_id=67108871\ncluster=aws\nhost=aws3\nstart=1000\nnote.home=/home/alice\n"
    assert job_trace.parse(text).notes == {"home": "/home/alice"}


@pytest.mark.parametrize(("moment", "exit_codes"), [("mkdir", []), ("mv", [None]), ("body", [143])])
def test_job_killed_at_any_moment_leaves_a_complete_trace_or_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str, exit_codes: list[int | None]
) -> None:
    monkeypatch.setattr(
        job_trace, "_SCRIPT", job_trace._SCRIPT.replace(job_trace.DIRECTORY, str(tmp_path / "seen"))
    )
    killing = tmp_path / "bin" / moment
    killing.parent.mkdir()
    killing.write_text(
        f'#!/bin/sh\nPATH={os.defpath}\nkill -TERM $PPID\n[ {moment} = body ] || {moment} "$@"\n'
    )
    killing.chmod(0o700)
    environment = {
        "PATH": f"{killing.parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_CLUSTER_NAME": "aws",
    }
    command = ["sh", "-c", job_trace.script("body; sleep 60")]
    subprocess.run(
        command, env=environment, check=False, timeout=30, capture_output=True
    )  # ends when all writers have
    files = [path for path in (tmp_path / "seen").glob("*") if not path.name.startswith(".")]
    assert [job_trace.parse(path.read_text()).exit_code for path in files] == exit_codes
