"""Negative entropy, which draws points of the simplex to its centre."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.terms.base import Term, sum_instances, written


class NegativeEntropy(Term):
    r"""h(z) = weight \sum_i z_i log z_i for z >= 0; z `(B, ...)`. h*(p) = weight \sum_i exp(p_i / weight - 1).

    Args:
        weight: A positive number.

    >>> NegativeEntropy().value(torch.tensor([[1.0, 0.5]]))
    tensor([-0.3466])
    """

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = check_positive("weight", weight)

    @property
    def conjugate_is_finite(self) -> bool:
        return True

    def value(self, z: Tensor) -> Tensor:
        return self.weight * sum_instances(torch.special.xlogy(z, z))

    def subgradient(self, z: Tensor) -> Tensor:
        return self.weight * (1 + z.clamp(min=torch.finfo(z.dtype).tiny).log())

    def conjugate(self, p: Tensor) -> Tensor:
        return self.weight * sum_instances((p / self.weight - 1).exp())

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        return written((-u / self.weight - 1).exp(), out)

    def nearest(self, z: Tensor) -> Tensor:
        return z.clamp(min=0)
