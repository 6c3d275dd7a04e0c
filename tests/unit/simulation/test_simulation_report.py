import csv
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.cli import simulation_summary
from harness.cli.printing import Format
from harness.errors import UsageError
from harness.simulation import html_report, json_csv_report, plots, session, simulation_files
from harness.simulation.comparison import compare
from harness.simulation.model import JobOutcome, Quality, Simulation

_QUALITY = Quality(30.0, 120.0, 0.1, 0.4, 0.2, 0.9, 0, 0.01)
_EVIL = '<script>alert("1")</script>'


def _simulations(problems: tuple[str, ...] = (), jobs: int = 30) -> Iterator[Simulation]:
    """Yield three repeats of two policies; with the second, jobs wait longer."""
    quality = Quality(30.0, 120.0, 0.1, 0.4, 0.2, 0.9, 0, 0.01, problems, {"ending": 0.25})
    for policy, wait in (("site.yml", 60), ("changed.yml", 600)):
        for repeat in (1, 2, 3):
            outcomes = [
                JobOutcome(
                    str(number),
                    number,
                    "COMPLETED",
                    60.0 * number,
                    60.0 * number,
                    60.0 * number + wait + repeat,
                    60.0 * number + wait + 900,
                    (f"n{number % 4 + 1}", f"n{number % 4 + 2}"),
                    8,
                    f"user{number % 3}",
                    "physics",
                    "batch",
                    "normal",
                    backfilled=number % 2 == 0,
                )
                for number in range(jobs)
            ]
            refused = JobOutcome(
                "x",
                None,
                "REFUSED",
                0.0,
                None,
                None,
                None,
                (),
                1,
                _EVIL,
                "a&b",
                "batch",
                "",
                f"sbatch: error: {_EVIL}",
            )
            yield Simulation(
                policy, repeat, "24.11", 5, 20, 1.0, (*outcomes, refused), quality,
                {"Jobs started": 30.0},
                (("physics", "user0", 0.5, 0.75), ("physics", "user1", 0.5, 0.25)),
                trace="trace.swf", notes=("scaled by nodes",),
                settings=(("bf_max_time", "30", "900", "it counts simulated time"),),
            )  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for simulation in _simulations():
        simulation_files.write(simulation, tmp_path)
    return tmp_path


