"""Mirrors with the Euclidean potential, on the whole space, on a box and on the simplex."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_interval
from lmd.mirrors.base import Mirror
from lmd.terms import Box, Simplex


class Euclidean(Mirror):
    """Psi(x) = 1/2 ||x||^2 on the whole space: both maps are the identity, and mirror descent is gradient descent."""

    def potential(self, x: Tensor) -> Tensor:
        return 0.5 * x.square().flatten(1).sum(dim=1)

    def to_dual(self, x: Tensor) -> Tensor:
        return self.check("x", x)

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        return y if self.domain is None else self.domain.nearest(y)

    def divergence(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (x - y).square().flatten(1).sum(dim=1)

    @property
    def strong_convexity(self) -> Tensor:
        return torch.tensor(1.0)

    @property
    def smoothness(self) -> Tensor:
        return torch.tensor(1.0)


class EuclideanBox(Euclidean):
    """Psi(x) = 1/2 ||x||^2 on {low <= x <= high}: `to_primal` clips.

    Args:
        low, high: The ends of the box, low < high.
    """

    def __init__(self, low: float = 0.0, high: float = 1.0) -> None:
        super().__init__()
        self.domain: Box = Box(*check_interval("box", (low, high)))

    def config(self) -> dict[str, Any]:
        return {"low": self.domain.low, "high": self.domain.high}


class EuclideanSimplex(Euclidean):
    """Psi(x) = 1/2 ||x||^2 on the simplex: `to_primal` is the Euclidean projection; x `(B, d)`."""

    domain = Simplex()
