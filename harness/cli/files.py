"""Commands for scenarios and configurations; they need no hosts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from harness import releases
from harness.capabilities import CONTAINERS, OWN_MACHINES
from harness.cli.arguments import (
    DEFAULT_RUNS,
    FormatOption,
    ProbeImages,
    Releases,
    Runs,
    ScenarioPath,
    Settings,
)
from harness.cli.opening import (
    find_provider,
    must_be_known,
    must_be_writable,
    must_be_writable_file,
    open_run,
)
from harness.cli.printing import (
    Format,
    err,
    out,
    print_diff,
    print_findings,
    print_json,
    progress,
)
from harness.errors import EngineError, HarnessError, NoSuchRun, Problem, ScenarioError, UsageError
from harness.shipped_files import SCENARIOS, TEMPLATES

if TYPE_CHECKING:
    from harness import scenario
    from harness.origins import Origin
    from harness.slurmconf import check, diff

app = typer.Typer()
_PROBE = (
    "`release:` next to `image:` gives its release; "
    "--probe-images pulls the image and runs it to ask"
)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The scenario's name.")] = "my-cluster",
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            help="Start from a shipped scenario, such as federation.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a scenario to start from, and a JSON Schema for completion in editors."""
    from harness import scenario

    path = Path(name if name.endswith((".yml", ".yaml")) else f"{name}.yml")
    scenario.name_of(path)
    shipped = {file.stem: file for file in sorted(SCENARIOS.glob("*.yml"))}
    if like and like not in shipped:
        raise UsageError(f"no scenario {like} is shipped", hint=f"known: {', '.join(shipped)}")
    schema_path = path.with_name("slurm-harness.schema.json")
    template = shipped[like] if like else TEMPLATES / "scenario.yml"
    try:
        with path.open("x") as file:
            file.write(
                f"# yaml-language-server: $schema={schema_path.name}\n{template.read_text()}"
            )
    except FileExistsError as error:
        raise UsageError(
            f"{path} already exists", hint="choose another name, or remove it"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    schema_path.write_text(json.dumps(scenario.schema(), indent=2) + "\n")
    out.print(
        f"{path} written. Review it, then: harness run {shlex.quote(str(path))}", markup=False
    )


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from harness import scenario

    print_json(scenario.schema())


@app.command("render")
def render_(
    scenario_path: ScenarioPath,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Directory to write to.", show_default=False)
    ],
    containers: Annotated[
        bool,
        typer.Option(
            "--containers", help="Render for the harness's containers instead of for real machines."
        ),
    ] = False,
    release: Releases = None,
    settings: Settings = None,
    with_secrets: Annotated[
        bool,
        typer.Option(
            "--with-secrets", help="Also generate keys and passwords, and write them (mode 0600)."
        ),
    ] = False,
    probe_images: ProbeImages = False,
) -> None:
    """Write each host's configuration files to OUTPUT/HOST, plus manifest.json and install.sh.

    Files that are the same on several hosts are hard links. If a cluster shares its nodes with
    Kubernetes, OUTPUT/kubernetes contains the manifests of the operator, and its subdirectory
    daemons/CLUSTER those that run Slurm's daemons in pods.
    """
    from harness import install_script, render, rundir, scenario
    from harness.kubernetes import manifests
    from harness.plan import make_plan

    must_be_writable(output)
    capabilities = CONTAINERS if containers else OWN_MACHINES
    read = scenario.load(
        scenario_path, release or (), _origin_of_image(probe_images), settings=settings or ()
    )
    _warn_of_images(scenario_path, read, probe_images)
    plan = make_plan(scenario_path.stem, read, capabilities)
    tree = render.render(plan)
    rundir.write_rendered(output, tree, with_secrets=with_secrets)
    (output / "install.sh").write_text(install_script.script(plan, tree))
    (output / "install.sh").chmod(0o755)
    count = sum(map(len, tree.values()))
    out.print(f"{count} files for {len(tree)} hosts in {output}; install.sh installs them")
    if files := manifests.manifests(plan) | manifests.daemons(plan):
        directory = output / manifests.DIRECTORY
        for name, text in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        out.print(f"the operator in Kubernetes: {directory}; docs/hybrid.md explains it")


