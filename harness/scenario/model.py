"""The model of the scenario file: each field carries its own description."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    WithJsonSchema,
)

from harness import origins, releases
from harness.errors import UsageError
from harness.origins import NotAnOrigin, Origin, Wanted
from harness.parsing import conf, hostlist

Path_ = tuple[str | int, ...]
# What slurmdbd is called among clusters, such as in --release; no cluster can have this name.
SLURMDBD = "slurmdbd"
# Directories that hosts cannot share; see also `_shareable`.
_PRIVATE_DIRECTORIES = frozenset(
    (
        *("/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/root", "/run", "/sbin", "/sys"),
        *("/tmp", "/usr", "/var", "/var/lib", "/var/lib/mysql", "/var/lib/slurm"),  # noqa: S108
        *("/var/log", "/var/run", "/var/tmp"),  # noqa: S108
    )
)

_SCRIPT_FILE = r"^[A-Za-z0-9][A-Za-z0-9_.-]*\.files(/[A-Za-z0-9_.@+-]+)+$"
# Where a cluster's scripts cannot be: system directories, and files that the harness generates.
_NOT_FOR_SCRIPTS = re.compile(
    r"/(boot|dev|proc|root|run|sys|var/lib/slurm-harness|usr/local/lib/slurm-harness)/"
    r"|/etc/(ldap|munge|my\.cnf\.d|mysql|pam\.d|prometheus|ssh|sssd|systemd)/"
    r"|/etc/(dnsmasq|sysusers|tmpfiles)\.d/"
    r"|/etc/(nologin|nss_slurm\.conf|nsswitch\.conf)$"
    r"|/etc/ssl/certs/directory\.crt$"
    r"|/etc/slurm/[^/]*\.(conf|key|token|yaml)$|/etc/slurm/power_ssh_key$|/usr/local/sbin/slurm-"
)
# src/interfaces/gres.c, MAX_GRES_BITMAP: each GPU has a bit.
_MOST_GPUS = 1024
# limits.h, NAME_MAX.
_LONGEST_NAME = 255


def _hostlist(value: str) -> str:
    hostlist.expand(value)
    return value


def _packages(value: Any) -> Any:
    """Take a single text as a directory."""
    return [value if "/" in value else f"./{value}"] if isinstance(value, str) else value


def _one_directory(value: tuple[str, ...]) -> tuple[str, ...]:
    if len([item for item in value if "/" in item]) > 1:
        raise ValueError("has several directories; put the packages into one")
    return value


def _base(value: str) -> str:
    origins.base(value)
    return value


def _release(value: Any) -> Any:
    name = f"{value:.2f}" if isinstance(value, float) else value
    if name is not None and name not in releases.KNOWN:
        raise ValueError(f'unknown release "{name}"; known: {", ".join(releases.KNOWN)}')
    if name != value:
        raise ValueError(f'a release is a string: write "{name}", with the quotes')
    return value


def _option(value: Any) -> Any:
    for item in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(item, bool | int | float | str | None):  # pydantic expects a ValueError
            raise ValueError(
                "the value of an option must be a string, a number, true, false, null or a list "
                "of these"
            )
        if isinstance(item, str) and ("\n" in item or "\r" in item):
            raise ValueError("the value of an option must be a single line")
    return value


def _file_option(value: Any) -> Any:
    for item in value if isinstance(value, list | tuple) else [value]:
        if (
            isinstance(item, str)
            and '"' in item
            and re.search(r"\s", item)
            and not re.fullmatch('"[^"]*"', item)
        ):
            raise ValueError(
                "Slurm's files cannot hold a value with both blanks and a double quote"
            )
    return _option(value)


_GRES_COUNT = re.compile("([0-9]+)([kmgtpKMGTP]?)")


def gres_count(gres: str) -> int:
    """Return the count of a GRES such as gpu:a100:2K.

    Without a number it is 1: slurm.conf(5), Gres.

    >>> gres_count("gpu:a100:4"), gres_count("bandwidth:2K"), gres_count("gpu:a100")
    (4, 2048, 1)
    """
    number = _GRES_COUNT.fullmatch(gres.rpartition(":")[2])
    return int(number[1]) * 1024 ** " kmgtp".index(number[2].lower() or " ") if number else 1


def gpus_of(gres: Iterable[str]) -> int:
    """Return the number of GPUs among such GRES.

    >>> gpus_of(["gpu:a100:2", "gpu", "shard:8"])
    3
    """
    return sum(gres_count(one) for one in gres if one.partition(":")[0].lower() == "gpu")


def gres_type(gres: str) -> str | None:
    """Return the type of a GRES, which may begin with a digit.

    >>> gres_type("gpu:2080ti:4"), gres_type("gpu:a100"), gres_type("gpu:4")
    ('2080ti', 'a100', None)
    """
    words = [word for word in gres.split(":")[1:] if word.lower() != "no_consume"]
    if words and _GRES_COUNT.fullmatch(words[-1]):
        words.pop()
    return words[0] if words else None


def _gres(value: str) -> str:
    if value.lower().partition(":")[0] == "gpu" and gres_count(value) > _MOST_GPUS:
        raise ValueError(f"a node has at most {_MOST_GPUS} GPUs")
    return value


def _nodes(value: Any) -> Any:
    """Refuse more nodes than a hostlist can name, before they are created.

    Groups are validated later.
    """
    count = 0
    for group in value if isinstance(value, list) else ():
        name = group.get("name") if isinstance(group, dict) else None
        with suppress(ValueError):
            count += hostlist.count(name) if isinstance(name, str) else 0
    if count > hostlist.MOST_NAMES:
        raise ValueError(f"{count} nodes; a cluster has at most {hostlist.MOST_NAMES}")
    return value


def _further_file(value: str) -> str:
    if len(value) > _LONGEST_NAME:
        raise ValueError(f"the name of a file has at most {_LONGEST_NAME} characters")
    if value in {"slurm.conf", "slurmdbd.conf", "cgroup.conf"}:
        raise ValueError(f"{value} is generated from options; set these instead")
    return value


def _shareable(value: str) -> str:
    if value in _PRIVATE_DIRECTORIES or value.startswith(
        ("/dev/", "/etc/", "/proc/", "/run/", "/sys/", "/usr/")
    ):
        raise ValueError(f"every host needs its own {value}")
    return value


def _with_sizes(value: Any) -> Any:
    """Return the directories of a list as a mapping without sizes."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        return value
    if twice := [item for item, count in Counter(value).items() if count > 1]:
        raise ValueError(f"{twice[0]} is listed twice")
    return dict.fromkeys(value)


