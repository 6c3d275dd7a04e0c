"""The verbs of base images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from harness import releases
from harness.cli.arguments import FormatOption
from harness.cli.opening import must_be_known, must_be_writable_file
from harness.cli.printing import Format, out, print_json, progress
from harness.errors import UsageError
from harness.providers import boxes, engine, images
from harness.scenario.model import PACKAGE

app = typer.Typer(no_args_is_help=True, help="Build, list, save and load the base images of the hosts.")


@app.command("build")
def build(
    names: Annotated[list[str] | None, typer.Argument(help="Releases; unset, all.", show_default=False)] = None,
) -> None:
    """Build the image of each release, if the engine does not have it yet."""
    for image in _built(names):
        out.print(image)


@app.command("extend")
def extend(
    release: Annotated[str, typer.Argument(help="The release whose image is extended.", show_default=False)],
    packages: Annotated[
        list[str], typer.Option("--package", help="A Debian package. Can be repeated.", show_default=False)
    ],
) -> None:
    """Build a release's image with more Debian packages, if the engine does not have it; prints its name.

    `packages:` of a cluster builds and uses the same image; any cluster can name it as its `image:`.
    """
    must_be_known(release)
    if wrong := [name for name in packages if not re.fullmatch(PACKAGE, name)]:
        raise UsageError(f"--package {wrong[0]}: no name of a Debian package")
    out.print(images.extend(engine.connect(), releases.get(release), packages, progress()), markup=False)


@app.command("save")
def save(
    file: Annotated[Path, typer.Argument(help="The tar file to write.", show_default=False)],
    names: Annotated[list[str] | None, typer.Argument(help="Releases; unset, all.", show_default=False)] = None,
) -> None:
    """Write images to a file, for an engine without a registry; those that are not there are built first.

    A release's image with Apptainer goes along if the engine has it.
    """
    must_be_writable_file(file)
    chosen, client = {*_built(names)}, engine.connect()
    chosen |= {image for release, image, _ in images.built(client) if not names or release in names} & images.wanted()
    images.save(client, sorted(chosen), file)
    out.print(f"{file}: {', '.join(sorted(chosen))}", markup=False)


@app.command("load")
def load(
    file: Annotated[Path, typer.Argument(help="What `harness images save` wrote.", show_default=False)],
) -> None:
    """Give the engine the images of a file; they must be those that this version of the harness uses."""
    for image in images.load(engine.connect(), file):
        out.print(image)


@app.command("list")
def list_(format_: FormatOption = Format.text) -> None:
    """List the images of the engine, and the boxes of Vagrant; one that is not current is of no use any more."""
    client = engine.connect()
    current = images.wanted() | boxes.wanted() | images.current_extensions(client)
    rows: list[dict[str, Any]] = [
        {"release": release, "kind": kind, "image": name, "bytes": size, "current": name in current}
        for kind, there in (
            ("image", images.built(client)),
            ("extended", images.built(client, images.EXTENDED)),
            ("box", boxes.known()),
        )
        for release, name, size in there
    ]
    if format_ is Format.json:
        return print_json(rows)
    for row in rows:
        size = f"{row['bytes'] / 1e6:.0f} MB{'' if row['current'] else '  (old)'}"
        out.print(f"{row['kind']:8}  {row['image']}  {size}")
    return None


def _built(names: Sequence[str] | None) -> list[str]:
    """Return the images of some releases, or of all; build those that the engine does not have."""
    must_be_known(*names or ())
    client = engine.connect()
    return [images.ensure(client, releases.get(name), progress()) for name in names or releases.PACKAGED]
