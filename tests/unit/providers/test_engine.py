"""The client of the Docker engine, against an HTTP server on a Unix socket."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import requests
from requests.adapters import HTTPAdapter

from harness.errors import EngineError
from harness.providers.docker import engine


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    version, api = "20.10.24", "1.41"


class _Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        body = json.dumps(
            {"Version": self.server.version, "ApiVersion": self.server.api, "Path": self.path}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "the socket"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    socket = tmp_path / "s"
    with _Server(str(socket), _Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
        yield server
        server.shutdown()


def test_a_thread_can_use_its_connection_after_others_have_asked_for_a_hundred_urls(
    server: _Server,
) -> None:
    client = engine.connect()
    url = f"{client.api.base_url}/containers"
    adapter = client.api.get_adapter(url)
    assert isinstance(adapter, HTTPAdapter)
    slow = adapter.get_connection_with_tls_context(
        requests.Request("GET", f"{url}/slow").prepare(), verify=False
    )
    for number in range(100):
        assert client.api.get(f"{url}/{number}").json()["Path"] == f"/containers/{number}"
    assert slow.urlopen("GET", "/containers/slow", timeout=60).status == 200
    client.close()


def test_an_engine_that_is_too_old_is_refused(server: _Server) -> None:
    server.version, server.api = "19.03.15", "1.40"
    with pytest.raises(EngineError, match=r"Docker engine 19\.3 is too old"):
        engine.connect()


def test_tls_verification_applies_to_the_engine_that_docker_host_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    with pytest.raises(EngineError, match="TLS"):
        engine.connect()
