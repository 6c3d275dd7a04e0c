"""Whatever a file or option contains, its reader soon returns data or raises a HarnessError."""

from __future__ import annotations

import gzip
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from harness import releases, scenario
from harness.capabilities import OWN_MACHINES
from harness.cli import printing
from harness.cluster import logs
from harness.errors import CannotVerify, HarnessError, ScenarioError, UsageError
from harness.parsing import bounded_json, bounded_yaml, hostlist
from harness.plan import make_plan
from harness.providers.existing import hosts
from harness.rehearsal import invariants, workload
from harness.render import render
from harness.report import html_report, model
from harness.rundir import RunDir, write_rendered
from harness.shipped_files import SCENARIOS
from harness.site import importer, rehearsal_copy, site_data
from harness.slurmconf import check, diff

RELEASE = releases.get("24.11")
SCENARIO = """\
description: one of everything
clusters:
  a:
    controller: ctl
    nodes:
      - {name: "n[1-3]", cpus: 2, gres: ["gpu:x:2"], features: [f], options: {Weight: 1}}
      - {name: "p[1-2]", provision: power}
    options: {ResumeTimeout: 60, SchedulerParameters: x}
    partitions: {main: {default: true, nodes: "n[1-3]", options: {MaxNodes: 2}}}
    files: {gres.conf: "x\\n", helper.sh: "#!/bin/sh\\n"}
  b: {controller: ctl-b, nodes: [{name: m1}]}
accounting:
  accounts: {physics: {}, optics: {parent: physics}}
  qos: {urgent: {options: {Priority: 10}}}
users: {alice: {uid: 2001, accounts: [optics], qos: [urgent]}}
federations: {f: {clusters: [a, b]}}
sites: {home: {subnet: 10.20.0.0/24}}
rehearsal: {jobs: 5, faults: [{at: 1, lasts: 2.5, fault: kill-daemon ctl slurmctld}]}
"""
SLURM_CONF = """\
ClusterName=c
SlurmctldHost=head
# a comment
AccountingStorageType=accounting_storage/slurmdbd
AccountingStoragePass=secret
NodeName=DEFAULT CPUs=4
NodeName=n[1-4] NodeAddr=10.0.0.[1-4] RealMemory=500 Gres=gpu:2
NodeName=c1 State=CLOUD
DownNodes=n1 State=DOWN
ResumeTimeout=60
PartitionName=p Nodes=n[1-4] MaxTime=60 Default=YES
"""
TOPOLOGY = "- topology: t\n  tree: {switches: [{switch: s, nodes: 'n[1-4]'}]}\n"
YAML_TOKENS = [
    *(
        "null",
        "[]",
        "{}",
        "''",
        '"\\ud800"',
        '"\\0"',
        "2001-99-99",
        "!!int abc",
        "!!bool x",
        "!!set {a}",
        "!!binary x",
    ),
    *(
        "9" * 5000,
        "-1",
        "1e999",
        ".nan",
        "*a",
        "&a ",
        "&a [*a]",
        "<<: *a",
        "<<: 3",
        "? [a]\n: b",
        "5: 6",
        "n[1-1000000]",
    ),
    *(
        "n[1-9999]x[1-9999]",
        "n[1-2]" * 200,
        "gpu:a:999999999",
        "gpu:x:2K",
        "manifest.json",
        "a" * 300,
        "\0",
        "\x01",
    ),
    *(
        "\x85",
        "\u2028",
        "[",
        "]",
        "{",
        "}",
        ":",
        "- ",
        "| ",
        "%YAML 3.0\n",
        "---\n",
        "\t",
        "'",
        '"',
        "#",
        "²",
        "[" * 2000,
    ),
]
CONF_TOKENS = [
    *(
        "=",
        '"',
        "#",
        "\\",
        "\n",
        "\r",
        "\0",
        "\x01",
        "\x0b",
        "\x85",
        "\xff",
        "é",
        "[",
        "]",
        "n[1-1000000]",
        "n[1-2]" * 200,
    ),
    *(
        "9" * 5000,
        "-1",
        "null",
        "Include x",
        "NodeName=",
        "PartitionName=",
        "DEFAULT",
        "State=",
        "a" * 300,
        ",",
        "²",
    ),
]
SWF_TOKENS = ["nan", "inf", "-inf", "1e308", "1e999", "9" * 5000, "-1", "x", "²", "\n", "1_0"]


