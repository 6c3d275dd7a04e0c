"""Read a scenario file, and report every problem with its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, get_args

from pydantic import ValidationError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from harness import origins, releases, run_secrets
from harness.errors import Problem, ScenarioError, UsageError, cannot_read
from harness.origins import NotAnOrigin, Origin
from harness.parsing import bounded_yaml
from harness.scenario.contradictions import (
    contradictions,
    place_of,
    too_old_for_topology,
    wrong_releases,
)
from harness.scenario.model import Model, Path_, Scenario, did_you_mean

# Control characters except tabs: texts go to terminals, and into lines of other files.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
# Keys of a cluster whose values can be in files next to the scenario.
_WITH_FILES = ("scripts", "spank_plugins")
# The same for keys of a node group.
_USER_DATA = "user_data"
# Keys of a cluster with texts of several lines.
_SEVERAL_LINES = {(key,) for key in ("files", *_WITH_FILES)}
# Lines and columns, from 1, of the parts of a scenario.
_Places = dict[Path_, tuple[int, int]]
# The part that a problem is about, its message, and whether it is about the key, not the value.
_Entry = tuple[Path_, str, bool]


def name_of(path: Path) -> str:
    """Return the name of a file's scenario; raise UsageError if runs cannot be named after it."""
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_.-]*", path.stem):
        raise UsageError(
            f'"{path.name}": a run is named after its scenario\'s file',
            hint="give the file a name of letters, digits, dots, hyphens and underscores",
        )
    return path.stem


def load(
    path: Path,
    choices: Sequence[str] = (),
    origin_of_image: Callable[[str], Origin] | None = None,
    lacks: Callable[[Scenario], Iterable[tuple[Path_, str]]] = lambda _: (),
    settings: Sequence[str] = (),
    origin_of: Mapping[str, Origin] = MappingProxyType({}),
) -> Scenario:
    """Read a scenario and put it on the releases that `choices` names (see Scenario.put_on).

    `settings` override values of the file. Each is KEY=VALUE: keys with dots between, such as
    clusters.a.nodes.0.cpus, and a value as in the file. `origin_of_image` returns the origin of
    an image, and `lacks` what the hosts cannot do. Without `origin_of_image` no image is
    inspected: see `unprobed_images`. `origin_of` are the known origins of some parts, which are not
    looked into again.

    Raises ScenarioError, which lists all problems of the file, in the order of their lines.
    """
    keys: _Places = {}
    values: _Places = {}
    data, entries = _read(path, keys, values)
    for setting in settings:
        _set(data, setting)
    entries.extend((at, message, False) for at, message in _unprintable(data))
    entries.extend((at, message, False) for at, message in _read_scripts(path, data))
    scenario = _validate(data, entries)
    if scenario:
        impossible = [*lacks(scenario)]
        wrong = [*contradictions(scenario, data), *impossible]
        reader = None if impossible else origin_of_image
        scenario = scenario.with_origins(origin_of).put_on(choices)
        scenario, wrong_origins = _with_origins(scenario, path.parent)
        scenario, wrong_images = _with_origins_of_images(scenario, reader)
        wrong += (
            *wrong_origins,
            *wrong_images,
            *wrong_releases(scenario),
            *too_old_for_topology(scenario),
        )
        entries.extend((at, message, False) for at, message in wrong)
    if scenario and not entries:
        return scenario
    problems = [
        _problem(path, at, message, keys if on_key else values)
        for at, message, on_key in dict.fromkeys(entries)
    ]
    raise ScenarioError(sorted(problems, key=lambda problem: (problem.line, problem.column)))


