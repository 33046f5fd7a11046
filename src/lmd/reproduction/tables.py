"""Rows, the flat records that every experiment writes, and tables made from them.

A row is `{"method", "iteration", "metric", "value", **settings}`; a value that is not finite is stored as None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from lmd.cli.common import Table

Row = dict[str, Any]

CORE = ("method", "iteration", "metric", "value")

LARGER = ("psnr", "ssim", "accuracy")  # metrics for which larger is better


def row(method: str, iteration: int | str, metric: str, value: float, **settings: Any) -> Row:
    """One flat record."""
    number = float(value)
    return {
        "method": method,
        "iteration": iteration,
        "metric": metric,
        "value": number if math.isfinite(number) else None,
        **settings,
    }


def select(rows: Iterable[Row], /, **wanted: Any) -> list[Row]:
    """The rows that have all of the wanted settings."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def distinct(rows: Iterable[Row], key: str) -> list[Any]:
    """The values of a setting, in the order of their first appearance."""
    return list(dict.fromkeys(row[key] for row in rows if key in row))


def best(rows: Iterable[Row], *, largest: bool = False) -> Row | None:
    """The row with the smallest (or largest) finite value."""
    finite = (row for row in rows if row["value"] is not None)
    return (max if largest else min)(finite, key=lambda row: row["value"], default=None)


def curve(rows: Iterable[Row], metric: str) -> tuple[list[int], list[float]]:
    """Iterations and values of one metric, in order; a value that was not finite is a NaN here."""
    points = sorted((row["iteration"], row["value"]) for row in rows if row["metric"] == metric)
    return [k for k, _ in points], [math.nan if value is None else value for _, value in points]


def settings_of(rows: Sequence[Row], *, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The distinct settings of the rows beyond method, iteration, metric and value."""
    found: dict[str, dict[str, Any]] = {}
    for item in rows:
        settings = {key: value for key, value in item.items() if key not in CORE and key not in without}
        found.setdefault(repr(settings), settings)
    return list(found.values())


def number(value: float | None) -> str:
    """Format a number: `3.1e-08`, `0.0425`, `31.4`, or "diverged" for None."""
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

    "Best" is the smallest value, or the largest if `largest` is set. It is chosen for each iteration, among the
    settings named in `tuned`.
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
    """Return the formatted value of the first row, or an empty string if there are no rows."""
    return number(rows[0]["value"]) if rows else ""


def _per_iteration(rows: Sequence[Row]) -> str:
    """Return the median of the milliseconds per iteration over the rows, as text."""
    counted = [row for row in rows if isinstance(row["iteration"], int) and row["iteration"] > 0]
    times = sorted(row["value"] / row["iteration"] for row in counted if row["value"] is not None)
    return number(1e3 * times[len(times) // 2]) if times else ""
