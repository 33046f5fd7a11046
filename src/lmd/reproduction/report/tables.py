"""Tables a person can read, made from rows, and the one that compares methods iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence

from lmd.cli.common import Table
from lmd.reproduction.report.rows import Row, best, distinct, select, settings_of


def number(value: float | None) -> str:
    """A number at a glance: `3.1e-08`, `0.0425`, `31.4`; a value that was not finite is said to be so."""
    if value is None:
        return "diverged"
    if value == 0:
        return "0"
    return f"{value:.1e}" if not 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"


def method_tables(
    rows: Sequence[Row],
    metric: str,
    tuned: Sequence[str] = (),
    iterations: Sequence[int] = (5, 10, 20, 50),
    largest: bool = False,
) -> list[Table]:
    """One table per setting of the rows: the best of each method at some iterations, and its time per iteration.

    "Best" is the smallest value, or the `largest`, chosen at each iteration anew over the settings that methods are
    `tuned` over.
    """
    measured = [row for row in rows if row["metric"] == metric and isinstance(row["iteration"], int)]
    shown = [k for k in iterations if k in distinct(measured, "iteration")]
    tables = []
    for settings in settings_of(measured, without=tuned):
        here = select(measured, **settings)
        lines = []
        for method in distinct(here, "method"):
            own = select(here, method=method)
            cells = []
            for k in shown:
                there = select(own, iteration=k)
                found = best(there, largest=largest)
                cells.append(number(None if found is None else found["value"]) if there else "not measured")
            lines.append((method, *cells, _per_iteration(select(rows, method=method, metric="seconds", **settings))))
        title = ", ".join(f"{key} {value}" for key, value in settings.items())
        columns = ("method", *(f"{metric} at {k}" for k in shown), "ms/iteration")
        tables.append(Table(title, columns, tuple(lines)))
    return tables


def cell(rows: Sequence[Row]) -> str:
    """The number of the first row; nothing where there is none."""
    return number(rows[0]["value"]) if rows else ""


def _per_iteration(rows: Sequence[Row]) -> str:
    """Milliseconds per iteration, the median over what the method was run with."""
    counted = [row for row in rows if isinstance(row["iteration"], int) and row["iteration"] > 0]
    times = sorted(row["value"] / row["iteration"] for row in counted if row["value"] is not None)
    return number(1e3 * times[len(times) // 2]) if times else ""
