from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness import scenario
from harness.capabilities import Capabilities
from harness.errors import UsageError
from harness.plan import make_plan
from harness.report import html_report, model
from harness.report.model import Check, Report
from harness.report.verdict import verdict as verdict_of
from harness.site import fidelity
from harness.topology import Box


@pytest.mark.parametrize(
    ("outcomes", "problem", "verdict"),
    [
        (["passed"], "", "passed"),
        (["passed", "skipped"], "", "passed"),
        (["passed", "failed"], "", "failed"),
        (["passed", "failed", "error"], "interrupted", "failed"),
        (["passed", "error"], "", "unknown"),
        (["passed"], "pytest ended with 3", "unknown"),
        (["skipped"], "", "unknown"),
        ([], "", "unknown"),
    ],
)
def test_verdict(outcomes: list[str], problem: str, verdict: str) -> None:
    assert verdict_of(outcomes, problem) == verdict


def a_report(verdict: str) -> Report:
    checks = [Check("test_x", "failed", 1.5, "<script>alert(1)</script>")]
    job = {"job_id": 1, "cluster": "a", "origin": 0, "state": "COMPLETED", "node_list": "n1"}
    job |= {"submit": 5, "start": 10, "end": 20}
    pending = job | {"state": "PENDING", "start": None, "end": None}
    stages = [{"name": "up", "seconds": 2.0}]
    drawn = {"a: t": [Box("top", (Box("leaf<1>", rows=(("n1", "n2"),)),))]}
    return Report(
        *(
            "s",
            "d",
            verdict,
            {"a": "24.11"},
            "docker",
            "/r",
            stages,
            checks,
            [job, pending],
            "broken",
        ),
        topologies=drawn,
    )


def test_exit_codes() -> None:
    assert [a_report(verdict).exit_code() for verdict in ("passed", "failed", "unknown")] == [
        0,
        1,
        3,
    ]


def test_command_that_repeats_a_run_has_its_settings() -> None:
    command = html_report.repeat(
        replace(a_report("passed"), settings=["clusters.a.nodes.0.name=n[1-2]"])
    )
    assert command == "harness run s.yml --release 24.11 --set 'clusters.a.nodes.0.name=n[1-2]'"


def test_json_keeps_its_contract(tmp_path: Path) -> None:
    model.write(a_report("failed"), tmp_path)
    data = json.loads((tmp_path / "report.json").read_text())
    promised = {"scenario", "verdict", "releases", "provider", "stages", "checks", "jobs", "events"}
    assert promised <= set(data)
    assert set(data["checks"][0]) == {"id", "outcome", "seconds", "message"}
    assert model.read(tmp_path) == a_report("failed")


