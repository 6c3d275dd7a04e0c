import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.simulation import csv_trace, reading
from harness.simulation.generator import generate
from harness.simulation.trace import Trace, TraceJob

# Any text, and text that is nearly a trace.
_WORDS = st.sampled_from(
    [
        *("-1", "0", "1", "5", "17", "3600", "1e999", "nan", "inf", "-inf", "1e308", "x", "9" * 30),
        *(";", "; MaxProcs: 8", "JobID", "JobIDRaw", "Submit", "Start", "End", "User", "ReqCPUS"),
        *("2026-01-01T00:00:00", "Unknown", "1-00:00:00", "UNLIMITED", "4Gn", "100_[1-3%2]", "7.0"),
        *("submit", "run_time", "user", "limit", "tasks", '"', "alice", "--wrap=id", "٣", "\0"),
    ]
)
_LINES = st.lists(
    st.one_of(
        st.lists(_WORDS, max_size=19).map(" ".join),
        st.lists(_WORDS, max_size=12).map("|".join),
        st.lists(_WORDS, max_size=8).map(",".join),
        st.just("JobIDRaw|Submit|Start|End|User|ReqCPUS"),
        st.just("submit,run_time,user"),
        st.text(max_size=40),
    ),
    max_size=8,
)


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _swf(**fields: object) -> str:
    """Return a line; fields that are not given are -1."""
    names = (
        *("job", "submit", "wait", "run", "allocated", "cpu", "used", "processors", "limit"),
        *("memory", "status", "user", "group", "executable", "queue", "partition", "before"),
        "think",
    )
    assert {*fields} <= {*names}
    return " ".join(str(fields.get(name, -1)) for name in names)


def _read_swf(directory: Path, *lines: str) -> Trace:
    return reading.read(_write(directory / "trace.swf", "\n".join(lines) + "\n"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=_LINES, format_=st.sampled_from([None, *reading.FORMATS]), begin=st.integers(0, 1))
def test_any_text_is_read_or_refused(
    tmp_path: Path, lines: list[str], format_: str | None, begin: int
) -> None:
    path = tmp_path / "trace"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    try:
        trace = reading.read(path, format_=format_, begin=begin, starting_state=bool(begin))
    except UsageError as error:
        assert str(path) in str(error)  # noqa: PT017 - reading may also succeed
    else:
        assert all(job.submit >= -60 and job.run_time >= 0 and job.tasks >= 1 for job in trace.jobs)
        assert [job.submit for job in trace.jobs] == sorted(job.submit for job in trace.jobs)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=300), packed=st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, packed: bool) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(content) if packed else b"\x1f\x8b" + content)
    with pytest.raises(UsageError):
        reading.read(path)


