from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import report
from harness.report import Check, Report
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
    assert report.judge([Check(str(n), outcome, 0.1) for n, outcome in enumerate(outcomes)], problem) == verdict


def a_report(verdict: str) -> Report:
    checks = [Check("test_x", "failed", 1.5, "<script>alert(1)</script>")]
    job = {"job_id": 1, "cluster": "a", "state": "COMPLETED", "node_list": "n1", "start": 10, "end": 20}
    pending = job | {"state": "PENDING", "start": None, "end": None}
    stages = [{"name": "up", "seconds": 2.0}]
    drawn = {"a: t": [Box("top", (Box("leaf<1>", rows=(("n1", "n2"),)),))]}
    return Report(
        *("s", "d", verdict, {"a": "24.11"}, "docker", "/r", stages, checks, [job, pending], "broken"), topologies=drawn
    )


def test_exit_codes() -> None:
    assert [a_report(verdict).exit_code() for verdict in ("passed", "failed", "unknown")] == [0, 1, 3]


def test_json_keeps_its_contract_and_html_escapes(tmp_path: Path) -> None:
    report.write(a_report("failed"), tmp_path)
    data = json.loads((tmp_path / "report.json").read_text())
    promised = {"scenario", "verdict", "releases", "provider", "stages", "checks", "jobs", "events"}
    assert promised <= set(data)
    assert set(data["checks"][0]) == {"id", "outcome", "seconds", "message"}
    html = (tmp_path / "report.html").read_text()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "<li>top<ul><li>leaf&lt;1&gt;<table><tr><td>n1</td><td>n2</td></tr></table></li></ul></li>" in html
