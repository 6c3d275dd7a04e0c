"""Loads the checks as modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.shipped_files import CHECKS


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """A function that loads modules of tests/checks, each for those after it, and returns the last.

    Their own names are those of unit tests, too.
    """
    # Their markers are unknown to the configuration of unit tests.
    monkeypatch.setattr(pytest.mark, "_config", None)

    def load_each(*names: str) -> ModuleType:
        for name in names:
            spec = importlib.util.spec_from_file_location(f"checks_{name}", CHECKS / f"{name}.py")
            assert spec
            assert spec.loader
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, spec.name, module)  # for its data classes
            spec.loader.exec_module(module)
            monkeypatch.setitem(sys.modules, name, module)
        return module

    return load_each
