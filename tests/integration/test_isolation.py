"""SECURITY.md's promises about hosts in containers, checked on real containers."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from contextlib import closing

import docker
import pytest

from harness import releases
from harness.cluster import slurm
from harness.open_run import OpenRun
from harness.providers import images

# Prints whether a TCP connection to ADDRESS PORT can be made.
CONNECTS = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 10).close()
    print("connected")
except OSError as error:
    print(error)
"""
# A slurmctld that prints its release only if it runs without privileges.
WARY = r"""#!/bin/sh
[ "$(id -u)" = 65534 ] && grep -q "CapEff:[[:space:]]*0*$" /proc/self/status \
    && grep -q "NoNewPrivs:[[:space:]]*1" /proc/self/status && [ "$(ls /sys/class/net)" = lo ] \
    && ! touch /var/tmp/x 2> /dev/null && exec echo slurm 24.11.5
echo "a slurmctld with rights"
"""


@pytest.mark.core
def test_users_of_jobs_have_dockers_default_rights(single_node: OpenRun) -> None:
    (cluster,) = slurm.clusters(single_node.ssh, single_node.plan).values()
    for namespaces in (["--user"], ["--user", "--map-root-user", "--mount"]):
        done = cluster.run("srun", "unshare", *namespaces, "true", user="alice", check=False)
        assert "unshare failed: Operation not permitted" in done.stderr, namespaces
    status = cluster.run("srun", "cat", "/proc/self/status", user="alice").stdout
    facts = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    # Docker's filter, and ours; Linux before 5.9 does not count them.
    assert facts.get("Seccomp_filters", "2").strip() == "2"
    with_network_or_system_admin = 1 << 12 | 1 << 21
    assert int(facts["CapBnd"], 16) & with_network_or_system_admin == 0


@pytest.mark.core
def test_hosts_reach_no_service_of_the_machine(single_node: OpenRun) -> None:
    with socket.create_server(("", 0)) as service:
        port = service.getsockname()[1]
        with closing(docker.from_env(timeout=300)) as client:
            container = client.containers.get(f"{single_node.directory.id}-single")
            (network,) = container.attrs["NetworkSettings"]["Networks"].values()
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as outward:
            outward.connect((network["IPAddress"], 9))
            machine = outward.getsockname()[0]
        socket.create_connection((machine, port), 10).close()
        for nowhere in ((machine, str(port)), ("192.0.2.1", "80"), ("127.0.0.11", "53")):
            assert (
                "refused"
                in single_node.ssh.run("single", ["python3", "-c", CONNECTS, *nowhere]).stdout
            )


@pytest.mark.core
def test_machine_reaches_only_ssh_on_hosts(single_node: OpenRun) -> None:
    with closing(docker.from_env(timeout=300)) as client:
        container = client.containers.get(f"{single_node.directory.id}-single")
        (network,) = container.attrs["NetworkSettings"]["Networks"].values()
    address = network["IPAddress"]
    listening = single_node.ssh.run(
        "single", ["ss", "--tcp", "--listening", "--numeric", "--no-header"]
    ).stdout
    ports = {
        int(line.split()[3].rpartition(":")[2])
        for line in listening.splitlines()
        if "127.0.0." not in line
    }
    assert {6817, 6818, 22} <= ports
    for port in ports:
        # The host answers at once if it answers: what is dropped leaves nothing to wait for but
        # time.
        with closing(socket.socket()) as probe:
            probe.settimeout(3)
            assert (probe.connect_ex((address, port)) == 0) is (port == 22), port


@pytest.fixture
def wary_image() -> Iterator[str]:
    """An image whose slurmctld checks the privileges with which it runs."""
    client = docker.from_env(timeout=300)
    base = images.ensure(client, releases.get(releases.DEFAULT), print)
    made_of = [
        images.Entry("Dockerfile", f"FROM {base}\nCOPY slurmctld /usr/sbin/slurmctld\n".encode()),
        images.Entry("slurmctld", WARY.encode(), 0o755),
    ]
    context = io.BytesIO(images.archive(made_of))
    image, _ = client.images.build(
        fileobj=context, custom_context=True, tag="slurm-harness-test:wary", rm=True
    )
    yield image.tags[0]
    client.images.remove(image.tags[0], force=True)


def test_image_is_probed_without_privileges(wary_image: str) -> None:
    with closing(docker.from_env(timeout=300)) as client:
        assert images.origin_of(client, wary_image).release == "24.11"


@pytest.mark.core
def test_hosts_acknowledge_tcp_segments_at_once(single_node: OpenRun) -> None:
    """Otherwise, each command of sacctmgr takes 0.27 s up to 22.05."""
    for table in ("main", "local"):
        routes = single_node.ssh.run("single", ["ip", "-oneline", "route", "show", "table", table])
        slow = [
            route
            for route in routes.stdout.splitlines()
            if "quickack 1" not in route and not route.startswith("broadcast")
        ]
        assert not slow, table
