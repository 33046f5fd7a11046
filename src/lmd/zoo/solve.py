"""One way to solve: `lmd.solve` chooses the solver, runs without recording history, and stops where it is proven."""

from __future__ import annotations

import ctypes
import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmd import tv
from lmd.core.checks import check_count, check_positive
from lmd.errors import CapabilityError, InputError
from lmd.guarantees.theorems import gap_certificate
from lmd.problems import derivatives
from lmd.problems.base import Problem, offers
from lmd.problems.duality import relative_gap
from lmd.solvers.base import Solver, check_solver, check_start, in_full_precision
from lmd.solvers.result import Certificate, Result, Status
from lmd.solvers.stopping import MIN_STALL_ITERATIONS, is_limited_by_rounding
from lmd.tv.solved import End, Outcome, Solved
from lmd.zoo import stepwise
from lmd.zoo.defaults import solver_for

MAX_ITERATIONS = 100_000

MAX_REFINED_ITERATIONS = 5000  # iterations in float64 for instances that the rounding of x to float32 can hold up
STATUS: dict[int, Status] = {
    End.OUT_OF_ITERATIONS: Status.FINISHED,
    End.REACHED: Status.TOLERANCE_REACHED,
    End.STUCK: Status.STALLED,
    End.ROUNDED: Status.STALLED,
    End.NOT_FEASIBLE: Status.NOT_FEASIBLE,
    End.SLOW: Status.FINISHED,
}


