"""Paths of the templates, roles, images and checks, in a checkout or in the installed package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_INSTALLED = _PACKAGE / "data"
ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent

TEMPLATES = ROOT / "templates"
ROLES = ROOT / "roles"
SCENARIOS = ROOT / "scenarios"
IMAGES = ROOT / "images"
VAGRANTFILE = ROOT / "Vagrantfile"
CHECKS = ROOT / "tests" / "checks"
