"""Solving step by step without recording history: steps, gap evaluations ever more seldom, and the best points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lmd.errors import CapabilityError
from lmd.guarantees.certify import Watch, run
from lmd.problems.base import Problem, offers
from lmd.problems.composite import Composite
from lmd.problems.duality import project_onto_domains, relative_gap
from lmd.solvers.base import Solver, State, check_solver
from lmd.solvers.result import Certificate, Result, Status
from lmd.solvers.stopping import PROGRESS_SHARE, GapSchedule, ProgressMonitor, Restarts, StallDetector
from lmd.solvers.tracking import take
from lmd.tv.solved import End, Outcome, Solved

MIN_GAP = 1e-14  # rounding of sums in float64
MAX_WARM_GAP = 10.0  # relative gap of a warm start above which learned iterations from nothing are better

STILL_ROUNDINGS, MIN_STILL_ITERATIONS = 8, 40
"""Units of rounding by which values fall that have ended falling, and the first iteration at which that is checked."""


def warm_dual(solver: Solver[Any], problem: Any, x0: Tensor, dual: Tensor | None) -> Tensor | None:
    """A feasible dual point to start from; None where there is none, or learned iterations from nothing are better."""
    if dual is None:
        return None
    feasible: Tensor = problem.project_dual(dual)
    if solver.horizon is None or bool((problem.relative_gap(x0, feasible) <= MAX_WARM_GAP).all()):
        return feasible
    return None


def iterate(
    solver: Solver[Any],
    problem: Any,
    x0: Tensor,
    tolerance: float,
    limit: int,
    dual: Tensor | None = None,
    *,
    refines: bool = False,
) -> tuple[Solved, Tensor | None]:
    """Take steps until every instance is proven, stalled, or out of iterations.

    A gap of `MIN_GAP` squared beside the value of the start is nothing: where a minimum is 0, the rounding of the data
    changes it by as much.

    Args:
        solver: One that keeps dual points.
        problem: A composite problem.
        x0: The start `(B, ...)`.
        tolerance: The relative gap to be proven.
        limit: How many iterations at most.
        dual: A feasible dual point to start from; None is none.
        refines: Whether instances that get stuck will be solved again in float64, and may end early.

    Returns:
        The points of which most is proven, and how far they violate the constraints, if any does.
    """
    check_solver(solver, problem)
    state = solver.init(problem, x0) if dual is None else solver.resume(problem, x0, dual)
    if state.dual_point is None:
        given = f"{type(solver).__name__}, which keeps no dual point"
        raise CapabilityError("solver", given, "one that does, such as FGP or PDHG")
    done, stall, schedule, best, restarts = 0, StallDetector(), GapSchedule(), _Best(state), Restarts()
    nothing = MIN_GAP**2 * problem.value(x0).abs().double().nan_to_num(posinf=0)
    stride = min(limit, max(1, (solver.horizon or GapSchedule.MIN_INTERVAL) - state.iteration))
    while True:
        state = solver.advance(problem, state, stride)
        done += stride
        x, p, value, gap = _evaluate(problem, state, tolerance)
        best.see(x, p, value, gap)
        far = relative_gap(best.value, best.gap) / tolerance
        near = far <= 1
        stalled = stall.update(done, gap, problem, state.x, state.dual_point) | (best.gap <= nothing)
        stalled = (stalled if state.settled is None else stalled | state.settled) & ~near
        stuck = stall.stuck & refines & ~near & ~stalled
        going = ~(near | stalled | stuck)
        if not bool(going.any()) or done >= limit:
            break
        state = _restarted(solver, problem, state, restarts, (x0, x, gap), ~going)
        left = (solver.horizon or 0) - state.iteration
        stride = min(left if left > 0 else schedule.next_interval(done, float(far[going].max())), limit - done)
    ends = torch.where(stuck, End.SLOW, End.OUT_OF_ITERATIONS)
    ends = torch.where(near, End.REACHED, torch.where(stalled, End.ROUNDED, ends))
    return best.solved(problem, done, ends)


def _restarted(
    solver: Solver[Any],
    problem: Any,
    state: State,
    restarts: Restarts,
    points: tuple[Tensor, Tensor, Tensor],
    ended: Tensor,
) -> State:
    """The state to go on from: from means where that pays, and from x0 where learned steps led astray.

    Learned steps are longer than those that are known to converge. `points` are x0, x and the gap of x.
    """
    x0, x, gap = points
    back = torch.zeros_like(ended)
    if state.iteration == solver.horizon and solver.ends_proven:
        back = ~ended & _is_astray(problem, state, x0, x, gap)
    which = back | (restarts.update(state.iteration, gap) & ~ended)
    restarted: State | None = None
    if bool(which.any()):
        restarted = solver.restart_from(problem, state, x0, which, back)
    return state if restarted is None else restarted


def _is_astray(problem: Any, state: State, x0: Tensor, x: Tensor, gap: Tensor) -> Tensor:
    """Whose dual points prove hardly more of x than 0 does, or whose iterates are further away than the start."""
    dual = state.dual_point
    assert dual is not None
    pairs = (x, torch.zeros_like(dual)), (x0, torch.zeros_like(dual)), (state.iterate, dual)
    by_zero, of_start, of_iterate = (problem.certified_gap(*pair)[1] for pair in pairs)
    return ~((gap < PROGRESS_SHARE * by_zero) & (of_iterate < of_start))


def _evaluate(problem: Any, state: State, tolerance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points, dual points, values and gaps of a state; constant points where these prove more."""
    x, dual = state.x, state.dual_point
    assert dual is not None
    value, gap = problem.certified_gap(x, dual)
    if not bool(torch.isfinite(value).all()) and isinstance(problem, Composite):
        x = take(torch.isfinite(value), x, project_onto_domains(problem, x))
        value, gap = problem.certified_gap(x, dual)
    return levelled(problem, x, dual, value, gap, tolerance)


