"""What a scenario file may say: one field, one description."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from ipaddress import IPv4Network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from harness import conf, hostlist, releases
from harness.errors import UsageError

Path_ = tuple[str | int, ...]
# What slurmdbd is called beside the clusters where each has its release; a cluster's name may not be this.
SLURMDBD = "slurmdbd"
# What the hosts of a cluster cannot share, besides what is below some of them.
_PRIVATE_DIRECTORIES = {
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/root", "/run", "/sbin", "/sys", "/tmp", "/usr"),  # noqa: S108
    *("/var", "/var/lib", "/var/lib/mysql", "/var/lib/slurm", "/var/log", "/var/run", "/var/tmp"),  # noqa: S108
}


# src/interfaces/gres.c, MAX_GRES_BITMAP: each has a bit of its own.
_MOST_GPUS = 1024
# limits.h, NAME_MAX.
_LONGEST_NAME = 255


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


def _file_option(value: Any) -> Any:
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, str) and '"' in item and re.search(r"\s", item) and not re.fullmatch('"[^"]*"', item):
            raise ValueError("Slurm's files cannot have a value with blanks and a double quote")
    return _option(value)


def gres_count(gres: str) -> int:
    """Return how many there are of a gres such as gpu:a100:2K; slurm.conf(5), Gres: one where it does not say.

    >>> gres_count("gpu:a100:4"), gres_count("bandwidth:2K"), gres_count("gpu:a100")
    (4, 2048, 1)
    """
    number = re.fullmatch(r"([0-9]+)([kmgtp]?)", gres.lower().rpartition(":")[2])
    return int(number[1]) * 1024 ** " kmgtp".index(number[2] or " ") if number else 1


def _gres(value: str) -> str:
    if value.lower().partition(":")[0] == "gpu" and gres_count(value) > _MOST_GPUS:
        raise ValueError(f"a node has {_MOST_GPUS} GPUs at most")
    return value


def _nodes(value: Any) -> Any:
    """Refuse more nodes than a hostlist may stand for, before any are made; what is no group is refused later."""
    count = 0
    for group in value if isinstance(value, list) else ():
        name = group.get("name") if isinstance(group, dict) else None
        with suppress(ValueError):
            count += hostlist.count(name) if isinstance(name, str) else 0
    if count > hostlist.MOST_NAMES:
        raise ValueError(f"{count} nodes; a cluster has {hostlist.MOST_NAMES} at most")
    return value


def _further_file(value: str) -> str:
    if len(value) > _LONGEST_NAME:
        raise ValueError(f"the name of a file has {_LONGEST_NAME} characters at most")
    if value in {"slurm.conf", "slurmdbd.conf", "cgroup.conf"}:
        raise ValueError(f"{value} is written from options, not taken as it is")
    return value


def _shareable(value: str) -> str:
    if value in _PRIVATE_DIRECTORIES or value.startswith(("/dev/", "/etc/", "/proc/", "/run/", "/sys/", "/usr/")):
        raise ValueError(f"every host needs {value} for itself")
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
SharedDirectory = Annotated[Directory, AfterValidator(_shareable)]
Size = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[MG]$")]
# As ssh(1) takes it, with a port.
Destination = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.-]+(:[0-9]{1,5})?$")]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
FileName = Annotated[Word, AfterValidator(_further_file)]
# slurm.conf(5), Gres: a name, then perhaps a type, no_consume and a count.
Gres = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*(:[A-Za-z_][A-Za-z0-9_.-]*)*(:[0-9]{1,9}[KMGTPkmgtp]?)?$"),
    AfterValidator(_gres),
]
# Debian's policy manual, 5.6.7: as `apt-get install` takes it.
PACKAGE = r"^[a-z0-9][a-z0-9+.-]+$"
Package = Annotated[str, StringConstraints(pattern=PACKAGE)]
UserName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
Count = Annotated[int, Field(ge=1)]
# Along x, y and z.
Dimensions = tuple[Count, Count, Count]
OptionValue = bool | int | float | str | None
Options = Mapping[Word, Annotated[OptionValue | tuple[OptionValue, ...], BeforeValidator(_file_option)]]
SacctmgrOptions = Mapping[Word, Annotated[OptionValue | tuple[OptionValue, ...], BeforeValidator(_option)]]


def did_you_mean(word: str, known: list[str]) -> str:
    """Return the end of a message about a word that nobody knows: the nearest that is known, or all of them."""
    close = difflib.get_close_matches(word.lower(), known, n=1)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; known are {', '.join(known)}" if known else ""


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

    def counted_cpus(self, *, with_default: bool = True) -> int:
        """Return the CPUs that slurmctld counts on each node: see _parse_nodename() in Slurm's read_config.c.

        Options override `cpus`. Where neither is given, or where they do not fit the sockets, the sockets decide.
        `with_default` tells whether slurm.conf has the default of `cpus`.

        >>> NodeGroup(name="c1", options={"CPUs": None, "Sockets": 2, "CoresPerSocket": 4}).counted_cpus()
        8
        """
        options = {name.lower(): str(value) for name, value in self.options.items()}
        sizes = {name: size for name, value in options.items() if (size := conf.number(value)) is not None}
        given = self.cpus if with_default or "cpus" in self.model_fields_set else 0
        cpus = sizes.get("cpus") or sizes.get("procs") or (0 if "cpus" in options else given)
        cores, boards = sizes.get("corespersocket") or 1, sizes.get("boards") or 1
        threads = cores * (sizes.get("threadspercore") or 1)
        sockets = boards * sizes.get("socketsperboard", 0) or sizes.get("sockets")
        sockets = sockets or (cpus // threads if cpus and cpus % threads == 0 else boards)
        return cpus if cpus in {sockets, sockets * cores} else sockets * threads


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
    nodes: Annotated[tuple[NodeGroup, ...], BeforeValidator(_nodes)] = Field(
        description="its compute nodes, a group for each shape"
    )
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
    packages: tuple[Package, ...] = Field(
        (), description="more Debian packages on its hosts, such as expect; see `harness images extend`"
    )
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
            and (count := sum(gres_count(gres) for gres in group.gres if gres.partition(":")[0].lower() == "gpu"))
            for name in hostlist.expand(group.name)
        }

    def static_nodes(self) -> dict[str, int]:
        """Return the CPUs of each node that lasts, as slurmctld counts them."""
        return {
            name: group.counted_cpus(with_default=self.defaults)
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
    options: SacctmgrOptions = Field({}, description="more sacctmgr options, such as Fairshare or GrpTRES")


class Qos(Model):
    """A quality of service."""

    options: SacctmgrOptions = Field({}, description="sacctmgr options, such as Priority or MaxJobsPerUser")


class Accounting(Model):
    """One host with MariaDB and slurmdbd, for all clusters of the scenario."""

    host: HostName = Field("accounting", description="the host that runs MariaDB and slurmdbd")
    backup: HostName | None = Field(None, description="a host whose slurmdbd takes over, with the same database")
    site: Word | None = Field(None, description="the site the host is in; needed where there are several")
    release: Release | None = Field(None, description="release of slurmdbd; unset, the scenario's")
    image: str | None = Field(None, description="a Docker image of your own for the host; its release is asked of it")
    accounts: Mapping[Word, Account] = Field({}, description="bank accounts, whatever their order")
    qos: Mapping[Word, Qos] = Field({}, description="qualities of service, besides normal")
    slurm_user_accounts: tuple[Word, ...] = Field(
        (), description="accounts that SlurmUser may charge: without one it cannot submit jobs"
    )
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
    admin: Literal["Operator", "Administrator"] | None = Field(
        None, description="AdminLevel in the accounting database; unset, none"
    )


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


class Checks(Model):
    """How the checks use the clusters."""

    submit: tuple[Annotated[str, StringConstraints(pattern=r"^--?[A-Za-z][^\r\n]*$")], ...] = Field(
        (),
        description="options of sbatch, srun and salloc that every job of the checks needs, such as --time=5, "
        "--account=physics or --reservation=tests; an option of a check's own overrides them",
    )


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
    shared_directories: tuple[SharedDirectory, ...] = Field(
        (), description="directories that all hosts share, such as /home; hosts on one Docker engine can"
    )
    rehearsal: Rehearsal | None = Field(None, description="what users do while faults come and go")
    checks: Checks = Field(Checks(), description="how the checks use the clusters")
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
                raise UsageError(f'--release {choice}: no cluster "{name}"{did_you_mean(name, list(scenario.parts()))}')
            scenario = scenario.with_releases({name: release} if is_one else dict.fromkeys(scenario.parts(), release))
        return scenario


def schema() -> dict[str, Any]:
    """Return the JSON Schema of scenario files, for editors; what is wrong between parts it does not know."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Scenario.model_json_schema()}
