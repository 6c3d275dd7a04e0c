"""The other Slurm releases, in the smallest scenario; the default one is judged by all the other tests."""

from __future__ import annotations

import pytest

from harness import releases
from support import SCENARIOS, Harness


@pytest.mark.parametrize("release", [name for name in releases.KNOWN if name != releases.DEFAULT])
def test_single_node_passes(release: str, harness: Harness) -> None:
    done = harness("run", SCENARIOS / "single-node.yml", "--release", release)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"single {release}" in done.stdout
