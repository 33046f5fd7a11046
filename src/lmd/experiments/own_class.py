"""A class of problems that nothing ships for, learned while you wait: receding-horizon control."""

from __future__ import annotations

from collections.abc import Sequence

from lmd.experiments.base import Experiment, Session
from lmd.learning.learn import learn
from lmd.problems import ControlFamily
from lmd.report.figures import figure, method_colour
from lmd.report.rows import Row, distinct, select
from lmd.report.tables import Table, number

MINUTES = {"quick": 0.4, "standard": 5.0, "paper": 10.0}
TARGET = 1e-3


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
        minutes = MINUTES[session.preset]
        card = learn(
            ControlFamily(), minutes, target=TARGET, seed=session.seed, progress=lambda text: session.log(text)
        ).card
        session.facts.update(
            family=ControlFamily.name, minutes=minutes, winner=card["winner"], promise=card["promised"]
        )
        for found in card["rows"]:
            for gap in (10 * TARGET, TARGET, TARGET / 10):
                value = found["milliseconds"].get(f"{gap:g}", float("nan"))
                learned = bool(found["learned"])
                session.record(found["method"], "to gap", "milliseconds", value, gap=gap, learned=learned)
        _draw(session)


def _cell(rows: Sequence[Row]) -> str:
    return number(rows[0]["value"]) if rows and rows[0]["value"] is not None else "not reached"


def _draw(session: Session) -> None:
    """Bars of milliseconds, shortest first: what was learned in colour, what was tuned in grey."""
    rows = [row for row in select(session.rows, metric="milliseconds", gap=TARGET) if row["value"] is not None]
    rows.sort(key=lambda row: -float(row["value"]))
    with figure(8.6, 0.9 + 0.42 * len(rows)) as drawing:
        axes = drawing.subplots()
        colours = [method_colour("lmd") if row["learned"] else "0.65" for row in rows]
        bars = axes.barh([row["method"] for row in rows], [row["value"] for row in rows], color=colours)
        axes.bar_label(bars, [f"{number(row['value'])} ms" for row in rows], padding=4)
        axes.set(xlabel=f"milliseconds for a batch of 100, 95% of them within {TARGET:g}")
        axes.margins(x=0.14)
        axes.grid(axis="y", visible=False)
        caption = (
            f"`lmd.learn(ControlFamily(), minutes={session.facts['minutes']:g})`: learned ones in colour, classical "
            "methods, tuned on the same instances, in grey; on instances that neither has seen."
        )
        session.save_figure("learned", drawing, caption)
