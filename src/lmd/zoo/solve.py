"""`lmd.solve`, its choice of a solver, and the names of solvers: trained ones of the zoo and classical ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmd import tv, zoo
from lmd.core.checks import check_count, check_positive
from lmd.errors import CapabilityError, InputError
from lmd.guarantees.certify import run
from lmd.problems import derivatives
from lmd.problems.base import Problem, offers, split_of
from lmd.problems.duality import relative_gap
from lmd.solvers import FGP, LBFGS, PDHG, ProximalGradient, RelaxedPDHG
from lmd.solvers.base import Solver, check_start, in_full_precision
from lmd.solvers.classical.admm import CirculantADMM
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.solvers.classical.qp_interior_point import MAX_SIZE, QPInteriorPoint
from lmd.solvers.result import Certificate, Result, Status, gap_certificate
from lmd.solvers.stopping import MIN_STALL_ITERATIONS, Proof, is_limited_by_rounding
from lmd.solvers.wrappers import Averaged
from lmd.terms.wrappers import Boxed
from lmd.tv.plans import End, Outcome, Solved
from lmd.zoo import stepwise

MAX_ITERATIONS = 100_000
MAX_REFINED_ITERATIONS = 5000  # limit in float64 for instances whose gaps the rounding of x to float32 may limit
MAX_WARM_GAP = 1e-2  # a solve in float64 starts from float32 dual points below this relative gap, others from 0

CLASSICAL: Mapping[str, Callable[[], Solver[Any]]] = {
    "fgp": lambda: FGP(restart=True),
    "pdhg": lambda: PDHG(settle=8),
}
"""Methods without training, by name."""

MAX_COMPOSITE_SIZE = 512
"""Composites without a matrix P are solved as quadratic programs up to this number of entries of x. For larger ones
factorising takes far longer than first-order methods, except on the hardest problems."""

# All other ends have no proof: their status is STALLED if rounding explains it, otherwise FINISHED
STATUS: dict[int, Status] = {
    End.REACHED: Status.TOLERANCE_REACHED,
    End.ROUNDED: Status.STALLED,
    End.NOT_FEASIBLE: Status.NOT_FEASIBLE,
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

    The history of the result has only the start and the end; use `lmd.run` to record every iteration. The status of an
    instance tells if rounding or the number of iterations stopped it before the tolerance. The certificate of the
    result holds in any case.

    Args:
        problem: A batch of problems.
        tolerance: The relative gap to be proven.
        solver: Any solver; None picks one for the problem and the tolerance.
        x0: Starting points `(B, ...)`; None is the problem's own start. Solves in one compiled call do not use x0.
        warm: A result for a problem of the same shape; its points and dual points replace x0 as the start. Compiled
            inpainting does not use it.
        iterations: The maximum number of iterations.
        differentiable: For total variation models: whether x has derivatives with respect to the data and weights that
            require gradients, by the implicit function theorem. See `lmd.problems.derivatives`.

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
    return _with_derivatives(problem, result) if differentiable else result


def _solve(
    problem: Any,
    tolerance: float,
    solver: Solver[Any] | None,
    x0: Tensor,
    warm: Tensor | None,
    limit: int,
    begun: float,
) -> Result:
    """Return the answer of `solver`; if it is None, of the compiled engine or, without a plan, of `solver_for`."""
    plan = tv.match(problem, tolerance) if solver is None else None
    compiled = None if isinstance(plan, Solver) else plan
    violation: Tensor | None = None
    if compiled is not None:
        solved = compiled.solve(tolerance, limit, warm)
        if all([outcome.end == End.REACHED for outcome in solved.outcomes]):
            return _result(solved, compiled.method, problem, x0, begun, None)
    refines = solver is None and x0.dtype == torch.float32 and offers(problem, ("double", "select"))
    if compiled is None:
        if solver is None:
            solver = plan if isinstance(plan, Solver) else solver_for(problem)
        if not offers(problem, ("certified_gap",)):
            return run(solver, problem, x0, limit, stop=[stepwise.Certified(solver, tolerance)])
        solved, violation = stepwise.iterate(solver, problem, x0, tolerance, limit, warm, refines=refines)
    else:
        solver = compiled.method
        if not compiled.is_continued:
            ends = [(0, each.end) for each in solved.outcomes if each.end != End.REACHED]
            part = ~solved.ended(End.REACHED)  # `levelled` points may prove enough
            solved = _updated(solved, problem, part, solved.x[part], solved.dual[part], ends, tolerance)
            solved = solved if refines else _continued(solved, solver, problem, x0, tolerance, limit)
    if refines:
        is_continued = compiled is not None and compiled.is_continued
        solved = _refined(solved, problem, x0, tolerance, limit, warm=is_continued)
    return _result(solved, solver, problem, x0, begun, violation)


def _with_derivatives(problem: Problem, result: Result) -> Result:
    """Return the result with derivatives of x; its certificate has no derivatives."""
    prove = result.certifier
    if prove is None or result.dual is None:
        raise CapabilityError("problem", f"{type(problem).__name__}, which has no dual points", "one that has them")
    x = derivatives.differentiate(problem, result.x, result.dual)
    return replace(result, x=x, certifier=lambda _: prove(result))


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
    start: Tensor = points()  # checked when the problem was constructed
    if torch._C._functorch.is_gradtrackingtensor(start):
        raise InputError("problem", "tensors inside torch.func.grad", "torch.autograd.grad, and differentiable=True")
    return start.detach() if start.requires_grad else start


def _certify(values: Sequence[float], gaps: Sequence[float], result: Result) -> Certificate:
    return gap_certificate(values, gaps, result.values)


def _result(
    solved: Solved, solver: Solver[Any], problem: Any, start: Tensor, begun: float, violation: Tensor | None
) -> Result:
    """Return the result of a solve; instances without proof are STALLED if rounding explains it, else FINISHED."""
    status, held = [], list[bool]()
    for n, outcome in enumerate(solved.outcomes):
        word = STATUS.get(outcome.end)
        if word is None:
            held = held or is_limited_by_rounding(problem, solved.x, solved.gaps, solved.dual).tolist()
            ended_early = outcome.end == End.OUT_OF_ITERATIONS and outcome.iterations < MIN_STALL_ITERATIONS
            word = Status.STALLED if held[n] and not ended_early else Status.FINISHED
        status.append(word if math.isfinite(outcome.value) else Status.NOT_FINITE)
    x, (counts, _, values, gaps) = solved.x, zip(*solved.outcomes, strict=True)
    return Result(
        x=x,
        status=tuple(status),
        seconds=time.perf_counter() - begun,
        values=torch.tensor(values, dtype=x.dtype, device=x.device),
        iterations=torch.tensor(counts, dtype=torch.int64, device=x.device),
        solver=solver,
        problem=problem,
        start=start,
        dual=solved.dual,
        certifier=partial(_certify, values, gaps),
        violation=violation,
    )


def _continued(solved: Solved, solver: Solver[Any], problem: Any, x0: Tensor, tolerance: float, limit: int) -> Solved:
    """Continue step by step if a compiled solve got stuck for another reason than rounding, and return the answer."""
    part = solved.ended(End.STUCK)
    if bool(part.any()):
        part = part & ~is_limited_by_rounding(problem, solved.x, solved.gaps, solved.dual)
    if not bool(part.any()):
        return solved
    more, _ = stepwise.iterate(solver, problem.select(part), x0[part], tolerance, limit, solved.dual[part])
    ends = [(each.iterations, each.end) for each in more.outcomes]
    return _updated(solved, problem, part, more.x, more.dual, ends, tolerance)


def _refined(solved: Solved, problem: Any, x0: Tensor, tolerance: float, limit: int, *, warm: bool) -> Solved:
    """Solve instances without proof in float32 again in float64, and keep the rounded answers that prove more.

    Instances whose gaps rounding may limit get fewer iterations, because hardly more can be proven for them. With
    `warm`, a solve starts at float32 dual points that are near the optimum, and its float32 iterations count towards
    the limit. If an answer is within the tolerance in float64 but not after rounding, its end is `ROUNDED`: the
    rounding of x prevents the proof.
    """
    stuck, late = solved.ended(End.STUCK, End.ROUNDED, End.SLOW), solved.ended(End.OUT_OF_ITERATIONS)
    if not bool((stuck | late).any()):
        return solved
    held = is_limited_by_rounding(problem, solved.x, solved.gaps, solved.dual)
    near = held.new_tensor([warm and each.gap <= MAX_WARM_GAP * each.value for each in solved.outcomes])
    groups = ((stuck & ~held, limit), ((stuck | late) & held, min(limit, MAX_REFINED_ITERATIONS)))
    for part, most, is_warm in [(part & (near == side), most, side) for part, most in groups for side in (True, False)]:
        old = [solved.outcomes[place] for place in part.nonzero().flatten().tolist()]
        most -= max([each.iterations for each in old], default=0) if is_warm else 0
        if old and most > 0:
            exact = problem.select(part).double()
            start = exact.start() if offers(exact, ("start",)) else x0[part].double()
            dual = solved.dual[part].double() if is_warm else None
            better = _solve(exact, tolerance / 2, None, start, dual, most, time.perf_counter())
            if better.dual is not None:
                proven = [each in (Status.TOLERANCE_REACHED, Status.STALLED) for each in better.status]
                ends = [End.ROUNDED if known else each.end for known, each in zip(proven, old, strict=True)]
                rows = zip(better.iterations.tolist(), ends, strict=True)
                solved = _updated(solved, problem, part, better.x, better.dual, list(rows), tolerance)
    return solved


def _updated(
    solved: Solved,
    problem: Any,
    part: Tensor,
    x: Tensor,
    dual: Tensor,
    ends: Sequence[tuple[int, int]],
    tolerance: float,
) -> Solved:
    """Return `solved` with the points of instances in `part` `(B,)` replaced by rounded new ones that prove more.

    `ends` has the iterations of each new solve, which are added, and its end, used if the tolerance is not met.
    """
    one = problem.select(part)
    proof = stepwise.levelled(one, Proof.of(one, x.to(solved.x), dual.to(solved.dual)), tolerance)
    near = (relative_gap(proof.value, proof.gap) <= tolerance).tolist()
    new_x, new_dual, outcomes = solved.x.clone(), solved.dual.clone(), list(solved.outcomes)
    rows = zip(part.nonzero().flatten().tolist(), ends, near, proof.value.tolist(), proof.gap.tolist(), strict=True)
    for n, (place, (count, end), close, value, gap) in enumerate(rows):
        old = outcomes[place]
        if gap < old.gap:
            new_x[place], new_dual[place] = proof.x[n], proof.dual[n]
        else:
            value, gap = old.value, old.gap
        outcomes[place] = Outcome(old.iterations + count, End.REACHED if close else end, value, gap)
    return Solved(new_x, new_dual, outcomes)


def find(name: str) -> Solver[Any]:
    """Return a solver by name: `fgp`, `pdhg`, a name in the zoo, or a folder that `lmd train` or `lmd import` wrote."""
    return CLASSICAL[name]() if name in CLASSICAL else zoo.load(name)


def solver_for(problem: Any) -> Solver[Any]:
    """Return the solver that `lmd.solve` chooses if the compiled engine has no plan for a problem."""
    if offers(problem, CirculantADMM().needs):
        return CirculantADMM()
    if _is_small_program(problem):
        return QPInteriorPoint()
    if not offers(problem, PDHG().needs):
        if offers(problem, InteriorPoint().needs):
            return InteriorPoint()
        return LBFGS() if split_of(problem).term is None else ProximalGradient()
    if not offers(problem, ("f.strong_convexity",)) and offers(problem, RelaxedPDHG().needs):
        return Averaged(tv.PrimalDual())
    has_grid = offers(problem, ("differences",))
    if has_grid and offers(problem, FGP().needs) and not isinstance(problem.f, Boxed):
        return FGP(restart=True)  # in a box, PDHG is better: x stays exactly at the bounds
    return PDHG(settle=8.0 if has_grid else 1.0)


def _is_small_program(problem: Any) -> bool:
    """Return whether a problem is a quadratic program without a grid and with few variables."""
    if not offers(problem, QPInteriorPoint().needs) or offers(problem, ("differences",)):
        return False
    limit = MAX_COMPOSITE_SIZE if problem.f.quadratic is None else MAX_SIZE
    return bool(problem.start()[0].numel() <= limit)
