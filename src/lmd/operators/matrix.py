"""Dense matrices, one for all instances or one for each; masks."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from lmd.core.batching import Index, take_instances
from lmd.core.checks import check_finite, check_floating, check_zero_one, shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator
from lmd.terms.quadratic import times


class Matrix(LinearOperator):
    """Kx = Ax for rows x `(B, d)`, z `(B, m)`: A `(m, d)` for all instances, or one for each `(B, m, d)`.

    The norm is the largest singular value, of all instances.

    Args:
        A: `(m, d)` or `(B, m, d)`, floating-point.

    >>> Matrix(torch.tensor([[1.0, 2.0], [0.0, 1.0], [0.0, 0.0]]))(torch.tensor([[1.0, 1.0]]))
    tensor([[3., 1., 0.]])
    """

    def __init__(self, A: Tensor) -> None:
        if check_finite("A", check_floating("A", A)).ndim not in (2, 3) or A.numel() == 0:
            raise InputError("A", f"shape {shape_of(A)}", "a matrix (m, d), or one for each instance (B, m, d)")
        self.A = A

    @cached_property
    def norm(self) -> float:
        norm = float(torch.linalg.matrix_norm(self.A.double(), 2).max())
        return norm * (1 + 1e-12) if norm > 0 else 1.0

    @cached_property
    def roundings(self) -> float:
        """|| |A| || is at most the Frobenius norm."""
        return max(self.A.shape[-2:]) * float(torch.linalg.matrix_norm(self.A.double()).max()) / self.norm

    def _apply(self, x: Tensor) -> Tensor:
        return self._times("x", self.A.mT, x)

    def _adjoint(self, z: Tensor) -> Tensor:
        return self._times("z", self.A, z)

    def _times(self, argument: str, right: Tensor, rows: Tensor) -> Tensor:
        """Multiply each row by the matrix `right`, `(B, ...)`."""
        batch = len(rows) if self.A.ndim == 2 else len(self.A)
        if rows.shape != (batch, right.shape[-2]):
            expected = f"({'B' if self.A.ndim == 2 else batch}, {right.shape[-2]}) to go with A {shape_of(self.A)}"
            raise InputError(argument, f"shape {shape_of(rows)}", f"shape {expected}")
        return rows @ right if self.A.ndim == 2 else (rows[:, None] @ right)[:, 0]

    def magnitude(self, x: Tensor) -> Tensor:
        return times(x.abs(), self.A.abs().mT)

    def gram(self, x: Tensor) -> Tensor:
        return self.A.mT @ self.A

    def select(self, index: Index) -> Matrix:
        return self if self.A.ndim == 2 else Matrix(take_instances(self.A, index))


class Mask(LinearOperator):
    """Kx = mask * x, entry by entry: 1 (or true) where an entry is kept, 0 (or false) where it is lost.

    The mask has as many dimensions as x and broadcasts against it: `(B, ...)`, or `(1, ...)` for all instances.

    Args:
        mask: Of 0 and 1, or booleans: `(B, ...)` or `(1, ...)`.

    >>> import torch
    >>> Mask(torch.tensor([[1, 0]]))(torch.tensor([[2.0, 3.0], [4.0, 5.0]]))
    tensor([[2., 0.],
            [4., 0.]])
    """

    norm, roundings = 1.0, 0.0
    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        self.mask = check_zero_one("mask", mask)

    def _apply(self, x: Tensor) -> Tensor:
        if self.mask.ndim != x.ndim or any(m not in (1, n) for m, n in zip(self.mask.shape, x.shape, strict=True)):
            accepted = f"a shape that the mask {shape_of(self.mask)} broadcasts to, dimension by dimension"
            raise InputError("x", f"shape {shape_of(x)}", accepted)
        return self.mask.to(x) * x

    def _adjoint(self, z: Tensor) -> Tensor:
        return self._apply(z)

    def select(self, index: Index) -> Mask:
        return self if len(self.mask) == 1 else Mask(take_instances(self.mask, index))
