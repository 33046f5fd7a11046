"""What the commands share: options, the order of commands, tables and JSON on the screen."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table as RichTable

PRESETS = ("quick", "standard", "paper")
MAX_ITERATIONS = 1_000_000
MAX_SEED = 2**32 - 1


class Integer(click.IntRange):
    """A whole number from `min` to `max`."""

    name = "integer"  # which click says where something is none; "integer range" otherwise


class Number(click.FloatRange):
    """A number from `min` to `max`, or any."""

    name = "number"


PRESET = click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="quick",
    show_default=True,
    help="quick: seconds to a few minutes; standard: up to an hour or two on two cores; paper: the published sizes.",
)
SEED = click.option("--seed", type=Integer(0, MAX_SEED), default=0, show_default=True, help="Seed of all randomness.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


class Ordered(click.Group):
    """Lists the commands in the order they are defined, which is the order a newcomer meets them in."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@dataclass(frozen=True)
class Table:
    """A heading, column names, and lines of text."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def print_table(table: Table) -> None:
    """Print a table as wide as the screen, or as 110 letters where there is none."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 110)
    with console.capture() as printed:
        console.print(to_rich(table))
    click.echo(printed.get(), nl=False)  # rich itself ends the program where nobody reads on


def print_json(data: object) -> None:
    """Print what `json` can write, indented."""
    click.echo(json.dumps(data, indent=1))


def to_rich(table: Table) -> RichTable:
    """Return the table for a terminal; columns of figures are set to the right."""
    import rich.box
    from rich.table import Table as RichTable
    from rich.text import Text  # in plain strings rich takes square brackets for markup

    title = Text(table.title, style="table.title") if table.title else None
    shown: Any = RichTable(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD)
    words = ("", "diverged", "not reached", "not measured")
    for place, column in enumerate(table.columns):
        has_figures = all(line[place] in words or line[place][0] in "-0123456789" for line in table.lines)
        justify = "right" if has_figures and place else "left"
        shown.add_column(Text(column, style="table.header"), justify=justify, no_wrap=place == 0)
    for line in table.lines:
        shown.add_row(*map(Text, line))
    return shown