@app.command("check")
def check_(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Scenarios, Slurm's configuration files (such as slurm.conf), or directories.",
            show_default=False,
        ),
    ],
    release: Annotated[
        str | None,
        typer.Option(
            "--release",
            help=(
                "The release or patch level (24.11.3) whose daemons will read it; default: the "
                f"scenario's, or {releases.DEFAULT} for files."
            ),
            show_default=False,
        ),
    ] = None,
    older: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="The release before an upgrade: also report what the upgrade changes.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    probe_images: ProbeImages = False,
    format_: FormatOption = Format.text,
) -> None:
    """Report what daemons of a release refuse, ignore or handle differently in a configuration."""
    from harness.parsing.bounded_yaml import is_named_like_a_scenario
    from harness.slurmconf import check

    must_be_known(release, older)
    if settings and not all(map(is_named_like_a_scenario, paths)):
        raise UsageError("--set requires scenarios", hint="check files of Slurm separately")
    image_release = _origin_of_image(probe_images)
    before = releases.get(older) if older else None
    findings: list[check.Finding] = []
    shown = release
    for path in paths:
        if is_named_like_a_scenario(path):
            from harness import scenario

            read = scenario.load(
                path,
                [releases.series(release)] if release else (),
                image_release,
                settings=settings or (),
            )
            findings += (
                [] if probe_images else map(_not_inspected, scenario.unprobed_images(path, read))
            )
            findings += check.check_scenario(path, read, before, release)
            shown = shown or read.release
        else:
            findings += check.check_path(path, releases.get(release or releases.DEFAULT), before)
    if format_ is Format.json:
        print_json(
            {
                "release": shown or releases.DEFAULT,
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        print_findings(findings)
    raise typer.Exit(1 if {"fatal", "error"} & {finding.severity for finding in findings} else 0)


def _origin_of_image(probe: bool) -> Callable[[str], Origin] | None:
    """Return a function that reads an image's release; None if images must not run."""
    if not probe:
        return None
    from harness import providers

    return providers.image_reader(providers.get("docker"))


def _warn_of_images(path: Path, read: scenario.Scenario, probed: bool) -> None:
    """Print which images were not inspected."""
    from harness import scenario

    for problem in [] if probed else scenario.unprobed_images(path, read):
        err.print(f"{problem}\n    hint: {_PROBE}", markup=False)


def _not_inspected(problem: Problem) -> check.Finding:
    from harness.slurmconf import check

    place = (str(problem.path), problem.line, problem.column)
    return check.Finding(*place, "info", "image", problem.where, problem.message, _PROBE, ())


@app.command("collect")
def collect_() -> None:
    """Print a script that collects a site's configuration, accounting and scripts in one file.

    The script is a single file, requires Python 3.6 or later, and changes nothing. Run it on the
    site's controller. It writes a site bundle, which `harness import` reads.
    """
    from harness.site import collect

    # Not rich, which would wrap the lines.
    print(Path(collect.__file__).read_text(), end="")


@app.command("import")
def import_(
    sites: Annotated[
        list[Path],
        typer.Argument(
            metavar="SITE",
            help="A site's /etc/slurm, a copy of it, or a site bundle (see `harness collect`); "
            "for several clusters with one slurmdbd, such as a federation, a bundle of each.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The scenario to write.", show_default=False)
    ],
    release: Annotated[
        str | None,
        typer.Option(
            "--release",
            help="The release that the clusters run; default: each bundle's, or "
            f"{releases.DEFAULT} for a directory.",
            show_default=False,
        ),
    ] = None,
    rehearsal_hosts: Annotated[
        int | None,
        typer.Option(
            "--rehearsal",
            min=1,
            metavar="N",
            help=(
                "Write a rehearsal copy, with the same nodes and limits but without the site's "
                "machines: N hosts share the nodes of each cluster."
            ),
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        bool,
        typer.Option(
            "--start/--no-start",
            help=(
                "Start the rehearsal copy once to verify that it works, if a Docker engine is "
                "running."
            ),
        ),
    ] = True,
) -> None:
    """Turn the configuration of an existing cluster into a scenario, without its passwords.

    With --rehearsal, what daemons of the release do not accept is left out, and listed.
    """
    from harness import scenario
    from harness.site import importer
    from harness.slurmconf import check

    must_be_known(release)
    scenario.name_of(output)  # runs must be able to have its name
    must_be_writable_file(output)
    imported = importer.import_site(sites, release, rehearsal_hosts)
    importer.write(output, imported)
    for note in imported.notes:
        err.print(escape(note))
    if imported.fidelity:
        report = output.with_suffix(".fidelity.md")
        err.print(f"{report}: how the copy differs from the site", markup=False)
    try:
        read = scenario.load(output)
    except ScenarioError:
        err.print(f"{output} written, but it is not a valid scenario yet:")
        raise
    fatal = [
        finding for finding in check.check_scenario(output, read) if finding.severity == "fatal"
    ]
    if rehearsal_hosts and fatal:
        err.print(f"{output} written, but daemons would not start with it:")
        print_findings(fatal)
        raise typer.Exit(1)
    if rehearsal_hosts and start:
        _start_once(output)
    count = sum(len(cluster.node_names()) for cluster in read.clusters.values())
    clusters = len(read.clusters)
    out.print(f"{output}: {clusters} cluster{'s'[: clusters > 1]}, {count} nodes")


def _start_once(output: Path) -> None:
    """Start a copy's real daemons, and stop them again; say so if there is no engine."""
    from harness import lifecycle

    try:
        lifecycle.start_once(output, find_provider("docker", DEFAULT_RUNS), progress())
    except (EngineError, UsageError) as error:  # no engine, or not installed with [run]
        err.print(f"the copy was checked, but not started: {error.message}", markup=False)
    except HarnessError as error:
        err.print(f"{output} written, but the copy does not start:\n{error}", markup=False)
        raise typer.Exit(1) from error


@app.command("diff")
def diff_(
    before: Annotated[
        str,
        typer.Argument(
            help="A scenario, a configuration file or directory of Slurm, a rendered tree or a run."
        ),
    ],
    after: Annotated[str, typer.Argument(help="What to compare it with.")],
    release: Annotated[
        str | None,
        typer.Option(
            "--release",
            help="The release of the daemons to change; default: that of the hosts.",
            show_default=False,
        ),
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if anything differs.")
    ] = False,
    probe_images: ProbeImages = False,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Compare two configurations, and list the steps that apply the change to a running cluster."""
    from harness.slurmconf import diff, sources

    must_be_known(release)
    image_release = _origin_of_image(probe_images)
    sides = [
        sources.read(
            which,
            lambda name: _configuration_of_run(runs, name),
            image_release,
            lambda path, read: _warn_of_images(path, read, probe_images),
        )
        for which in (before, after)
    ]
    try:
        old, new = diff.matched(*sides)
    except ValueError as error:
        raise UsageError(
            str(error), hint="name a scenario or directory of that one cluster"
        ) from error
    files, changes = diff.file_diffs(old, new), diff.changes(old, new, release)
    steps = diff.steps(changes)
    if format_ is Format.json:
        print_json(
            {
                "files": list(map(asdict, files)),
                "changes": list(map(asdict, changes)),
                "steps": steps,
            }
        )
    else:
        print_diff(files, changes, steps)
    raise typer.Exit(1 if exit_code and files else 0)


def _configuration_of_run(runs: Path, name: str) -> diff.ConfigurationSource:
    from harness.slurmconf import sources

    try:
        run = open_run(runs, name, only_up=False)
    except NoSuchRun as error:
        raise UsageError(
            f"{name} is not a file, a directory or a run",
            hint="name a scenario, a file or directory of Slurm, a directory that `harness render` "
            "wrote, or a run that `harness status` lists",
        ) from error
    is_up = bool(run.provider.runs().get(run.directory.id))
    return sources.of_run(
        name, run.plan, run.tree, run.ssh if is_up else None, run.directory.secrets()
    )
