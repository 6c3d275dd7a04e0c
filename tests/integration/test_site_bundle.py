"""A site bundle of a live cluster becomes a rehearsal with the same accounting tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.site import collect
from support import Harness

SITE = Path(__file__).parent / "site_with_limits.yml"
CHECKS = ("accounting_tree", "every_user_is_the_same", "job_on_all_nodes", "batch_job")


def dumped(harness: Harness, run: str, host: str) -> str:
    """Return the accounting tree as sacctmgr writes it to a file."""
    script = "sacctmgr --readonly dump site file=/root/dump >&2 && cat /root/dump"
    done = harness("exec", "--run", run, host, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("release", ["20.11", "22.05", "24.11", "26.05"])
def test_rehearsal_of_a_bundle_has_the_sites_accounting_tree(
    harness: Harness, tmp_path: Path, release: str
) -> None:
    site, copy = tmp_path / f"site-{release}.yml", tmp_path / f"copy-{release}.yml"
    site.write_text(SITE.read_text())
    script, bundle = tmp_path / "harness-collect", tmp_path / "site.tar.gz"
    script.write_text(harness("collect").stdout)
    assert script.read_text() == Path(collect.__file__).read_text()

    def succeed(*arguments: str | Path) -> str:
        done = harness(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    try:
        succeed("up", site, "--release", release)
        succeed("deploy", "--run", site.stem)
        succeed("cp", "--run", site.stem, script, "s1:/root/harness-collect")
        on_s1 = ("exec", "--run", site.stem, "s1", "--")
        printed = succeed(
            *on_s1, "python3", "/root/harness-collect", "--days=1", "--output=/root/site.tar.gz"
        )
        assert "failed: s" not in printed, "a command of Slurm failed"
        succeed("cp", "--run", site.stem, "s1:/root/site.tar.gz", bundle)
        succeed("import", bundle, "--rehearsal", "2", "--output", copy)
        assert f'release: "{release}"' in copy.read_text()
        tree = dumped(harness, site.stem, "s1")
        succeed("down", site.stem)
        succeed("up", copy)
        succeed("deploy", "--run", copy.stem)
        assert dumped(harness, copy.stem, "copy1") == tree
        selected = (word for check in CHECKS for word in ("--select", check))
        succeed("verify", "--run", copy.stem, *selected)
    finally:
        harness("down", site.stem)
        harness("down", copy.stem)
