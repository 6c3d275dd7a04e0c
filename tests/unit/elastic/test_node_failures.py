"""Nodes that come and go: what slurmctld's programs request, and what a failed check reports."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from harness import render
from harness.elastic.node_failures import wrong_notes


class Api(HTTPServer):
    """An API that accepts everything, and counts its requests; at first, it may be unavailable."""

    asked = 0

    def __init__(self, unavailable: int = 0) -> None:
        self.unavailable = unavailable
        super().__init__(("127.0.0.1", 0), Accepts)


class Accepts(BaseHTTPRequestHandler):
    server: Api

    def do_POST(self) -> None:
        self.server.asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503 if self.server.asked <= self.server.unavailable else 202)
        self.end_headers()
        self.wfile.write(b'{"accepted": ["c1"]}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def program(port: int, log: Path, token: Path) -> ModuleType:
    """Return the program that slurmctld calls, without the call of its main function."""
    facts = {
        "levels": {"c1": "create"},
        "port": port,
        "patience": {"resume": 60, "suspend": 5},
        "known_hosts": "",
    }
    text = render.template("/usr/local/sbin/slurm-power", log=str(log), **facts)
    text = text.replace("timeout=5)", "timeout=60)")  # this machine may be busy
    module = ModuleType("slurm_power")
    exec(text.rpartition("\ntry:\n")[0], module.__dict__)  # noqa: S102  the harness's own template
    module.TOKEN = token  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize("writable", [True, False])
def test_api_is_called_once_even_if_the_log_cannot_be_written(
    api: Api, writable: bool, tmp_path: Path
) -> None:
    (token := tmp_path / "token").write_text("secret")
    log = tmp_path / "power.log" if writable else tmp_path
    program(api.server_port, log, token).ask("resume", ["c1"])
    assert api.asked == 1
    if writable:
        assert json.loads(log.read_text())["answer"] == {"accepted": ["c1"]}


def test_api_that_does_not_answer_is_noted_at_once(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later is too late: slurmctld kills the program at ResumeTimeout."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # must not be used
    api.unavailable = 2
    (token := tmp_path / "token").write_text("secret")
    log = tmp_path / "power.log"
    program(api.server_port, log, token).ask("resume", ["c1"])
    first, last = map(json.loads, log.read_text().splitlines())
    assert first["problem"].endswith('/v1: {"accepted": ["c1"]}; tries again')
    assert last["answer"] == {"accepted": ["c1"]}


def test_node_failures_are_explained_by_comparing_both_ends() -> None:
    notes = [
        {"time": 1, "action": "resume", "nodes": ["c9"], "problem": "long ago"},
        {"time": 10, "action": "resume", "nodes": ["c1", "c2"], "answer": {}},
        {"time": 11, "action": "suspend", "nodes": ["c3"], "problem": "Connection refused"},
        {"time": 70, "action": "resume-fail", "nodes": ["c2"]},
        {"time": 71, "action": "resume", "nodes": ["m1"]},
    ]
    asked = [{"action": "resume", "nodes": ["c1"]}]
    assert [*wrong_notes(notes, asked, "ctl", since=9)] == [
        "ctl: slurm-resume c[1-2]: the provisioning API got no request for c2, although port 8470"
        " of ctl answered: "
        "a different program listens there, or the request was lost",
        "ctl: slurm-suspend c3: Connection refused",
        "ctl: slurm-resume-fail c2: slurmd did not register within ResumeTimeout",
    ]
