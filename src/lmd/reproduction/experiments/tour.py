"""What `lmd demo` shows first: a photograph, and a class of problems that is learned while you wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd.cli.common import Table
from lmd.imaging.functions import denoise
from lmd.problems import ControlFamily, TVDenoising
from lmd.problems.image_families import add_noise
from lmd.reproduction.datasets.images import TEST_PHOTOGRAPHS, bundled, read_image
from lmd.reproduction.experiments.base import Experiment, Session, reproduce
from lmd.reproduction.experiments.imaging import generator_for, middles, psnr
from lmd.reproduction.figures import figure, label_lines, method_colour, plot_curve
from lmd.reproduction.page import Reading, write_page
from lmd.reproduction.tables import Row, best, distinct, number, select
from lmd.reproduction.tasks.denoise import DENOISE
from lmd.reproduction.tasks.task import ONE_THREAD
from lmd.solvers import FGP, PDHG, Solver
from lmd.training.learn import learn
from lmd.zoo.solve import solve

NOISE = 0.08
SIDES = {"quick": 224, "standard": 320, "paper": 480}  # the photograph is cut to squares of at most this side
TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
MAX_SECONDS = {"quick": 0.5, "standard": 3.0, "paper": 10.0}  # of CPU time per call; a slower method stops there
GAP = 1e-3  # the relative gap of the headline


class PhotographTour(Experiment):
    """`lmd.denoise` of a photograph that no solver was trained on, and the time of all methods to each accuracy."""

    name = "photograph"
    title = "A photograph, denoised and proven, and the race to it"
    paper = "our own"

    @classmethod
    def headline(cls, rows: Sequence[Row]) -> str:
        answer = select(rows, method="lmd", iteration="answer")
        if not answer:
            return ""
        known = {row["metric"]: number(row["value"]) for row in answer}
        times = {method: _time_to(rows, method, GAP) for method in distinct(rows, "method")}
        ours, others = times.pop("lmd", None), [(t, method) for method, t in times.items() if t is not None]
        said = (
            f"{known['psnr_noisy']} dB with noise, {known['psnr']} dB after one line of code, proven to be within "
            f"{known['grey_levels']} of 255 grey levels of the exact answer"
        )
        if ours is None or not others:
            return said
        least, name = min(others)
        return f"{said}; a gap of {GAP:g} takes {number(1e3 * ours)} ms, and {number(1e3 * least)} ms with {name}"

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        gaps = TOLERANCES[::2]
        lines = []
        for method in distinct(select(rows, metric="relative_gap"), "method"):
            times = [_time_to(rows, method, gap) for gap in gaps]
            lines.append((method, *("not reached" if t is None else number(1e3 * t) for t in times)))
        columns = ("method", *(f"ms to a gap of {gap:g}" for gap in gaps))
        own = [Table("Whole calls to a relative gap", columns, tuple(lines))] if lines else []
        return [*super().tables(rows), *own]

    def run(self, session: Session) -> None:
        clean = read_image(bundled(*TEST_PHOTOGRAPHS[0]))[None].float() / 255
        clean = middles(clean, SIDES[session.preset])
        noisy = add_noise(clean, NOISE, generator_for(session))
        answer, info = denoise(noisy, info=True)
        session.facts.update(data=f"chelsea of scikit-image, {noisy.shape[2]} x {noisy.shape[3]}", noise=f"{NOISE:.0%}")
        session.facts.update(weight=float(info.weight), proven=str(info))
        found = {"psnr_noisy": float(psnr(noisy, clean)), "psnr": float(psnr(answer, clean)), "seconds": info.seconds}
        for metric, value in {**found, "grey_levels": float(info.grey_levels)}.items():
            session.record("lmd", "answer", metric, value)
        caption = f"`lmd.denoise(picture)`: {found['psnr_noisy']:.1f} dB with noise, {found['psnr']:.1f} dB denoised."
        frames = {"with noise": noisy[0], "denoised": answer[0]}
        session.save_frames("before-and-after", frames, caption)
        _race(session, TVDenoising(noisy, weight=float(info.weight)))
        _draw_race(session)


def _race(session: Session, problem: TVDenoising) -> None:
    """Record the seconds of whole calls, and the true relative gaps of their answers."""
    least = float(solve(problem.double(), 1e-9).values[0])
    for method, calls in _methods(problem):
        for place, (call, finish) in enumerate(calls):
            call()  # the first call is slower than any other
            begun = time.process_time()
            seconds, found = _timed(call)
            work = time.process_time() - begun
            if work < MAX_SECONDS[session.preset] / 10:
                seconds = min(seconds, *(_timed(call)[0] for _ in range(4)))
            gap = float(problem.double().value(finish(found).double())[0]) / least - 1
            session.record(method, place, "relative_gap", max(gap, 0.0))
            session.record(method, place, "seconds", seconds)
            if work > MAX_SECONDS[session.preset]:
                break


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took, and its answer."""
    begun = time.perf_counter()
    found = call()
    return time.perf_counter() - begun, found


Timed = tuple[Callable[[], Any], Callable[[Any], Tensor]]  # the timed call, and a function from its answer to x