@contextmanager
def bounded() -> Iterator[None]:
    """Allow only the harness's own errors, 20 s of CPU time and 300 MB."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with suppress(HarnessError):
        yield
    assert time.process_time() - started < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def mutated(text: str, tokens: list[str]) -> st.SearchStrategy[str]:
    """Return variants of a text: with a few tokens inserted or replaced, or parts left out."""
    change = st.tuples(
        st.integers(0, len(text)),
        st.sampled_from([0, 0, 1, 2, 5, 40]),
        st.sampled_from(["", *tokens]),
    )

    def changed(changes: list[tuple[int, int, str]]) -> str:
        done = text
        for at, length, token in changes:
            done = done[:at] + token + done[at + length :]
        return done

    return st.lists(change, min_size=1, max_size=4).map(changed)


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in some data."""
    for key, value in (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    ):
        yield (*at, key)
        yield from places(value, (*at, key))


def damaged(data: Any) -> st.SearchStrategy[Any]:
    """Return JSON data with one value changed or left out."""
    junk = [
        None,
        -1,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\ud800",
        "\0",
        [],
        {},
        [None],
        True,
        10**30,
        2.5,
    ]
    junk += [
        "n[1-1000000]",
        "2001-99-99",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "[/b]",
    ]

    def changed(choice: tuple[tuple[Any, ...], Any, bool]) -> Any:
        (*above, last), value, remove = choice
        copy = json.loads(json.dumps(data))
        part = copy
        for key in above:
            part = part[key]
        if remove:
            del part[last]
        else:
            part[last] = value
        return copy

    return st.tuples(st.sampled_from(list(places(data))), st.sampled_from(junk), st.booleans()).map(
        changed
    )


def load(text: str, directory: Path, *settings_: str) -> scenario.Scenario:
    path = directory / "s.yml"
    path.write_text(text, encoding="utf-8", newline="")
    return scenario.load(path, settings=settings_)


def cluster(more: str, nodes: str = "[{name: n1}]") -> str:
    return f"clusters:\n  a:\n    controller: ctl\n    nodes: {nodes}\n    {more}\n"


@given(mutated(SCENARIO, YAML_TOKENS))
@settings(max_examples=200)
def test_scenario(text: str) -> None:
    with TemporaryDirectory() as directory, bounded():
        read = load(text, Path(directory))
        plan = make_plan("s", read, OWN_MACHINES)
        write_rendered(Path(directory) / "tree", render(plan), with_secrets=False)


PLACES = [".".join(map(str, at)) for at in places(YAML(typ="safe").load(SCENARIO))]


@given(
    st.sampled_from(PLACES),
    st.sampled_from(["", ".", ".x", ".0", ".²", ".-1"]),
    st.sampled_from(YAML_TOKENS),
)
@settings(max_examples=100)
def test_setting(key: str, more: str, value: str) -> None:
    with TemporaryDirectory() as directory, bounded():
        load(SCENARIO, Path(directory), f"{key}{more}={value}")


@given(
    mutated(SLURM_CONF, CONF_TOKENS),
    mutated(TOPOLOGY, YAML_TOKENS),
    mutated("Name=gpu File=/dev/nvidia0\n\tName=x\n", CONF_TOKENS),
    st.sampled_from(["utf-8", "latin-1"]),
)
@settings(max_examples=100)
def test_configuration(slurm_conf: str, topology: str, gres: str, encoding: str) -> None:
    with TemporaryDirectory() as name, TemporaryDirectory() as other:
        directory = Path(name)
        (Path(other) / "slurm.conf").write_text(SLURM_CONF)
        for file, text in (
            ("slurm.conf", slurm_conf),
            ("topology.yaml", topology),
            ("gres.conf", gres),
        ):
            (directory / file).write_bytes(text.encode(encoding, errors="replace"))
        read_configuration(directory, Path(other))


def read_configuration(directory: Path, other: Path) -> None:
    """Check the configuration in a directory, compare it with another, and import it."""
    with bounded():
        findings = check.check_path(directory, releases.get("26.05"), releases.get("20.11"))
    with bounded():
        before, after = diff.directory_source(directory), diff.directory_source(other)
        diff.steps(diff.changes(before, after))
    with bounded():
        data, notes = importer.import_directory(directory, RELEASE)
        text = importer.dump(data, notes)
        bounded_yaml.load(text)
        text.encode()
        importer.dump(rehearsal_copy.shrink(data, 2, findings)[0]).encode()
        with suppress(ScenarioError):
            load(text, directory)