class TestStandardWorkloadFormat:
    def test_fields_become_a_job(self, tmp_path: Path) -> None:
        trace = _read_swf(
            tmp_path,
            _swf(
                job=1, submit=50, wait=5, run=100, allocated=8, processors=4, limit=600, memory=2048
            ).replace(" -1 -1 -1 -1 -1 -1 -1 -1", " 1 17 3 -1 2 1 -1 -1"),
        )

        assert trace.jobs == (
            TraceJob(
                "1",
                0,
                100,
                600,
                None,
                4,
                "u17",
                memory_per_cpu=2,
                account="g3",
                partition="q2",
                recorded_wait=5,
            ),
        )

    def test_minus_one_means_unknown(self, tmp_path: Path) -> None:
        trace = _read_swf(tmp_path, _swf(job=1, submit=0, run=10, allocated=2))

        assert trace.jobs == (TraceJob("1", 0, 10, None, None, 2, "unknown"),)

    def test_comments_may_describe_the_system(self, tmp_path: Path) -> None:
        trace = _read_swf(
            tmp_path,
            "; Version: 2.2",
            ";MaxProcs:  128",
            "; MaxNodes: 64 (without the login node)",
            "",
            _swf(job=1, submit=0, run=10, allocated=2),
            "; a comment at the end",
        )

        assert (trace.cpus, trace.nodes, len(trace.jobs)) == (128, 64, 1)

    def test_lines_need_not_be_sorted(self, tmp_path: Path) -> None:
        times = (500, 20, 700, 20)
        trace = _read_swf(
            tmp_path,
            *(_swf(job=job, submit=at, run=10, allocated=1) for job, at in enumerate(times, 1)),
        )

        assert [(job.id, job.submit) for job in trace.jobs] == [
            ("2", 0),
            ("4", 0),
            ("1", 480),
            ("3", 680),
        ]

    def test_what_cannot_be_simulated_is_left_out_and_counted(self, tmp_path: Path) -> None:
        trace = _read_swf(
            tmp_path,
            _swf(job=1, submit=0, run=10, allocated=1),
            _swf(job=2, submit=0, run=-1, allocated=-1, status=5),
            _swf(job=3, submit=0, run=0, allocated=4, status=5),
            _swf(job=4, submit=0, run=10, allocated=0),
            _swf(job=1, submit=-1, run=10, allocated=1, status=2),
            _swf(job=5, submit=0, run=700, allocated=1, limit=600),
            _swf(job=6, submit=0, run=0, allocated=1, status=1),
        )

        assert [job.id for job in trace.jobs] == ["1", "5", "6"]
        assert trace.notes == (
            "no run time (cancelled before the start, or unknown), left out: 2 jobs "
            "(first: line 2)",
            "no number of processors, left out: 1 job (first: line 4)",
            "part of a job between two checkpoints, left out: 1 job (first: line 5)",
            "ran longer than its limit, may time out: 1 job (first: line 6)",
            "ran for less than a second: 1 job (first: line 7)",
        )

    def test_a_preceding_job_is_a_dependency(self, tmp_path: Path) -> None:
        trace = _read_swf(
            tmp_path,
            _swf(job=1, submit=0, run=10, allocated=1),
            _swf(job=2, submit=20, run=10, allocated=1, before=1, think=10),
            _swf(job=3, submit=30, run=10, allocated=1, before=99, think=10),
        )

        assert [(job.dependency, job.think_time) for job in trace.jobs] == [
            (None, None),
            ("afterany:1", 10),
            (None, 10),
        ]
        assert trace.notes == (
            "depends on a job that is not in the trace, does not wait for it: 1 job",
        )

    def test_all_wrong_lines_are_reported_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            _read_swf(
                tmp_path,
                _swf(job=1, submit=0, run=10, allocated=1),
                "1 2 3",
                _swf(job=2, submit="nan", run=10, allocated=1),
                _swf(job=3, submit=0, run="inf", allocated=1),
                _swf(job=4, submit=-5, run=10, allocated=1),
                _swf(job=1, submit=0, run=10, allocated=1),
            )

        path = tmp_path / "trace.swf"
        assert caught.value.message.splitlines() == [
            f"{path}:2: 3 fields instead of 18",
            f"{path}:3: submit time: nan is not a number that a trace can have",
            f"{path}:4: run time: inf is not a number that a trace can have",
            f"{path}:5: submit time: -5 is negative",
            f"{path}:6: job 1 appears twice",
        ]

    def test_reading_stops_after_many_problems(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            _read_swf(tmp_path, _swf(job=1, submit=0, run=1, allocated=1), *["x"] * 1000)

        assert len(caught.value.message.splitlines()) == 21
        assert caught.value.message.endswith("reading stopped after 20 problems")

    def test_it_may_be_compressed(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.swf.gz"
        path.write_bytes(gzip.compress(_swf(job=1, submit=0, run=10, allocated=2).encode()))

        assert len(reading.read(path).jobs) == 1

    def test_a_truncated_archive_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.swf.gz"
        lines = "\n".join(_swf(job=n, submit=n, run=n, allocated=2) for n in range(1, 500))
        path.write_bytes(gzip.compress(lines.encode())[:-20])

        with pytest.raises(UsageError, match="cannot read "):
            reading.read(path)


_HEADER = (
    "JobIDRaw|JobID|Cluster|Submit|Start|End|Timelimit|ReqNodes|AllocNodes|ReqCPUS|ReqMem|ReqTRES|"
    "Partition|QOS|Account|User|State|Dependency"
)


def _sacct(**cells: str) -> str:
    """Return a row: a job of alice that waited a minute and ran for two, or what is given."""
    row = {
        "JobIDRaw": "7",
        "Cluster": "alpha",
        "Submit": "2026-01-01T00:00:00",
        "Start": "2026-01-01T00:01:00",
        "End": "2026-01-01T00:03:00",
        "Timelimit": "00:10:00",
        "ReqNodes": "1",
        "AllocNodes": "2",
        "ReqCPUS": "8",
        "Partition": "batch",
        "QOS": "normal",
        "Account": "physics",
        "User": "alice",
        "State": "COMPLETED",
    } | cells
    row.setdefault("JobID", row["JobIDRaw"])
    assert {*row} <= {*_HEADER.split("|")}
    return "|".join(row.get(name, "") for name in _HEADER.split("|"))


def _read_sacct(directory: Path, *rows: str, **options: object) -> Trace:
    path = _write(directory / "jobs.txt", "\n".join([_HEADER, *rows]) + "\n")
    return reading.read(path, **options)  # type: ignore[arg-type]


class TestSacct:
    def test_columns_become_a_job(self, tmp_path: Path) -> None:
        trace = _read_sacct(tmp_path, _sacct())

        assert trace.jobs == (
            TraceJob(
                "7",
                0,
                120,
                600,
                2,
                8,
                "alice",
                account="physics",
                partition="batch",
                qos="normal",
                recorded_wait=60,
            ),
        )

    def test_parsable_ends_each_line_with_a_bar(self, tmp_path: Path) -> None:
        path = _write(tmp_path / "jobs", f"{_HEADER}|\n{_sacct()}|\n")

        assert [job.id for job in reading.read(path).jobs] == ["7"]

    def test_steps_are_ignored(self, tmp_path: Path) -> None:
        steps = [_sacct(JobIDRaw=f"7.{step}", Submit="", User="") for step in ("batch", "0")]

        assert len(_read_sacct(tmp_path, _sacct(), *steps).jobs) == 1

    def test_elements_of_arrays_belong_together(self, tmp_path: Path) -> None:
        trace = _read_sacct(
            tmp_path,
            _sacct(JobIDRaw="8", JobID="7_1"),
            _sacct(JobIDRaw="7", JobID="7_2"),
            _sacct(JobIDRaw="9", JobID="9_[1-5%2]", Start="Unknown", End="Unknown"),
        )

        assert [(job.id, job.array, job.array_index) for job in trace.jobs] == [
            ("8", "7", 1),
            ("7", "7", 2),
        ]
        assert trace.notes == ("never started, left out: 1 job (first: line 4)",)

    def test_components_of_heterogeneous_jobs_become_jobs(self, tmp_path: Path) -> None:
        trace = _read_sacct(
            tmp_path,
            _sacct(JobIDRaw="7", JobID="7+0"),
            _sacct(JobIDRaw="8", JobID="7+1", ReqCPUS="1", AllocNodes="1"),
        )

        assert [(job.id, job.tasks) for job in trace.jobs] == [("7+0", 8), ("7+1", 1)]

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("1-00:00:00", 86400),
            ("00:10:00", 600),
            ("UNLIMITED", None),
            ("Partition_Limit", None),
            ("INVALID", None),
            ("", None),
        ],
    )
    def test_limits(self, tmp_path: Path, text: str, seconds: int | None) -> None:
        assert _read_sacct(tmp_path, _sacct(Timelimit=text)).jobs[0].limit == seconds

    @pytest.mark.parametrize(
        ("text", "per_node", "per_cpu"),
        [
            ("4Gn", 4096, None),
            ("4Gc", None, 4096),
            ("4G", 2048, None),  # of the job, which has two nodes
            ("1.50T", 786432, None),
            ("512K", 1, None),
            ("0", None, None),
            ("", None, None),
        ],
    )
    def test_memory(
        self, tmp_path: Path, text: str, per_node: int | None, per_cpu: int | None
    ) -> None:
        job = _read_sacct(tmp_path, _sacct(ReqMem=text)).jobs[0]

        assert (job.memory_per_node, job.memory_per_cpu) == (per_node, per_cpu)

    def test_gres_is_per_node_and_with_its_type(self, tmp_path: Path) -> None:
        tres = "billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,gres/shard=2,mem=4G,node=2"

        assert _read_sacct(tmp_path, _sacct(ReqTRES=tres)).jobs[0].gres == "gpu:a100:2,shard:1"

    def test_a_running_job_runs_until_its_limit(self, tmp_path: Path) -> None:
        trace = _read_sacct(
            tmp_path,
            _sacct(End="Unknown", State="RUNNING"),
            _sacct(JobIDRaw="8", End="Unknown", State="RUNNING", Timelimit="UNLIMITED"),
        )

        assert [job.run_time for job in trace.jobs] == [600]
        assert trace.notes == (
            "still running, runs as long as its limit allows: 1 job (first: line 2)",
            "still running without a limit, left out: 1 job (first: line 3)",
        )

    def test_the_last_run_of_a_requeued_job_counts(self, tmp_path: Path) -> None:
        again = _sacct(
            Submit="2026-01-01T00:03:00", Start="2026-01-01T00:04:00", End="2026-01-01T00:09:00"
        )
        trace = _read_sacct(tmp_path, _sacct(State="REQUEUED"), again)

        assert [(job.submit, job.run_time) for job in trace.jobs] == [(0, 300)]
        assert trace.notes == ("requeued, the last run counts: 1 job (first: line 3)",)

    def test_ends_before_starts_are_left_out(self, tmp_path: Path) -> None:
        trace = _read_sacct(
            tmp_path,
            _sacct(End="2026-01-01T00:00:59"),
            _sacct(JobIDRaw="8"),
        )

        assert [job.id for job in trace.jobs] == ["8"]
        assert trace.notes == ("ended before it started, left out: 1 job (first: line 2)",)

    def test_dependencies_lose_their_state(self, tmp_path: Path) -> None:
        trace = _read_sacct(
            tmp_path,
            _sacct(),
            _sacct(JobIDRaw="8", Dependency="afterok:7(unfulfilled),afterany:99(unfulfilled)"),
        )

        assert trace.jobs[1].dependency == "afterok:7"

    def test_jobs_of_several_clusters_need_a_choice(self, tmp_path: Path) -> None:
        rows = (_sacct(), _sacct(JobIDRaw="8", Cluster="beta"))
        with pytest.raises(UsageError, match="several clusters, alpha and beta: choose one"):
            _read_sacct(tmp_path, *rows)

        trace = _read_sacct(tmp_path, *rows, cluster="beta")
        assert [job.id for job in trace.jobs] == ["8"]

    def test_missing_columns_are_all_reported(self, tmp_path: Path) -> None:
        path = _write(tmp_path / "jobs.txt", "JobID|Submit\n1|2026-01-01T00:00:00\n")
        with pytest.raises(UsageError) as caught:
            reading.read(path)

        assert caught.value.message.splitlines() == [
            f"{path}:1: no column User",
            f"{path}:1: no column Start",
            f"{path}:1: no column End, Elapsed or ElapsedRaw",
            f"{path}:1: no column ReqCPUS, AllocCPUS or NCPUS",
        ]

    @pytest.mark.parametrize(
        ("cells", "problem"),
        [
            ({"Submit": "yesterday"}, "Submit: 'yesterday' is not a time"),
            ({"Submit": "Unknown"}, "Submit: missing"),
            ({"Timelimit": "soon"}, "Timelimit: 'soon' is not a duration"),
            ({"ReqMem": "much"}, "ReqMem: 'much' is not an amount of memory"),
            ({"ReqCPUS": "nan"}, "reqcpus: 'nan' is not a number"),
            ({"JobID": "x"}, "JobID: 'x' is not a job"),
            ({"User": "--wrap=id"}, "user: '--wrap=id' is not a value that sbatch accepts"),
            ({"Account": "a b"}, "account: 'a b' is not a value that sbatch accepts"),
            ({"User": ""}, "user: '' is not a value that sbatch accepts"),
        ],
    )
    def test_wrong_cells_are_reported(
        self, tmp_path: Path, cells: dict[str, str], problem: str
    ) -> None:
        with pytest.raises(UsageError) as caught:
            _read_sacct(tmp_path, _sacct(JobIDRaw="1"), _sacct(**cells))

        assert f"jobs.txt:3: {problem}" in caught.value.message


