"""When to stop: rules that look at a run after each iteration and end it for the instances that have got there."""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

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

Callback = Callable[[State, Tensor], object]
"""Called after each iteration with the state and the values `(B,)`; a true answer ends the run."""

PROGRESS, PATIENCE, LEAST = 0.9, 4, 400
"""An instance may have stalled whose proven gap has not fallen to this share since iteration k / patience, k at least
this."""


LONG = 4 * LEAST
"""From so many iterations on, gaps that are no larger than what the rounding of x does are not waited for."""

ROUNDINGS, LATE_ROUNDINGS, LATE = 10.0, 100.0, 4 * LONG
"""Roundings of x that can hold a gap up, and how many from iteration `LATE` on: those of many iterations add up."""

MAX_STILL = 2.0
"""Roundings of its largest number that a point moves by at most between two looks, where it has stopped."""


class Marks:
    """Sees when gaps fall no further: since iteration k / patience, to less than the share that is progress."""

    def __init__(self) -> None:
        self._seen: tuple[Tensor, Tensor] | None = None

    def look(self, k: int, gaps: Tensor) -> Tensor:
        """Which instances `(B,)` have made no progress, from their gaps `(B,)` after iteration k."""
        marks, marked_at = self._seen or (torch.full_like(gaps, torch.inf), torch.zeros_like(gaps))
        fallen = gaps < PROGRESS * marks
        marked_at = torch.where(fallen, float(k), marked_at)
        self._seen = torch.where(fallen, gaps, marks), marked_at
        return (k >= PATIENCE * marked_at) & (k >= LEAST)


class Stall:
    """Sees when proven gaps fall no further because of the precision of x, which a slow method alone does not explain.

    F changes by eps sum |g_i x_i| when each number in x moves by its rounding: gaps that stay above ten times that, or
    after many iterations a hundred times, are not held up by it. Nor do they fall below the room for rounding that a
    proof has, nor where points and dual points have stopped to move.
    """

    def __init__(self) -> None:
        self._marks = Marks()
        self.stuck = torch.zeros((), dtype=torch.bool, device="cpu")
        """Which instances `(B,)` made no progress at the last look, whatever held them up."""
        self._before: tuple[Tensor, Tensor | None] | None = None

    def look(self, k: int, gaps: Tensor, problem: Problem, x: Tensor, dual: Tensor | None) -> Tensor:
        """Which instances `(B,)` have stalled, from their gaps `(B,)` at the points of iteration k."""
        stalled = self.stuck = self._marks.look(k, gaps)
        before, self._before = self._before, (x, dual)
        if k < LEAST or not bool((stalled | (k >= LONG)).any()):
            return stalled
        roundings = LATE_ROUNDINGS if k >= LATE else ROUNDINGS
        held = stalled & (held_up(problem, x, gaps, dual, roundings) | _is_still(x, dual, before))
        return held | (gaps <= rounding_of(problem, x)) if k >= LONG else held


def _is_still(x: Tensor, dual: Tensor | None, before: tuple[Tensor, Tensor | None] | None) -> Tensor:
    """Which instances `(B,)` have moved by no more than the rounding of their largest numbers."""
    still = torch.full((len(x),), before is not None, dtype=torch.bool, device=x.device)
    for now, was in zip((x, dual), before or (), strict=False):
        if now is not None and was is not None:
            moved, size = (each.abs().flatten(1).amax(dim=1) for each in (now - was, now))
            still &= moved <= MAX_STILL * torch.finfo(now.dtype).eps * size
    return still


def held_up(problem: Any, x: Tensor, gaps: Tensor, dual: Tensor | None, roundings: float = ROUNDINGS) -> Tensor:
    """Which gaps `(B,)` are so small that the rounding of x, or that of their proof, can keep them from falling."""
    floor = roundings * rounding_of(problem, x)
    if dual is not None and isinstance(problem, Composite):
        floor = floor + 4 * proven_gap(problem, x, dual)[2]
    return gaps <= floor


