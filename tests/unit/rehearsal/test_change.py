"""Which changes can be rehearsed, and what they do to jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import FakeProvider
from harness import lifecycle
from harness.cluster.slurm import Job
from harness.errors import UsageError
from harness.rehearsal import change
from harness.slurmconf import diff

SITE = """\
clusters:
  one:
    controller: ctl
    nodes:
      - {name: "c[1-4]", cpus: 2, memory: 500}
    partitions:
      main: {default: true, options: {MaxTime: 60}}
users:
  alice: {uid: 2001}
"""


def planned(tmp_path: Path, old: str, new: str) -> list[diff.Change]:
    before, after = tmp_path / "before.yml", tmp_path / "after.yml"
    before.write_text(SITE)
    after.write_text(SITE.replace(old, new))
    provider = FakeProvider()
    return change.plan_change(lifecycle.read_plan(before, provider, ()), provider, after)[1]


def test_change_is_planned_with_the_steps_of_diff(tmp_path: Path) -> None:
    changes = planned(tmp_path, "MaxTime: 60", "MaxTime: 30")
    assert [item.option for item in changes] == ["PartitionName main MaxTime"]
    assert diff.needed(changes) == ["copy", "reconfigure"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("MaxTime: 60", "MaxTime: '1:00:00'", "there is no change that Slurm would see"),
        ("c[1-4]", "c[1-5]", "c5: a change of hosts"),
        ("controller: ctl", "controller: other", r"ctl,other: a change of hosts"),
        ("  one:", "  two:", "a change of hosts"),
        ("    nodes:", "    packages: [gcc]\n    nodes:", "releases, packages, SPANK plugins"),
        (
            "    nodes:",
            "    spank_plugins: {/opt/a.so: {text: a}}\n    nodes:",
            "packages, SPANK plugins, user-data, disks",
        ),
        ("users:", "disks: {c1: {/var/spool: 100M}}\nusers:", "c1: a change of hosts"),
        (
            "    nodes:",
            "    kubernetes: true\n    rest: {}\n    nodes:",
            "share nodes with Kubernetes cannot be rehearsed: one",
        ),
        ("MaxTime: 60", "MaxTime: soon", "fatal: MaxTime"),
        (
            "    nodes:",
            "    options: {StateSaveLocation: /var/spool/other}\n    nodes:",
            "require manual steps:\nslurm.conf StateSaveLocation",
        ),
    ],
)
def test_change_that_cannot_be_rehearsed_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        planned(tmp_path, old, new)


def job(state: str, reason: str) -> Job:
    return Job(7, state, "", "j", "alice", reason, 7)


@pytest.mark.parametrize(
    ("before", "after", "harmed"),
    [
        (job("RUNNING", "None"), job("RUNNING", "None"), False),
        (job("RUNNING", "None"), job("COMPLETED", "None"), False),
        (job("RUNNING", "None"), None, False),
        (job("RUNNING", "None"), job("PENDING", "BeginTime"), True),
        (job("RUNNING", "None"), job("CANCELLED", "None"), True),
        (job("RUNNING", "None"), job("NODE_FAIL", "None"), True),
        (job("RUNNING", "None"), job("FAILED", "NonZeroExitCode"), False),
        (job("PENDING", "Resources"), job("PENDING", "PartitionConfig"), False),
        (job("PENDING", "Resources"), job("CANCELLED", "None"), True),
    ],
)
def test_job_is_harmed_if_it_starts_again_or_is_ended(
    before: Job, after: Job | None, harmed: bool
) -> None:
    assert bool(change.harm(before, after)) == harmed
