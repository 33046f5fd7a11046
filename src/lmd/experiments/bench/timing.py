"""Seconds until a method reaches a quality, of the public calls: warmed up, interleaved and repeated."""

from __future__ import annotations

import abc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lmd.experiments.bench.measuring import (
    DRAWN,
    TARGETS,
    KnownInstances,
    Measured,
    MeasuredPeer,
    MeasuredSolve,
    MeasuredSolver,
    QualityTarget,
)
from lmd.experiments.bench.plan import Curve
from lmd.guarantees.certify import run
from lmd.report.rows import Row, row
from lmd.solvers import Solver
from lmd.tasks.methods import Setting
from lmd.tasks.peers import Call, numpy_errors_as_they_are
from lmd.zoo.solve import solve

SINGLES = 5
"""How many instances are timed one by one."""

LONGEST = 10.0
"""Seconds that all repeats of one run may take: slow ones are repeated less often, and the rows say how often."""

Timer = Callable[[], list[float]]
"""A run that gives the seconds until each of its marks."""


@dataclass
class Job:
    """A run that is timed, and which of its marks are of interest."""

    run: Timer
    at: dict[QualityTarget, tuple[int, int]] = field(default_factory=dict)
    """For each target that it reaches, which mark that is, and at which iteration."""

    marks: tuple[int, ...] = ()
    gaps: tuple[float, ...] = ()
    """Iterations and mean relative gaps at the marks, where they are to be drawn."""

    samples: list[list[float]] = field(default_factory=list)
    repeats: int = 1

    def median(self, mark: int) -> float:
        return statistics.median(times[mark] for times in self.samples)


class Timed(abc.ABC):
    """A method that was measured, and how to time it."""

    measured: Measured

    @abc.abstractmethod
    def jobs(self, part: slice) -> list[Job]:
        """What to time on some of the instances: a target counts as reached where their mean reaches it."""


class TimedSolver(Timed):
    """A method of ours: a loop of steps, or whole where its solver has a faster way through many iterations."""

    def __init__(self, measured: MeasuredSolver) -> None:
        self.measured: MeasuredSolver = measured
        self.settings, self.most = measured.method.settings, measured.method.most

    def jobs(self, part: slice) -> list[Job]:
        chosen = self.measured.instances.part(part)
        drawn = self.measured.best_at("relative_gap", min(20, self.most))
        found = []
        for which, reached in self._reached(part, drawn).items():
            if self._goes_at_once(which):  # then each target has a run of its own, as for the peers
                found += [Job(self._whole(which, chosen, k), {target: (0, k)}) for target, k in reached.items()]
                reached = {}
            last = max(reached.values(), default=0)
            gaps: tuple[float, ...] = ()
            if which == drawn:
                last = max(last, min(DRAWN, self.most))
                gaps = tuple(self._curve(which, "relative_gap", part)[: last + 1])
            if reached or gaps:
                at = {target: (k, k) for target, k in reached.items()}
                found.append(Job(self._steps(which, chosen, last), at, tuple(range(len(gaps))), gaps))
        return found

    def _reached(self, part: slice, drawn: int) -> dict[int, dict[QualityTarget, int]]:
        """For each setting, the one that is drawn first, the targets it is timed to and the iterations they take."""
        found: dict[int, dict[QualityTarget, int]] = {drawn: {}}
        for target in TARGETS:
            which = self.measured.best_to(target)
            k = target.reached(self._curve(which, target.metric, part))
            if k is not None:
                found.setdefault(which, {})[target] = k
        return found

    def _curve(self, which: int, metric: str, part: slice) -> list[float]:
        """The mean quality of a setting on some of the instances, at every iteration."""
        found: list[float] = self.measured.curve(which)[metric][:, part].mean(dim=1).tolist()
        return found

    def _goes_at_once(self, which: int) -> bool:
        return type(self.settings[which].solver).advance is not Solver.advance

    def _whole(self, which: int, chosen: KnownInstances, iterations: int) -> Timer:
        setting = self.settings[which]
        return whole(setting.solver, setting.adapt(chosen.problem), chosen.x0, iterations)

    def _steps(self, which: int, chosen: KnownInstances, last: int) -> Timer:
        setting = self.settings[which]
        problem = setting.adapt(chosen.problem)
        return lambda: _step_times(setting, problem, chosen.x0, last)


class TimedSolve(Timed):
    """`lmd.solve`, called for each gap that is a target, with the certificate asked for."""

    def __init__(self, measured: MeasuredSolve) -> None:
        self.measured: MeasuredSolve = measured

    def jobs(self, part: slice) -> list[Job]:
        chosen = self.measured.instances.part(part)
        found = []
        for target in (target for target in TARGETS if target.metric == "relative_gap"):
            result = solve(chosen.problem, target.level, x0=chosen.x0)
            gap = float(chosen.quality(chosen.problem, result.x, None)[target.metric].mean())
            k = int(result.iterations.max())
            at = {target: (0, k)} if result.ok and gap <= target.level else {}
            found.append(Job(_solve_times(chosen, target.level), at, (k,), (gap,)))
        return found


