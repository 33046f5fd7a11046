"""Rows: the flat records that every experiment writes, and what a table needs of them.

A row is `{"method", "iteration", "metric", "value", **settings}`; the value of a number that is not finite is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

CORE = ("method", "iteration", "metric", "value")

LARGER = ("psnr", "ssim", "accuracy")
"""Metrics of which more is better."""


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
    finite = [row for row in rows if row["value"] is not None]
    if not finite:
        return None
    return max(finite, key=lambda row: row["value"]) if largest else min(finite, key=lambda row: row["value"])


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
