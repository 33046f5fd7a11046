"""One look for every figure: colours that stay with a method, log axes, legends beside the curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

COLOURS = {
    "gd": "#1f77b4",
    "adam": "#d62728",
    "nesterov": "#8c564b",
    "md": "#2ca02c",
    "lmd": "#7b3fb5",
    "adaptive": "#ff7f0e",
    "truth": "#333333",
}
"""The colour of a method's family, the same in every figure."""

MULTIPLIER_STYLES = {
    0.25: (0, (1, 1.2)),
    0.5: (0, (3, 1.5)),
    1.0: "solid",
    2.0: (0, (6, 1.5)),
    4.0: (0, (6, 1.5, 1, 1.5)),
}
"""The paper's five step-size multipliers as line styles."""

STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "legend.fontsize": 9.5,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "mathtext.fontset": "cm",
}


@contextmanager
def figure(width: float, height: float) -> Iterator[Any]:
    """A matplotlib figure of `width` x `height` inches in the house style, without touching global state."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def method_colour(method: str) -> str:
    """The colour of a method, by the family in its name."""
    if method.endswith("adaptive"):
        return COLOURS["adaptive"]
    return COLOURS.get(method.split("-")[0], COLOURS["truth"])


def plot_curve(axes: Any, x: Sequence[float], y: Sequence[float], method: str, multiplier: float | None = None) -> Any:
    """One method's curve: its colour, and the line style of its multiplier."""
    style = "solid" if multiplier is None else MULTIPLIER_STYLES.get(multiplier, "solid")
    label = method if multiplier is None else f"{method} {multiplier:g}x"
    (line,) = axes.plot(x, y, color=method_colour(method), linestyle=style, label=label)
    return line


def log_floor(curves: Sequence[Sequence[float]], least: float) -> float:
    """A lower end for a log axis that shows every positive value down to `least`."""
    positive = [value for values in curves for value in values if math.isfinite(value) and value > 0]
    return max(least, min(positive, default=least) / 3)


def legend_below(drawing: Any, rows: Sequence[Sequence[Any]]) -> None:
    """A legend under the panels, where it covers no curve: one line of it per row of handles."""
    width = max(len(row) for row in rows)
    empty = _no_line()
    grid = [[*row, *[empty] * (width - len(row))] for row in rows]
    handles = [row[column] for column in range(width) for row in grid]  # matplotlib fills column by column
    labels = [handle.get_label() for handle in handles]
    drawing.legend(handles, labels, loc="outside lower center", ncols=width, frameon=False, handlelength=2.6)


def _no_line() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="none", label=" ")