def _plain_path(value: str) -> str:
    if any(set(part) == {"."} for part in value.split("/")):
        raise ValueError("write the path without . and ..")
    return value


def _script_file(value: str) -> str:
    if not re.fullmatch(_SCRIPT_FILE, value):
        raise ValueError(
            f"{value!r} is not a plain path in a directory NAME.files next to the scenario"
        )
    return value


def _plugin_path(value: str) -> str:
    if not re.fullmatch(r"/(etc|opt|srv|usr)/.*\.so", value):
        raise ValueError(f"{value!r} must be below /etc, /opt, /srv or /usr, and end with .so")
    return value


def _script_path(value: str) -> str:
    if _NOT_FOR_SCRIPTS.match(value):
        raise ValueError("the harness or the system has its own files there")
    return value


# Who powers a node up when a job needs it: nobody, because it is always up; a person or program
# outside of Slurm; slurmctld over SSH; or the provisioning API, which starts an existing host or
# creates one.
Provision = Literal["static", "manual", "remote", "power", "create"]
Hostlist = Annotated[str, AfterValidator(_hostlist)]
Release = Annotated[
    str, BeforeValidator(_release), WithJsonSchema({"type": "string", "enum": list(releases.KNOWN)})
]
# Debian's policy manual, 5.6.7: a name that `apt-get install` accepts.
PACKAGE = r"^[a-z0-9][a-z0-9+.-]+$"
# The same, or a directory: as for `apt-get install`, what has a slash is no name.
Package = Annotated[str, StringConstraints(pattern=rf"({PACKAGE}|/)")]
Packages = Annotated[
    tuple[Package, ...],
    BeforeValidator(_packages),
    AfterValidator(_one_directory),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Base = Annotated[str, AfterValidator(_base)]
HostName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$")
]
# slurm.conf(5), ClusterName: lower case only, because the name becomes part of database tables'
# names.
ClusterName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
Directory = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_.-]+)+$")]
SharedDirectory = Annotated[Directory, AfterValidator(_shareable)]
ScriptPath = Annotated[
    str,
    StringConstraints(pattern=r"^(/[A-Za-z0-9_.@+-]+){2,}$"),
    AfterValidator(_plain_path),
    AfterValidator(_script_path),
]
PluginPath = Annotated[ScriptPath, AfterValidator(_plugin_path)]
ScriptFile = Annotated[
    str,
    AfterValidator(_script_file),
    AfterValidator(_plain_path),
    WithJsonSchema({"type": "string", "pattern": _SCRIPT_FILE}),
]
Size = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[MG]$")]
# With their sizes; None stands for a disk that is not small.
SharedDirectories = Annotated[
    Mapping[SharedDirectory, Size | None],
    BeforeValidator(_with_sizes),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "string"}},
                {
                    "type": "object",
                    "patternProperties": {"^/": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                },
            ]
        }
    ),
]
# As for ssh(1), but with a port.
Destination = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.-]+(:[0-9]{1,5})?$")
]
Endpoint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+:[0-9]{1,5}$")]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
FileName = Annotated[Word, AfterValidator(_further_file)]
# slurm.conf(5), Gres: a name, optionally followed by a type, no_consume and a count.
Gres = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)*$"),
    AfterValidator(_gres),
]
UserName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
# An account, or an account and a partition.
Association = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$")
]
Count = Annotated[int, Field(ge=1)]
# Along x, y and z.
Dimensions = tuple[Count, Count, Count]
OptionValue = bool | int | float | str | None
Options = Mapping[
    Word, Annotated[OptionValue | tuple[OptionValue, ...], BeforeValidator(_file_option)]
]
SacctmgrOptions = Mapping[
    Word, Annotated[OptionValue | tuple[OptionValue, ...], BeforeValidator(_option)]
]


