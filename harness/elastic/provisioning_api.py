"""The provisioning API, which resumes and suspends nodes at slurmctld's request.

`python -m harness.elastic.provisioning_api RUN ID` listens on a socket that only its user can open.
SSH forwards the controllers' loopback port to it, and nothing else can reach it. Requests say which
nodes must be up or down, and are answered at once; the work follows. Of conflicting requests, the
one that slurmctld made last wins. All state is in the engine and one file, so the process can end
at any time and continue later.
"""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from harness import file_ownership, providers, rundir, slurm_options
from harness.cluster import logs
from harness.elastic.provisioning import files_of, running, socket_of
from harness.errors import HarnessError, describe
from harness.inventory import ssh_host
from harness.parsing import hostlist
from harness.plan import Host, Plan
from harness.providers import CanCreate, ability
from harness.render import Tree, render
from harness.rundir import RunDir

# Seconds between attempts to create or remove a host, and between polls of the run.
_RETRY_EVERY, _POLL_EVERY = 1.0, 2.0
# Seconds for which requests in progress may delay the shutdown.
_PATIENCE = 5
# Seconds in which a host must report why slurmctld does not know it.
_REPORTS_WITHIN = 120
# Prints which of the daemons "$@" have failed, with their last messages, and the last errors of a
# slurmd that could not register.
_WHY_UNKNOWN = """
for daemon; do
    ! systemctl --quiet is-failed $daemon ||
        echo $daemon has failed: $(journalctl --unit=$daemon --output=cat --lines=5)
done
! grep -aq 'Unable to register' $LOG 2> /dev/null || grep -a 'error: ' $LOG | tail -n 3
"""
# Limits on requests: bytes in a body, seconds in which it must arrive, and requests at a time.
_LARGEST_BODY, _ARRIVES_WITHIN, _MOST_REQUESTS = 2**20, 10, 100


