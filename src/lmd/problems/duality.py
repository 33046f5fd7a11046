"""Duality gaps of composites: dual points made feasible, and bounds with room for the rounding of their evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmd.core.batching import Part
from lmd.terms import Domain
from lmd.terms.base import filled, size_of
from lmd.terms.quadratic import times

if TYPE_CHECKING:
    from lmd.problems.composite import Composite

MAX_INVERTED = 1024  # largest number of entries of x for which K'K is inverted to make dual points feasible

DOMAIN_TOLERANCE = 4 * torch.finfo(torch.float32).eps
"""Accepted violation of constraints on Kx, relative to the size of the summands of an entry, rounded in float32."""


def relative_gap(value: Tensor, gap: Tensor) -> Tensor:
    """Return a bound on (F(x) - min F) / |min F| of each instance `(B,)`; infinite if the sign of min F is unknown.

    The minimum lies in [F(x) - gap, F(x)], so |min F| is at least F(x) - gap or -F(x), whichever is positive.
    """
    least = torch.maximum(value - gap, -value).clamp(min=0)
    return torch.where(gap == 0, 0.0, gap / least.abs())  # `abs`, as division by -0.0 would give -infinity


class FeasibleBlock(Part):
    """A block g_j(K_j x) that makes dual points feasible: g_j* is finite everywhere, and K_j has a left inverse.

    If -K'p is outside the domain of f* by d, p_j moves by K_j (K_j'K_j)^{-1} d. Rounding leaves a smaller violation r.
    The distance to a feasible point is then at most ||r|| over the smallest singular value of K_j.
    """

    def __init__(self, place: int, inverse: Tensor | None, least: Tensor) -> None:
        self.place, self.inverse, self.least = place, inverse, least

    @classmethod
    def find(cls, problem: Composite) -> FeasibleBlock | None:
        """Return the first such block of a problem, or None."""
        x = problem.points
        for place, (term, K, scale) in enumerate(problem.blocks):
            if not term.conjugate_is_finite:
                continue
            if K.is_identity:
                return cls(place, None, torch.tensor(scale, dtype=torch.float64, device=x.device))
            if x[0].numel() <= MAX_INVERTED:
                gram = K.gram(x).double()
                spectrum = torch.linalg.eigvalsh(gram)
                if bool((spectrum[..., 0] > 1e-12 * spectrum[..., -1]).all()):
                    least = (spectrum[..., 0] - 1e-13 * spectrum[..., -1]).sqrt()
                    return cls(place, torch.linalg.inv(gram), scale * least)
        return None

    def project(self, problem: Composite, p: Tensor, u: Tensor) -> Tensor:
        """Return a feasible dual point, up to rounding, from p with u = K'p."""
        K, scale = problem.operator.blocks[self.place], problem.operator.scales[self.place]
        for _ in range(2):  # the second pass corrects the rounding of the first
            off = (u + problem.f.project(-u)).flatten(1)
            back = off if self.inverse is None else times(off, self.inverse.to(off))
            parts = [part.clone() for part in problem.operator.split(p)]
            parts[self.place] = parts[self.place] - K(back.reshape_as(u)) / scale
            p = _join(parts)
            u = problem.operator.adjoint(p)
        return p

    def error(self, problem: Composite, p: Tensor) -> Tensor:
        """Return a bound on the distance of p to the feasible point `(B,)`."""
        u = problem.operator.adjoint(p)
        off = size_of(u + problem.f.project(-u)) + problem.operator.adjoint_error(p)
        return 2 * off / self.least.to(off)


def proven_gap(problem: Composite, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return F(x), the computed gap and a bound on its rounding `(B,)`, in float64."""
    _ = problem.feasible_block, problem.operator.norm  # computed once here; `double` converts them with the rest
    x, exact, eps = x.double(), problem.double(), torch.finfo(torch.float64).eps
    value, gap, rounding = evaluate(exact, x, exact.feasible_dual(dual.double()))
    return value, gap, rounding + rounding_of_sums(x, dual, eps, value, gap)


def rounding_of_sums(x: Tensor, p: Tensor, eps: float, value: Tensor, gap: Tensor) -> Tensor:
    """Return a bound `(B,)` on the rounding of sums of nonnegative numbers, one for each entry of x and p."""
    return (x[0].numel() + p[0].numel() + 8) * eps * (value.abs() + gap)


def evaluate(problem: Composite, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value, the gap and a bound on its rounding `(B,)`, for feasible p; Kx and K'p are computed once.

    By convexity, g at the computed Kx exceeds g at the true Kx by at most the length of a subgradient times the error.
    If Kx is moved onto a domain, this adds at most <p, move> to the bound; the value may be below the minimum.
    Proof: Theorem 7 of docs/guarantees.md.
    """
    K, f, g, zero = problem.operator, problem.f, problem.g, x.new_zeros(len(x))
    Kx, u, off = K(x), K.adjoint(p).neg_(), problem.dual_error(p)
    z = onto_domains(problem, x, Kx)
    u = u if problem.feasible_block is None else f.project(u)
    first, second, error = f.residual(x, u), g.residual(z, p), K.error(x, z)
    moved = zero if z is Kx else size_of(z - Kx) * size_of(p)
    back = K.adjoint_error(p) + K.norm * off
    rounding = f.rounding(x, u, zero, back, first) + g.rounding(z, p, error, off, second)
    return (
        problem.f.value(x) + g.value(z),
        first + second,
        rounding + g.steepness(z) * error + moved + f.value_rounding(x),
    )


def onto_domains(problem: Composite, x: Tensor, Kx: Tensor) -> Tensor:
    """Return Kx; if g_j is a domain and all entries of K_j x are in it up to rounding, K_j x is projected onto it."""
    parts: list[Tensor] = []
    for place, (term, K, scale) in enumerate(problem.blocks):
        if isinstance(term, Domain) and not K.is_identity:
            parts = parts or list(problem.operator.split(Kx))
            z = parts[place] / scale
            nearest = term.nearest(z)
            met = ((z - nearest).abs() <= DOMAIN_TOLERANCE * filled(K.magnitude(x), z)).flatten(1).all(dim=1)
            parts[place] = scale * torch.where(met.reshape(-1, *(1,) * (z.ndim - 1)), nearest, z)
    return _join(parts) if parts else Kx


def zero_is_exact(problem: Composite) -> bool:
    """Return whether a computed value of 0 is exact and minimal: f and one term of differences are `zero_is_exact`."""
    f, g = problem.f, problem.regularisers[0]
    is_alone = len(problem.regularisers) == 1 and problem.operator.grid is not None
    return is_alone and f.zero_is_exact and g.zero_is_exact


def project_onto_domains(problem: Composite, x: Tensor) -> Tensor:
    """Return x projected onto the domains of the terms of x itself, one after the other."""
    sets = [term for term, K, _ in problem.blocks if K.is_identity]
    for term in (*sets, *sets, problem.f):
        x = term.nearest(x)
    return x


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], dim=1)
