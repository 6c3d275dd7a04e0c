"""`make release`: what prevents a release, and what is built."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import release
from harness import __version__

ROOT = Path(__file__).parents[3]
CHANGELOG = """\
# Changelog

## 0.2.0 (unreleased)

- New.

## 0.1.0 (2026-11-23)

- First.

## 0.0.9

## 0.0.8
"""


@pytest.mark.parametrize(
    ("version", "tag"), [("0.1.0", None), ("0.1.0", "v0.1.0"), ("0.2.0", None)]
)
def test_version_with_its_section_is_released(version: str, tag: str | None) -> None:
    release.must_be_described(CHANGELOG, version, tag)


@pytest.mark.parametrize(
    ("version", "tag", "reason"),
    [
        ("0.3.0", None, "does not describe 0.3.0"),
        ("0.1", None, "does not describe 0.1:"),
        ("0.0.9", None, "does not describe 0.0.9"),
        ("0.1.0", "v0.2.0", "the tag is v0.2.0, but the version in harness/__init__.py is 0.1.0"),
        ("0.2.0", "v0.2.0", "calls 0.2.0 unreleased"),
    ],
)
def test_version_is_not_released_without(version: str, tag: str | None, reason: str) -> None:
    with pytest.raises(release.NotReleased, match=reason):
        release.must_be_described(CHANGELOG, version, tag)


def test_this_version_is_in_the_changelog() -> None:
    release.must_be_described((ROOT / "CHANGELOG.md").read_text(), __version__)


def test_wheel_is_built_from_the_sdist_and_complete(tmp_path: Path) -> None:
    wheel = release.build(ROOT, tmp_path / "dist")
    assert len([*(tmp_path / "dist").iterdir()]) == 2
    packed = {Path(name) for name in ZipFile(wheel).namelist()}
    here = {path.relative_to(ROOT) for path in (ROOT / "harness").rglob("*") if path.is_file()}
    assert {path for path in here if "__pycache__" not in path.parts} <= packed


def test_program_that_works_passes_the_trial(tmp_path: Path) -> None:
    release.try_out(Path(sys.executable).with_name("harness"), __version__, tmp_path)
    assert (tmp_path / "tree" / "onprem-ctl" / "etc" / "slurm" / "slurm.conf").exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 0.0.1", "expected: 9.9.9"),
        (
            '[ "$1" = --version ] && echo 9.9.9 || { echo "no scenarios" >&2; exit 3; }',
            r"init lab .*exit 3\)\nno scenarios",
        ),
    ],
    ids=["another version", "no data"],
)
def test_program_that_does_not_work_fails_the_trial(
    script: str, reason: str, tmp_path: Path
) -> None:
    program = tmp_path / "harness"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(release.NotReleased, match=reason):
        release.try_out(program, "9.9.9", tmp_path)