class Machines:
    """The elastic hosts, and which of them must be up."""

    def __init__(self, run: RunDir, plan: Plan, tree: Tree, provider: CanCreate) -> None:
        self._run, self._plan, self._tree, self._provider = run, plan, tree, provider
        self._hosts: dict[str, Host] = {
            host.name: host for host in plan.hosts if not host.is_permanent
        }
        self._file = run.path / "wanted.json"
        # Which hosts must be up or down, and when slurmctld requested that.
        self._wanted: dict[str, bool] = {}
        self._asked: dict[str, float] = {}
        if self._file.exists():
            kept = json.loads(self._file.read_text())
            self._wanted, self._asked = kept["wanted"], kept["asked"]
        self._problems: dict[str, str] = {}
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, len(self._hosts)), thread_name_prefix="machine")
        run.machines.mkdir(exist_ok=True)

    def __contains__(self, name: str) -> bool:
        return name in self._hosts

    def __len__(self) -> int:
        return len(self._hosts)

    def want(self, names: Iterable[str], *, up: bool, asked: float) -> list[str]:
        """Set which hosts must be up or down from now on, and return them.

        `asked` is when slurmctld requested it. Hosts with a later request are left out: requests
        are repeated until the API answers, so they may arrive out of order.
        """
        with self._lock:
            names = [name for name in names if asked >= self._asked.get(name, 0)]
            self._wanted |= dict.fromkeys(names, up)
            self._asked |= dict.fromkeys(names, asked)
            facts = {"wanted": self._wanted, "asked": self._asked}
            rundir.write_atomically(self._file, json.dumps(facts))
        if names:
            self._run.event("power", action="resume" if up else "suspend", nodes=names)
            self.go_on(names)
        return names

    def go_on(self, names: Iterable[str] = ()) -> None:
        """Work on hosts, by default on all with a request, until each is in its requested state."""
        with self._lock:
            idle = [name for name in names or self._wanted if name not in self._busy]
            self._busy.update(idle)
        for name in idle:
            self._pool.submit(self._work, name)

    def states(self) -> dict[str, dict[str, Any]]:
        """Return, for each host, whether it must be up, whether it runs, and its last problem.

        `runs` is None for a host that does not exist; `busy` says that it is being worked on.
        """
        running = self._provider.hosts(self._run.id)
        return {
            name: {
                "wanted": self._wanted.get(name, False),
                "runs": running.get(name),
                "busy": name in self._busy,
                "problem": self._problems.get(name, ""),
            }
            for name in self._hosts
        }

    def look(self) -> None:
        """Record hosts that have stopped by themselves; slurmctld decides what to do about them."""
        settled = self._settled()
        if not settled:
            return
        running = self._provider.hosts(self._run.id)
        for name in settled & self._settled():
            if not running.get(name) and name not in self._problems:
                self._record_problem(
                    name, f"stopped by itself\n{self._provider.console(self._run.id, name)}"
                )

    def _settled(self) -> set[str]:
        """Return the hosts that must be up and are not being worked on."""
        with self._lock:
            return {name for name, up in self._wanted.items() if up} - self._busy

    def _record_problem(self, name: str, problem: str) -> None:
        """Record a problem of a host, once."""
        known, self._problems[name] = self._problems.get(name), problem
        if known != problem:
            with suppress(OSError):  # the disk is full
                self._run.event("power", action="problem", nodes=[name], problem=problem)

    def _work(self, name: str) -> None:
        down_states = {None} if self._hosts[name].provision == "create" else {None, False}
        while True:
            try:
                runs = self._provider.hosts(self._run.id).get(name)
                with self._lock:
                    wanted = self._wanted[name]
                    if runs is True if wanted else runs in down_states:
                        self._busy.discard(name)
                        self._problems.pop(name, None)
                        return
                self._step(self._hosts[name], runs, up=wanted)
                continue
            except HarnessError as error:
                problem = str(error)
            except Exception as error:  # not even a bug may block the host
                problem = describe(error)
                if self._problems.get(name) != problem:
                    traceback.print_exc()
            self._record_problem(name, problem)
            threading.Event().wait(_RETRY_EVERY)

    def _step(self, host: Host, runs: bool | None, *, up: bool) -> None:
        run, provider = self._run, self._provider
        if up:
            if host.provision == "create" and runs is False:
                # It was never completed, or has stopped: its files may be incomplete.
                provider.remove(run.id, host.name)
                runs = None
            if runs is None:
                provider.make(
                    run,
                    self._plan,
                    [host],
                    {host.name: files_of(self._tree, host.name, run.secrets())},
                )
            machine = provider.start(run.id, host.name)
            (run.machines / host.name).write_text(ssh_host(machine))
            run.event("power", action="up", nodes=[host.name])
            return
        if runs and (problem := self._why_unknown(host)):
            self._record_problem(host.name, problem)
        if host.provision == "create":
            provider.remove(run.id, host.name)
        else:
            provider.stop(run.id, host.name)
        run.event("power", action="down", nodes=[host.name])

    def _why_unknown(self, host: Host) -> str:
        """Return why slurmctld may not know a running host; "" if the host does not say.

        Nobody can look at the host after its removal.
        """
        log = " ".join(logs.log_files(self._plan, host, "slurmd")[:1])
        script = ["env", f"LOG={log}", "sh", "-c", _WHY_UNKNOWN, "sh", *host.daemons]
        try:
            return self._run.ssh().run(host.name, script, timeout=_REPORTS_WITHIN).stdout.strip()
        except HarnessError:
            return ""  # it may still be booting


class Nodes(BaseModel):
    """The nodes that a request names."""

    nodes: list[str] = Field(description="names or hostlists, such as c[1-4]", min_length=1)
    asked: float = Field(
        default_factory=time.time,
        description="when slurmctld requested it, in seconds since 1970; by default now",
    )


