"""The Docker engine: reach it, and explain clearly what is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import requests
from docker.context import ContextAPI
from docker.errors import APIError, ContainerError, DockerException, ImageLoadError
from docker.tls import TLSConfig
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnectionPool

from harness.errors import EngineError, WaitTimeout

# The API of 20.10, the first with cgroup namespaces, which systemd in a container needs.
_OLDEST_API = (1, 41)
_TIMEOUT = 120
# Kept open: more than there are threads that ask an engine.
_CONNECTIONS = 32


def connect() -> docker.DockerClient:
    """Return a client of the engine that DOCKER_HOST or the current Docker context names.

    As for the docker command, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH apply to DOCKER_HOST.
    EngineError if the engine does not answer, or is too old.
    """
    try:
        return _usable(docker.from_env(timeout=_TIMEOUT, use_ssh_client=True))
    except (DockerException, requests.RequestException) as error:
        context = ContextAPI.get_current_context()
        host = os.environ.get("DOCKER_HOST") or (context.Host if context else None)
        raise EngineError(
            f"no Docker engine answers at {host or 'its default socket'}: {_reason(error)}",
            hint="start it, or run `harness doctor` to see what is missing",
        ) from error


def connect_to(context: str) -> docker.DockerClient:
    """Return a client of the engine that a Docker context names.

    EngineError if it does not answer, or is too old.
    """
    # If $DOCKER_CONFIG has no config.json, ContextAPI looks for contexts in the working directory.
    try:
        result = subprocess.run(
            ["docker", "context", "inspect", context], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise EngineError("contexts need Docker's command line: no program docker") from error
    if result.returncode != 0:
        raise EngineError(f"no Docker context {context}", hint="`docker context ls` lists them")
    (facts,) = json.loads(result.stdout)
    host = facts["Endpoints"]["docker"]["Host"]
    keys = Path(facts["Storage"]["TLSPath"]) / "docker"
    tls = (
        TLSConfig((str(keys / "cert.pem"), str(keys / "key.pem")), str(keys / "ca.pem"))
        if keys.is_dir()
        else False
    )
    try:
        return _usable(docker.DockerClient(host, timeout=_TIMEOUT, tls=tls, use_ssh_client=True))
    except (DockerException, requests.RequestException) as error:
        raise EngineError(
            f"the engine of Docker context {context} does not answer at {host}: {_reason(error)}",
            hint=f"`docker --context {context} info` shows details",
        ) from error


def _reason(error: BaseException) -> str:
    """Return what the operating system said, such as "Connection refused", or else all of it."""
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)


class _OnePool(UnixHTTPAdapter):
    """Requests to a Unix socket, through one pool of connections.

    docker-py has a pool for each URL, and closes the least recently used of 25: also one from which
    another thread is just about to take a connection, whose request then fails with "Pool is
    closed" (https://github.com/docker/compose/issues/3586).
    """

    def get_connection(self, url: str | bytes, proxies: object = None) -> UnixHTTPConnectionPool:
        return super().get_connection("", proxies)


def _usable(client: docker.DockerClient) -> docker.DockerClient:
    adapter = client.api.get_adapter(client.api.base_url)
    if isinstance(adapter, UnixHTTPAdapter):
        client.api.mount(
            "http+docker://", _OnePool(adapter.socket_path, _TIMEOUT, max_pool_size=_CONNECTIONS)
        )
        adapter.close()
    # docker-py has asked for this version. To tell its own, an engine starts programs each time.
    if tuple(map(int, client.api.api_version.split("."))) < _OLDEST_API:
        version = version_of(client)
        client.close()
        raise EngineError(
            f"Docker engine {version[0]}.{version[1]} is too old", hint="20.10 or later is needed"
        )
    return client


def version_of(client: docker.DockerClient) -> tuple[int, int]:
    """Return the first two numbers of the engine's version."""
    major, minor, *_ = client.version()["Version"].split(".")
    return int(major), int(minor)


def has_controllers(client: docker.DockerClient) -> bool:
    """Return whether processes in containers can be confined to CPUs and memory: with cgroup v2."""
    with engine_errors("cannot examine the engine"):
        facts = client.info()
    return facts.get("CgroupVersion") == "2" and bool(facts["MemoryLimit"] and facts["CPUSet"])


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn the engine's errors and timeouts into EngineError with a hint."""
    try:
        yield
    except (
        APIError,
        ContainerError,
        ImageLoadError,
        requests.RequestException,
        WaitTimeout,
    ) as error:
        text = (
            str(error.explanation)
            if isinstance(error, APIError) and error.explanation
            else str(error)
        )
        raise EngineError(f"{doing}: {text}", hint=_hint(text)) from error


def _hint(text: str) -> str | None:
    known = {
        "unable to apply caps": "this engine has no CAP_SYS_RESOURCE to give, which nodes need if "
        "`cgroup` says that jobs are confined",
        "no space left": "free disk space: `docker system df` shows what uses it",
        "pool overlaps": "another network has this subnet: choose another `subnet:`, "
        "or leave it out to get a free one",
        "port is already allocated": "another program has this port",
        "permission denied": "you may not use the engine: join the group docker, or use sudo",
    }
    return next((hint for part, hint in known.items() if part in text.lower()), None)