def _methods(problem: TVDenoising) -> Iterator[tuple[str, list[Timed]]]:
    solvers: dict[str, Solver[Any] | None] = {"lmd": None, "FGP": FGP(restart=True), "PDHG": PDHG()}
    for name, solver in solvers.items():
        calls = [partial(solve, problem, tolerance, solver=solver) for tolerance in TOLERANCES]
        yield name, [(call, attrgetter("x")) for call in calls]
    peers = () if DENOISE.contest is None else DENOISE.contest.peers
    for peer in (peer for peer in peers if peer.installed and not peer.name.endswith(ONE_THREAD)):
        ask = peer.prepare(problem)
        yield peer.name, [(partial(ask, count), partial(peer.finish, problem)) for count in peer.ladder]


def _time_to(rows: Sequence[Row], method: str, gap: float) -> float | None:
    """Return the least seconds of a call that ended within a gap, or None if there is none."""
    own = select(rows, method=method)
    there = [
        row["iteration"]
        for row in select(own, metric="relative_gap")
        if row["value"] is not None and row["value"] <= gap
    ]
    found = best(row for row in select(own, metric="seconds") if row["iteration"] in there)
    return None if found is None else float(found["value"])


def _draw_race(session: Session) -> None:
    with figure(8.6, 4.9) as drawing:
        axes = drawing.subplots()
        for method in distinct(select(session.rows, metric="relative_gap"), "method"):
            own = select(session.rows, method=method)
            gaps = [row["value"] for row in select(own, metric="relative_gap")]
            times = [1e3 * row["value"] for row in own if row["metric"] == "seconds" and row["iteration"] != "answer"]
            plot_curve(axes, times, gaps, method if method == "lmd" else method.lower())
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="milliseconds of the whole call",
            ylabel="distance to the minimum, relative",
        )
        axes.set_ylim(3e-6, 2)
        label_lines(axes, margin=False)
        caption = (
            "The same photograph to every accuracy: lower and further left is better. Each point is one whole call."
        )
        session.save_figure("race", drawing, caption)


MINUTES = {"quick": 0.4, "standard": 5.0, "paper": 10.0}
TARGET = 1e-3
SHOWN = 3  # number of learned solvers, and of classical methods, whose curves are drawn


class OwnClass(Experiment):
    """`lmd.learn` on a family of quadratic programs, compared with classical methods tuned on the same instances."""

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
        torch.set_num_threads(1)  # with one thread, `learn` counts CPU time, whatever else the machine does
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
    """The results of a run of `lmd.learn`, from the card of its solver."""

    title, paper = "A class of one's own", "learned here"

    def __init__(self, card: Mapping[str, Any]) -> None:
        self.card = card

    def run(self, session: Session) -> None:
        _show(session, self.card)


def card_rows(card: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the columns and rows of a table: iterations and milliseconds of each method for a batch and for one.

    Args:
        card: The card of a solver that `lmd.learn` returned.
    """
    accuracies = [f"{factor * card['target']:g}" for factor in (10, 1, 0.1)]
    columns = ("method", *(f"to {accuracy}: iterations, ms, ms for one" for accuracy in accuracies))
    rows = []
    for row in card["rows"]:
        cells = []
        for accuracy in accuracies:
            count, batch, one = (row[name].get(accuracy) for name in ("iterations", "milliseconds", "one"))
            cells.append("-" if batch is None else f"{'' if count is None else count}, {batch:.3g}, {one:.2g}")
        rows.append((f"{row['method']} (learned)" if row["learned"] else row["method"], *cells))
    return columns, tuple(rows)


def write_learned(card: Mapping[str, Any], folder: Path, command: str) -> Path:
    """Write FOLDER/index.html: tables, and plots of the gap of learned and tuned methods by iterations and by time."""
    reproduce(Learned(card), folder, seed=card["seed"])
    return write_page(
        folder,
        lambda metrics: Reading(OwnClass.tables(metrics["rows"]), card["promised"], command),
        f"A solver for {card['family']}: {card['winner']}",
    )


def _show(session: Session, card: Mapping[str, Any]) -> None:
    """Record the rows of a card and draw its figures."""
    told = ("family", "minutes", "target", "winner", "promised", "batch")
    session.facts.update({name: card[name] for name in told})
    for found in card["rows"]:
        for gap in (10 * card["target"], card["target"], card["target"] / 10):
            value = found["milliseconds"].get(f"{gap:g}", float("nan"))
            session.record(found["method"], "to gap", "milliseconds", value, gap=gap, learned=bool(found["learned"]))
    _draw_bars(session, card["target"])
    _draw_curves(session, [found for found in card["rows"] if found.get("gaps")])


def _draw_curves(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    """Draw the gaps of the best learned and classical methods against iterations and against milliseconds."""
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
    """Return a sort key: more accuracies reached come first, then fewer milliseconds to the last of them."""
    reached = list(row["milliseconds"].values())
    return (len(reached) == 0) * 1e9 - 1e6 * len(reached) + sum(reached[-1:])


def _draw_bars(session: Session, target: float) -> None:
    """Draw bars of milliseconds, the shortest at the top: learned methods in colour, classical methods in grey."""
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
