"""Merge the site bundles of several clusters that share an accounting database.

Each has been imported on its own, from the same tables of sacctmgr.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from harness.errors import UsageError
from harness.releases import Release
from harness.site import fidelity, rehearsal_copy
from harness.site.bundle import Bundle, Member, members
from harness.slurmconf.check.parsed_file import load

T = TypeVar("T", bound=Hashable)
# What a user may charge and request, which can differ between clusters.
_CLUSTER_KEYS = ("accounts", "associations")
_ONE_BY_ONE = "import clusters that do not share slurmdbd one by one"


@dataclass(frozen=True, slots=True)
class Imported:
    """The scenario of a site as data, and notes on what was left out or replaced.

    `fidelity` compares a rehearsal copy with its site; it is empty for other scenarios, and for
    copies that are not valid scenarios.
    """

    data: dict[str, Any]
    notes: list[str]
    fidelity: list[fidelity.Entry]


def prefix_of(cluster: str) -> str:
    """Return how the names of a cluster's hosts begin, in a copy of several clusters."""
    return f"{cluster.replace('_', '-')}-{rehearsal_copy.HOST}"


def by_cluster(
    paths: Sequence[Path], bundles: Sequence[Bundle], releases: Sequence[Release]
) -> dict[str, Bundle]:
    """Return bundles by their ClusterName.

    Raises UsageError if two are of the same cluster, or if they do not share slurmdbd.
    """
    path_of: dict[str, Path] = {}
    clusters: dict[str, Bundle] = {}
    for path, bundle, release in zip(paths, bundles, releases, strict=True):
        conf = load(bundle.configuration, release).get("slurm.conf")
        name, storage = (
            ((conf.get(option) if conf else None) or "").lower()
            for option in ("clustername", "accountingstoragetype")
        )
        if not name:
            raise UsageError(f"{path}: no ClusterName in {bundle.site_directory}/slurm.conf")
        if not storage.endswith("slurmdbd"):
            raise UsageError(
                f"{path}: cluster {name} does not use slurmdbd (AccountingStorageType)",
                hint=_ONE_BY_ONE,
            )
        if name in path_of:
            raise UsageError(
                f"{path_of[name]} and {path} are both of cluster {name}",
                hint="give one bundle for each cluster",
            )
        path_of[name], clusters[name] = path, bundle
    for name, bundle in clusters.items():
        known = {member.cluster for member in members(bundle)}
        if unknown := [other for other in clusters if other not in known]:
            shown = ", ".join(sorted(known)) or "no cluster"
            raise UsageError(
                f"{path_of[name]}: its slurmdbd has {shown}, but not {', '.join(unknown)} "
                "(output/sacctmgr/cluster.txt)",
                hint=_ONE_BY_ONE,
            )
    _check_pseudonyms(path_of, clusters)
    return clusters


def _check_pseudonyms(path_of: Mapping[str, Path], clusters: Mapping[str, Bundle]) -> None:
    """Raise UsageError if the pseudonyms of bundles may stand for different users or accounts."""
    hidden = [name for name, bundle in clusters.items() if bundle.has_pseudonyms]
    if not hidden:
        return
    tables = {
        tuple((row["Cluster"], row["Account"], row["User"]) for row in bundle.table("assoc"))
        for bundle in clusters.values()
    }
    if len(hidden) < len(clusters) or len(tables) > 1:
        raise UsageError(
            f"the pseudonyms in {path_of[hidden[0]]} may not be those of the other bundles",
            hint="collect all of them with --pseudonyms while nobody changes users or accounts",
        )


def merge(parts: Mapping[str, Imported], names: Sequence[str]) -> Imported:
    """Return several imported clusters as one; `names` are those of their bundles."""
    scenarios = [part.data for part in parts.values()]
    newest = max(str(data["release"]) for data in scenarios)
    is_copy = any(part.fidelity for part in parts.values())
    data: dict[str, Any] = {
        "description": f"Imported from {', '.join(names)}."
        + (" A rehearsal copy with hosts for each cluster." if is_copy else ""),
        "release": DoubleQuotedScalarString(newest),
        "clusters": {
            name: {**({} if data["release"] == newest else {"release": data["release"]}), **cluster}
            for data in scenarios
            for name, cluster in data["clusters"].items()
        },
        "accounting": _accounting(scenarios),
        "users": _users(scenarios),
        "groups": _groups(scenarios),
    }
    _separate_trees(data, scenarios)
    notes = {name: part.notes for name, part in parts.items()}
    compared = {name: part.fidelity for name, part in parts.items()}
    return Imported(data, [*_merged(notes, "{}: {}".format)], [*_merged(compared, _with_cluster)])


def _with_cluster(cluster: str, entry: fidelity.Entry) -> fidelity.Entry:
    return replace(entry, where=f"{cluster} {entry.where}")


def _merged(lists: Mapping[str, Sequence[T]], with_cluster: Callable[[str, T], T]) -> Iterator[T]:
    """Yield the items of all lists: once if every list has it, else with the cluster's name."""
    counts = Counter(item for items in lists.values() for item in dict.fromkeys(items))
    common = {item for item, number in counts.items() if number == len(lists)}
    yield from (item for item in next(iter(lists.values())) if item in common)
    for name, items in lists.items():
        yield from (with_cluster(name, item) for item in items if item not in common)


