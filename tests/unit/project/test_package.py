"""The package that users install: it contains everything that the harness needs besides code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked where a pip install would put it."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(directory),
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    with ZipFile(wheel) as packed:
        packed.extractall(directory / "installed")
    return directory / "installed"


@pytest.mark.parametrize("folder", ["roles", "templates", "scenarios", "images", "tests/checks"])
def test_package_contains_every_data_file(folder: str, installed: Path) -> None:
    def files(directory: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(directory)): path.read_bytes()
            for path in directory.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    assert files(installed / "harness" / "data" / folder) == files(ROOT / folder) != {}


def test_package_contains_the_license(installed: Path) -> None:
    (packed,) = installed.glob("*.dist-info/licenses/LICENSE")
    assert packed.read_text() == (ROOT / "LICENSE").read_text()


def test_installed_package_renders_outside_of_the_source_tree(
    installed: Path, tmp_path: Path
) -> None:
    def python(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed), "NO_COLOR": "1"}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert Path(
        python("-c", "from harness import shipped_files; print(shipped_files.ROOT)").strip()
    ).is_relative_to(installed)
    for verb in (["init", "lab"], ["check", "lab.yml"], ["render", "lab.yml", "--output", "tree"]):
        python("-m", "harness", *verb)
    assert (tmp_path / "tree" / "ctl" / "etc" / "slurm" / "slurm.conf").exists()
