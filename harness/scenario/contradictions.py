"""Contradictions between parts of a scenario that are valid by themselves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Any

from harness import origins, releases
from harness.parsing import hostlist, topology_rules
from harness.scenario.model import (
    SLURMDBD,
    Account,
    Accounting,
    Cluster,
    Dimensions,
    Options,
    Path_,
    Scenario,
    Topology,
    UserAccounts,
    did_you_mean,
)

# The file and the key with which a release introduced each kind of topology. torus3d is not the
# older topology/3d_torus, which ends a slurmctld that was built without three dimensions, such as
# Debian's.
_TOPOLOGY_KEYS = {
    "tree": ("topology.conf", "SwitchName"),
    "block": ("topology.conf", "BlockSizes"),
    "torus3d": ("topology.yaml", "torus3d"),
}
_SECONDS, _MEMORY = ("resumetimeout", "suspendtimeout"), ("defmempercpu",)
# The form of options that the harness writes to scripts, units, packet filters or SQL.
_FORMS = (
    ({"slurmuser", "slurmduser"}, r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "the name of a user"),
    (
        {"slurmctldport", "srunportrange"},
        r"[0-9]{1,5}(-[0-9]{1,5})?",
        "a port or a range such as 6817-6820",
    ),
    ({"slurmdport", "dbdport"}, r"[0-9]{1,5}", "a port"),
    ({"storageloc"}, r"[A-Za-z0-9_][A-Za-z0-9_.$-]*", "the name of a database"),
    ({*_SECONDS}, r"[0-9]{1,9}", "a number of seconds"),
    ({*_MEMORY}, r"[0-9]{1,12}", "a number of MiB"),
    (
        {"statesavelocation", "slurmdspooldir"},
        r"/([A-Za-z0-9_.,:=@+~/-]|%[hn])*",
        "an absolute path of letters, digits and .,:=@+~_- (%h and %n stand for host and node)",
    ),
    (
        {
            *("logfile", "pidfile"),
            *("slurmctldpidfile", "slurmctldlogfile", "slurmdpidfile", "slurmdlogfile"),
        },
        # Slurm expands no variable of a shell: a directory may be named $USER.
        r"/([A-Za-z0-9_.,:=@+~$/-]|%[hn])*",
        "an absolute path of letters, digits and .,:=@+~_$- (%h and %n stand for host and node)",
    ),
)
# Characters that cannot be in the command with which slurmd registers a dynamic node.
_NOT_IN_A_COMMAND = re.compile(r"[\s'\"\\$%]")
# Users of Debian's base system, and of the daemons' packages.
SYSTEM_USERS = frozenset(
    {
        "root",
        "daemon",
        "bin",
        "sys",
        "sync",
        "games",
        "man",
        "lp",
        "mail",
        "news",
        "uucp",
        "proxy",
        "www-data",
        "backup",
        "list",
        "irc",
        "nobody",
        "_apt",
        "messagebus",
        "sshd",
        "mysql",
        "munge",
        "slurm",
        "slurmrestd",
        "dnsmasq",
        "openldap",
        "prometheus",
        "sssd",
    }
)
# How user-data begins: INCLUSION_TYPES_MAP in cloud-init's handlers/__init__.py, or a header of a
# MIME message.
_USER_DATA = re.compile(
    r"\s*(#!|#cloud-(config|boothook)|#include|#part-handler|## template: jinja"
    r"|(content-type|mime-version):)",
    re.IGNORECASE,
)
# What `harness render` writes next to the hosts' directories.
_BESIDE_HOSTS = {"manifest.json", "install.sh", "kubernetes"}
# hostname(7).
_LONGEST_HOST_NAME = 64
# The ports of slurmds that share a host begin here; Linux uses those from 32768 on for clients.
FIRST_NODE_PORT = 20001
MOST_NODES_OF_A_HOST = 32768 - FIRST_NODE_PORT


def contradictions(scenario: Scenario, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """Yield contradictions between parts that are valid by themselves.

    Names are taken from `raw`, so that a cluster with another problem still counts as defined.
    """
    if SLURMDBD in scenario.clusters:
        yield ("clusters", SLURMDBD), "a cluster cannot have the name of the daemon"
    yield from _wrong_hosts(scenario, raw)
    yield from _wrong_sites(scenario, raw)
    yield from _wrong_federations(scenario, raw)
    yield from _wrong_accounting(scenario, raw)
    for name, cluster in scenario.clusters.items():
        only = (
            (*_SECONDS, *_MEMORY) if cluster.kubernetes else _SECONDS if cluster.elastic() else ()
        )
        yield from _wrong_values(cluster.options, ("clusters", name, "options"), only)
    if scenario.accounting:
        yield from _wrong_values(scenario.accounting.slurmdbd, ("accounting", "slurmdbd"), ())
    yield from _hidden_shared_directories(scenario)


def _hidden_shared_directories(scenario: Scenario) -> Iterator[tuple[Path_, str]]:
    """Yield what would be mounted over a shared directory, so that a host no longer shares it."""
    for host, disks in scenario.disks.items():
        for disk in disks:
            for directory in scenario.shared_directories:
                if f"{directory}/".startswith(f"{disk}/"):
                    yield ("disks", host, disk), f"hides the shared {directory}"


def _wrong_values(options: Options, at: Path_, only: Sequence[str]) -> Iterator[tuple[Path_, str]]:
    """Yield values that cannot be written to other files than Slurm's, where they are needed too.

    Times and memory are written there only in some scenarios: `only` names these options, in lower
    case.
    """
    for name, value in options.items():
        key = name.lower()
        if value in {None, ""} or (key in {*_SECONDS, *_MEMORY} and key not in only):
            continue
        for names, pattern, what in _FORMS:
            if key in names and not re.fullmatch(pattern, str(value)):
                yield (*at, name), f"{str(value)!a} is not {what}"


def wrong_releases(scenario: Scenario) -> Iterator[tuple[Path_, str]]:
    """Yield clusters whose release lacks what they need, or that slurmdbd cannot serve.

    Slurm's guide to upgrades explains which releases slurmdbd serves.
    """
    yield from _wrong_authentication(scenario)
    yield from _wrong_directory(scenario)
    for name, cluster in scenario.clusters.items():
        release = scenario.release_of(cluster)
        most, count = releases.get(release).most_nodes, len(cluster.node_names())
        if most and count > most:
            yield (
                (*place_of(name), "nodes"),
                f"{count} nodes, but slurmctld {release} accepts at most {most}; a federation "
                "can have more",
            )
        if cluster.rest and not releases.get(release).tokens_are_safe:
            yield (
                (*place_of(name), "rest"),
                f"release {release} neither checks the token of each request nor limits its "
                f"life; {_first('tokens_are_safe')} does",
            )
        origin = cluster.origin
        own = cluster.image or (origin and (origin.source or origin.packages))
        if cluster.nss_slurm and not own:
            yield (
                (*place_of(name), "nss_slurm"),
                "the distribution's packages of Slurm lack it; use a source, your own packages or "
                "your own image: see docs/how-to/your-own-slurm.md",
            )
        if cluster.oci is not None and "oci.conf" not in releases.get(release).options:
            yield (
                (*place_of(name), "oci"),
                f"release {release} cannot run containers; {releases.first('oci.conf')} can",
            )
        if cluster.kubernetes and not releases.get(release).rest_reports_allocations:
            since = _first("rest_reports_allocations")
            yield (
                (*place_of(name), "kubernetes"),
                f"slurmrestd {release} does not report what jobs have; {since} does",
            )
    if not scenario.accounting:
        return
    slurmdbd = scenario.release_of(scenario.accounting)
    window = releases.get(slurmdbd).serves
    for name, cluster in scenario.clusters.items():
        release = scenario.release_of(cluster)
        at = (*place_of(name), "release")
        if release > slurmdbd:
            rule = "slurmdbd must be at least as new as every slurmctld it serves"
        elif release not in window:
            earlier = len(window) - 1
            rule = (
                f"slurmdbd {slurmdbd} serves {', '.join(window)}, its own release and the "
                f"{earlier} before it"
            )
        else:
            continue
        yield at, f"{release}, but slurmdbd is {slurmdbd}; rule: {rule}"


def _wrong_directory(scenario: Scenario) -> Iterator[tuple[Path_, str]]:
    """Yield the parts whose distribution cannot have users from a directory."""
    for name, part in scenario.parts().items() if scenario.directory else ():
        release = scenario.release_of(part)
        base = part.origin.base if part.origin else origins.default_base(release)
        if not part.image and not origins.base(base).has_ldap:
            yield (
                ("directory",),
                f"{base}, on which {name} has Slurm {release}, has no sssd: Debian 12 and 13 do, "
                "with 22.05, 24.11, or a source",
            )


def _wrong_authentication(scenario: Scenario) -> Iterator[tuple[Path_, str]]:
    """Yield what keeps a scenario from using auth/slurm."""
    if scenario.auth != "slurm":
        return
    able = [
        name
        for name in releases.KNOWN
        if "slurm" in releases.get(name).plugins.get("auth", frozenset())
    ]
    for name, part in scenario.parts().items():
        release = scenario.release_of(part)
        if release not in able:
            yield ("auth",), f"release {release} of {name} has no auth/slurm; {', '.join(able)} do"
    for name, cluster in scenario.clusters.items():
        if not cluster.defaults:
            yield (*place_of(name), "defaults"), "auth: slurm requires the defaults, with AuthType"
        if cluster.login and not releases.get(scenario.release_of(cluster)).has_sackd:
            yield (
                (*place_of(name), "login"),
                f"auth: slurm requires sackd, which is packaged from {_first('has_sackd')} on",
            )


def _first(behaviour: str) -> str:
    """Return the first release that has a behaviour."""
    return next(name for name in releases.KNOWN if getattr(releases.get(name), behaviour))


def place_of(part: str) -> Path_:
    """Return the place of a part in the scenario file."""
    return ("accounting",) if part == SLURMDBD else ("clusters", part)


def _wrong_hosts(scenario: Scenario, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    owner: dict[str, str] = {}
    if scenario.accounting and not _may_run_slurmdbd(scenario, scenario.accounting):
        owner[scenario.accounting.host] = "accounting.host"
    if scenario.accounting and scenario.accounting.backup:
        yield from _claim(
            owner, ("accounting", "backup"), "host", scenario.accounting.backup, "accounting.backup"
        )
    for name, cluster in scenario.clusters.items():
        yield from _wrong_controllers(cluster, name, owner)
        yield from _wrong_nodes(scenario, name, raw)
        yield from _wrong_topology(cluster, name)
        yield from _wrong_oci(cluster, ("clusters", name))
        yield from _wrong_rest(cluster, name, owner)
        if cluster.kubernetes:
            yield from _wrong_kubernetes(scenario, name)
        if cluster.packages and cluster.image:
            yield (
                ("clusters", name, "packages"),
                "are for the harness's image; install them in your own image",
            )
        if cluster.spank_plugins and cluster.image:
            yield (
                ("clusters", name, "spank_plugins"),
                "are compiled in the harness's image; install them in your own image",
            )
        if cluster.login:
            place = ("clusters", name, "login")
            yield from _claim(owner, place, "host", cluster.login, f"clusters.{name}.login")
        if cluster.pam_slurm_adopt:
            yield from _wrong_pam_slurm_adopt(cluster, ("clusters", name, "pam_slurm_adopt"))
        if cluster.nss_slurm:
            yield from _wrong_nss_slurm(cluster, ("clusters", name))
        yield from _wrong_shared_hosts(cluster, name, owner)
        # Nodes that share hosts only need to differ from one another.
        of_shared: dict[str, str] = {}
        for index, group in enumerate(cluster.nodes):
            at = ("clusters", name, "nodes", index, "name")
            owner_of_node = of_shared if cluster.hosts and group.provision == "static" else owner
            yield from _claim(owner_of_node, at, "node", group.name, f"clusters.{name}")
        yield from _wrong_partitions(cluster, name)
    services: list[tuple[Path_, str]] = [
        (("sites", site, "dns_server"), server) for site, server in scenario.dns_servers().items()
    ]
    for key, service in (("monitoring", scenario.monitoring), ("directory", scenario.directory)):
        if service:
            services.append(((key, "host"), service.host))
    for where, host in services:
        owner.setdefault(host, ".".join(map(str, where)))
        if any(
            cluster.provision_of().get(host, "static") != "static"
            for cluster in scenario.clusters.values()
        ):
            yield where, f"{host} is not always up"
    if scenario.directory and not scenario.users:
        yield ("directory",), "there are no users"
    for key, hosts in (("disks", scenario.disks), ("machines", scenario.machines)):
        for host in {*hosts} - {*owner}:
            yield (key, host), f'no host "{host}"{did_you_mean(host, list(owner))}'


def _wrong_pam_slurm_adopt(cluster: Cluster, place: Path_) -> Iterator[tuple[Path_, str]]:
    if not cluster.login:
        yield place, "requires login hosts, from which users log in to nodes: login: login1"
    if cluster.hosts:
        yield place, "looks for the jobs of one slurmd: nodes cannot share hosts (hosts)"


def _wrong_nss_slurm(cluster: Cluster, place: Path_) -> Iterator[tuple[Path_, str]]:
    if cluster.hosts:
        yield (
            (*place, "nss_slurm"),
            "asks the steps of one slurmd: nodes cannot share hosts (hosts)",
        )
    options = {name.lower(): str(value).lower() for name, value in cluster.options.items()}
    given = options.get("launchparameters", "enable_nss_slurm" if cluster.defaults else "")
    if "enable_nss_slurm" not in given:
        yield (*place, "nss_slurm"), "requires LaunchParameters: enable_nss_slurm"


def _wrong_controllers(
    cluster: Cluster, name: str, owner: dict[str, str]
) -> Iterator[tuple[Path_, str]]:
    here = f"clusters.{name}"
    if cluster.controller in owner:
        yield (
            ("clusters", name, "controller"),
            f"host {cluster.controller} is already {owner[cluster.controller]}",
        )
    owner[cluster.controller] = f"{here}.controller"
    for index, backup in enumerate(cluster.backup_controllers):
        at = ("clusters", name, "backup_controllers", index)
        yield from _claim(owner, at, "host", backup, f"{here}.backup_controllers")
        if cluster.elastic():
            yield (
                at,
                "cannot power nodes: a cluster whose nodes come and go has a single controller",
            )


def _wrong_nodes(scenario: Scenario, name: str, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    cluster = scenario.clusters[name]
    named = cluster.nodes or raw["clusters"][name].get("nodes")
    if not named and not cluster.room_for_nodes():
        yield ("clusters", name, "nodes"), "a cluster needs at least one node"
    for file in cluster.files:
        if (path := f"/etc/slurm/{file}") in cluster.scripts:
            yield ("clusters", name, "scripts", path), f"files already has {file}"
    yield from _wrong_provision(cluster, ("clusters", name, "nodes"))
    yield from _wrong_dynamic(scenario, cluster, ("clusters", name))


def _wrong_oci(cluster: Cluster, at: Path_) -> Iterator[tuple[Path_, str]]:
    if cluster.oci is None:
        return
    if not cluster.defaults:
        yield (*at, "oci"), "requires the defaults; without them, write oci.conf under files"
    if "oci.conf" in cluster.files:
        yield (*at, "files", "oci.conf"), "is generated from oci; remove it here"


def _wrong_rest(cluster: Cluster, name: str, owner: dict[str, str]) -> Iterator[tuple[Path_, str]]:
    if cluster.rest is None:
        return
    at = ("clusters", name, "rest")
    if not cluster.defaults:
        yield at, "requires the defaults, with AuthAltTypes"
    if cluster.rest.host not in {None, cluster.controller}:
        yield from _claim(owner, (*at, "host"), "host", cluster.rest.host, f"clusters.{name}")


def _wrong_shared_hosts(
    cluster: Cluster, name: str, owner: dict[str, str]
) -> Iterator[tuple[Path_, str]]:
    if not cluster.hosts:
        return
    at = ("clusters", name, "hosts")
    yield from _claim(owner, at, "host", cluster.hosts, f"clusters.{name}")
    nodes = [node for node, how in cluster.provision_of().items() if how == "static"]
    if (count := len(hostlist.expand(cluster.hosts))) > len(nodes) > 0:
        yield at, f"{count} hosts are too many for {len(nodes)} nodes"
    if max(map(len, cluster.nodes_on().values()), default=0) > MOST_NODES_OF_A_HOST:
        yield at, f"too few for {len(nodes)} nodes; a host has ports for {MOST_NODES_OF_A_HOST}"
    if not cluster.defaults:
        yield at, "requires the defaults, with a port and directories for each slurmd"


def _wrong_partitions(cluster: Cluster, name: str) -> Iterator[tuple[Path_, str]]:
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


def _wrong_provision(cluster: Cluster, at: Path_) -> Iterator[tuple[Path_, str]]:
    for index, group in enumerate(cluster.nodes):
        if group.user_data:
            place = (*at, index, "user_data")
            yield from _wrong_user_data(group.user_data.text, group.provision, place)
        if group.provision == "static":
            continue
        here = (*at, index, "provision")
        if not cluster.defaults:
            yield here, "requires the defaults, with the programs that power nodes up and down"
        if cluster.controller in hostlist.expand(group.name):
            yield here, f"{cluster.controller} is the controller, which is always up"


def _wrong_user_data(text: str, provision: str, at: Path_) -> Iterator[tuple[Path_, str]]:
    """Yield why cloud-init would not use a node group's user-data."""
    if provision != "create":
        yield at, "cloud-init initializes only nodes that are created: provision: create"
    if text and not _USER_DATA.match(text):
        yield (
            at,
            'cloud-init ignores this text: it must begin with "#cloud-config", "#!" or the header '
            "of another format (docs.cloud-init.io, User-data formats)",
        )


