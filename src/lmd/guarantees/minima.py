"""Minima of whole batches: approximate minima by classical methods, and proven lower bounds on the infima."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from lmd.core.batching import to_double
from lmd.errors import CapabilityError, InputError
from lmd.guarantees.certify import Record, duality_certificate, subgradient_certificate
from lmd.problems.base import Problem, offers
from lmd.solvers import ADMM, LBFGS, PDHG, Nesterov, Solver
from lmd.solvers.base import State, check_fit
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.terms.base import inner, per_instance, take

MAX_SYSTEM_SIZE = 1024  # largest n for methods that invert n x n matrices
ACCURACY = 1e-6  # the relative gap at which an optimum is good enough for comparisons
MIN_DECREASE = 1e-8  # a method stops if values fall by less than this share between two checks
MAX_SLOPE = 1e-3  # |<gradient, x>| / |f| of this size counts as `ACCURACY`; the gap is about its square

MAX_ENTRIES = 256  # largest number of entries of x for tangents in all directions
MAX_NUMBERS = 1 << 22  # total size of the matrices of all instances in a chunk
MAX_STEPS, MAX_HALVINGS = 30, 12  # Newton steps, and halvings of each step
ROUNDING = 1e-13  # the assumed relative error of a value, per entry of x
FLATTEST = 1e-13  # curvatures are raised to at least this share of the largest curvature


def in_float64(problem: Problem, x: Tensor) -> Problem | None:
    """Return the problem in float64; None if it cannot be converted or has other values at x after conversion."""
    exact = problem.double()
    if exact is not None or x.dtype == torch.float64:
        return problem if exact is None else exact
    try:
        exact = to_double(problem)
        values, wanted = exact.value(x.double()), problem.value(x)
    except (RuntimeError, TypeError):
        return None
    same = torch.allclose(values, wanted.double(), rtol=1e-4, atol=1e-6 * float(wanted.abs().max()))
    return exact if same and values.dtype == torch.float64 else None


@torch.no_grad()
def lower_bounds(problem: Any, x: Tensor, dual: Tensor | None, width: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return points `(B, ...)` near x and proven lower bounds on the infima `(B,)`; -inf if nothing is proven.

    If there are dual points, the bounds come from the duality gap. Otherwise they come from strong convexity or a
    bounded domain (Theorem 6 of docs/guarantees.md) and, if there is no domain, from 2n + 1 tangents (Theorem 11).

    A minimiser in closed form is not checked. Only the duality gap is always evaluated in float64; the other bounds
    are evaluated in the dtype of the problem.

    Args:
        problem: The problem, in float64.
        x: Points near the minimisers `(B, ...)`.
        dual: Dual points, or None.
        width: The accepted differences between infima and bounds `(B,)`, positive; they set the distance of tangents.
    """
    if offers(problem, ("minimiser",)):
        x = problem.minimiser()
        return x, problem.value(x)
    if dual is not None and offers(problem, ("certified_gap",)):
        return x, duality_certificate(_record_of(problem, x, dual)).lower_bound
    bound = torch.full_like(width, -torch.inf)
    if problem.domain is None and x[0].numel() <= MAX_ENTRIES:
        x, bound = _tangents(problem, x, width)
        bound = bound - ROUNDING * x[0].numel() * problem.value(x).abs()
    return x, torch.fmax(bound, subgradient_certificate(_record_of(problem, x)).lower_bound)


def _record_of(problem: Any, x: Tensor, dual: Tensor | None = None) -> Record:
    """Return a record of points without history; the solver that found them does not matter."""
    values = problem.value(x).double()
    return Record(LBFGS(), problem, x, x, values, values[None], {}, dual)


