"""What the tests of Python clients share: the clients, and all that they need, on the cluster's host."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from harness.ssh import Result
from harness.testing import Slurm

CLIENTS = Path(__file__).parent / "clients"
# submitit 1.5.4 says less and ends with a KeyError on 3.9: github.com/facebookincubator/submitit/issues/1807
WORKS_WITH_PYTHON = {"submitit": ">=3.10"}


def needed(name: str, found: set[str] | None = None) -> set[str]:
    """Return the names of an installed distribution and of all that it requires without extras."""
    found = set() if found is None else found
    if name not in found:
        found.add(name)
        for requirement in map(Requirement, distribution(name).requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name, found)
    return found


@pytest.fixture
def run_client(slurm: Slurm, tmp_path: Path) -> Callable[[str, str], Result]:
    """Run a Python program of `clients/` on the controller's host, with a distribution that is installed here.

    The host's own Python, which may be another release, runs it: its packages must be, or fall back to, pure Python.
    """

    def run(program: str, package: str) -> Result:
        there = slurm.run("python3", "-c", "import platform; print(platform.python_version())").stdout.strip()
        for name in needed(package):
            wanted = WORKS_WITH_PYTHON.get(name, distribution(name).metadata["Requires-Python"] or "")
            if there not in SpecifierSet(wanted):
                pytest.skip(f"{name} wants Python {wanted}, this host has {there}; hosts from Slurm 22.05 on have 3.11")
            for file in distribution(name).files or ():
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file.locate(), tmp_path / file)
        slurm.put(tmp_path, "packages")
        slurm.put(CLIENTS / program, program)
        return slurm.run("env", "PYTHONPATH=packages", "python3", program, timeout=120)

    return run