def did_you_mean(word: str, known: list[str]) -> str:
    """Return the end of a message about an unknown word: the nearest known word, or all of them."""
    close = difflib.get_close_matches(word.lower(), known, n=1)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; known: {', '.join(known)}" if known else ""


class Model(BaseModel):
    """A part of a scenario: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Site(Model):
    """A network. A gateway that opens only Slurm's ports connects the sites of a scenario."""

    subnet: IPv4Network | None = Field(
        None, description="such as 10.20.0.0/24; default: a free one"
    )
    dns_server: HostName | None = Field(
        None,
        description=(
            "the host that resolves names for the others of the site, which have none in "
            "/etc/hosts: one of a cluster or of accounting, or one of its own; see docs/dns.md"
        ),
    )


class SiteFile(Model):
    """A file of the site, with its text here or next to the scenario."""

    file: ScriptFile | None = Field(
        None,
        description=(
            "the file with its text, in a directory NAME.files next to the scenario, such as "
            "NAME.files/etc/slurm/prolog.sh"
        ),
    )
    text: str = Field("", description="its text, if it is not in a file")


class NodeGroup(Model):
    """Compute nodes of one shape."""

    name: Hostlist = Field(description="hostlist of the nodes, such as c[1-4]")
    cpus: int = Field(1, ge=1, description="CPUs of each node")
    memory: int = Field(500, ge=1, description="RealMemory of each node, in MiB")
    features: tuple[Word, ...] = Field(
        (), description="features that jobs request with --constraint"
    )
    provision: Provision = Field(
        "static", description="who powers them up and down: see docs/elastic.md"
    )
    user_data: SiteFile | None = Field(
        None,
        description=(
            "user-data with which cloud-init initializes nodes that are created as virtual "
            "machines: see docs/vagrant.md"
        ),
    )
    dynamic: bool = Field(
        False, description="slurm.conf does not name them: slurmd -Z registers them with slurmctld"
    )
    gres: tuple[Gres, ...] = Field(
        (),
        description=(
            "such as gpu:a100:4; on hosts without GPUs, copies of /dev/null represent their devices"
        ),
    )
    options: Options = Field(
        {}, description="additional options of the NodeName line; null removes a default"
    )

    def counted_cpus(self, *, with_default: bool = True) -> int:
        """Return the CPUs that slurmctld counts on each node.

        Options override `cpus`. If neither is given, or if they do not fit the sockets, the sockets
        decide: see _parse_nodename() in Slurm's read_config.c. `with_default`: slurm.conf has the
        default of `cpus`.

        >>> options = {"CPUs": None, "Sockets": 2, "CoresPerSocket": 4}
        >>> NodeGroup(name="c1", options=options).counted_cpus()
        8
        """
        options = {name.lower(): str(value) for name, value in self.options.items()}
        sizes = {
            name: size
            for name, value in options.items()
            if (size := conf.number(value)) is not None
        }
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
    default: bool = Field(False, description="the partition of jobs that name none")
    topology: Word | None = Field(
        None, description="the topology that places its jobs; default: the cluster's first"
    )
    options: Options = Field(
        {}, description="additional options of the PartitionName line; null removes a default"
    )


class Switch(Model):
    """A switch of a tree: a leaf switch with nodes, or a switch above others."""

    nodes: Hostlist | None = Field(None, description="hostlist of the nodes of a leaf switch")
    switches: Hostlist | None = Field(None, description="hostlist of the switches below it")


class Torus(Model):
    """A 3-D torus. Jobs get contiguous sub-cubes of it."""

    dims: Dimensions = Field(description="number of nodes along x, y and z")
    nodes: Hostlist = Field(description="hostlist of its nodes; x varies fastest, then y")
    placements: tuple[Dimensions, ...] = Field(
        min_length=1,
        description="sub-cubes that jobs can get; a job of any other size is refused",
    )


class Topology(Model):
    """How the nodes of a cluster are connected: a tree of switches, blocks or toruses.

    See docs/topology.md.
    """

    switches: Mapping[Word, Switch] = Field({}, description="a tree (topology/tree)")
    blocks: Mapping[Word, Hostlist] = Field(
        {}, description="blocks, in order, with their nodes (topology/block)"
    )
    block_sizes: tuple[Count, ...] = Field(
        (),
        description=(
            "nodes of a block, then of the larger blocks that it is combined into; default: "
            "Slurm combines up to 16 blocks"
        ),
    )
    toruses: Mapping[Word, Torus] = Field({}, description="3-D toruses (topology/torus3d)")

    @property
    def plugin(self) -> str:
        """The plugin for this kind of topology."""
        return "tree" if self.switches else "block" if self.blocks else "torus3d"

    def nodes_of(self) -> dict[Path_, tuple[str, ...]]:
        """Return the nodes of each leaf switch, block or torus, by the path of its hostlist."""
        return {
            **{
                ("switches", name, "nodes"): hostlist.expand(switch.nodes)
                for name, switch in self.switches.items()
                if switch.nodes
            },
            **{("blocks", name): hostlist.expand(nodes) for name, nodes in self.blocks.items()},
            **{
                ("toruses", name, "nodes"): hostlist.expand(torus.nodes)
                for name, torus in self.toruses.items()
            },
        }

    def switches_below(self) -> dict[str, tuple[str, ...]]:
        """Return the switches directly below each one; a leaf has none."""
        return {
            name: hostlist.expand(switch.switches) if switch.switches else ()
            for name, switch in self.switches.items()
        }


