"""Time whole public calls until a method reaches a quality: warmed up, interleaved and repeated."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from lmd.guarantees.certify import run
from lmd.problems.base import offers
from lmd.reproduction.bench.measuring import KnownInstances, MeasuredPeer, MeasuredSolver, QualityTarget, looks
from lmd.reproduction.tables import Row, row
from lmd.solvers.result import Status
from lmd.zoo.solve import solve

PROVEN = "-proven"  # suffix of the names of classical methods that run until a gap is proven
SINGLES = 5  # the number of instances that are timed one by one
LONGEST = 10.0  # seconds for all repeats of one call: slow calls are repeated less often, and rows give the number


@dataclass(frozen=True)
class TimedCurve:
    """The timed calls of one method, for the figures."""

    settings: dict[str, Any]  # the problem, its noise and, if the plan has sizes, the size
    batch: int
    method: str
    # seconds of a call and the mean relative gap of its answer, the fastest first
    points: tuple[tuple[float, float], ...]


@dataclass
class TimedCall:
    """Timings of one complete call of a method."""

    call: Callable[[], object]
    count: float  # the number of iterations, or the effort with which a peer is called
    gap: float  # the mean relative gap of the answers
    of: tuple[QualityTarget, ...] = ()  # the targets that this call is the first to reach
    samples: list[tuple[float, float]] = field(default_factory=list)  # seconds, and CPU seconds

    def sample(self) -> tuple[float, float]:
        """Run the call once; return its seconds and its CPU seconds."""
        begun, spent = time.perf_counter(), time.process_time()
        self.call()
        return time.perf_counter() - begun, time.process_time() - spent

    def median(self, which: int = 0) -> float:
        """Return the median of the seconds, or of the CPU seconds if `which` is 1."""
        return statistics.median(times[which] for times in self.samples)


@dataclass(frozen=True)
class Timed:
    """A method to time. `jobs` returns its calls for a slice of the instances; targets refer to the slice mean."""

    name: str
    jobs: Callable[[slice], list[TimedCall]]
    measured: MeasuredSolver | MeasuredPeer | None = None  # the quality of its iterates; None for `lmd.solve`


def solver_jobs(measured: MeasuredSolver, part: slice) -> list[TimedCall]:
    """Return one `lmd.run` without history for each target."""
    chosen, found = measured.instances.part(part), []
    for target in measured.wanted:
        which = measured.best_to(target)
        curve = measured.curve(which)
        place = target.reached(curve[target.metric][:, part].mean(dim=1).tolist())
        if place is not None:
            k = looks(measured.method.most)[place]
            setting = measured.method.settings[which]
            call = partial(run, setting.solver, setting.adapt(chosen.problem), chosen.x0, max(1, k), record=False)
            found.append(TimedCall(call, k, float(curve["relative_gap"][place, part].mean()), (target,)))
    return found


def solve_jobs(instances: KnownInstances, wanted: Sequence[QualityTarget], part: slice) -> list[TimedCall]:
    """Return a call of `lmd.solve`, certificate included, for each gap."""
    chosen = instances.part(part)
    return [
        _proven(chosen, target, partial(_certified, chosen.problem, chosen.x0, target.level))
        for target in wanted
        if target.metric == "relative_gap"
    ]


def proof_jobs(measured: MeasuredSolver, part: slice) -> list[TimedCall]:
    """Return calls of `lmd.solve` with a classical method, which end when a gap is proven, not when it is reached."""
    chosen, found = measured.instances.part(part), []
    for target in (target for target in measured.wanted if target.metric == "relative_gap"):
        setting = measured.method.settings[measured.best_to(QualityTarget("certified_gap", target.level))]
        options = {"solver": setting.solver, "iterations": measured.method.most}
        call = partial(_certified, setting.adapt(chosen.problem), chosen.x0, target.level, **options)
        found.append(_proven(chosen, target, call))
        if not found[-1].of:
            break  # smaller gaps are not reached either
    return found


def peer_jobs(measured: MeasuredPeer, part: slice) -> list[TimedCall]:
    """Return calls of a peer with growing effort."""
    quality = {metric: each[:, part].mean(dim=1).tolist() for metric, each in measured.quality.items()}
    prepared = measured.peer.prepare(measured.instances.part(part).problem)

    def call(rung: float) -> None:
        with np.errstate(all="ignore"):  # some peers divide by zero on flat images
            prepared(rung)

    firsts = {target: target.reached(quality[target.metric]) for target in measured.wanted}
    return [
        TimedCall(partial(call, rung), rung, gap, tuple(target for target, first in firsts.items() if first == place))
        for place, (rung, gap) in enumerate(zip(measured.rungs, quality["relative_gap"], strict=True))
    ]


def _certified(problem: Any, x0: Tensor, tolerance: float, **options: Any) -> Any:
    """Solve to a tolerance and compute the certificate; return the result."""
    result = solve(problem, tolerance, x0=None if offers(problem, ("start",)) else x0, **options)
    _ = result.certificate
    return result


def _proven(chosen: KnownInstances, target: QualityTarget, call: Callable[[], Any]) -> TimedCall:
    """Run a call to a tolerance once and return its `TimedCall`; it reaches the target if all instances are proven."""
    result = call()
    gap = float(chosen.quality(chosen.problem, result.x, None)["relative_gap"].mean())
    reached = all(status is Status.TOLERANCE_REACHED for status in result.status)
    return TimedCall(call, int(result.iterations.max()), gap, (target,) if reached else ())


def time_all(
    runs: Sequence[Timed],
    wanted: Sequence[QualityTarget],
    instances: int,
    batch: int,
    repeats: int,
    settings: Mapping[str, Any],
) -> tuple[list[Row], list[TimedCurve]]:
    """Time every run to every target it reaches, interleaved, after a warm-up; return rows, and curves to draw.

    With batch 1 up to `SINGLES` instances are solved one by one, and the median over them is reported.
    """
    parts = [slice(0, min(batch, instances))]
    if batch == 1:
        parts = [slice(i, i + 1) for i in range(min(SINGLES, instances))]
    jobs = [[timed.jobs(part) for part in parts] for timed in runs]
    _sample([job for method in jobs for part in method for job in part], repeats)
    rows, curves = [], []
    for timed, found in zip(runs, jobs, strict=True):
        rows += [_time_row(timed.name, target, found, batch=batch, **settings) for target in wanted]
        points = sorted((job.median(), max(job.gap, 0.0)) for job in found[0])
        curves.append(TimedCurve(settings=dict(settings), batch=batch, method=timed.name, points=tuple(points)))
    return rows, curves


def _sample(jobs: Sequence[TimedCall], repeats: int) -> None:
    """Run all jobs in turn, so that a temporary slowdown of the machine affects all of them alike."""
    often = [max(1, min(repeats, int(LONGEST / max(job.sample()[0], 1e-9)))) for job in jobs]  # this is the warm-up
    for repeat in range(repeats):
        for job, most in zip(jobs, often, strict=True):
            if repeat < most:
                job.samples.append(job.sample())


def _time_row(name: str, target: QualityTarget, found: Sequence[Sequence[TimedCall]], **settings: Any) -> Row:
    """Return the median over instances of the median over repeats, or null if an instance does not reach the target."""
    metric = f"seconds_to_{target.name}"
    reached = [job for part in found for job in part if target in job.of]
    if len(reached) < len(found):
        return row(name, "not reached", metric, math.nan, **settings)
    every = [seconds for job in reached for seconds, _ in job.samples]
    spread = {"low": min(every), "high": max(every), "repeats": len(reached[0].samples)}
    spent = statistics.median(job.median(1) for job in reached)
    value = statistics.median(job.median() for job in reached)
    count = statistics.median_low(job.count for job in reached)
    place = int(count) if float(count).is_integer() else f"called with {count:g}"
    return row(name, place, metric, value, **settings, cpu_seconds=spent, **spread)
