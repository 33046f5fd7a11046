"""The tables of a bench: for each problem the quality at iterations and the time to targets, and the image by size."""

from __future__ import annotations

from collections.abc import Sequence

from lmd.report.rows import Row, distinct, select
from lmd.report.tables import Table, cell, number

BENCHED = (("psnr", 10), ("psnr", 20), ("relative_gap", 10), ("relative_gap", 20))
TIMED = ("gap_1e-2", "gap_1e-3", "40db", "50db")
"""What the tables show: metrics at iterations, and the targets whose times they have."""


def bench_tables(rows: Sequence[Row]) -> list[Table]:
    """For each problem, noise and batch of a bench: quality at iterations, time to targets; then by size."""
    benched = [row for row in rows if all(key in row for key in ("problem", "noise", "batch"))]
    plain = [row for row in benched if "size" not in row]
    found = []
    for settings in dict.fromkeys((row["problem"], row["noise"], row["batch"]) for row in plain):
        here = select(plain, **dict(zip(("problem", "noise", "batch"), settings, strict=True)))
        found.append(_bench_table("{}, noise {}%, batch {}".format(*settings), here))
    sizes = [row for row in benched if "size" in row]
    lines = tuple(
        (row["method"], str(row["size"]), number(row["value"]), cell(_like(sizes, row, "seconds_per_pixel")))
        for row in select(sizes, metric="relative_gap_bound")
    )
    columns = ("method", "side", "gap at 10", "s/pixel/iteration")
    return [*found, Table("denoise, noise 5%, by size", columns, lines)] if lines else found


def _bench_table(title: str, rows: Sequence[Row]) -> Table:
    lines = []
    for method in distinct(rows, "method"):
        own = select(rows, method=method)
        cells = [cell(select(own, metric=metric, iteration=k)) for metric, k in BENCHED]
        for target in TIMED:
            found = select(own, metric=f"seconds_to_{target}")
            reached = found and found[0]["value"] is not None
            cells.append(f"{1e3 * found[0]['value']:.3g} ({found[0]['iteration']})" if reached else "-")
        lines.append((method, *cells))
    short = [f"{'dB' if metric == 'psnr' else 'gap'} at {k}" for metric, k in BENCHED]
    headings = [f"ms to {target.replace('_', ' ')}" for target in TIMED]
    return Table(title, ("method", *short, *headings), tuple(lines))


def _like(rows: Sequence[Row], like: Row, metric: str) -> list[Row]:
    return select(rows, method=like["method"], size=like["size"], metric=metric)