def _wrong_dynamic(scenario: Scenario, cluster: Cluster, at: Path_) -> Iterator[tuple[Path_, str]]:
    """Yield the nodes that cannot register by themselves.

    See slurm.schedmd.com/dynamic_nodes.html.
    """
    release = scenario.release_of(cluster)
    dynamic: set[str] = set()
    for index, group in enumerate(cluster.nodes):
        if not group.dynamic:
            continue
        dynamic.update(hostlist.expand(group.name))
        here = (*at, "nodes", index, "dynamic")
        if "maxnodecount" not in releases.get(release).options["slurm.conf"]:
            yield (
                here,
                f"release {release} has no dynamic nodes; "
                f"{releases.since('slurm.conf', 'MaxNodeCount')} has them",
            )
        if cluster.elastic():
            yield (
                here,
                "cannot be combined with nodes that come and go: these need cloud_dns, which "
                "excludes dynamic nodes",
            )
        for name, value in group.options.items():
            if _NOT_IN_A_COMMAND.search(str(value)):
                yield (
                    (*at, "nodes", index, "options", name),
                    "is passed to slurmd -Z: no blanks, quotes, $, % or backslashes",
                )
        if cluster.hosts:
            yield here, "nodes that share hosts are named in slurm.conf, each with its port"
        if not cluster.defaults:
            yield here, "requires the defaults, with MaxNodeCount"
    for name, partition in cluster.partitions.items():
        if partition.nodes != "ALL" and (
            named := dynamic.intersection(hostlist.expand(partition.nodes))
        ):
            where = (*at, "partitions", name, "nodes")
            yield (
                where,
                f"{hostlist.fold(sorted(named))} is dynamic; only ALL or a NodeSet with a "
                "feature can include it",
            )


