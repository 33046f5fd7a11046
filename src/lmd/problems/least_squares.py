"""Least squares ||Wx - b||^2: section 4.1 of the paper, Figures 2 and 3."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from lmd.core.batching import doubled
from lmd.core.checks import check_batch, check_finite, check_floating, check_same_kind, shape_of
from lmd.errors import InputError
from lmd.problems.base import Family, Problem

PAPER_MATRIX = ((2.0, 1.0), (1.0, 2.0))
"""The W of the paper; the eigenvalues of W'W are 9 and 1."""


def check_matrix(argument: str, matrix: Tensor) -> Tensor:
    """Return `matrix` if it is a finite floating-point matrix."""
    if check_finite(argument, check_floating(argument, matrix)).ndim != 2:
        raise InputError(argument, f"shape {shape_of(matrix)}", "a matrix (m, d)")
    return matrix


class LeastSquares(Problem):
    """f_i(x) = ||W x - b_i||^2 with one W `(m, d)` for the batch; b `(B, m)`, x `(B, d)`.

    Args:
        W: `(m, d)`, the same for all instances.
        b: `(B, m)`.
    """

    batched = ("b",)

    def __init__(self, W: Tensor, b: Tensor) -> None:
        self.W = check_matrix("W", W)
        self.b = check_batch("b", b)
        if b.shape[1:] != W.shape[:1]:
            raise InputError("b", f"shape {shape_of(b)}", f"shape (B, {W.shape[0]}) to go with W {shape_of(W)}")
        check_same_kind("b", b, "W", W)

    def check_start(self, x0: Tensor) -> Tensor:
        if x0.shape[1:] != self.W.shape[1:]:
            accepted = f"shape (B, {self.W.shape[1]}) to go with W {shape_of(self.W)}"
            raise InputError("x0", f"shape {shape_of(x0)}", accepted)
        return super().check_start(x0)

    def double(self) -> LeastSquares:
        return doubled(self)

    def value(self, x: Tensor) -> Tensor:
        return (x @ self.W.T - self.b).square().sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        return 2 * (x @ self.W.T - self.b) @ self.W

    @property
    def terms(self) -> int:
        """m: one for each row of W."""
        return self.W.shape[0]

    def minibatch(self, indices: Tensor) -> LeastSquares:
        scale = (self.terms / len(indices)) ** 0.5
        return LeastSquares(scale * self.W[indices], scale * self.b[:, indices])

    def minimiser(self) -> Tensor:
        return torch.linalg.lstsq(self.W, self.b.T).solution.T

    @cached_property
    def _hessian_eigenvalues(self) -> Tensor:
        """Of W alone, so the same for any part of the batch."""
        return 2 * torch.linalg.eigvalsh(self.W.T @ self.W)

    @property
    def smoothness(self) -> Tensor:
        return self._hessian_eigenvalues[-1]

    @property
    def strong_convexity(self) -> Tensor:
        return self._hessian_eigenvalues[0].clamp(min=0)


class LeastSquaresFamily(Family):
    """Random right-hand sides b and starting points, both standard normal; W as given, the paper's by default.

    Args:
        W: `(m, d)`; None is the paper's matrix.
        dtype: Of the problems and the starting points.
    """

    name = "least-squares"

    def __init__(self, W: Tensor | None = None, dtype: torch.dtype = torch.float64) -> None:
        self.W = torch.tensor(PAPER_MATRIX, dtype=dtype, device="cpu") if W is None else check_matrix("W", W).to(dtype)

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        device, dtype = generator.device, self.W.dtype
        b, x0 = (torch.randn(batch, n, generator=generator, device=device, dtype=dtype) for n in self.W.shape)
        return LeastSquares(self.W.to(generator.device), b), x0
