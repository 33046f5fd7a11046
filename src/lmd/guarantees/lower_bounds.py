"""Proven lower bounds on the minima of any problem: from dual points, strong convexity, a bounded set, or tangents."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.core.batching import to_double
from lmd.errors import CapabilityError
from lmd.problems.base import Problem, offers
from lmd.solvers.tracking import take
from lmd.terms.base import Scale, inner, per_instance, sum_instances

MAX_ENTRIES = 256  # entries of x up to which tangents in all directions are taken
MAX_NUMBERS = 1 << 22  # entries of the matrices of as many instances as are worked on together
MAX_STEPS, MAX_HALVINGS = 30, 12  # Newton steps towards the minimiser, and how often one is halved
ROUNDING = 1e-13  # how far computed values may be off, relative to their size, for each entry of x
SET_ROUNDING = 4e-15  # how far a computed point may be off the domain, relative to its size: 16 units of rounding
FLATTEST = 1e-13  # curvatures below this share of the largest are taken for this share


def in_float64(problem: Problem, x: Tensor) -> Problem | None:
    """Return the problem in float64, if that is the same function: its values at x agree up to the rounding of x."""
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
    r"""Return points `(B, ...)` near x and proven lower bounds on the infima `(B,)`; -inf where nothing is proven.

    f(y) >= f(x) + <g, y - x> for any subgradient g at x, so that the infimum is at least

    - f(x) - gap(x, p) for a composite problem and a dual point p;
    - min_y f(x) + <g, y - x> + m/2 ||y - x||^2 over the domain, where f has a strong convexity constant m;
    - min_y f(x) + <g, y - x> over the domain, where that is bounded;
    - the minimum over y of the largest of 2n + 1 tangents around x, where there is no domain (`_tangents`).

    A minimiser in closed form is taken as it is. All but the first are evaluated as the problem is given: in float64
    for a proof. Proofs: docs/guarantees.md.

    Args:
        problem: In float64.
        x: Points near the minimisers `(B, ...)`.
        dual: Dual points, where there are any.
        width: How far the bounds may be below the infima `(B,)`, positive; tangents are taken so far apart.
    """
    if offers(problem, ("minimiser",)):
        x = problem.minimiser()
        return x, problem.value(x)
    nothing = torch.full_like(width, -torch.inf)
    if dual is not None and offers(problem, ("certified_gap",)):
        value, gap = problem.certified_gap(x, dual)
        return x, torch.where((value - gap).isfinite(), value - gap, nothing)
    bound = nothing
    if problem.domain is None and x[0].numel() <= MAX_ENTRIES:
        x, bound = _tangents(problem, x, width)
    value, gradient = problem.value_and_subgradient(x)
    if problem.strong_convexity is not None:
        bound = torch.fmax(bound, _by_strong_convexity(problem, x, value, gradient, problem.strong_convexity))
    room = ROUNDING * x[0].numel() * value.abs()
    if problem.domain is not None:
        bound = torch.fmax(bound, bound_by_domain(problem, x, value, gradient))
        room = room + SET_ROUNDING * sum_instances((gradient * x).abs())  # points of the set are rounded
    return x, torch.where(value.isfinite(), bound - room, nothing)


def _by_strong_convexity(problem: Any, x: Tensor, value: Tensor, gradient: Tensor, constant: Scale) -> Tensor:
    """f(x) + min_y <g, y - x> + m/2 ||y - x||^2 `(B,)`; the minimiser is the point of the domain nearest to x - g/m."""
    m = torch.as_tensor(constant, dtype=x.dtype, device=x.device).expand(len(x))
    usable = m > 0
    y = x - gradient / per_instance(torch.where(usable, m, 1), x)
    move = (y if problem.domain is None else problem.domain.nearest(y)) - x
    return torch.where(usable, value + inner(gradient, move) + m / 2 * inner(move, move), -torch.inf)


def bound_by_domain(problem: Any, x: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """f(x) + min_y <g, y - x> `(B,)` over the domain, less the rounding of the product; -inf where it is unbounded."""
    try:
        products = gradient * (problem.domain.tilted_minimiser(gradient) - x)
    except CapabilityError:
        return torch.full_like(value, -torch.inf)
    bound = value + sum_instances(products) - ROUNDING * x[0].numel() * sum_instances(products.abs())
    return bound.where(bound.isfinite(), -torch.inf)


def _tangents(problem: Any, x: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    r"""Points after Newton steps from x, and lower bounds from tangents at x and at x +- s t_i, the columns of T.

    T T' is about the inverse Hessian and s^2 a fifth of the width, so that f rises by about a tenth of the width from x
    to each of the points. In the coordinates y = x + T u, with gradients g_0, g_i^+, g_i^- along T, convex weights w
    for which the sum of w_j g_j is e, nearly 0, give

        f(y) >= \sum_j w_j (f_j - <g_j, u_j>) + <e, u>,

    and the tangents bound ||u|| by R for all y with f(y) <= f(x): <e, u> >= -||e|| R.
    """
    n, points, bounds = x[0].numel(), [], []
    count = max(1, MAX_NUMBERS // n**2)
    for first in range(0, len(x), count):
        index = slice(first, first + count)
        part, size = problem.select(index), (width[index] / 5).sqrt()
        point, bases = _newton(part, x[index], size / (4 * n))
        tried = [_combined(*_planes(part, point, bases, each), each) for each in (size, size / 4, size / 16)]
        points.append(point)
        bounds.append(torch.stack(tried).amax(dim=0))  # far apart, tangents may not see a parabola
    return torch.cat(points), torch.cat(bounds)


def _newton(problem: Any, x: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    """Points whose Newton decrements are `small` `(B,)`, where they can be had, and T there, T T' inverse Hessians."""
    bases = _inverse_roots(problem, x)
    left = torch.arange(len(x), device=x.device)
    x = x.clone()
    for _ in range(MAX_STEPS):
        part = problem.select(left)
        value, gradient = part.value_and_subgradient(x[left])
        along = (bases[left].mT @ gradient.flatten(1)[:, :, None])[:, :, 0]
        far = torch.linalg.vector_norm(along, dim=1) > small[left]
        if not bool(far.any()):
            break
        left, value, along = left[far], value[far], along[far]
        part, move = problem.select(left), -(bases[left] @ along[:, :, None])[:, :, 0].reshape_as(x[left])
        length = torch.ones_like(value)
        for _ in range(MAX_HALVINGS):
            moved = x[left] + per_instance(length, move) * move
            rises = ~(part.value(moved) <= value)
            if not bool(rises.any()):
                break
            length = torch.where(rises, length / 2, length)
        x[left] = take(rises, x[left], moved)
        if not bool((~rises).any()):
            break
        left = left[~rises]
        bases[left] = _inverse_roots(problem.select(left), x[left])
    return x, bases


