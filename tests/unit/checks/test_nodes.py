"""The script with which each node of a job looks whether it reaches the others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from harness.shipped_files import CHECKS

# Stand-ins: every node has the address 127.0.0.1, and steps reach all nodes.
SCONTROL = """
case $2 in
hostnames) seq --format=n%g 70;;
*) for node in $(echo "$4" | tr , ' '); do
    port=$([ $node != n30 ] || echo CLOSED)
    echo "NodeName=$node NodeAddr=127.0.0.1 Port=${port:-OPEN} Version=24.11"
done;;
esac
"""
SRUN = """
for option; do
    case $option in
    --nodelist=*) for node in $(echo ${option#*=} | tr , ' '); do
        echo "reached n1 $node 8000"
    done;;
    esac
done
"""


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    """What the script prints on the first of 70 nodes, of which n30 accepts no connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = {"OPEN": server.getsockname()[1], "CLOSED": closed.getsockname()[1]}
        for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
            for port, number in ports.items():
                text = text.replace(port, str(number))
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
            (tmp_path / name).chmod(0o755)
        script = subprocess.run(
            [sys.executable, "-c", "import test_nodes; print(test_nodes.steps_script('6818'))"],
            env={**os.environ, "PYTHONPATH": str(CHECKS)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURMD_NODENAME": "n1",
            "SLURM_JOB_NODELIST": "n[1-70]",
        }
        answer = subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        server.setblocking(False)
        connections = 0
        with suppress(BlockingIOError):
            while True:
                server.accept()[0].close()
                connections += 1
    return [*answer.stdout.splitlines(), f"{connections} connections"]


def test_a_node_starts_steps_on_the_next_nodes_and_connects_to_more(lines: list[str]) -> None:
    assert [line for line in lines if line.startswith("asks")] == [
        f"asks n1 n{number}" for number in range(2, 18)
    ]
    assert [line for line in lines if line.startswith("unreached")] == [
        "unreached n1 n30 Connection refused"
    ]
    # n18 to n64, but for n30
    assert lines[-1] == "46 connections"