def _solve_times(chosen: KnownInstances, tolerance: float) -> Timer:
    def call() -> list[float]:
        begun = time.perf_counter()
        _ = solve(chosen.problem, tolerance, x0=chosen.x0).certificate  # made when it is asked for
        return [time.perf_counter() - begun]

    return call


class TimedPeer(Timed):
    """A peer, called whole for each number of iterations."""

    def __init__(self, measured: MeasuredPeer) -> None:
        self.measured: MeasuredPeer = measured

    def jobs(self, part: slice) -> list[Job]:
        counts, quality = self.measured.counts, self.measured.quality
        call = self.measured.peer.prepare(self.measured.instances.part(part).problem)
        gaps = quality["relative_gap"][:, part].mean(dim=1).tolist()
        found = [Job(_call_times(call, k), {}, (k,), (gap,)) for k, gap in zip(counts, gaps, strict=True)]
        for target in TARGETS:
            place = target.reached(quality[target.metric][:, part].mean(dim=1).tolist())
            if place is not None:
                found[place].at[target] = (0, counts[place])
        return found


def _step_times(setting: Setting, problem: Any, x0: Tensor, most: int) -> list[float]:
    """Seconds of the solver until x_0, ..., x_most, in one `lmd.run`; a run in which all diverged ended before."""
    times: list[float] = run(setting.solver, problem, x0, max(1, most)).history.seconds.tolist()
    return (times + [times[-1]] * most)[: most + 1]


def whole(solver: Solver[Any], problem: Any, x0: Tensor, iterations: int) -> Timer:
    """One `lmd.run` that records nothing, to be timed from start to end: seconds until x_iterations."""

    def call() -> list[float]:
        begun = time.perf_counter()
        run(solver, problem, x0, max(1, iterations), record=False)
        return [time.perf_counter() - begun]

    return call


def _call_times(call: Call, iterations: int) -> Timer:
    """A call of a peer: seconds until it answers."""

    def timed() -> list[float]:
        begun = time.perf_counter()
        with numpy_errors_as_they_are():
            call(iterations)
        return [time.perf_counter() - begun]

    return timed


def time_all(
    runs: Sequence[Timed], instances: int, batch: int, repeats: int, settings: Mapping[str, Any]
) -> tuple[list[Row], list[Curve]]:
    """Time every run to every target it reaches, interleaved, after a warm-up: rows, and curves to draw.

    With batch 1 up to `SINGLES` instances are solved one by one, and the median over them is reported.
    """
    parts = [slice(0, min(batch, instances))]
    if batch == 1:
        parts = [slice(i, i + 1) for i in range(min(SINGLES, instances))]
    jobs = [[timed.jobs(part) for part in parts] for timed in runs]
    _sample([job for method in jobs for part in method for job in part], repeats)
    rows, curves = [], []
    for timed, found in zip(runs, jobs, strict=True):
        rows += [_time_row(timed.measured.name, target, found, batch=batch, **settings) for target in TARGETS]
        curves.append(_time_curve(timed.measured.name, found[0], batch=batch, **settings))
    return rows, curves


def _sample(jobs: Sequence[Job], repeats: int) -> None:
    """Run all jobs in turn, so that what slows the machine down for a while slows all of them."""
    for job in jobs:
        job.repeats = max(1, min(repeats, int(LONGEST / job.run()[-1])))  # this is the warm-up
    for repeat in range(repeats):
        for job in jobs:
            if repeat < job.repeats:
                job.samples.append(job.run())


def _time_row(name: str, target: QualityTarget, found: Sequence[Sequence[Job]], **settings: Any) -> Row:
    """The median over instances of the median over repeats, or null where some instance does not reach the target."""
    metric = f"seconds_to_{target.name}"
    reached = [job for part in found for job in part if target in job.at]
    if len(reached) < len(found):
        return row(name, "not reached", metric, math.nan, **settings)
    every = [times[job.at[target][0]] for job in reached for times in job.samples]
    value = statistics.median(job.median(job.at[target][0]) for job in reached)
    iteration = round(statistics.median(job.at[target][1] for job in reached))
    spread = {"low": min(every), "high": max(every), "repeats": len(reached[0].samples)}
    return row(name, iteration, metric, value, **settings, **spread)


def _time_curve(name: str, jobs: Sequence[Job], **settings: Any) -> Curve:
    drawn = [job for job in jobs if job.marks]
    return Curve(
        **settings,
        method=name,
        iterations=tuple(k for job in drawn for k in job.marks),
        gaps=tuple(gap for job in drawn for gap in job.gaps),
        seconds=tuple(job.median(mark) for job in drawn for mark in range(len(job.marks))),
    )