@pytest.mark.parametrize(
    "line",
    [
        "NodeName=n[1-4] Gres=gpu:2",
        "NodeName=n[1-4] RealMemory=2",
        "NodeName=n[1-4] Sockets=2",
        "NodeName=n[1-4] Weight=2",
        "DefMemPerCPU=2",
        "ResumeTimeout=2",
        "PartitionName=p Nodes=n[1-4] MaxTime=2",
        "PartitionName=p Nodes=n[1-4] OverSubscribe=FORCE:2",
    ],
)
def test_numbers_of_five_thousand_digits(line: str, tmp_path: Path) -> None:
    nodes = "NodeName=n[1-4]\n" * (not line.startswith("NodeName"))
    for name, number in (("a", "9" * 5000), ("b", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "slurm.conf").write_text(
            f"ClusterName=c\nSlurmctldHost=head\n{nodes}{line.removesuffix('2')}{number}\n"
        )
    read_configuration(tmp_path / "a", tmp_path / "b")


@given(st.one_of(st.text(alphabet="ab0123[]-,.x²", max_size=30), st.sampled_from(YAML_TOKENS)))
def test_hostlist(text: str) -> None:
    with bounded(), suppress(ValueError):
        names = hostlist.expand(text)
        assert hostlist.count(text) == len(names)
        assert {*hostlist.expand(hostlist.fold(names))} == {*names}


PLAN = make_plan(
    "federation-faults", scenario.load(SCENARIOS / "federation-faults.yml"), OWN_MACHINES
)
TIME = {"time": "2026-11-23T05:47:03+00:00"}
JOB = {
    "job_id": 7,
    "cluster": "aws",
    "name": "r-0",
    "user": "alice",
    "account": "physics",
    "qos": "",
    "state": "COMPLETED",
}
RAN = {
    "step": "",
    "exit_code": 0,
    "signal": 0,
    "node_list": "aws1",
    "submit": 100,
    "start": 101,
    "end": 104,
    "elapsed": 3,
}
EVENTS: list[dict[str, Any]] = [
    {**TIME, "kind": "stage", "name": "up", "seconds": 3.5},
    {**TIME, "kind": "rehearsal", "action": "begin", "token": "r"},
    {**TIME, "kind": "reservation", "cluster": "aws", "name": "x"},
    {
        **TIME,
        "kind": "submission",
        "name": "r-0",
        "cluster": "aws",
        "user": "alice",
        "tasks": 1,
        "ends": "COMPLETED",
    }
    | {"answer": "accepted", "job_id": 7, "submitted": 99.0, "answered": 100.0},
    *(
        {**TIME, "kind": "fault", "action": action, "fault": "kill-host accounting"}
        for action in ("inject", "injected", "heal")
    ),
    {**TIME, "kind": "power", "action": "resume", "nodes": ["aws1"]},
    {**TIME, "kind": "node", "cluster": "aws", "name": "aws1", "state": "DOWN+DRAIN"},
    {
        **TIME,
        "kind": "trace",
        "seen_by": "aws1",
        "job_id": 7,
        "cluster": "aws",
        "host": "aws1",
        "start": 101.5,
        "end": 104.5,
    }
    | {
        "exit_code": 0,
        "name": "r-0",
        "task": None,
        "restarts": 0,
        "user": "alice",
        "account": "physics",
        "qos": "",
    }
    | {"nodes": ["aws1"], "cpus": [2]},
    {
        **TIME,
        "kind": "queue",
        "seen_by": "aws",
        "job_id": 7,
        "state": "COMPLETED",
        "node_list": "aws1",
        "name": "r-0",
    }
    | {"user": "alice", "reason": "None", "array_id": 7},
    {**TIME, "kind": "record", "seen_by": "aws", **JOB, **RAN},
    {
        **TIME,
        "kind": "usage",
        "seen_by": "aws",
        "account": "physics",
        "user": "alice",
        "seconds": 10,
    },
    {**TIME, "kind": "old_records", "cluster": "aws", "tables": ["1\t2", "3\t4"]},
    {**TIME, "kind": "log", "seen_by": "aws1", "daemon": "slurmd", "line": "x"},
    {**TIME, "kind": "log_times", "cluster": "aws", "job_id": 7, "times": [1795576947.008]},
    {**TIME, "kind": "no_evidence", "of": "usage", "where": "aws", "why": "gone"},
    {**TIME, "kind": "rehearsal", "action": "end", "token": "r"},
    {
        **TIME,
        "kind": "check",
        "id": "test_a.py::test_a",
        "outcome": "failed",
        "seconds": 1.5,
        "message": "job 7",
    },
]
REPORT = asdict(
    model.Report(
        "federation-faults",
        "all faults",
        "failed",
        {"aws": "24.11"},
        "docker",
        "runs/x",
        [{"name": "up", "seconds": 3.5}],
        [model.Check("test_a.py::test_a", "failed", 1.5, "job 7")],
        [{**JOB, **RAN, "origin": 2}],
        problem="x",
        nodes={"aws": "aws[1-2]"},
        federations={"f": ["on-prem", "aws"]},
        layout=model.layout(PLAN),
    )
)


def lines(events: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(event)}\n" for event in events)


@given(
    st.one_of(
        damaged(REPORT).map(json.dumps),
        mutated(json.dumps(REPORT), ["NaN", "[" * 100_000, "\0", "null", "1e999"]),
    ),
    st.one_of(
        damaged(EVENTS).map(lines),
        mutated(lines(EVENTS), ["NaN", "[" * 100_000, "\0", "null", "\n", "\u2028"]),
    ),
)
@settings(max_examples=50)  # each renders two reports
def test_report_and_verify(report_json: str, events: str) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        run = RunDir.create(directory / "runs", SCENARIOS / "federation-faults.yml", PLAN, "docker")
        run.events_path.write_text(events)
        for text in (report_json, json.dumps(REPORT)):
            (run.path / "report.json").write_text(text)
            with bounded():
                html_report.write(run.path)
        with bounded():
            invariants.evaluate(invariants.read(run.events(), PLAN))


@given(
    mutated(
        "; x\n1 10 1 5 1 -1 -1 1 -1 -1 1 1 1 1 1 1 -1 -1\n"
        "2 20 1 5 1 -1 -1 1 -1 -1 1 1 1 1 1 1 1 -1\n",
        SWF_TOKENS,
    )
)
@settings(max_examples=200)
def test_trace(text: str) -> None:
    with bounded():
        workload.replay(text, PLAN.scenario, 60)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: \x01", 2, "not YAML: the character U+0001 is not allowed"),
        ("a: !!int abc", 1, '"abc" is not a value of type int'),
        ("a: !!bool abc", 1, '"abc" is not a value of type bool'),
        (f"a: {'9' * 5000}", 1, f'"{"9" * 20}" is not a value of type int'),
        ("a: .nan", 1, '".nan" is not a value of type float'),
        ("a: !!set {b}", 1, "the tag !!set does not match this value"),
        ("a: 1\n? [a]\n: 1", 2, "a key must be text"),
        ("5: 1", 1, 'a key must be text: write "5", with the quotes'),
        ('a: "\\ud800"', 1, "half of a surrogate pair is not a character"),
        ("a: &a [*a]", 1, "an alias cannot be inside the node that it refers to"),
        ("a: &a {b: *a}", 1, "an alias cannot be inside the node that it refers to"),
        ("[" * 40 + "]" * 40, 1, "more than 32 levels of lists and mappings"),
        ("%YAML 1.1\n---\na: 1", 1, "a line that begins with % is a YAML directive: remove it"),
    ],
)
def test_yaml_that_is_not_plain_is_refused_with_its_place(
    text: str, line: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(text, tmp_path)
    [problem] = caught.value.problems
    assert (problem.line, problem.message) == (line, message)


def bomb(width: int, levels: int) -> str:
    rest = (f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]\n" for n in range(1, levels))
    return "a0: &a0 [x, x]\n" + "".join(rest)


@pytest.mark.parametrize(
    ("text", "message"),
    [(bomb(9, 12), "aliases repeat more than 10000 values"), (bomb(1, 100), "more than 32 levels")],
)
def test_alias_bomb_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with bounded(), pytest.raises(ScenarioError, match=message):
        load(text, tmp_path)


def test_aliases_dates_and_merge_keys_are_accepted() -> None:
    text = "a: &a {b: 1}\nc: {<<: *a, d: 2026-11-23, e: 2001-99-99}\nf: [*a, *a]\n=: '='"
    expected = {
        "a": {"b": 1},
        "c": {"b": 1, "d": "2026-11-23", "e": "2001-99-99"},
        "f": [{"b": 1}] * 2,
        "=": "=",
    }
    assert bounded_yaml.load(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (cluster("", "[{name: manifest.json}]"), "uses this name next to the hosts"),
        (cluster("", f"[{{name: {'a' * 65}}}]"), "a name has at most 64 characters"),
        (cluster("", '[{name: "n[1-1000000]"}]'), "has more than 131072 names"),
        (cluster("", '[{name: "n[1-9999]x[1-9999]"}]'), "has more than 10000 names"),
        (cluster("", f'[{{name: "{"n[1-2]" * 20}"}}]'), "has more than 10000 names"),
        (
            cluster("", '[{name: "n[1-131072]"}, {name: m}]'),
            "131073 nodes; a cluster has at most 131072",
        ),
        (cluster("", '[{name: n1, gres: ["gpu:a:999999999"]}]'), "a node has at most 1024 GPUs"),
        (cluster(f"files: {{{'a' * 300}: x}}"), "the name of a file has at most 255 characters"),
        (f"{cluster('')}sites: 5\n", "valid dictionary"),
        (
            f"{cluster('')}accounting: {{accounts: 5, qos: [a]}}\n"
            f"users: {{u: {{uid: 2000, qos: [a]}}}}\n",
            "valid dictionary",
        ),
    ],
)
def test_scenario_beyond_its_bounds_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with bounded(), pytest.raises(ScenarioError, match=message):
        load(text, tmp_path)


