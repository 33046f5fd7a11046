"""A term about data: another term of the difference from it."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.core.checks import check_batch
from lmd.terms.base import Pieces, Scale, Term, inner, per_instance, size_of


class Shifted(Term):
    """h(z) = g(z - y) for a term g; z, y `(B, ...)`. h*(p) = g*(p) + <p, y>.

    Args:
        term: g, any term.
        y: `(B, ...)`, what is subtracted from z.

    >>> from lmd.terms import Huber
    >>> Shifted(Huber(1.0, delta=0.5), torch.tensor([[3.0]])).value(torch.tensor([[5.0]]))
    tensor([1.7500])
    """

    batched = ("y",)

    def __init__(self, term: Term, y: Tensor) -> None:
        self.term, self.y = term, check_batch("y", y)

    @property
    def conjugate_is_finite(self) -> bool:
        return self.term.conjugate_is_finite

    @property
    def strong_convexity(self) -> Scale | None:
        return self.term.strong_convexity

    @property
    def smoothness(self) -> Scale | None:
        return self.term.smoothness

    def value(self, z: Tensor) -> Tensor:
        return self.term.value(z - self.y)

    def subgradient(self, z: Tensor) -> Tensor:
        return self.term.subgradient(z - self.y)

    def pieces(self, z: Tensor) -> Pieces | None:
        found = self.term.pieces(z)
        if found is None or found.total is not None:
            return None
        slope = per_instance(found.slope, z) - per_instance(found.curvature, z) * self.y
        kink, low, high = (per_instance(place, z) + self.y for place in (found.kink, found.low, found.high))
        return found._replace(slope=slope, kink=kink, low=low, high=high)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return torch.add(self.term.prox(z - self.y, step), self.y, out=out)

    def conjugate(self, p: Tensor) -> Tensor:
        return self.term.conjugate(p) + inner(p, self.y)

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        return self.term.project(p, out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return self.term.conjugate_prox(p - per_instance(step, p) * self.y, step, out)

    @property
    def zero_is_exact(self) -> bool:
        return self.term.zero_is_exact

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.add(self.term.tilted_minimiser(u), self.y, out=out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        return self.term.residual(z - self.y, p)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """That of g, where z - y is off by z_error and by eps relative to itself."""
        away = z - self.y
        z_error = z_error + torch.finfo(z.dtype).eps * size_of(away)
        return self.term.rounding(away, p, z_error, p_error, residual)

    def gauge(self, u: Tensor) -> Tensor:
        return self.term.gauge(u)

    def violation(self, z: Tensor) -> Tensor:
        return self.term.violation(z - self.y)
