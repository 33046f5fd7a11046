"""Approximate optima of whole batches, by the classical method that gets nearest; `lower_bounds` proves them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmd.errors import InputError
from lmd.guarantees.lower_bounds import bound_by_domain, in_float64
from lmd.problems.base import offers
from lmd.solvers import ADMM, LBFGS, PDHG, Nesterov, Solver
from lmd.solvers.base import State, check_fit
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.terms.base import per_instance

MAX_SYSTEM_SIZE = 1024  # entries of x up to which methods that invert a matrix of them are tried
ACCURACY = 1e-6  # the relative gap at which an optimum is good enough to compare with
MIN_DECREASE = 1e-8  # a method is stopped when values fall by less than this share, over many iterations
MAX_SLOPE = 1e-3  # |<g, x>| / |f|, g the gradient, that stands for `ACCURACY`: gaps are about its square


@torch.no_grad()
def approximate_optima(problem: Any, x0: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return points near the minimisers and, where there are any, dual points; in float64 where possible."""
    if offers(problem, ("minimiser",)):
        return problem.minimiser(), None
    exact = in_float64(problem, x0)
    if exact is not None:
        problem, x0 = exact, x0.double() if exact.domain is None else exact.domain.nearest(x0.double())
    tried = []
    for solver, first, most in _candidates(problem, x0):
        check_fit(solver, problem, x0)
        state = solver.advance(problem, solver.init(problem, x0), first)
        distances = relative_distance(problem, state.x, state.dual_point).nan_to_num(nan=torch.inf)
        tried.append((float(distances.median()), solver, state, most))
    if not tried:
        raise InputError("family", "problems that no classical method here can solve", "smooth or composite problems")
    tried.sort(key=lambda each: each[0])
    _, solver, state, most = tried[0]
    x, dual = _continue(problem, solver, state, most, x0)
    for _, solver, _, most in tried[1:]:  # for instances that the best in the median leaves unsolved
        left = (~(relative_distance(problem, x, dual) <= ACCURACY)).nonzero().flatten()
        if not len(left):
            break
        part = problem.select(left)
        found, other = _continue(part, solver, solver.init(part, x0[left]), most, x0[left])
        before = relative_distance(part, x[left], None if dual is None else dual[left]).nan_to_num(nan=torch.inf)
        closer = relative_distance(part, found, other) < before
        x[left[closer]] = found[closer]
        if dual is not None and other is not None:
            dual[left[closer]] = other[closer]
    return x, dual


def _candidates(problem: Any, x0: Tensor) -> list[tuple[Solver[Any], int, int]]:
    """Return classical methods with the iterations after which they are compared, and the most iterations."""
    if offers(problem, ADMM().needs) and x0[0].numel() <= MAX_SYSTEM_SIZE:
        return [(ADMM(1, penalty=penalty), 100, 3000) for penalty in (0.3, 1.0, 3.0, 10.0)]
    for solver in (InteriorPoint(), PDHG(settle=32.0)):
        if offers(problem, solver.needs):
            return [(solver, 30, 2000)]
    if problem.domain is None:
        return [(LBFGS(), 20, 2000)]
    return [(Nesterov(size / estimate_smoothness(problem, x0)), 200, 3000) for size in (0.1, 1.0)]


def _continue(problem: Any, solver: Solver[Any], state: State, most: int, x0: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return points and dual points after at most so many iterations; solved instances are left out on the way."""
    x, dual, done = state.x.clone(), state.dual_point, state.iteration
    dual = None if dual is None else dual.clone()
    left = torch.arange(len(x), device=x.device)
    while done < most and not is_unbounded(x, x0):
        far = ~(relative_distance(problem, state.x, state.dual_point) <= ACCURACY)
        if not bool(far.any()):
            break
        if float(far.double().mean()) < 0.7:
            index = far.nonzero().flatten()
            problem, left, point = problem.select(index), left[index], state.x[index]
            known = state.dual_point
            state = solver.init(problem, point) if known is None else solver.resume(problem, point, known[index])
        count, before = max(10, done // 4), problem.value(state.x) if dual is None else None
        state, done = solver.advance(problem, state, count), done + count
        x[left], found = state.x, state.dual_point
        if dual is not None and found is not None:
            dual[left] = found
        elif before is not None and not bool((before - problem.value(state.x) > MIN_DECREASE * before.abs()).any()):
            break
    return x, dual


def is_unbounded(x: Tensor, x0: Tensor) -> bool:
    """Return whether points went where no minimum is."""
    return not float(x.abs().max()) <= 1e8 * (1 + float(x0.abs().max()))


def relative_distance(problem: Any, x: Tensor, dual: Tensor | None) -> Tensor:
    """Return what is proven of the relative gap, or an estimate by the gradient `(B,)`; `ACCURACY` counts as solved."""
    if dual is not None and offers(problem, ("relative_gap",)):
        return problem.relative_gap(x, dual).to(x.dtype)
    value, gradient = problem.value_and_subgradient(x)
    size = value.abs().clamp(min=torch.finfo(value.dtype).tiny)
    if problem.domain is None:
        return ACCURACY / MAX_SLOPE * (gradient * x).flatten(1).abs().sum(dim=1) / size
    bound = bound_by_domain(problem, x, value, gradient)
    away = x - problem.domain.nearest(x - gradient)
    guess = ACCURACY / MAX_SLOPE * (away * x).flatten(1).abs().sum(dim=1) / size
    return torch.where(bound.isfinite(), (value - bound) / size, guess)


def estimate_smoothness(problem: Any, x: Tensor, rounds: int = 8) -> float:
    """Return the problem's smoothness, or an estimate near x by power iterations on differences of gradients."""
    if problem.smoothness is not None:
        return float(torch.as_tensor(problem.smoothness, dtype=x.dtype, device=x.device).max())
    change = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype, device="cpu")
    gradient, length = problem.subgradient(x), 1e-2 * (1 + float(x.abs().mean()))
    for _ in range(rounds):
        norms = torch.linalg.vector_norm(change.flatten(1), dim=1).clamp(min=1e-30)
        unit = change / per_instance(norms, x)
        change = (problem.subgradient(x + length * unit) - gradient) / length
    return max(float(torch.linalg.vector_norm(change.flatten(1), dim=1).max()), 1e-12)
