"""Build this version's wheel and sdist, and try the wheel as a user would: `make release`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import __version__

ROOT = Path(__file__).resolve().parents[1]


class NotReleased(Exception):
    """Why a version cannot be released."""


def must_be_described(changelog: str, version: str, tag: str | None = None) -> None:
    """Refuse a version without a section in the changelog.

    With a tag, also refuse a different version, and one that the changelog calls unreleased.
    """
    heading = re.search(rf"^## {re.escape(version)}(?: .*)?$", changelog, re.M)
    if not heading or not changelog[heading.end() :].partition("\n## ")[0].strip():
        raise NotReleased(
            f"CHANGELOG.md does not describe {version}: its section begins with '## {version}'"
        )
    if tag and tag != f"v{version}":
        raise NotReleased(f"the tag is {tag}, but the version in harness/__init__.py is {version}")
    if tag and "unreleased" in heading[0]:
        raise NotReleased(f"CHANGELOG.md calls {version} unreleased: write its date instead")


def build(source: Path, directory: Path) -> Path:
    """Build the sdist of a checkout, and the wheel from that sdist; return the wheel."""
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        _hatch(source, "sdist", directory)
        (sdist,) = directory.glob("*.tar.gz")
        subprocess.run(["tar", "--extract", f"--file={sdist}", f"--directory={folder}"], check=True)
        (unpacked,) = Path(folder).iterdir()
        _hatch(unpacked, "wheel", directory)
    (wheel,) = directory.glob("*.whl")
    return wheel


def install(wheel: Path, directory: Path) -> Path:
    """Install a wheel into a new environment, and return the program.

    It gets the newest dependencies, as users do.
    """
    venv.create(directory, with_pip=True)
    pip = [
        directory / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, wheel], check=True, env=_without_checkout())
    return directory / "bin" / "harness"


def try_out(program: Path, version: str, directory: Path) -> None:
    """Check and render a shipped scenario with an installed program, in an empty directory."""
    _expect(version, program, "--version", directory=directory)
    _expect("lab.yml written", program, "init", "lab", "--like", "federation", directory=directory)
    _expect("", program, "check", "lab.yml", directory=directory)
    _expect(
        "install.sh installs them",
        program,
        "render",
        "lab.yml",
        "--output",
        "tree",
        directory=directory,
    )
    for rendered in sorted(directory.glob("tree/*/etc/slurm")):
        _expect("", program, "check", rendered, directory=directory)


def _expect(what: str, *command: str | Path, directory: Path) -> None:
    done = subprocess.run(
        command, cwd=directory, env=_without_checkout(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or what not in done.stdout:
        line = " ".join(map(str, command))
        raise NotReleased(
            f"{line}  (exit {done.returncode})\n{done.stdout}{done.stderr}\nexpected: {what}"
        )


def _hatch(source: Path, target: str, directory: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        target,
        "--directory",
        directory,
    ]
    subprocess.run(command, cwd=source, check=True)


def _without_checkout() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
        "NO_COLOR": "1"
    }


def main(tag: str | None = None) -> None:
    """Build the files to be published in dist/."""
    must_be_described((ROOT / "CHANGELOG.md").read_text(), __version__, tag)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    wheel = build(ROOT, ROOT / "dist")
    with TemporaryDirectory() as folder:
        (desk := Path(folder, "desk")).mkdir()
        try_out(install(wheel, Path(folder, "venv")), __version__, desk)
    print(f"{wheel.name} and its sdist are in dist/, and work")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except NotReleased as reason:
        sys.exit(f"release: {reason}")