class Gate:
    """Passes requests that have the token and a body within the limits on to an application.

    The body of a request without the token is not read. The response is 401 without the token, 413
    if the body is too large, and 408 if it does not arrive within `seconds`; the connection then
    closes.
    """

    def __init__(self, app: ASGIApp, token: str, seconds: float) -> None:
        self._app, self._token, self._seconds = app, token.encode(), seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._has_token(headers):
            await _refuse(401, "the token is wrong or missing")(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await _body(receive)
        except TimeoutError:
            await _refuse(408, f"the body did not arrive within {self._seconds:g} s")(
                scope, receive, send
            )
            return
        if body is None:
            await _refuse(413, f"the body is larger than {_LARGEST_BODY} bytes")(
                scope, receive, send
            )
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        await self._app(scope, lambda: _next(messages, receive), send)

    def _has_token(self, headers: Headers) -> bool:
        # Starlette decodes headers from Latin-1, so that every byte has a character.
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(
            given.encode("latin-1"), self._token
        )


def _refuse(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, {"connection": "close"})


async def _body(receive: Receive) -> bytes | None:
    """Return the body of a request; None if it is too large, without reading the rest."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > _LARGEST_BODY:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _next(messages: list[Message], receive: Receive) -> Message:
    return messages.pop() if messages else await receive()


class ImpatientProtocol(H11Protocol):
    """A connection that closes unless its first request begins within `_ARRIVES_WITHIN` seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a request."""
        super().connection_made(transport)
        self.loop.call_later(_ARRIVES_WITHIN, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def api(machines: Machines, token: str, seconds: float = _ARRIVES_WITHIN) -> FastAPI:
    """Return the API; your own cloud can implement the same calls.

    A request's body must arrive within `seconds`.
    """

    def known(request: Nodes) -> list[str]:
        names: list[str] = []
        for text in request.nodes:
            try:
                # Hostlists that cannot be nodes of this run are not expanded.
                expanded = hostlist.expand(text, len(machines))
            except hostlist.TooManyNames as error:
                raise HTTPException(
                    404, f"no such node: {error}, and there are {len(machines)} nodes"
                ) from error
            except ValueError as error:
                raise HTTPException(400, str(error)) from error
            if unknown := [name for name in expanded if name not in machines]:
                raise HTTPException(404, f"no such node: {hostlist.fold(unknown)}")
            names += expanded
        return [*dict.fromkeys(names)]

    # The dependency only documents the token: the gate checks it.
    app = FastAPI(
        title="Slurm harness: provisioning",
        version="1",
        dependencies=[Depends(HTTPBearer(auto_error=False))],
    )
    app.add_middleware(Gate, token=token, seconds=seconds)

    @app.post("/v1/resume", status_code=202, summary="Bring nodes up: create or start their hosts")
    def resume(request: Nodes) -> dict[str, list[str]]:
        return {"accepted": machines.want(known(request), up=True, asked=request.asked)}

    @app.post("/v1/suspend", status_code=202, summary="Take nodes down: stop or remove their hosts")
    def suspend(request: Nodes) -> dict[str, list[str]]:
        return {"accepted": machines.want(known(request), up=False, asked=request.asked)}

    @app.get(
        "/v1/nodes",
        summary="List the nodes that are requested, running or being worked on, and problems",
    )
    def nodes() -> dict[str, dict[str, Any]]:
        return machines.states()

    return app


@contextmanager
def _ports_forwarded(run: RunDir, controllers: Iterable[str]) -> Iterator[None]:
    """Forward a loopback port of the controllers to the API; reconnect whenever SSH ends."""
    ended = threading.Event()
    ssh = run.ssh()
    port = f"127.0.0.1:{slurm_options.API_PORT}:{socket_of(run)}"

    def forward(controller: str) -> None:
        options = [
            "-o",
            "ControlPath=none",
            "-o",
            "ExitOnForwardFailure=yes",
            "-o",
            "ServerAliveInterval=5",
            "-N",
            "-R",
            port,
        ]
        command, *rest = ssh.command(controller)
        while not ended.is_set():
            with subprocess.Popen([command, *options, *rest], stdin=subprocess.DEVNULL) as tunnel:
                while tunnel.poll() is None and not ended.wait(0.2):
                    pass
                tunnel.terminate()
            ended.wait(0.5)

    threads = [threading.Thread(target=forward, args=[controller]) for controller in controllers]
    with running(threads, ended):
        yield


def serve(run: RunDir, plan: Plan, tree: Tree, provider: CanCreate) -> None:
    """Serve the API of a run until a signal, or until the run is gone."""
    machines = Machines(run, plan, tree, provider)
    machines.go_on()
    app = api(machines, run.secrets()["provision_token"])
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            uds=str(socket_of(run)),
            http=ImpatientProtocol,
            ws="none",
            limit_concurrency=_MOST_REQUESTS,
            log_level="warning",
            timeout_graceful_shutdown=_PATIENCE,
        )
    )

    def end(*_: object) -> None:
        server.should_exit = True

    def watch() -> None:
        while not server.should_exit:
            threading.Event().wait(_POLL_EVERY)
            try:
                machines.look()
                if run.id not in provider.runs():
                    end()
            except HarnessError as error:
                print(error, file=sys.stderr, flush=True)
            except Exception:  # not even a bug may leave the API without a watch
                traceback.print_exc()

    # uvicorn handles SIGTERM while it serves, and raises it again at its end.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    threading.Thread(target=watch, daemon=True).start()
    with _ports_forwarded(run, [host.name for host in plan.hosts if host.with_elastic]):
        server.run()
    # Work in progress is left as it is: the next process continues from the engine's state.
    os._exit(0)


def main() -> None:
    """Serve the run whose directory is the first argument."""
    run = RunDir(Path(sys.argv[1]))
    plan = run.plan()
    file_ownership.directory(run.control_directory)
    provider = ability(providers.get(run.provider, run.root), CanCreate, "provisioning API")
    serve(run, plan, render(plan), provider)


if __name__ == "__main__":
    main()
