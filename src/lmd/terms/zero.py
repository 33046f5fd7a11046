"""The term that is 0 everywhere, where a composite has no term of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.terms.base import Pieces, Scale, Term, size_of, written


class Zero(Term):
    """h(z) = 0; z `(B, ...)`. h*(p) = 0 at p = 0, its whole domain.

    >>> Zero().prox(torch.tensor([[2.0]]), step=1.0), Zero().gauge(torch.tensor([[2.0], [0.0]]))
    (tensor([[2.]]), tensor([inf, 0.]))
    """

    @property
    def smoothness(self) -> Scale | None:
        return 0.0

    @property
    def conjugate_is_cone(self) -> bool:
        return True

    def value(self, z: Tensor) -> Tensor:
        return z.new_zeros(len(z))

    def subgradient(self, z: Tensor) -> Tensor:
        """0."""
        return torch.zeros_like(z)

    def pieces(self, z: Tensor) -> Pieces:
        return Pieces()

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """z."""
        return written(z, out)

    def conjugate(self, p: Tensor) -> Tensor:
        return p.new_zeros(len(p))

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        """0."""
        return written(torch.zeros_like(p), out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """0."""
        return self.project(p, out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """0."""
        return written(torch.zeros_like(u), out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """0."""
        return z.new_zeros(len(z))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """0: a true p of the domain is 0, and so is every product with it."""
        return z.new_zeros(len(z))

    def gauge(self, u: Tensor) -> Tensor:
        return torch.where(size_of(u) > 0, torch.inf, u.new_zeros(len(u)))
