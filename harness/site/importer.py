"""Turn a site's configuration directory into a scenario.

Files that have no model in the scenario are copied unchanged.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from harness import releases
from harness.errors import ScenarioError, UsageError
from harness.parsing import conf, hostlist
from harness.releases import Release
from harness.site import bundle, fidelity, rehearsal_copy, scripts, several_clusters
from harness.site.make_startable import make_startable, rendered_configuration
from harness.site.several_clusters import Imported
from harness.slurmconf.check import check_path
from harness.slurmconf.check.nodes import names_of
from harness.slurmconf.check.parsed_file import OTHER_KINDS, Configuration, Row, Source, load

# Passwords, which are not imported.
_SECRETS = {"accountingstoragepass", "jobcomppass", "storagepass", "defaultstoragepass"}
# Characters that YAML cannot hold, and foreign line ends.
_UNPRINTABLE = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_FOREIGN = "not a Slurm file"
_ROWS = {"nodename", "partitionname"}
_NUMBERED, _LAST_NUMBER = re.compile("[A-Za-z0-9._-]*[0-9]"), re.compile("[0-9]+$")
# Slurm accepts more than one, and blanks.
_ONE_HOSTLIST = re.compile(r"[A-Za-z0-9._-]*(\[[0-9,-]+\][A-Za-z0-9._-]*)*")


def import_site(
    paths: Sequence[Path], release: str | None, rehearsal_hosts: int | None
) -> Imported:
    """Return the scenario of a site's configuration.

    `paths` is a configuration directory, a site bundle, or the bundles of several clusters with the
    same slurmdbd. `release` defaults to each bundle's. `rehearsal_hosts` makes it a rehearsal copy,
    with that many hosts for each cluster. Raises UsageError.
    """
    if not all(map(bundle.is_bundle, paths)):
        if len(paths) > 1:
            others = [str(path) for path in paths if not bundle.is_bundle(path)]
            raise UsageError(
                f"{', '.join(others)}: not a site bundle; several clusters need one each",
                hint="harness collect --help",
            )
        known = releases.get(release or releases.DEFAULT)
        return _import(paths[0], known, rehearsal_hosts, None)
    with ExitStack() as stack:
        opened = [stack.enter_context(bundle.opened(path)) for path in paths]
        known_of = [
            releases.get(release or bundle.release_of(site, path))
            for site, path in zip(opened, paths, strict=True)
        ]
        if len(paths) == 1:
            imported = _import_bundle(opened[0], known_of[0], rehearsal_hosts)
            return several_clusters.with_federations(imported, opened[0])
        clusters = several_clusters.by_cluster(paths, opened, known_of)
        sites = dict(zip(clusters, bundle.sharing(opened), strict=True))
        differences = [*bundle.differences(clusters)]
        parts = {
            cluster: _import_bundle(
                sites[cluster], known, rehearsal_hosts, [*clusters], differences
            )
            for cluster, known in zip(clusters, known_of, strict=True)
        }
        imported = several_clusters.merge(parts, [path.name for path in paths])
        return several_clusters.with_federations(imported, next(iter(sites.values())))


def _import_bundle(
    site: bundle.Bundle,
    release: Release,
    rehearsal_hosts: int | None,
    clusters: Sequence[str] = (),
    differences: Sequence[str] = (),
) -> Imported:
    """Import a bundle.

    If there are several, `clusters` are those of all of them, and `differences` are notes on the
    users and groups that the clusters have in common.
    """
    imported = _import(site.configuration, release, rehearsal_hosts, site, clusters, differences)
    description = site.original(imported.data["description"])
    return Imported(
        {**imported.data, "description": description},
        [site.original(note) for note in imported.notes],
        [replace(entry, name=site.original(entry.name)) for entry in imported.fidelity],
    )


def _import(
    directory: Path,
    release: Release,
    rehearsal_hosts: int | None,
    site: bundle.Bundle | None,
    clusters: Sequence[str] = (),
    differences: Sequence[str] = (),
) -> Imported:
    data, left_out = import_directory(directory, release, for_copy=bool(rehearsal_hosts))
    ((name, cluster),) = data["clusters"].items()
    emulated: list[str] = []
    if site:
        objects = bundle.objects(site, name, clusters)
        if "accounting" in data:
            data["accounting"] |= objects.accounting
            data |= {"users": objects.users, "groups": objects.groups}
        cluster["reservations"] = objects.reservations
        left_out += [*objects.left_out, *bundle.node_states(site)]
        emulated = [*objects.emulated, *differences]
    if not rehearsal_hosts:
        kinds = (("left out", left_out), ("emulated", emulated))
        return Imported(data, [f"{kind}: {text}" for kind, texts in kinds for text in texts], [])
    findings = check_path(directory, release)
    files = site or bundle.of_directory(directory)
    site_scripts = scripts.find(files, cluster["options"], release)
    used = {f"{directory}/{path}: {_FOREIGN}" for path in _used_as_scripts(files, site_scripts)}
    left_out = [text for text in left_out if text not in used]
    prefix = several_clusters.prefix_of(name) if clusters else rehearsal_copy.HOST
    copy, replaced = rehearsal_copy.shrink(data, rehearsal_hosts, findings, site_scripts, prefix)
    make_startable(_without_people(copy), release, replaced, _write_data)
    script_notes = _printable([*site_scripts.notes])
    if not site and (submit := _options_of_jobs(copy, site_scripts)):
        copy["checks"] = {"submit": submit}
        shown = ",".join(submit)
        why = "a Lua script of the site may refuse jobs without these options"
        script_notes.append(f"added: checks.submit={shown}: {why}")
    script_entries = [*fidelity.scripts(script_notes)]
    compared = [
        *_compare(directory, release, copy, [*replaced, *_left_out_with_scripts(script_entries)]),
        *script_entries,
        *fidelity.objects(_objects(data), _objects(copy), left_out, emulated),
    ]
    notes = [
        *script_notes,
        *(f"left out: {text}" for text in left_out),
        *(f"emulated: {text}" for text in emulated),
        *(f"replaced: {item}" for item in replaced),
    ]
    return Imported(copy, notes, compared)


def _left_out_with_scripts(entries: Iterable[fidelity.Entry]) -> Iterator[fidelity.Replaced]:
    """Yield the options that a copy lacks because it lacks their scripts."""
    for entry in entries:
        option, is_option, value = entry.name.partition("=")
        if entry.state == fidelity.LEFT_OUT and is_option:
            yield fidelity.Replaced("slurm.conf", option, value, entry.why)


def _options_of_jobs(copy: Mapping[str, Any], site_scripts: scripts.SiteScripts) -> list[str]:
    """Return the options that the Lua scripts of a site may require of every job.

    The users of the copy are invented, and so is the account that they all have.
    """
    names = {
        word
        for path, script in site_scripts.scripts.items()
        if path.endswith(".lua")
        for word in re.findall(r"\w+", script["text"])
    }
    accounts = [*copy.get("accounting", {}).get("accounts", {})]
    return [
        *(f"--account={account}" for account in accounts[:1] if "account" in names),
        *(["--time=5"] if "time_limit" in names else []),
    ]


def _used_as_scripts(site: bundle.Bundle, site_scripts: scripts.SiteScripts) -> list[str]:
    """Return the files below a site's configuration directory that its copy uses as scripts."""
    return [path.removeprefix(f"{site.site_directory}/") for path in site_scripts.used]


