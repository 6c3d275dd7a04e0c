"""Print compared policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from harness.cli.printing import Format, out, print_json, table_of

if TYPE_CHECKING:
    from harness.simulation.comparison import Comparison
    from harness.simulation.html_report import Cell


def print_comparison(comparison: Comparison, format_: Format) -> None:
    """Print the measures of policies side by side, and what can be concluded.

    A range below a value is that of the repeats.
    """
    from harness.simulation import json_csv_report
    from harness.simulation.comparison import duration
    from harness.simulation.html_report import headline_rows

    if format_ is Format.json:
        print_json(json_csv_report.data(comparison))
        return
    first = comparison.policies[0].simulations[0]
    out.print(f"trace     {escape(first.trace or 'not recorded')}, {len(first.jobs)} jobs")
    out.print(f"cluster   {first.nodes} nodes, {first.cpus} CPUs, {duration(first.hours * 3600)}")
    for note in first.notes:
        out.print(f"[yellow]note      {escape(note)}[/yellow]")
    rows = headline_rows(comparison)
    headings = ["", *(escape(policy.name) for policy in comparison.policies)]
    table = table_of(
        headings, ([row.name, *map(_cell, row.cells)] for row in rows), overflow="fold"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    out.print(table)
    for statement in comparison.statements:
        unknown = any(policy.problems for policy in comparison.policies)
        unknown = unknown or statement.startswith("Unknown")
        text = f"[yellow]{escape(statement)}[/yellow]" if unknown else escape(statement)
        out.print(f"- {text}")


def _cell(cell: Cell) -> str:
    mark = (
        "[red]≠[/red] " if cell.differs else "[yellow]?[/yellow] " if cell.differs is None else ""
    )
    below = f"\n[dim]{cell.range}[/dim]" if cell.range else ""
    return f"{mark}{cell.value}{below}"
