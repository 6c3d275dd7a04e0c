"""The scenario file: its models, and a reader that names every problem with its place."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from ipaddress import IPv4Network
from itertools import combinations
from math import prod
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from harness import hostlist, releases
from harness.errors import Problem, ScenarioError, UsageError

Path_ = tuple[str | int, ...]
# The file and the key with which a release came to have each kind of topology. topology/3d_torus of before 25.05 is not
# meant: it ends a slurmctld that was not built for three dimensions, as Debian's is not.
_TOPOLOGY_KEYS = {
    "tree": ("topology.conf", "SwitchName"),
    "block": ("topology.conf", "BlockSizes"),
    "torus3d": ("topology.yaml", "torus3d"),
}
# The ports of slurmds that share a host begin at 20001, and Linux gives those from 32768 on to clients.
MOST_NODES_OF_A_HOST = 32767 - 20000
# What slurmdbd is called beside the clusters where each has its release; a cluster's name may not be this.
SLURMDBD = "slurmdbd"


def _hostlist(value: str) -> str:
    hostlist.expand(value)
    return value


def _release(value: Any) -> Any:
    name = f"{value:.2f}" if isinstance(value, float) else value
    if name is not None and name not in releases.KNOWN:
        raise ValueError(f'no release "{name}"; known are {", ".join(releases.KNOWN)}')
    if name != value:
        raise ValueError(f'a release is text: write "{name}", with the quotes')
    return value


def _option(value: Any) -> Any:
    for item in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(item, bool | int | float | str | None):  # pydantic wants a ValueError
            raise ValueError("an option's value is a text, a number, true, false, null or a list of them")
        if isinstance(item, str) and ("\n" in item or "\r" in item):
            raise ValueError("an option's value is one line")
    return value


def _further_file(value: str) -> str:
    if value in {"slurm.conf", "slurmdbd.conf", "cgroup.conf"}:
        raise ValueError(f"{value} is written from options, not taken as it is")
    return value


# Who powers a node up when a job wants it: nobody, it is always up; someone outside of Slurm; slurmctld over SSH; or
# the provisioning API, which starts an existing host or makes one.
Provision = Literal["static", "manual", "remote", "power", "create"]
Hostlist = Annotated[str, AfterValidator(_hostlist)]
Release = Annotated[str, BeforeValidator(_release), WithJsonSchema({"type": "string", "enum": list(releases.KNOWN)})]
HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$")]
# slurm.conf(5), ClusterName: lower case only, because the name becomes part of database tables' names.
ClusterName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
Directory = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_.-]+)+$")]
Size = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[MG]$")]
# As ssh(1) takes it, with a port.
Destination = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.-]+(:[0-9]{1,5})?$")]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
FileName = Annotated[Word, AfterValidator(_further_file)]
# slurm.conf(5), Gres: a name, then perhaps a type, no_consume and a count.
Gres = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w-]*(:[A-Za-z_][\w.-]*)*(:\d+[KMGTPkmgtp]?)?$")]
UserName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
Count = Annotated[int, Field(ge=1)]
# Along x, y and z.
Dimensions = tuple[Count, Count, Count]
OptionValue = bool | int | float | str | None
Options = Mapping[Word, Annotated[OptionValue | tuple[OptionValue, ...], BeforeValidator(_option)]]


class Model(BaseModel):
    """A part of a scenario: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Site(Model):
    """A network of its own. Sites of one scenario are joined by a gateway with only Slurm's ports open."""

    subnet: IPv4Network | None = Field(None, description="such as 10.20.0.0/24; unset, a free one is taken")


class NodeGroup(Model):
    """Compute nodes of one shape."""

    name: Hostlist = Field(description="hostlist of the nodes, such as c[1-4]")
    cpus: int = Field(1, ge=1, description="CPUs of each node")
    memory: int = Field(500, ge=1, description="RealMemory of each node, in MiB")
    features: tuple[Word, ...] = Field((), description="features that jobs can ask for with --constraint")
    provision: Provision = Field("static", description="how they come and go: see docs/elastic.md")
    dynamic: bool = Field(False, description="slurm.conf does not name them: slurmd -Z tells slurmctld of them")
    gres: tuple[Gres, ...] = Field(
        (), description="such as gpu:a100:4; where there are none, copies of /dev/null stand for the devices of GPUs"
    )
    options: Options = Field({}, description="more options of the NodeName line; null removes a default")


class Partition(Model):
    """A partition of a cluster."""

    nodes: Hostlist | Literal["ALL"] = Field("ALL", description="hostlist of its nodes, or ALL")
    default: bool = Field(False, description="jobs go here unless they say otherwise")
    topology: Word | None = Field(
        None, description="which of the cluster's topologies places its jobs; unset, the first"
    )
    options: Options = Field({}, description="more options of the PartitionName line; null removes a default")


class Switch(Model):
    """A switch of a tree: a leaf with nodes, or one above other switches."""

    nodes: Hostlist | None = Field(None, description="hostlist of the nodes of a leaf switch")
    switches: Hostlist | None = Field(None, description="hostlist of the switches below it")


class Torus(Model):
    """A 3-D torus, of which jobs get contiguous sub-cubes."""

    dims: Dimensions = Field(description="how many nodes along x, y and z")
    nodes: Hostlist = Field(description="hostlist of its nodes, x varying fastest, then y")
    placements: tuple[Dimensions, ...] = Field(
        min_length=1, description="sub-cubes that jobs may get; a job of another size gets nothing"
    )


