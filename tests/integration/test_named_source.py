"""The Slurm that `make test-source SOURCE=...` names, in whole clusters.

test_reference.py compares `harness check` with its daemons.
"""

from __future__ import annotations

import pytest

import reference
from support import SCENARIOS, Harness

pytestmark = pytest.mark.skipif(not reference.SOURCE, reason="HARNESS_SOURCE names no Slurm")


@pytest.mark.parametrize("scenario", ["single-node", "federation", "elastic-l3"])
def test_scenario_passes(scenario: str, harness: Harness) -> None:
    done = harness("run", SCENARIOS / f"{scenario}.yml", "--release", reference.SOURCE)
    assert done.returncode == 0, done.stdout + done.stderr
