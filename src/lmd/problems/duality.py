"""Duality gaps of composites: dual points made feasible, and bounds with room for the rounding of their evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmd.core.batching import Part
from lmd.operators import LinearOperator
from lmd.terms import Domain, Term
from lmd.terms.base import filled, size_of
from lmd.terms.quadratic import times

if TYPE_CHECKING:
    from lmd.problems.composite import Composite

MAX_INVERTED = 1024  # entries of x up to which the matrix K'K of an operator is inverted to make dual points feasible

DOMAIN_TOLERANCE = 4 * torch.finfo(torch.float32).eps
"""Constraints on Kx hold up to this, relative to the sizes that the entries of Kx are sums of: float32 has no more."""


def relative_gap(value: Tensor, gap: Tensor) -> Tensor:
    """Return a bound on (F(x) - min F) / |min F| of each instance `(B,)`; infinite where the sign of min F is unknown.

    The minimum lies in [F(x) - gap, F(x)], so |min F| is at least F(x) - gap or -F(x), whichever is positive.
    """
    least = torch.maximum(value - gap, -value).clamp(min=0)
    return torch.where(gap == 0, 0.0, gap / least.abs())  # of a -0.0 the sign would be that of the ratio


class FeasibleBlock(Part):
    """A block g_j(K_j x) that makes dual points feasible: g_j* is finite, and K_j has an inverse from the left.

    Where -K'p is outside the domain of f* by d, p_j moves by K_j (K_j'K_j)^{-1} d. The exactly feasible point is as far
    from the computed one as what is left of d, over the smallest singular value of K_j.
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
        for _ in range(2):  # the second time for the rounding of the first
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
    """Return F(x), the gap as computed and the room for its rounding `(B,)`, in float64."""
    _ = problem.feasible_block  # found once, and copied to float64 with the rest
    x, exact, eps = x.double(), problem.double(), torch.finfo(torch.float64).eps
    value, gap, rounding = evaluate(exact, x, exact.feasible_dual(dual.double()))
    return value, gap, rounding + rounding_of_sums(x, dual, eps, value, gap)


def rounding_of_sums(x: Tensor, p: Tensor, eps: float, value: Tensor, gap: Tensor) -> Tensor:
    """Return a bound on the error of sums of as many numbers of 0 or more as x and p have `(B,)`."""
    return (x[0].numel() + p[0].numel() + 8) * eps * (value.abs() + gap)


def evaluate(problem: Composite, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value, the gap and a bound on its rounding `(B,)`, for feasible p; Kx and K'p are computed once.

    g is convex: as computed of Kx, it is above the true one by at most the length of a subgradient times the error.
    Where Kx is moved onto a domain, f(x) is above the minimum by <p, move> more at most, and may be below it.
    Proof: docs/guarantees.md.
    """
    K, f, g, zero = problem.operator, problem.f, problem.g, x.new_zeros(len(x))
    z, u, off = image(problem, x), K.adjoint(p).neg_(), problem.dual_error(p)
    u = u if problem.feasible_block is None else f.project(u)
    first, second, error = f.residual(x, u), g.residual(z, p), K.error(x, z)
    moved = size_of(z - K(x)) * size_of(p) if any(is_limit(*block[:2]) for block in problem.blocks) else zero
    back = K.adjoint_error(p) + K.norm * off
    rounding = f.rounding(x, u, zero, back, first) + g.rounding(z, p, error, off, second)
    return (
        problem.data_value(x) + g.value(z),
        first + second,
        rounding + g.steepness(z) * error + moved + f.value_rounding(x),
    )


def image(problem: Composite, x: Tensor) -> Tensor:
    """Return Kx, on the domains behind operators where these are met to rounding."""
    z = problem.operator(x)
    parts, limits = list(problem.operator.split(z)), [is_limit(term, K) for term, K, _ in problem.blocks]
    for place, (term, K, scale) in enumerate(problem.blocks):
        if limits[place]:
            parts[place] = scale * onto_domain(term, K, x, parts[place] / scale)
    return _join(parts) if any(limits) else z


def onto_domain(term: Term, K: LinearOperator, x: Tensor, z: Tensor) -> Tensor:
    """Return z = Kx or, where all of its entries are that near to rounding, the nearest point of the term's domain."""
    nearest = term.nearest(z)
    room = DOMAIN_TOLERANCE * filled(K.magnitude(x), z)
    met = ((z - nearest).abs() <= room).flatten(1).all(dim=1)
    return torch.where(met.reshape(-1, *(1,) * (z.ndim - 1)), nearest, z)


def is_limit(term: Term, K: LinearOperator) -> bool:
    """Return whether a term is a domain of what an operator computes, which is met to rounding at best."""
    return isinstance(term, Domain) and not K.is_identity


def zero_is_exact(problem: Composite) -> bool:
    """Return whether values of 0 have no rounding and are minima: the terms are of x and its differences alone."""
    terms = (problem.f, *problem.regularisers)
    return problem.differences is not None and len(terms) == 2 and all(term.zero_is_exact for term in terms)


def project_onto_domains(problem: Composite, x: Tensor) -> Tensor:
    """Return x projected on the domain of f and on those behind identities, one after the other."""
    sets = [term for term, K, _ in problem.blocks if K.is_identity]
    for term in (*sets, *sets, problem.f):
        x = term.nearest(x)
    return x


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], dim=1)