class Topology(Model):
    """How the nodes of a cluster are joined: a tree of switches, blocks, or toruses. See docs/topology.md."""

    switches: Mapping[Word, Switch] = Field({}, description="a tree (topology/tree)")
    blocks: Mapping[Word, Hostlist] = Field({}, description="blocks in their order, with their nodes (topology/block)")
    block_sizes: tuple[Count, ...] = Field(
        (), description="nodes of a block, then of blocks that are one for larger jobs; unset, Slurm joins up to 16"
    )
    toruses: Mapping[Word, Torus] = Field({}, description="3-D toruses (topology/torus3d)")

    @property
    def plugin(self) -> str:
        """The plugin that knows such a topology."""
        return "tree" if self.switches else "block" if self.blocks else "torus3d"

    def nodes_of(self) -> dict[Path_, tuple[str, ...]]:
        """Return the nodes of each leaf switch, block or torus, by the place in the topology where they stand."""
        return {
            **{
                ("switches", name, "nodes"): hostlist.expand(switch.nodes)
                for name, switch in self.switches.items()
                if switch.nodes
            },
            **{("blocks", name): hostlist.expand(nodes) for name, nodes in self.blocks.items()},
            **{("toruses", name, "nodes"): hostlist.expand(torus.nodes) for name, torus in self.toruses.items()},
        }

    def switches_below(self) -> dict[str, tuple[str, ...]]:
        """Return the switches right below each one; those without any are leaves."""
        return {
            name: hostlist.expand(switch.switches) if switch.switches else () for name, switch in self.switches.items()
        }


class Rest(Model):
    """slurmrestd, Slurm's REST API, for those who bring a token: see docs/rest.md."""

    host: HostName | None = Field(None, description="a host of its own; unset, the controller runs it too")
    port: int = Field(6820, ge=1024, lt=2**16, description="where it listens, at its host's own address")
    max_token_life: int | None = Field(
        None, ge=1, description="seconds for which an ordinary user's token may live; unset, no limit"
    )


