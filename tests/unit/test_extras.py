"""Without extras, the harness renders, checks, compares and imports; the rest asks for an extra."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from harness import extras
from harness.shipped_files import SCENARIOS

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
BLOCKED = {name for names in extras.MODULES.values() for name in names}
# Python finds every module except those of an extra.
WITHOUT_EXTRAS = f"""
import importlib.machinery, sys

class Base(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            return None
        return super().find_spec(name, path, target)

sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, Base]
from harness import cli
cli.main()
"""
FEDERATION, SINGLE = str(SCENARIOS / "federation.yml"), str(SCENARIOS / "single-node.yml")


def harness(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, *words],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_configurations_can_be_processed_without_extras(tmp_path: Path) -> None:
    for words in (
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["init", "mine"],
        ["schema"],
        ["check", FEDERATION, SINGLE],
        ["render", SINGLE, "--containers", "-o", "tree"],
        ["import", "tree/single/etc/slurm", "-o", "imported.yml"],
        ["diff", SINGLE, "tree"],
    ):
        completed = harness(tmp_path, *words)
        assert completed.returncode == 0, f"{' '.join(words)}\n{completed.stderr}"


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
        (["run", SINGLE], "provider docker"),
        (["up", SINGLE, "--provider", "existing", "--check"], "provider existing"),
        (["check", SINGLE, "--probe-images"], "provider docker"),
        (["doctor"], "harness doctor"),
        (["images", "list"], "harness images"),
        (["bench", "nodes"], "provider docker"),
    ],
    ids=lambda words: words[0],
)
def test_verb_that_needs_an_extra_names_it_and_leaves_nothing(
    words: list[str], purpose: str, tmp_path: Path
) -> None:
    completed = harness(tmp_path, *words)
    assert completed.returncode == 3
    first, hint = completed.stderr.splitlines()
    assert first.startswith(
        f"error: {purpose} needs Python packages that are not installed: ansible, "
    )
    assert hint == "hint: pip install 'slurm-harness[run]'"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "words", [["--version"], ["--help"], ["check", SINGLE], ["report", "none"]]
)
def test_verb_without_hosts_loads_no_package_of_an_extra(words: list[str], tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "harness", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in completed.stderr.splitlines() if line.startswith("import time:")]
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "harness" in loaded
    assert not loaded & BLOCKED


@pytest.mark.parametrize("extra", extras.MODULES)
def test_modules_of_an_extra_are_those_of_its_packages(extra: str) -> None:
    packages = {
        line.partition(">")[0].lower()
        for line in EXTRAS[extra]
        if not line.startswith("slurm-harness")
    }
    found = packages_distributions()
    owners = {owner.lower() for name in extras.MODULES[extra] for owner in found[name]}
    assert packages <= owners
    assert all(
        packages & {owner.lower() for owner in found[name]} for name in extras.MODULES[extra]
    )