class TestCsv:
    def test_what_is_written_is_read_again(self, tmp_path: Path) -> None:
        trace = generate(
            1, 500, 24, [("alice", "physics"), ("bob", None)], ["batch"], 50, 4, gres=["gpu:1"]
        )
        csv_trace.write(trace, tmp_path / "trace.csv")
        again = reading.read(tmp_path / "trace.csv").jobs

        first = trace.jobs[0].submit
        assert [job.submit for job in again] == pytest.approx(
            [job.submit - first for job in trace.jobs]
        )
        for job, copy in zip(trace.jobs, again, strict=True):
            for name in csv_trace.COLUMNS:
                assert name == "submit" or getattr(job, name) == getattr(copy, name)

    def test_times_may_be_dates_and_durations(self, tmp_path: Path) -> None:
        path = _write(
            tmp_path / "jobs.csv",
            "submit,run_time,limit,user,nodes\n"
            "2026-01-01 10:00,02:30:00,1-00,alice,2\n"
            "2026-01-01T11:00:00,90,,bob,\n",
        )

        assert reading.read(path).jobs == (
            TraceJob("2", 0, 9000, 86400, 2, 2, "alice"),
            TraceJob("3", 3600, 90, None, None, 1, "bob"),
        )

    @pytest.mark.parametrize(
        ("header", "row", "problem"),
        [
            ("submit,run_time,user,colour", "0,1,a,red", "1: colour: unknown column"),
            ("submit,run_time,user", "0,1", "2: 2 cells, but the header has 3"),
            ("submit,run_time,user", "nan,1,a", "2: submit: 'nan' is neither"),
            ("submit,run_time,user", "0,inf,a", "2: run_time: 'inf' is neither"),
            ("submit,run_time,user", "0,-1,a", "2: run_time: '-1' is neither"),
            ("submit,run_time,user,tasks", "0,1,a,0", "2: tasks: 0 is out of range"),
            ("submit,run_time,user,tasks", "0,1,a,many", "2: tasks: 'many' is not a whole number"),
            ("submit,run_time,user,exclusive", "0,1,a,so", "2: exclusive: 'so' is neither"),
            ("submit,run_time,user,tasks", "0,1,a,2147483647", "more than any cluster has"),
        ],
    )
    def test_wrong_cells_are_reported(
        self, tmp_path: Path, header: str, row: str, problem: str
    ) -> None:
        with pytest.raises(UsageError) as caught:
            reading.read(_write(tmp_path / "jobs.csv", f"{header}\n{row}\n"))

        assert problem in caught.value.message