class _Page(HTMLParser):
    """The elements of a page that are not closed, and what refers to other files."""

    _VOID = frozenset({"meta", "br", "link", "img", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.identifiers: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in {"src", "href"}]
        self.identifiers += [value or "" for name, value in attrs if name == "id"]
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self._VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_refers_to_nothing_else(directory: Path) -> None:
    text = html_report.write(directory).read_text()
    page = _Page(text)

    assert page.open == []
    assert page.references == []
    assert "script" not in page.tags
    assert "url(http" not in text
    assert len(page.identifiers) == len({*page.identifiers})
    assert "nan" not in re.findall(r'(?:points|width|x|y)="([^"]*)"', text)


def test_the_page_says_what_can_be_concluded(directory: Path) -> None:
    text = html_report.write(directory).read_text()

    assert "With changed.yml, the mean wait is longer than with site.yml" in text
    assert "scaled by nodes" in text
    assert "bf_max_time" in text
    assert text.count("<polyline") == 3 * 6  # a line for each simulation in each plot
    assert "verdict unknown" not in text


def test_the_page_shows_problems_of_the_simulations(tmp_path: Path) -> None:
    for simulation in _simulations(("the clock was too fast",)):
        simulation_files.write(simulation, tmp_path)
    text = html_report.write(tmp_path).read_text()

    assert '<span class="verdict unknown">? unknown</span>' in text
    assert "repeat 2: the clock was too fast" in text
    assert 'td class="number differs' not in text


def test_text_from_a_cluster_is_escaped(directory: Path) -> None:
    text = html_report.write(directory).read_text()

    assert _EVIL not in text
    assert "&lt;script&gt;" in text


def test_a_page_can_be_made_of_simulations_without_jobs(tmp_path: Path) -> None:
    empty = next(_simulations(jobs=0))
    simulation_files.write(Simulation("p", 1, "24.11", 0, 0, 1.0, (), empty.quality, {}), tmp_path)
    text = html_report.write(tmp_path).read_text()

    assert _Page(text).open == []
    assert "No job ran." in text


def test_programs_get_the_policies_with_their_waits(directory: Path) -> None:
    json_csv_report.write(directory)
    data = json.loads((directory / "report.json").read_text())

    old, new = data["policies"]
    assert (old["name"], new["name"]) == ("site.yml", "changed.yml")
    assert old["wait"] == {"mean": 62, "median": 62, "p95": 62, "longest": 62}
    assert old["spread"]["mean wait"] == [61, 63]
    assert new["wait"]["mean"] == 602
    assert (old["slowdown"], old["refused"], old["backfilled"]) == (
        pytest.approx(960 / 898, abs=0.001),
        1,
        0.5,
    )
    assert old["unfairness"] == 0.25
    assert old["groups"]["user"]["user1"]["jobs"] == 10
    assert [repeat["repeat"] for repeat in old["repeats"]] == [1, 2, 3]
    assert old["repeats"][0]["scheduler"] == {"Jobs started": 30}
    assert old["repeats"][0]["settings"][0]["own"] == "30"
    assert data["verdict"] == "passed"
    assert data["differences"][0] == {
        "measure": "mean wait",
        "group": None,
        "policies": ["site.yml", "changed.yml"],
        "values": [[61, 62, 63], [601, 602, 603]],
        "change": 540,
        "threshold": 30.1,
        "verdict": "beyond the spread",
    }


def test_the_verdict_is_unknown_if_a_simulation_did_not_keep_time() -> None:
    comparison = compare([*_simulations(("too late",))])

    assert json_csv_report.data(comparison)["verdict"] == "unknown"


def test_spreadsheets_get_jobs_and_measures(directory: Path) -> None:
    json_csv_report.write(directory)
    with (directory / "jobs.csv").open(newline="") as file:
        jobs = [*csv.DictReader(file)]
    with (directory / "measures.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]

    assert len(jobs) == 6 * 31
    assert (jobs[0]["policy"], jobs[0]["wait"], jobs[0]["nodes"]) == ("site.yml", "61.0", "n1 n2")
    assert jobs[30]["state"] == "REFUSED"
    assert jobs[30]["start"] == jobs[30]["wait"] == ""
    means = [row["wait_mean"] for row in rows if row["kind"] == "all"]
    assert means == ["61.0", "62.0", "63.0", "601.0", "602.0", "603.0"]
    assert {row["group"] for row in rows if row["kind"] == "size"} == {"1 CPU", "5-16 CPUs"}


def test_spreadsheets_get_everything_else_by_name(directory: Path) -> None:
    json_csv_report.write(directory)
    rows = {}
    for name in ("over_time.csv", "details.csv", "measures.csv"):
        with (directory / name).open(newline="") as file:
            rows[name] = [row for row in csv.DictReader(file) if row["policy"] == "site.yml"]

    first = {(row["kind"], row["name"]): row["value"] for row in rows["details.csv"][:20]}
    assert first["state", "COMPLETED"] == "30"
    assert first["refused", f"sbatch: error: {_EVIL}"] == "1"
    assert (first["share", "physics/user0"], first["usage", "physics/user0"]) == ("0.5", "0.75")
    assert first["scheduler", "Jobs started"] == "30.0"
    assert first["quality", "rate"] == "30.0"
    assert first["slowed", "ending"] == "0.25"
    counts = rows["measures.csv"][0]
    assert (counts["refused"], counts["timed_out"], counts["backfilled"]) == ("1", "0", "0.5")
    times = [row for row in rows["over_time.csv"] if row["repeat"] == "1"]
    # The last job ends at 60 * 29 + 960 s; when the first one begins, at 61 s, it has 8 of 20 CPUs.
    assert [float(row["begin"]) for row in times] == pytest.approx([27 * n for n in range(100)])
    assert [row["utilization"] for row in times[:4]] == ["0.0", "0.0", "0.2963", "0.4"]
    repeats = json.loads((directory / "report.json").read_text())["policies"][0]["repeats"]
    assert repeats[0]["over_time"]["utilization"][2] == 0.2963
    assert len(repeats[0]["over_time"]["queue"]) == 100


def test_the_reasons_of_waits_are_listed(tmp_path: Path) -> None:
    job = JobOutcome(
        "1", 1, "RUNNING", 0.0, 0.0, 7200.0, None, (), 1, "alice", "physics", "batch", "normal",
        held=(("Priority", 7200.0),),
    )  # fmt: skip
    simulation = Simulation("p", 1, "24.11", 1, 1, 3.0, (job,), _QUALITY, {})
    simulation_files.write(simulation, tmp_path)
    json_csv_report.write(tmp_path)

    assert 'p,1,"held, in job hours",Priority,2.0\n' in (tmp_path / "details.csv").read_text()


def test_cells_are_no_formulas(tmp_path: Path) -> None:
    simulation = next(_simulations())
    simulation_files.write(
        Simulation("=cmd()", 1, "24.11", 5, 20, 1.0, simulation.jobs, _QUALITY, {}), tmp_path
    )
    json_csv_report.write(tmp_path)

    for name in ("jobs.csv", "measures.csv", "over_time.csv", "details.csv"):
        assert not re.search(r"(?m)(^|,)=", (tmp_path / name).read_text())


def test_reports_are_written_again_from_the_simulations_of_a_run(directory: Path) -> None:
    (directory / "report.json").write_text('{"verdict": "unknown", "problem": "interrupted"}')
    session.write_reports(directory)
    names = (*json_csv_report.FILES, "report.html")
    before = {name: (directory / name).read_bytes() for name in names}
    for name in {*names} - {"report.json"}:
        (directory / name).unlink()

    session.write_reports(directory)
    assert {name: (directory / name).read_bytes() for name in names} == before
    assert json.loads(before["report.json"])["problem"] == "interrupted"


def test_a_directory_without_simulations_is_refused(tmp_path: Path) -> None:
    for write in (html_report.write, json_csv_report.write):
        with pytest.raises(UsageError, match="has no simulations"):
            write(tmp_path)


def test_the_terminal_shows_policies_side_by_side(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = json_csv_report.write(directory)
    simulation_summary.print_comparison(comparison, Format.text)

    printed = capsys.readouterr().out
    assert re.search(r"mean wait +62 s +≠ 10 min", printed)
    assert "- With changed.yml, the mean wait is longer than with site.yml" in printed
    assert "note      scaled by nodes" in printed


def test_the_terminal_shows_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = json_csv_report.write(directory)
    simulation_summary.print_comparison(comparison, Format.json)

    printed = capsys.readouterr().out
    assert json.loads(printed) == json.loads(json.dumps(json_csv_report.data(comparison)))


def test_waits_are_drawn_as_a_distribution() -> None:
    drawn = next(plot for plot in plots.plots(compare([*_simulations()]).policies))

    for line in drawn.lines:
        points = [tuple(map(float, point.split(","))) for point in line.points.split()]
        assert [x for x, _ in points] == sorted(x for x, _ in points)
        heights = [y for _, y in points]
        assert heights == sorted(heights, reverse=True)  # SVG counts from the top
        assert (heights[0], heights[-1]) == (plots.HEIGHT, 0)


def test_a_job_is_drawn_once_in_the_lane_of_each_of_its_nodes() -> None:
    chart = plots.gantt(next(_simulations(jobs=1)))

    assert chart
    assert [lane.name for lane in chart.lanes] == ["n1", "n2"]
    assert len(chart.bars) == 2
    assert chart.bars[0].title.startswith("job 0 of user0, COMPLETED: 8 CPUs, waited 61 s, ran ")


def test_lanes_are_in_the_order_of_the_numbers_of_nodes() -> None:
    job = next(_simulations(jobs=1)).jobs[0]
    simulation = Simulation(
        "p", 1, "24.11", 3, 12, 1.0, (job,), _QUALITY, {}, node_names=("n10", "n2", "n1")
    )

    chart = plots.gantt(simulation)
    assert chart
    assert [lane.name for lane in chart.lanes] == ["n1", "n2", "n10"]


def test_ten_thousand_jobs_make_a_page_of_a_few_megabytes(tmp_path: Path) -> None:
    job = next(_simulations(jobs=1)).jobs[0]
    jobs = tuple(
        JobOutcome(
            str(number), number, job.state, number * 8.0, None, number * 8.0 + 30,
            number * 8.0 + 90 + number % 500, tuple(f"n{(number + at) % 200}" for at in range(8)),
            32, "alice", "physics", "batch", "normal",
        )
        for number in range(10_000)
    )  # fmt: skip
    simulation_files.write(
        Simulation("p", 1, "24.11", 200, 800, 24.0, jobs, _QUALITY, {}), tmp_path
    )

    assert html_report.write(tmp_path).stat().st_size < 6_000_000
