"""resources.yaml and rpc_queue.yaml."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.parsing import bounded_yaml, conf, hostlist
from harness.slurmconf.check import hierarchies, topologies, yaml_file
from harness.slurmconf.check.findings import ERROR, FATAL, SLURMCTLD, WARNING, Finding, only_in
from harness.slurmconf.check.hierarchies import Layer
from harness.slurmconf.check.nodes import names_of, node_names
from harness.slurmconf.check.parsed_file import Configuration, Source


def check(configuration: Configuration) -> Iterator[Finding]:
    """Yield what slurmctld refuses in these files."""
    yield from only_in(SLURMCTLD, _problems(configuration))


def _problems(configuration: Configuration) -> Iterator[Finding]:
    slurm_conf, release = configuration.get("slurm.conf"), configuration.release
    parameters = (slurm_conf.get("slurmctldparameters") or "") if slurm_conf else ""
    queues = bool(release.rpc_queue_file) and "enable_rpc_queue" in parameters.lower()
    for kind, is_read, rule in (
        ("resources.yaml", release.reads_resources, _resources),
        ("rpc_queue.yaml", queues, _rpc_queue),
    ):
        path = configuration.others.get(kind)
        if path and is_read:
            try:
                document = bounded_yaml.Document(yaml_file.first_document(conf.read_text(path)))
            except bounded_yaml.NotPlain as error:
                yield yaml_file.find(path, error.line, FATAL, "unreadable", "", error.message)
            else:
                yield from rule(path, document, configuration)


def _rpc_queue(
    path: Path, document: bounded_yaml.Document, configuration: Configuration
) -> Iterator[Finding]:
    """Yield an rpc_queue.yaml that src/slurmctld/rpc_queue.c, _load_config, refuses."""
    required = configuration.release.rpc_queue_file
    if required == "absent":
        message = "slurmctld crashes, because it reads the file before its plugin for YAML"
        yield yaml_file.find(path, 1, FATAL, "file", "", message)
    elif required == "mapping" and not isinstance(document.data(), dict):
        yield yaml_file.find(path, 1, FATAL, "value", "", "must be a mapping")


def _resources(
    path: Path, document: bounded_yaml.Document, configuration: Configuration
) -> Iterator[Finding]:
    """Yield what src/slurmctld/licenses.c refuses.

    _parse_hierarchical_resources() reads the file, hres_init() compares its layers.
    """
    data = document.data()
    if not isinstance(data, list):
        yield yaml_file.find(path, 1, FATAL, "value", "", "must be a list of resources")
        return
    layers: list[Layer] = []
    known = topologies.names(configuration)
    for index, resource in enumerate(data):
        node = yaml_file.at(document.node, index)
        if not configuration.release.resources_have_variables:
            yield from _without_variables(path, resource, node)
        problem = _problem(resource, _RESOURCE)
        if not problem and not _are_variables(resource.get("variables")):
            problem = "variables", _NO_VARIABLES
        if problem:
            yield yaml_file.find(path, yaml_file.line_of(node), FATAL, "value", *problem)
            continue
        if problem := _wrong_topology(resource, known):
            yield yaml_file.find(path, yaml_file.line_of(node), FATAL, "undefined", *problem)
        for place, layer in enumerate(resource["layers"] or ()):
            line = yaml_file.line_of(yaml_file.at(yaml_file.at(node, "layers"), place))
            problem = _problem(layer, _LAYER)
            if not problem and not _are_variables(layer.get("base")):
                problem = "base", _NO_VARIABLES
            if problem:
                yield yaml_file.find(path, line, FATAL, "value", *problem)
            else:
                layers.append(_layer(resource, layer, line))
    yield from _compared(path, layers, configuration.get("slurm.conf"))


def _without_variables(path: Path, resource: Any, node: Any) -> Iterator[Finding]:
    """Yield what a resource has that 25.05 ignores, and remove it from the resource."""
    if not isinstance(resource, dict):
        return
    line, ignored = yaml_file.line_of(node), "is unknown and ignored"
    for key in ("topology", "variables"):
        if resource.pop(key, None) is not None:
            yield yaml_file.find(path, line, WARNING, "unknown", key, ignored)
    layers = resource.get("layers")
    for place, layer in enumerate(layers if isinstance(layers, list) else ()):
        if isinstance(layer, dict) and layer.pop("base", None) is not None:
            at = yaml_file.at(yaml_file.at(node, "layers"), place)
            yield yaml_file.find(path, yaml_file.line_of(at), WARNING, "unknown", "base", ignored)
    if resource.get("mode") == "MODE_3":
        resource["layers"] = None
        yield yaml_file.find(path, line, ERROR, "unknown", "mode", "MODE_3 is unknown")


def _wrong_topology(
    resource: Mapping[str, Any], known: Collection[str] | None
) -> tuple[str, str] | None:
    """Return the key and the message if a MODE_3 names a topology that does not exist.

    _foreach_layer() of the data_parser passes the topology on with variables only.
    """
    name = resource.get("topology")
    if name is None or not resource.get("variables") or resource["mode"] != "MODE_3":
        return None
    is_known = known is None or str(name) in known or not resource["layers"]
    return None if is_known else ("topology", f"there is no topology {name}")


def _layer(resource: dict[str, Any], layer: dict[str, Any], line: int) -> Layer:
    base = sum(_number(variable["value"]) or 0 for variable in layer.get("base") or ())
    return Layer(
        str(resource["resource"]),
        str(resource["mode"]),
        frozenset(_nodes(layer["nodes"]) or ()),
        (_number(layer["count"]) or 0) % 2**32,
        base,
        line,
    )


def _compared(path: Path, layers: list[Layer], slurm_conf: Source | None) -> Iterator[Finding]:
    """Yield layers that contradict each other, or slurm.conf."""
    nodes = node_names(slurm_conf) if slurm_conf else None
    licenses = re.split("[,;|]", (slurm_conf.get("licenses") or "") if slurm_conf else "")
    names = {re.split("[:=]", name)[0] for name in licenses} - {""}
    earlier: dict[str, list[Layer]] = {}
    problems = []
    for layer in layers:
        missing = [] if nodes is None else sorted(layer.nodes - nodes.keys())
        same = earlier.setdefault(layer.resource, [])
        option, problem = "nodes", ""
        if layer.resource in names:
            option, problem = "resource", f"{layer.resource} is also one of Licenses"
        elif same and same[0].mode != layer.mode:
            option, problem = "mode", f"{layer.resource} has two modes"
        elif layer.nodes in {other.nodes for other in same}:
            problem = f"{layer.resource} has two layers of the same nodes"
        elif missing:
            problem = f"no such node: {hostlist.fold(missing)}"
        if problem:
            problems.append(problem)
            yield yaml_file.find(path, layer.line, FATAL, "contradiction", option, problem)
        same.append(layer)
    if not problems and (found := hierarchies.problem(layers, len(names))):
        layer, option, problem = found
        yield yaml_file.find(path, layer.line, FATAL, "contradiction", option, problem)


def _problem(data: object, keys: Mapping[str, Callable[[Any], bool]]) -> tuple[str, str] | None:
    """Return the required key that data lacks or has a wrong value for, and why."""
    if not isinstance(data, dict):
        return "", f"must be a mapping with {', '.join(keys)}"
    for key, accepts in keys.items():
        if key not in data:
            return key, "is missing"
        if not accepts(data[key]):
            return key, f"{data[key]!r} is not accepted"
    return None


def _are_variables(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(not _problem(item, _VARIABLE) for item in value)
    )


def _number(value: object) -> int | None:
    """Return a number as the parser UINT32_NO_VAL reads it; None if it does not."""
    if isinstance(value, bool) or value is None or isinstance(value, list):
        return None
    if isinstance(value, dict):
        return _number(value.get("number", 0))
    try:
        return int(value, 0) if isinstance(value, str) else int(str(value))
    except ValueError:
        return None


def _nodes(value: object) -> tuple[str, ...] | None:
    """Return the nodes of a hostlist, or of a list of hostlists; None if it is neither."""
    if value is None or isinstance(value, dict):
        return None
    lists = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return names_of(",".join(lists))


def _is_text(value: object) -> bool:
    return not isinstance(value, list | dict)


_NO_VARIABLES = "must be a list, each with a name and a value"
_VARIABLE = {"name": _is_text, "value": lambda value: _number(value) is not None}
_LAYER = {
    "nodes": lambda value: _nodes(value) is not None,
    "count": lambda value: _number(value) is not None,
}
_RESOURCE: Mapping[str, Callable[[Any], bool]] = {
    "resource": _is_text,
    "mode": lambda _: True,
    "layers": lambda value: value is None or isinstance(value, list),
}