def _tangents(problem: Any, x: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return points x after Newton steps, and lower bounds from tangents at x and at x +- s t_i; t_i are columns of T.

    T T' is about the inverse Hessian, and s^2 is a fifth of the width, so f rises by about a tenth of the width from x
    to x +- s t_i. Let y = x + T u, let g_j be the gradients in these coordinates at the points u_j, and let the weights
    w_j >= 0 of sum 1 make e = \sum_j w_j g_j nearly 0. Then

        f(y) >= \sum_j w_j (f_j - <g_j, u_j>) + <e, u>,

    and the tangents bound ||u|| by R for all y with f(y) <= f(x). So <e, u> >= -||e|| R.
    """
    n, points, bounds = x[0].numel(), [], []
    count = max(1, MAX_NUMBERS // n**2)
    for first in range(0, len(x), count):
        index = slice(first, first + count)
        part, size = problem.select(index), (width[index] / 5).sqrt()
        point, bases = _newton(part, x[index], size / (4 * n))
        tried = [_bound_by_tangents(part, point, bases, each) for each in (size, size / 4, size / 16)]
        points.append(point)
        bounds.append(torch.stack(tried).amax(dim=0))  # smaller sizes may prove more: f is almost quadratic near x
    return torch.cat(points), torch.cat(bounds)


def _newton(problem: Any, x: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    """Return points with Newton decrements up to `small` `(B,)`, if possible, and T; T T' is the inverse Hessian."""
    for _ in range(MAX_STEPS):
        hessian = hessians(problem, x, 1e-5 * x.flatten(1).abs().amax(dim=1, keepdim=True).clamp(min=1e-3))
        usable = hessian.isfinite().all(dim=(1, 2), keepdim=True)
        values, vectors = torch.linalg.eigh(torch.where(usable, hessian, _identity(hessian)))
        least = (FLATTEST * values[:, -1:]).clamp(min=torch.finfo(x.dtype).tiny ** 0.5)
        bases = vectors * torch.maximum(values, least).rsqrt()[:, None]
        value, gradient = problem.value_and_subgradient(x)
        along = (bases.mT @ gradient.flatten(1)[:, :, None])[:, :, 0]
        move = -(bases @ along[:, :, None]).reshape_as(x)
        length = (torch.linalg.vector_norm(along, dim=1) > small).to(x.dtype)
        for _ in range(MAX_HALVINGS):
            lower = (length == 0) | (problem.value(x + per_instance(length, move) * move) <= value)
            if bool(lower.all()):
                break
            length = torch.where(lower, length, length / 2)
        moving = lower & (length > 0)
        if not bool(moving.any()):
            break
        x = take(moving, x + per_instance(length, move) * move, x)
    return x, bases


def hessians(problem: Any, x: Tensor, lengths: Tensor) -> Tensor:
    """Return the Hessians `(B, n, n)` at x, by differences of gradients at distances `lengths` `(B, 1)`."""
    columns = []
    for i in range(x[0].numel()):
        move = torch.zeros_like(x.flatten(1))
        move[:, i : i + 1] = lengths
        ends = (problem.subgradient(x + sign * move.reshape_as(x)).flatten(1) for sign in (1, -1))
        columns.append((next(ends) - next(ends)) / (2 * lengths))
    found = torch.stack(columns, dim=2)
    return (found + found.mT) / 2


def _bound_by_tangents(problem: Any, x: Tensor, bases: Tensor, size: Tensor) -> Tensor:
    """Return lower bounds `(B,)` from tangents at x and x +- size times columns of `bases`; -inf if none is proven."""
    values, gradients = [], []
    for step in torch.cat([torch.zeros_like(bases[..., :1]), bases, -bases], dim=2).unbind(2):
        value, gradient = problem.value_and_subgradient(x + (size[:, None] * step).reshape_as(x))
        values.append(value)
        gradients.append((bases.mT @ gradient.flatten(1)[:, :, None])[:, :, 0])
    heights, slopes = torch.stack(values, dim=1), torch.stack(gradients, dim=1)
    usable = slopes.isfinite().all(dim=(1, 2)) & heights.isfinite().all(dim=1)
    slopes = torch.where(usable[:, None, None], slopes, 0)
    level, slope, radius = enclose(heights, slopes, size, balance(slopes))
    bound = level - slope * radius
    return torch.where(usable & bound.isfinite(), bound, -torch.inf)


def enclose(values: Tensor, gradients: Tensor, size: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return h, ||e|| and R `(B,)` of Theorem 11 of docs/guarantees.md, which proves f >= h - ||e|| R.

    Everything is in the coordinates of T.

    Args:
        values: Values `(B, 2n + 1)` at x, at all x + s t_i, and at all x - s t_i.
        gradients: Derivatives `(B, 2n + 1, n)` along the columns of T at these points.
        size: The distance s `(B,)`.
        weights: Weights `(B, 2n + 1)` of sum 1. If one of them is negative, nothing is proven.
    """
    n, s = gradients.shape[-1], size[:, None]
    plus, minus = gradients[:, 1 : n + 1], gradients[:, n + 1 :]
    half, mean = (plus - minus) / 2, (plus + minus) / 2
    inverse = torch.linalg.inv_ex(half).inverse
    off = torch.linalg.matrix_norm(inverse @ half - _identity(half))  # error of the computed inverse
    slope = torch.linalg.vector_norm((weights[:, :, None] * gradients).sum(dim=1), dim=1)
    slopes = torch.cat([plus.diagonal(dim1=1, dim2=2), -minus.diagonal(dim1=1, dim2=2)], dim=1)
    heights = values[:, 1:] - s * slopes  # heights of the tangents at u = 0
    level = weights[:, 0] * values[:, 0] + (weights[:, 1:] * heights).sum(dim=1)
    # |<half_i, u>| is at most r_i + |<mean_i, u>| if f(y) <= f(x).
    room = (values[:, :1] - heights).clamp(min=0).reshape(-1, 2, n).amax(dim=1)
    stretch = torch.linalg.matrix_norm(inverse) / (1 - off)
    slack = 1 - stretch * torch.linalg.matrix_norm(mean)
    radius = stretch * torch.linalg.vector_norm(room, dim=1) / slack
    usable = (off < 0.5) & (slack > 1e-3) & (weights >= 0).all(dim=1)
    return level, slope, torch.where(usable, radius, torch.inf)


def balance(gradients: Tensor) -> Tensor:
    """Return weights `(B, 2n + 1)` of sum 1 such that the weighted sum of the gradients is 0, up to rounding.

    The weights are 1 - 2na at x and a +- d_i at x +- s t_i, where g + 2a (sum_i mean_i - ng) + 2 sum_i d_i half_i = 0.
    """
    n = gradients.shape[-1]
    g, plus, minus = gradients[:, 0], gradients[:, 1 : n + 1], gradients[:, n + 1 :]
    half, mean = (plus - minus) / 2, (plus + minus) / 2  # of the gradients at x +- s t_i
    inverse = torch.linalg.inv_ex(half).inverse.mT
    first, second = (-(inverse @ each[:, :, None])[:, :, 0] / 2 for each in (g, 2 * (mean.sum(dim=1) - n * g)))
    a = (first.abs() / (1 - second.abs()).clamp(min=1e-3)).amax(dim=1, keepdim=True) * (1 + 1e-9)
    d = first + a * second
    return torch.cat([1 - 2 * n * a, a + d, a - d], dim=1)


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


@torch.no_grad()
def approximate_optima(problem: Any, x0: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return points near the minimisers, and dual points or None; in float64 if possible."""
    if offers(problem, ("minimiser",)):
        return problem.minimiser(), None
    exact = in_float64(problem, x0)
    if exact is not None:
        problem, x0 = exact, x0.double() if exact.domain is None else exact.domain.nearest(x0.double())
    tried = []
    for solver, first, most in _candidates(problem, x0):
        check_fit(solver, problem, x0)
        state = solver.advance(problem, solver.init(problem, x0), first)
        distance = relative_distance(problem, state.x, state.dual_point).median()
        tried.append((float(distance), solver, state, most))
    if not tried:
        raise InputError("family", "problems that no classical method here can solve", "smooth or composite problems")
    tried.sort(key=lambda each: each[0])
    _, solver, state, most = tried[0]
    x, dual = _continue(problem, solver, state, most, x0)
    for _, solver, _, most in tried[1:]:  # for instances that the best method leaves unsolved
        distances = relative_distance(problem, x, dual)
        left = (distances > ACCURACY).nonzero().flatten()
        if not len(left):
            break
        part = problem.select(left)
        found, other = _continue(part, solver, solver.init(part, x0[left]), most, x0[left])
        closer = relative_distance(part, found, other) < distances[left]
        x[left[closer]] = found[closer]
        if dual is not None and other is not None:
            dual[left[closer]] = other[closer]
    return x, dual


def _candidates(problem: Any, x0: Tensor) -> list[tuple[Solver[Any], int, int]]:
    """Return classical methods, each with its iterations before the comparison and its maximum number of iterations."""
    if offers(problem, ADMM().needs) and x0[0].numel() <= MAX_SYSTEM_SIZE:
        return [(ADMM(penalty=penalty), 100, 3000) for penalty in (0.3, 1.0, 3.0, 10.0)]
    for solver in (InteriorPoint(), PDHG(settle=32.0)):
        if offers(problem, solver.needs):
            return [(solver, 30, 2000)]
    if problem.domain is None:
        return [(LBFGS(), 20, 2000)]
    return [(Nesterov(size / estimate_smoothness(problem, x0)), 200, 3000) for size in (0.1, 1.0)]


def _continue(problem: Any, solver: Solver[Any], state: State, most: int, x0: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return points and dual points after at most `most` iterations; solved instances leave the batch early."""
    x, dual, done = state.x.clone(), state.dual_point, state.iteration
    dual = None if dual is None else dual.clone()
    left = torch.arange(len(x), device=x.device)
    while done < most and not is_unbounded(x, x0):
        index = (relative_distance(problem, state.x, state.dual_point) > ACCURACY).nonzero().flatten()
        if not len(index):
            break
        if len(index) < 0.7 * len(left):
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
    """Return whether points are so far from x0 that f seems to have no minimum."""
    return not float(x.abs().max()) <= 1e8 * (1 + float(x0.abs().max()))


def relative_distance(problem: Any, x: Tensor, dual: Tensor | None) -> Tensor:
    """Return the proven relative gap `(B,)`, or an estimate of it from the gradient; infinite if it is NaN.

    An instance counts as solved if this is at most `ACCURACY`.
    """
    if dual is not None and offers(problem, ("relative_gap",)):
        found = problem.relative_gap(x, dual).to(x.dtype)
    else:
        value, gradient = problem.value_and_subgradient(x)
        size, domain = value.abs().clamp(min=torch.finfo(value.dtype).tiny), problem.domain
        away = gradient if domain is None else x - domain.nearest(x - gradient)
        found = ACCURACY / MAX_SLOPE * (away * x).flatten(1).abs().sum(dim=1) / size
        if domain is not None:
            with suppress(CapabilityError):
                gap = inner(gradient, x - domain.tilted_minimiser(gradient))
                found = torch.where(gap.isfinite(), gap / size, found)
    return torch.where(found.isnan(), torch.inf, found)


def relative_gaps(problem: Any, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return upper bounds on (f(x) - f*) / |f*| `(B,)`, plus the violation of constraints relative to the size of x.

    Args:
        problem: The problem.
        x: Points `(B, ...)`. If x violates constraints, f(x) may be below f*; then |f(x) - f*| counts.
        low: Lower bounds on f* `(B,)`.
        high: Upper bounds on f* `(B,)`.
    """
    values, violation = problem.relaxed_value(x)
    rise = torch.where(violation > 0, torch.maximum(values - low, high - values), (values - low).clamp(min=0))
    tiny = torch.finfo(x.dtype).tiny
    size = torch.linalg.vector_norm(x.flatten(1), dim=1).clamp(min=tiny)
    gaps = rise / torch.maximum(low, -high).clamp(min=tiny) + violation / size
    return torch.where(gaps.isnan(), torch.inf, gaps)


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
