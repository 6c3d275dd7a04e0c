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


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of traces, which does not exist yet."""
    directory = tmp_path / "seen"
    for name in ("_SCRIPT", "CREATE_DIRECTORY"):
        text = getattr(job_trace, name).replace(job_trace.DIRECTORY, str(directory))
        monkeypatch.setattr(job_trace, name, text)
    return directory


@pytest.mark.parametrize(("moment", "exit_codes"), [("chmod", []), ("mv", [None]), ("body", [143])])
def test_job_killed_at_any_moment_leaves_a_complete_trace_or_none(
    directory: Path, tmp_path: Path, moment: str, exit_codes: list[int | None]
) -> None:
    if moment == "mv":  # the one of the trace, not of the directory
        directory.mkdir()
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
    files = [path for path in directory.glob("*") if not path.name.startswith(".")]
    assert [job_trace.parse(path.read_text()).exit_code for path in files] == exit_codes


def test_job_that_cannot_leave_a_trace_fails_before_its_body_runs(
    directory: Path, tmp_path: Path
) -> None:
    directory.write_text("not a directory")
    done = subprocess.run(
        ["sh", "-c", job_trace.script(f"touch {tmp_path}/ran")], check=False, capture_output=True
    )
    assert done.returncode != 0
    assert not (tmp_path / "ran").exists()
    assert [*tmp_path.iterdir()] == [directory]


def test_directory_is_writable_for_all_users_from_its_first_moment(directory: Path) -> None:
    watch = f"until [ -d {directory} ]; do :; done; stat --format=%a {directory}"
    with subprocess.Popen(["sh", "-c", watch], stdout=subprocess.PIPE, text=True) as watcher:
        create = ["sh", "-c", job_trace.CREATE_DIRECTORY]
        jobs = [subprocess.Popen(create) for _ in range(8)]
        assert [job.wait(30) for job in jobs] == [0] * 8
        assert watcher.communicate(timeout=30)[0].strip() == "1777"
    assert [*directory.parent.iterdir()] == [directory]