class Cluster(Model):
    """One Slurm cluster: a slurmctld and its slurmds."""

    controller: HostName = Field(description="the host that runs slurmctld; it may be a node too")
    backup_controllers: tuple[HostName, ...] = Field(
        (), description="hosts whose slurmctld takes over, in this order; they share StateSaveLocation with the first"
    )
    nodes: tuple[NodeGroup, ...] = Field(description="its compute nodes, a group for each shape")
    hosts: Hostlist | None = Field(
        None, description="hosts that share the nodes, each with many slurmd; unset, every node is a host of its own"
    )
    partitions: Mapping[Word, Partition] = Field(
        {"main": Partition(default=True)}, min_length=1, description="its partitions; unset, main has all nodes"
    )
    topology: Mapping[Word, Topology] = Field(
        {}, description="how its nodes are joined; of several, the first is for partitions that name none"
    )
    site: Word | None = Field(None, description="the site all its hosts are in; needed where there are several")
    release: Release | None = Field(None, description="Slurm release; unset, the scenario's")
    image: str | None = Field(None, description="a Docker image of your own for its hosts; its release is asked of it")
    apptainer: bool = Field(False, description="install Apptainer on its nodes, if Debian has it for the release")
    configless: bool = Field(False, description="nodes get their configuration from slurmctld, not from files")
    features: tuple[Word, ...] = Field((), description="features for sbatch --cluster-constraint in a federation")
    defaults: bool = Field(
        True, description="lay the options over the harness's own; if false, files say what the scenario says, no more"
    )
    options: Options = Field({}, description="more options of slurm.conf; null removes a default")
    lines: tuple[Options, ...] = Field(
        (), description="more lines of slurm.conf, each of its options in order, such as NodeSet and Feature"
    )
    files: Mapping[FileName, str] = Field(
        {},
        description="more files for the directory of slurm.conf on every host, such as gres.conf: their texts; "
        "one that begins with #! is a program",
    )
    cgroup: Options = Field({}, description="more options of cgroup.conf; null removes a default")
    oci: Options | None = Field(
        None,
        description="Slurm runs users' containers (--container): more options of oci.conf, null removes a default; "
        "unset, it runs none; see docs/containers.md",
    )
    rest: Rest | None = Field(None, description="slurmrestd, for those who bring a token: see docs/rest.md")
    kubernetes: bool = Field(False, description="Kubernetes places pods on its nodes, too: see docs/hybrid.md")

    def node_names(self) -> tuple[str, ...]:
        """Return the names of all nodes, in the scenario's order."""
        return tuple(name for group in self.nodes for name in hostlist.expand(group.name))

    def provision_of(self) -> dict[str, Provision]:
        """Return how each node is provisioned."""
        return {name: group.provision for group in self.nodes for name in hostlist.expand(group.name)}

    def room_for_nodes(self) -> bool:
        """Tell whether slurmctld takes nodes that slurm.conf does not name."""
        return any(option.lower() == "maxnodecount" for option in self.options)

    def gpus(self) -> dict[str, int]:
        """Return how many GPUs each node that lasts has, if it has any."""
        return {
            name: count
            for group in self.nodes
            if group.provision == "static"
            and (count := sum(int(gres.split(":")[-1]) for gres in group.gres if gres.startswith("gpu:")))
            for name in hostlist.expand(group.name)
        }

    def static_nodes(self) -> dict[str, int]:
        """Return the CPUs of each node that lasts."""
        return {
            name: group.cpus
            for group in self.nodes
            if group.provision == "static"
            for name in hostlist.expand(group.name)
        }

    def nodes_of_partition(self, partition: Partition) -> tuple[str, ...]:
        """Return the nodes of a partition."""
        return self.node_names() if partition.nodes == "ALL" else hostlist.expand(partition.nodes)

    def topology_of(self, partition: Partition) -> str | None:
        """Return the name of the topology that places a partition's jobs; None if the cluster has none."""
        return partition.topology or next(iter(self.topology), None)

    def elastic(self) -> bool:
        """Tell whether nodes come and go."""
        return any(group.provision != "static" for group in self.nodes)

    def nodes_on(self) -> dict[str, tuple[str, ...]]:
        """Return the hosts with the nodes whose slurmd each runs: its own name's, or an even share of all."""
        nodes = self.node_names()
        if not self.hosts:
            return {node: (node,) for node in nodes}
        hosts = hostlist.expand(self.hosts)
        bounds = [len(nodes) * index // len(hosts) for index in range(len(hosts) + 1)]
        return {host: nodes[bounds[index] : bounds[index + 1]] for index, host in enumerate(hosts)}


class Account(Model):
    """A bank account in the accounting database."""

    parent: Word | None = Field(None, description="the account above it; unset, root")
    options: Options = Field({}, description="more sacctmgr options, such as Fairshare or GrpTRES")


class Qos(Model):
    """A quality of service."""

    options: Options = Field({}, description="sacctmgr options, such as Priority or MaxJobsPerUser")


class Accounting(Model):
    """One host with MariaDB and slurmdbd, for all clusters of the scenario."""

    host: HostName = Field("accounting", description="the host that runs MariaDB and slurmdbd")
    backup: HostName | None = Field(None, description="a host whose slurmdbd takes over, with the same database")
    site: Word | None = Field(None, description="the site the host is in; needed where there are several")
    release: Release | None = Field(None, description="release of slurmdbd; unset, the scenario's")
    image: str | None = Field(None, description="a Docker image of your own for the host; its release is asked of it")
    accounts: Mapping[Word, Account] = Field({}, description="bank accounts, whatever their order")
    qos: Mapping[Word, Qos] = Field({}, description="qualities of service, besides normal")
    job_completion: bool = Field(False, description="also write job completion records (jobcomp/mysql)")
    slurmdbd: Options = Field({}, description="more options of slurmdbd.conf; null removes a default")

    def accounts_parents_first(self) -> list[str]:
        """Return the names of all accounts, each after its parent; ValueError names one that is its own ancestor."""
        graph: TopologicalSorter[str] = TopologicalSorter()
        for name, account in self.accounts.items():
            graph.add(name)
            if account.parent and account.parent in self.accounts:
                graph.add(name, account.parent)
        try:
            return list(graph.static_order())
        except CycleError as error:
            raise ValueError(str(error.args[1][0])) from error


def _ordinary(uid: int) -> int:
    # Debian's daemons and systemd's own users have these.
    if 60000 < uid < 65536:
        raise ValueError("60001 to 65535 are the system's own")
    return uid


class User(Model):
    """An ordinary user, with the same uid on every host."""

    uid: Annotated[int, AfterValidator(_ordinary)] = Field(
        ge=1000, lt=2**31, description="on every host; 60001 to 65535 are the system's own"
    )
    accounts: tuple[Word, ...] = Field((), description="accounts the user may charge; the first is the default")
    qos: tuple[Word, ...] = Field((), description="QOS the user may ask for besides normal")


class Federation(Model):
    """Clusters that place jobs as one."""

    clusters: tuple[str, ...] = Field(min_length=1, description="in this order they get ids 1, 2, ...")


class ScheduledFault(Model):
    """A fault that comes at its time and is healed."""

    at: float = Field(ge=0, description="seconds after the first submission")
    lasts: float = Field(ge=0, description="seconds until it is healed")
    fault: str = Field(description="as `harness fault inject` takes it, such as kill-daemon ctl slurmctld")
    saved: bool = Field(
        False, description="nobody submits before it until every slurmctld has saved what it knows: it takes 5 s for it"
    )
    quiet: bool = Field(False, description="nobody submits while it lasts")


class Rehearsal(Model):
    """Jobs of many kinds while faults come and go; what was seen is judged. See docs/rehearsal.md."""

    jobs: int = Field(100, ge=1, description="how many jobs; arrays count once")
    seconds: float = Field(60, gt=0, description="seconds over which they are submitted")
    seed: int = Field(1, description="another number makes other jobs")
    faults: tuple[ScheduledFault, ...] = Field((), description="what breaks, and when")


class Scenario(Model):
    """Slurm clusters the way an administrator thinks of them."""

    description: str = Field("", description="one line for people")
    release: Release = Field(
        releases.DEFAULT, description="Slurm release of every cluster and slurmdbd that names none"
    )
    sites: Mapping[Word, Site] = Field(
        {"site": Site()}, min_length=1, description="networks that a gateway joins; unset, one"
    )
    clusters: Mapping[ClusterName, Cluster] = Field(min_length=1, description="by their ClusterName")
    accounting: Accounting | None = Field(None, description="a host with slurmdbd; unset, jobs are not recorded")
    users: Mapping[UserName, User] = Field({}, description="who submits jobs; where there are none, no check does")
    federations: Mapping[Word, Federation] = Field({}, description="clusters that place jobs as one")
    rehearsal: Rehearsal | None = Field(None, description="what users do while faults come and go")
    machines: Mapping[HostName, Destination] = Field(
        {}, description="for --provider existing: [USER@]ADDRESS[:PORT] of each host, see docs/existing.md"
    )
    disks: Mapping[HostName, Mapping[Directory, Size]] = Field(
        {}, description="for each host, directories that are a disk of their own, so small (600M) that it can be filled"
    )

    def release_of(self, part: Cluster | Accounting) -> str:
        """Return the release of a cluster or of slurmdbd."""
        return part.release or self.release

    def parts(self) -> dict[str, Cluster | Accounting]:
        """Return what has a release of its own: the clusters by their names, and slurmdbd."""
        return {**self.clusters, **({SLURMDBD: self.accounting} if self.accounting else {})}

    def with_releases(self, releases_: Mapping[str, str | None]) -> Scenario:
        """Return this scenario with some of `parts` on other releases; None stands for the scenario's."""
        clusters = {
            name: cluster.model_copy(update={"release": releases_.get(name, cluster.release)})
            for name, cluster in self.clusters.items()
        }
        accounting = self.accounting and self.accounting.model_copy(
            update={"release": releases_.get(SLURMDBD, self.accounting.release)}
        )
        return self.model_copy(update={"clusters": clusters, "accounting": accounting})

    def put_on(self, choices: Sequence[str]) -> Scenario:
        """Return this scenario on the releases that a user chose: "26.05" for all parts, "aws=26.05" for one."""
        scenario = self
        for choice in choices:
            name, is_one, release = choice.rpartition("=")
            try:
                _release(release)
            except ValueError as error:
                raise UsageError(str(error)) from error
            if is_one and name not in scenario.parts():
                raise UsageError(
                    f'--release {choice}: no cluster "{name}"{_did_you_mean(name, list(scenario.parts()))}'
                )
            scenario = scenario.with_releases({name: release} if is_one else dict.fromkeys(scenario.parts(), release))
        return scenario


def schema() -> dict[str, Any]:
    """Return the JSON Schema of scenario files, for editors; what is wrong between parts it does not know."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Scenario.model_json_schema()}


def name_of(path: Path) -> str:
    """Return the name of the scenario in a file; UsageError if runs cannot be named after it."""
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_.-]*", path.stem):
        raise UsageError(
            f'"{path.name}": a run is named after its scenario\'s file',
            hint="give the file a name of letters, digits, dots, hyphens and underscores",
        )
    return path.stem


def is_named_like_one(path: Path) -> bool:
    """Tell a scenario's file from those of Slurm's own, of which one is YAML too."""
    return path.suffix in {".yml", ".yaml"} and path.name != "topology.yaml"


def load(
    path: Path,
    choices: Sequence[str] = (),
    release_of_image: Callable[[str], str] | None = None,
    lacks: Callable[[Scenario], Iterable[tuple[Path_, str]]] = lambda _: (),
    settings: Sequence[str] = (),
) -> Scenario:
    """Read a scenario and put it on the releases that `choices` names (see Scenario.put_on).

    `settings` are laid over the file, each KEY=VALUE: keys with dots between, such as clusters.a.nodes.0.cpus, and a
    value as in the file. `release_of_image` tells which release an image has, `lacks` what the hosts cannot do.
    ScenarioError tells all problems of the file, in the order of their lines.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", hint="scenarios/ holds complete examples") from error
    try:
        tree = YAML(typ="safe", pure=True).compose(text)
        reader = YAML(typ="safe", pure=True)
        reader.allow_duplicate_keys = True
        data = reader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ScenarioError([Problem(path, line, column, "", f"not YAML: {error.problem}")]) from error
    if not isinstance(data, dict):
        raise ScenarioError(
            [Problem(path, 1, 1, "", 'a scenario is a mapping that begins with a key such as "clusters:"')]
        )

    for setting in settings:
        _set(data, setting)
    keys: dict[Path_, tuple[int, int]] = {}
    values: dict[Path_, tuple[int, int]] = {}
    found: list[tuple[Path_, str, bool]] = [(at, message, True) for at, message in _walk(tree, (), keys, values)]
    scenario = _validate(data, found)
    if scenario:
        impossible = [*lacks(scenario)]
        found.extend((at, message, False) for at, message in (*_contradictions(scenario, data), *impossible))
        asked = None if impossible else release_of_image
        scenario, wrong_images = _asked_of_images(scenario.put_on(choices), asked)
        wrong = (*wrong_images, *_wrong_releases(scenario), *_too_old_for_topology(scenario))
        found.extend((at, message, False) for at, message in wrong)
    if not found and scenario:
        return scenario

    def problem(at: Path_, message: str, on_key: bool) -> Problem:
        places = keys if on_key else values
        prefix = next(at[:n] for n in range(len(at), -1, -1) if at[:n] in places)
        line, column = places[prefix]
        return Problem(path, line, column, ".".join(map(str, at)), message)

    raise ScenarioError(sorted((problem(*entry) for entry in dict.fromkeys(found)), key=lambda p: (p.line, p.column)))


def _set(data: dict[str, Any], setting: str) -> None:
    """Put the value of KEY=VALUE in its place; UsageError if there is none."""
    key, is_one, value = setting.partition("=")
    *above, last = key.split(".")
    place: Any = data
    try:
        if not is_one:
            raise ValueError("no =")  # noqa: TRY301  told with the others
        for part in above:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[int(last) if isinstance(place, list) else last] = YAML(typ="safe", pure=True).load(value)
    except (LookupError, TypeError, ValueError, MarkedYAMLError) as error:
        raise UsageError(
            f"--set {setting}: the scenario has no such place, or this is no value for it",
            hint="such as clusters.alpha.nodes.0.cpus=4: keys of the file, and numbers from 0 for items of a list",
        ) from error


def _walk(
    node: Node, at: Path_, keys: dict[Path_, tuple[int, int]], values: dict[Path_, tuple[int, int]]
) -> Iterator[tuple[Path_, str]]:
    """Note where each key and value stands; yield the keys that stand twice in one mapping."""
    place = (node.start_mark.line + 1, node.start_mark.column + 1)
    values[at] = place
    keys.setdefault(at, place)
    if isinstance(node, MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            below = (*at, key.value)
            if key.value in seen:
                keys[below] = (key.start_mark.line + 1, key.start_mark.column + 1)
                yield below, "is defined twice"
                continue
            seen.add(key.value)
            keys[below] = (key.start_mark.line + 1, key.start_mark.column + 1)
            yield from _walk(value, below, keys, values)
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*at, index), keys, values)


