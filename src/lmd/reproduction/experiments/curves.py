"""The figures that most experiments draw: metrics of methods at their step-sizes, by iteration and by time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmd.reproduction.experiments.base import Session
from lmd.reproduction.figures import figure, label_lines, plot_curve
from lmd.reproduction.tables import LARGER, Row, best, curve, distinct, select

HORIZON = 10
"""Where the trained iterations end: N of the paper."""


def best_multiplier(rows: Sequence[Row], method: str, metric: str = "loss", iteration: int = HORIZON) -> float | None:
    """The multiplier that is best at an iteration; None for a method that has none."""
    found = best(select(rows, method=method, metric=metric, iteration=iteration), largest=metric in LARGER)
    return None if found is None else found.get("multiplier")


def plot_methods(
    panels: Sequence[Any],
    rows: Sequence[Row],
    metric: str,
    methods: Sequence[str],
    tuned: Sequence[str] = (),
    first: int = 1,
) -> list[list[float]]:
    """Curves by iteration in one panel, and by milliseconds, from iteration `first` on, in the other; their values.

    The best multiplier of a method is drawn in full, the others faintly; of `tuned` methods only the best.
    """
    drawn = []
    for method in methods:
        own = select(rows, method=method)
        chosen = best_multiplier(own, method, metric)
        others = [] if method in tuned else [m for m in distinct(own, "multiplier") if m != chosen]
        for multiplier in (*others, chosen):
            here = own if multiplier is None else select(own, multiplier=multiplier)
            iterations, values = curve(here, metric)
            milliseconds = [1e3 * value for value in curve(here, "seconds")[1]][-len(values) :]
            plot_curve(panels[0], iterations, values, method, faint=multiplier != chosen)
            plot_curve(panels[1], milliseconds[first:], values[first:], method, faint=multiplier != chosen)
            drawn.append(values)
    return drawn


def draw_comparison(
    session: Session,
    name: str,
    metrics: Mapping[str, str],
    methods: Sequence[str],
    caption: str,
    *,
    finish: Callable[[Any, str], None],
    what: str = "instances",
    tuned: Sequence[str] = (),
) -> None:
    """Each metric, labelled, against iterations (top) and time (bottom); `finish(axes, metric)` sets the scales."""
    with figure(5.2 * len(metrics), 7.6) as drawing:
        panels = drawing.subplots(2, len(metrics), squeeze=False)
        for column, (metric, label) in enumerate(metrics.items()):
            plot_methods(panels[:, column], session.rows, metric, methods, tuned)
            panels[0, column].axvline(HORIZON, color="0.6", linewidth=1.0, zorder=0)
            panels[0, column].set_xlabel("iteration")
            panels[1, column].set(xlabel=f"ms, all {what} together", xscale="log")
            for axes in panels[:, column]:
                axes.set_ylabel(label)
                finish(axes, metric)
                label_lines(axes)
        session.save_figure(name, drawing, caption)