def test_report_of_an_older_harness_can_be_read(tmp_path: Path) -> None:
    model.write(a_report("failed"), tmp_path)
    path = tmp_path / "report.json"
    data = json.loads(path.read_text())
    for name in (
        "problem",
        "known_faults",
        "topologies",
        "scenario_path",
        "started",
        "nodes",
        "federations",
        "layout",
    ):
        del data[name]
    path.write_text(json.dumps(data | {"of_a_newer_one": 1}))
    assert model.read(tmp_path).checks == a_report("failed").checks
    assert "failed" in html_report.write(tmp_path).read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "has no report.json"), ("{}", "is not a report"), ("[", "is not a report")],
)
def test_file_that_is_not_a_report_is_refused_with_a_hint(
    text: str | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        html_report.write(tmp_path)
    assert caught.value.hint


def test_html_report_escapes_text_and_is_self_contained(tmp_path: Path) -> None:
    model.write(a_report("failed"), tmp_path)
    html = html_report.write(tmp_path).read_text()
    assert "&lt;script&gt;" in html
    assert not re.search(r"<(script|link|img|iframe)|https?:|@import|src=", html)
    assert (
        "<li>top<ul><li>leaf&lt;1&gt;<table><tr><td>n1</td><td>n2</td></tr></table></li></ul></li>"
        in html
    )


def test_html_report_lists_jobs_that_did_not_complete_before_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = ["COMPLETED", "COMPLETED", "FAILED", "COMPLETED", "TIMEOUT"]
    jobs = [
        {"cluster": cluster, "job_id": 100 + number, "origin": 0, "state": state, "node_list": "n1"}
        | {"submit": 10, "start": 20, "end": 30}
        for cluster in ("a", "b")
        for number, state in enumerate(states)
    ]
    monkeypatch.setattr(html_report, "_MOST_JOBS", 5)
    html = html_report.html(replace(a_report("passed"), jobs=jobs), [], [])
    listed = re.findall(r'<th scope="row" class="number">(1\d\d)</th>', html)
    assert listed == ["100", "102", "104", "102", "104"]
    assert "<b>a</b>: 5 records: 3 COMPLETED, 1 FAILED, 1 TIMEOUT" in html
    assert "3 of these records are listed, those of jobs that did not complete first." in html


def test_html_report_shows_what_the_daemons_logged_while_a_check_failed(tmp_path: Path) -> None:
    failed_report = replace(
        a_report("failed"), checks=[Check("t.py::test_x[one]", "failed", 5, "job 7 never ended")]
    )
    model.write(failed_report, tmp_path)
    check = {
        "kind": "check",
        "id": "t.py::test_x[one]",
        "outcome": "failed",
        "seconds": 5,
        "message": "",
    }
    lines = [
        json.dumps({"time": "2026-01-01T12:00:10+00:00", **check}),
        '{"time": "2026-01-01T12:0',
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    logs = tmp_path / "logs" / "ctl"
    (logs / "slurm").mkdir(parents=True)
    (logs / "journal.log").write_text(
        "2026-01-01T14:00:08+02:00 ctl mariadbd[9]: killed by <signal 9>\n"
        "2026-01-01T14:00:08+02:00 ctl mariadbd[9]: all is well\n"
    )
    (logs / "slurm" / "slurmctld.log").write_text(
        "[2026-01-01T13:00:00.001] sched: Allocate JobId=7 NodeList=n1\n"
        "[2026-01-01T13:00:00.002] sched: Allocate JobId=71 NodeList=n1\n"
        "[2026-01-01T13:00:00.003] error: of an earlier time\n"
        "[2026-99-99T14:00:00.003] error: of no time at all\n"
        "[2026-01-01T14:00:09.004] error: Nodes n1 not responding\n"
        "[2026-01-01T14:00:09.005] debug: sched: Running job scheduler\n"
    )
    html = html_report.write(tmp_path).read_text()
    log_text = html.partition('<pre class="log" tabindex="0">')[2].partition("</pre>")[0]
    assert log_text.splitlines() == [
        "11:00:00.001 <b>ctl/slurmctld.log</b> sched: Allocate JobId=7 NodeList=n1",
        "12:00:08.000 <b>ctl/journal.log</b> ctl mariadbd[9]: killed by &lt;signal 9&gt;",
        "12:00:09.004 <b>ctl/slurmctld.log</b> error: Nodes n1 not responding",
    ]
    assert "<b>x (one)</b>" in html


def test_html_report_says_what_a_copy_of_a_site_lacks(tmp_path: Path) -> None:
    model.write(a_report("passed"), tmp_path)
    assert 'id="fidelity"' not in html_report.write(tmp_path).read_text()
    entries = [
        fidelity.Entry("slurm.conf", "MaxJobCount", "1000", "1000", fidelity.SAME, ""),
        fidelity.Entry("slurm.conf", "Prolog", "/x/p", None, fidelity.LEFT_OUT, "not <in> it"),
    ]
    (tmp_path / "fidelity.json").write_text(json.dumps([asdict(entry) for entry in entries]))
    html = html_report.write(tmp_path).read_text()
    assert html.index("1 left out") < html.index("not &lt;in&gt; it")
    assert html.index("not &lt;in&gt; it") < html.index("1 the same")
    (tmp_path / "fidelity.json").write_text('[{"state": "unsure"}]')
    with pytest.raises(UsageError, match=r"fidelity\.json: "):
        html_report.write(tmp_path)


def test_commands_repeat_the_run_on_its_releases() -> None:
    failed_report = replace(
        a_report("failed"),
        scenario_path="my dir/s.yml",
        releases={"a": "24.11", "slurmdbd": "26.05"},
        run="/runs/s/1",
    )
    assert [*html_report.commands(failed_report).values()] == [
        "harness run 'my dir/s.yml' --release a=24.11 --release slurmdbd=26.05",
        "harness run 'my dir/s.yml' --release a=24.11 --release slurmdbd=26.05 --keep",
        "harness verify --select test_x",
        "harness report /runs/s/1",
    ]


def test_layout_shows_hosts_by_daemon_in_clusters_in_federations() -> None:
    path = Path(__file__).parents[3] / "scenarios" / "federation.yml"
    plan = make_plan(
        "federation", scenario.load(path), Capabilities(cgroups=False, own_hardware=False)
    )
    federation, accounting = model.layout(plan)
    assert [box.name for box in federation.boxes] == [
        "cluster on-prem, Slurm 24.11, site on-prem",
        "cluster aws, Slurm 24.11, site aws",
    ]
    assert federation.boxes[0].rows == (("onprem-ctl", "slurmctld"), ("onprem[1-2]", "slurmd"))
    assert accounting.rows == (("accounting", "mariadb slurmdbd"),)


def test_comparison_shows_where_runs_differ() -> None:
    one = a_report("failed")
    other = replace(
        one,
        verdict="passed",
        checks=[Check("test_x", "passed", 1), Check("test_y", "passed", 1)],
        stages=[
            {"name": "up", "seconds": 1.0},
            {"name": "verify", "seconds": 5.0},
            {"name": "verify", "seconds": 6.0},
        ],
        releases={"a": "26.05"},
    )
    assert model.compare({Path("one"): one, Path("other"): other, Path("again"): other}) == {
        "runs": ["one", "other", "again"],
        "scenarios": ["s", "s", "s"],
        "verdicts": ["failed", "passed", "passed"],
        "releases": {"a": ["24.11", "26.05", "26.05"]},
        "checks": {"test_x": ["failed", "passed", "passed"], "test_y": [None, "passed", "passed"]},
        "checks_alike": 0,
        "seconds": {
            "up": [2.0, 1.0, 1.0],
            "verify": [None, 11.0, 11.0],
            "total": [2.0, 12.0, 12.0],
        },
    }


def test_junit_has_every_outcome_and_no_character_that_xml_forbids(tmp_path: Path) -> None:
    checks = [
        Check("upgrade::slurmdbd", "passed", 1.5),
        Check("rehearsal::limits", "failed", 0, "2 > 1 & \x1b[31mred\nmore"),
        Check("rehearsal::lost", "error", 0, "unknown"),
        Check("rehearsal::old", "skipped", 0),
    ]
    model.write_junit(checks, tmp_path / "junit.xml")
    text = (tmp_path / "junit.xml").read_text()
    assert 'tests="4" failures="1" errors="1" skipped="1" time="1.500"' in text
    assert (
        '<failure message="2 &gt; 1 &amp; ?[31mred">2 &gt; 1 &amp; ?[31mred\nmore</failure>' in text
    )
    assert '<testcase classname="upgrade" name="slurmdbd" time="1.500" />' in text
