"""What each Slurm release knows. One data file a release; a new release is a new file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

_FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yml"))}
KNOWN = tuple(_FILES)
DEFAULT = "24.11"


@dataclass(frozen=True, slots=True)
class Release:
    """A Slurm release, as Debian packages it.

    `suite` is the Debian release whose packages hold it, `apt_options` what apt needs to install from it;
    `slurm_conf` and `slurmdbd_conf` are the defaults that this release needs or lacks (null: the option is unknown to
    it), laid over the harness's own; `cgroup_conf_without_controllers` is what lets slurmd start where it may use none.
    """

    name: str
    suite: str
    packages: tuple[str, ...]
    apt_options: tuple[str, ...]
    slurm_conf: dict[str, Any]
    slurmdbd_conf: dict[str, Any]
    cgroup_conf_without_controllers: dict[str, Any]


@cache
def get(name: str) -> Release:
    """Return what is known about a release in KNOWN."""
    data = YAML(typ="safe", pure=True).load(_FILES[name])
    return Release(
        name=name,
        suite=data["suite"],
        packages=tuple(data["packages"]),
        apt_options=tuple(data.get("apt_options", ())),
        slurm_conf=data.get("slurm_conf", {}),
        slurmdbd_conf=data.get("slurmdbd_conf", {}),
        cgroup_conf_without_controllers=data["cgroup_conf_without_controllers"],
    )
