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

from harness.errors import EngineError, WaitTimeout

# 20.10 is the first with cgroup namespaces, which systemd in a container needs.
OLDEST = (20, 10)


def connect() -> docker.DockerClient:
    """Return a client of the engine that DOCKER_HOST or the current Docker context names.

    EngineError if it does not answer, or is too old.
    """
    context = ContextAPI.get_current_context()
    host = os.environ.get("DOCKER_HOST") or (context.Host if context else None)
    try:
        client = (
            docker.DockerClient(base_url=host, timeout=120)
            if host
            else docker.from_env(timeout=120)
        )
        return _recent_enough(client)
    except (DockerException, requests.RequestException) as error:
        raise EngineError(
            f"no Docker engine answers at {host or 'its default socket'}: {error}",
            hint="start it, or run `harness doctor` to see what is missing",
        ) from error


def connect_to(context: str) -> docker.DockerClient:
    """Return a client of the engine that a Docker context names.

    EngineError if it does not answer, or is too old.
    """
    # If $DOCKER_CONFIG has no config.json, ContextAPI looks for contexts in the working directory.
    result = subprocess.run(
        ["docker", "context", "inspect", context], capture_output=True, text=True, check=False
    )
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
        return _recent_enough(
            docker.DockerClient(host, timeout=120, tls=tls, use_ssh_client=host.startswith("ssh:"))
        )
    except (DockerException, requests.RequestException) as error:
        raise EngineError(
            f"the engine of Docker context {context} does not answer at {host}: {error}",
            hint=f"`docker --context {context} info` shows details",
        ) from error


def _recent_enough(client: docker.DockerClient) -> docker.DockerClient:
    version = version_of(client)
    if version < OLDEST:
        raise EngineError(
            f"Docker engine {version[0]}.{version[1]} is too old", hint="20.10 or later is needed"
        )
    return client


def version_of(client: docker.DockerClient) -> tuple[int, int]:
    """Return the first two numbers of the engine's version."""
    major, minor, *_ = client.version()["Version"].split(".")
    return int(major), int(minor)


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
        "no space left": "free disk space: `docker system df` shows what uses it",
        "pool overlaps": "another network has this subnet: choose another `subnet:`, "
        "or leave it out to get a free one",
        "port is already allocated": "another program has this port",
        "permission denied": "you may not use the engine: join the group docker, or use sudo",
    }
    return next((hint for part, hint in known.items() if part in text.lower()), None)
