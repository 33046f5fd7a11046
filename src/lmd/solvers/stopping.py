"""When to stop: rules that check a run after each iteration and end it for the instances that have got there."""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor

from lmd.core.checks import check_positive, shape_of
from lmd.errors import CapabilityError, InputError
from lmd.problems.base import Problem, check_capabilities, offers
from lmd.problems.composite import Composite
from lmd.problems.duality import proven_gap, relative_gap
from lmd.solvers.base import State
from lmd.solvers.result import Status
from lmd.solvers.tracking import Tracker, take

# Called after each iteration with the state and the values `(B,)`; a true answer ends the run
Callback = Callable[[State, Tensor], object]

# An instance may have stalled whose proven gap has not fallen to the share since iteration k / patience, for k of at
# least the minimum
PROGRESS_SHARE = 0.9
PATIENCE = 4
MIN_STALL_ITERATIONS = 400

# The iteration from which gaps that are no larger than the rounding of x count as stalled
ROUNDED_ITERATIONS = 4 * MIN_STALL_ITERATIONS

# Roundings of x that can keep a gap from falling, and how many after many iterations, whose roundings add up
MAX_ROUNDINGS = 10.0
MAX_LATE_ROUNDINGS = 100.0
LATE_ITERATIONS = 4 * ROUNDED_ITERATIONS

# Roundings of its largest number that a point which has stopped moves by between two gap evaluations
MAX_STILL_ROUNDINGS = 2.0


class ProgressMonitor:
    """Detects gaps that have not fallen to `PROGRESS_SHARE` since iteration k / `PATIENCE`."""

    _marks: tuple[Tensor, Tensor] | None = None

    def update(self, k: int, gaps: Tensor) -> Tensor:
        """Which instances `(B,)` have made no progress, from their gaps `(B,)` after iteration k."""
        marks, marked_at = self._marks or (torch.full_like(gaps, torch.inf), torch.zeros_like(gaps))
        fallen = gaps < PROGRESS_SHARE * marks
        marked_at = torch.where(fallen, float(k), marked_at)
        self._marks = torch.where(fallen, gaps, marks), marked_at
        return (k >= PATIENCE * marked_at) & (k >= MIN_STALL_ITERATIONS)


class StallDetector:
    """Detects proven gaps that fall no further because of the precision of x, rather than of a slow method.

    F changes by eps sum |g_i x_i| when each number in x moves by its rounding: rounding cannot keep gaps above ten
    times that, or after many iterations a hundred times. Gaps do not fall below the rounding of their proof either,
    nor where points and dual points have stopped moving.
    """

    def __init__(self) -> None:
        self._progress = ProgressMonitor()
        # Which instances `(B,)` made no progress at the last update, for whatever reason
        self.stuck = torch.zeros((), dtype=torch.bool, device="cpu")
        self._before: tuple[Tensor, Tensor | None] | None = None

    def update(self, k: int, gaps: Tensor, problem: Problem, x: Tensor, dual: Tensor | None) -> Tensor:
        """Which instances `(B,)` have stalled, from their gaps `(B,)` at the points of iteration k."""
        stuck = self.stuck = self._progress.update(k, gaps)
        before, self._before = self._before, (x, dual)
        if k < MIN_STALL_ITERATIONS or not bool((stuck | (k >= ROUNDED_ITERATIONS)).any()):
            return stuck
        roundings = MAX_LATE_ROUNDINGS if k >= LATE_ITERATIONS else MAX_ROUNDINGS
        stalled = stuck & (is_limited_by_rounding(problem, x, gaps, dual, roundings) | _is_still(x, dual, before))
        return stalled | (gaps <= value_rounding(problem, x)) if k >= ROUNDED_ITERATIONS else stalled