def _validate(data: dict[str, Any], found: list[tuple[Path_, str, bool]]) -> Scenario | None:
    """Return the scenario without the parts that are wrong; add what was wrong to `found`."""
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        errors = error.errors()
    for entry in errors:
        at = _in_data(entry["loc"], data)
        missing = entry["type"] == "missing"
        unknown = entry["type"] == "extra_forbidden"
        found.append(((*at, entry["loc"][-1]) if missing else at, _reason(entry), unknown or missing))
    rest = deepcopy(data)
    while True:  # each round removes something, so it ends
        wrong = {_in_data(entry["loc"], rest) for entry in errors}
        if () in wrong:
            return None
        for at in wrong:
            _remove(rest, at)
        try:
            return Scenario.model_validate(rest)
        except ValidationError as error:
            errors = error.errors()


def _in_data(loc: tuple[str | int, ...], data: Any) -> Path_:
    """Cut off what pydantic adds to a place: the names of keys and of union members."""
    at: list[str | int] = []
    for part in loc:
        if isinstance(data, str):
            break
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            break
        at.append(part)
    return tuple(at)


def _remove(data: Any, at: Path_) -> None:
    """Remove a part; of a list also what follows it, so that the indices of what stays remain right."""
    *above, last = at
    try:
        for part in above:
            data = data[part]
    except (KeyError, IndexError):
        return
    if isinstance(data, list):
        del data[int(last) :]
    elif isinstance(data, dict):
        data.pop(last, None)