def _wrong_kubernetes(scenario: Scenario, name: str) -> Iterator[tuple[Path_, str]]:
    """Yield what keeps the operator from withholding the resources of pods from Slurm."""
    cluster, at = scenario.clusters[name], ("clusters", name)
    here = (*at, "kubernetes")
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name):
        yield (
            here,
            f"{name} cannot begin the name of a Service: use a letter, then a-z, 0-9 and - within "
            "the name",
        )
    if wrong := [
        node
        for node in cluster.node_names()
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", node)
    ]:
        yield (*at, "nodes"), f"{wrong[0]} cannot be a node of Kubernetes: use a-z, 0-9, - and ."
    if scenario.rehearsal:
        yield (
            ("rehearsal",),
            f"no Kubernetes operator runs during a rehearsal, and {name} needs one",
        )
    yield from _bypasses_of_the_ledger(cluster, at)
    ports = [rest.port for rest in scenario.shared_clusters().values()]
    if cluster.rest and cluster.rest.port != ports[0]:
        yield (*at, "rest", "port"), f"must be {ports[0]}, as for the first cluster with kubernetes"
    if not cluster.rest:
        yield here, "requires rest: its operator changes nodes through slurmrestd"
    if not cluster.defaults:
        yield here, "requires the defaults, with JobSubmitPlugins"
    if cluster.elastic() or any(group.dynamic for group in cluster.nodes):
        yield here, "requires static nodes that slurm.conf names"
    if "/etc/slurm/job_submit.lua" in cluster.scripts:
        yield (*at, "scripts"), "job_submit.lua is generated for kubernetes; remove it here"
    if "job_submit.lua" in cluster.files:
        yield (*at, "files", "job_submit.lua"), "is generated for kubernetes; remove it here"