def _is_still(x: Tensor, dual: Tensor | None, before: tuple[Tensor, Tensor | None] | None) -> Tensor:
    """Which instances `(B,)` have moved by no more than the rounding of their largest numbers."""
    still = torch.full((len(x),), before is not None, dtype=torch.bool, device=x.device)
    for now, was in zip((x, dual), before or (), strict=False):
        if now is not None and was is not None:
            moved, size = (each.abs().flatten(1).amax(dim=1) for each in (now - was, now))
            still &= moved <= MAX_STILL_ROUNDINGS * torch.finfo(now.dtype).eps * size
    return still


def is_limited_by_rounding(
    problem: Any, x: Tensor, gaps: Tensor, dual: Tensor | None, roundings: float = MAX_ROUNDINGS
) -> Tensor:
    """Which gaps `(B,)` are so small that the rounding of x, or that of their proof, can keep them from falling."""
    floor = roundings * value_rounding(problem, x)
    if dual is not None and isinstance(problem, Composite):
        floor = floor + 4 * proven_gap(problem, x, dual)[2]
    return gaps <= floor


def value_rounding(problem: Any, x: Tensor) -> Tensor:
    """What F changes by `(B,)` when each number in x moves by its rounding, float64.

    The first-order estimate is eps sum |g_i x_i|. It misses the cost of separating equal neighbours, so F is also
    evaluated with every other entry moved.
    """
    eps, slopes = torch.finfo(x.dtype).eps, problem.subgradient(x) * x
    first: Tensor = eps * slopes.abs().flatten(1).sum(dim=1).double()
    exact = problem.double() if offers(problem, ("double",)) else None
    if exact is None:
        return first
    near = x.double().flatten(1).clone()
    near[:, ::2] *= 1 + eps
    change = exact.value(near.reshape(x.shape)) - exact.value(x.double())
    return torch.maximum(first, change.abs().nan_to_num(nan=0.0, posinf=0.0))


class GapSchedule:
    """Decides when to evaluate a proven gap next, which costs as much as several iterations.

    Gaps are taken to fall like a power of k, as between the last two evaluations. The next evaluation is after `SHARE`
    of the iterations to where the tolerance is then met, but after no more than `MAX_GROWTH` k iterations and no fewer
    than `MIN_GROWTH` k.
    """

    MIN_INTERVAL, MIN_GROWTH, MAX_GROWTH, SHARE, INITIAL_SLOPE = 5, 0.1, 0.5, 0.6, 2.0

    _last: tuple[int, float] | None = None

    def next_interval(self, k: int, ratio: float) -> int:
        """The number of iterations to do after k of them; `ratio` is that of the largest gap to the tolerance."""
        least, last = max(self.MIN_INTERVAL, int(self.MIN_GROWTH * k)), self._last
        if not (math.isfinite(ratio) and ratio > 0):
            self._last = None
            return least
        self._last = k, math.log(ratio)
        slope = self.INITIAL_SLOPE if last is None else (last[1] - self._last[1]) / math.log(k / last[0])
        ahead = self._last[1] / slope if slope > 0 else 0.0  # no forecast from gaps that rise
        wanted = self.SHARE * k * math.expm1(min(ahead, 1.0))
        return max(least, min(int(wanted), int(self.MAX_GROWTH * k)))


class Restarts:
    """Decides when to go on from means over iterations in place of the iterates, instance by instance.

    As soon as a gap has fallen to `SHARE` of what it was at the last restart, or at the first evaluation from iteration
    `FIRST` on ([Applegate et al. 2023](https://doi.org/10.1007/s10107-022-01901-9)).
    """

    SHARE, FIRST = 0.1, 100

    _last: Tensor | None = None

    def update(self, k: int, gaps: Tensor) -> Tensor:
        """Which instances `(B,)` are to restart after iteration k, from their gaps `(B,)` there."""
        if self._last is None:
            self._last = gaps if k >= self.FIRST else None
            return torch.zeros_like(gaps, dtype=torch.bool)
        due = gaps < self.SHARE * self._last
        self._last = torch.where(due, gaps, self._last)
        return due


