"""Solve step by step without recording a history, with ever rarer gap evaluations, and keep the best points."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmd.errors import CapabilityError
from lmd.guarantees.certify import Record, certify
from lmd.problems.base import Problem, offers
from lmd.problems.composite import Composite
from lmd.problems.duality import project_onto_domains, relative_gap
from lmd.solvers.base import Solver, State, check_solver
from lmd.solvers.result import Status, Tracker
from lmd.solvers.stopping import (
    PROGRESS_SHARE,
    GapSchedule,
    ProgressMonitor,
    Proof,
    StallDetector,
    StoppingRule,
)
from lmd.terms.base import take
from lmd.tv.plans import End, Outcome, Solved

MIN_GAP = 1e-14  # relative rounding error of a sum in float64
MAX_WARM_GAP = 10.0  # warm starts with a larger relative gap are worse than learned iterations from a cold start

# An instance restarts from its average when its gap falls below this share of the gap at its last restart; at first, of
# the first gap evaluated from iteration FIRST_RESTART on (Applegate et al. 2023, doi 10.1007/s10107-022-01901-9)
RESTART_SHARE, FIRST_RESTART = 0.1, 100

STILL_ROUNDINGS, MIN_STILL_ITERATIONS = 8, 40
"""Values that fall by at most `STILL_ROUNDINGS` units of rounding count as flat, from `MIN_STILL_ITERATIONS` on."""


def _begin(solver: Solver[Any], problem: Any, x0: Tensor, dual: Tensor | None) -> Any:
    """Return the state at x0 and the dual point, or without it if learned iterations from a cold start are better."""
    check_solver(solver, problem)
    feasible = None if dual is None else problem.g.project(dual)
    if feasible is None or (solver.horizon and not bool((problem.relative_gap(x0, feasible) <= MAX_WARM_GAP).all())):
        state = solver.init(problem, x0)
    else:
        state = solver.resume(problem, x0, feasible)
    if state.dual_point is None:
        given = f"{type(solver).__name__}, which keeps no dual point"
        raise CapabilityError("solver", given, "one that does, such as FGP or PDHG")
    return state


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

    A gap below `MIN_GAP`^2 times the value at the start counts as 0: if the minimum is 0, rounding of the data changes
    the minimum by as much.

    Args:
        solver: A solver that keeps dual points.
        problem: A composite problem.
        x0: The start `(B, ...)`.
        tolerance: The relative gap to be proven.
        limit: The maximum number of iterations.
        dual: A dual point to start from, unless its gap is so large that a cold start is better; None is a cold start.
        refines: Whether stuck instances will be solved again in float64, so that they may end early here.

    Returns:
        The points with the smallest proven gaps, and their violations of the constraints; None without violations.
    """
    state = _begin(solver, problem, x0, dual)
    unknown = torch.full((len(x0),), torch.inf, dtype=torch.float64, device=x0.device)
    best = Proof(state.x, state.dual_point, unknown, unknown)
    done, stall, schedule, restarted_at = 0, StallDetector(), GapSchedule(), None
    nothing = MIN_GAP**2 * problem.value(x0).abs().double().nan_to_num(posinf=0)
    stride = min(limit, max(1, (solver.horizon or GapSchedule.MIN_INTERVAL) - state.iteration))
    while True:
        state = solver.advance(problem, state, stride)
        done += stride
        proof = _evaluate(problem, state, tolerance)
        better = (proof.gap < best.gap) | (best.gap.isinf() & torch.isfinite(proof.x.flatten(1)).all(dim=1))
        best = best.updated(better, proof)
        far = relative_gap(best.value, best.gap) / tolerance
        near = far <= 1
        stalled = stall.update(done, proof.gap, problem, state.x, state.dual_point) | (best.gap <= nothing)
        stalled = (stalled if state.settled is None else stalled | state.settled) & ~near
        stuck = stall.stuck & refines & ~near & ~stalled
        going = ~(near | stalled | stuck)
        if not bool(going.any()) or done >= limit:
            break
        state, restarted_at = _restart(solver, problem, state, x0, going, proof, restarted_at)
        left = (solver.horizon or 0) - state.iteration
        stride = min(left if left > 0 else schedule.next_interval(done, float(far[going].max())), limit - done)
    ends = torch.where(stuck, End.SLOW, End.OUT_OF_ITERATIONS)
    ends = torch.where(near, End.REACHED, torch.where(stalled, End.ROUNDED, ends))
    return _answer(problem, best, done, ends)


def _restart(
    solver: Solver[Any], problem: Any, state: Any, x0: Tensor, going: Tensor, proof: Proof, last: Tensor | None
) -> tuple[Any, Tensor | None]:
    """Restart instances whose gap fell enough below their `last` gap; return the state and the new `last` gaps."""
    back = torch.zeros_like(going)  # instances that learned steps led away from the optimum
    if state.iteration == solver.horizon and solver.ends_proven:
        back = going & _is_astray(problem, state, x0, proof)
    which = back
    if last is not None:
        due = proof.gap < RESTART_SHARE * last
        which, last = back | (due & going), torch.where(due, proof.gap, last)
    elif state.iteration >= FIRST_RESTART:
        last = proof.gap
    restarted = solver.restart_from(problem, state, x0, which, back) if bool(which.any()) else None
    return state if restarted is None else restarted, last