def _accounting(scenarios: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the accounting that clusters share, if possible that of slurmdbd's own host."""
    own = [(data["accounting"], next(iter(data["clusters"].values()))) for data in scenarios]
    with_slurmdbd = [
        part
        for part, cluster in own
        if part.get("slurmdbd") or part["host"] == cluster["controller"]
    ]
    chosen = [*with_slurmdbd, own[0][0]][0]
    resources: dict[str, Any] = {}
    for part, _ in own:
        for name, resource in part.get("resources", {}).items():
            before = resources.get(name, {}).get("clusters", {})
            resources[name] = {**resource, "clusters": {**before, **resource["clusters"]}}
    return {
        **{key: value for key, value in chosen.items() if key != "resources"},
        "accounts": own[0][0].get("accounts", {}),
        "qos": {name: level for part, _ in own for name, level in part.get("qos", {}).items()},
        **({"resources": resources} if resources else {}),
    }


def _users(scenarios: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the users of all clusters; accounts and limits are those of the first."""
    users: dict[str, Any] = {}
    for data in scenarios:
        for name, user in data["users"].items():
            known = users.setdefault(name, user)
            coordinates = [*known.get("coordinates", ()), *user.get("coordinates", ())]
            if coordinates:
                users[name] = {**known, "coordinates": list(dict.fromkeys(coordinates))}
    return users


def _groups(scenarios: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the groups of all clusters, each number once."""
    groups: dict[str, Any] = {}
    used: set[int] = set()
    for data in scenarios:
        for name, group in data["groups"].items():
            if name not in groups and group["gid"] in used:
                group = {**group, "gid": max(used) + 1}
            groups.setdefault(name, group)
            used.add(groups[name]["gid"])
    return groups


def _separate_trees(data: dict[str, Any], scenarios: Sequence[Mapping[str, Any]]) -> None:
    """Give each cluster its own accounts and associations, unless they are the same on all."""
    trees = [
        (
            part["accounting"].get("accounts", {}),
            {
                name: own
                for name, user in part["users"].items()
                if (own := {key: user[key] for key in _CLUSTER_KEYS if key in user})
            },
        )
        for part in scenarios
    ]
    if all(tree == trees[0] for tree in trees):
        return
    data["accounting"]["accounts"] = {}
    for user in data["users"].values():
        for key in _CLUSTER_KEYS:
            user.pop(key, None)
    for cluster, (accounts, associations) in zip(data["clusters"].values(), trees, strict=True):
        cluster |= {"accounts": accounts, "associations": associations}


def with_federations(imported: Imported, site: Bundle) -> Imported:
    """Return an imported site with the federations of its clusters.

    Notes and entries list what is left out of them, and the other clusters of its slurmdbd.
    """
    data = {**imported.data, "clusters": {**imported.data["clusters"]}}
    all_members = members(site)
    federations: dict[str, Any] = {}
    entries: list[fidelity.Entry] = []
    for federation in dict.fromkeys(member.federation for member in all_members):
        own = [member for member in all_members if member.federation == federation]
        present = [member for member in own if member.cluster in data["clusters"]]
        missing = [member.cluster for member in own if member not in present]
        if not federation:
            entries += [_missing_cluster(cluster, "it shares slurmdbd") for cluster in missing]
        elif len(present) > 1 or not missing:
            federations[federation] = {"clusters": [member.cluster for member in present]}
            entries += [
                _missing_cluster(cluster, f"it belongs to federation {federation}")
                for cluster in missing
            ]
            entries += _federation_entries(federation, own, present)
            for member in present:
                if member.features:
                    cluster = data["clusters"][member.cluster]
                    data["clusters"][member.cluster] = {
                        **cluster,
                        "features": [*member.features],
                    }
        elif present:
            why = f"no bundle of {', '.join(missing)}; give one for each of its clusters"
            shown = ",".join(member.cluster for member in own)
            entries.append(
                fidelity.Entry("federation", federation, shown, None, fidelity.LEFT_OUT, why)
            )
    if federations:
        data["federations"] = federations
    notes = [
        f"{entry.state}: {entry.where} {entry.name}: {entry.why}"
        for entry in entries
        if entry.state != fidelity.SAME
    ]
    compared = [*imported.fidelity, *entries] if imported.fidelity else []
    return Imported(data, [*imported.notes, *notes], compared)


def _missing_cluster(cluster: str, why: str) -> fidelity.Entry:
    text = f"{why}, but its bundle is missing"
    return fidelity.Entry("cluster", cluster, None, None, fidelity.LEFT_OUT, text)


def _federation_entries(
    name: str, own: Sequence[Member], present: Sequence[Member]
) -> Iterator[fidelity.Entry]:
    """Yield entries on a federation that is imported, and the members that it has."""
    shown = ",".join(f"{member.cluster}={member.number}" for member in own)
    copied = ",".join(f"{member.cluster}={number}" for number, member in enumerate(present, 1))
    why = "" if shown == copied else "the ids of its clusters begin at 1"
    state = fidelity.EMULATED if why else fidelity.SAME
    yield fidelity.Entry("federation", name, shown, copied, state, why)
    for member in present:
        if member.features:
            text = ",".join(member.features)
            yield fidelity.Entry(
                "federation", f"{name} features of {member.cluster}", text, text, fidelity.SAME, ""
            )
        if member.state not in {"", "ACTIVE"}:
            yield fidelity.Entry(
                "federation",
                f"{name} state of {member.cluster}",
                member.state,
                "ACTIVE",
                fidelity.EMULATED,
                "all clusters take jobs from the start",
            )