def _bypasses_of_the_ledger(cluster: Cluster, at: Path_) -> Iterator[tuple[Path_, str]]:
    """Yield options with which jobs get more of a node than job_submit.lua requests for them."""
    for option, value in cluster.options.items():
        text, key = str(value).lower(), option.lower()
        words = {word.strip().removeprefix("job_submit/") for word in text.split(",")}
        if (
            (key == "jobsubmitplugins" and "lua" not in words)
            or (key == "grestypes" and not {"k8scpu", "k8smemory"} <= words)
            or _gives_whole_sockets(key, text)
            or (key == "selecttype" and value is not None and text != "select/cons_tres")
            or (key in {"maxmempercpu", "jobdefaults"} and value is not None)
            or (key == "allowspecresourcesusage" and text not in {"no", "false", "none", "0"})
        ):
            yield (*at, "options", option), "jobs would bypass the ledger of kubernetes"
    for name, partition in cluster.partitions.items():
        for option, value in partition.options.items():
            key, text = option.lower(), str(value).lower()
            if (
                (key == "oversubscribe" and text.startswith("exclusive"))
                or (key in {"maxmempercpu", "jobdefaults"} and value is not None)
                or _gives_whole_sockets(key, text)
            ):
                place = (*at, "partitions", name, "options", option)
                yield place, "jobs would bypass the ledger of kubernetes"
    for index, group in enumerate(cluster.nodes):
        for number, gres in enumerate(group.gres):
            if gres.partition(":")[0] in {"shard", "mps"}:
                place = (*at, "nodes", index, "gres", number)
                yield place, "jobs would share GPUs that pods have"
        for option in group.options:
            if option.lower() in {"state", "gres"}:
                place = (*at, "nodes", index, "options", option)
                yield place, "is set for kubernetes: jobs would bypass its ledger"