def rounding_of(problem: Any, x: Tensor) -> Tensor:
    """What F changes by `(B,)` when each number in x moves by its rounding, float64.

    To first order eps sum |g_i x_i|; where neighbours are equal that leaves out what they cost when they no longer are,
    so that F is also evaluated at such a point, every other number being moved.
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


class Looks:
    """When to look at a proven gap next: a look costs as much as several iterations.

    Gaps that fall like powers of k, as those of the last two looks did, meet the tolerance at an iteration that can be
    foretold: the next look is before it, so that hardly an iteration is in vain, after no more than half as many
    iterations as were done so far, and no fewer than a tenth of them.
    """

    SHORTEST, GROWTH, MOST, SHARE, STEEP = 5, 0.1, 0.5, 0.6, 2.0

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def next_after(self, k: int, far: float) -> int:
        """How many iterations to do after k of them; `far` is the largest gap there, as a multiple of the tolerance."""
        least, last = max(self.SHORTEST, int(self.GROWTH * k)), self._last
        if not (math.isfinite(far) and far > 0):
            self._last = None
            return least
        self._last = k, math.log(far)
        slope = self.STEEP if last is None else (last[1] - self._last[1]) / math.log(k / last[0])
        ahead = self._last[1] / slope if slope > 0 else 0.0  # what rises foretells nothing
        wanted = self.SHARE * k * math.expm1(min(ahead, 1.0))
        return max(least, min(int(wanted), int(self.MOST * k)))


class StoppingRule(abc.ABC):
    """Ends a run, instance by instance. A rule serves one run: it may remember what it saw.

    Rules compose by standing side by side: `lmd.run(..., stop=(Tolerance(1e-3), TimeLimit(2.0)))` ends each instance by
    whichever comes first, as the arguments of `lmd.run` of these names do.
    """

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:  # noqa: B027
        """Before the first iteration of the solver `name`: raise where the rule cannot work, or stop at once."""

    def next_look(self, k: int) -> int:
        """The first iteration past k after which it has to look: the very next, unless a rule needs fewer."""
        return k + 1

    @abc.abstractmethod
    def look(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        """After an iteration, the `last` one or another: `tracker.stop` what has got there."""


class Target(StoppingRule):
    """Values at or below a number, or one per instance `(B,)`."""

    def __init__(self, value: float | Tensor) -> None:
        self.value = value

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:
        self.values = _per_instance("target_value", self.value, tracker.x)
        self.look(problem, state, tracker, False)

    def look(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        tracker.stop(tracker.values.last <= self.values, Status.TARGET_REACHED)


class Residual(StoppingRule):
    """Iterates that move by at most so much, relative to their size (at least 1)."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = check_positive("residual_tolerance", tolerance)

    def look(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        tracker.stop(tracker.residuals.last <= self.tolerance, Status.RESIDUAL_REACHED)


class TimeLimit(StoppingRule):
    """So many seconds from the beginning of the run."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.begun = check_positive("time_limit", seconds), time.perf_counter()

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:
        self.begun = time.perf_counter() - tracker.seconds[0]

    def look(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        if time.perf_counter() - self.begun >= self.seconds:
            tracker.stop_all(Status.TIME_UP)


class Calls(StoppingRule):
    """Calls functions after each iteration; a true answer of any of them ends the run."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = tuple(callbacks)

    def look(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        if any([callback(state, tracker.looked) for callback in self.callbacks]):
            tracker.stop_all(Status.STOPPED)


class Tolerance(StoppingRule):
    """A relative duality gap that proves a point to be so near to the minimum; and stalling, where no more is proven.

    Looks are seldom, as one costs as much as a step: never more than a tenth of the iterations late.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.next = check_positive("tolerance", tolerance), 1.0

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:
        self.certify = _certified_gap(problem)
        if state.dual_point is None:
            accepted = "one that does, such as FGP or PDHG, to stop at a tolerance"
            raise CapabilityError("solver", f"{name}, which keeps no dual point", accepted)
        values = tracker.values.last
        self.gaps = torch.full_like(values, torch.inf, dtype=torch.float64)
        """The smallest that were proven `(B,)`."""
        self.best, self.stall = (tracker.x, state.dual_point, values), Stall()

    def next_look(self, k: int) -> int:
        return max(k + 1, math.ceil(self.next))

    def look(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        k, dual = state.iteration, state.dual_point
        if dual is None or not (last or k >= self.next):
            return
        self.next = 1.1 * k
        values, gaps = self.certify(tracker.x, dual)
        reported = tracker.values.last.double()
        gaps = gaps + (reported - values).clamp(min=0)  # of the reported values, which may be rounded upwards
        relative = relative_gap(torch.fmax(values, reported), gaps)
        tracker.note("relative_gap", len(tracker.values) - 1, relative)
        tracker.stop(relative <= self.tolerance, Status.TOLERANCE_REACHED)
        better = gaps < self.gaps
        x, best_dual, best_values = self.best
        best_values = take(better, tracker.values.last.clone(), best_values)
        self.best = take(better, tracker.x, x), take(better, dual, best_dual), best_values
        self.gaps = take(better, gaps, self.gaps)
        tracker.stop_at(self.stall.look(k, gaps, problem, tracker.x, dual), Status.STALLED, *self.best)


def _certified_gap(problem: Any) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    check_capabilities(problem, ("certified_gap",), "tolerance")
    gap: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = problem.certified_gap
    return gap


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
