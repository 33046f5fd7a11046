"""The common style of all figures: one colour per method, log axes, labels beside the curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmd.core.extras import require

COLOURS = {
    "gd": "#1f77b4",
    "adam": "#d62728",
    "nesterov": "#8c564b",
    "md": "#2ca02c",
    "lmd": "#7b3fb5",
    "adaptive": "#ff7f0e",
    "published": "#9a9a9a",
    "published-adaptive": "#e377c2",
    "lbfgs": "#333333",
    "warm": "#17a2a2",
    "lgd": "#6fb1e3",
    "lmd-two-iterations": "#8c564b",
    "lmd-no-consistency": "#d62728",
    "fgp": "#bcbd22",
    "pdhg": "#2ca02c",
    "pair": "#7b3fb5",
    "exact": "#ff7f0e",
    "scikit": "#17becf",
    "truth": "#333333",
}
"""The colour of a method's family, the same in every figure."""

STYLE = Path(__file__).with_suffix(".mplstyle")  # fonts, grids and line widths


@contextmanager
def figure(width: float, height: float) -> Iterator[Any]:
    """A matplotlib figure of `width` x `height` inches in the house style, without touching global state."""
    require("matplotlib")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(fname=STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def method_colour(method: str) -> str:
    """The colour of a method, by the family in its name."""
    if "published" in method:
        return COLOURS["published-adaptive" if method.endswith("adaptive") else "published"]
    if method.endswith("adaptive"):
        return COLOURS["adaptive"]
    return COLOURS.get(method, COLOURS.get(method.split("-")[0], COLOURS["truth"]))


def plot_curve(
    axes: Any, x: Sequence[float], y: Sequence[float], method: str, style: Any = "solid", *, faint: bool = False
) -> None:
    """Plot the curve of a method in its colour; a `faint` curve, for a step size that is not the best, has no label."""
    look = {"linewidth": 0.9, "alpha": 0.22} if faint else {"linewidth": 2.4}
    axes.plot(x, y, color=method_colour(method), linestyle=style, label=f"_{method}" if faint else method, **look)


def label_lines(axes: Any, apart: float = 0.065, *, margin: bool = True) -> None:
    """Label the lines at the right margin of the panel, or at their ends, without overlaps.

    Set scales and limits first: the end of a line is its last point inside the panel.
    """
    ends = []
    for line in axes.get_lines():
        if line.get_label().startswith("_"):
            continue
        points = [axes.transAxes.inverted().transform(axes.transData.transform(p)) for p in line.get_xydata()]
        inside = [(x, y) for x, y in points if -0.001 <= x <= 1.001 and -0.001 <= y <= 1.001]
        if inside:
            ends.append((inside[-1], line))
    ends.sort(key=lambda end: float(end[0][1]))
    heights = spread([float(point[1]) for point, _ in ends], apart)
    for (point, line), height in zip(ends, heights, strict=True):
        axes.annotate(
            line.get_label(),
            xy=point,
            xytext=(1.03 if margin else float(point[0]) + 0.015, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=line.get_color(),
            fontsize=10.5,
            fontweight="bold" if line.get_linewidth() > 3 else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.5, "alpha": 0.5, "shrinkB": 0},
        )


def spread(heights: Sequence[float], apart: float) -> list[float]:
    """Return ascending heights, shifted so that neighbours are at least `apart`, within [0, 1] if possible."""
    found = list(heights)
    for i in range(1, len(found)):
        found[i] = max(found[i], found[i - 1] + apart)
    if found and found[-1] > 1:
        found[-1] = 1.0
        for i in range(len(found) - 2, -1, -1):
            found[i] = min(found[i], found[i + 1] - apart)
    return found


def plain_log(axes: Any) -> None:
    """A log scale for a few decades at most: ticks at 1, 2 and 5 times the powers of ten, written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def log_floor(curves: Sequence[Sequence[float]], least: float) -> float:
    """A lower end for a log axis that shows every positive value down to `least`."""
    positive = [value for values in curves for value in values if math.isfinite(value) and value > 0]
    return max(least, min(positive, default=least) / 3)


def legend_below(drawing: Any, methods: Sequence[str]) -> None:
    """A legend under the panels, where it covers no curve: the methods by colour."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=method, color=method_colour(method), linewidth=2.4) for method in methods]
    drawing.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, handlelength=2.6)
