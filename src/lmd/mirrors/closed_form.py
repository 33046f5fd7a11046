"""Mirrors with closed forms: entropic, Euclidean, quadratic and with one layer (section 4 of the paper)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import (
    check_count,
    check_finite,
    check_floating,
    check_interval,
    check_positive,
    check_same_kind,
)
from lmd.errors import InputError
from lmd.mirrors.base import Mirror, check_positive_vector
from lmd.problems.simplex import kl_divergence
from lmd.terms import Box, Simplex
from lmd.terms.domains import check_rows

MARGIN = 1e-3  # distance from 0 and 1 that u keeps in `OneLayer.to_primal`
MIN_PIVOT = 1e-2  # least size of a pivot of A and of an entry of w in `OneLayer`


class Entropic(Mirror):
    r"""Psi(x) = \sum_i x_i log x_i on the simplex, x `(B, d)`; to_dual(x) = 1 + log x, to_primal(y) = softmax(y).

    Strongly convex with constant 1 in the l1 norm (Pinsker's inequality). Beck and Teboulle 2003, section 5.

    `to_primal` keeps every coordinate at or above the smallest normal number. So a coordinate that a gradient of 1e4
    would turn into 0 keeps a finite logarithm, and later gradients can raise it again. The sum changes by less than
    rounding.
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
        self.low, self.high = check_interval("box", (low, high))
        self.domain = Box(self.low, self.high)


class EuclideanSimplex(Euclidean):
    """Psi(x) = 1/2 ||x||^2 on the simplex: `to_primal` is the Euclidean projection; x `(B, d)`."""

    domain = Simplex()


class Quadratic(Mirror):
    """Psi(x) = 1/2 x'Ax with A symmetric positive definite, x `(B, d)`.

    The learned parameter is the Cholesky factor L of A = LL': to_dual(x) = LL'x, and to_primal solves two triangular
    systems. `constrain_` keeps the diagonal of L at or above `floor`, so that A stays positive definite.

    Args:
        dimension: d.
        floor: The least entry of the diagonal of L, positive.
    """

    def __init__(self, dimension: int, floor: float = 1e-3) -> None:
        super().__init__()
        self.dimension = check_count("dimension", dimension)
        self.floor = check_positive("floor", floor)
        self.factor = nn.Parameter(torch.eye(dimension))

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> Quadratic:
        """Return the mirror whose A is this symmetric positive definite matrix `(d, d)`."""
        check_finite("matrix", check_floating("matrix", matrix))
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise InputError("matrix", f"shape {tuple(matrix.shape)}", "a square matrix (d, d)")
        if bool((matrix - matrix.T).abs().max() > 1e-5 * matrix.abs().max()):
            raise InputError("matrix", "a matrix that is not symmetric", "a symmetric positive definite matrix")
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed):
            raise InputError("matrix", "a matrix that is not positive definite", "a symmetric positive definite matrix")
        mirror = cls(len(factor))
        mirror.factor = nn.Parameter(factor.clone())
        return mirror

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