def _inverse_roots(problem: Any, x: Tensor) -> Tensor:
    """T `(B, n, n)` with T T' the inverse of the Hessian at x, by differences of gradients."""
    columns = []
    lengths = 1e-5 * (x.flatten(1).abs().amax(dim=1, keepdim=True).clamp(min=1e-3))
    for i in range(x[0].numel()):
        move = torch.zeros_like(x.flatten(1))
        move[:, i : i + 1] = lengths
        ends = (problem.subgradient(x + sign * move.reshape_as(x)).flatten(1) for sign in (1, -1))
        columns.append((next(ends) - next(ends)) / (2 * lengths))
    hessian = torch.stack(columns, dim=2)
    usable = hessian.isfinite().all(dim=2, keepdim=True).all(dim=1, keepdim=True)
    hessian = torch.where(usable, (hessian + hessian.mT) / 2, _identity(hessian))
    values, vectors = torch.linalg.eigh(hessian)
    least = (FLATTEST * values[:, -1:]).clamp(min=torch.finfo(x.dtype).tiny ** 0.5)
    return vectors * torch.maximum(values, least).rsqrt()[:, None]


def _planes(problem: Any, x: Tensor, bases: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Values `(B, 2n + 1)` and gradients in the coordinates of T `(B, 2n + 1, n)` at x, x + s t_i and x - s t_i."""
    n, values, gradients = bases.shape[-1], [], []
    steps = size[:, None, None] * bases
    for i, sign in [(0, 0), *((i, sign) for sign in (1, -1) for i in range(n))]:
        value, gradient = problem.value_and_subgradient(x + sign * steps[:, :, i].reshape_as(x))
        values.append(value)
        gradients.append((bases.mT @ gradient.flatten(1)[:, :, None])[:, :, 0])
    return torch.stack(values, dim=1), torch.stack(gradients, dim=1)


class Enclosure(NamedTuple):
    """What weighted tangents say, each `(B,)`: f is above `level` by <e, u>, ||e|| = `slope` and ||u|| <= `radius`."""

    level: Tensor
    slope: Tensor
    radius: Tensor

    @property
    def bound(self) -> Tensor:
        """The lower bounds; -inf where nothing is proven."""
        bound = self.level - self.slope * self.radius
        return torch.where(bound.isfinite(), bound, -torch.inf)


def enclose(values: Tensor, gradients: Tensor, size: Tensor, weights: Tensor) -> Enclosure:
    """The theorem of docs/guarantees.md for tangents at x, x + s t_i and x - s t_i, in the coordinates of T.

    Args:
        values: `(B, 2n + 1)`, at x, at all x + s t_i, at all x - s t_i.
        gradients: `(B, 2n + 1, n)`, along T.
        size: s `(B,)`.
        weights: `(B, 2n + 1)`, of sum 1; a negative one proves nothing.
    """
    n, s = gradients.shape[-1], size[:, None]
    plus, minus = gradients[:, 1 : n + 1], gradients[:, n + 1 :]
    half, mean = (plus - minus) / 2, (plus + minus) / 2
    inverse = torch.linalg.inv_ex(half).inverse
    off = torch.linalg.matrix_norm(inverse @ half - _identity(half))  # of the computed inverse from the true one
    slope = torch.linalg.vector_norm((weights[:, :, None] * gradients).sum(dim=1), dim=1)
    slopes = torch.cat([plus.diagonal(dim1=1, dim2=2), -minus.diagonal(dim1=1, dim2=2)], dim=1)
    heights = values[:, 1:] - s * slopes  # of the tangents, at u = 0
    level = weights[:, 0] * values[:, 0] + (weights[:, 1:] * heights).sum(dim=1)
    # |<half_i, u>| is at most r_i + |<mean_i, u>| where f(y) <= f(x).
    room = (values[:, :1] - heights).clamp(min=0).reshape(-1, 2, n).amax(dim=1)
    stretch = torch.linalg.matrix_norm(inverse) / (1 - off)
    slack = 1 - stretch * torch.linalg.matrix_norm(mean)
    radius = stretch * torch.linalg.vector_norm(room, dim=1) / slack
    usable = (off < 0.5) & (slack > 1e-3) & (weights >= 0).all(dim=1)
    return Enclosure(level, slope, torch.where(usable, radius, torch.inf))


def balance(gradients: Tensor) -> Tensor:
    """Weights `(B, 2n + 1)` of sum 1 for which the sum of weighted gradients is 0 up to rounding.

    They are 1 - 2na for x, and a + d_i and a - d_i for the others: g + 2a (sum of mean_i - ng) + 2 sum d_i half_i = 0.
    """
    n = gradients.shape[-1]
    g, plus, minus = gradients[:, 0], gradients[:, 1 : n + 1], gradients[:, n + 1 :]
    half, mean = (plus - minus) / 2, (plus + minus) / 2
    inverse = torch.linalg.inv_ex(half).inverse.mT
    first, second = (-(inverse @ each[:, :, None])[:, :, 0] / 2 for each in (g, 2 * (mean.sum(dim=1) - n * g)))
    a = (first.abs() / (1 - second.abs()).clamp(min=1e-3)).amax(dim=1, keepdim=True) * (1 + 1e-9)
    d = first + a * second
    return torch.cat([1 - 2 * n * a, a + d, a - d], dim=1)


def _combined(values: Tensor, gradients: Tensor, size: Tensor) -> Tensor:
    """The lower bounds `(B,)` of `_tangents`."""
    usable = gradients.isfinite().all(dim=(1, 2)) & values.isfinite().all(dim=1)
    gradients = torch.where(usable[:, None, None], gradients, 0)
    bound = enclose(values, gradients, size, balance(gradients)).bound
    return torch.where(usable, bound, -torch.inf)


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
