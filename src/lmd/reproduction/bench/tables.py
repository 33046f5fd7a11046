"""The tables of a bench: for each problem the quality at iterations, and the time to gaps."""

from __future__ import annotations

from collections.abc import Sequence

from lmd.cli.common import Table
from lmd.reproduction.report.rows import Row, distinct, select
from lmd.reproduction.report.tables import cell

SHOWN = (("psnr", 10), ("psnr", 20), ("relative_gap", 10), ("relative_gap", 20))
"""Metrics at iterations."""

TO_GAP = "seconds_to_gap_"


def bench_tables(rows: Sequence[Row]) -> list[Table]:
    """For each problem, noise and size of a bench: quality at iterations, and times to gaps for each batch."""
    benched = [row for row in rows if all(key in row for key in ("problem", "noise", "batch"))]
    found = []
    for problem, noise, size in dict.fromkeys((row["problem"], row["noise"], row.get("size")) for row in benched):
        here = select(benched, problem=problem, noise=noise, size=size)
        title = f"{problem}, noise {noise}%" + (f", {size} x {size}" if size else "")
        found.append(_quality_table(title, select(here, batch=here[0]["batch"])))
        found += [_time_table(f"{title}, batch {b}", select(here, batch=b)) for b in distinct(here, "batch")]
    return [table for table in found if table.lines]


def _quality_table(title: str, rows: Sequence[Row]) -> Table:
    shown = [row for row in rows if (row["metric"], row["iteration"]) in SHOWN]
    lines = tuple(
        (method, *(cell(select(shown, method=method, metric=metric, iteration=k)) for metric, k in SHOWN))
        for method in distinct(shown, "method")
    )
    return Table(title, ("method", *(f"{'dB' if m == 'psnr' else 'gap'} at {k}" for m, k in SHOWN)), lines)


def _time_table(title: str, rows: Sequence[Row]) -> Table:
    """Milliseconds of the call and of all processors; a method that reaches no gap is left out."""
    timed = [row for row in rows if row["metric"].startswith(TO_GAP)]
    gaps = distinct(timed, "metric")
    lines = tuple(
        (method, *(_milliseconds(select(timed, method=method, metric=gap)) for gap in gaps))
        for method in distinct([row for row in timed if row["value"] is not None], "method")
    )
    return Table(title, ("ms / CPU ms to a gap of", *(gap.removeprefix(TO_GAP) for gap in gaps)), lines)


def _milliseconds(found: Sequence[Row]) -> str:
    if not found or found[0]["value"] is None:
        return "-"
    both = [found[0]["value"], found[0].get("cpu_seconds")]
    return " / ".join(f"{1e3 * each:.{3 if each < 1 else 5}g}" for each in both if each is not None)
