"""Run the pods of rendered manifests on a Docker engine, as a kubelet runs them.

A pod is a set of containers that share a network namespace and volumes. `Kubelet` handles only the
fields that the manifests have; any other field is an error, so that no field remains untested.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import docker
from docker.models.containers import Container
from docker.types import EndpointConfig

from harness.wait import wait_until
from support import Done

Object = dict[str, Any]
# Seconds in which a container must answer its startup probe, and a pod end.
_PATIENCE = 300
# The exit code of a process that SIGKILL ended.
KILLED = 128 + 9
_POD_FIELDS = {
    *("automountServiceAccountToken", "containers", "dnsPolicy", "hostNetwork", "initContainers"),
    *("nodeSelector", "securityContext", "terminationGracePeriodSeconds", "volumes"),
    "shareProcessNamespace",
}
_CONTAINER_FIELDS = {
    *("command", "env", "image", "livenessProbe", "name", "readinessProbe", "resources"),
    *("restartPolicy", "securityContext", "startupProbe", "volumeMounts"),
}
_SECURITY_FIELDS = {
    *("allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem", "runAsGroup"),
    *("runAsNonRoot", "runAsUser"),
}


@dataclass
class Pod:
    """A running pod; `containers` are in the order of their start."""

    name: str
    spec: Object
    sandbox: Container
    containers: dict[str, Container] = field(default_factory=dict)

    def run(self, container: str, *command: str, user: str = "") -> str:
        """Run a command in a container, and return its output; AssertionError if it fails."""
        done = _execute(self.containers[container], command, user)
        assert done.returncode == 0, f"{done}\n{self.logs()}"
        return done.stdout

    def logs(self) -> str:
        """Return the end of each container's log."""
        return "\n".join(
            f"--- {self.name} {name}\n{container.logs(tail=20).decode()}"
            for name, container in self.containers.items()
        )


class Kubelet:
    """Runs pods on nodes in a network of their own.

    `files` are the ConfigMaps and Secrets by name: the contents of their files. A node is a
    container that does nothing: pods with hostNetwork use its network and its name.
    """

    def __init__(
        self,
        client: docker.DockerClient,
        image: str,
        files: Mapping[str, Mapping[str, bytes]],
    ) -> None:
        self._client, self._image, self.files = client, image, {**files}
        self._id = f"pods-{uuid4().hex[:8]}"
        self._network = client.networks.create(self._id, internal=True)
        self._volumes: set[str] = set()
        self._pods: list[Pod] = []
        self._nodes: dict[str, Container] = {}

    def add_node(self, name: str) -> None:
        """Start a node."""
        self._nodes[name] = self._sandbox(name)
        self._nodes[name].start()

    def start(self, workload: Object, name: str, node: str = "", service: str = "") -> Pod:
        """Start a pod of a workload, and wait until each container answers its startup probe."""
        spec = workload["spec"]["template"]["spec"]
        _only_known(spec, _POD_FIELDS)
        _only_known(spec["securityContext"], {"fsGroup", "seccompProfile"})
        # Docker's default profile.
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for claim in workload["spec"].get("volumeClaimTemplates", []):
            volumes[claim["metadata"]["name"]] = {"claim": name}
        places = {volume: self._place(volume, name, volumes[volume]) for volume in volumes}
        mounts = {place: {"bind": f"/volumes/{volume}"} for volume, place in places.items()}
        network = self._nodes[node] if spec.get("hostNetwork") else None
        sandbox = self._sandbox(name, service, network, mounts)
        pod = Pod(name, spec, sandbox)
        self._pods.append(pod)
        sandbox.start()
        for volume in spec["volumes"]:
            self._fill(pod, volume)
        if "fsGroup" in spec["securityContext"]:
            self._give_to_group(pod, spec["securityContext"]["fsGroup"])
        for container in [*spec["initContainers"], *spec["containers"]]:
            self._start_container(pod, container, network or sandbox, node, places)
        return pod

    def stop(self, pod: Pod) -> None:
        """End a pod: its containers in reverse order, each with the time that the pod has."""
        grace = pod.spec.get("terminationGracePeriodSeconds", 30)
        for container in reversed(pod.containers.values()):
            container.stop(timeout=grace)
            container.reload()
            assert container.attrs["State"]["ExitCode"] != KILLED, pod.logs()
        self._remove(pod)

    def clean_up(self) -> None:
        """Remove everything."""
        for pod in [*self._pods]:
            self._remove(pod)
        for node in self._nodes.values():
            node.remove(force=True)
        for volume in self._volumes:
            self._client.volumes.get(volume).remove()
        self._network.remove()

    def _sandbox(
        self,
        name: str,
        service: str = "",
        network: Container | None = None,
        volumes: Object | None = None,
    ) -> Container:
        """Create the container whose network and volumes the others of a pod share."""
        own: Object = {
            "hostname": name,
            "network": self._network.name,
            "networking_config": {
                self._network.name: EndpointConfig(
                    self._client.api._version, aliases=[name, service or name]
                )
            },
        }
        return self._client.containers.create(
            self._image,
            entrypoint=["sleep", "infinity"],
            init=True,  # reaps, as the first process of a pod does
            name=f"{self._id}-{name}",
            volumes=volumes or {},
            **({"network_mode": f"container:{network.id}"} if network else own),
        )

    def _remove(self, pod: Pod) -> None:
        for container in [*reversed(pod.containers.values()), pod.sandbox]:
            container.remove(force=True)
        self._pods.remove(pod)

    def _place(self, volume: str, pod: str, source: Object) -> str:
        """Return the name of a new Docker volume, or of a claim's own."""
        suffix = "claim" if "claim" in source else uuid4().hex[:8]
        name = f"{self._id}-{pod}-{volume}-{suffix}"
        if name not in self._volumes:
            self._client.volumes.create(name)
            self._volumes.add(name)
        return name

    def _fill(self, pod: Pod, volume: Object) -> None:
        """Write the files of a ConfigMap or Secret as kubelet's AtomicWriter does: with links."""
        match {key: value for key, value in volume.items() if key != "name"}:
            case {"emptyDir": _}:
                entries: dict[str, tuple[bytes, int]] = {}
            case {"configMap": {"name": name, **options}} | {
                "secret": {"secretName": name, **options}
            }:
                entries = self._entries(name, options)
            case {"projected": {"sources": sources, **options}}:
                entries = {}
                for source in sources:
                    ((_, of_source),) = source.items()
                    entries |= self._entries(of_source["name"], {**options, **of_source})
            case other:
                raise AssertionError(f"unknown volume: {other}")
        place = f"/volumes/{volume['name']}"
        pod.sandbox.put_archive(place, _tar(entries))

    def _entries(self, name: str, options: Object) -> dict[str, tuple[bytes, int]]:
        _only_known(options, {"defaultMode", "items", "name"})
        files, mode = self.files[name], options.get("defaultMode", 0o644)
        items = options.get("items", [{"key": key, "path": key} for key in files])
        return {item["path"]: (files[item["key"]], item.get("mode", mode)) for item in items}

    def _give_to_group(self, pod: Pod, group: int) -> None:
        """Let a group read files and write to directories: kubelet's SetVolumeOwnership()."""
        done = pod.sandbox.exec_run(
            [
                "sh",
                "-ec",
                f"chgrp -Rh {group} /volumes; find /volumes/* -type d -exec chmod g+rwxs {{}} +;"
                "find /volumes -type f -exec chmod g+r {} +",
            ]
        )
        assert done.exit_code == 0, done.output

    def _start_container(
        self,
        pod: Pod,
        container: Object,
        network: Container,
        node: str,
        places: Mapping[str, str],
    ) -> None:
        _only_known(container, _CONTAINER_FIELDS)
        security = container["securityContext"]
        _only_known(security, _SECURITY_FIELDS)
        fields = {"spec.nodeName": node}
        environment = {
            variable["name"]: fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            for variable in container.get("env", [])
        }
        command = container["command"]
        for name, value in environment.items():
            command = [word.replace(f"$({name})", value) for word in command]
        group = pod.spec["securityContext"].get("fsGroup")
        pod.containers[container["name"]] = started = self._client.containers.create(
            self._image,
            entrypoint=command,
            environment=environment,
            user=f"{security['runAsUser']}:{security.get('runAsGroup', 0)}",
            group_add=[group] if group else [],
            cap_drop=security["capabilities"]["drop"],
            cap_add=security["capabilities"].get("add", []),
            security_opt=[]
            if security.get("allowPrivilegeEscalation", True)
            else ["no-new-privileges"],
            read_only=security.get("readOnlyRootFilesystem", False),
            network_mode=f"container:{network.id}",
            pid_mode=f"container:{pod.sandbox.id}"
            if pod.spec.get("shareProcessNamespace")
            else None,
            volumes={
                places[mount["name"]]: {
                    "bind": mount["mountPath"],
                    "mode": f"{'ro' if mount.get('readOnly') else 'rw'},nocopy",
                }
                for mount in container["volumeMounts"]
            },
        )
        started.start()
        wait_until(
            lambda: _succeeds(started, container["startupProbe"]),
            bool,
            what=f"{container['name']} of {pod.name} to start",
            timeout=_PATIENCE,
            give_up=lambda _: _ended(started),
            show=lambda _: pod.logs(),
        )


