"""A federation on three engines in a Swarm: it passes, and the loss of an engine is reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines import Engines, engines
from support import SCENARIOS, Harness, command_line, environment_of


@pytest.fixture(scope="module")
def three() -> Iterator[Engines]:
    """Three engines, the first with the image of the scenario's release."""
    with engines(3, "24.11") as there:
        yield there


@pytest.fixture(scope="module")
def harness(three: Engines, runs: Path) -> Harness:
    """The command line of a user who has these engines."""
    provider = {
        "HARNESS_PROVIDER": f"docker:{','.join(three.names)}",
        "DOCKER_CONFIG": str(three.config),
    }
    return command_line({**environment_of(runs), **provider})


def left(three: Engines, name: str) -> list[str]:
    """Return the containers, networks and volumes that runs have on an engine."""
    client, of_runs = three.client(name), {"label": "harness.run"}
    return [
        *(str(container.name) for container in client.containers.list(all=True, filters=of_runs)),
        *(str(network.name) for network in client.networks.list(filters=of_runs)),
        *(str(volume.name) for volume in client.volumes.list(filters=of_runs)),
    ]


def images(harness: Harness) -> list[dict[str, object]]:
    """Return the harness's images on an engine; boxes are on this machine, not on the engine."""
    listed = json.loads(harness("images", "list", "--format", "json").stdout)
    return [row for row in listed if row["kind"] == "image"]


def test_image_is_carried_in_a_file_to_an_engine_without_a_registry(
    three: Engines, environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "images.tar"
    here, there = (
        command_line({**environment, "DOCKER_HOST": three.host(name)}) for name in ("e1", "e3")
    )
    assert images(there) == []
    saved = here("images", "save", file, "24.11")
    assert saved.returncode == 0, saved.stderr
    loaded = there("images", "load", file)
    assert loaded.returncode == 0, loaded.stderr
    (image,) = images(there)
    assert (image["image"], image["release"], image["current"]) == (
        loaded.stdout.strip(),
        "24.11",
        True,
    )


def test_lost_engine_is_not_blamed_on_the_clusters_and_nothing_of_a_run_is_left(
    three: Engines, harness: Harness
) -> None:
    try:
        up = harness("up", SCENARIOS / "federation.yml")
        assert up.returncode == 0, up.stderr
        assert all(left(three, name) for name in three.names)
        deploy = harness("deploy")
        assert deploy.returncode == 0, deploy.stderr
        verify = harness("verify", "--select", "federation", "--select", "sites")
        assert verify.returncode == 0, verify.stdout + verify.stderr

        three.link("e3", "down")
        verify = harness("verify", "--select", "job_on_all_nodes")
        assert verify.returncode == 3, verify.stdout + verify.stderr
        assert "stopped during the run: " in verify.stdout
        three.link("e3", "up")

        three.kill("e3")
        down = harness("down")
        assert down.returncode == 3
        assert "context e3 does not answer" in down.stderr
        assert not [
            name_left
            for name in ("e1", "e2")
            for name_left in left(three, name)
            if not name_left.startswith("federation-")
        ]
        three.start("e3")
    finally:
        down = harness("down", "--all")
    assert down.returncode == 0, down.stderr
    assert not [name_left for name in three.names for name_left in left(three, name)]