def test_scenario_may_have_a_hundred_thousand_nodes(tmp_path: Path) -> None:
    read = load(cluster("hosts: h[1-10]\n    release: '26.05'", '[{name: "n[1-60000]"}]'), tmp_path)
    assert len(read.clusters["a"].node_names()) == 60_000
    assert len(hostlist.expand("n[1-65536,65537-100000]")) == 100_000


def test_gpus_are_counted_with_their_unit(tmp_path: Path) -> None:
    read = load(
        cluster("", '[{name: n1, gres: ["gpu:x:1K"]}, {name: n2, gres: ["gpu:x:2", gpu]}]'),
        tmp_path,
    )
    assert read.clusters["a"].gpus() == {"n1": 1024, "n2": 3}


@pytest.mark.parametrize(
    "setting", ["clusters.a.options=\0", "accounting=!!int x", "clusters=? [a]", "users=2001-99-99"]
)
def test_bad_setting_is_a_usage_error(setting: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        load(SCENARIO, tmp_path, setting)


def test_import_writes_what_it_can_read(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_bytes(
        SLURM_CONF.encode() + b'Epilog="/caf\xe9\x07"\n# \x93quoted\x94\n'
    )
    (tmp_path / "gres.conf").write_bytes(b"# caf\xe9 \x01\nName=gpu Count=2\n")
    data, notes = importer.import_directory(tmp_path, RELEASE)
    read = bounded_yaml.load(importer.dump(data, notes))["clusters"]["c"]
    assert read["files"]["gres.conf"] == "# café ?\nName=gpu Count=2\n"
    assert read["options"]["Epilog"] == "/café?"
    assert f"{tmp_path / 'gres.conf'}: 1 control characters, replaced by ?" in notes


def test_rehearsal_copy_of_a_site_without_partitions(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nSlurmctldHost=h\nNodeName=n1\n")
    data, _ = importer.import_directory(tmp_path, RELEASE)
    assert "partitions" not in rehearsal_copy.shrink(data, 1, [])[0]["clusters"]["c"]


def test_latin_1_comments_differ_as_lines(tmp_path: Path) -> None:
    for name, comment in (("a", b"caf\xe9"), ("b", b"caf\xe8")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "slurm.conf").write_bytes(
            b"# " + comment + b"\nNodeName=n[1-x] CPUs=1\n"
        )
    before, after = (diff.directory_source(tmp_path / name) for name in "ab")
    [difference] = diff.file_diffs(before, after)
    assert "-# café\n+# cafè\n" in difference.text
    assert diff.changes(before, after) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"h": 5}',
        '{"../h": {}}',
        '{"/etc": {}}',
        '{"h": {"/f": {}}}',
        "[" * 100_000,
    ],
)
def test_damaged_manifest_is_a_usage_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UsageError, match="is not the manifest of a rendered tree"):
        diff.directory_source(tmp_path)


