"""Shared code of the commands: options, the order of commands, and printing of tables and JSON."""

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

    name = "integer"  # the name in click's messages, which would otherwise be "integer range"


class Number(click.FloatRange):
    """A number, from `min` to `max` if they are given."""

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
    """A group that lists its commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@dataclass(frozen=True)
class Table:
    """A table of text: a title, column names, and lines."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def print_table(table: Table) -> None:
    """Print a table with the width of the terminal, or 110 characters if stdout is no terminal."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 110)
    with console.capture() as printed:
        console.print(to_rich(table))
    click.echo(printed.get(), nl=False)  # rich would end the program at a closed pipe


def print_json(data: object) -> None:
    """Print `data` as indented JSON."""
    click.echo(json.dumps(data, indent=1))


def to_rich(table: Table) -> RichTable:
    """Return the table for a terminal; columns of numbers are aligned to the right."""
    import rich.box
    from rich.table import Table as RichTable
    from rich.text import Text  # unlike plain strings, it may hold square brackets

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
