"""The verbs of scenarios and configurations; they need no host."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness import check, diff, importer, install, lifecycle, providers, releases, render, rundir, scenario, twin
from harness.cli.arguments import DEFAULT_RUNS, FormatOption, ProbeImages, Releases, Runs, ScenarioPath, Settings
from harness.cli.opening import must_be_known, must_be_writable, must_be_writable_file, open_run
from harness.cli.printing import Format, err, out, print_diff, print_findings, print_json
from harness.errors import Problem, ScenarioError, UsageError
from harness.options import OWN_MACHINES
from harness.plan import make_plan
from harness.resources import SCENARIOS, TEMPLATES

app = typer.Typer()
_PROBE = "`release:` beside `image:` says its release; --probe-images asks the image, which pulls it and runs it"


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The scenario's name.")] = "my-cluster",
    like: Annotated[
        str | None,
        typer.Option("--like", help="Begin with a scenario that is shipped, such as federation.", show_default=False),
    ] = None,
) -> None:
    """Write a scenario to begin with, and the schema with which an editor completes it."""
    path = Path(name if name.endswith((".yml", ".yaml")) else f"{name}.yml")
    scenario.name_of(path)
    shipped = {one.stem: one for one in sorted(SCENARIOS.glob("*.yml"))}
    if like and like not in shipped:
        raise UsageError(f"no scenario {like} is shipped", hint=f"there are {', '.join(shipped)}")
    schema_path = path.with_name("slurm-harness.schema.json")
    begin = shipped[like] if like else TEMPLATES / "scenario.yml"
    try:
        with path.open("x") as file:
            file.write(f"# yaml-language-server: $schema={schema_path.name}\n{begin.read_text()}")
    except FileExistsError as error:
        raise UsageError(f"{path} is there already", hint="name another scenario, or remove it") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    schema_path.write_text(json.dumps(scenario.schema(), indent=2) + "\n")
    out.print(f"{path} is written. Look at it, then: harness run {shlex.quote(str(path))}", markup=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    print_json(scenario.schema())


@app.command("render")
def render_(
    scenario_path: ScenarioPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to write to.", show_default=False)],
    containers: Annotated[
        bool, typer.Option("--containers", help="For the harness's own containers, not for machines of your own.")
    ] = False,
    release: Releases = None,
    settings: Settings = None,
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="Make keys and passwords, and write them too (mode 0600).")
    ] = False,
    probe_images: ProbeImages = False,
) -> None:
    """Write the configuration of every host to OUTPUT/HOST/..., OUTPUT/manifest.json and OUTPUT/install.sh."""
    must_be_writable(output)
    offers = providers.get("docker").offers if containers else OWN_MACHINES
    read = scenario.load(scenario_path, release or (), _release_of_image(probe_images), settings=settings or ())
    _tell_of_images(scenario_path, read, probe_images)
    plan = make_plan(scenario_path.stem, read, offers)
    tree = render.render(plan)
    rundir.write_rendered(output, tree, with_secrets=with_secrets)
    (output / "install.sh").write_text(install.script(plan, tree))
    (output / "install.sh").chmod(0o755)
    out.print(f"{sum(map(len, tree.values()))} files for {len(tree)} hosts in {output}; install.sh puts them there")


@app.command("check")
def check_(
    paths: Annotated[
        list[Path],
        typer.Argument(help="A scenario, a slurm.conf or another file of Slurm's, or a directory.", show_default=False),
    ],
    release: Annotated[
        str | None,
        typer.Option(
            "--release",
            help=f"The release whose daemons are to read it; unset, the scenario's, and {releases.DEFAULT} for files.",
            show_default=False,
        ),
    ] = None,
    older: Annotated[
        str | None,
        typer.Option("--from", help="The release it comes from: tells what an upgrade changes.", show_default=False),
    ] = None,
    settings: Settings = None,
    probe_images: ProbeImages = False,
    format_: FormatOption = Format.text,
) -> None:
    """Say what the daemons of a release will do with a configuration: refuse it, ignore lines, work otherwise."""
    must_be_known(release, older)
    if settings and not all(map(scenario.is_named_like_one, paths)):
        raise UsageError("--set is for scenarios", hint="check files of Slurm's by themselves")
    image_release = _release_of_image(probe_images)
    before = releases.get(older) if older else None
    findings: list[check.Finding] = []
    for path in paths:
        if scenario.is_named_like_one(path):
            read = scenario.load(path, [release] if release else (), image_release, settings=settings or ())
            findings += [] if probe_images else map(_not_looked_into, scenario.unprobed_images(path, read))
            findings += check.check_scenario(path, read, before)
        else:
            findings += check.check_path(path, releases.get(release or releases.DEFAULT), before)
    if format_ is Format.json:
        print_json({"release": release or releases.DEFAULT, "findings": [asdict(finding) for finding in findings]})
    else:
        print_findings(findings)
    raise typer.Exit(1 if {"fatal", "error"} & {finding.severity for finding in findings} else 0)


def _release_of_image(probe: bool) -> Callable[[str], str] | None:
    """Return what asks images for their release; None if nobody wants them to be run."""
    return providers.get("docker").release_of_image if probe else None


def _tell_of_images(path: Path, read: scenario.Scenario, probed: bool) -> None:
    """Say which images were not looked into."""
    for problem in [] if probed else scenario.unprobed_images(path, read):
        err.print(f"{problem}\n    hint: {_PROBE}", markup=False)


def _not_looked_into(problem: Problem) -> check.Finding:
    place = (str(problem.path), problem.line, problem.column)
    return check.Finding(*place, "info", "image", problem.where, problem.message, _PROBE, "harness")


@app.command("import")
def import_(
    directory: Annotated[Path, typer.Argument(help="A site's /etc/slurm, or a copy of it.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The scenario to write.", show_default=False)],
    release: Annotated[str, typer.Option("--release", help="The release that it runs.")] = releases.DEFAULT,
    twin_hosts: Annotated[
        int | None,
        typer.Option(
            "--twin",
            min=1,
            metavar="N",
            help="Make it a rehearsal copy on N hosts: the same nodes and limits without the site's machines.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a scenario that renders to the configuration of an existing cluster, but for its passwords."""
    must_be_known(release)
    if output.exists():
        raise UsageError(f"{output} is there already", hint="name another file, or remove it")
    must_be_writable_file(output)
    data, left_out = importer.import_directory(directory, releases.get(release))
    told = [f"left out: {text}" for text in left_out]
    if twin_hosts:
        data, replaced = twin.twin(data, twin_hosts, check.check_path(directory, releases.get(release)))
        told += [f"replaced: {text}" for text in replaced]
    output.write_text(importer.dump(data, told))
    for text in told:
        err.print(escape(text))
    try:
        read = scenario.load(output)
    except ScenarioError:
        err.print(f"{output} is written, but is not a right scenario yet:")
        raise
    out.print(
        f"{output}: {len(read.clusters)} cluster, {sum(len(c.node_names()) for c in read.clusters.values())} nodes"
    )


