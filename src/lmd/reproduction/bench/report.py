"""Tables, JSON and figures of a benchmark run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmd.cli.common import Table
from lmd.core.files import staged, write_json
from lmd.reproduction.bench import Bench
from lmd.reproduction.bench.measuring import CLASSICAL, SOLVE
from lmd.reproduction.bench.timing import PROVEN, TimedCurve
from lmd.reproduction.experiments.base import versions
from lmd.reproduction.figures import COLOURS, figure, label_lines, log_floor
from lmd.reproduction.tables import Row, cell, distinct, select
from lmd.reproduction.tasks.task import ONE_THREAD

SHOWN_QUALITIES = (("psnr", 10), ("psnr", 20), ("relative_gap", 10), ("relative_gap", 20))  # metrics at iterations
TO_GAP = "seconds_to_gap_"


def bench_tables(rows: Sequence[Row]) -> list[Table]:
    """Return tables for each problem, noise and size: quality at iterations, and times to gaps for each batch."""
    benched = [row for row in rows if all(key in row for key in ("problem", "noise", "batch"))]
    found = []
    for problem, noise, size in dict.fromkeys((row["problem"], row["noise"], row.get("size")) for row in benched):
        here = select(benched, problem=problem, noise=noise, size=size)
        title = f"{problem}, noise {noise}%" + (f", {size} x {size}" if size else "")
        found.append(_quality_table(title, select(here, batch=here[0]["batch"])))
        found += [_time_table(f"{title}, batch {b}", select(here, batch=b)) for b in distinct(here, "batch")]
    return [table for table in found if table.lines]


def _quality_table(title: str, rows: Sequence[Row]) -> Table:
    shown = [row for row in rows if (row["metric"], row["iteration"]) in SHOWN_QUALITIES]
    lines = tuple(
        (method, *(cell(select(shown, method=method, metric=metric, iteration=k)) for metric, k in SHOWN_QUALITIES))
        for method in distinct(shown, "method")
    )
    return Table(title, ("method", *(f"{'dB' if m == 'psnr' else 'gap'} at {k}" for m, k in SHOWN_QUALITIES)), lines)


def _time_table(title: str, rows: Sequence[Row]) -> Table:
    """Return a table of milliseconds and CPU milliseconds to each gap, without methods that reach no gap."""
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


FLOOR = 1e-7  # smaller gaps are drawn at this value
PEER_COLOURS = ("#b5651d", "#1f77b4", "#2e8b57", "#c2185b", "#00838f", "#8d6e63", "#5c6bc0", "#9e9d24")


def to_json(bench: Bench) -> dict[str, Any]:
    """Return the contents of metrics.json, which `--json` writes, including the skipped methods."""
    return {
        "experiment": "bench",
        "title": "Every solver and every peer on the same instances",
        "paper": "our own",
        "preset": bench.plan.preset,
        "seed": bench.plan.seed,
        "seconds": round(bench.seconds, 3),
        "versions": versions(),
        "facts": bench.facts,
        "skipped": bench.skipped,
        "figures": [],
        "rows": bench.rows,
    }


def write(bench: Bench, json_file: Path | None, out: Path | None) -> None:
    """Write the JSON to `json_file`, and to bench/metrics.json in `out` with figures, if these are given."""
    data = to_json(bench)
    if out is not None:
        with staged("out", out / data["experiment"]) as folder:
            (folder / "figures").mkdir()
            data["figures"] = draw(bench, folder / "figures")
            write_json(folder / "metrics.json", data)
    if json_file is not None:
        write_json(json_file, data)


def draw(bench: Bench, folder: Path) -> list[dict[str, str]]:
    """Draw a figure for each problem, noise and size, with a panel for each batch; return files and captions."""
    figures = []
    for settings in dict.fromkeys(tuple(curve.settings.values()) for curve in bench.curves):
        here = [curve for curve in bench.curves if tuple(curve.settings.values()) == settings]
        problem, noise, *size = settings
        file = "-".join(str(word) for word in settings) + ".png"
        _draw_one(here, f"{problem}, {noise}% noise" + "".join(f", {n} x {n} pixels" for n in size), folder / file)
        caption = (
            f"{problem}, noise {noise}%: how far the best answer within a time is above the minimum, relative to it; "
            "lower and further left is better. Each point is one whole call, dashed lines are our own classical methods"
        )
        figures.append({"file": f"figures/{file}", "caption": caption})
    return figures


def lines(curves: Sequence[TimedCurve], batch: int) -> dict[str, list[tuple[float, float]]]:
    """Return milliseconds and gaps by method, as Pareto fronts over settings and numbers of threads.

    Learned solvers are shown as `lmd.solve`, which chooses among them and is drawn last, on top. A method that was
    timed with a proof replaces the same method without one.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    here = [curve for curve in curves if curve.batch == batch and not curve.method.startswith("lmd-")]
    proven = {curve.method.removesuffix(PROVEN) for curve in here if curve.method.endswith(PROVEN)}
    for curve in (curve for curve in here if curve.method not in proven):
        points.setdefault(curve.method.removesuffix(ONE_THREAD), []).extend(curve.points)
    found: dict[str, list[tuple[float, float]]] = {}
    for method in sorted(points, key=lambda name: name == SOLVE):
        nearest = math.inf
        for seconds, gap in sorted(points[method]):
            if gap < nearest:
                found.setdefault(method, []).append((1e3 * seconds, nearest := gap))
    return found


def _draw_one(curves: Sequence[TimedCurve], title: str, file: Path) -> None:
    batches = list(dict.fromkeys(curve.batch for curve in curves))
    low = log_floor([[gap for _, gap in curve.points] for curve in curves], FLOOR)
    with figure(8.2 * len(batches), 5.4) as drawing:
        drawing.suptitle(title)
        for panel, batch in zip(drawing.subplots(1, len(batches), squeeze=False)[0], batches, strict=True):
            found = lines(curves, batch)
            peers = [method for method in found if method != SOLVE and method.removesuffix(PROVEN) not in CLASSICAL]
            for method, points in found.items():
                x, y = zip(*((time, max(gap, low)) for time, gap in points), strict=True)
                panel.plot(x, y, label=method, **_look(method, peers))
            what = "one at a time" if batch == 1 else f"{batch} together"
            panel.set(xscale="log", yscale="log", ylim=(low, 3), xlabel=f"milliseconds, {what}")
            panel.set_ylabel("gap: (value - minimum) / minimum")
            decades = [math.log10(time) for points in found.values() for time, _ in points] or [0.0, 1.0]
            panel.set_xlim(10 ** math.floor(min(decades)), 10 ** math.ceil(max(decades)))
            panel.xaxis.set_major_formatter("{x:g}")
            label_lines(panel, apart=0.055)
        drawing.savefig(file)


def _look(method: str, peers: Sequence[str]) -> dict[str, Any]:
    """Return the line style: learned in colour, classical in dashed grey, peers thin."""
    if method == SOLVE:
        return {"color": COLOURS["lmd"], "linewidth": 3.6, "marker": "o", "markersize": 7}
    thin = {"linewidth": 1.3, "marker": "o", "markersize": 3.5}
    if method.removesuffix(PROVEN) in CLASSICAL:
        return {"color": "#777777", "linestyle": "--", **thin}
    return {"color": PEER_COLOURS[peers.index(method) % len(PEER_COLOURS)], **thin}
