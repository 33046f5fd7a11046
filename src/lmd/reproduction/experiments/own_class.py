"""Classes of problems that nothing ships for, learned while you wait: receding-horizon control, and one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lmd.cli.common import Table
from lmd.problems import ControlFamily
from lmd.reproduction.experiments.base import Experiment, Session, reproduce
from lmd.reproduction.report.figures import figure, method_colour
from lmd.reproduction.report.page import Reading, write_page
from lmd.reproduction.report.rows import Row, distinct, select
from lmd.reproduction.report.tables import number
from lmd.training.learn import learn

MINUTES = {"quick": 0.4, "standard": 5.0, "paper": 10.0}
TARGET = 1e-3
SHOWN = 3
"""Learned solvers, and classical methods, whose curves are drawn."""


class OwnClass(Experiment):
    """`lmd.learn` on a family of quadratic programs, beside classical methods that it tuned on the same instances."""

    name = "own-class"
    title = "A class of problems of one's own, learned while you wait"
    paper = "our own"

    @classmethod
    def headline(cls, rows: Sequence[Row]) -> str:
        there = [row for row in select(rows, metric="milliseconds", gap=TARGET) if row["value"] is not None]
        learned, classical = ([row for row in there if row["learned"] is kind] for kind in (True, False))
        if not learned or not classical:
            return ""
        ours, theirs = (min(found, key=lambda row: float(row["value"])) for found in (learned, classical))
        return (
            f"A class learned while you wait: 100 control problems to {TARGET:g} in {number(ours['value'])} ms, with "
            f"{theirs['method']}, tuned, {number(theirs['value'])} ms"
        )

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        timed = select(rows, metric="milliseconds")
        gaps = distinct(timed, "gap")
        lines = tuple(
            (method, *(_cell(select(timed, method=method, gap=gap)) for gap in gaps))
            for method in distinct(timed, "method")
        )
        columns = ("method", *(f"ms to {gap:g}" for gap in gaps))
        own = [Table("A batch of 100, until 95% are there", columns, lines)] if lines else []
        return [*super().tables(rows), *own]

    def run(self, session: Session) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the minutes of `learn` are then of the processor, whatever else the machine does
        try:
            found = learn(
                ControlFamily(), MINUTES[session.preset], target=TARGET, seed=session.seed, progress=session.log
            )
        finally:
            torch.set_num_threads(threads)
        _show(session, found.card)


def _cell(rows: Sequence[Row]) -> str:
    return number(rows[0]["value"]) if rows and rows[0]["value"] is not None else "not reached"


class Learned(OwnClass):
    """What a run of `lmd.learn` found, by its card."""

    title, paper = "A class of one's own", "learned here"

    def __init__(self, card: Mapping[str, Any]) -> None:
        self.card = card

    def run(self, session: Session) -> None:
        _show(session, self.card)


def write_learned(card: Mapping[str, Any], folder: Path, command: str) -> Path:
    """Write FOLDER/index.html: gaps of what was learned and tuned against iterations and milliseconds, and tables."""
    reproduce(Learned(card), folder, seed=card["seed"])
    return write_page(
        folder,
        lambda metrics: Reading(OwnClass.tables(metrics["rows"]), card["promised"], command),
        f"A solver for {card['family']}: {card['winner']}",
    )


def _show(session: Session, card: Mapping[str, Any]) -> None:
    """Rows and figures of a card."""
    told = ("family", "minutes", "target", "winner", "promised", "batch")
    session.facts.update({name: card[name] for name in told})
    for found in card["rows"]:
        for gap in (10 * card["target"], card["target"], card["target"] / 10):
            value = found["milliseconds"].get(f"{gap:g}", float("nan"))
            session.record(found["method"], "to gap", "milliseconds", value, gap=gap, learned=bool(found["learned"]))
    _draw(session, card["target"])
    _draw_curves(session, [found for found in card["rows"] if found.get("gaps")])


def _draw_curves(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    """Gaps of the best learned and classical methods by iteration, and by what these take."""
    kinds = ([row for row in rows if bool(row["learned"]) is kind] for kind in (True, False))
    shown = [row for kind in kinds for row in sorted(kind, key=_time_of)[:SHOWN]]
    styles = ("solid", (0, (4, 1.2)), (0, (1.2, 1.2)))
    with figure(8.6, 7.4) as drawing:
        panels = drawing.subplots(2, 1)
        for place, row in enumerate(shown):
            colour = method_colour("lmd") if row["learned"] else "0.35"
            look = {"color": colour, "linestyle": styles[place % SHOWN], "label": row["method"], "linewidth": 2.0}
            start, each = row["speed"]["start"], row["speed"]["each"]
            panels[0].plot(range(len(row["gaps"])), row["gaps"], **look)
            panels[1].plot([start + each * k for k in range(len(row["gaps"]))], row["gaps"], **look)
        panels[0].set(xlabel="iteration", xscale="symlog", xlim=(0, None))
        panels[1].set(xlabel=f"milliseconds for a batch of {session.facts['batch']}", xscale="log")
        for axes in panels:
            axes.set(yscale="log", ylabel="relative gap, 95% are below")
        drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        caption = "Learned solvers in colour, classical methods, tuned, in grey, on instances that neither has seen."
        session.save_figure("curves", drawing, caption)


def _time_of(row: dict[str, Any]) -> float:
    """Milliseconds to the last accuracy that it reaches; after all that reach more."""
    reached = list(row["milliseconds"].values())
    return (len(reached) == 0) * 1e9 - 1e6 * len(reached) + sum(reached[-1:])


def _draw(session: Session, target: float) -> None:
    """Bars of milliseconds, shortest first: what was learned in colour, what was tuned in grey."""
    rows = [row for row in select(session.rows, metric="milliseconds", gap=target) if row["value"] is not None]
    rows.sort(key=lambda row: -float(row["value"]))
    with figure(8.6, 0.9 + 0.42 * len(rows)) as drawing:
        axes = drawing.subplots()
        colours = [method_colour("lmd") if row["learned"] else "0.65" for row in rows]
        bars = axes.barh([row["method"] for row in rows], [row["value"] for row in rows], color=colours)
        axes.bar_label(bars, [f"{number(row['value'])} ms" for row in rows], padding=4)
        axes.set(xlabel=f"milliseconds for a batch of {session.facts['batch']}, 95% of them within {target:g}")
        axes.margins(x=0.14)
        axes.grid(axis="y", visible=False)
        caption = (
            f"`lmd.learn`, {session.facts['minutes']:g} minutes on {session.facts['family']}: learned ones in colour, "
            "classical methods, tuned on the same instances, in grey; on instances that neither has seen."
        )
        session.save_figure("learned", drawing, caption)