def _hourly(directory: Path) -> Path:
    """Return a file with a job of half an hour each hour, and one of ten hours at the beginning."""
    rows = [f"{hour},{3600 * hour},1800,0,alice" for hour in range(24)]
    text = "\n".join(["id,submit,run_time,recorded_wait,user", "long,0,36000,0,bob", *rows])
    return _write(directory / "hours.csv", text + "\n")


def test_only_the_chosen_hours_are_read(tmp_path: Path) -> None:
    trace = reading.read(_hourly(tmp_path), begin=5, hours=2)

    assert [(job.id, job.submit) for job in trace.jobs] == [("5", 0), ("6", 3600)]


def test_jobs_that_ran_at_the_beginning_run_for_the_rest_of_their_time(tmp_path: Path) -> None:
    trace = reading.read(_hourly(tmp_path), begin=5.25, hours=1, starting_state=True)

    assert [(job.id, job.submit, job.run_time) for job in trace.jobs] == [
        ("long", -60, 17160),
        ("5", -60, 960),
        ("6", 2700, 1800),
    ]
    assert trace.notes == ("running at the beginning, submitted by then: 2 jobs",)


def test_hours_count_from_the_first_submission_even_if_it_is_the_last_line(tmp_path: Path) -> None:
    lines = [_swf(job=job, submit=7200 * job, run=9, allocated=1) for job in (3, 2, 1)]
    path = _write(tmp_path / "t.swf", "\n".join(lines))

    assert [job.id for job in reading.read(path, hours=3).jobs] == ["1", "2"]
    assert [job.id for job in reading.read(path, hours=2, begin=2).jobs] == ["2"]


