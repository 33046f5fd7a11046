"""Diagonal quadratic mirrors on a box and on the simplex: `to_primal` ends in a Bregman projection onto the domain."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lmd.core.checks import check_interval
from lmd.mirrors.base import check_width
from lmd.mirrors.quadratic import DiagonalQuadratic
from lmd.terms import Box, Simplex


class DiagonalBox(DiagonalQuadratic):
    r"""Psi(x) = 1/2 \sum_i a_i x_i^2 on {low <= x <= high}: to_primal(y) = y / a, clipped.

    Clipping is the projection argmin_x B(x, y / a) onto the box, as B is a sum over the entries.

    Args:
        dimension: d.
        low, high: The ends of the box, low < high.
        floor: The least a_i, which `constrain_` keeps to.
        diagonal: a `(d,)` to begin with, positive; None is 1.
    """

    def __init__(
        self,
        dimension: int,
        low: float = 0.0,
        high: float = 1.0,
        floor: float = 1e-3,
        diagonal: Tensor | None = None,
    ) -> None:
        super().__init__(dimension, floor, diagonal)
        self.domain: Box = Box(*check_interval("box", (low, high)))

    def config(self) -> dict[str, Any]:
        return {**super().config(), "low": self.domain.low, "high": self.domain.high}

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        return self.domain.nearest(super().to_primal(y))


class DiagonalSimplex(DiagonalQuadratic):
    r"""Psi(x) = 1/2 \sum_i a_i x_i^2 on the simplex: to_primal(y) = max((y - nu) / a, 0), with nu for a sum of 1.

    As in the Euclidean projection, the positive entries are those with the largest y: sorted by y, the first m give
    nu_m = (\sum_{i <= m} y_i / a_i - 1) / \sum_{i <= m} 1 / a_i, and the right m is the last with y_m > nu_m.

    Args:
        dimension: d.
        floor: The least a_i, which `constrain_` keeps to.
        diagonal: a `(d,)` to begin with, positive; None is 1.
    """

    domain = Simplex()

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        y = check_width("y", y, self.dimension)
        y = y - y.detach().amax(dim=1, keepdim=True)  # changes nothing but the rounding far from the simplex
        ordered, order = y.sort(dim=1, descending=True)
        softness = (1 / self.diagonal)[order]
        thresholds = ((softness * ordered).cumsum(dim=1) - 1) / softness.cumsum(dim=1)
        count = (ordered > thresholds).sum(dim=1, keepdim=True).clamp(min=1)
        return ((y - thresholds.gather(1, count - 1)) / self.diagonal).clamp(min=0)
