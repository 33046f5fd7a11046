"""A figure of how the weights of pictures were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmd.core.extras import require
from lmd.core.files import atomic_path
from lmd.imaging.files import Summary


def plot_choices(path: Path, summaries: Sequence[Summary]) -> None:
    """Write a figure of risk against weight: a line for each picture, and a dotted line at the chosen weight."""
    require("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for summary in summaries:
        if (choice := summary.choice) is not None:
            alpha = 1 / len(summaries) ** 0.5
            (line,) = axes.plot(choice.path.flatten(), choice.risk.flatten(), marker=".", alpha=alpha)
            axes.axvline(summary.weight, color=line.get_color(), linestyle=":", alpha=alpha)
    axes.set_xscale("log")
    axes.set_xlabel("weight (dotted: the chosen one)")
    axes.set_ylabel("expected square error per pixel,\nup to a constant")
    with atomic_path(path) as temporary:
        figure.savefig(temporary)