def _only_known(given: Object, known: set[str]) -> None:
    assert not given.keys() - known, f"unknown to this kubelet: {given.keys() - known}"


def _ended(container: Container) -> bool:
    container.reload()
    return bool(container.status != "running")


def _succeeds(container: Container, probe: Object) -> bool:
    """Return whether a probe succeeds; not if the container ends meanwhile."""
    try:
        done = _execute(container, probe["exec"]["command"], timeout=probe.get("timeoutSeconds", 1))
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _execute(
    container: Container, command: Sequence[str], user: str = "", timeout: float = _PATIENCE
) -> Done:
    """Run a command in a container.

    By the docker command, because the library has no timeout: Docker 20.10 does not answer if the
    container ends meanwhile.
    """
    as_user = [f"--user={user}"] if user else []
    return subprocess.run(
        ["docker", "exec", *as_user, container.id, *command],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """Return a volume as a tar: as kubelet, with a link to each file, and current times.

    slurmctld does not load a script from 1970.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(
            name: str, kind: bytes, mode: int = 0o777, content: bytes = b"", link: str = ""
        ) -> None:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.linkname = kind, mode, link
            info.size, info.mtime = len(content), int(time.time())
            tar.addfile(info, io.BytesIO(content))

        add(".", tarfile.DIRTYPE)
        if files:
            add("..data", tarfile.DIRTYPE, 0o755)
        for name, (content, mode) in files.items():
            add(f"..data/{name}", tarfile.REGTYPE, mode, content)
            add(name, tarfile.SYMTYPE, link=f"..data/{name}")
    return buffer.getvalue()


@contextmanager
def kubelet(
    client: docker.DockerClient,
    image: str,
    nodes: Iterable[str],
    files: Mapping[str, Mapping[str, bytes]],
) -> Iterator[Kubelet]:
    """Yield a kubelet with nodes, and remove everything that it created at the end."""
    started = Kubelet(client, image, files)
    try:
        for node in nodes:
            started.add_node(node)
        yield started
    finally:
        started.clean_up()
