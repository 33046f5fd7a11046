"""The potential with one hidden layer and a closed-form inverse: section 4 of the paper, its formula corrected."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import check_count, check_finite, check_floating, check_same_kind
from lmd.errors import InputError
from lmd.mirrors.base import Mirror, check_positive_vector

MARGIN = 1e-3  # distance from 0 and 1 that u keeps in `to_primal`
MIN_PIVOT = 1e-2  # least size of a pivot of A and of an entry of w


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
        alpha: In [0, 1), fixed.
        matrix: A `(d, d)` at the start, invertible; None is the identity.
        weight: w `(d,)` at the start, positive; None is 1.
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
        """Draw the paper's start: A the identity plus N(0, 0.01) noise, w uniform in (0, 1/d]."""
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
        """max_i (1 - alpha)/4 w_i ||A||^2, as the sigmoid is nowhere steeper than 1/4."""
        norm = torch.linalg.matrix_norm(self.matrix.detach(), ord=2)
        return (1 - self.alpha) / 4 * self.weight.detach().max() * norm.square()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep w positive and the pivots of A away from zero, each on its own side of it."""
        self.weight.clamp_(min=MIN_PIVOT)
        diagonal = self.upper.diagonal()
        diagonal.copy_(torch.where(diagonal < 0, diagonal.clamp(max=-MIN_PIVOT), diagonal.clamp(min=MIN_PIVOT)))