class DiagonalQuadratic(Mirror):
    """Psi(x) = 1/2 sum_i a_i x_i^2 with a > 0, x `(B, d)`: mirror descent with one step-size per coordinate.

    Args:
        dimension: d.
        floor: The least a_i, positive.
        diagonal: The initial a `(d,)`, positive; None is 1.
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


class OneLayer(Mirror):
    r"""Psi(x) = w' g(Ax), g(t) = alpha t + (1 - alpha) log(1 + exp t), with A `(d, d)` invertible and w > 0.

    to_dual(x)   = A'(alpha w + (1 - alpha) w * sigmoid(Ax))
    to_primal(y) = A^{-1} logit(u),  u = (A^{-T} y - alpha w) / ((1 - alpha) w)

    The paper prints the gradient without the A' in front of the second term; that map is the gradient of no
    potential unless A is the identity.

    The range of `to_dual` is bounded: u has to lie in (0, 1). `to_primal` clips u to [MARGIN, 1 - MARGIN], and
    `clipped` counts the clipped entries.

    The parameters are the factors of A = PLU, L unit lower triangular and U upper triangular with a diagonal that
    `constrain_` keeps away from zero, so that A^{-1} and A^{-T} are triangular solves. The Hessian decays as |Ax|
    grows, so the strong convexity constant is 0.

    Args:
        dimension: d.
        alpha: A fixed number in [0, 1).
        matrix: The initial A `(d, d)`, invertible; None is the identity.
        weight: The initial w `(d,)`, positive; None is 1.
    """

    def __init__(
        self, dimension: int, alpha: float = 0.2, matrix: Tensor | None = None, weight: Tensor | None = None
    ) -> None:
        super().__init__()
        self.dimension = check_count("dimension", dimension)
        if not 0 <= alpha < 1:
            raise InputError("alpha", alpha, "a number in [0, 1)")
        self.alpha = alpha
        start = torch.eye(dimension) if matrix is None else check_finite("matrix", check_floating("matrix", matrix))
        if start.shape != (dimension, dimension):
            raise InputError("matrix", f"shape {tuple(start.shape)}", f"shape ({dimension}, {dimension})")
        permutation, lower, upper = torch.linalg.lu(start)
        if bool((upper.diagonal().abs() < MIN_PIVOT).any()):
            raise InputError("matrix", "a matrix that is nearly singular", f"pivots of at least {MIN_PIVOT:g}")
        self.permutation: Tensor
        self.register_buffer("permutation", permutation)
        self.lower = nn.Parameter(lower.contiguous())
        self.upper = nn.Parameter(upper.contiguous())
        if weight is None:
            weight = torch.ones(dimension, dtype=start.dtype, device=start.device)
        elif matrix is not None:
            check_same_kind("weight", weight, "matrix", matrix)
        self.weight = nn.Parameter(check_positive_vector("weight", weight, dimension).clone())

    @classmethod
    def random(cls, dimension: int, generator: torch.Generator, alpha: float = 0.2) -> OneLayer:
        """Draw the initial mirror of the paper: A is the identity plus N(0, 0.01) noise, w is uniform in (0, 1/d]."""
        noise = torch.randn(dimension, dimension, generator=generator) * 0.1
        weight = (1 - torch.rand(dimension, generator=generator)) / dimension
        mirror = cls(dimension, alpha, matrix=torch.eye(dimension) + noise, weight=weight)
        mirror.constrain_()
        return mirror

    def config(self) -> dict[str, Any]:
        return {"dimension": self.dimension, "alpha": self.alpha}

    @property
    def matrix(self) -> Tensor:
        """A `(d, d)`."""
        identity = torch.eye(len(self.weight), dtype=self.lower.dtype, device=self.lower.device)
        return self.permutation @ (self.lower.tril(-1) + identity) @ self.upper.triu()

    def potential(self, x: Tensor) -> Tensor:
        t = self.check("x", x) @ self.matrix.T
        return (self.alpha * t + (1 - self.alpha) * functional.softplus(t)) @ self.weight

    def to_dual(self, x: Tensor) -> Tensor:
        matrix = self.matrix
        slope = self.alpha + (1 - self.alpha) * torch.sigmoid(self.check("x", x) @ matrix.T)
        return (self.weight * slope) @ matrix

    def _unclipped(self, y: Tensor) -> Tensor:
        """Return u of the class docstring."""
        columns = torch.linalg.solve_triangular(self.upper.triu().T, self.check_shape("y", y).T, upper=False)
        columns = torch.linalg.solve_triangular(self.lower.T, columns, upper=True, unitriangular=True)
        slopes = (self.permutation @ columns).T  # A^{-T} y
        return (slopes - self.alpha * self.weight) / ((1 - self.alpha) * self.weight)

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        hidden = torch.logit(self._unclipped(y).clamp(MARGIN, 1 - MARGIN))
        columns = torch.linalg.solve_triangular(
            self.lower, self.permutation.T @ hidden.T, upper=False, unitriangular=True
        )
        return torch.linalg.solve_triangular(self.upper.triu(), columns, upper=True).T

    def clipped(self, y: Tensor) -> Tensor:
        u = self._unclipped(y)
        return ((u < MARGIN) | (u > 1 - MARGIN)).sum(dim=1)

    @property
    def strong_convexity(self) -> Tensor:
        return torch.zeros((), dtype=self.weight.dtype, device=self.weight.device)

    @property
    def smoothness(self) -> Tensor:
        """max_i (1 - alpha)/4 w_i ||A||^2, as the slope of the sigmoid is at most 1/4."""
        norm = torch.linalg.matrix_norm(self.matrix.detach(), ord=2)
        return (1 - self.alpha) / 4 * self.weight.detach().max() * norm.square()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep w positive, and the pivots of A away from zero without changing their signs."""
        self.weight.clamp_(min=MIN_PIVOT)
        diagonal = self.upper.diagonal()
        diagonal.copy_(torch.where(diagonal < 0, diagonal.clamp(max=-MIN_PIVOT), diagonal.clamp(min=MIN_PIVOT)))
