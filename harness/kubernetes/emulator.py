"""An emulated Kubernetes API with GenericNodes, on a free port of loopback.

    python -m harness.kubernetes.emulator NODES FILE PARENT

reads the GenericNodes from NODES, a JSON list, and writes its URL and a token to FILE, one line
each, once it answers. It ends when the process with the id PARENT has ended. Every
local user can reach its port, so it only answers requests that have the token. It keeps objects in
memory, and does not validate them against a schema.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import kmock
from aiohttp import web

from harness.kubernetes.ledger_entries import GROUP, NAMESPACE, PLURAL, VERSION

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


async def serve(nodes: list[dict[str, Any]], file: Path, parent: int) -> None:
    """Serve until the parent process ends."""
    api = Guarded()
    api.token = secrets.token_hex(16)
    # Without Kubernetes' own resources, the operator would wait for them forever.
    api.resources.load_bundled()
    generic_nodes = kmock.resource(GROUP, VERSION, PLURAL)
    api.resources[generic_nodes] = kmock.ResourceInfo(
        namespaced=True, kind="GenericNode", singular="genericnode", verbs=_VERBS
    )
    for node in nodes:
        name = node["metadata"]["name"]
        # A real API adds these.
        added = {"namespace": NAMESPACE, "uid": name, "resourceVersion": "1"}
        api.objects[generic_nodes, NAMESPACE, name] = {
            **node,
            "metadata": {**node["metadata"], **added},
        }
    async with api, kmock.Server(api) as server:
        unfinished = file.with_suffix(".new")
        unfinished.touch(mode=0o600)
        unfinished.write_text(f"{str(server.url).rstrip('/')}\n{api.token}")
        unfinished.rename(file)
        while os.getppid() == parent:
            # kmock keeps all requests for tests, and searches all of them for each new one.
            api._requests.clear()
            await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(
        serve(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), int(sys.argv[3]))
    )
