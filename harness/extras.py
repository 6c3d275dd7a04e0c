"""The packages that only some commands need, and the extras that install them."""

from __future__ import annotations

import importlib.util

from harness.errors import CannotVerify

# Extra -> the modules of its packages that are imported. An installation without extras can render,
# check, compare and import configurations.
MODULES = {
    "run": (
        "ansible",
        "ansible_runner",
        "docker",
        "fastapi",
        "httpx2",
        "openapi_schema_validator",
        "packaging",
        "pytest",
        "testinfra",
        "uvicorn",
    ),
    "hybrid": ("kmock", "kopf", "kubernetes", "pytest_asyncio"),
}


def need(extra: str, purpose: str) -> None:
    """Raise CannotVerify if a package of an extra is missing; `purpose` says what needs it."""
    missing = [name for name in MODULES[extra] if not importlib.util.find_spec(name)]
    if missing:
        raise CannotVerify(
            f"{purpose} needs Python packages that are not installed: {', '.join(missing)}",
            hint=f"pip install 'slurm-harness[{extra}]'",
        )
