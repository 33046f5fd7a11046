"""Metrics that gradients are multiplied by: a number, a diagonal, a dense matrix, or few directions and a diagonal."""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count
from lmd.core.config import Configurable


class Metric(nn.Module, Configurable, abc.ABC):
    """A positive definite matrix M that is learned: g `(B, n)` to Mg `(B, n)`.

    Args:
        size: n.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_count("size", size)

    def config(self) -> dict[str, Any]:
        return {"size": self.size}

    @abc.abstractmethod
    def forward(self, gradient: Tensor) -> Tensor:
        """M times each gradient `(B, n)`."""

    @abc.abstractmethod
    def fit_(self, matrix: Tensor) -> None:
        """Begin at the M of its kind that is near a positive definite matrix `(n, n)`, such as an inverse Hessian."""


class ScalarMetric(Metric):
    """M = exp(c) I."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.logarithm = nn.Parameter(torch.zeros(()))

    def forward(self, gradient: Tensor) -> Tensor:
        return self.logarithm.exp() * gradient

    @torch.no_grad()
    def fit_(self, matrix: Tensor) -> None:
        """No longer than the shortest of its eigenvalues allows."""
        self.logarithm.fill_(float(torch.linalg.eigvalsh(matrix.double())[0].clamp(min=1e-30).log()))


class DiagonalMetric(Metric):
    """M = diag(exp(c)), c `(n,)`."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.logarithms = nn.Parameter(torch.zeros(size))

    def forward(self, gradient: Tensor) -> Tensor:
        return self.logarithms.exp() * gradient

    @torch.no_grad()
    def fit_(self, matrix: Tensor) -> None:
        """The largest multiple of the diagonal that lies below the matrix."""
        diagonal = matrix.double().diagonal()
        root = diagonal.rsqrt()
        ratio = torch.linalg.eigvalsh(root[:, None] * matrix.double() * root)[0].clamp(min=1e-30)
        self.logarithms.copy_((ratio * diagonal).log())


class DenseMetric(Metric):
    """M = B (I + E)(I + E)'B', B `(n, n)` where it begins, E learned: in units of B."""

    base: Tensor

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.register_buffer("base", torch.eye(size))
        self.change = nn.Parameter(torch.zeros(size, size))

    def forward(self, gradient: Tensor) -> Tensor:
        factor = self.base + self.base @ self.change
        return gradient @ (factor @ factor.mT)

    @torch.no_grad()
    def fit_(self, matrix: Tensor) -> None:
        self.base = torch.linalg.cholesky(matrix.double()).to(self.base.dtype)


class LowRankMetric(Metric):
    """M = exp(s) (diag(exp(c)) + U U'), c `(n,)`, U `(n, rank)`: for many entries, of which few directions are flat.

    Args:
        size: n.
        rank: Columns of U, at most n.
    """

    scale: Tensor

    def __init__(self, size: int, rank: int = 8) -> None:
        super().__init__(size)
        self.rank = check_count("rank", rank, most=size)
        self.register_buffer("scale", torch.zeros(()))
        self.logarithms, self.directions = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size, rank))

    def config(self) -> dict[str, Any]:
        return {"size": self.size, "rank": self.rank}

    def forward(self, gradient: Tensor) -> Tensor:
        along = (gradient @ self.directions) @ self.directions.mT
        return self.scale.exp() * (self.logarithms.exp() * gradient + along)

    @torch.no_grad()
    def fit_(self, matrix: Tensor) -> None:
        """The largest eigenvalues as they are, and the smallest of all for everything else."""
        values, vectors = torch.linalg.eigh(matrix.double())
        self.scale = values[0].log().to(self.scale.dtype)
        self.directions.copy_(vectors[:, -self.rank :] * (values[-self.rank :] / values[0] - 1).clamp(min=0).sqrt())
