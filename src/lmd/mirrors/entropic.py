"""The entropic mirror on the simplex, for which mirror descent is the exponentiated gradient method."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.mirrors.base import Mirror
from lmd.problems.simplex import kl_divergence
from lmd.terms import Simplex
from lmd.terms.domains import check_rows


class Entropic(Mirror):
    r"""Psi(x) = \sum_i x_i log x_i on the simplex, x `(B, d)`; to_dual(x) = 1 + log x, to_primal(y) = softmax(y).

    Strongly convex with constant 1 in the l1 norm (Pinsker's inequality). Beck and Teboulle 2003, section 5.

    The maps work in the log domain. `to_primal` keeps every coordinate at or above the smallest normal number, so that
    a coordinate driven out of the representable range by a gradient of 1e4 stays in the interior, where its logarithm
    is finite and later gradients can bring it back; the sum is off by less than rounding.
    """

    norm = "l1"
    domain = Simplex()

    def potential(self, x: Tensor) -> Tensor:
        return torch.special.xlogy(x, x).sum(dim=1)

    def to_dual(self, x: Tensor) -> Tensor:
        return 1 + self.check("x", x).clamp(min=torch.finfo(x.dtype).tiny).log()

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        return torch.softmax(check_rows("y", y), dim=1).clamp(min=torch.finfo(y.dtype).tiny)

    def divergence(self, x: Tensor, y: Tensor) -> Tensor:
        return kl_divergence(x, y)

    @property
    def strong_convexity(self) -> Tensor:
        return torch.tensor(1.0)
