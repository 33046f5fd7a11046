"""What `lmd bench` found, as JSON, tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lmd.experiments.base import versions
from lmd.experiments.bench import TARGETS, Bench, Curve
from lmd.files import writable_folder, write_json
from lmd.report.figures import figure, legend_below, log_floor, method_styles, plot_curve
from lmd.report.rows import Row, distinct, select
from lmd.report.tables import Table, number


def to_json(bench: Bench) -> dict[str, Any]:
    """What `--json` writes: flat rows, as in metrics.json."""
    return {
        "experiment": "bench",
        "title": "Every solver and every peer on the same instances",
        "seed": bench.plan.seed,
        "versions": versions(),
        "facts": bench.facts,
        "skipped": bench.skipped,
        "figures": [],
        "rows": bench.rows,
    }


def tables(bench: Bench) -> list[Table]:
    """For each problem, noise and batch: quality at iterations, and time to targets."""
    found = []
    plain = [r for r in bench.rows if "size" not in r]
    for problem in distinct(plain, "problem"):
        for noise in distinct(select(plain, problem=problem), "noise"):
            for batch in bench.plan.batches:
                here = select(plain, problem=problem, noise=noise, batch=batch)
                found.append(_table(f"{problem}, noise {noise}%, batch {batch}", here))
    sizes = [r for r in bench.rows if "size" in r]
    if sizes:
        lines = tuple(
            (r["method"], str(r["size"]), number(r["value"]), number(_only(sizes, r, "seconds_per_pixel")))
            for r in sizes
            if r["metric"] == "relative_gap_bound"
        )
        found.append(Table("denoise, noise 5%, by size", ("method", "side", "gap at 10", "s/pixel/iteration"), lines))
    return found


def _only(rows: Iterable[Row], like: Row, metric: str) -> float | None:
    return next(r["value"] for r in select(rows, method=like["method"], size=like["size"]) if r["metric"] == metric)


def _table(title: str, rows: Sequence[Row]) -> Table:
    columns = [("psnr", k) for k in (10, 20)] + [("relative_gap", k) for k in (10, 20)]
    timed = [f"seconds_to_{target.name}" for target in TARGETS if target.level not in (0.1, 30)]
    lines = []
    for method in distinct(rows, "method"):
        own = select(rows, method=method)
        cells = []
        for metric, k in columns:
            found = select(own, metric=metric, iteration=k)
            cells.append(number(found[0]["value"]) if found else "")
        for metric in timed:
            found = select(own, metric=metric)
            reached = found and found[0]["value"] is not None
            cells.append(f"{1e3 * found[0]['value']:.3g} ({found[0]['iteration']})" if reached else "-")
        lines.append((method, *cells))
    short = [f"{'dB' if metric == 'psnr' else 'gap'} at {k}" for metric, k in columns]
    headings = [f"ms to {name.removeprefix('seconds_to_').replace('_', ' ')}" for name in timed]
    return Table(title, ("method", *short, *headings), tuple(lines))


def write(bench: Bench, json_file: Path | None, out: Path | None) -> None:
    """The JSON, and in `out` the JSON as bench/metrics.json with figures beside it."""
    data = to_json(bench)
    if out is not None:
        folder = writable_folder("out", out / "bench")
        data["figures"] = draw(bench, writable_folder("out", folder / "figures"))
        write_json(folder / "metrics.json", data)
    if json_file is not None:
        write_json(json_file, data)


def draw(bench: Bench, folder: Path) -> list[dict[str, str]]:
    """For each problem and noise: the relative gap against iterations, and against seconds for each batch."""
    figures = []
    for problem, noise in dict.fromkeys((curve.problem, curve.noise) for curve in bench.curves):
        here = [curve for curve in bench.curves if (curve.problem, curve.noise) == (problem, noise)]
        file = f"{problem}-{noise}.png"
        _draw_one(here, bench.plan.batches, folder / file)
        caption = f"{problem}, noise {noise}%: mean relative gap against iterations and seconds"
        figures.append({"file": f"figures/{file}", "caption": caption})
    return figures


def _draw_one(curves: Sequence[Curve], batches: Sequence[int], file: Path) -> None:
    last = batches[-1]
    methods = list(dict.fromkeys(curve.method for curve in curves))
    styles = method_styles(methods)
    with figure(5 + 4 * len(batches), 4.8) as drawing:
        panels = drawing.subplots(1, 1 + len(batches), squeeze=False, sharey=True)[0]
        for curve in curves:
            if curve.batch == last:
                plot_curve(panels[0], curve.iterations, curve.gaps, curve.method, style=styles[curve.method])
            panel = panels[1 + batches.index(curve.batch)]
            plot_curve(panel, curve.seconds, curve.gaps, curve.method, style=styles[curve.method])
        gaps = [curve.gaps for curve in curves]
        panels[0].set(xlabel="iteration", ylabel="mean relative gap", yscale="log", ylim=(log_floor(gaps, 1e-5), 3))
        for panel, batch in zip(panels[1:], batches, strict=True):
            panel.set(xlabel=f"seconds, batch {batch}", xscale="log")
        legend_below(drawing, methods, styles=styles)
        drawing.savefig(file)
