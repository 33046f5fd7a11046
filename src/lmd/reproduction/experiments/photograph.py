"""A photograph with noise, the answer with its certificate, and the race to it against everything that is installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from lmd.cli.common import Table
from lmd.imaging import denoise
from lmd.problems import TVDenoising, add_noise
from lmd.reproduction.datasets import read_image
from lmd.reproduction.datasets.images import TEST_PHOTOGRAPHS, bundled
from lmd.reproduction.experiments.base import Experiment, Session
from lmd.reproduction.experiments.imaging import generator_for, middles
from lmd.reproduction.report.figures import figure, label_lines, plot_curve
from lmd.reproduction.report.rows import Row, best, distinct, select
from lmd.reproduction.report.tables import number
from lmd.reproduction.tasks.denoise import TASK
from lmd.reproduction.tasks.peers import ONE_THREAD
from lmd.solvers import FGP, PDHG, Solver
from lmd.zoo.solve import solve

NOISE = 0.08
SIDES = {"quick": 224, "standard": 320, "paper": 480}
"""The photograph is cut to squares of this side, or less where it is smaller."""

TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
MAX_SECONDS = {"quick": 0.5, "standard": 3.0, "paper": 10.0}
"""A method whose call takes more processor time than this is not asked for a smaller gap. Other programs do not change
processor time, so that they do not change which rows there are."""

GAP = 1e-3
"""What the headline is about."""


class PhotographTour(Experiment):
    """`lmd.denoise` of a photograph that no solver was trained on, and time to each accuracy of all methods at hand."""

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
        found = {"psnr_noisy": _psnr(noisy, clean), "psnr": _psnr(answer, clean), "seconds": info.seconds}
        for metric, value in {**found, "grey_levels": float(info.grey_levels)}.items():
            session.record("lmd", "answer", metric, value)
        caption = f"`lmd.denoise(picture)`: {found['psnr_noisy']:.1f} dB with noise, {found['psnr']:.1f} dB denoised."
        frames = {"with noise": noisy[0], "denoised": answer[0]}
        session.save_frames("before-and-after", frames, caption)
        _race(session, TVDenoising(noisy, weight=float(info.weight)))
        _draw(session)


def _psnr(x: Tensor, clean: Tensor) -> float:
    return float(-10 * torch.log10((x - clean).square().mean()))


def _race(session: Session, problem: TVDenoising) -> None:
    """Rows of the seconds of whole calls and of the true gaps they end at."""
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


Timed = tuple[Callable[[], Any], Callable[[Any], Tensor]]
"""What is timed, and from what it answers to x."""


def _methods(problem: TVDenoising) -> Iterator[tuple[str, list[Timed]]]:
    solvers: dict[str, Solver[Any] | None] = {"lmd": None, "FGP": FGP(restart=True), "PDHG": PDHG()}
    for name, solver in solvers.items():
        calls = [partial(solve, problem, tolerance, solver=solver) for tolerance in TOLERANCES]
        yield name, [(call, attrgetter("x")) for call in calls]
    peers = () if TASK.contest is None else TASK.contest.peers
    for peer in (peer for peer in peers if peer.installed and not peer.name.endswith(ONE_THREAD)):
        ask = peer.prepare(problem)
        yield peer.name, [(partial(ask, count), partial(peer.finish, problem)) for count in peer.ladder]


def _time_to(rows: Sequence[Row], method: str, gap: float) -> float | None:
    """The least seconds of a call that ended within a gap."""
    own = select(rows, method=method)
    there = [
        row["iteration"]
        for row in select(own, metric="relative_gap")
        if row["value"] is not None and row["value"] <= gap
    ]
    found = best(row for row in select(own, metric="seconds") if row["iteration"] in there)
    return None if found is None else float(found["value"])


def _draw(session: Session) -> None:
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
