"""The provisioning API: who may request what, and that the last request counts."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from harness import render, scenario
from harness.capabilities import Capabilities
from harness.elastic import provisioning, provisioning_api
from harness.errors import EngineError
from harness.inventory import Machine
from harness.plan import Host, make_plan
from harness.rundir import RunDir
from harness.shipped_files import SCENARIOS
from harness.ssh import Result
from harness.wait import wait_until

TOKEN = {"Authorization": "Bearer right"}


class Engine:
    """Hosts that are created and removed, slowly if `slow`, but never if they are in `refused`."""

    name = "fake"

    def __init__(self) -> None:
        self.running: dict[str, bool] = {}
        self.made: list[str] = []
        self.refused: set[str] = set()
        self.silent = 0
        self.go = threading.Event()
        self.go.set()

    def make(
        self, run: Any, plan: Any, hosts: list[Host], files: dict[str, list[render.RenderedFile]]
    ) -> None:
        self.go.wait(120)
        for host in hosts:
            if host.name in self.refused:
                raise EngineError("no capacity")
            assert not any("%secret:" in file.text for file in files[host.name])
            self.running[host.name] = False
            self.made.append(host.name)

    def start(self, run_id: str, host: str) -> Machine:
        self.running[host] = True
        return Machine(host, "127.0.0.1", 1)

    def stop(self, run_id: str, host: str) -> None:
        self.running[host] = False

    def remove(self, run_id: str, host: str) -> None:
        self.running.pop(host, None)

    def hosts(self, run_id: str) -> dict[str, bool]:
        if self.silent:
            self.silent -= 1
            raise EngineError("no answer")
        return dict(self.running)

    def console(self, run_id: str, host: str) -> str:
        return "its last words"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """The directory of a run of the scenario in which hosts are created."""
    path = SCENARIOS / "elastic-l3.yml"
    plan = make_plan(
        "elastic-l3", scenario.load(path), Capabilities(cgroups=False, own_hardware=False)
    )
    directory = RunDir.create(tmp_path, path, plan, "fake")
    directory.make_secrets(render.render(plan))
    return directory


def machines_of(run: RunDir, engine: Engine) -> provisioning_api.Machines:
    return provisioning_api.Machines(run, run.plan(), render.render(run.plan()), engine)  # type: ignore[arg-type]


@pytest.fixture
def engine() -> Engine:
    """An engine without hosts."""
    return Engine()


@pytest.fixture
def client(run: RunDir, engine: Engine) -> TestClient:
    """The API as a controller sees it."""
    return TestClient(provisioning_api.api(machines_of(run, engine), "right"), headers=TOKEN)


def wait_for(engine: Engine, there: dict[str, bool]) -> None:
    wait_until(
        lambda: dict(engine.running),
        lambda seen: seen == there,
        what=str(there),
        timeout=30,
        interval=0.01,
    )


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic right"}]
)
@pytest.mark.parametrize("path", ["/v1/resume", "/v1/suspend", "/v1/nodes"])
def test_access_requires_the_token(
    run: RunDir, engine: Engine, headers: dict[str, str], path: str
) -> None:
    stranger = TestClient(provisioning_api.api(machines_of(run, engine), "right"), headers=headers)
    answer = (
        stranger.get(path) if path == "/v1/nodes" else stranger.post(path, json={"nodes": ["c1"]})
    )
    assert answer.status_code == 401
    assert engine.made == []


async def answered(app: FastAPI, token: str, receive: Any) -> int:
    """Return the status of POST /v1/resume whose body `receive` gives piece by piece."""
    messages: list[dict[str, Any]] = []
    headers = [(b"authorization", token.encode()), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/resume",
        "query_string": b"",
        "headers": headers,
    }

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope, receive, send)
    return int(messages[0]["status"])


@pytest.mark.parametrize("path", ["/v1/resume", "/openapi.json", "/docs", "/none"])
def test_no_path_answers_without_the_token(run: RunDir, engine: Engine, path: str) -> None:
    assert (
        TestClient(provisioning_api.api(machines_of(run, engine), "right")).get(path).status_code
        == 401
    )


@pytest.mark.parametrize("token", ["right", "Bearer wrong", ""])
def test_body_is_not_read_without_the_token(run: RunDir, engine: Engine, token: str) -> None:
    async def receive() -> Any:
        pytest.fail("the body was read")

    assert (
        asyncio.run(
            answered(provisioning_api.api(machines_of(run, engine), "right"), token, receive)
        )
        == 401
    )


@pytest.mark.parametrize("given", ["r\u00efght", "\u20ac", "\U0001f511"])
def test_token_with_unexpected_characters_is_wrong(run: RunDir, engine: Engine, given: str) -> None:
    stranger = TestClient(provisioning_api.api(machines_of(run, engine), "right"))
    answer = stranger.get("/v1/nodes", headers={"Authorization": b"Bearer " + given.encode()})
    assert answer.status_code == 401


def test_oversized_body_is_read_no_further_than_the_limit(run: RunDir, engine: Engine) -> None:
    read: list[int] = []

    async def receive() -> dict[str, Any]:
        read.append(2**16)
        assert sum(read) <= 2**21
        return {"type": "http.request", "body": b" " * read[-1], "more_body": True}

    assert (
        asyncio.run(
            answered(
                provisioning_api.api(machines_of(run, engine), "right"), "Bearer right", receive
            )
        )
        == 413
    )


def test_missing_request_body_is_not_waited_for(run: RunDir, engine: Engine) -> None:
    async def receive() -> Any:
        await asyncio.Event().wait()

    app = provisioning_api.api(machines_of(run, engine), "right", seconds=0.01)
    assert asyncio.run(answered(app, "Bearer right", receive)) == 408


def test_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provisioning_api, "_ARRIVES_WITHIN", 0.01)

    async def ended() -> bytes:
        config = uvicorn.Config(FastAPI(), http=provisioning_api.ImpatientProtocol, lifespan="off")
        config.load()
        state = uvicorn.server.ServerState()
        listening = await asyncio.get_running_loop().create_server(
            lambda: provisioning_api.ImpatientProtocol(config, state, {}), "127.0.0.1", 0
        )
        async with listening:
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(b"POST /v1/resume HTTP/1.1\r\nHost: ")
            async with asyncio.timeout(30):
                try:
                    answer = await reader.read()
                except ConnectionResetError:  # if it was closed before the request was read
                    answer = b""
            writer.close()
        return answer

    assert asyncio.run(ended()) == b""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"nodes": ["ctl"]}, 404),
        ({"nodes": ["c[1-9]"]}, 404),
        ({"nodes": ["c[1-999999999]"]}, 404),
        ({"nodes": ["c[1-9]x[1-99999]y[1-99999]"]}, 404),
        ({"nodes": [f"c[1-{'9' * 5000}]"]}, 400),
        ({"nodes": ["c[1"]}, 400),
        ({"nodes": []}, 422),
        ({}, 422),
    ],
)
def test_invalid_requests_change_nothing(
    client: TestClient, engine: Engine, body: dict[str, Any], status: int
) -> None:
    assert client.post("/v1/resume", json=body).status_code == status
    assert engine.made == []


def test_nodes_are_created_once_however_often_they_are_requested(
    client: TestClient, engine: Engine
) -> None:
    for _ in range(3):
        assert client.post("/v1/resume", json={"nodes": ["c[1-2]"]}).json() == {
            "accepted": ["c1", "c2"]
        }
    wait_for(engine, {"c1": True, "c2": True})
    assert sorted(engine.made) == ["c1", "c2"]
    client.post("/v1/suspend", json={"nodes": ["c1"]})
    client.post("/v1/suspend", json={"nodes": ["c1"]})
    wait_for(engine, {"c2": True})


def test_suspend_in_the_middle_of_a_resume_counts(client: TestClient, engine: Engine) -> None:
    engine.go.clear()
    client.post("/v1/resume", json={"nodes": ["c1"]})
    client.post("/v1/suspend", json={"nodes": ["c1"]})
    assert engine.running == {}
    assert client.get("/v1/nodes").json()["c1"]["busy"], "it will be made"
    engine.go.set()
    wait_until(
        lambda: client.get("/v1/nodes").json()["c1"],
        lambda state: not state["busy"],
        what="the last request to be done",
        timeout=30,
    )
    assert (engine.made, engine.running) == (["c1"], {})


def test_refused_capacity_is_reported_and_retried_while_it_is_needed(
    client: TestClient, engine: Engine
) -> None:
    engine.refused = {"c2"}
    client.post("/v1/resume", json={"nodes": ["c[1-2]"]})
    wait_for(engine, {"c1": True})
    state = wait_until(
        lambda: client.get("/v1/nodes").json()["c2"],
        lambda seen: bool(seen["problem"]),
        what="reported",
        timeout=30,
    )
    assert state == {"wanted": True, "runs": None, "busy": True, "problem": "no capacity"}
    engine.refused = set()
    wait_for(engine, {"c1": True, "c2": True})
    wait_until(
        lambda: client.get("/v1/nodes").json()["c2"]["problem"],
        lambda text: not text,
        what="over",
        timeout=30,
    )


def test_restarted_service_continues_pending_requests(run: RunDir, engine: Engine) -> None:
    kept = {"wanted": {"c1": True, "c2": False}, "asked": {"c1": 1, "c2": 1}}
    (run.path / "wanted.json").write_text(json.dumps(kept))
    engine.running = {"c2": True}
    machines_of(run, engine).go_on()
    wait_for(engine, {"c1": True})


def test_request_that_arrives_after_a_later_one_is_outdated_even_after_a_restart(
    run: RunDir, engine: Engine
) -> None:
    assert machines_of(run, engine).want(["c1", "c2"], up=False, asked=3) == ["c1", "c2"]
    restarted = machines_of(run, engine)
    assert restarted.want(["c1"], up=True, asked=2) == []
    assert restarted.want(["c2"], up=True, asked=4) == ["c2"]
    wait_for(engine, {"c2": True})


def test_engine_that_does_not_answer_is_retried(client: TestClient, engine: Engine) -> None:
    engine.silent = 1
    client.post("/v1/resume", json={"nodes": ["c1"]})
    wait_for(engine, {"c1": True})


def test_unexpected_error_is_reported_and_blocks_no_host(
    run: RunDir, client: TestClient, engine: Engine
) -> None:
    run.machines.rmdir()  # where a machine is noted once it has started
    client.post("/v1/resume", json={"nodes": ["c1"]})
    # The API forgets it at the next attempt, which finds the machine.
    [problem, *_] = wait_until(
        lambda: [event["problem"] for event in run.events() if event.get("action") == "problem"],
        bool,
        what="reported",
        timeout=60,
    )
    assert problem.startswith("FileNotFoundError: ")
    client.post("/v1/suspend", json={"nodes": ["c1"]})
    wait_for(engine, {})


def test_unfinished_host_is_recreated(client: TestClient, engine: Engine) -> None:
    engine.running = {"c1": False}
    client.post("/v1/resume", json={"nodes": ["c1"]})
    wait_for(engine, {"c1": True})
    assert engine.made == ["c1"]


def test_host_that_stopped_by_itself_is_noted_once(run: RunDir, engine: Engine) -> None:
    machines = machines_of(run, engine)
    machines.want(["c1"], up=True, asked=1)
    wait_for(engine, {"c1": True})

    def stopped() -> str:
        engine.running["c1"] = (
            False  # a second time, because it was not known to be up before and so was restarted
        )
        machines.look()
        return str(machines.states()["c1"]["problem"])

    wait_until(stopped, bool, what="noted", timeout=30)
    machines.look()
    problems = [event for event in run.events() if event.get("action") == "problem"]
    assert [(event["nodes"], event["problem"]) for event in problems] == [
        (["c1"], "stopped by itself\nits last words")
    ]


class ToldToEnd(Engine):
    """An engine that answers slowly about a run; by then, the API has been asked to stop."""

    def __init__(self, run_id: str, number: signal.Signals) -> None:
        super().__init__()
        self.run_id, self.number, self.ended = run_id, number, False

    def runs(self) -> dict[str, list[str]]:
        if not self.ended:
            os.kill(os.getpid(), self.number)
            self.ended = True
            time.sleep(0.01)
        return {self.run_id: []}


def serve_nothing(run: RunDir, number: signal.Signals) -> None:
    plan = replace(run.plan(), hosts=())
    run.control_directory.mkdir(mode=0o700)
    provisioning_api.serve(run, plan, {}, ToldToEnd(run.id, number))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_stop_request_during_an_engine_query_is_not_forgotten(
    run: RunDir, number: signal.Signals
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=serve_nothing, args=[run, number])
    process.start()
    try:
        process.join(180)
        assert process.exitcode == 0
    finally:
        process.kill()
        shutil.rmtree(run.control_directory, ignore_errors=True)


def test_scenario_describes_itself(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {*paths} == {"/v1/resume", "/v1/suspend", "/v1/nodes"}


def test_manual_nodes_are_powered_as_their_last_request_says() -> None:
    requests = [("resume", "c1"), ("resume", "c2"), ("suspend", "c1")]
    log = "".join(
        json.dumps({"action": action, "nodes": [node]}) + "\n" for action, node in requests
    )

    class Cluster:
        def run(self, *_command: str, check: bool) -> Result:
            return Result(0, log, "")

    class Hosts:
        def __init__(self) -> None:
            self.done: dict[str, list[str]] = {}

        def run(self, host: str, command: list[str], *, check: bool) -> None:
            assert host not in self.done
            self.done[host] = command

    hosts = Hosts()
    plan = make_plan(
        "elastic-l0",
        scenario.load(SCENARIOS / "elastic-l0.yml"),
        Capabilities(cgroups=False, own_hardware=False),
    )
    with provisioning.manual_nodes_powered(plan, {"cloud": Cluster()}, hosts):
        wait_until(lambda: len(hosts.done), lambda count: count == 2, what="both nodes", timeout=60)
    assert hosts.done == {
        "c1": ["systemctl", "--no-block", "stop", "slurmd"],
        "c2": ["systemctl", "--no-block", "start", "slurmd"],
    }