def test_more_jobs_than_can_be_simulated_need_a_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_JOBS", 10)
    path = _hourly(tmp_path)
    with pytest.raises(UsageError, match="more than 10 jobs"):
        reading.read(path)
    assert len(reading.read(path, hours=8).jobs) == 9


def test_files_with_too_many_or_too_long_lines_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _hourly(tmp_path)
    monkeypatch.setattr(reading, "MOST_LINES", 5)
    with pytest.raises(UsageError, match="more than 5 lines"):
        reading.read(path)
    with pytest.raises(UsageError, match="longer than"):
        reading.read(_write(tmp_path / "long.swf", ";" * 100_000))


def test_what_is_not_a_trace_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", _write(tmp_path / "x", "hello\n")):
        with pytest.raises(UsageError, match=str(path)):
            reading.read(path)
    with pytest.raises(UsageError, match="no job can be simulated"):
        reading.read(_write(tmp_path / "y.swf", "; only a comment\n"))


def test_jobs_submitted_long_before_the_period_that_sacct_lists_are_noted(tmp_path: Path) -> None:
    """Of a job that ran when it begins, whenever that was submitted."""
    times = [("01T00:00", "05T09:00", "05T11:00")]
    times += [(f"05T{hour}:00", f"05T{hour}:01", f"05T{hour}:30") for hour in range(11, 20)]
    rows = []
    for number, moments in enumerate(times):
        cells = dict(zip(("Submit", "Start", "End"), moments, strict=True))
        cells = {name: f"2026-01-{moment}:00" for name, moment in cells.items()}
        rows.append(_sacct(JobIDRaw=str(number), Timelimit="03:00:00", **cells))
    (note,) = _read_sacct(tmp_path, *rows).notes
    assert "107.0 h before any job ended" in note
    assert "--begin 107" in note
    later = _read_sacct(tmp_path, *rows, begin=107.0)
    assert (len(later.jobs), later.notes) == (9, ())
    assert _read_sacct(tmp_path, *rows[1:]).notes == ()


