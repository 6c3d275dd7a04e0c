"""The Kubernetes API that stores the ledger: the user's own, started for the run, or emulated."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

from kubernetes import client, config
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from harness.errors import CannotVerify
from harness.kubernetes import manifests
from harness.kubernetes.ledger_entries import GROUP, NAMESPACE, PLURAL, VERSION
from harness.wait import wait_until

OWN, STARTED, EMULATED = "KUBECONFIG", "KUBEBUILDER_ASSETS", "emulated Kubernetes API"
# What to do if the API has the ledger's definition or namespace already.
_IN_THE_WAY = (
    "if no other run uses it, remove it: docs/hybrid.md says how; the namespace of a run that has "
    "just ended is gone within a minute"
)
# Where the API has the ledger's objects.
_LEDGER = (GROUP, VERSION, NAMESPACE, PLURAL)


class KubernetesApi:
    """A Kubernetes API with the ledger's objects; `name` describes it."""

    def __init__(self, name: str, kubeconfig: Path) -> None:
        self.name = name
        self.kubeconfig = kubeconfig
        self._client = config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]
        self._objects = client.CustomObjectsApi(self._client)
        self._namespaces = client.CoreV1Api(self._client)
        self._definitions = client.ApiextensionsV1Api(self._client)

    def version(self) -> str:
        """Return the release of the API."""
        with _api_errors():
            return str(client.VersionApi(self._client).get_code(_request_timeout=5).git_version)

    def ledger_object(self, node: str) -> dict[str, Any]:
        """Return the ledger's object of a node."""
        with _api_errors():
            return cast(
                "dict[str, Any]",
                self._objects.get_namespaced_custom_object(*_LEDGER, node),
            )

    def change(self, node: str, patch: dict[str, Any]) -> None:
        """Patch the ledger's object of a node."""
        with _api_errors():
            self._objects.patch_namespaced_custom_object(*_LEDGER, node, patch)

    @contextmanager
    def ledger(self, files: Mapping[str, str]) -> Iterator[None]:
        """Create the ledger in a namespace of its own, and remove both at the end.

        CannotVerify if the API already has them.
        """
        (definition,) = manifests.objects(files["definition.yaml"])
        name = definition["metadata"]["name"]
        with ExitStack() as stack:
            with _api_errors(_IN_THE_WAY):
                self._definitions.create_custom_resource_definition(definition)  # type: ignore[arg-type]  # takes dicts
            stack.callback(self._remove_definition, name)
            with _api_errors(_IN_THE_WAY):
                self._namespaces.create_namespace({"metadata": {"name": NAMESPACE}})  # type: ignore[arg-type]
            stack.callback(self._remove_namespace)
            for node in manifests.generic_nodes(files):
                with _api_errors():
                    wait_until(
                        partial(self._add, node), bool, what=f"{PLURAL} to be served", timeout=90
                    )
            yield

    def _remove_namespace(self) -> None:
        with _api_errors():
            self._namespaces.delete_namespace(NAMESPACE)

    def _remove_definition(self, name: str) -> None:
        """Remove the definition, and with it the objects."""
        with _api_errors():
            for node in self._object_names():
                # Otherwise its finalizer would wait for the operator, which is gone.
                with _unless_missing():
                    patch = {"metadata": {"finalizers": None}}
                    self._objects.patch_namespaced_custom_object(*_LEDGER, node, patch)
            self._definitions.delete_custom_resource_definition(name)
            wait_until(
                partial(self._is_defined, name),
                lambda is_defined: not is_defined,
                what=f"{name} to be removed",
                timeout=90,
            )

    def _object_names(self) -> list[str]:
        names: list[str] = []
        with _unless_missing():  # it is never served if its namespace could not be created
            answer = cast("dict[str, Any]", self._objects.list_namespaced_custom_object(*_LEDGER))
            names += [item["metadata"]["name"] for item in answer["items"]]
        return names

    def _is_defined(self, name: str) -> bool:
        with _unless_missing():
            self._definitions.read_custom_resource_definition(name)
            return True
        return False

    def _add(self, node: dict[str, Any]) -> bool:
        with _unless_missing():  # its definition may not be served yet
            self._objects.create_namespaced_custom_object(*_LEDGER, node)
            return True
        return False


@contextmanager
def with_ledger(files: Mapping[str, str], log: Path) -> Iterator[KubernetesApi]:
    """Yield a Kubernetes API with the GenericNodes in manifests, and clean up at the end.

    It is the API that KUBECONFIG names, or one started from the programs in KUBEBUILDER_ASSETS, or
    an emulated one. Programs that are started write to `log`.
    """
    with ExitStack() as stack:
        if given := os.environ.get(OWN):
            api = _of(OWN, Path(given))
        elif assets := os.environ.get(STARTED):
            api = _of(STARTED, stack.enter_context(_started(Path(assets), log)))
        else:
            yield KubernetesApi(EMULATED, stack.enter_context(_emulated(files)))
            return
        stack.enter_context(api.ledger(files))
        yield api