class StoppingRule(abc.ABC):
    """Ends a run, instance by instance. A rule serves one run, as it may keep a state.

    `lmd.run(..., stop=(Tolerance(1e-3), TimeLimit(2.0)))` ends each instance by the rule that is met first.
    """

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:  # noqa: B027
        """Before the first iteration of the solver `name`: raise where the rule cannot work, or stop at once."""

    @abc.abstractmethod
    def check(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        """Call `tracker.stop` for the instances that end after this iteration, which may be the `last` one."""


class Target(StoppingRule):
    """Values at or below a number, or one per instance `(B,)`."""

    def __init__(self, value: float | Tensor) -> None:
        self.value = value

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:
        self.values = _per_instance("target_value", self.value, tracker.x)
        self.check(problem, state, tracker, False)

    def check(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        tracker.stop(tracker.values <= self.values, Status.TARGET_REACHED)


class Residual(StoppingRule):
    """Iterates that move by at most so much, relative to their size (at least 1)."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = check_positive("residual_tolerance", tolerance)

    def check(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        tracker.stop(tracker.residuals <= self.tolerance, Status.RESIDUAL_REACHED)


class TimeLimit(StoppingRule):
    """So many seconds from the beginning of the run."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.begun = check_positive("time_limit", seconds), time.perf_counter()

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:
        self.begun = time.perf_counter() - tracker.seconds[0]

    def check(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        if time.perf_counter() - self.begun >= self.seconds:
            tracker.stop_all(Status.TIME_UP)


class Callbacks(StoppingRule):
    """Calls functions after each iteration; the run ends when one of them returns True."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = tuple(callbacks)

    def check(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        if any([callback(state, tracker.latest_values) for callback in self.callbacks]):
            tracker.stop_all(Status.STOPPED)


class Tolerance(StoppingRule):
    """A relative duality gap that proves a point to be so near to the minimum; and stalling, where no more is proven.

    A gap evaluation costs as much as a step, so there are few: one is never more than a tenth of the iterations late.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.next = check_positive("tolerance", tolerance), 1.0

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:
        check_capabilities(problem, ("certified_gap",), "tolerance")
        self.certify = cast(Any, problem).certified_gap
        if state.dual_point is None:
            accepted = "one that does, such as FGP or PDHG, to stop at a tolerance"
            raise CapabilityError("solver", f"{name}, which keeps no dual point", accepted)
        self.gaps = torch.full_like(tracker.values, torch.inf, dtype=torch.float64)  # the least proven ones `(B,)`
        self.best, self.stall = (tracker.x, state.dual_point, tracker.values), StallDetector()

    def check(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        k, dual = state.iteration, state.dual_point
        if dual is None or not (last or k >= self.next):
            return
        self.next = 1.1 * k
        values, gaps = self.certify(tracker.x, dual)
        reported = tracker.values.double()
        gaps = gaps + (reported - values).clamp(min=0)  # of the reported values, which may be rounded upwards
        relative = relative_gap(torch.fmax(values, reported), gaps)
        tracker.note("relative_gap", relative)
        tracker.stop(relative <= self.tolerance, Status.TOLERANCE_REACHED)
        better = gaps < self.gaps
        x, best_dual, best_values = self.best
        best_values = take(better, tracker.values, best_values)
        self.best = take(better, tracker.x, x), take(better, dual, best_dual), best_values
        self.gaps = take(better, gaps, self.gaps)
        tracker.stop_at(self.stall.update(k, gaps, problem, tracker.x, dual), Status.STALLED, *self.best)


def _per_instance(argument: str, value: float | Tensor, x0: Tensor) -> Tensor:
    accepted = f"one number, or one per instance ({x0.shape[0]},)"
    try:
        tensor = torch.as_tensor(value, dtype=x0.dtype, device=x0.device)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(argument, repr(value), accepted) from None
    if tensor.shape not in ((), (x0.shape[0],)):
        raise InputError(argument, f"shape {shape_of(tensor)}", accepted)
    if bool(tensor.isnan().any()):
        raise InputError(argument, "NaN", "a number")
    return tensor
