"""The report of a run: report.json and junit.xml."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar
from xml.etree import ElementTree

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

from harness.errors import UsageError, cannot_read
from harness.events import Seconds, what_is_wrong
from harness.parsing import bounded_json, hostlist
from harness.plan import Host, Plan
from harness.report.verdict import FAILED, PASSED, UNKNOWN, exit_code
from harness.scenario import SLURMDBD
from harness.topology import Box

# Characters that XML 1.0 does not allow.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OUTCOMES = (PASSED, FAILED, "error", "skipped")
# Levels of nested boxes, such as a federation and its clusters, or the switches of a tree.
_DEEPEST_BOX = 32
_T = TypeVar("_T")
# Seconds since 1970, up to the year 9999.
_Moment = Annotated[int, Field(ge=0, le=253402300799)]


class _Stage(BaseModel):
    name: str
    seconds: Seconds


class _Job(BaseModel):
    cluster: str
    job_id: int
    origin: int
    state: str
    node_list: str
    submit: _Moment | None
    start: _Moment | None
    end: _Moment | None


def _having(kind: type[BaseModel]) -> AfterValidator:
    """Return a validator that requires the fields of a model, and leaves the value unchanged."""

    def check(value: _T) -> _T:
        kind.model_validate(value, strict=True)
        return value

    return AfterValidator(check)


def _one_of(*words: str) -> AfterValidator:
    def check(value: str) -> str:
        if value not in words:
            raise ValueError(f"not one of {', '.join(words)}")
        return value

    return AfterValidator(check)


def _nodes(value: str) -> str:
    hostlist.count(value)
    return value


def _shallow(boxes: list[Box]) -> list[Box]:
    level: list[Box] = boxes
    for _ in range(_DEEPEST_BOX):
        level = [inner for box in level for inner in box.boxes]
    if level:
        raise ValueError(f"more than {_DEEPEST_BOX} levels of nested boxes")
    return boxes


_Boxes = Annotated[list[Box], AfterValidator(_shallow)]


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    `outcome` is passed, failed (the cluster is wrong), error (the check could not decide) or
    skipped.
    """

    id: str
    outcome: Annotated[str, _one_of(*_OUTCOMES)]
    seconds: Seconds
    message: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report says about a run.

    `problem` is why there is no verdict; `topologies` has a picture of each topology, `layout` one
    of all hosts; `kubernetes` is the API that stored the ledger of shared clusters; `nodes` has a
    hostlist for each cluster; `started` is in ISO 8601; `choices` names what each release comes
    from, as `--release` does; `command` repeats the run if `harness run` cannot. Reports of older
    versions may lack fields that have a default.
    """

    scenario: str
    description: str
    verdict: Annotated[str, _one_of(PASSED, FAILED, UNKNOWN)]
    releases: dict[str, str]
    provider: str
    run: str
    stages: list[Annotated[dict[str, Any], _having(_Stage)]]
    checks: list[Check]
    jobs: list[Annotated[dict[str, Any], _having(_Job)]] = field(default_factory=list)
    problem: str = ""
    known_faults: list[str] = field(default_factory=list)
    topologies: dict[str, _Boxes] = field(default_factory=dict)
    kubernetes: str = ""
    events: str = "events.jsonl"
    scenario_path: str = ""
    settings: list[str] = field(default_factory=list)
    started: str = ""
    nodes: dict[str, Annotated[str, AfterValidator(_nodes)]] = field(default_factory=dict)
    federations: dict[str, list[str]] = field(default_factory=dict)
    layout: _Boxes = field(default_factory=list)
    choices: dict[str, str] = field(default_factory=dict)
    command: str = ""

    def exit_code(self) -> int:
        """Return the exit code of the verdict."""
        return exit_code(self.verdict)


def layout(plan: Plan) -> list[Box]:
    """Return a picture of the hosts and their daemons, grouped by cluster and federation."""
    scenario = plan.scenario

    def box(name: str, hosts: Sequence[Host]) -> Box:
        hosts_with: dict[str, list[str]] = {}
        for host in hosts:
            daemons = [daemon for daemon in host.daemons if daemon != "munge"]
            hosts_with.setdefault(
                " ".join(daemons) or ("login" if host.login else host.provision), []
            ).append(host.name)
        site = f", site {hosts[0].site}" if len(plan.sites()) > 1 else ""
        return Box(
            name + site,
            rows=tuple((hostlist.fold(names), daemons) for daemons, names in hosts_with.items()),
        )

    clusters = {
        name: box(
            f"cluster {name}, Slurm {release}",
            [host for host in plan.hosts if host.cluster == name],
        )
        for name, release in plan.versions().items()
        if name in scenario.clusters
    }
    boxes = [
        Box(
            f"federation {name}",
            boxes=tuple(clusters.pop(member) for member in federation.clusters),
        )
        for name, federation in scenario.federations.items()
    ]
    others = [host for host in plan.hosts if not host.cluster]
    release = plan.versions().get(SLURMDBD)
    return [
        *boxes,
        *clusters.values(),
        *([box(f"accounting, Slurm {release}", others)] if others else []),
    ]


def write(report: Report, directory: Path) -> None:
    """Write report.json."""
    (directory / "report.json").write_text(json.dumps(asdict(report), indent=2) + "\n")


def write_junit(checks: Sequence[Check], path: Path) -> None:
    """Write junit.xml in pytest's format, for checks that pytest did not run."""
    outcomes = Counter(check.outcome for check in checks)
    suite = ElementTree.Element(
        "testsuite",
        name="slurm-harness",
        tests=str(len(checks)),
        failures=str(outcomes["failed"]),
        errors=str(outcomes["error"]),
        skipped=str(outcomes["skipped"]),
        time=f"{sum(check.seconds for check in checks):.3f}",
    )
    for check in checks:
        kind, _, name = check.id.rpartition("::")
        case = ElementTree.SubElement(
            suite, "testcase", classname=kind, name=name, time=f"{check.seconds:.3f}"
        )
        if check.outcome != "passed":
            tag = {"failed": "failure"}.get(check.outcome, check.outcome)
            message = _NOT_IN_XML.sub("?", check.message)
            ElementTree.SubElement(case, tag, message=message.partition("\n")[0]).text = message
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def read(directory: Path) -> Report:
    """Read report.json, including that of older versions.

    UsageError if it does not exist or is not a report.
    """
    path = directory / "report.json"
    try:
        data = bounded_json.load(path.read_text(encoding="utf-8"))
        known = {field.name for field in fields(Report)}
        return TypeAdapter(Report).validate_python(
            {name: value for name, value in data.items() if name in known}
        )
    except FileNotFoundError as error:
        raise UsageError(
            f"{directory} has no report.json", hint="`harness verify --run RUN` writes one"
        ) from error
    except ValidationError as error:
        problem = what_is_wrong(error)
        raise UsageError(
            f"{path} is not a report: {problem}", hint="`harness run --report DIR` writes one"
        ) from error
    except OSError as error:
        raise UsageError(cannot_read(path, error)) from error
    except (ValueError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a report: {error}", hint="`harness run --report DIR` writes one"
        ) from error