def _read(path: Path, keys: _Places, values: _Places) -> tuple[dict[str, Any], list[_Entry]]:
    """Return the data of a scenario file, and its duplicate keys; record all places."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(bounded_yaml.MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(
            cannot_read(path, error), hint="`harness init` writes a scenario to start from"
        ) from error
    duplicates: list[_Entry] = []
    try:
        document = bounded_yaml.Document(text)
        if isinstance(document.node, MappingNode):
            duplicates += (
                (at, message, True) for at, message in _walk(document.node, (), keys, values)
            )
        data = document.data()
    except bounded_yaml.NotPlain as error:
        raise ScenarioError([Problem(path, error.line, error.column, "", error.message)]) from error
    if not isinstance(data, dict):
        message = 'a scenario must be a mapping with keys such as "clusters:"'
        raise ScenarioError([Problem(path, 1, 1, "", message)])
    return data, duplicates


def script_files(path: Path) -> list[str]:
    """Return the files, relative to a valid scenario, that its texts are in."""
    data = bounded_yaml.load(path.read_text(encoding="utf-8"))
    return [script["file"] for _, script in _scripts(data) if script.get("file")]


def _scripts(data: Any) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """Yield the scripts, plugins and user-data of a scenario's data, which may be invalid."""
    clusters = data.get("clusters") if isinstance(data, dict) else None
    for name, cluster in clusters.items() if isinstance(clusters, dict) else ():
        if not isinstance(cluster, dict):
            continue
        for key in _WITH_FILES:
            scripts = cluster.get(key)
            for at, script in scripts.items() if isinstance(scripts, dict) else ():
                if isinstance(script, dict):
                    yield ("clusters", name, key, at), script
        groups = cluster.get("nodes")
        for index, group in enumerate(groups if isinstance(groups, list) else ()):
            user_data = group.get(_USER_DATA) if isinstance(group, dict) else None
            if isinstance(user_data, dict):
                yield ("clusters", name, "nodes", index, _USER_DATA), user_data


def _read_scripts(path: Path, data: Any) -> Iterator[tuple[Path_, str]]:
    """Add the texts of scripts that are in files; yield those that cannot be read or used."""
    for at, script in _scripts(data):
        name = script.get("file")
        if ("file" in script) == ("text" in script):
            yield at, "needs either a file or a text"
        elif isinstance(name, str) and name:
            try:
                script["text"] = _script_text(path.parent, name)
            except OSError as error:
                yield (*at, "file"), cannot_read(Path(name), error)
            except ValueError as error:
                yield (*at, "file"), f"{name}: {error}"
        if run_secrets.secrets_in(str(script.get("text"))):
            yield at, "has a placeholder for a secret of the harness (%secret:)"


def _script_text(directory: Path, name: str) -> str:
    """Return a file's text, with its line ends; it must be below the directory."""
    file = directory / name
    if not file.resolve().is_relative_to(directory.resolve()):
        raise ValueError("outside of the scenario's directory")
    with file.open(encoding="utf-8", newline="") as stream:
        text = stream.read(bounded_yaml.MOST_BYTES + 1)
    if len(text) > bounded_yaml.MOST_BYTES:
        raise ValueError(f"more than {bounded_yaml.MOST_BYTES >> 20} MiB")
    return text


def _problem(path: Path, at: Path_, message: str, places: _Places) -> Problem:
    """Return a problem with its place, or with that of the nearest part above it that has one."""
    prefix = next(at[:length] for length in range(len(at), -1, -1) if at[:length] in places)
    line, column = places[prefix]
    return Problem(path, line, column, ".".join(map(str, at)), message)


def unprobed_images(path: Path, scenario: Scenario) -> list[Problem]:
    """Return where a scenario names the user's own images, for commands that inspect none."""
    problems: list[Problem] = []
    places: _Places = {}
    for name, part in scenario.parts().items():
        if part.image:
            if not places and (
                node := bounded_yaml.Document(path.read_text(encoding="utf-8")).node
            ):
                [*_walk(node, (), {}, places)]
            at = (*place_of(name), "image")
            line, column = places.get(at, (1, 1))  # --set may have added it
            message = f"{part.image} was not inspected; assuming Slurm {scenario.release_of(part)}"
            problems.append(Problem(path, line, column, ".".join(map(str, at)), message))
    return problems