def _gives_whole_sockets(key: str, text: str) -> bool:
    """Return whether an option gives jobs all CPUs of a socket (dist_tasks.c)."""
    return key == "selecttypeparameters" and "cr_socket" in text


def _wrong_topology(cluster: Cluster, name: str) -> Iterator[tuple[Path_, str]]:
    """Yield topologies that are incomplete, or do not have each node exactly once."""
    at = ("clusters", name)
    for file in {"topology.conf", "topology.yaml"} & {*cluster.files} if cluster.topology else ():
        yield (*at, "files", file), "is generated from topology; remove it here"
    for topology_name, topology in cluster.topology.items():
        here = (*at, "topology", topology_name)
        if sum(map(bool, (topology.switches, topology.blocks, topology.toruses))) != 1:
            yield here, "must have either switches, blocks or toruses"
            continue
        yield from _wrong_places(cluster, name, topology_name)
        yield from _wrong_tree(topology, here)
        yield from _wrong_blocks(topology, here)
        yield from _wrong_toruses(topology, here)
        if any(group.dynamic for group in cluster.nodes):
            yield here, "requires that slurm.conf names all nodes; it does not name dynamic ones"
    known = list(cluster.topology)
    for partition_name, partition in cluster.partitions.items():
        if partition.topology and partition.topology not in known:
            where = (*at, "partitions", partition_name, "topology")
            yield (
                where,
                f'no topology "{partition.topology}"{did_you_mean(partition.topology, known)}',
            )


