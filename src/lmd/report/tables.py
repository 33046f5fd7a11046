"""Tables a person can read, made from rows: one line per method, its best setting, at a few iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmd.report.rows import Row, best, distinct, select, settings_of

if TYPE_CHECKING:
    from rich.table import Table as RichTable

LARGER_IS_BETTER = ("psnr", "ssim", "accuracy")
TUNED = ("multiplier", "seed")
"""Settings that a method is tuned over: a table shows the best of them."""


@dataclass(frozen=True)
class Table:
    """A heading, column names, and lines of text."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def number(value: float | None) -> str:
    """A number at a glance: `3.1e-08`, `0.0425`, `31.4`; a value that was not finite is said to be so."""
    if value is None:
        return "diverged"
    if value == 0:
        return "0"
    return f"{value:.1e}" if not 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"


def method_tables(
    rows: Sequence[Row], metric: str = "loss", iterations: Sequence[int] = (5, 10, 20, 50)
) -> list[Table]:
    """One table per setting of the experiment: the best of each method at some iterations, and its time per iteration.

    "Best" is chosen at each iteration anew over the settings a method is tuned over, as the paper does.
    """
    measured = [row for row in rows if row["metric"] == metric and isinstance(row["iteration"], int)]
    shown = [k for k in iterations if k in distinct(measured, "iteration")]
    tables = []
    for settings in settings_of(measured, without=TUNED):
        here = select(measured, **settings)
        lines = []
        for method in distinct(here, "method"):
            own = select(here, method=method)
            cells = []
            for k in shown:
                found = best(select(own, iteration=k), largest=metric in LARGER_IS_BETTER)
                cells.append(number(None if found is None else found["value"]))
            lines.append((method, *cells, _per_iteration(select(rows, method=method, metric="seconds", **settings))))
        title = ", ".join(f"{key} {value}" for key, value in settings.items())
        columns = ("method", *(f"{metric} at {k}" for k in shown), "ms/iteration")
        tables.append(Table(title, columns, tuple(lines)))
    return tables


def target_table(rows: Sequence[Row]) -> list[Table]:
    """Time to a target on one instance, where an experiment measured it: rows whose iteration is "to gap"."""
    timed = select(rows, iteration="to gap")
    if not timed:
        return []
    metrics = distinct(timed, "metric")
    lines = []
    for method in distinct(timed, "method"):
        found = [best(select(timed, method=method, metric=metric)) for metric in metrics]
        lines.append((method, *("not reached" if row is None else number(row["value"]) for row in found)))
    columns = ("method", *(metric.replace("_", " ") for metric in metrics))
    return [Table("One instance from a random start", columns, tuple(lines))]


def promise_table(rows: Sequence[Row]) -> list[Table]:
    """The worst instance of each safeguarded solver in each condition, where an experiment measured it."""
    lines = []
    for early in (row for row in rows if row["metric"] == "excess_over_fallback" and "fallback" in row):
        same = {key: early.get(key) for key in ("method", "condition")}
        shares = select(rows, metric="fallback_share", **same)
        gaps = [row for row in select(rows, metric="largest_relative_gap", **same) if "instances" in row]
        if not shares or not gaps:
            continue
        late = gaps[0]
        settings = (early.get("condition"), early["fallback"], early.get("instances"))
        figures = (number(shares[0]["value"]), number(early["value"]), number(late["value"]))
        lines.append((early["method"], *map(str, settings), *figures))
    if not lines:
        return []
    columns = ("solver", "condition", "fall-back", "instances", "fell back")
    return [
        Table(
            "Safeguarded, the worst instance",
            (*columns, f"above the fall-back at {early['iteration']}", f"relative gap at {late['iteration']}"),
            tuple(lines),
        )
    ]


