"""Commands for benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.arguments import DEFAULT_RUNS, FormatOption, Group, Releases, Runs, Settings
from harness.cli.opening import must_be_writable
from harness.cli.printing import Format, out, print_json, progress, table_of
from harness.shipped_files import SCENARIOS

app = typer.Typer(cls=Group, no_args_is_help=True, help="Measure the harness itself.")
Repeat = Annotated[int, typer.Option(min=1, help="Number of rounds; the median is reported.")]
FEDERATION, ELASTIC, SCALE, SIMULATE = (
    SCENARIOS / f"{name}.yml" for name in ("federation", "elastic-l3", "scale", "simulate")
)


def _shipped(path: Path) -> Any:
    """Return the argument for a scenario whose default is shipped; help shows a short path."""
    return typer.Argument(help="The scenario file.", show_default=f"scenarios/{path.name}")


@app.command("first-run")
def first_run(
    scenario_path: Annotated[Path, _shipped(FEDERATION)] = FEDERATION,
    repeat: Repeat = 3,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Compare up and deploy with a plain script that does the same.

    Also compare a second deploy, which has nothing to do, with the first, and a deploy of a changed
    option with `scontrol reconfigure`.
    """
    from harness import bench, providers

    result = bench.first_run(
        scenario_path, providers.get("docker"), runs, progress(), repeat=repeat
    )
    if format_ is Format.json:
        return print_json(result)
    for number, (seconds, ratio) in enumerate(
        zip(result["rounds"], result["ratios"], strict=True), 1
    ):
        for who, stages in seconds.items():
            details = ", ".join(f"{name} {value:.1f}" for name, value in stages.items())
            out.print(f"round {number}  {who:8} {sum(stages.values()):5.1f} s  ({details})")
        out.print(f"round {number}  ratio    {ratio:5.2f}")
    out.print(
        f"median ratio {result['ratio']:.2f}, "
        f"of a second deploy to the first {result['again']:.2f}; "
        f"{result['ansible_tasks']} Ansible tasks on {result['hosts']} hosts"
    )
    changed = result["changed"]
    out.print(
        f"a changed option is deployed in {changed['deploy']:.2f} s; "
        f"scontrol reconfigure alone takes {changed['reconfigure']:.2f} s"
    )
    return None