def _set(data: dict[str, Any], setting: str) -> None:
    """Set the value of KEY=VALUE; raise UsageError if there is no such key."""
    key, equals, value = setting.partition("=")
    *above, last = key.split(".")
    place: Any = data
    try:
        if not equals:
            raise ValueError("no =")  # noqa: TRY301  reported with the others
        for part in above:
            if isinstance(place, dict) and place.get(part) is None:
                place[part] = {}  # the model reports keys that it does not know
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[int(last) if isinstance(place, list) else last] = bounded_yaml.load(value)
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"--set {setting}: the scenario has no such key, or the value is invalid",
            hint=(
                "write KEY=VALUE, such as clusters.alpha.nodes.0.cpus=4; items of a list count "
                "from 0"
            ),
        ) from error


def _unprintable(data: Any, at: Path_ = ()) -> Iterator[tuple[Path_, str]]:
    """Yield texts with control characters, or with line ends where a text must be a single line."""
    match data:
        case dict():
            for key, value in data.items():
                yield from _unprintable(key, (*at, key))
                yield from _unprintable(value, (*at, key))
        case list():
            for index, item in enumerate(data):
                yield from _unprintable(item, (*at, index))
        case str():
            several_lines = (
                at == ("description",)
                or at[2:3] in _SEVERAL_LINES
                or at[2:5:2] == ("nodes", _USER_DATA)
            )
            if wrong := _CONTROL.search(
                data.replace("\n", "").replace("\r", "") if several_lines else data
            ):
                yield at, f"has a control character ({wrong[0]!a})"


def _walk(node: Node, at: Path_, keys: _Places, values: _Places) -> Iterator[tuple[Path_, str]]:
    """Record the place of each key and value; yield the keys that a mapping has twice."""
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


def _validate(data: dict[str, Any], entries: list[_Entry]) -> Scenario | None:
    """Return the scenario without its invalid parts; add their problems to `entries`.

    None if no valid scenario is left.
    """
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        errors = error.errors()
    for entry in errors:
        at = _in_data(entry["loc"], data)
        missing = entry["type"] == "missing"
        unknown = entry["type"] == "extra_forbidden"
        entries.append(
            ((*at, entry["loc"][-1]) if missing else at, _reason(entry), unknown or missing)
        )
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
    """Remove what pydantic adds to a place: the names of keys and of union members."""
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
    """Remove a part; in a list, also remove all later parts, so that other indices stay valid."""
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
            return f"unknown key{did_you_mean(str(loc[-1]), _fields_at(loc[:-1]))}"
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


def _with_origins_of_images(
    scenario: Scenario, origin_of_image: Callable[[str], Origin] | None
) -> tuple[Scenario, list[tuple[Path_, str]]]:
    """Return the scenario with the origins of its images, and where it contradicts them."""
    wrong: list[tuple[Path_, str]] = []
    found: dict[str, Origin] = {}
    for name, part in scenario.parts().items():
        if not part.image or part.origin or not origin_of_image:
            continue
        origin = origin_of_image(part.image)
        release = origin.release
        if part.release not in {None, release}:
            wrong.append(
                (
                    (*place_of(name), "release"),
                    f"{part.release}, but image {part.image} has Slurm {release}",
                )
            )
        elif release not in releases.KNOWN:
            known = ", ".join(releases.KNOWN)
            wrong.append(((*place_of(name), "image"), f"it has Slurm {release}; known: {known}"))
        else:
            found[name] = origin
    return scenario.with_origins(found), wrong


def _with_origins(scenario: Scenario, directory: Path) -> tuple[Scenario, list[tuple[Path_, str]]]:
    """Return the scenario with the origins of its parts, and where these cannot be used.

    Paths are relative to the scenario's directory.
    """
    wrong: list[tuple[Path_, str]] = []
    found: dict[str, Origin] = {}
    for name, part in scenario.parts().items():
        wanted = scenario.wanted(part)
        if part.origin or not wanted:
            continue
        try:
            found[name] = origins.resolve(wanted.under(directory), part.release)
        except NotAnOrigin as error:
            key = "source" if wanted.source else "packages" if wanted.packages else "base"
            at: Path_ = (*place_of(name), key) if getattr(part, key) else (key,)
            wrong.append((at, f"{error}; {error.hint}" if error.hint else str(error)))
    return scenario.with_origins(found), wrong
