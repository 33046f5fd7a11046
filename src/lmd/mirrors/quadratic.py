"""Quadratic mirrors, dense (section 4 of the paper) and diagonal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_finite, check_floating, check_positive
from lmd.errors import InputError
from lmd.mirrors.base import Mirror, check_positive_vector


class Quadratic(Mirror):
    """Psi(x) = 1/2 x'Ax with A symmetric positive definite, x `(B, d)`.

    The learned parameter is the Cholesky factor L of A = LL': to_dual(x) = LL'x, and to_primal solves two triangular
    systems. `constrain_` keeps the diagonal of L at or above `floor`, so that A stays positive definite.

    Args:
        dimension: d.
        floor: The least entry of the diagonal of L, positive.
        matrix: A `(d, d)` at the start, symmetric and positive definite; None is the identity.
    """

    def __init__(self, dimension: int, floor: float = 1e-3, matrix: Tensor | None = None) -> None:
        super().__init__()
        self.dimension = check_count("dimension", dimension)
        self.floor = check_positive("floor", floor)
        start = torch.eye(dimension) if matrix is None else _factor(matrix, dimension)
        self.factor = nn.Parameter(start)

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> Quadratic:
        """Return the mirror of a symmetric positive definite matrix `(d, d)`."""
        check_floating("matrix", matrix)
        return cls(matrix.shape[0] if matrix.ndim else 1, matrix=matrix)

    def config(self) -> dict[str, Any]:
        return {"dimension": self.dimension, "floor": self.floor}

    @property
    def matrix(self) -> Tensor:
        """A `(d, d)`."""
        return self.factor.tril() @ self.factor.tril().T

    def potential(self, x: Tensor) -> Tensor:
        return 0.5 * (self.check("x", x) @ self.factor.tril()).square().sum(dim=1)

    def to_dual(self, x: Tensor) -> Tensor:
        lower = self.factor.tril()
        return self.check("x", x) @ lower @ lower.T

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        return torch.cholesky_solve(self.check_shape("y", y).T, self.factor.tril()).T

    def divergence(self, x: Tensor, y: Tensor) -> Tensor:
        return self.potential(x - y)

    @property
    def strong_convexity(self) -> Tensor:
        """The smallest eigenvalue of A: the square of the smallest singular value of L."""
        return torch.linalg.svdvals(self.factor.detach().tril())[-1].square()

    @property
    def smoothness(self) -> Tensor:
        """The largest eigenvalue of A."""
        return torch.linalg.svdvals(self.factor.detach().tril())[0].square()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep L lower triangular with a diagonal of at least `floor`."""
        self.factor.tril_()
        self.factor.diagonal().clamp_(min=self.floor)


def _factor(matrix: Tensor, dimension: int) -> Tensor:
    check_finite("matrix", check_floating("matrix", matrix))
    if matrix.shape != (dimension, dimension):
        raise InputError("matrix", f"shape {tuple(matrix.shape)}", f"shape ({dimension}, {dimension})")
    if bool((matrix - matrix.T).abs().max() > 1e-5 * matrix.abs().max()):
        raise InputError("matrix", "a matrix that is not symmetric", "a symmetric positive definite matrix")
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        raise InputError("matrix", "a matrix that is not positive definite", "a symmetric positive definite matrix")
    return factor.clone()


class DiagonalQuadratic(Mirror):
    """Psi(x) = 1/2 sum_i a_i x_i^2 with a > 0, x `(B, d)`: mirror descent with one step-size per coordinate.

    Args:
        dimension: d.
        floor: The least a_i, positive.
        diagonal: a `(d,)` at the start, positive; None is 1.
    """

    def __init__(self, dimension: int, floor: float = 1e-3, diagonal: Tensor | None = None) -> None:
        super().__init__()
        self.dimension = check_count("dimension", dimension)
        self.floor = check_positive("floor", floor)
        start = torch.ones(dimension) if diagonal is None else check_positive_vector("diagonal", diagonal, dimension)
        self.diagonal = nn.Parameter(start.clone())

    def config(self) -> dict[str, Any]:
        return {"dimension": self.dimension, "floor": self.floor}

    def potential(self, x: Tensor) -> Tensor:
        return 0.5 * (self.diagonal * self.check("x", x).square()).sum(dim=1)

    def to_dual(self, x: Tensor) -> Tensor:
        return self.diagonal * self.check("x", x)

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        return self.check_shape("y", y) / self.diagonal

    def divergence(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (self.diagonal * (x - y).square()).sum(dim=1)

    @property
    def strong_convexity(self) -> Tensor:
        return self.diagonal.detach().min()

    @property
    def smoothness(self) -> Tensor:
        return self.diagonal.detach().max()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep the diagonal at or above `floor`."""
        self.diagonal.clamp_(min=self.floor)