def levelled(
    problem: Any, x: Tensor, dual: Tensor, value: Tensor, gap: Tensor, tolerance: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same points and gaps, at points without variation where the dual points say that these are better.

    Where such points are minimisers whatever the weight is, 0 is the dual point that proves it.
    """
    if not offers(problem, ("levelled",)):
        return x, dual, value, gap
    level, within = problem.levelled(x, dual)
    within = within & (relative_gap(value, gap) > tolerance)
    if not bool(within.any()):
        return x, dual, value, gap
    for other in (dual, torch.zeros_like(dual)):
        level_value, level_gap = problem.certified_gap(level, other)
        taken = within & (level_gap < gap)
        x, dual = take(taken, level, x), take(taken, other, dual)
        value, gap = take(taken, level_value, value), take(taken, level_gap, gap)
    return x, dual, value, gap


class _Best:
    """The points of which most is proven, instance by instance."""

    def __init__(self, state: State) -> None:
        assert state.dual_point is not None
        self.x, self.dual = state.x, state.dual_point
        self.value = torch.full((len(state.x),), torch.inf, dtype=torch.float64, device=state.x.device)
        self.gap = self.value

    def see(self, x: Tensor, dual: Tensor, value: Tensor, gap: Tensor) -> None:
        """Compare with other points: they are better where more is proven of them, or nothing is of either."""
        better = (gap < self.gap) | (self.gap.isinf() & torch.isfinite(x.flatten(1)).all(dim=1))
        self.x, self.dual = take(better, x, self.x), take(better, dual, self.dual)
        self.value, self.gap = take(better, value, self.value), take(better, gap, self.gap)

    def solved(self, problem: Any, iterations: int, ends: Tensor) -> tuple[Solved, Tensor | None]:
        """Return the answer, and how far points violate the constraints: values are then those without them."""
        value, broken, violation = self.value, ~torch.isfinite(self.value), None
        if bool(broken.any()):
            relaxed, violation = problem.relaxed_value(self.x)
            value, ends = torch.where(broken, relaxed.double(), value), torch.where(broken, End.NOT_FEASIBLE, ends)
            violation = torch.where(broken, violation, 0)
        rows = zip(ends.tolist(), value.tolist(), self.gap.tolist(), strict=True)
        return Solved(self.x, self.dual, [Outcome(iterations, *row) for row in rows]), violation


def watch(solver: Solver[Any], problem: Problem, x0: Tensor, tolerance: float, iterations: int) -> Result:
    """Run on a problem without a dual: certificates of strong convexity or of a bounded domain, ever more seldom."""
    watched = _Watched(solver, problem, x0, tolerance)
    result = run(solver, problem, x0, iterations, callbacks=[watched])
    return replace(result, status=watched.judge(result))


class _Watched(Watch):
    """Ends a run where all instances are within the tolerance, or get no further."""

    def __init__(self, solver: Solver[Any], problem: Problem, x0: Tensor, tolerance: float) -> None:
        super().__init__(solver, problem, x0)
        self.tolerance, self.next, self.progress = tolerance, float(GapSchedule.MIN_INTERVAL), ProgressMonitor()

    def __call__(self, state: State, values: Tensor) -> bool:
        super().__call__(state, values)
        k = len(self.rows)
        if k < self.next:
            return False
        self.next = k + max(GapSchedule.MIN_INTERVAL, GapSchedule.MIN_GROWTH * k)
        near, ended = self._look(k, state, self.certificate())
        return bool((near | ended).all())

    def _look(self, k: int, state: State, certificate: Certificate) -> tuple[Tensor, Tensor]:
        """Which instances are within the tolerance, and which get no further: their bounds fall no more."""
        near = relative_gap(certificate.value, certificate.bound) <= self.tolerance
        still = (self.progress.update(k, certificate.bound) & certificate.proven) | self._is_flat(k)
        return near, still if state.settled is None else still | state.settled

    def _is_flat(self, k: int) -> Tensor:
        """Whose lowest value has not fallen by more than rounding since iteration k / 4."""
        values = torch.stack(self.values)
        before, lowest = (values[: n + 1].amin(dim=0) for n in (k // 4, k))
        fallen = before - lowest > STILL_ROUNDINGS * torch.finfo(values.dtype).eps * lowest.abs()
        return ~fallen if k >= MIN_STILL_ITERATIONS else torch.zeros_like(fallen)

    def judge(self, result: Result) -> tuple[Status, ...]:
        """What became of each instance."""
        certificate, state = result.certificate, self.state
        assert certificate is not None and state is not None
        near, ended = self._look(len(self.rows), state, certificate)
        rows = zip(result.status, near.tolist(), ended.tolist(), certificate.proven.tolist(), strict=True)
        return tuple(_word(*row) for row in rows)


def _word(status: Status, is_near: bool, has_ended: bool, is_proven: bool) -> Status:
    if status.failed:
        return status
    if is_near:
        return Status.TOLERANCE_REACHED
    if has_ended:
        return Status.STALLED if is_proven else Status.NOT_PROVEN
    return Status.FINISHED