@app.command("elastic")
def elastic(
    scenario_path: Annotated[Path, _shipped(ELASTIC)] = ELASTIC,
    release: Releases = None,
    repeat: Repeat = 5,
    nodes: Annotated[
        int, typer.Option(min=1, help="Number of nodes that one job needs at once.")
    ] = 1,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Time jobs whose nodes are powered up for them.

    The floor is the time until slurmd registers on the same hosts, started by hand.
    """
    from harness import bench, providers

    docker = providers.get("docker")
    result = bench.elastic_nodes(
        scenario_path, docker, runs, progress(), choices=release or (), repeat=repeat, count=nodes
    )
    if format_ is Format.json:
        return print_json(result)
    rows = {str(number): seconds for number, seconds in enumerate(result["rounds"], 1)}
    rows |= {"median": result["median"], "worst": result["worst"]}
    _print_seconds(rows)
    out.print(
        f"{result['scenario']}: {result['nodes']} nodes, {result['provision']}, "
        f"release {result['release']}"
    )
    return None


@app.command("nodes")
def nodes_(
    scenario_path: Annotated[Path, _shipped(SCALE)] = SCALE,
    release: Releases = None,
    nodes: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="A number of nodes. Can be repeated.",
            show_default="50, 100, 200, 500, 1000",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Directory for nodes.json and nodes.svg.")
    ] = Path(),
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Measure the memory and startup time of growing numbers of nodes that share hosts."""
    from harness import bench, providers

    must_be_writable(output)
    counts = {"counts": nodes} if nodes else {}
    docker = providers.get("docker")
    result = bench.nodes(scenario_path, docker, runs, progress(), choices=release or (), **counts)
    files = _write(output, "nodes", result, bench.plot(result))
    if format_ is Format.json:
        return print_json(result)
    headings = (
        "nodes",
        "hosts",
        "s until registered",
        "MiB per slurmd",
        "MiB slurmctld",
        "MiB of the machine per node",
    )
    out.print(
        table_of(headings, (map(str, row.values()) for row in result["rows"]), justify="right")
    )
    out.print(f"{result['scenario']}: release {result['release']}; {files}")
    return None


@app.command("simulations")
def simulations_(
    scenario_path: Annotated[Path, _shipped(SIMULATE)] = SIMULATE,
    release: Releases = None,
    nodes: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="A number of nodes. Can be repeated.", show_default="100, 200, 500"
        ),
    ] = None,
    jobs: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="A number of jobs a day. Can be repeated.",
            show_default="1000, 5000, 10000",
        ),
    ] = None,
    hours: Annotated[float, typer.Option(min=0.1, help="Number of hours to simulate.")] = 2.0,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Directory for simulations.json and simulations.svg."),
    ] = Path(),
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Measure how fast simulations are, for growing numbers of nodes and jobs."""
    from harness import bench, providers
    from harness.simulation.quality import slowed_text

    must_be_writable(output)
    result = bench.simulations(
        scenario_path,
        providers.get("docker"),
        runs,
        progress(),
        choices=release or (),
        hours=hours,
        **({"counts": nodes} if nodes else {}),
        **({"jobs_a_day": jobs} if jobs else {}),
    )
    files = _write(output, "simulations", result, bench.plot_simulations(result))
    if format_ is Format.json:
        return print_json(result)
    headings = ("nodes", "jobs a day", "simulated h per h", "clock slowed by", "kept time")
    out.print(
        table_of(
            headings,
            (
                (
                    str(row["nodes"]),
                    str(row["jobs_a_day"]),
                    str(row["rate"]),
                    slowed_text(row["slowed"]),
                    "no" if row["problems"] else "yes",
                )
                for row in result["rows"]
            ),
            justify="right",
        )
    )
    out.print(
        f"{result['scenario']}: release {result['release']}, {result['hours']:g} hours each; "
        f"{files}"
    )
    return None


@app.command("jobs")
def jobs_(
    scenario_path: Annotated[Path, _shipped(SCALE)] = SCALE,
    release: Releases = None,
    settings: Settings = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of jobs.")] = 1000,
    repeat: Repeat = 3,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Compare three ways to run short jobs.

    They are sbatch and squeue in a shell (the floor), the harness, and job arrays.
    """
    from harness import bench, providers

    result = bench.jobs(
        scenario_path,
        providers.get("docker"),
        runs,
        progress(),
        choices=release or (),
        settings=settings or (),
        count=jobs,
        repeat=repeat,
    )
    if format_ is Format.json:
        return print_json(result)
    _print_seconds({str(number): seconds for number, seconds in enumerate(result["rounds"], 1)})
    ratios = ", ".join(f"{way} {ratio:.2f}" for way, ratio in result["ratio"].items())
    out.print(
        f"{result['scenario']}: {result['jobs']} jobs, release {result['release']};"
        f" median ratios to the floor: {ratios}"
    )
    return None


def _write(output: Path, name: str, result: Mapping[str, Any], picture: str) -> str:
    """Write the result as NAME.json and its plot as NAME.svg, and return their paths as text."""
    output.mkdir(parents=True, exist_ok=True)
    data, plot = output / f"{name}.json", output / f"{name}.svg"
    data.write_text(json.dumps(result, indent=2) + "\n")
    plot.write_text(picture)
    return f"{data}, {plot}"


def _print_seconds(rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print how many seconds each step of each round took; all rounds have the same steps."""
    headings = ("seconds", *next(iter(rows.values())))
    numbers = (
        [name, *(f"{value:.1f}" for value in seconds.values())] for name, seconds in rows.items()
    )
    out.print(table_of(headings, numbers, justify="right"))
