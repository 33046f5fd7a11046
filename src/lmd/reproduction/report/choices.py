"""A figure of how the weights of pictures were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmd.core.files import atomic_path
from lmd.imaging.files import Summary
from lmd.reproduction.report.figures import figure


def draw_choices(path: Path, summaries: Sequence[Summary]) -> None:
    """Write a figure of risk against weight, a line for each picture, a dot where its weight is."""
    with figure(6, 4) as drawn, atomic_path(path) as temporary:
        axes = drawn.subplots()
        for told in summaries:
            if told.choice is None:
                continue
            weights, risks = told.choice.path.flatten().tolist(), told.choice.risk.flatten().tolist()
            (line,) = axes.plot(weights, risks, marker=".", alpha=1 / len(summaries) ** 0.5)
            axes.axvline(told.weight, color=line.get_color(), linestyle=":", alpha=line.get_alpha())
        axes.set_xscale("log")
        axes.set_xlabel("weight (dotted: the one that was taken)")
        axes.set_ylabel("expected square error per pixel,\nup to a constant")
        drawn.savefig(temporary)