def _objects(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the accounts, QOS, users and other objects of a scenario, by kind."""
    accounting = data.get("accounting", {})
    return {
        "account": accounting.get("accounts", {}),
        "QOS": accounting.get("qos", {}),
        "license": accounting.get("resources", {}),
        "user": data.get("users", {}),
        "group": data.get("groups", {}),
        "reservation": {
            name: options
            for cluster in data["clusters"].values()
            for name, options in cluster.get("reservations", {}).items()
        },
    }


def _compare(
    directory: Path,
    release: Release,
    data: Mapping[str, Any],
    replaced: Sequence[fidelity.Replaced],
) -> list[fidelity.Entry]:
    """Compare a site's files with those that its copy is rendered to; [] if it cannot be."""
    try:
        with rendered_configuration(_without_people(data), _write_data) as etc:
            copy = load(etc, release)
            return [*fidelity.compare(load(directory, release), copy, release.name, replaced)]
    except ScenarioError:
        return []


def _without_people(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario without users and groups; its other parts are shared, not copied.

    Slurm's files do not name users and groups, and there may be thousands.
    """
    return {**data, "users": {}, "groups": {}}


def _write_data(path: Path, data: Mapping[str, Any]) -> None:
    write(path, Imported({**data}, [], []))


def import_directory(
    path: Path, release: Release, *, for_copy: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Return the scenario of a configuration directory as data, and a list of what was left out.

    For a rehearsal copy, that includes everything that the daemons could not read. Raises
    UsageError if there is no slurm.conf and, unless the scenario is for a copy, if it cannot be
    read or lacks what a scenario requires.
    """
    configuration = load(path, release)
    source = configuration.get("slurm.conf")
    if source is None:
        raise UsageError(f"{path}: no slurm.conf", hint=_which_directory(path))
    left_out: list[str] = []
    if for_copy:
        left_out += _leave_out_unreadable(configuration)
    else:
        _must_be_readable(path, configuration, source)
    left_out += [f"{path}/{name}: {_FOREIGN}" for name in _unread_files(path, configuration)]
    left_out += _replacement_notes(configuration)
    name = (source.get("clustername") or "").lower()
    controllers = _controllers(source)
    if for_copy:
        name = _valid_name(name, left_out)
        controllers = controllers or ["controller"]
    elif not name:
        raise UsageError(f"{source.path}: no ClusterName", hint="slurmctld requires one")
    elif not controllers:
        raise UsageError(f"{source.path}: no SlurmctldHost, and no ControlMachine")
    controller = _without_domain(controllers[0])
    cluster = _cluster(configuration, source, controller, left_out, for_copy=for_copy)
    data: dict[str, Any] = {
        "description": f"Imported from {path}.",
        "release": DoubleQuotedScalarString(releases.series(release.name)),
        "clusters": {name: cluster},
    }
    if source.uses_slurmdbd():
        data["accounting"] = _accounting(configuration, source, controller, left_out)
    return _printable(data), left_out


def _which_directory(path: Path) -> str:
    """Return advice about a directory without slurm.conf, or with several that may be it."""
    similar = [file.name for file in path.glob("*slurm*.conf*") if "slurmdbd" not in file.name]
    if not similar:
        return "name the directory that holds it"
    return f"rename one of these to slurm.conf: {', '.join(sorted(similar))}"


def _must_be_readable(path: Path, configuration: Configuration, source: Source) -> None:
    """Raise UsageError if there are lines that Slurm cannot read, or files that are missing."""
    if problems := [str(finding) for file in configuration for finding in file.findings]:
        raise UsageError("\n".join(problems))
    unread = [f"{name}:{line.number}" for name, line in source.lines if line.rest is not None]
    if unread:
        raise UsageError(f"cannot be read: {', '.join(unread)}", hint=f"harness check {path}")


def _leave_out_unreadable(configuration: Configuration) -> Iterator[str]:
    """Remove what a release's daemons cannot read; yield notes on it."""
    for source in configuration:
        for finding in source.findings:
            yield f"{finding.file}:{finding.line}: {finding.option}: {finding.message}"
        for name, line in source.leave_out_unreadable():
            yield f"{name}:{line.number}: cannot be read: {line.text.strip()}"


def _valid_name(name: str, left_out: list[str]) -> str:
    """Return a ClusterName that a scenario accepts, and add a note if it is not the site's."""
    valid = re.sub(r"[^a-z0-9_-]+", "-", name).strip("-_")[:40] or "cluster"
    if valid != name:
        left_out.append(f"ClusterName={name}: the copy is named {valid}")
    return valid


def dump(data: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """Return a scenario's data as the text of its file, which begins with the comments."""
    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    text.writelines(f"# {line}\n" for comment in comments for line in comment.splitlines())
    yaml.dump(data, text)
    return text.getvalue()


def write(path: Path, imported: Imported) -> None:
    """Write a scenario, and next to it the scripts of its clusters and its fidelity report.

    All are written completely or not at all. Raises UsageError if one of them exists.
    """
    names = ("files", "fidelity.md", "fidelity.json")
    targets = [path, *(path.with_suffix(f".{name}") for name in names)]
    for existing in targets:
        if existing.exists():
            raise UsageError(f"{existing} already exists", hint="choose another file, or remove it")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as temporary:
        written, files, report, report_json = (Path(temporary) / target.name for target in targets)
        several = len(imported.data["clusters"]) > 1
        clusters = {
            name: {
                **cluster,
                **_with_files(cluster.get("scripts", {}), files, name if several else ""),
            }
            for name, cluster in imported.data["clusters"].items()
        }
        written.write_text(dump({**imported.data, "clusters": clusters}, imported.notes))
        if imported.fidelity:
            report.write_text(fidelity.markdown(path.stem, imported.fidelity))
            entries = [asdict(entry) for entry in imported.fidelity]
            report_json.write_text(f"{json.dumps(entries, indent=2)}\n")
        for target in reversed(targets):  # the scenario comes last
            if (Path(temporary) / target.name).exists():
                (Path(temporary) / target.name).rename(target)


def _with_files(scripts: Mapping[str, Any], directory: Path, below: str) -> dict[str, Any]:
    """Write scripts to their paths below a directory; return them with the names of the files."""
    named = {}
    for target, script in scripts.items():
        file = directory / below / target.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script["text"], encoding="utf-8", newline="")
        file.chmod(int(script["mode"], 8))
        path = PurePosixPath(directory.name, below, target.lstrip("/"))
        facts = {"file": str(path), **script}
        del facts["text"]
        named[target] = {
            key: DoubleQuotedScalarString(value) if key == "mode" else value
            for key, value in facts.items()
            if (key, value) not in {("mode", "0755"), ("hosts", "all")}
        }
    return {"scripts": named} if named else {}


def _cluster(
    configuration: Configuration,
    source: Source,
    controller: str,
    left_out: list[str],
    *,
    for_copy: bool,
) -> dict[str, Any]:
    sections = source.sections
    lines = [
        {pair.key: pair.value for pair in line.pairs}
        for _, line in source.lines
        if line.pairs
        and (key := line.pairs[0].key.lower()) in sections
        and key not in {*_ROWS, "slurmctldhost"}
    ]
    cgroup = configuration.get("cgroup.conf")
    node_rows = source.rows("nodename")
    if for_copy:
        node_rows = [*_valid_rows(node_rows, left_out)]
    parts: dict[str, Any] = {
        "controller": controller,
        "defaults": False,
        "options": _options(source, left_out),
        "cgroup": {setting.name: setting.value for setting in cgroup.settings.values()}
        if cgroup
        else {},
        "nodes": [*_joined(map(_node_group, node_rows))],
        "lines": lines,
        "partitions": dict(_partitions(source)),
        "files": dict(_files(configuration)),
    }
    needed = {"nodes", "options"}
    return {key: value for key, value in parts.items() if value not in ({}, []) or key in needed}


def _options(source: Source, left_out: list[str]) -> dict[str, Any]:
    """Return the options that are alone on their line; repeated options become lists."""
    known = source.release.options[source.kind]
    options: dict[str, Any] = {}
    for key, setting in source.settings.items():
        if key in _SECRETS:
            left_out.append(f"{setting.path}:{setting.line.number}: {setting.name}, a password")
        elif key != "clustername":
            several = (
                [repeated.value for repeated in source.all_of(key)]
                if key in known and known[key].type == "array"
                else []
            )
            options[setting.name] = several if len(several) > 1 else _value(setting.value)
    hosts = [host.value for host in source.all_of("slurmctldhost")]
    if hosts:
        options["SlurmctldHost"] = hosts
    return options


def _valid_rows(rows: Iterable[Row], left_out: list[str]) -> Iterator[Row]:
    """Yield the rows whose hostlists Slurm can read; add notes on the others."""
    for row in rows:
        path, line, pair = row.first
        if names_of(pair.value) is not None:
            yield row
        else:
            left_out.append(f"{path}:{line.number}: NodeName={pair.value} is not a hostlist")


def _node_group(row: Row) -> dict[str, Any]:
    options = {setting.name: _value(setting.value) for setting in row.all.values()}
    if "state" not in row.values:
        options["State"] = None
    return {"name": _hosts(row.first.value), "options": options}


def _joined(groups: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield groups of nodes; consecutive ones that differ only in name and address become one."""
    for (_, rest), equal in groupby(groups, key=_join_key):
        several = [*equal]
        names = tuple(group["name"] for group in several)
        addresses = tuple(
            str(group["options"]["NodeAddr"]) for group in several if "NodeAddr" in group["options"]
        )
        if len(several) > 1 and all(
            hostlist.expand(hostlist.fold(texts)) == texts for texts in (names, addresses) if texts
        ):
            address = {"NodeAddr": hostlist.fold(addresses)} if addresses else {}
            yield {"name": hostlist.fold(names), "options": {**address, **rest}}
        else:
            yield from several


def _join_key(group: dict[str, Any]) -> tuple[object, dict[str, Any]]:
    """Return what groups to join have in common: their options, and names up to the last number.

    Groups of several nodes are not joined.
    """
    name, options = group["name"], group["options"]
    texts = (name, *(str(options[key]) for key in options if key == "NodeAddr"))
    stems = [_LAST_NUMBER.sub("", text) for text in texts if _NUMBERED.fullmatch(text)]
    rest = {key: value for key, value in options.items() if key != "NodeAddr"}
    return (stems if len(stems) == len(texts) else name), rest


def _partitions(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in source.rows("partitionname"):
        options = {setting.name: _value(setting.value) for setting in row.all.values()}
        for option in ("Nodes", "State"):
            if option.lower() not in row.values:
                options[option] = None
        for name in row.first.words():
            yield name, {"options": options}


def _accounting(
    configuration: Configuration, source: Source, controller: str, left_out: list[str]
) -> dict[str, Any]:
    slurmdbd = configuration.get("slurmdbd.conf")
    host = (
        (slurmdbd.get("dbdhost") if slurmdbd else None)
        or source.get("accountingstoragehost")
        or "localhost"
    )
    options = _options(slurmdbd, left_out) if slurmdbd else {}
    return {
        "host": controller if host == "localhost" else _without_domain(host),
        **({"slurmdbd": options} if options else {}),
    }


def _files(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """Yield the texts of the other files, in which included files replace their Include lines."""
    for kind, source in configuration.files.items():
        if kind not in {"slurm.conf", "slurmdbd.conf", "cgroup.conf"}:
            text = "".join(line.raw for _, line in source.lines if not line.include)
            yield kind, _literal(text)
    for kind in OTHER_KINDS:
        if path := configuration.others.get(kind):
            yield kind, _literal(conf.read_text(path))


def _literal(text: str) -> LiteralScalarString:
    literal: LiteralScalarString = LiteralScalarString(
        _UNPRINTABLE.sub("?", text.replace("\r\n", "\n").replace("\t", "        "))
    )
    return literal


def _printable(data: Any) -> Any:
    """Return data with "?" in place of each character that a scenario cannot hold."""
    if isinstance(data, dict):
        return {_printable(key): _printable(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_printable(value) for value in data]
    # The type is kept, because a literal is written as one.
    return type(data)(_UNPRINTABLE.sub("?", data)) if isinstance(data, str) else data


def _replacement_notes(configuration: Configuration) -> Iterator[str]:
    """Yield notes on files in which characters are replaced."""
    texts = {
        str(source.path): "".join(line.raw for _, line in source.lines) for source in configuration
    }
    texts |= {str(path): conf.read_text(path) for path in configuration.others.values()}
    for path, text in texts.items():
        if count := len(_UNPRINTABLE.findall(text.replace("\r\n", "\n"))):
            yield f"{path}: {count} control characters, replaced by ?"


def _unread_files(path: Path, configuration: Configuration) -> list[str]:
    read = {str(source.path) for source in configuration} | {
        name for file in configuration for name, _ in file.lines
    }
    read |= {str(file) for file in configuration.others.values()}
    return sorted(
        str(file.relative_to(path))
        for file in path.rglob("*")
        if file.is_file() and str(file) not in read
    )


def _controllers(source: Source) -> list[str]:
    hosts = [host.value.partition("(")[0] for host in source.all_of("slurmctldhost")]
    hosts = hosts or (source.get("controlmachine") or "").split(",")
    return [host for host in hosts if host]


def _without_domain(host: str) -> str:
    """Return a host's name without its domain."""
    return host.partition(".")[0]


def _value(value: str) -> int | str | None:
    """Return a number as an integer if YAML writes it in the same way."""
    number = conf.number(value)
    return number if str(number) == value else value


def _hosts(value: str) -> str:
    """Return a hostlist in the scenario's syntax."""
    names = names_of(value)
    if names is None:
        raise UsageError(f'"{value}" is not a hostlist')
    return value if _ONE_HOSTLIST.fullmatch(value) else hostlist.fold(names)