def _wrong_places(cluster: Cluster, name: str, topology_name: str) -> Iterator[tuple[Path_, str]]:
    """Yield the nodes of a topology that do not exist, or that it has twice or not at all."""
    at = ("clusters", name, "topology", topology_name)
    topology, known = cluster.topology[topology_name], dict.fromkeys(cluster.node_names())
    place_of: dict[str, str] = {}
    for place, nodes in topology.nodes_of().items():
        if unknown := [node for node in nodes if node not in known]:
            names = hostlist.fold(unknown)
            yield (
                (*at, *place),
                f"no such node in cluster {name}: {names}; its nodes are {hostlist.fold(known)}",
            )
        for node, count in Counter(nodes).items():
            if node in place_of or count > 1:
                yield (*at, *place), f"node {node} is in {place_of.get(node, place[1])} already"
            place_of[node] = str(place[1])
    # Slurm warns of nodes that no switch or block has; a torus may be a part of the cluster.
    users = [
        part for part in cluster.partitions.values() if cluster.topology_of(part) == topology_name
    ]
    placed = {node for part in users for node in cluster.nodes_of_partition(part)}
    lacking = [
        node for node in known if node not in place_of and (node in placed or not topology.toruses)
    ]
    if lacking:
        yield at, f"does not contain {hostlist.fold(lacking)}"


def _wrong_tree(topology: Topology, at: Path_) -> Iterator[tuple[Path_, str]]:
    above: dict[str, str] = {}
    for name, switch in topology.switches.items():
        if bool(switch.nodes) == bool(switch.switches):
            yield (*at, "switches", name), "must have either nodes or switches"
    for name, below in topology.switches_below().items():
        here = (*at, "switches", name, "switches")
        for child in below:
            if child not in topology.switches:
                yield here, f'no switch "{child}"{did_you_mean(child, list(topology.switches))}'
            elif child in above:
                yield here, f"switch {child} is below {above[child]} already"
            above.setdefault(child, name)
    if loop := topology_rules.loop(topology.switches_below()):
        yield (*at, "switches", loop[0], "switches"), f"is a loop: {' - '.join(loop)}"


def _wrong_blocks(topology: Topology, at: Path_) -> Iterator[tuple[Path_, str]]:
    if topology.block_sizes and not topology.blocks:
        yield (*at, "block_sizes"), "requires blocks"
    if not topology.block_sizes or not topology.blocks:
        return
    base = topology.block_sizes[0]
    for index in topology_rules.wrong_block_sizes(topology.block_sizes):
        size = topology.block_sizes[index]
        yield (*at, "block_sizes", index), f"{size} is not {base} times a power of two"
    for place, nodes in topology.nodes_of().items():
        if len(nodes) > base:
            yield (*at, *place), f"{len(nodes)} nodes are more than a block of {base} has"


def _wrong_toruses(topology: Topology, at: Path_) -> Iterator[tuple[Path_, str]]:
    for name, torus in topology.toruses.items():
        here = (*at, "toruses", name)
        if (count := len(hostlist.expand(torus.nodes))) != (size := prod(torus.dims)):
            yield (*here, "nodes"), f"{count} nodes, but {_times(torus.dims)} is {size}"
        for index, placement in enumerate(torus.placements):
            if any(length > most for length, most in zip(placement, torus.dims, strict=True)):
                yield (
                    (*here, "placements", index),
                    f"{_times(placement)} does not fit the torus, {_times(torus.dims)}",
                )


def _times(dimensions: Dimensions) -> str:
    return "x".join(map(str, dimensions))


def too_old_for_topology(scenario: Scenario) -> Iterator[tuple[Path_, str]]:
    """Yield the topologies that a cluster's release lacks, with the first release that has them."""
    for name, cluster in scenario.clusters.items():
        release = scenario.release_of(cluster)
        for index, (topology_name, topology) in enumerate(cluster.topology.items()):
            at = ("clusters", name, "topology", topology_name)
            section, key = _TOPOLOGY_KEYS[topology.plugin]
            if key.lower() not in releases.get(release).options.get(section, {}):
                since = releases.since(section, key)
                yield (
                    at,
                    f"topology/{topology.plugin} needs {key} of {section}, which release "
                    f"{release} lacks; {since} has it",
                )
            elif index and releases.get(release).topology_file == "topology.conf":
                yield (
                    at,
                    f"release {release} supports only one topology; "
                    f"{releases.first('topology.yaml')} supports several",
                )


def _claim(
    owner: dict[str, str], at: Path_, kind: str, names: str, cluster: str
) -> Iterator[tuple[Path_, str]]:
    """Record the owner of a hostlist's names; yield the names that already have another owner.

    A node may have the name of its cluster's controller.
    """
    expanded = hostlist.expand(names)
    for name, count in Counter(expanded).items():
        if len(name) > _LONGEST_HOST_NAME:
            yield at, f"{kind} {name[:20]}...: a name has at most {_LONGEST_HOST_NAME} characters"
        if name in _BESIDE_HOSTS:
            yield (
                at,
                f"{kind} {name}: `harness render` uses this name next to the hosts' directories",
            )
        taken = owner.get(name)
        if taken and taken != f"{cluster}.controller":
            yield at, f"{kind} {name} is already {taken}"
        elif count > 1:
            yield at, f"{kind} {name} is in this hostlist {count} times"
    place = ".".join(map(str, at)).removesuffix(".name")
    owner.update(dict.fromkeys(expanded, place))


