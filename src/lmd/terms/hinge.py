"""The hinge loss of margins, which support vector machines minimise."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.terms.base import (
    Pieces,
    Scale,
    Term,
    check_scale,
    clip,
    filled,
    per_instance,
    rounding_of_sum,
    size_of,
    sum_instances,
    write_to,
)


class Hinge(Term):
    r"""h(z) = C \sum_i max(0, 1 - z_i) of margins z `(B, ...)`; labels of +-1 are folded into what makes z.

    C is a number, per instance `(B,)` or per entry. h*(p) = \sum p_i on its domain, -C <= p <= 0
    ([Cortes and Vapnik 1995](https://doi.org/10.1007/BF00994018)).

    Args:
        C: A positive number, one per instance `(B,)` or one per entry.

    >>> Hinge(2.0).value(torch.tensor([[0.5, 3.0]]))
    tensor([1.])
    """

    batched = ("C",)

    def __init__(self, C: Scale = 1.0) -> None:
        self.C = check_scale("C", C)

    def value(self, z: Tensor) -> Tensor:
        return sum_instances(per_instance(self.C, z) * (1 - z).clamp(min=0))

    def subgradient(self, z: Tensor) -> Tensor:
        return -filled(self.C, z) * (z < 1)

    def pieces(self, z: Tensor) -> Pieces:
        return Pieces(fold=self.C, kink=1.0)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """z + step C, but at most 1 for z below 1."""
        raised = z + per_instance(step, z) * per_instance(self.C, z)
        return write_to(torch.where(raised < 1, raised, z.clamp(min=1)), out)

    def conjugate(self, p: Tensor) -> Tensor:
        return sum_instances(p)

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        return clip(p, -per_instance(self.C, p), 0.0, out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return self.project(p - per_instance(step, p), out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """1."""
        return write_to(torch.ones_like(u), out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """sum (C + p) max(0, 1 - z) - p max(0, z - 1)."""
        short = 1 - z
        slack = (per_instance(self.C, z) + p).clamp(min=0)
        return sum_instances(slack * short.clamp(min=0) + p.clamp(max=0) * short.clamp(max=0))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """1 - z is right relative to itself, C + p to eps C, as C is stored: each product to 8 eps of C |1 - z| and it.

        The residual of an entry is C-Lipschitz in z, as 0 <= C + p <= C, and |1 - z|-Lipschitz in p.
        """
        weights = size_of(filled(self.C, z).expand_as(z))
        evaluation = 8 * torch.finfo(z.dtype).eps * (self.value(z) + residual)
        return evaluation + weights * z_error + size_of(1 - z) * p_error + rounding_of_sum(z, residual)

    def best_multiple(self, p: Tensor, most: Scale) -> Tensor:
        """-h*(t p) = -t sum p is largest at the largest t that both `most` and the domain of h* allow."""
        gauge = self.gauge(p)
        return torch.minimum(filled(most, gauge), 1 / gauge.clamp(min=torch.finfo(p.dtype).tiny))

    def gauge(self, u: Tensor) -> Tensor:
        """The largest -u / C; infinite where an entry is above 0."""
        ratios = torch.where(u > 0, torch.inf, -u / per_instance(self.C, u))
        return ratios.flatten(1).amax(dim=1)
