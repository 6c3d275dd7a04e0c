"""An emulated Kubernetes API with a GenericNode for each node, on a free port of loopback.

    python -m harness.kubernetes.emulator FILE NODE...

writes its URL and a token, one line each, to the file once it answers. Every local user can reach
its port, so it only answers requests that have the token. It keeps objects in memory, and does not
validate them against a schema.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path

import kmock
from aiohttp import web

from harness.kubernetes.ledger_entries import GROUP, PLURAL, VERSION

_VERBS = {"get", "list", "watch", "create", "update", "patch", "delete"}


class Guarded(kmock.KubernetesEmulator):
    """An emulated API that does not read requests without its token."""

    token = ""

    async def __call__(self, raw_request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        given = raw_request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not secrets.compare_digest(given, f"Bearer {self.token}".encode()):
            return web.json_response({"message": "Unauthorized"}, status=401)
        return await super().__call__(raw_request)


async def serve(file: Path, nodes: list[str]) -> None:
    """Serve until the process ends."""
    api = Guarded()
    api.token = secrets.token_hex(16)
    # Without Kubernetes' own resources, the operator would wait for them forever.
    api.resources.load_bundled()
    generic_nodes = kmock.resource(GROUP, VERSION, PLURAL)
    api.resources[generic_nodes] = kmock.ResourceInfo(
        namespaced=False, kind="GenericNode", singular="genericnode", verbs=_VERBS
    )
    for node in nodes:
        api.objects[generic_nodes, None, node] = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "GenericNode",
            # A real API adds the last two.
            "metadata": {"name": node, "uid": node, "resourceVersion": "1"},
            "spec": {"alias": node, "type": "Slurm"},
        }
    async with api, kmock.Server(api) as server:
        unfinished = file.with_suffix(".new")
        unfinished.touch(mode=0o600)
        unfinished.write_text(f"{str(server.url).rstrip('/')}\n{api.token}")
        unfinished.rename(file)
        while True:
            # kmock keeps all requests for tests, and searches all of them for each new one.
            api._requests.clear()
            await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2:]))