def test_damaged_event_line_is_named_and_a_partial_last_line_is_ignored(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, SCENARIOS / "federation-faults.yml", PLAN, "docker")
    run.events_path.write_text(lines(EVENTS[:2]) + '{"time": "2026')
    assert list(run.events()) == EVENTS[:2]
    run.events_path.write_text(lines(EVENTS[:1]) + '{"kind": "stage"}\n')
    with pytest.raises(CannotVerify, match=r"events\.jsonl:2: not an event: time: Field required"):
        run.events()


@pytest.mark.parametrize("text", ["[" * 100_000, "[NaN]", "[1e999]", "[" * 65 + "]" * 65])
def test_unusable_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"levels|finite"):
        bounded_json.load(text)


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "1e999"])
def test_trace_has_finite_numbers(word: str) -> None:
    for place in range(18):
        words = ["1", "10", "1", "5", "1", "-1", "-1", "1", "-1", "-1", *"111111", "-1", "-1"]
        words[place] = word
        with pytest.raises(UsageError, match="line 1 of the trace is not a job"):
            workload.replay(" ".join(words), PLAN.scenario, 60)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"x" * 10_000)[:20], gzip.compress(b"x")[:10] + b"\xff" * 30, b"x"],
    ids=["cut", "damaged", "plain"],
)
def test_damaged_dump_is_a_usage_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "dump.sql.gz").write_bytes(content)
    with pytest.raises(UsageError, match=r"dump\.sql\.gz"):
        site_data.examine(site_data.SiteData(tmp_path / "dump.sql.gz"), PLAN)


