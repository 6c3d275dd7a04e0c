"""The packages that only some verbs need, and the extra of `slurm-harness` that installs them."""

from __future__ import annotations

import importlib.util

from harness.errors import CannotVerify

# Extra -> what of it is imported. An installation without extras renders, checks, compares and
# imports.
MODULES = {
    "run": (
        *(
            "ansible",
            "ansible_runner",
            "docker",
            "fastapi",
            "httpx2",
            "jwt",
            "openapi_schema_validator",
        ),
        *("packaging", "pytest", "testinfra", "uvicorn"),
    ),
    "hybrid": ("kmock", "kopf", "kubernetes", "pytest_asyncio"),
}


def need(extra: str, purpose: str) -> None:
    """CannotVerify where a package of an extra is missing; `purpose` says what needs it."""
    missing = [name for name in MODULES[extra] if not importlib.util.find_spec(name)]
    if missing:
        raise CannotVerify(
            f"{purpose} needs Python packages that are not installed: {', '.join(missing)}",
            hint=f"pip install 'slurm-harness[{extra}]'",
        )
