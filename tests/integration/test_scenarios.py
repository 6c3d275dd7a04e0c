"""Each shipped scenario passes on two releases. Modules that break a scenario run it on one.

`make test-exhaustive` runs most of the second releases.
"""

from __future__ import annotations

import pytest

from support import SCENARIOS, SMALL_SCALE, Harness

# Scenarios that no other test runs on the default release. Those of `make test-exhaustive` have
# only checks that other scenarios have, too.
FIRST = [
    pytest.param("dynamic", marks=pytest.mark.exhaustive),
    pytest.param("elastic-l0", marks=pytest.mark.exhaustive),
    pytest.param("elastic-l1", marks=pytest.mark.exhaustive),
    "elastic-l2",
    pytest.param("federation-small", marks=pytest.mark.exhaustive),
    pytest.param("topology-tree", marks=pytest.mark.exhaustive),
]
SECOND = [
    ("cloudburst", "26.05"),
    ("directory", "22.05"),
    ("dns", "20.11"),
    ("elastic-l0", "22.05"),
    ("elastic-l1", "26.05"),
    ("elastic-l2", "22.05"),
    ("elastic-l3", "22.05"),
    ("federation", "20.11"),
    ("federation-faults", "26.05"),
    ("federation-small", "20.11"),
    ("federation-small", "26.05"),
    ("ha", "20.11"),
    ("job-modes", "22.05"),
    ("kubernetes-hybrid", "24.11"),
    ("login", "22.05"),
    ("monitoring", "24.11"),
    ("mpi", "22.05"),
    ("oci", "26.05"),
    ("rest", "26.05"),
    ("scale", "22.05"),
    ("schedmd-suite", "24.11"),
    ("scheduling", "20.11"),
    ("simulate", "26.05"),
    ("topology-block", "26.05"),
    ("topology-tree", "20.11"),
]
# What `make test-rest` runs of these: the oldest release. `monitoring` runs on the newest.
IN_TEST_REST = {("federation-small", "20.11")}
# What else differs on the second release.
CHANGES = {
    "scale": SMALL_SCALE,
    "simulate": ("--set", "clusters.sim.nodes.0.name=n[1-20]"),
    "login": ("--set", "auth=munge"),
}
# test_releases.py runs single-node and dynamic on several releases; Debian has a single release for
# the other two.
ELSEWHERE = {"single-node", "dynamic", "apptainer", "topology"}


@pytest.mark.parametrize("name", FIRST)
def test_scenario_passes_on_the_default_release(name: str, harness: Harness) -> None:
    done = harness("run", SCENARIOS / f"{name}.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "release"),
    [
        pytest.param(*case, marks=[pytest.mark.exhaustive] * (case not in IN_TEST_REST))
        for case in SECOND
    ],
)
def test_scenario_passes_on_a_second_release(name: str, release: str, harness: Harness) -> None:
    changes = CHANGES.get(name, ())
    done = harness("run", SCENARIOS / f"{name}.yml", "--release", release, *changes)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_shipped_scenario_has_a_second_release() -> None:
    assert {name for name, _ in SECOND} | ELSEWHERE == {
        path.stem for path in SCENARIOS.glob("*.yml")
    }