def compare(reports_of: Mapping[Path, Report]) -> dict[str, Any]:
    """Return how runs differ, given the report of each directory.

    Lists have a value for each run, or None. Only checks whose outcomes differ are included.
    """

    def side_by_side(values_of_runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        names = dict.fromkeys(name for values in values_of_runs for name in values)
        return {name: [values.get(name) for values in values_of_runs] for name in names}

    reports = [*reports_of.values()]
    outcomes = side_by_side(
        [{check.id: check.outcome for check in report.checks} for report in reports]
    )
    return {
        "runs": [*map(str, reports_of)],
        "scenarios": [report.scenario for report in reports],
        "verdicts": [report.verdict for report in reports],
        "releases": side_by_side([report.releases for report in reports]),
        "checks": {name: values for name, values in outcomes.items() if len({*values}) > 1},
        "checks_alike": sum(len({*values}) == 1 for values in outcomes.values()),
        "seconds": side_by_side([_seconds(report) for report in reports]),
    }


def _seconds(report: Report) -> dict[str, float]:
    """Return the seconds of each stage, summed up if it ran several times."""
    seconds: dict[str, float] = {}
    for stage in report.stages:
        seconds[stage["name"]] = round(seconds.get(stage["name"], 0) + stage["seconds"], 2)
    return seconds | {"total": round(sum(seconds.values()), 2)}