def _of(variable: str, kubeconfig: Path) -> KubernetesApi:
    try:
        api = KubernetesApi(variable, kubeconfig)
    except config.ConfigException as error:
        raise CannotVerify(f"{variable}: {error}") from error
    api.name = f"real Kubernetes API {api.version()} of {variable}"
    return api


@contextmanager
def _started(assets: Path, log: Path) -> Iterator[Path]:
    """Start etcd and kube-apiserver on this machine's loopback.

    Yield a kubeconfig to reach them.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        etcd_port, port = _free_port(), _free_port()
        token = secrets.token_hex(16)
        output = stack.enter_context(log.open("a"))
        processes = []
        for command in (
            _etcd(assets, directory, etcd_port),
            _kube_apiserver(assets, directory, etcd_port, port, token),
        ):
            try:
                process = subprocess.Popen(
                    command, stdout=output, stderr=output, cwd=directory, start_new_session=True
                )
            except OSError as error:
                raise CannotVerify(f"{STARTED}: {error}") from error
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        wait_until(
            lambda: (all(process.poll() is None for process in processes), _listens(port)),
            all,
            what=f"the Kubernetes API of {STARTED} (running, listens), see {log}",
            timeout=180,
            give_up=lambda seen: not seen[0],
        )
        authority = directory / "certificates" / "apiserver.crt"
        server = {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority": str(authority),
        }
        yield _kubeconfig(directory, server, {"token": token})


def _etcd(assets: Path, directory: Path, port: int) -> list[str]:
    """Return the command of an etcd that listens on loopback."""
    url = f"http://127.0.0.1:{port}"
    return [
        str(assets / "etcd"),
        f"--data-dir={directory / 'etcd'}",
        "--listen-peer-urls=http://127.0.0.1:0",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
    ]


def _kube_apiserver(
    assets: Path, directory: Path, etcd_port: int, port: int, token: str
) -> list[str]:
    """Return the command of a kube-apiserver on loopback, and write the files that it reads."""
    accounts, tokens = directory / "accounts", directory / "tokens"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "", "-f", str(accounts)], check=True
    )
    tokens.touch(mode=0o600)
    tokens.write_text(f"{token},operator,operator,system:masters\n")
    return [
        str(assets / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={directory / 'certificates'}",
        "--service-account-issuer=https://127.0.0.1",
        "--service-cluster-ip-range=198.18.255.0/24",
        f"--service-account-key-file={accounts}",
        f"--service-account-signing-key-file={accounts}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=RBAC",
    ]


@contextmanager
def _emulated(files: Mapping[str, str]) -> Iterator[Path]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = directory / "emulator"
        nodes = directory / "nodes.json"
        nodes.write_text(json.dumps(manifests.generic_nodes(files)))
        command = [sys.executable, "-P", "-m", "harness.kubernetes.emulator"]
        command += [str(nodes), str(file), str(os.getpid())]
        emulator = stack.enter_context(subprocess.Popen(command, start_new_session=True))
        stack.callback(emulator.kill)
        wait_until(
            lambda: (emulator.poll() is None, file.exists()),
            all,
            what=f"{EMULATED} (running, answers)",
            timeout=90,
            give_up=lambda seen: not seen[0],
        )
        url, token = file.read_text().splitlines()
        yield _kubeconfig(directory, {"server": url}, {"token": token})


def _kubeconfig(directory: Path, cluster: Mapping[str, str], user: Mapping[str, str]) -> Path:
    path = directory / "kubeconfig"
    path.touch(mode=0o600)
    known = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "ledger", "cluster": cluster}],
        "users": [{"name": "operator", "user": user}],
        "contexts": [{"name": "ledger", "context": {"cluster": "ledger", "user": "operator"}}],
        "current-context": "ledger",
    }
    path.write_text(json.dumps(known))
    return path


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _api_errors(hint_if_taken: str | None = None) -> Iterator[None]:
    """Turn errors of the API into CannotVerify, including a missing answer."""
    try:
        yield
    except ApiException as error:
        hint = hint_if_taken if error.status == HTTPStatus.CONFLICT else None
        raise CannotVerify(f"Kubernetes API: {_message(error)}", hint=hint) from error
    except HTTPError as error:
        raise CannotVerify(f"no Kubernetes API answers: {error}") from error


@contextmanager
def _unless_missing() -> Iterator[None]:
    """Suppress the error that something does not exist."""
    try:
        yield
    except ApiException as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
