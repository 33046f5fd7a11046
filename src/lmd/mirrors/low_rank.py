"""The quadratic mirror of a diagonal plus a matrix of low rank, whose inverse is in closed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_positive
from lmd.mirrors.base import Mirror, check_width


class LowRankQuadratic(Mirror):
    """Psi(x) = 1/2 x'(diag(a) + U'U)x with a > 0 and U `(rank, d)`, x `(B, d)`: d (rank + 1) numbers.

    to_primal(y) = z - a^{-1} U'(I + U a^{-1} U')^{-1} U z with z = a^{-1} y, the Woodbury identity: a system of `rank`
    equations ([Woodbury 1950](https://mathscinet.ams.org/mathscinet-getitem?mr=38136)). U begins small and random.

    Args:
        dimension: d.
        rank: Rows of U.
        floor: The least a_i, which `constrain_` keeps to.
        seed: What U is drawn from.
    """

    def __init__(self, dimension: int, rank: int, floor: float = 1e-3, seed: int = 0) -> None:
        super().__init__()
        self.dimension, self.rank = check_count("dimension", dimension), check_count("rank", rank)
        self.floor, self.seed = check_positive("floor", floor), seed
        self.diagonal = nn.Parameter(torch.ones(dimension))
        start = torch.randn(rank, dimension, generator=torch.Generator().manual_seed(seed))
        self.factor = nn.Parameter(0.01 * start)

    def config(self) -> dict[str, Any]:
        return {"dimension": self.dimension, "rank": self.rank, "floor": self.floor, "seed": self.seed}

    def check(self, argument: str, x: Tensor) -> Tensor:
        return super().check(argument, check_width(argument, x, self.dimension))

    def potential(self, x: Tensor) -> Tensor:
        self.check("x", x)
        return 0.5 * ((self.diagonal * x.square()).sum(dim=1) + (x @ self.factor.T).square().sum(dim=1))

    def to_dual(self, x: Tensor) -> Tensor:
        return self.diagonal * self.check("x", x) + x @ self.factor.T @ self.factor

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        scaled, z = self.factor / self.diagonal, check_width("y", y, self.dimension) / self.diagonal
        inner = torch.eye(self.rank, dtype=y.dtype, device=y.device) + scaled @ self.factor.T
        inside = torch.cholesky_solve((z @ self.factor.T).T, torch.linalg.cholesky(inner)).T
        return z - inside @ scaled

    def divergence(self, x: Tensor, y: Tensor) -> Tensor:
        return self.potential(x - y)

    def _eigenvalues(self) -> Tensor:
        factor, diagonal = self.factor.detach().double(), self.diagonal.detach().double()
        return torch.linalg.eigvalsh(torch.diag(diagonal) + factor.T @ factor).to(self.diagonal.dtype)

    @property
    def strong_convexity(self) -> Tensor:
        return self._eigenvalues()[0]

    @property
    def smoothness(self) -> Tensor:
        return self._eigenvalues()[-1]

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep the diagonal at or above `floor`."""
        self.diagonal.clamp_(min=self.floor)
