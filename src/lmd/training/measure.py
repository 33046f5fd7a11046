"""The gaps of a solver after each iteration, over many instances, and how long the iterations take."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.solvers import Solver
from lmd.solvers.tracking import divergence_ceiling
from lmd.training.instances import Instances

QUANTILE = 0.95  # the share of the instances that has to be within a target
MAX_GAP = 1e12  # a relative gap from which no solver recovers
MAX_TIMED = 2000.0  # milliseconds after which solves are not timed again


def clock() -> float:
    """Return seconds; on one thread those of the processor, which other programs do not disturb."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


@dataclass(frozen=True)
class Speed:
    """A solve of k iterations takes about `start + each * k` milliseconds."""

    start: float
    each: float

    def milliseconds(self, iterations: int | None) -> float:
        """Return the time of so many iterations, infinite for None."""
        return math.inf if iterations is None else self.start + self.each * iterations


@torch.no_grad()
def curve(solver: Solver[Any], instances: Sequence[Instances], most: int, least: float) -> list[float]:
    """Return the 95% quantile of the relative gaps after 0, 1, ... iterations, until it is `least` or `most` are done.

    Over all instances, in one batch or in several. An instance that `run` would stop as diverged counts as infinite.
    """
    states = [solver.init(each.problem, each.x0) for each in instances]
    errors = torch.cat([each.errors(state.x) for each, state in zip(instances, states, strict=True)])
    ceilings, found = torch.cat([_ceiling(each) for each in instances]), [quantile(errors)]
    failed = torch.zeros_like(errors, dtype=torch.bool)
    while found[-1] > least and len(found) <= most and not found[-1] > MAX_GAP:
        states = [solver.step(each.problem, state) for each, state in zip(instances, states, strict=True)]
        errors = torch.cat([each.errors(state.x) for each, state in zip(instances, states, strict=True)])
        failed |= errors > ceilings
        found.append(quantile(torch.where(failed, torch.inf, errors)))
    return found


def _ceiling(instances: Instances) -> Tensor:
    """Return the relative gaps `(B,)` above which `run` stops an instance as diverged."""
    values, _ = instances.problem.relaxed_value(instances.x0)
    size = instances.minima.abs().clamp(min=torch.finfo(values.dtype).tiny)
    return (divergence_ceiling(values) - instances.minima) / size


def reached(quantiles: list[float], target: float) -> int | None:
    """Return the first iteration at which the target is met."""
    return next((k for k, quantile in enumerate(quantiles) if quantile <= target), None)


def milliseconds(solver: Solver[Any], instances: Sequence[Instances], iterations: int, repeats: int = 7) -> float:
    """Return the median time of a whole solve of so many iterations, nothing recorded."""
    return statistics.median(_times(solver, instances, iterations, repeats))


@torch.no_grad()
def _times(solver: Solver[Any], instances: Sequence[Instances], iterations: int, repeats: int) -> list[float]:
    """Return the times of some solves, fewer of long ones, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        begun = clock()
        for each in instances:
            state = solver.init(each.problem, each.x0)
            if iterations:
                solver.advance(each.problem, state, iterations)
        times.append(1e3 * (clock() - begun))
        if len(times) > 1 and sum(times) > MAX_TIMED:
            break
    return times[1:]


def speed(solver: Solver[Any], instances: Sequence[Instances], iterations: int) -> Speed:
    """Return the speed by the fastest of some solves of no and of many iterations."""
    start, whole = (min(_times(solver, instances, count, 15)) for count in (0, iterations))
    return Speed(start, max((whole - start) / iterations, 1e-6))


def quantile(errors: Tensor) -> float:
    """Return the smallest number that 95% of the errors are not above."""
    place = math.ceil(QUANTILE * errors.numel()) - 1
    return float(errors.double().sort().values[place])
