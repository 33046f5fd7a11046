"""Stopping rules, which check a run after each iteration and stop the instances that fulfil them."""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lmd.core.checks import check_positive, shape_of
from lmd.errors import CapabilityError, InputError
from lmd.problems.base import Problem, check_capabilities, offers
from lmd.problems.composite import Composite
from lmd.problems.duality import proven_gap, relative_gap
from lmd.solvers.base import State
from lmd.solvers.result import Status, Tracker
from lmd.terms.base import take

# An instance makes no progress if its proven gap has not fallen to this share since iteration k / PATIENCE; checked
# from iteration k = MIN_STALL_ITERATIONS on
PROGRESS_SHARE = 0.9
PATIENCE = 4
MIN_STALL_ITERATIONS = 400

# From this iteration on, gaps that are no larger than the rounding of x count as stalled
ROUNDED_ITERATIONS = 4 * MIN_STALL_ITERATIONS

# Gaps below this multiple of the rounding of x may be unable to fall; rounding errors add up over many iterations
MAX_ROUNDINGS = 10.0
MAX_LATE_ROUNDINGS = 100.0
LATE_ITERATIONS = 4 * ROUNDED_ITERATIONS

# A point has stopped if it moves by at most this multiple of its largest entry's rounding between two gap evaluations
MAX_STILL_ROUNDINGS = 2.0


class Proof(NamedTuple):
    """Points `(B, ...)` and dual points, with their values and proven gaps `(B,)`."""

    x: Tensor
    dual: Tensor
    value: Tensor
    gap: Tensor

    @classmethod
    def of(cls, problem: Any, x: Tensor, dual: Tensor) -> Proof:
        return cls(x, dual, *problem.certified_gap(x, dual))

    def updated(self, which: Tensor, other: Proof) -> Proof:
        """Return the proof with the instances in `which` `(B,)` replaced by those of `other`."""
        return Proof(*(take(which, new, old) for new, old in zip(other, self, strict=True)))


class ProgressMonitor:
    """Detect gaps that have not fallen by the factor `PROGRESS_SHARE` since iteration k / `PATIENCE`."""

    _marks: tuple[Tensor, Tensor] | None = None

    def update(self, k: int, gaps: Tensor) -> Tensor:
        """Return which instances `(B,)` have made no progress, given their gaps `(B,)` after iteration k."""
        marks, marked_at = self._marks or (torch.full_like(gaps, torch.inf), torch.zeros_like(gaps))
        fallen = gaps < PROGRESS_SHARE * marks
        marked_at = torch.where(fallen, float(k), marked_at)
        self._marks = torch.where(fallen, gaps, marks), marked_at
        return (k >= PATIENCE * marked_at) & (k >= MIN_STALL_ITERATIONS)


class StallDetector:
    """Detect proven gaps that are limited by the precision of x, not by a slow method.

    Rounding every entry of x changes F by about eps sum |g_i x_i|, where g is a subgradient. Gaps may stay at up to ten
    times this change, or a hundred times after many iterations. Gaps also cannot fall below the rounding of their own
    evaluation, or once points and dual points have stopped moving.
    """

    def __init__(self) -> None:
        self._progress = ProgressMonitor()
        # Which instances `(B,)` made no progress at the last update, for any reason
        self.stuck = torch.zeros((), dtype=torch.bool, device="cpu")
        self._before: tuple[Tensor, Tensor | None] | None = None

    def update(self, k: int, gaps: Tensor, problem: Problem, x: Tensor, dual: Tensor | None) -> Tensor:
        """Return which instances `(B,)` have stalled, given their gaps `(B,)` at the points of iteration k."""
        stuck = self.stuck = self._progress.update(k, gaps)
        before, self._before = self._before, (x, dual)
        if k < MIN_STALL_ITERATIONS or not bool((stuck | (k >= ROUNDED_ITERATIONS)).any()):
            return stuck
        roundings = MAX_LATE_ROUNDINGS if k >= LATE_ITERATIONS else MAX_ROUNDINGS
        stalled = stuck & (is_limited_by_rounding(problem, x, gaps, dual, roundings) | _is_still(x, dual, before))
        return stalled | (gaps <= value_rounding(problem, x)) if k >= ROUNDED_ITERATIONS else stalled


def _is_still(x: Tensor, dual: Tensor | None, before: tuple[Tensor, Tensor | None] | None) -> Tensor:
    """Return which instances `(B,)` have moved by no more than the rounding of their largest entries."""
    still = torch.full((len(x),), before is not None, dtype=torch.bool, device=x.device)
    for now, was in zip((x, dual), before or (), strict=False):
        if now is not None and was is not None:
            moved, size = (each.abs().flatten(1).amax(dim=1) for each in (now - was, now))
            still &= moved <= MAX_STILL_ROUNDINGS * torch.finfo(now.dtype).eps * size
    return still