def _may_run_slurmdbd(scenario: Scenario, accounting: Accounting) -> bool:
    """Return whether the accounting host is a host of a cluster of its site, image and release."""
    return any(
        accounting.host in {cluster.controller, *cluster.nodes_on()}
        and (cluster.site, cluster.image) == (accounting.site, accounting.image)
        and scenario.release_of(cluster) == scenario.release_of(accounting)
        and scenario.wanted(cluster) == scenario.wanted(accounting)
        for cluster in scenario.clusters.values()
    )


def _slurm_hosts(scenario: Scenario) -> dict[str, str | None]:
    """Return the hosts of clusters and of accounting, with the sites that the scenario names."""
    hosts: dict[str, str | None] = {}
    for cluster in scenario.clusters.values():
        names = {
            cluster.controller,
            *cluster.backup_controllers,
            *cluster.login_hosts(),
            *cluster.nodes_on(),
            *([cluster.rest.host] if cluster.rest and cluster.rest.host else []),
        }
        hosts |= dict.fromkeys(names, cluster.site)
    if accounting := scenario.accounting:
        names = {accounting.host, *([accounting.backup] if accounting.backup else [])}
        hosts |= dict.fromkeys(names - {*hosts}, accounting.site)
    return hosts


def _names(part: Any, key: str) -> list[str]:
    """Return the names that a part of the file defines under a key; none if it is not a mapping."""
    named = part.get(key) if isinstance(part, dict) else None
    return list(named) if isinstance(named, dict) else []


