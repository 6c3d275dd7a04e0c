"""A site bundle of a live cluster becomes a rehearsal with its accounting tree and its scripts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.site import collect
from harness.wait import wait_until
from support import Harness

RELEASES = ("20.11", "22.05", "24.11", "26.05")
# Scripts run the same way between them; each release takes minutes.
OLDEST_AND_NEWEST = (RELEASES[0], RELEASES[-1])
SITE = Path(__file__).parent / "site_with_limits.yml"
SITE_WITH_SCRIPTS = Path(__file__).parent / "site_with_scripts.yml"
CHECKS = ("accounting_tree", "every_user_is_the_same", "job_on_all_nodes", "batch_job")
BROKEN_PROLOG = "echo checking the cards; echo card 3 is broken >&2; exit 7"

Succeed = Callable[..., str]


@pytest.fixture
def succeed(harness: Harness) -> Succeed:
    """Run a command of the harness that succeeds, and return what it prints."""

    def run(*arguments: str | Path) -> str:
        done = harness(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def removed(harness: Harness) -> Iterator[list[str]]:
    """Runs to remove at the end of the test, whether it passes or fails."""
    runs: list[str] = []
    yield runs
    for run in runs:
        harness("down", run)


def dumped(harness: Harness, run: str, host: str) -> str:
    """Return the accounting tree as sacctmgr writes it to a file."""
    script = "sacctmgr --readonly dump site file=/root/dump >&2 && cat /root/dump"
    done = harness("exec", "--run", run, host, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bundle_of(succeed: Succeed, run: str, directory: Path) -> tuple[Path, str]:
    """Collect a bundle on a running site; return it, and what the script printed."""
    script, bundle = directory / "harness-collect", directory / "site.tar.gz"
    script.write_text(Path(collect.__file__).read_text())
    succeed("cp", "--run", run, script, "s1:/root/harness-collect")
    on_s1 = ("exec", "--run", run, "s1", "--")
    printed = succeed(
        *on_s1, "python3", "/root/harness-collect", "--days=1", "--output=/root/site.tar.gz"
    )
    succeed("cp", "--run", run, "s1:/root/site.tar.gz", bundle)
    return bundle, printed


@pytest.mark.parametrize("release", RELEASES)
def test_rehearsal_of_a_bundle_has_the_sites_accounting_tree(
    harness: Harness, succeed: Succeed, removed: list[str], tmp_path: Path, release: str
) -> None:
    site, copy = tmp_path / f"site-{release}.yml", tmp_path / f"copy-{release}.yml"
    site.write_text(SITE.read_text())
    assert harness("collect").stdout == Path(collect.__file__).read_text()
    removed += [site.stem, copy.stem]
    succeed("up", site, "--release", release)
    succeed("deploy", "--run", site.stem)
    bundle, printed = bundle_of(succeed, site.stem, tmp_path)
    assert "failed: s" not in printed, "a command of Slurm failed"
    succeed("import", bundle, "--rehearsal", "2", "--output", copy)
    assert f'release: "{release}"' in copy.read_text()
    tree = dumped(harness, site.stem, "s1")
    succeed("down", site.stem)
    succeed("up", copy)
    succeed("deploy", "--run", copy.stem)
    assert dumped(harness, copy.stem, "copy1") == tree
    selected = (word for check in CHECKS for word in ("--select", check))
    succeed("verify", "--run", copy.stem, *selected)


@pytest.mark.parametrize("release", OLDEST_AND_NEWEST)
def test_rehearsal_of_a_bundle_runs_the_sites_scripts(
    harness: Harness,
    succeed: Succeed,
    runs: Path,
    removed: list[str],
    tmp_path: Path,
    release: str,
) -> None:
    site, copy = tmp_path / f"scripts-{release}.yml", tmp_path / f"scripts-copy-{release}.yml"
    site.write_text(SITE_WITH_SCRIPTS.read_text())
    removed += [site.stem, copy.stem]
    succeed("up", site, "--release", release)
    succeed("deploy", "--run", site.stem)
    bundle, _ = bundle_of(succeed, site.stem, tmp_path)
    succeed("down", site.stem)
    printed = succeed("import", bundle, "--rehearsal", "2", "--output", copy)
    for line in (
        "runs: JobSubmitPlugins=lua: /etc/slurm/job_submit.lua",
        "runs: CliFilterPlugins=lua: /etc/slurm/cli_filter.lua",
        "runs: Prolog=/etc/slurm/prolog.d/*: /etc/slurm/prolog.d/10-trace, ",
        "copied: /etc/slurm/site.sh: named in /etc/slurm/epilog.sh",
        "stand-in: /opt/site/bin/fabric-check: a program that only logs the call",
        "stand-in: /usr/local/bin/scontrol: the hosts' /usr/bin/scontrol",
    ):
        assert line in printed
    assert "/usr/bin/trace" not in printed, "a function of a script is not a program"
    succeed("up", copy)
    succeed("deploy", "--run", copy.stem)

    def as_alice(*command: str) -> tuple[str, str]:
        on_copy1 = ("exec", "--run", copy.stem, "copy1", "--", "runuser", "-u", "alice", "--")
        done = harness(*on_copy1, *command)
        return done.stdout, done.stderr

    def read(path: str) -> str:
        show = f"cat {path} 2> /dev/null; true"
        return "".join(
            succeed("exec", "--run", copy.stem, host, "--", "sh", "-c", show)
            for host in ("copy1", "copy2")
        )

    refused = as_alice("srun", "true")[1]
    assert "site policy: every job needs a time limit" in refused
    job = "echo $SLURM_JOB_ID $SITE_SCRATCH; scontrol show job $SLURM_JOB_ID"
    shown, _ = as_alice("srun", "--chdir=/tmp", "--time=90", "sh", "-c", job)
    number = shown.split()[0]
    assert shown.split()[1] == f"/scratch/{number}"
    assert "Partition=long" in shown
    assert "Comment=filtered" in shown
    assert f"prolog {number}" in read("/var/tmp/trace")
    assert f"JobId={number}" in read("/var/tmp/gpu-job")
    assert "healthy" in read("/var/tmp/health")
    calls = succeed(
        "exec", "--run", copy.stem, "copy1", "--", "journalctl", "--identifier=slurm-stand-in"
    )
    assert f"/usr/bin/gpu-check --job {number}" in calls

    refused_check = harness("verify", "--run", copy.stem, "--select", "batch_job")
    assert refused_check.returncode == 1
    assert "site policy: every job needs a time limit" in refused_check.stdout
    assert "hint: with JobSubmitPlugins=lua" in refused_check.stdout
    assert "checks: {submit: [--time=5]}" in refused_check.stdout

    succeed("down", copy.stem)
    copy.write_text(copy.read_text() + "checks: {submit: [--time=5]}\n")
    succeed("up", copy)
    succeed("deploy", "--run", copy.stem)
    succeed("verify", "--run", copy.stem)
    report = runs / copy.stem / "latest" / "report.html"
    assert "left out" in report.read_text().partition('id="fidelity"')[2]

    spoil_health = "printf '#!/bin/sh\\necho the fan is loud; exit 3\\n' > /opt/site/health.py"
    spoil = f"{spoil_health}; printf '#!/bin/sh\\n{BROKEN_PROLOG}\\n' > /etc/slurm/prolog.d/20-gpu"
    for host in ("copy1", "copy2"):
        succeed("exec", "--run", copy.stem, host, "--", "sh", "-c", spoil)
    look = ("exec", "--run", copy.stem, "copy1", "--", "grep", "-r", "health", "/var/log/slurm")
    wait_until(
        lambda: harness(*look).stdout,
        lambda lines: "error: " in lines,
        what="HealthCheckProgram to fail",
        timeout=120,
    )
    failed = harness("verify", "--run", copy.stem, "--select", "batch_job")
    assert failed.returncode == 1
    assert re.search(r"/opt/site/health.py \(\w+\) failed with exit code 3", failed.stdout)
    assert "the fan is loud" in failed.stdout
    assert "/etc/slurm/prolog.d/20-gpu" in failed.stdout
    assert "failed with exit code 7" in failed.stdout
    assert "card 3 is broken" in failed.stdout