def _bundle(path: Path, jobs: str | None, *conf: str) -> Path:
    files = {
        "manifest.json": json.dumps({"format": 1, "configuration": "/etc/slurm"}),
        "files/etc/slurm/slurm.conf": "\n".join(["ClusterName=alpha", *conf, ""]),
        "output/version.txt": "slurm-wlm 24.11.5\n",
    }
    if jobs is not None:
        files["output/jobs.txt"] = jobs
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return path


def test_a_site_bundle_has_the_jobs_of_the_days_that_were_collected(tmp_path: Path) -> None:
    path = _bundle(tmp_path / "site.tar.gz", f"{_HEADER}\n{_sacct()}\n")

    trace = reading.read(path)
    assert trace.source == str(path)
    assert [job.id for job in trace.jobs] == ["7"]


def test_a_site_bundle_says_how_large_the_site_is(tmp_path: Path) -> None:
    conf = ("NodeName=n[1-10] Sockets=2 CoresPerSocket=4", "NodeName=big CPUs=64")
    jobs = f"{_HEADER}\n{_sacct()}\n"

    sized = reading.read(_bundle(tmp_path / "sized.tar.gz", jobs, "SlurmctldHost=a", *conf))
    assert (sized.nodes, sized.cpus) == (11, 10 * 8 + 64)
    unreadable = reading.read(_bundle(tmp_path / "other.tar.gz", jobs, "NodeName=n[1-"))
    assert (unreadable.nodes, unreadable.cpus) == (None, None)


def test_jobs_of_more_than_a_year_are_errors_and_left_out(tmp_path: Path) -> None:
    years = _swf(job=2, submit=1, run=5 * 365 * 86400, processors=1)
    trace = _read_swf(tmp_path, _swf(job=1, submit=0, run=9, processors=1), years)
    assert [job.id for job in trace.jobs] == ["1"]
    assert trace.notes == ("ran for more than a year, left out: 1 job (first: line 2)",)


def test_a_site_bundle_without_jobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"site\.tar\.gz has no jobs"):
        reading.read(_bundle(tmp_path / "site.tar.gz", None))
