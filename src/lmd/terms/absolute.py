"""Absolute distances to data, entry by entry."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.terms.base import Scale, check_fits, filled, inner, per_instance
from lmd.terms.norms import L1
from lmd.terms.shifted import Shifted


class Absolute(Shifted):
    r"""h(z) = \sum_i weight_i |z_i - y_i|; z, y `(B, ...)`; weights a number, per instance `(B,)` or per entry.

    h*(p) = <p, y> on its domain, |p_i| <= weight_i.

    Args:
        y: `(B, ...)`, the data.
        weight: A positive number, or one per instance `(B,)` or entry, of 0 or more.

    >>> term = Absolute(torch.tensor([[1.0, 2.0]]), weight=0.5)
    >>> term.value(torch.tensor([[2.0, 4.0]])), term.prox(torch.tensor([[2.0, 4.0]]), step=2.0)
    (tensor([1.5000]), tensor([[1., 3.]]))
    """

    term: L1

    def __init__(self, y: Tensor, weight: Scale = 1.0) -> None:
        super().__init__(L1(check_fits("weight", weight, y)), y)

    def kept(self, mask: Tensor) -> Absolute:
        weight = per_instance(self.term.weight, self.y) * mask.to(self.y)
        return Absolute(self.y, weight.expand_as(self.y))

    def best_multiple(self, p: Tensor, most: Scale) -> Tensor:
        """-h*(t p) = -t <p, y> is largest at an end of what both `most` and the domain of h* allow."""
        slope, gauge = inner(p, self.y), self.gauge(p)
        reach = torch.minimum(filled(most, slope), 1 / gauge.clamp(min=torch.finfo(p.dtype).tiny))
        return torch.where(slope > 0, -reach, reach)
