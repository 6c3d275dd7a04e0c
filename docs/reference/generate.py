"""Write the pages of this folder: a scenario's keys from its JSON Schema, and the commands."""

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

[The scenario file](../scenario.md) explains them with an example. `harness schema` prints the same
as a JSON Schema, which also has the patterns of names.
"""
_WORDS = {
    "string": "text",
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
}
_NULL = {"type": "null"}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
}


def scenario_page(schema: Schema) -> str:
    """Return a page with a table for each part of a scenario, in the order of the schema."""
    tables = [_NOTE + _SCENARIO]
    for place, part in parts(schema, schema, ""):
        rows = [f"## {place or 'Top level'}", "", linked(part["description"]), ""]
        rows += ["| key | value | default | description |", "|---|---|---|---|"]
        for key, field in part["properties"].items():
            unset = "required" if key in part.get("required", ()) else default(field["default"])
            value, description = words(field, below(place, key)), linked(field["description"])
            rows.append(f"| `{key}` | {value} | {unset} | {description} |")
        tables.append("\n".join(rows) + "\n")
    return "\n".join(tables)


def cli_page() -> str:
    """Return a page of all commands."""
    command = typer.main.get_command(cli.app)
    return _NOTE + get_docs_for_click(
        obj=command, ctx=typer.Context(command), name="harness", title="The command line"
    )


def parts(schema: Schema, part: Schema, place: str) -> Iterator[tuple[str, Schema]]:
    """Yield a part and all parts below it, each with its place in a scenario."""
    yield place, part
    for key, field in part["properties"].items():
        for at, name in named(field, below(place, key)):
            yield from parts(schema, schema["$defs"][name], at)


def named(field: Schema, at: str) -> Iterator[tuple[str, str]]:
    """Yield the places of the parts that a value is made of, and their names in the schema."""
    match field:
        case {"$ref": reference}:
            yield at, reference.rpartition("/")[2]
        case {"items": item}:
            yield from named(item, f"{at}[]")
        case {"patternProperties": patterns}:
            for item in patterns.values():
                yield from named(item, f"{at}.NAME")
        case {"anyOf": choices}:
            for choice in choices:
                yield from named(choice, at)


def words(field: Schema, at: str) -> str:
    """Return a description of the allowed values; a part is a link to its table."""
    match field:
        case {"$ref": _}:
            return f"[see below](#{re.sub('[^a-z0-9_-]', '', at.lower())})"
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"anyOf": choices}:
            return " or ".join(words(choice, at) for choice in choices if choice != _NULL)
        case {"prefixItems": items}:
            return f"{len(items)} {plural(words(items[0], at))}"
        case {"items": item}:
            return f"list of {plural(words(item, f'{at}[]'))}"
        case {"patternProperties": patterns}:
            (item,) = patterns.values()
            if {"type": "boolean"} in item.get("anyOf", ()):
                return "[options](../scenario.md#options)"
            return f"mapping of NAME to {words(item, f'{at}.NAME')}"
        case {"type": kind, **limits}:
            return ", ".join(
                [
                    _WORDS[kind],
                    *(text.format(limits[key]) for key, text in _BOUNDS.items() if key in limits),
                ]
            )
    raise ValueError(f"{at}: no words for {field}")


def plural(kind: str) -> str:
    """Return words for several values of a kind."""
    return re.sub(r"\bnumber\b", "numbers", kind)


def below(place: str, key: str) -> str:
    """Return the place of a key."""
    return f"{place}.{key}" if place else key


def default(value: Any) -> str:
    """Return the value of a key that is left out; "" if it is empty, or in the description."""
    if value in (None, "", []) or isinstance(value, dict):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def linked(description: str) -> str:
    """Return a description in which the names of pages are links."""
    return re.sub(r"docs/((?:[\w-]+/)*([\w-]+))\.md", r"[\2](../\1.md)", description)


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    (directory / "scenario.md").write_text(scenario_page(scenario.schema()))
    (directory / "cli.md").write_text(cli_page())