def _answer(problem: Any, best: Proof, iterations: int, ends: Tensor) -> tuple[Solved, Tensor | None]:
    """Return the answer and the violations of constraints; points that violate them get the `relaxed_value`."""
    value, broken, violation = best.value, ~torch.isfinite(best.value), None
    if bool(broken.any()):
        relaxed, violation = problem.relaxed_value(best.x)
        value, ends = torch.where(broken, relaxed.double(), value), torch.where(broken, End.NOT_FEASIBLE, ends)
        violation = torch.where(broken, violation, 0)
    rows = zip(ends.tolist(), value.tolist(), best.gap.tolist(), strict=True)
    return Solved(best.x, best.dual, [Outcome(iterations, *row) for row in rows]), violation


def _is_astray(problem: Any, state: State, x0: Tensor, proof: Proof) -> Tensor:
    """Return which instances have a gap near the gap of the dual point 0, or an iterate with a larger gap than x0."""
    dual = state.dual_point
    assert dual is not None
    none = torch.zeros_like(dual)
    pairs = (proof.x, none), (x0, none), (state.iterate, dual)
    by_zero, of_start, of_iterate = (problem.certified_gap(*pair)[1] for pair in pairs)
    return ~((proof.gap < PROGRESS_SHARE * by_zero) & (of_iterate < of_start))


def _evaluate(problem: Any, state: State, tolerance: float) -> Proof:
    """Return the proof for the points of a state, or for `levelled` points if these prove more."""
    assert state.dual_point is not None
    proof = Proof.of(problem, state.x, state.dual_point)
    finite = torch.isfinite(proof.value)
    if not bool(finite.all()) and isinstance(problem, Composite):
        proof = Proof.of(problem, take(finite, proof.x, project_onto_domains(problem, proof.x)), proof.dual)
    return levelled(problem, proof, tolerance)


def levelled(problem: Any, proof: Proof, tolerance: float) -> Proof:
    """Return the proof with the points of `problem.levelled`, which have no variation, if their gap is smaller.

    If these points are minimisers for any weight, the dual point 0 proves it.
    """
    if not offers(problem, ("levelled",)):
        return proof
    level, within = problem.levelled(proof.x, proof.dual)
    within = within & (relative_gap(proof.value, proof.gap) > tolerance)
    if bool(within.any()):
        for dual in (proof.dual, torch.zeros_like(proof.dual)):
            other = Proof.of(problem, level, dual)
            proof = proof.updated(within & (other.gap < proof.gap), other)
    return proof


class Certified(StoppingRule):
    """Stop runs on problems without a dual by certificates of strong convexity or of a bounded domain.

    An instance stops within the tolerance, or when its bound or value stops falling. Certificates become ever rarer.
    """

    def __init__(self, solver: Solver[Any], tolerance: float) -> None:
        self.solver, self.tolerance = solver, tolerance
        self.next, self.progress = GapSchedule.MIN_INTERVAL, ProgressMonitor()

    def begin(self, problem: Problem, state: State, tracker: Tracker, name: str) -> None:
        self.start = tracker.x

    def check(self, problem: Problem, state: State, tracker: Tracker, last: bool) -> None:
        k = state.iteration
        if k < self.next and not last:
            return
        history = tracker.history()
        self.next = k + max(GapSchedule.MIN_INTERVAL, int(GapSchedule.MIN_GROWTH * k))
        diagnostics = {name: numbers.double() for name, numbers in history.diagnostics.items()}
        points = (self.start, tracker.x, tracker.values.double(), history.values.double())
        certificate = certify(Record(self.solver, problem, *points, diagnostics, state.dual_point))
        proven, bound = certificate.proven, certificate.bound
        tracker.stop(relative_gap(certificate.value, bound) <= self.tolerance, Status.TOLERANCE_REACHED)
        ended = (self.progress.update(k, bound) & proven) | _is_flat(history.values)
        ended = ended if state.settled is None else ended | state.settled
        tracker.stop(ended & proven, Status.STALLED)
        tracker.stop(ended, Status.NOT_PROVEN)


def _is_flat(values: Tensor) -> Tensor:
    """Return which instances' lowest value in `(K+1, B)` has not fallen by more than rounding since iteration K / 4."""
    k = len(values) - 1
    before, lowest = values[: k // 4 + 1].amin(dim=0), values.amin(dim=0)
    fallen = before - lowest > STILL_ROUNDINGS * torch.finfo(values.dtype).eps * lowest.abs()
    return ~fallen & (k >= MIN_STILL_ITERATIONS)