def is_limited_by_rounding(
    problem: Any, x: Tensor, gaps: Tensor, dual: Tensor | None, roundings: float = MAX_ROUNDINGS
) -> Tensor:
    """Return which gaps `(B,)` are so small that rounding of x or of the gap itself can keep them from falling."""
    floor = roundings * value_rounding(problem, x)
    if dual is not None and isinstance(problem, Composite):
        floor = floor + 4 * proven_gap(problem, x, dual)[2]
    return gaps <= floor


def value_rounding(problem: Any, x: Tensor) -> Tensor:
    """Return the change of F `(B,)` if each entry of x moves by its rounding, in float64.

    The first-order estimate eps sum |g_i x_i|, g a subgradient, misses the cost of separating equal neighbours, so F is
    also evaluated with every other entry moved.
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
    """Schedule gap evaluations, each of which costs as much as several iterations.

    Gaps are assumed to fall as a power of the iteration k, which is fitted to the last two evaluations. The next
    evaluation comes after `SHARE` of the iterations that this predicts until the tolerance is met, but after at least
    `MIN_GROWTH` k and at most `MAX_GROWTH` k iterations.
    """

    MIN_INTERVAL, MIN_GROWTH, MAX_GROWTH, SHARE, INITIAL_SLOPE = 5, 0.1, 0.5, 0.6, 2.0

    _last: tuple[int, float] | None = None

    def next_interval(self, k: int, ratio: float) -> int:
        """Return the number of iterations until the next evaluation; `ratio` is the largest gap / tolerance."""
        least, last = max(self.MIN_INTERVAL, int(self.MIN_GROWTH * k)), self._last
        if not (math.isfinite(ratio) and ratio > 0):
            self._last = None
            return least
        self._last = k, math.log(ratio)
        slope = self.INITIAL_SLOPE if last is None else (last[1] - self._last[1]) / math.log(k / last[0])
        ahead = self._last[1] / slope if slope > 0 else 0.0  # no forecast from gaps that rise
        wanted = self.SHARE * k * math.expm1(min(ahead, 1.0))
        return max(least, min(int(wanted), int(self.MAX_GROWTH * k)))


class StoppingRule(abc.ABC):
    """A rule that stops each instance on its own. Use a rule for one run only, because it may store a state.

    `lmd.run(..., stop=(Tolerance(1e-3), Target(0.5)))` stops each instance by the rule that it fulfils first.
    """

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:  # noqa: B027
        """Prepare for a run of the solver `name`: raise an error if the rule cannot work, or stop instances at once."""

    @abc.abstractmethod
    def check(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        """Call `tracker.stop` for the instances that end after this iteration; `last` marks the last iteration."""


class Target(StoppingRule):
    """Stop an instance when its value is at most a target, one number or one per instance `(B,)`."""

    def __init__(self, value: float | Tensor) -> None:
        self.value = value

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:
        x, accepted = tracker.x, f"one number, or one per instance ({len(tracker.x)},)"
        try:
            self.values = torch.as_tensor(self.value, dtype=x.dtype, device=x.device)
        except (TypeError, ValueError, RuntimeError):
            raise InputError("target_value", repr(self.value), accepted) from None
        if self.values.shape not in ((), (len(x),)):
            raise InputError("target_value", f"shape {shape_of(self.values)}", accepted)
        if bool(self.values.isnan().any()):
            raise InputError("target_value", "NaN", "a number")
        self.check(problem, state, tracker, False)

    def check(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        tracker.stop(tracker.values <= self.values, Status.TARGET_REACHED)


class Tolerance(StoppingRule):
    """Stop an instance when its proven relative duality gap is within the tolerance or cannot fall any more.

    A gap evaluation costs as much as a step. So after one in iteration k, the next is in iteration 1.1 k.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.next = check_positive("tolerance", tolerance), 1.0

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:
        check_capabilities(problem, ("certified_gap",), "tolerance")
        self.certify = cast(Any, problem).certified_gap
        if state.dual_point is None:
            accepted = "one that does, such as FGP or PDHG, to stop at a tolerance"
            raise CapabilityError("solver", f"{name}, which keeps no dual point", accepted)
        unknown = torch.full_like(tracker.values, torch.inf, dtype=torch.float64)
        self.best, self.stall = Proof(tracker.x, state.dual_point, tracker.values, unknown), StallDetector()

    def check(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        k, dual = state.iteration, state.dual_point
        if dual is None or not (last or k >= self.next):
            return
        self.next = 1.1 * k
        values, gaps = self.certify(tracker.x, dual)
        reported = tracker.values.double()
        gaps = gaps + (reported - values).clamp(min=0)  # reported values may be rounded upwards
        relative = relative_gap(torch.fmax(values, reported), gaps)
        tracker.note("relative_gap", relative)
        tracker.stop(relative <= self.tolerance, Status.TOLERANCE_REACHED)
        self.best = self.best.updated(gaps < self.best.gap, Proof(tracker.x, dual, tracker.values, gaps))
        stalled = self.stall.update(k, gaps, problem, tracker.x, dual)
        tracker.stop(stalled, Status.STALLED, (self.best.x, self.best.dual, self.best.value))