def noise_tables(rows: Sequence[Row]) -> list[Table]:
    """Quality against the noise, where an experiment measured it: for each metric and iteration a line per method."""
    tables = []
    for metric in ("psnr", "ssim"):
        measured = [row for row in rows if row["metric"] == metric and "noise" in row and "problem" not in row]
        levels = distinct(measured, "noise")
        for k in distinct(measured, "iteration"):
            here = select(measured, iteration=k)
            lines = tuple(
                (method, *(_cell(select(here, method=method, noise=level)) for level in levels))
                for method in distinct(here, "method")
            )
            title = f"{metric.upper()} to the minimiser, {'best iteration' if k == 'best' else f'iteration {k}'}"
            tables.append(Table(title, ("method", *(f"noise {level}%" for level in levels)), lines))
    return tables


COSTS = {
    "train step, s": ("lmd", "train_seconds"),
    "recomputing, s": ("lmd-recompute", "train_seconds"),
    "solve, s": ("lmd", "solve_seconds"),
    "train step, GB": ("lmd", "train_gigabytes"),
    "recomputing, GB": ("lmd-recompute", "train_gigabytes"),
    "solve, GB": ("lmd", "solve_gigabytes"),
}
"""The columns of the table of costs: a method and a metric each."""


def cost_table(rows: Sequence[Row]) -> list[Table]:
    """Seconds and peak memory of a batch against the number of iterations, where an experiment measured them."""
    measured = [row for row in rows if (row["method"], row["metric"]) in COSTS.values()]
    if not measured:
        return []
    lines = []
    for iterations in distinct(measured, "iteration"):
        here = select(measured, iteration=iterations)
        found = [best(select(here, method=method, metric=metric)) for method, metric in COSTS.values()]
        lines.append((str(iterations), *("not measured" if row is None else number(row["value"]) for row in found)))
    return [Table("Cost of a batch; memory is the peak of a process", ("N", *COSTS), tuple(lines))]


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
        (row["method"], str(row["size"]), number(row["value"]), _cell(_like(sizes, row, "seconds_per_pixel")))
        for row in select(sizes, metric="relative_gap_bound")
    )
    columns = ("method", "side", "gap at 10", "s/pixel/iteration")
    return [*found, Table("denoise, noise 5%, by size", columns, lines)] if lines else found


BENCHED = (("psnr", 10), ("psnr", 20), ("relative_gap", 10), ("relative_gap", 20))
TIMED = ("gap_1e-2", "gap_1e-3", "40db", "50db")
"""What the tables of a bench show: metrics at iterations, and the targets whose times they have."""


def _bench_table(title: str, rows: Sequence[Row]) -> Table:
    lines = []
    for method in distinct(rows, "method"):
        own = select(rows, method=method)
        cells = [_cell(select(own, metric=metric, iteration=k)) for metric, k in BENCHED]
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


def _cell(rows: Sequence[Row]) -> str:
    """The number of the first row; nothing where there is none."""
    return number(rows[0]["value"]) if rows else ""


def _per_iteration(rows: Sequence[Row]) -> str:
    """Milliseconds per iteration, the median over what the method was run with."""
    counted = [row for row in rows if isinstance(row["iteration"], int) and row["iteration"] > 0]
    times = sorted(row["value"] / row["iteration"] for row in counted if row["value"] is not None)
    return number(1e3 * times[len(times) // 2]) if times else ""


def to_rich(table: Table) -> RichTable:
    """The table for a terminal."""
    import rich.box
    from rich.table import Table as RichTable

    shown: Any = RichTable(title=table.title or None, title_justify="left", box=rich.box.SIMPLE_HEAD)
    for place, column in enumerate(table.columns):
        figures = all(_is_figure(line[place]) for line in table.lines)
        shown.add_column(column, justify="right" if figures and place else "left", no_wrap=place == 0)
    for line in table.lines:
        shown.add_row(*line)
    return shown


def _is_figure(cell: str) -> bool:
    return cell in ("", "diverged", "not reached", "not measured") or cell[0] in "-0123456789"