class Rest(Model):
    """slurmrestd, Slurm's REST API, for clients with a token: see docs/rest.md."""

    host: HostName | None = Field(
        None, description="the host that runs it; default: the controller"
    )
    port: int = Field(
        releases.DEFAULT_PORTS["slurmrestd"],
        ge=1024,
        lt=2**16,
        description="the port on which it listens, at its host's address",
    )
    max_token_life: int | None = Field(
        None,
        ge=1,
        description="longest life of an ordinary user's token, in seconds; default: no limit",
    )


class Script(SiteFile):
    """A program that Slurm runs, a plugin's Lua script, or a file that these read."""

    hosts: Literal["all", "controllers", "nodes"] = Field(
        "all", description="which of the cluster's hosts have it"
    )
    mode: Annotated[str, StringConstraints(pattern="^0[0-7]{3}$")] = Field(
        "0755", description="its permissions; root owns it"
    )


class Installed(Model):
    """Where Slurm comes from. What a part does not name, it takes from the scenario."""

    source: str | None = Field(
        None,
        min_length=1,
        description=(
            "Slurm's source, from which its packages are built once: a tarball or an unpacked "
            "one, relative to the scenario, or a URL; see docs/how-to/your-own-slurm.md"
        ),
    )
    packages: Packages = Field(
        (),
        description=(
            "a directory of your own packages of Slurm, or a list of packages to add to the "
            "hosts: names, and at most one such directory, which has a slash in its name"
        ),
    )
    base: Base | None = Field(
        None,
        description=(
            "the distribution of the hosts, such as debian:trixie, ubuntu:24.04 or rockylinux:9; "
            "without a source or packages, its own Slurm is installed"
        ),
    )

    @property
    def package_directory(self) -> str | None:
        """The directory of Slurm's packages; None if there is none."""
        return next((item for item in self.packages if "/" in item), None)

    @property
    def package_names(self) -> tuple[str, ...]:
        """The names of packages to add from the repositories of the base."""
        return tuple(item for item in self.packages if "/" not in item)


class Part(Installed):
    """A part of a scenario that has a release of its own: a cluster, or slurmdbd."""

    release: Release | None = Field(None, description="Slurm release; default: the scenario's")
    image: str | None = Field(
        None, description="your own Docker image for its hosts; the release is read from it"
    )
    # Where its Slurm comes from, once that is known: see `Scenario.with_origins`.
    _origin: Origin | None = PrivateAttr(None)

    @property
    def origin(self) -> Origin | None:
        """Where its Slurm comes from; None: from its image, or from Debian's packages."""
        return self._origin

    def put_on(self, choice: str) -> Self:
        """Return this part with what a user chose: a release, or an origin with absolute paths."""
        if not origins.is_origin(choice):
            kept = {"source": None, "packages": self.package_names, "base": None}
            changed = self.model_copy(update={"release": choice, **kept})
        else:
            wanted = origins.parse(choice).under(Path.cwd())
            changed = self.model_copy(
                update={
                    "release": None,
                    "image": wanted.image or None,
                    "source": wanted.source or None,
                    "base": wanted.base or None,
                    "packages": (*self.package_names, *filter(None, [wanted.packages])),
                }
            )
        changed._origin = None
        return changed

    def put_at(self, origin: Origin) -> Self:
        """Return this part with Slurm from an origin."""
        update = {"release": origin.release, "image": origin.image or None}
        changed = self.model_copy(update=update)
        changed._origin = origin
        return changed


class Account(Model):
    """A bank account in the accounting database."""

    parent: Word | None = Field(None, description="the account above it; default: root")
    options: SacctmgrOptions = Field(
        {}, description="additional sacctmgr options, such as Fairshare or GrpTRES"
    )