def solve(
    problem: Problem,
    tolerance: float = 1e-3,
    *,
    solver: Solver[Any] | None = None,
    x0: Tensor | None = None,
    warm: Result | None = None,
    iterations: int = MAX_ITERATIONS,
    differentiable: bool = False,
) -> Result:
    """Solve a batch of problems, each to a proven relative gap of `tolerance`.

    The history of the result has only the start and the end; use `lmd.run` to record every iteration. An instance that
    is limited by its precision or runs out of iterations says so in its status, and the certificate of the result says
    what is proven in any case.

    Args:
        problem: A batch of problems.
        tolerance: The relative gap to be proven.
        solver: Any solver; None picks one for the problem and the tolerance.
        x0: `(B, ...)`; None is the problem's own start. Solves in one compiled call do not use it.
        warm: A result for a problem of the same shape, whose points and dual points are the start instead of x0.
            Compiled inpainting does not use it.
        iterations: The maximum number of iterations.
        differentiable: For total variation models: give the answer derivatives with respect to those data and weights
            of the problem that require them, by the implicit function theorem. See `lmd.problems.derivatives`.

    Returns:
        The answer, with its status and certificate.

    >>> import lmd, torch
    >>> noisy = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    >>> result = lmd.solve(lmd.problems.TVDenoising(noisy, weight=0.3), tolerance=1e-4)
    >>> result.status[0].name, bool(result.certificate.bound <= 1e-4 * result.values)
    ('TOLERANCE_REACHED', True)
    >>> lmd.solve(lmd.problems.TVDenoising(noisy, weight=0.29), tolerance=1e-4, warm=result).status[0].name
    'TOLERANCE_REACHED'
    >>> weight = torch.tensor(0.3, requires_grad=True)
    >>> result = lmd.solve(lmd.problems.TVDenoising(noisy, weight), tolerance=1e-6, differentiable=True)
    >>> result.x.square().mean().backward()
    >>> bool(weight.grad < 0)
    True
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        options: dict[str, Any] = {"x0": x0, "warm": warm, "iterations": iterations, "differentiable": differentiable}
        return in_full_precision(solve)(problem, tolerance, solver=solver, **options)
    check_positive("tolerance", tolerance)
    check_count("iterations", iterations)
    if not isinstance(problem, Problem):
        raise InputError("problem", type(problem).__name__, "an lmd.problems.Problem; for a function there is lmd.run")
    if differentiable:
        derivatives.check(problem)
    begun, start = time.perf_counter(), _start(problem, x0, warm)
    with torch.no_grad():
        result = _solve(problem, tolerance, solver, start, None if warm is None else warm.dual, iterations, begun)
    return _recorded(problem, result) if differentiable else result


def _solve(
    problem: Any,
    tolerance: float,
    solver: Solver[Any] | None,
    x0: Tensor,
    warm: Tensor | None,
    limit: int,
    begun: float,
) -> Result:
    """The answer of the compiled engine where it has a plan, or else of a solver; None is chosen."""
    plan = tv.match(problem, tolerance) if solver is None else None
    violation, is_continued = None, False
    if plan is not None and not isinstance(plan, Solver):
        solved = plan.solve(tolerance, limit, warm)
        if all([outcome.end == End.REACHED for outcome in solved.outcomes]):
            return _result(solved, plan.method, problem, x0, begun, None)
    refines = solver is None and x0.dtype == torch.float32 and offers(problem, ("double", "select"))
    if plan is not None and not isinstance(plan, Solver):
        solver, is_continued = plan.method, plan.is_continued
        if not is_continued:
            solved = _levelled_where_open(solved, problem, tolerance)
            solved = solved if refines else _continued(solved, solver, problem, x0, tolerance, limit)
    else:
        if solver is None:
            solver = solver_for(problem) if plan is None else plan
        check_solver(solver, problem)
        if not offers(problem, ("certified_gap",)):
            return stepwise.watch(solver, problem, x0, tolerance, limit)
        dual = stepwise.warm_dual(solver, problem, x0, warm)
        solved, violation = stepwise.iterate(solver, problem, x0, tolerance, limit, dual, refines=refines)
    if refines:
        solved = _refined(solved, problem, x0, tolerance, limit, warm=is_continued)
    return _result(solved, solver, problem, x0, begun, violation)


def _recorded(problem: Problem, result: Result) -> Result:
    """The result with derivatives of x; its certificate is about the numbers alone."""
    prove = result.certifier
    if prove is None or result.dual is None:
        raise CapabilityError("problem", f"{type(problem).__name__}, which has no dual points", "one that has them")
    return replace(
        result, x=derivatives.differentiate(problem, result.x, result.dual), certifier=lambda _: prove(result)
    )


def _start(problem: Any, x0: Tensor | None, warm: Result | None) -> Tensor:
    if x0 is not None and warm is not None:
        raise InputError("x0", "points beside warm", "one of them")
    if not isinstance(warm, Result | None):
        raise InputError("warm", type(warm).__name__, "a result of lmd.solve")
    given = x0 if warm is None else warm.x
    if given is not None:
        with torch.no_grad():
            return check_start(problem, given).detach()
    points = getattr(problem, "start", None)
    if points is None:
        raise CapabilityError("problem", f"{type(problem).__name__}, which has no start", "one that has, or x0")
    start: Tensor = points()  # which was looked at when the problem was made
    if torch._C._functorch.is_gradtrackingtensor(start):
        raise InputError("problem", "tensors inside torch.func.grad", "torch.autograd.grad, and differentiable=True")
    return start.detach() if start.requires_grad else start


def _certify(solved: Solved, _: Result) -> Certificate:
    x, outcomes = solved.x, solved.outcomes
    kind = ctypes.c_double if x.dtype == torch.float64 else ctypes.c_float
    reported = [max(kind(outcome.value).value, outcome.value) for outcome in outcomes]  # at least F(x)
    return gap_certificate([outcome.value for outcome in outcomes], [outcome.gap for outcome in outcomes], reported, x)


def _result(
    solved: Solved, solver: Solver[Any], problem: Any, start: Tensor, begun: float, violation: Tensor | None
) -> Result:
    """The result of a solve. Instances that ended without proof are stalled where that is rounding."""
    seconds = time.perf_counter() - begun
    outcomes = solved.outcomes
    status, held = [], None
    for n, outcome in enumerate(outcomes):
        word = STATUS[outcome.end]
        if outcome.end in (End.OUT_OF_ITERATIONS, End.STUCK, End.SLOW):
            if held is None:
                held = is_limited_by_rounding(problem, solved.x, solved.gaps, solved.dual).tolist()
            if outcome.end != End.OUT_OF_ITERATIONS or outcome.iterations >= MIN_STALL_ITERATIONS:
                word = Status.STALLED if held[n] else Status.FINISHED
        status.append(word if math.isfinite(outcome.value) else Status.NOT_FINITE)
    x, (counts, _, values, _) = solved.x, zip(*outcomes, strict=True)
    return Result(
        x=x,
        status=tuple(status),
        seconds=seconds,
        values=torch.tensor(values, dtype=x.dtype, device=x.device),
        iterations=torch.tensor(counts, dtype=torch.int64, device=x.device),
        solver=solver,
        problem=problem,
        start=start,
        dual=solved.dual,
        certifier=partial(_certify, solved),
        violation=violation,
    )


def _levelled_where_open(solved: Solved, problem: Any, tolerance: float) -> Solved:
    """The same at points without variation, where a compiled solve did not prove enough and these do."""
    part = ~solved.ended(End.REACHED)
    open_problem, x, dual = problem.select(part), solved.x[part], solved.dual[part]
    value, gap = open_problem.certified_gap(x, dual)
    x, dual, value, gap = stepwise.levelled(open_problem, x, dual, value, gap, tolerance)
    near, old = relative_gap(value, gap) <= tolerance, [each for each in solved.outcomes if each.end != End.REACHED]
    rows = zip(old, near.tolist(), value.tolist(), gap.tolist(), strict=True)
    new = [Outcome(0, End.REACHED if close else each.end, v, g) for each, close, v, g in rows]
    return solved.updated(part, x, dual, new)


def _continued(solved: Solved, solver: Solver[Any], problem: Any, x0: Tensor, tolerance: float, limit: int) -> Solved:
    """The same with more iterations, step by step, where a compiled solve ended for no rounding that explains it."""
    part = solved.ended(End.STUCK)
    if not bool(part.any()):
        return solved
    part = part & ~is_limited_by_rounding(problem, solved.x, solved.gaps, solved.dual)
    if not bool(part.any()):
        return solved
    more, _ = stepwise.iterate(solver, problem.select(part), x0[part], tolerance, limit, solved.dual[part])
    old = solved.gaps[part].tolist()
    new = [
        each if each.gap < gap else each._replace(end=End.STUCK) for each, gap in zip(more.outcomes, old, strict=True)
    ]
    return solved.updated(part, more.x, more.dual, new)


def _refined(solved: Solved, problem: Any, x0: Tensor, tolerance: float, limit: int, *, warm: bool) -> Solved:
    """The same with what ended without proof in float32 solved in float64 and rounded, where that proves more.

    What can be held up by the rounding of x gets fewer iterations: hardly more will be proven of it. `warm` begins at
    the dual points of the solve in float32, whose iterations are then part of the limit.
    """
    stuck, late = solved.ended(End.STUCK, End.ROUNDED, End.SLOW), solved.ended(End.OUT_OF_ITERATIONS)
    if not bool((stuck | late).any()):
        return solved
    held = is_limited_by_rounding(problem, solved.x, solved.gaps, solved.dual)
    for part, most in ((stuck & ~held, limit), ((stuck | late) & held, min(limit, MAX_REFINED_ITERATIONS))):
        if warm:
            most -= max(
                (each.iterations for each, own in zip(solved.outcomes, part.tolist(), strict=True) if own), default=0
            )
        if bool(part.any()) and most > 0:
            exact = problem.select(part).double()
            start = exact.start() if offers(exact, ("start",)) else x0[part].double()
            dual = solved.dual[part].double() if warm else None
            better = _solve(exact, tolerance / 2, None, start, dual, most, time.perf_counter())
            solved = solved if better.dual is None else _rounded(solved, problem, part, better, tolerance)
    return solved


def _rounded(solved: Solved, problem: Any, part: Tensor, better: Result, tolerance: float) -> Solved:
    """The same with answers in float64 to a part of it, rounded, where more is proven of these.

    Where they are not within the tolerance though they were before, it is the rounding of x that forbids it.
    """
    assert better.dual is not None
    x, dual = better.x.to(solved.x), better.dual.to(solved.dual)
    values, gaps = problem.select(part).certified_gap(x, dual)
    near, new = (relative_gap(values, gaps) <= tolerance).tolist(), []
    for n, place in enumerate(part.nonzero().flatten().tolist()):
        proven = better.status[n] in (Status.TOLERANCE_REACHED, Status.STALLED)
        end = End.REACHED if near[n] else End.ROUNDED if proven else solved.outcomes[place].end
        new.append(Outcome(int(better.iterations[n]), end, float(values[n]), float(gaps[n])))
    return solved.updated(part, x, dual, new)
