"""What `lmd bench` found, as JSON and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmd.experiments.base import versions
from lmd.experiments.bench.plan import Bench, Curve
from lmd.files import staged, write_json
from lmd.report.figures import figure, legend_below, log_floor, method_styles, plot_curve


def to_json(bench: Bench) -> dict[str, Any]:
    """What `--json` writes: a metrics.json, with what was skipped."""
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
    """The JSON, and in `out` the JSON as bench/metrics.json with figures beside it."""
    data = to_json(bench)
    if out is not None:
        with staged("out", out / data["experiment"]) as folder:
            (folder / "figures").mkdir()
            data["figures"] = draw(bench, folder / "figures")
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