class UserAccounts(Model):
    """What a user may charge and request, on all clusters or on one."""

    accounts: tuple[Word, ...] = Field(
        (), description="accounts that the user can charge; the first is the default"
    )
    qos: tuple[Word, ...] = Field(
        (), description="QOS that the user can request in addition to normal"
    )
    associations: Mapping[Association, SacctmgrOptions] = Field(
        {},
        description="additional sacctmgr options of the user's association with an account, such "
        "as Fairshare or MaxJobs, by account; ACCOUNT:PARTITION is an additional association, "
        "for that partition only",
    )

    def accounts_of_associations(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """Return the options of each association, by account and partition ("" for none)."""
        named = {
            (account, partition): options
            for name, options in self.associations.items()
            for account, _, partition in [name.partition(":")]
        }
        return {**{(account, ""): {} for account in self.accounts}, **named}

    @property
    def has_partitions(self) -> bool:
        """Whether some associations apply in one partition only."""
        return any(":" in name for name in self.associations)

    @property
    def default_account(self) -> str | None:
        """The account that jobs charge if they name none."""
        return next((account for account, _ in self.accounts_of_associations()), None)


class Cluster(Part):
    """One Slurm cluster: a slurmctld and its slurmds."""

    controller: HostName = Field(description="the host that runs slurmctld; it can also be a node")
    backup_controllers: tuple[HostName, ...] = Field(
        (),
        description=(
            "hosts whose slurmctld takes over, in this order; they share StateSaveLocation with "
            "the controller"
        ),
    )
    nodes: Annotated[tuple[NodeGroup, ...], BeforeValidator(_nodes)] = Field(
        description="its compute nodes, a group for each shape"
    )
    hosts: Hostlist | None = Field(
        None,
        description=(
            "hosts that share the nodes that are always up, each with several slurmds; default: "
            "one host for each node"
        ),
    )
    login: Hostlist | None = Field(
        None,
        description=(
            "its login hosts, such as login[1-2], on which users submit jobs and no slurmd runs: "
            "see docs/login.md"
        ),
    )
    pam_slurm_adopt: bool = Field(
        False,
        description=(
            "users can log in to a node only while a job of theirs runs there: see docs/login.md"
        ),
    )
    nss_slurm: bool = Field(
        False,
        description=(
            "processes of jobs get their user and its groups from slurmstepd: see docs/directory.md"
        ),
    )
    partitions: Mapping[Word, Partition] = Field(
        {"main": Partition(default=True)},
        min_length=1,
        description="its partitions; default: main, with all nodes",
    )
    topology: Mapping[Word, Topology] = Field(
        {},
        description="how its nodes are connected; partitions that name no topology use the first",
    )
    site: Word | None = Field(
        None, description="the site of all its hosts; required if there are several sites"
    )
    apptainer: bool = Field(
        False, description="install Apptainer on its nodes, if Debian packages it for the release"
    )
    configless: bool = Field(
        False, description="nodes fetch their configuration from slurmctld instead of files"
    )
    features: tuple[Word, ...] = Field(
        (), description="features for sbatch --cluster-constraint in a federation"
    )
    defaults: bool = Field(
        True,
        description=(
            "start from the harness's defaults, which the options override; if false, files "
            "contain only what the scenario says"
        ),
    )
    options: Options = Field(
        {}, description="additional options of slurm.conf; null removes a default"
    )
    lines: tuple[Options, ...] = Field(
        (),
        description=(
            "additional lines of slurm.conf, each as its options in order, such as NodeSet and "
            "Feature"
        ),
    )
    known_problems: tuple[Word, ...] = Field(
        (),
        description=(
            "options about which its daemons log errors or warnings that do not fail the checks; "
            "`harness check` finds them"
        ),
    )
    files: Mapping[FileName, str] = Field(
        {},
        description=(
            "additional files next to slurm.conf on every host, such as gres.conf, with their "
            "text; a file that begins with #! is executable"
        ),
    )
    scripts: Mapping[ScriptPath, Script] = Field(
        {}, description="programs and Lua scripts of the cluster, by their path on its hosts"
    )
    spank_plugins: Mapping[PluginPath, SiteFile] = Field(
        {},
        description=(
            "SPANK plugins, by the path that plugstack.conf names, with their source in C; they "
            "are compiled for the cluster's release, in an image that is built once"
        ),
    )
    stand_ins: Mapping[ScriptPath, ScriptPath | None] = Field(
        {},
        description=(
            "programs that the scripts call, by path; hosts that lack one get a link to the given "
            "program or, for null, a program that only logs its calls; your own machines get none"
        ),
    )
    cgroup: Options = Field(
        {}, description="additional options of cgroup.conf; null removes a default"
    )
    oci: Options | None = Field(
        None,
        description=(
            "run users' containers (--container): additional options of oci.conf, null removes a "
            "default; default: no containers; see docs/containers.md"
        ),
    )
    rest: Rest | None = Field(
        None, description="slurmrestd, for clients with a token: see docs/rest.md"
    )
    kubernetes: bool = Field(
        False, description="Kubernetes places pods on its nodes as well: see docs/hybrid.md"
    )
    accounts: Mapping[Word, Account] | None = Field(
        None,
        description=(
            "bank accounts of this cluster, in place of those of `accounting`; default: the same "
            "accounts and limits on every cluster"
        ),
    )
    associations: Mapping[UserName, UserAccounts] | None = Field(
        None,
        description=(
            "what each user may charge and request on this cluster, in place of what `users` says; "
            "users who are not named may use nothing"
        ),
    )
    reservations: Mapping[Word, SacctmgrOptions] = Field(
        {},
        description=(
            "reservations to create once slurmctld answers, each as the options of `scontrol "
            "create reservation`, such as StartTime, Duration, Nodes and Users"
        ),
    )

    def node_names(self) -> tuple[str, ...]:
        """Return the names of all nodes, in the scenario's order."""
        return tuple(name for group in self.nodes for name in hostlist.expand(group.name))

    def rest_host(self) -> str:
        """Return the host that runs slurmrestd, if any does."""
        return (self.rest and self.rest.host) or self.controller

    def user_data_of(self) -> dict[str, str]:
        """Return the user-data of each node that has any."""
        return {
            name: group.user_data.text
            for group in self.nodes
            if group.user_data
            for name in hostlist.expand(group.name)
        }

    def login_hosts(self) -> tuple[str, ...]:
        """Return the names of all login hosts."""
        return hostlist.expand(self.login) if self.login else ()

    def provision_of(self) -> dict[str, Provision]:
        """Return how each node is provisioned."""
        return {
            name: group.provision for group in self.nodes for name in hostlist.expand(group.name)
        }

    def room_for_nodes(self) -> bool:
        """Return whether slurmctld accepts nodes that slurm.conf does not name."""
        return any(option.lower() == "maxnodecount" for option in self.options)

    def gpus(self) -> dict[str, int]:
        """Return the number of GPUs of each static node that has any."""
        return {
            name: count
            for group in self.nodes
            if group.provision == "static" and (count := gpus_of(group.gres))
            for name in hostlist.expand(group.name)
        }

    def static_nodes(self) -> dict[str, int]:
        """Return the CPUs of each static node, as slurmctld counts them."""
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
        """Return the name of the topology that places a partition's jobs.

        None if the cluster has no topology.
        """
        return partition.topology or next(iter(self.topology), None)

    def elastic(self) -> bool:
        """Return whether nodes come and go."""
        return any(group.provision != "static" for group in self.nodes)

    def nodes_on(self) -> dict[str, tuple[str, ...]]:
        """Return the hosts with the nodes whose slurmd each runs.

        A host runs the node of its name, or an even share of all nodes that are always up.
        """
        provision_of = self.provision_of()
        alone: dict[str, tuple[str, ...]] = {
            node: (node,)
            for node, provision in provision_of.items()
            if provision != "static" or not self.hosts
        }
        if not self.hosts:
            return alone
        nodes = [node for node in provision_of if node not in alone]
        hosts = hostlist.expand(self.hosts)
        bounds = [len(nodes) * index // len(hosts) for index in range(len(hosts) + 1)]
        shared = {
            host: (*nodes[bounds[index] : bounds[index + 1]],) for index, host in enumerate(hosts)
        }
        return shared | alone


class Qos(Model):
    """A quality of service."""

    options: SacctmgrOptions = Field(
        {}, description="sacctmgr options, such as Priority or MaxJobsPerUser"
    )


class Resource(Model):
    """Licenses that slurmdbd divides among clusters."""

    server: Word = Field(description="the license server that owns them")
    count: int = Field(ge=0, description="number of licenses")
    options: SacctmgrOptions = Field({}, description="additional sacctmgr options, such as Flags")
    clusters: Mapping[ClusterName, int] = Field(
        {},
        description=(
            "what each cluster may use: a percentage, or with Flags: absolute a number of licenses"
        ),
    )


class Accounting(Part):
    """One host with MariaDB and slurmdbd, for all clusters of the scenario."""

    host: HostName = Field("accounting", description="the host that runs MariaDB and slurmdbd")
    backup: HostName | None = Field(
        None, description="a host whose slurmdbd takes over; it uses the same database"
    )
    site: Word | None = Field(
        None, description="the site of the host; required if there are several sites"
    )
    accounts: Mapping[Word, Account] = Field({}, description="bank accounts, in any order")
    qos: Mapping[Word, Qos] = Field({}, description="qualities of service in addition to normal")
    resources: Mapping[Word, Resource] = Field(
        {}, description="licenses of a server, by name, which jobs request as NAME@SERVER"
    )
    slurm_user_accounts: tuple[Word, ...] = Field(
        (), description="accounts that SlurmUser can charge: without one it cannot submit jobs"
    )
    job_completion: bool = Field(
        False, description="also write job completion records (jobcomp/mysql)"
    )
    slurmdbd: Options = Field(
        {}, description="additional options of slurmdbd.conf; null removes a default"
    )

    def accounts_parents_first(self) -> list[str]:
        """Return the names of all accounts, each after its parent.

        Raises ValueError, with the name of an account that is its own ancestor.
        """
        graph: TopologicalSorter[str] = TopologicalSorter()
        for name, account in self.accounts.items():
            graph.add(name)
            if account.parent and account.parent in self.accounts:
                graph.add(name, account.parent)
        try:
            return list(graph.static_order())
        except CycleError as error:
            raise ValueError(str(error.args[1][0])) from error


class Monitoring(Model):
    """Prometheus, which scrapes the metrics of every slurmctld: see docs/monitoring.md."""

    host: HostName = Field(
        "monitoring",
        description="the host that runs Prometheus; a host of a cluster or of accounting can do so",
    )
    site: Word | None = Field(
        None, description="the site of a host of its own; required if there are several sites"
    )
    port: int = Field(
        9090, ge=1024, lt=2**16, description="the port on which it listens, at its host's address"
    )
    scrape_interval: int = Field(15, ge=1, description="seconds between two scrapes of a target")
    targets: Mapping[Word, tuple[Endpoint, ...]] = Field(
        {},
        description=(
            "targets in addition to the controllers, such as exporters of your own: HOST:PORT of "
            "each, by the name of their job; they serve /metrics"
        ),
    )


def _ordinary(uid: int) -> int:
    # Daemons of Debian and users of systemd have these.
    if 60000 < uid < 65536:
        raise ValueError("60001 to 65535 are reserved for the system")
    return uid


class UserDirectory(Model):
    """An LDAP server (slapd) with the users of all hosts, which use sssd: see docs/directory.md."""

    host: HostName = Field(
        "directory",
        description="the host that runs slapd; a host of a cluster or of accounting can do so",
    )
    site: Word | None = Field(
        None, description="the site of a host of its own; required if there are several sites"
    )


class User(UserAccounts):
    """An ordinary user, with the same uid on every host."""

    uid: Annotated[int, AfterValidator(_ordinary)] = Field(
        ge=1000,
        lt=2**31,
        description="the same on every host; 60001 to 65535 are reserved for the system",
    )
    coordinates: tuple[Word, ...] = Field((), description="accounts that the user coordinates")
    admin: Literal["Operator", "Administrator"] | None = Field(
        None, description="AdminLevel in the accounting database; default: none"
    )

    @property
    def privileged(self) -> bool:
        """Whether Slurm lets the user change jobs of others."""
        return bool(self.admin or self.coordinates)


class Group(Model):
    """A group of users, with the same gid on every host."""

    gid: int = Field(ge=1, lt=2**31, description="the same on every host")
    users: tuple[UserName, ...] = Field((), description="users who belong to it")


class Federation(Model):
    """Clusters that schedule jobs together."""

    clusters: tuple[str, ...] = Field(
        min_length=1, description="in the order of their federation ids, from 1"
    )


class ScheduledFault(Model):
    """A fault that is injected at a given time and healed again."""

    at: float = Field(ge=0, description="seconds after the first submission")
    lasts: float = Field(ge=0, description="seconds until it is healed")
    fault: str = Field(
        description="as in `harness fault inject`, such as kill-daemon ctl slurmctld"
    )
    saved: bool = Field(
        False,
        description=(
            "before the fault, submit nothing until every slurmctld has saved its state, which "
            "takes up to 5 s"
        ),
    )
    quiet: bool = Field(
        False, description="submit nothing until it is healed and broken connections are closed"
    )


class Rehearsal(Model):
    """Jobs of many kinds while faults come and go, and a check of what happened.

    See docs/rehearsal.md.
    """

    jobs: int = Field(100, ge=1, description="number of jobs; an array counts as one")
    seconds: float = Field(60, gt=0, description="seconds over which they are submitted")
    seed: int = Field(1, description="seed of the jobs: the same seed generates the same jobs")
    faults: tuple[ScheduledFault, ...] = Field((), description="faults and their times")


class Checks(Model):
    """How the checks use the clusters."""

    submit: tuple[Annotated[str, StringConstraints(pattern=r"^--?[A-Za-z][^\r\n]*$")], ...] = Field(
        (),
        description=(
            "options of sbatch, srun and salloc that every job of the checks needs, such as "
            "--time=5, --account=physics or --reservation=tests; options of a check override them"
        ),
    )
    mpi: tuple[Word, ...] = Field(
        (),
        description=(
            "plugins with which srun starts the MPI programs of the checks (srun --mpi), such as "
            "pmix; Python on the nodes needs mpi4py: see docs/mpi.md"
        ),
    )
    scheduling: bool = Field(
        False,
        description=(
            "also check how jobs are scheduled: dependencies, arrays, heterogeneous jobs, "
            "requeueing, time limits, sharing of nodes and scrontab: see docs/scheduling.md"
        ),
    )


class Scenario(Installed):
    """Slurm clusters as an administrator describes them."""

    description: str = Field("", description="one line that says what the scenario is for")
    release: Release = Field(
        releases.DEFAULT,
        description="Slurm release of every cluster and slurmdbd that does not name its own",
    )
    auth: Literal["munge", "slurm"] = Field(
        "munge",
        description=(
            "how all daemons and commands authenticate: with munge, or with Slurm's own plugin "
            "(auth/slurm) and no munge: see docs/login.md"
        ),
    )
    sites: Mapping[Word, Site] = Field(
        {"site": Site()}, min_length=1, description="networks that a gateway connects; default: one"
    )
    clusters: Mapping[ClusterName, Cluster] = Field(
        min_length=1, description="the clusters, by ClusterName"
    )
    accounting: Accounting | None = Field(
        None, description="a host with slurmdbd; default: jobs are not recorded"
    )
    monitoring: Monitoring | None = Field(
        None,
        description="Prometheus, which scrapes the metrics of every slurmctld; default: none",
    )
    users: Mapping[UserName, User] = Field(
        {}, description="ordinary users, who submit jobs; without any, checks submit none"
    )
    directory: UserDirectory | None = Field(
        None,
        description="an LDAP server that has the users and groups; default: each host's own files",
    )
    groups: Mapping[UserName, Group] = Field(
        {}, description="groups of users, for example for AllowGroups of a partition"
    )
    federations: Mapping[Word, Federation] = Field(
        {}, description="clusters that schedule jobs together"
    )
    shared_directories: SharedDirectories = Field(
        {},
        description=(
            "directories that all hosts share, such as /home; with a size (`/home: 100M`), a small "
            "disk in memory that can be filled up; requires that all hosts are on one Docker "
            "engine, or virtual machines of one site"
        ),
    )
    rehearsal: Rehearsal | None = Field(
        None, description="jobs that users submit while faults come and go"
    )
    checks: Checks = Field(Checks(), description="how the checks use the clusters")
    machines: Mapping[HostName, Destination] = Field(
        {},
        description="[USER@]ADDRESS[:PORT] of each host, for --provider existing: docs/existing.md",
    )
    disks: Mapping[HostName, Mapping[Directory, Size]] = Field(
        {},
        description=(
            "for each host, directories on separate small disks (such as 600M), which can be "
            "filled up"
        ),
    )

    def of_cluster(self, name: str) -> Scenario:
        """Return this scenario with a cluster's own accounts and associations as everyone's."""
        cluster = self.clusters[name]
        changed: dict[str, Any] = {}
        if cluster.accounts is not None and self.accounting:
            update = {"accounts": cluster.accounts}
            changed["accounting"] = self.accounting.model_copy(update=update)
        if (own := cluster.associations) is not None:
            nothing = UserAccounts()
            changed["users"] = {
                user: person.model_copy(update=dict(own.get(user, nothing)))
                for user, person in self.users.items()
            }
        return self.model_copy(update=changed) if changed else self

    def accounting_trees(self) -> list[tuple[Scenario, list[str]]]:
        """Return the different accounting trees, each as `of_cluster` does, and their clusters."""
        common = [
            name
            for name, cluster in self.clusters.items()
            if cluster.accounts is None and cluster.associations is None
        ]
        own = [(self.of_cluster(name), [name]) for name in self.clusters if name not in common]
        return [*([(self, common)] if common else []), *own]

    def groups_of(self, user: str) -> set[str]:
        """Return the groups that a user is in: the one of the same name, and those that name it."""
        return {user, *(name for name, group in self.groups.items() if user in group.users)}

    def release_of(self, part: Cluster | Accounting) -> str:
        """Return the release of a cluster or of slurmdbd."""
        return part.release or self.release

    def dns_servers(self) -> dict[str, str]:
        """Return the hosts that resolve names, by their sites."""
        return {name: site.dns_server for name, site in self.sites.items() if site.dns_server}

    def user_data(self) -> Iterator[Path_]:
        """Yield the places of user-data for cloud-init."""
        for name, cluster in self.clusters.items():
            for index, group in enumerate(cluster.nodes):
                if group.user_data:
                    yield "clusters", name, "nodes", index, "user_data"

    def shared_clusters(self) -> dict[str, Rest]:
        """Return the slurmrestd of each cluster that is shared with Kubernetes."""
        return {
            name: cluster.rest
            for name, cluster in self.clusters.items()
            if cluster.kubernetes and cluster.rest
        }

    def parts(self) -> dict[str, Cluster | Accounting]:
        """Return the parts that have a release: the clusters by name, and slurmdbd."""
        return {**self.clusters, **({SLURMDBD: self.accounting} if self.accounting else {})}

    def wanted(self, part: Part) -> Wanted:
        """Return what a part's Slurm should come from, by its own keys or the scenario's.

        Nothing stands for its image, or for Debian's packages of its release.
        """
        if part.image:
            return Wanted()
        own = part.source or part.package_directory
        whole = part if own or part.release else self
        return Wanted(
            whole.source or "", whole.package_directory or "", part.base or self.base or ""
        )

    def with_origins(self, origin_of: Mapping[str, Origin]) -> Scenario:
        """Return this scenario with known origins for some of its `parts`."""
        return self._with_parts(
            {
                name: part.put_at(origin_of[name])
                for name, part in self.parts().items()
                if name in origin_of
            }
        )

    def _with_parts(self, changed: Mapping[str, Part]) -> Scenario:
        """Return this scenario with other parts in place of those with their names."""
        clusters = {name: changed.get(name, cluster) for name, cluster in self.clusters.items()}
        accounting = changed.get(SLURMDBD, self.accounting)
        return self.model_copy(update={"clusters": clusters, "accounting": accounting})

    def put_on(self, choices: Sequence[str]) -> Scenario:
        """Return this scenario with the releases or origins that a user chose.

        A choice is "26.05" or "source:FILE" for all parts, or "aws=26.05" for one.
        """
        scenario = self
        for choice in choices:
            name, what = split_choice(choice)
            if name and name not in scenario.parts():
                raise UsageError(
                    f'--release {choice}: no cluster "{name}"'
                    f"{did_you_mean(name, list(scenario.parts()))}"
                )
            scenario = scenario._with_parts(
                {
                    part_name: part.put_on(what)
                    for part_name, part in scenario.parts().items()
                    if name in {"", part_name}
                }
            )
        return scenario


def split_choice(choice: str) -> tuple[str, str]:
    """Split [NAME=]RELEASE or [NAME=]ORIGIN; UsageError if it is neither a release nor an origin.

    >>> split_choice("aws=26.05"), split_choice("source:a=b.tar.bz2")
    (('aws', '26.05'), ('', 'source:a=b.tar.bz2'))
    """
    named = re.match(r"([A-Za-z0-9_-]*)=", choice)
    name, what = (named[1], choice[named.end() :]) if named else ("", choice)
    try:
        if origins.is_origin(what):
            origins.parse(what)
        else:
            _release(what)
    except NotAnOrigin as error:
        raise UsageError(str(error), hint=error.hint) from error
    except ValueError as error:
        is_path = "/" in what or ".tar" in what
        hint = f"a source is named as source:{what}, packages as packages:DIRECTORY"
        raise UsageError(str(error), hint=hint if is_path else None) from error
    return name, what


def schema() -> dict[str, Any]:
    """Return the JSON Schema of scenario files, for editors.

    It cannot express contradictions between parts.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(),
    }
