"""Write the pages of this folder: the keys of a scenario from its JSON Schema, the verbs from the command line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from harness import cli, scenario

Schema = dict[str, Any]
_NOTE = "<!-- Written by `make docs`; do not edit. -->\n\n"
_SCENARIO = """# The keys of a scenario

[The scenario file](../scenario.md) tells with an example what they are for. `harness schema` prints the same as a
JSON Schema, which also has the patterns of names.
"""
_WORDS = {
    "string": "text",
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
}


def scenario_page(schema: Schema) -> str:
    """Return a page with a table for each part of a scenario, the parts in the order in which they are met."""
    tables = [_NOTE + _SCENARIO]
    for place, part in parts(schema, schema, ""):
        rows = [f"## {place or 'At the top'}", "", linked(part["description"]), ""]
        rows += ["| key | value | unset | what it says |", "|---|---|---|---|"]
        for key, field in part["properties"].items():
            unset = "required" if key in part.get("required", ()) else default(field["default"])
            rows.append(
                f"| `{key}` | {words(field, below(place, key))} | {unset} | {linked(field['description'])} |"
            )
        tables.append("\n".join(rows) + "\n")
    return "\n".join(tables)


def cli_page() -> str:
    """Return a page of all verbs."""
    command = typer.main.get_command(cli.app)
    with_whole_sentences(command)
    return _NOTE + get_docs_for_click(
        obj=command, ctx=typer.Context(command), name="harness", title="The command line"
    )


def with_whole_sentences(command: Any) -> None:
    """Have lists of verbs tell the first paragraph about each, not its first 45 letters."""
    for one in getattr(command, "commands", {}).values():
        one.short_help = " ".join((one.help or "").partition("\n\n")[0].split())
        with_whole_sentences(one)


def parts(schema: Schema, part: Schema, place: str) -> Iterator[tuple[str, Schema]]:
    """Yield a part and each one below it, with its place in a scenario."""
    yield place, part
    for key, field in part["properties"].items():
        for at, name in named(field, below(place, key)):
            yield from parts(schema, schema["$defs"][name], at)


def named(field: Schema, at: str) -> Iterator[tuple[str, str]]:
    """Yield the places of the parts that a value is made of, and their names in the schema."""
    match field:
        case {"$ref": reference}:
            yield at, reference.rpartition("/")[2]
        case {"items": one}:
            yield from named(one, f"{at}[]")
        case {"patternProperties": each}:
            for one in each.values():
                yield from named(one, f"{at}.NAME")
        case {"anyOf": several}:
            for one in several:
                yield from named(one, at)


def words(field: Schema, at: str) -> str:
    """Return in words what a value may be; a part is a link to its table."""
    match field:
        case {"$ref": _}:
            return f"[see below](#{re.sub('[^a-z0-9_-]', '', at.lower())})"
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"anyOf": several}:
            return " or ".join(words(one, at) for one in several if one != {"type": "null"})
        case {"prefixItems": several}:
            return f"{len(several)} times {words(several[0], at)}"
        case {"items": one}:
            return f"list of {words(one, f'{at}[]')}"
        case {"patternProperties": each}:
            (one,) = each.values()
            if {"type": "boolean"} in one.get("anyOf", ()):
                return "[options](../scenario.md#options)"
            return f"each NAME: {words(one, f'{at}.NAME')}"
        case {"type": kind, **limits}:
            return ", ".join(
                [
                    _WORDS[kind],
                    *(text.format(limits[key]) for key, text in _BOUNDS.items() if key in limits),
                ]
            )
    raise ValueError(f"{at}: no words for {field}")


def below(place: str, key: str) -> str:
    """Return the place of a key."""
    return f"{place}.{key}" if place else key


def default(value: Any) -> str:
    """Return what counts where a key is left out; "" where that is nothing, or the description tells it."""
    if value in (None, "", []) or isinstance(value, dict):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def linked(description: str) -> str:
    """Return a description whose pages are links."""
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](../\1.md)", description)


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    (directory / "scenario.md").write_text(scenario_page(scenario.schema()))
    (directory / "cli.md").write_text(cli_page())
