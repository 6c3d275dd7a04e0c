"""Commands for base images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import extras, origins, releases
from harness.cli.arguments import FormatOption, Group
from harness.cli.opening import must_be_known, must_be_writable_file
from harness.cli.printing import Format, out, print_json, progress
from harness.errors import UsageError
from harness.origins import NotAnOrigin

if TYPE_CHECKING:
    from harness.providers import images

app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Build, list, save and load the base images of the hosts."
)


# Each command imports the modules for the engine by itself, because their packages may be missing.
@app.callback()
def _images() -> None:
    extras.need("run", "harness images")


@app.command("build")
def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Releases or origins; default: all releases.", show_default=False),
    ] = None,
) -> None:
    """Build the images of releases or origins that the engine does not have yet.

    An origin is source:FILE, packages:DIRECTORY or base:NAME, as for `--release`.
    """
    for image in _built(names):
        out.print(image)


@app.command("extend")
def extend(
    release: Annotated[
        str, typer.Argument(help="The release or origin whose image to extend.", show_default=False)
    ],
    packages: Annotated[
        list[str],
        typer.Option("--package", help="A Debian package. Can be repeated.", show_default=False),
    ],
) -> None:
    """Build a release's image with more Debian packages, unless the engine has it; print its name.

    `packages:` of a cluster builds and uses the same image; any cluster can name it as its
    `image:`.
    """
    from harness.providers import images
    from harness.providers.docker import engine
    from harness.scenario.model import PACKAGE

    slurm = _slurm(release)
    if wrong := [name for name in packages if not re.fullmatch(PACKAGE, name)]:
        raise UsageError(f"--package {wrong[0]}: not a name of a Debian package")
    out.print(images.extend(engine.connect(), slurm, packages, progress()), markup=False)


@app.command("save")
def save(
    file: Annotated[Path, typer.Argument(help="The tar file to write.", show_default=False)],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Releases or origins; default: all releases.", show_default=False),
    ] = None,
) -> None:
    """Write images to a file, for an engine without a registry.

    Images that do not exist are built first. A release's image with Apptainer is included if the
    engine has it.
    """
    from harness.providers import images
    from harness.providers.docker import engine

    must_be_writable_file(file)
    chosen, client = {*_built(names)}, engine.connect()
    chosen |= {
        image for release, image, _ in images.built(client) if not names or release in names
    } & images.wanted()
    images.save(client, sorted(chosen), file)
    out.print(f"{file}: {', '.join(sorted(chosen))}", markup=False)


@app.command("load")
def load(
    file: Annotated[
        Path, typer.Argument(help="A file that `harness images save` wrote.", show_default=False)
    ],
) -> None:
    """Load images that this version of the harness saved to a file."""
    from harness.providers import images
    from harness.providers.docker import engine

    for image in images.load(engine.connect(), file):
        out.print(image)


@app.command("list")
def list_(format_: FormatOption = Format.text) -> None:
    """List the images of the engine and the boxes of Vagrant.

    Those marked (old) are no longer used.
    """
    from harness.providers import images
    from harness.providers.docker import engine
    from harness.providers.vagrant import boxes

    client = engine.connect()
    current = (
        images.wanted()
        | boxes.wanted()
        | images.current_extensions(client)
        | images.current_origins(client)
    )
    rows: list[dict[str, Any]] = [
        {"release": release, "kind": kind, "image": name, "bytes": size, "current": name in current}
        for kind, known in (
            ("image", images.built(client)),
            ("extended", images.built(client, images.EXTENDED)),
            ("box", boxes.known()),
        )
        for release, name, size in known
    ]
    if format_ is Format.json:
        return print_json(rows)
    for row in rows:
        size = f"{row['bytes'] / 1e6:.0f} MB{'' if row['current'] else '  (old)'}"
        out.print(f"{row['kind']:8}  {row['image']}  {size}")
    return None


def _built(names: Sequence[str] | None) -> list[str]:
    """Return the images of releases and origins, or of all releases; build missing ones."""
    from harness.providers import images
    from harness.providers.docker import engine

    slurms = [_slurm(name) for name in names or releases.packaged()]
    client = engine.connect()
    return [images.ensure(client, slurm, progress()) for slurm in slurms]


def _slurm(name: str) -> images.Slurm:
    """Return what an image of a release or an origin consists of; UsageError if it is neither."""
    from harness.providers import images

    if not origins.is_origin(name):
        must_be_known(name)
        return releases.get(name)
    try:
        return images.of(origins.resolve(origins.parse(name).under(Path.cwd())))
    except NotAnOrigin as error:
        raise UsageError(str(error), hint=error.hint) from error
