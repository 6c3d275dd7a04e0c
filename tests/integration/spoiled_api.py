"""A provisioning API that creates faulty hosts.

Usage: spoiled_api.py harness.elastic.provisioning_api RUN ID SPOILED

SPOILED is JSON: host -> {"file": path, "old": text, "new": text}, or host -> null for a host that
is unavailable. The harness finds the API of a run by the arguments before it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.elastic import provisioning_api
from harness.errors import HarnessError
from harness.plan import Host, Plan
from harness.providers.docker.containers import DockerProvider
from harness.render import RenderedFile, render
from harness.rundir import RunDir


class Stingy(DockerProvider):
    """An engine that has no room for some hosts."""

    def __init__(self, refused: set[str]) -> None:
        super().__init__()
        self._refused = refused

    def make(
        self,
        run: RunDir,
        plan: Plan,
        hosts: Sequence[Host],
        files: Mapping[str, Sequence[RenderedFile]],
    ) -> None:
        """Create hosts, unless there is no room for one."""
        if full := [host.name for host in hosts if host.name in self._refused]:
            raise HarnessError(f"no capacity for {', '.join(full)}")
        super().make(run, plan, hosts, files)


def main() -> None:
    """Serve the run."""
    run = RunDir(Path(sys.argv[2]))
    spoiled = json.loads(sys.argv[4])
    plan = run.plan()
    tree = render(plan)
    for host, change in spoiled.items():
        if change:
            texts = {file.path: file.text for file in tree[host]}
            assert change["old"] in texts[change["file"]], (
                f"{host} has nothing to spoil in {change['file']}"
            )
            tree[host] = [
                replace(file, text=file.text.replace(change["old"], change["new"]))
                if file.path == change["file"]
                else file
                for file in tree[host]
            ]
    provisioning_api.serve(
        run, plan, tree, Stingy({host for host, change in spoiled.items() if change is None})
    )


if __name__ == "__main__":
    main()