@app.command("diff")
def diff_(
    before: Annotated[str, typer.Argument(help="A scenario, a directory, a rendered tree or a run.")],
    after: Annotated[str, typer.Argument(help="Another one.")],
    release: Annotated[
        str | None,
        typer.Option(
            "--release", help="The release that is to take the change; unset, its hosts'.", show_default=False
        ),
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything differs.")] = False,
    probe_images: ProbeImages = False,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Say what differs between two configurations, and what a running cluster needs to take the change."""
    must_be_known(release)
    image_release = _release_of_image(probe_images)
    sides = [
        lifecycle.side(
            which,
            lambda name: open_run(runs, name),
            image_release,
            lambda path, read: _tell_of_images(path, read, probe_images),
        )
        for which in (before, after)
    ]
    try:
        old, new = diff.matched(*sides)
    except ValueError as error:
        raise UsageError(str(error), hint="name a scenario or directory of that one cluster") from error
    files, changes = diff.file_diffs(old, new), diff.changes(old, new, release)
    steps = diff.steps(changes)
    if format_ is Format.json:
        print_json({"files": list(map(asdict, files)), "changes": list(map(asdict, changes)), "steps": steps})
    else:
        print_diff(files, changes, steps)
    raise typer.Exit(1 if exit_code and files else 0)