def _wrong_sites(scenario: Scenario, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    sites = _names(raw, "sites") or list(scenario.sites)
    hosts = _slurm_hosts(scenario)
    members: list[tuple[Path_, str | None]] = [
        (("clusters", name), cluster.site) for name, cluster in scenario.clusters.items()
    ]
    if scenario.accounting:
        members.append((("accounting",), scenario.accounting.site))
    for key, service in (("monitoring", scenario.monitoring), ("directory", scenario.directory)):
        if service and service.host not in hosts:
            members.append(((key,), service.site))
    for at, site in members:
        if site is None and len(sites) > 1:
            yield (*at, "site"), f"is required because there are several sites: {', '.join(sites)}"
        elif site is not None and site not in sites:
            yield (*at, "site"), f'no site "{site}"{did_you_mean(site, sites)}'
    for (name, site_), (other_name, other) in combinations(scenario.sites.items(), 2):
        if site_.subnet and other.subnet and site_.subnet.overlaps(other.subnet):
            yield (
                ("sites", other_name, "subnet"),
                f"{other.subnet} overlaps {site_.subnet} of site {name}",
            )
    for service in (scenario.monitoring, scenario.directory):
        if service:
            hosts.setdefault(service.host, service.site)
    for name, server in scenario.dns_servers().items():
        if hosts.setdefault(server, name) not in {name, None}:
            yield ("sites", name, "dns_server"), f"{server} is in site {hosts[server]}"


def _wrong_federations(scenario: Scenario, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    clusters = _names(raw, "clusters")
    member_of: dict[str, str] = {}
    for name, federation in scenario.federations.items():
        at: Path_ = ("federations", name, "clusters")
        for index, cluster in enumerate(federation.clusters):
            if cluster not in clusters:
                yield (*at, index), f'no cluster "{cluster}"{did_you_mean(cluster, clusters)}'
            elif cluster in member_of:
                yield (
                    (*at, index),
                    f"cluster {cluster} is already in federation {member_of[cluster]}",
                )
            member_of[cluster] = name
    if scenario.federations and "accounting" not in raw:
        yield ("federations",), "a federation needs accounting: slurmdbd stores it"


def _wrong_accounting(scenario: Scenario, raw: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    own = _names(raw.get("accounting"), "accounts")
    if scenario.accounting:
        at: Path_ = ("accounting", "accounts")
        yield from _wrong_accounts(scenario.accounting.accounts, own, at)
        for index, name in enumerate(scenario.accounting.slurm_user_accounts):
            if name not in own:
                yield (
                    ("accounting", "slurm_user_accounts", index),
                    f'no account "{name}"{did_you_mean(name, own)}',
                )
    yield from _wrong_users(scenario, own, raw)
    yield from _wrong_accounts_of_clusters(scenario, own, raw)
    yield from _wrong_groups(scenario)
    yield from _wrong_resources(scenario)


def _wrong_accounts(
    accounts: Mapping[str, Account], known: Sequence[str], at: Path_
) -> Iterator[tuple[Path_, str]]:
    for name, account in accounts.items():
        if account.parent and account.parent not in (*known, "root"):
            yield (*at, name, "parent"), f'no account "{account.parent}"'
    try:
        Accounting(accounts=accounts).accounts_parents_first()
    except ValueError as error:
        yield (*at, str(error), "parent"), "the account is its own ancestor"


def _wrong_accounts_of_clusters(
    scenario: Scenario, common: Sequence[str], raw: dict[str, Any]
) -> Iterator[tuple[Path_, str]]:
    qos = [*_names(raw.get("accounting"), "qos"), "normal"]
    clusters = raw.get("clusters")
    for name, cluster in scenario.clusters.items():
        at: Path_ = ("clusters", name)
        if cluster.accounts is None and cluster.associations is None:
            continue
        if not scenario.accounting:
            key = "associations" if cluster.accounts is None else "accounts"
            yield (*at, key), "needs accounting: slurmdbd stores it"
        own = clusters.get(name) if isinstance(clusters, dict) else None
        known = common if cluster.accounts is None else _names(own, "accounts")
        yield from _wrong_accounts(cluster.accounts or {}, known, (*at, "accounts"))
        people = scenario.users if cluster.associations is None else cluster.associations
        place = ("users",) if cluster.associations is None else (*at, "associations")
        for user, own_accounts in people.items():
            if user not in scenario.users:
                yield (*place, user), f'no user "{user}"{did_you_mean(user, [*scenario.users])}'
            yield from _wrong_user_accounts(user, own_accounts, known, qos, (*place, user))


def _wrong_user_accounts(
    name: str, user: UserAccounts, accounts: Sequence[str], qos: Sequence[str], at: Path_
) -> Iterator[tuple[Path_, str]]:
    for index, account_name in enumerate(user.accounts):
        if account_name not in accounts:
            yield (
                (*at, "accounts", index),
                f'no account "{account_name}"{did_you_mean(account_name, [*accounts])}',
            )
    for index, qos_name in enumerate(user.qos):
        if qos_name not in qos:
            yield (*at, "qos", index), f'no QOS "{qos_name}"{did_you_mean(qos_name, [*qos])}'
    for association in user.associations:
        account_name, _, partition = association.partition(":")
        known_accounts = accounts if partition else user.accounts
        if account_name not in known_accounts:
            yield (
                (*at, "associations", association),
                f'no account "{account_name}"{did_you_mean(account_name, [*accounts])}'
                if partition
                else f"{name} has no account {account_name}",
            )


def _wrong_users(
    scenario: Scenario, common: Sequence[str], raw: dict[str, Any]
) -> Iterator[tuple[Path_, str]]:
    qos = [*_names(raw.get("accounting"), "qos"), "normal"]
    trees = scenario.accounting_trees()
    of_clusters = (cluster.accounts or () for cluster in scenario.clusters.values())
    accounts = [*common, *(name for own in of_clusters for name in own)]
    # Clusters may all have accounts of their own.
    is_used = any(part is scenario for part, _ in trees)
    uids: dict[int, str] = {}
    for name, user in scenario.users.items():
        if name in SYSTEM_USERS:
            yield (
                ("users", name),
                f"{name} is a system user of every host; choose a different name",
            )
        if is_used:
            yield from _wrong_user_accounts(name, user, common, qos, ("users", name))
        for index, account_name in enumerate(user.coordinates):
            if account_name not in accounts:
                at: Path_ = ("users", name, "coordinates", index)
                yield at, f'no account "{account_name}"{did_you_mean(account_name, accounts)}'
        charges = any(part.users[name].default_account for part, _ in trees)
        for key, given in (("coordinates", user.coordinates), ("admin", user.admin)):
            if given and not charges:
                why = "needs accounts: accounting has no users without one"
                yield ("users", name, key), why
        if user.uid in uids:
            yield ("users", name, "uid"), f"uid {user.uid} already belongs to {uids[user.uid]}"
        uids[user.uid] = name


def _wrong_groups(scenario: Scenario) -> Iterator[tuple[Path_, str]]:
    gids: dict[int, str] = {}
    for name, group in scenario.groups.items():
        if name in scenario.users:
            yield ("groups", name), f"user {name} has a group of this name"
        if group.gid in gids:
            yield ("groups", name, "gid"), f"gid {group.gid} already belongs to {gids[group.gid]}"
        gids[group.gid] = name
        for index, user in enumerate(group.users):
            if user not in scenario.users:
                at = ("groups", name, "users", index)
                yield at, f'no user "{user}"{did_you_mean(user, [*scenario.users])}'


def _wrong_resources(scenario: Scenario) -> Iterator[tuple[Path_, str]]:
    resources = scenario.accounting.resources if scenario.accounting else {}
    for name, resource in resources.items():
        for cluster in resource.clusters:
            if cluster not in scenario.clusters:
                at = ("accounting", "resources", name, "clusters", cluster)
                yield at, f'no cluster "{cluster}"{did_you_mean(cluster, [*scenario.clusters])}'