def test_state_with_an_unknown_name_belongs_to_another_cluster(tmp_path: Path) -> None:
    (tmp_path / "clustername").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is the state of"):
        site_data.examine(site_data.SiteData(states={"aws": tmp_path}), PLAN)


@pytest.mark.parametrize(
    "variables", [{"ansible_port": "ssh"}, {"ansible_port": [22]}, {"ansible_host": 5}]
)
def test_inventory_with_values_of_another_type_is_a_usage_error(variables: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="of n1 is no"):
        hosts._machine(Path("hosts.yml"), "n1", variables)


def test_text_that_looks_like_markup_is_printed_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    odd = REPORT | {
        "description": "[/b]",
        "releases": {"[/b]": "24.11"},
        "stages": [{"name": "[/b]", "seconds": 1}],
    }
    odd |= {"checks": [], "layout": []}
    printing.print_report(model.Report(**odd), printing.Format.text)
    assert "federation-faults: [/b]" in capsys.readouterr().out


def test_logs_that_are_directories_or_have_no_time_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "n1" / "slurm" / "slurmd.log").mkdir(parents=True)
    (tmp_path / "n1" / "journal.log").write_text("0001-01-01T00:00:00+14:00 n1 kernel: error\n")
    assert logs.collected(tmp_path) == []


def test_users_of_site_data_join_a_scenario_with_values_that_look_like_dates(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.yml"
    path.write_text(f"description: 2001-99-99\n{cluster('')}")
    plan = make_plan("s", scenario.load(path), OWN_MACHINES)
    run = RunDir.create(tmp_path / "runs", path, plan, "docker")
    run.add_users({"dave": scenario.User(uid=3001)})
    assert run.plan().scenario.description == "2001-99-99"
    assert run.plan().scenario.users["dave"].uid == 3001


def test_configuration_with_too_many_nodes_is_refused(tmp_path: Path) -> None:
    names = "".join(
        f"NodeName=n{prefix}x[1-9999] CPUs=1\n" for prefix in "abcdefghijklmnopqrstuvwxyz"
    )
    (tmp_path / "slurm.conf").write_text(f"{SLURM_CONF}{names}")
    with (
        bounded(),
        pytest.raises(UsageError, match=r"slurm\.conf:25: there are more than 131072 nodes"),
    ):
        check.check_path(tmp_path, RELEASE)