def _reason(entry: Any) -> str:
    loc = entry["loc"]
    match entry["type"]:
        case "extra_forbidden":
            return f"unknown key{_did_you_mean(str(loc[-1]), _fields_at(loc[:-1]))}"
        case "missing":
            return "is required"
        case "string_pattern_mismatch":
            return f"{entry['input']!r} has characters that are not allowed here"
        case "value_error":
            return str(entry["ctx"]["error"])
        case _:
            return f"{entry['msg'][0].lower()}{entry['msg'][1:]} (found: {entry['input']!r})"


def _fields_at(loc: tuple[str | int, ...]) -> list[str]:
    """Return the keys that are allowed at a place of the scenario."""
    kind: Any = Scenario
    for part in loc:
        if isinstance(kind, type) and issubclass(kind, Model):
            kind = kind.model_fields[str(part)].annotation
        else:  # a mapping's values, or a tuple's items
            kind = next(arg for arg in reversed(get_args(kind)) if arg is not Ellipsis)
        if NoneType in get_args(kind):
            kind = get_args(kind)[0]
    return list(kind.model_fields)


def _did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word.lower(), known, n=1)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; known are {', '.join(known)}" if known else ""


def _contradictions(scenario: Scenario, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """Yield what is wrong between parts that are right by themselves.

    Names are taken from `raw`, so that a cluster with another problem still counts as defined.
    """
    if SLURMDBD in scenario.clusters:
        yield ("clusters", SLURMDBD), "a cluster may not be called like the daemon"
    yield from _wrong_hosts(scenario, raw)
    yield from _wrong_sites(scenario, raw)
    yield from _wrong_federations(scenario, raw)
    yield from _wrong_accounting(scenario, raw)


def _asked_of_images(
    scenario: Scenario, release_of_image: Callable[[str], str] | None
) -> tuple[Scenario, list[tuple[Path_, str]]]:
    """Return the scenario with the releases that its own images have, and where it says otherwise."""
    wrong: list[tuple[Path_, str]] = []
    found: dict[str, str | None] = {}
    for name, part in scenario.parts().items():
        if not part.image or not release_of_image:
            continue
        release = release_of_image(part.image)
        if part.release not in {None, release}:
            wrong.append(((*_place(name), "release"), f"{part.release}, but image {part.image} has Slurm {release}"))
        elif release not in releases.KNOWN:
            known = ", ".join(releases.KNOWN)
            wrong.append(((*_place(name), "image"), f"it has Slurm {release}; known are {known}"))
        else:
            found[name] = release
    return scenario.with_releases(found), wrong


def _wrong_releases(scenario: Scenario) -> Iterator[tuple[Path_, str]]:
    """Yield where slurmdbd cannot serve a cluster (see Slurm's guide to upgrades, on compatibility), or slurmrestd."""
    for name, cluster in scenario.clusters.items():
        release = scenario.release_of(cluster)
        most, count = releases.get(release).most_nodes, len(cluster.node_names())
        if most and count > most:
            yield (
                (*_place(name), "nodes"),
                f"{count} nodes, but slurmctld {release} takes {most} at most; a federation may have more",
            )
        if cluster.rest and not releases.get(release).tokens_are_safe:
            yield (
                (*_place(name), "rest"),
                f"release {release} does not ask each request for its token and limit the token's life; 22.05 does",
            )
        if cluster.oci is not None and "oci.conf" not in releases.get(release).options:
            yield (*_place(name), "oci"), f"release {release} runs no containers; {releases.first('oci.conf')} does"
        if cluster.kubernetes and not releases.get(release).rest_tells_allocations:
            since = next(known for known in releases.KNOWN if releases.get(known).rest_tells_allocations)
            yield (*_place(name), "kubernetes"), f"slurmrestd {release} is too old to tell what jobs have; {since} does"
    if not scenario.accounting:
        return
    slurmdbd = scenario.release_of(scenario.accounting)
    window = releases.get(slurmdbd).serves
    for name, cluster in scenario.clusters.items():
        release = scenario.release_of(cluster)
        at = (*_place(name), "release")
        if release > slurmdbd:
            rule = "slurmdbd is at least as new as every slurmctld it serves"
        elif release not in window:
            earlier = len(window) - 1
            rule = f"slurmdbd {slurmdbd} serves {', '.join(window)}, its own release and the {earlier} before it"
        else:
            continue
        yield at, f"{release}, but slurmdbd is {slurmdbd}; rule: {rule}"


def _place(part: str) -> Path_:
    return ("accounting",) if part == SLURMDBD else ("clusters", part)


def _wrong_hosts(scenario: Scenario, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    owner: dict[str, str] = {}
    if scenario.accounting and not _may_run_slurmdbd(scenario, scenario.accounting):
        owner[scenario.accounting.host] = "accounting.host"
    if scenario.accounting and scenario.accounting.backup:
        yield from _claim(owner, ("accounting", "backup"), "host", scenario.accounting.backup, "accounting.backup")
    for name, cluster in scenario.clusters.items():
        here = f"clusters.{name}"
        if cluster.controller in owner:
            yield (
                ("clusters", name, "controller"),
                f"host {cluster.controller} is already {owner[cluster.controller]}",
            )
        owner[cluster.controller] = f"{here}.controller"
        at: Path_
        for index, backup in enumerate(cluster.backup_controllers):
            at = ("clusters", name, "backup_controllers", index)
            yield from _claim(owner, at, "host", backup, f"{here}.backup_controllers")
            if cluster.elastic():
                yield at, "powers no nodes: those that come and go want one controller"
        if not cluster.nodes and not raw["clusters"][name].get("nodes") and not cluster.room_for_nodes():
            yield ("clusters", name, "nodes"), "a cluster needs at least one node"
        yield from _wrong_provision(cluster, ("clusters", name, "nodes"))
        yield from _wrong_dynamic(scenario, cluster, ("clusters", name))
        yield from _wrong_topology(cluster, name)
        if cluster.oci is not None:
            if not cluster.defaults:
                yield ("clusters", name, "oci"), "wants the defaults; without them write oci.conf yourself, in files"
            if "oci.conf" in cluster.files:
                yield ("clusters", name, "files", "oci.conf"), "is written from oci, not taken as it is"
        if cluster.rest:
            at = ("clusters", name, "rest")
            if not cluster.defaults:
                yield at, "wants the defaults, with AuthAltTypes"
            if cluster.rest.host not in {None, cluster.controller}:
                yield from _claim(owner, (*at, "host"), "host", cluster.rest.host, here)
        if cluster.kubernetes:
            yield from _wrong_kubernetes(cluster, ("clusters", name))
        if cluster.hosts:
            yield from _claim(owner, ("clusters", name, "hosts"), "host", cluster.hosts, here)
            if (count := len(hostlist.expand(cluster.hosts))) > len(cluster.node_names()) > 0:
                yield ("clusters", name, "hosts"), f"{count} hosts are too many for {len(cluster.node_names())} nodes"
            if max(map(len, cluster.nodes_on().values()), default=0) > MOST_NODES_OF_A_HOST:
                most = f"a host has ports for {MOST_NODES_OF_A_HOST}"
                yield ("clusters", name, "hosts"), f"too few for {len(cluster.node_names())} nodes; {most}"
            if not cluster.defaults:
                yield ("clusters", name, "hosts"), "wants the defaults, with a port and directories for each slurmd"
        # Nodes that share hosts need only differ from one another.
        owner_of_node = {} if cluster.hosts else owner
        for index, group in enumerate(cluster.nodes):
            yield from _claim(owner_of_node, ("clusters", name, "nodes", index, "name"), "node", group.name, here)
        known = {*cluster.node_names()}
        for partition_name, partition in cluster.partitions.items():
            if partition.nodes == "ALL":
                continue
            if unknown := [node for node in hostlist.expand(partition.nodes) if node not in known]:
                at = ("clusters", name, "partitions", partition_name, "nodes")
                yield at, f"no such node in cluster {name}: {hostlist.fold(unknown)}"
        defaults = [key for key, partition in cluster.partitions.items() if partition.default]
        if len(defaults) > 1:
            yield (
                ("clusters", name, "partitions", defaults[1], "default"),
                f"{defaults[0]} is the default already",
            )
    for key, hosts in (("disks", scenario.disks), ("machines", scenario.machines)):
        for host in {*hosts} - {*owner}:
            yield (key, host), f'no host "{host}"{_did_you_mean(host, list(owner))}'


def _wrong_provision(cluster: Cluster, at: Path_) -> Iterator[tuple[Path_, str]]:
    for index, group in enumerate(cluster.nodes):
        if group.provision == "static":
            continue
        here = (*at, index, "provision")
        if cluster.hosts:
            yield here, "nodes that share hosts are always up"
        if not cluster.defaults:
            yield here, "wants the defaults, with the programs that power nodes up and down"
        if cluster.controller in hostlist.expand(group.name):
            yield here, f"{cluster.controller} is the controller, which is always up"


def _wrong_dynamic(scenario: Scenario, cluster: Cluster, at: Path_) -> Iterator[tuple[Path_, str]]:
    """Yield where nodes cannot tell of themselves: see slurm.schedmd.com/dynamic_nodes.html."""
    release = scenario.release_of(cluster)
    dynamic: set[str] = set()
    for index, group in enumerate(cluster.nodes):
        if not group.dynamic:
            continue
        dynamic.update(hostlist.expand(group.name))
        here = (*at, "nodes", index, "dynamic")
        if "maxnodecount" not in releases.get(release).options["slurm.conf"]:
            yield here, f"release {release} has no dynamic nodes; 22.05 has them"
        if cluster.elastic():
            yield here, "nodes that come and go need cloud_dns, with which there are no dynamic nodes"
        if cluster.hosts:
            yield here, "nodes that share hosts are named in slurm.conf, each with its port"
        if not cluster.defaults:
            yield here, "wants the defaults, with MaxNodeCount"
    for name, partition in cluster.partitions.items():
        if partition.nodes != "ALL" and (named := dynamic.intersection(hostlist.expand(partition.nodes))):
            where = (*at, "partitions", name, "nodes")
            yield where, f"{hostlist.fold(sorted(named))} is dynamic; only ALL, or a NodeSet of a feature, takes it"


def _wrong_kubernetes(cluster: Cluster, at: Path_) -> Iterator[tuple[Path_, str]]:
    """Yield where a copilot could not keep what pods have from Slurm."""
    here = (*at, "kubernetes")
    if not cluster.rest:
        yield here, "wants rest: its copilot changes nodes over slurmrestd"
    if not cluster.defaults:
        yield here, "wants the defaults, with JobSubmitPlugins"
    if cluster.elastic() or any(group.dynamic for group in cluster.nodes):
        yield here, "wants nodes that last and stand in slurm.conf"
    if "job_submit.lua" in cluster.files:
        yield (*at, "files", "job_submit.lua"), "is written for kubernetes, not taken as it is"


def _wrong_topology(cluster: Cluster, name: str) -> Iterator[tuple[Path_, str]]:
    """Yield where a topology is none, or does not have each node exactly once."""
    at = ("clusters", name)
    for file in {"topology.conf", "topology.yaml"} & {*cluster.files} if cluster.topology else ():
        yield (*at, "files", file), "is written from topology, not taken as it is"
    for topology_name, topology in cluster.topology.items():
        here = (*at, "topology", topology_name)
        if sum(map(bool, (topology.switches, topology.blocks, topology.toruses))) != 1:
            yield here, "has switches, blocks or toruses: one of them"
            continue
        yield from _wrong_places(cluster, name, topology_name)
        yield from _wrong_tree(topology, here)
        yield from _wrong_blocks(topology, here)
        yield from _wrong_toruses(topology, here)
        if any(group.dynamic for group in cluster.nodes):
            yield here, "wants all nodes in slurm.conf, which does not name dynamic ones"
    known = list(cluster.topology)
    for partition_name, partition in cluster.partitions.items():
        if partition.topology and partition.topology not in known:
            where = (*at, "partitions", partition_name, "topology")
            yield where, f'no topology "{partition.topology}"{_did_you_mean(partition.topology, known)}'


def _wrong_places(cluster: Cluster, name: str, topology_name: str) -> Iterator[tuple[Path_, str]]:
    """Yield the nodes that a topology does not know, has twice, or lacks."""
    at = ("clusters", name, "topology", topology_name)
    topology, known = cluster.topology[topology_name], dict.fromkeys(cluster.node_names())
    place_of: dict[str, str] = {}
    for place, nodes in topology.nodes_of().items():
        if unknown := [node for node in nodes if node not in known]:
            names = hostlist.fold(unknown)
            yield (*at, *place), f"no such node in cluster {name}: {names}; its nodes are {hostlist.fold(known)}"
        for node, count in Counter(nodes).items():
            if node in place_of or count > 1:
                yield (*at, *place), f"node {node} is in {place_of.get(node, place[1])} already"
            place_of[node] = str(place[1])
    # Slurm warns of nodes that no switch or block has; a torus may be a part of the cluster.
    users = [part for part in cluster.partitions.values() if cluster.topology_of(part) == topology_name]
    placed = {node for part in users for node in cluster.nodes_of_partition(part)}
    lacking = [node for node in known if node not in place_of and (node in placed or not topology.toruses)]
    if lacking:
        yield at, f"has no place for {hostlist.fold(lacking)}"


def _wrong_tree(topology: Topology, at: Path_) -> Iterator[tuple[Path_, str]]:
    above: dict[str, str] = {}
    for name, switch in topology.switches.items():
        if bool(switch.nodes) == bool(switch.switches):
            yield (*at, "switches", name), "has nodes or switches: one of them"
    for name, below in topology.switches_below().items():
        here = (*at, "switches", name, "switches")
        for child in below:
            if child not in topology.switches:
                yield here, f'no switch "{child}"{_did_you_mean(child, list(topology.switches))}'
            elif child in above:
                yield here, f"switch {child} is below {above[child]} already"
            above.setdefault(child, name)
    try:
        TopologicalSorter(topology.switches_below()).prepare()
    except CycleError as error:
        yield (*at, "switches", error.args[1][0], "switches"), f"is a loop: {' - '.join(error.args[1])}"


def _wrong_blocks(topology: Topology, at: Path_) -> Iterator[tuple[Path_, str]]:
    if topology.block_sizes and not topology.blocks:
        yield (*at, "block_sizes"), "is for blocks"
    if not topology.block_sizes or not topology.blocks:
        return
    base = topology.block_sizes[0]
    for index, size in enumerate(topology.block_sizes):
        if size % base or (size // base).bit_count() != 1:
            yield (*at, "block_sizes", index), f"{size} is not {base} times a power of two"
    for place, nodes in topology.nodes_of().items():
        if len(nodes) > base:
            yield (*at, *place), f"{len(nodes)} nodes are more than a block of {base}"


def _wrong_toruses(topology: Topology, at: Path_) -> Iterator[tuple[Path_, str]]:
    for name, torus in topology.toruses.items():
        here = (*at, "toruses", name)
        if (count := len(hostlist.expand(torus.nodes))) != (wanted := prod(torus.dims)):
            yield (*here, "nodes"), f"{count} nodes, but {_times(torus.dims)} are {wanted}"
        for index, placement in enumerate(torus.placements):
            if any(size > limit for size, limit in zip(placement, torus.dims, strict=True)):
                yield (*here, "placements", index), f"{_times(placement)} is more than the torus, {_times(torus.dims)}"


def _times(dimensions: Dimensions) -> str:
    return "x".join(map(str, dimensions))


def _too_old_for_topology(scenario: Scenario) -> Iterator[tuple[Path_, str]]:
    """Yield the topologies that a cluster's release does not have, with the release that has them."""
    for name, cluster in scenario.clusters.items():
        release = scenario.release_of(cluster)
        for index, (topology_name, topology) in enumerate(cluster.topology.items()):
            at = ("clusters", name, "topology", topology_name)
            section, key = _TOPOLOGY_KEYS[topology.plugin]
            if key.lower() not in releases.get(release).options.get(section, {}):
                since = releases.since(section, key)
                yield (
                    at,
                    f"topology/{topology.plugin} wants {key} of {section}, not in release {release}; {since} has it",
                )
            elif index and releases.get(release).topology_file == "topology.conf":
                yield at, f"release {release} has one topology at a time; {releases.first('topology.yaml')} has several"


def _claim(owner: dict[str, str], at: Path_, kind: str, names: str, cluster: str) -> Iterator[tuple[Path_, str]]:
    """Note that a hostlist at a place owns its names; yield those that another part than the controller owns."""
    expanded = hostlist.expand(names)
    for name, count in Counter(expanded).items():
        taken = owner.get(name)
        if taken and taken != f"{cluster}.controller":
            yield at, f"{kind} {name} is already {taken}"
        elif count > 1:
            yield at, f"{kind} {name} stands in this hostlist {count} times"
    place = ".".join(map(str, at)).removesuffix(".name")
    owner.update(dict.fromkeys(expanded, place))


def _may_run_slurmdbd(scenario: Scenario, accounting: Accounting) -> bool:
    """Tell whether the accounting host is one of a cluster's, which is like it in all that a host is made of."""
    return any(
        accounting.host in {cluster.controller, *cluster.nodes_on()}
        and (cluster.site, cluster.image) == (accounting.site, accounting.image)
        and scenario.release_of(cluster) == scenario.release_of(accounting)
        for cluster in scenario.clusters.values()
    )


def _wrong_sites(scenario: Scenario, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    sites = list(raw.get("sites") or {}) or list(scenario.sites)
    members: list[tuple[Path_, str | None]] = [
        (("clusters", name), cluster.site) for name, cluster in scenario.clusters.items()
    ]
    if scenario.accounting:
        members.append((("accounting",), scenario.accounting.site))
    for at, site in members:
        if site is None and len(sites) > 1:
            yield (*at, "site"), f"is required, because there are several sites: {', '.join(sites)}"
        elif site is not None and site not in sites:
            yield (*at, "site"), f'no site "{site}"{_did_you_mean(site, sites)}'
    for (one, first), (other, second) in combinations(scenario.sites.items(), 2):
        if first.subnet and second.subnet and first.subnet.overlaps(second.subnet):
            yield ("sites", other, "subnet"), f"{second.subnet} overlaps {first.subnet} of site {one}"


def _wrong_federations(scenario: Scenario, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    clusters = list(raw.get("clusters") or {})
    member_of: dict[str, str] = {}
    for name, federation in scenario.federations.items():
        at: Path_ = ("federations", name, "clusters")
        for index, cluster in enumerate(federation.clusters):
            if cluster not in clusters:
                yield (*at, index), f'no cluster "{cluster}"{_did_you_mean(cluster, clusters)}'
            elif cluster in member_of:
                yield (*at, index), f"cluster {cluster} is already in federation {member_of[cluster]}"
            member_of[cluster] = name
    if scenario.federations and "accounting" not in raw:
        yield ("federations",), "a federation needs accounting: slurmdbd holds it"


def _wrong_accounting(scenario: Scenario, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    part = raw.get("accounting")
    raw_accounting: dict[str, Any] = part if isinstance(part, dict) else {}
    accounts = list(raw_accounting.get("accounts") or {})
    qos = [*(raw_accounting.get("qos") or {}), "normal"]
    if scenario.accounting:
        for name, account in scenario.accounting.accounts.items():
            if account.parent and account.parent not in (*accounts, "root"):
                yield ("accounting", "accounts", name, "parent"), f'no account "{account.parent}"'
        try:
            scenario.accounting.accounts_parents_first()
        except ValueError as error:
            yield ("accounting", "accounts", str(error), "parent"), "the account is its own ancestor"
    uids: dict[int, str] = {}
    for name, user in scenario.users.items():
        for index, account_name in enumerate(user.accounts):
            if account_name not in accounts:
                at: Path_ = ("users", name, "accounts", index)
                yield at, f'no account "{account_name}"{_did_you_mean(account_name, accounts)}'
        for index, qos_name in enumerate(user.qos):
            if qos_name not in qos:
                yield ("users", name, "qos", index), f'no QOS "{qos_name}"{_did_you_mean(qos_name, qos)}'
        if user.uid in uids:
            yield ("users", name, "uid"), f"uid {user.uid} is already {uids[user.uid]}'s"
        uids[user.uid] = name
