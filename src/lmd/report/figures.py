"""One look for every figure: colours that stay with a method, log axes, legends beside the curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

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
    "lgd": "#1f77b4",
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

MULTIPLIER_STYLES = {
    0.25: (0, (1, 1.2)),
    0.5: (0, (3, 1.5)),
    1.0: "solid",
    2.0: (0, (6, 1.5)),
    4.0: (0, (6, 1.5, 1, 1.5)),
}
"""The paper's five step-size multipliers as line styles."""

STYLE: dict[Any, Any] = {
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "legend.fontsize": 10.5,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
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
    if "published" in method:
        return COLOURS["published-adaptive" if method.endswith("adaptive") else "published"]
    if method.endswith("adaptive"):
        return COLOURS["adaptive"]
    return COLOURS.get(method, COLOURS.get(method.split("-")[0], COLOURS["truth"]))


def method_styles(methods: Sequence[str]) -> dict[str, Any]:
    """A line style for each method, so that those of one colour are told apart; the first of a colour is solid."""
    styles = ("solid", (0, (4, 1.2)), (0, (1.2, 1.2)), (0, (6, 1.2, 1.2, 1.2)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 3)))
    seen: dict[str, int] = {}
    found = {}
    for method in dict.fromkeys(methods):
        place = seen.get(method_colour(method), 0)
        seen[method_colour(method)] = place + 1
        found[method] = styles[place % len(styles)]
    return found


def plot_curve(
    axes: Any,
    x: Sequence[float],
    y: Sequence[float],
    method: str,
    multiplier: float | None = None,
    style: Any = "solid",
) -> None:
    """One method's curve: its colour, and the line style of its multiplier, or `style`; see `legend_below`."""
    width = 2.4
    if multiplier is not None:
        style, width = MULTIPLIER_STYLES.get(multiplier, "solid"), 1.6
    axes.plot(x, y, color=method_colour(method), linestyle=style, linewidth=width)


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


def legend_below(
    drawing: Any, methods: Sequence[str], multipliers: Sequence[float] = (), styles: Mapping[str, Any] | None = None
) -> None:
    """A legend under the panels, where it covers no curve: a line of methods by colour, one of multipliers by style."""
    from matplotlib.lines import Line2D

    def line(label: str, **look: Any) -> Any:
        return Line2D([], [], label=label, **look)

    looks = styles or {}
    rows = [
        [
            line(method, color=method_colour(method), linewidth=2.4, linestyle=looks.get(method, "solid"))
            for method in methods
        ]
    ]
    if multipliers:
        rows.append([line(f"step {m:g}x", color="0.35", linestyle=MULTIPLIER_STYLES[m]) for m in multipliers])
    width = max(len(row) for row in rows)
    grid = [[*row, *[line(" ", linestyle="none")] * (width - len(row))] for row in rows]
    handles = [row[column] for column in range(width) for row in grid]  # matplotlib fills column by column
    drawing.legend(handles=handles, loc="outside lower center", ncols=width, frameon=False, handlelength=2.6)
