"""Dense matrices, masks, and stacks of operators that are applied to the same x."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, reduce

import torch
from torch import Tensor

from lmd.core.checks import check_finite, check_floating, check_zero_one, shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator
from lmd.terms import Term
from lmd.terms.base import size_of
from lmd.terms.quadratic import times
from lmd.terms.wrappers import Stacked, check_scales, join, split


class Matrix(LinearOperator):
    """Kx = Ax for rows x `(B, d)`, z `(B, m)`: A `(m, d)` for all instances, or one for each `(B, m, d)`.

    The norm is the largest singular value over all instances.

    Args:
        A: `(m, d)` or `(B, m, d)`, floating-point.

    >>> Matrix(torch.tensor([[1.0, 2.0], [0.0, 1.0], [0.0, 0.0]]))(torch.tensor([[1.0, 1.0]]))
    tensor([[3., 1., 0.]])
    """

    def __init__(self, A: Tensor) -> None:
        if check_finite("A", check_floating("A", A)).ndim not in (2, 3) or A.numel() == 0:
            raise InputError("A", f"shape {shape_of(A)}", "a matrix (m, d), or one for each instance (B, m, d)")
        self.A, self.batched = A, ("A",) if A.ndim == 3 else ()

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
        """Multiply each row by `right`, one matrix or one for each instance."""
        batch = len(rows) if self.A.ndim == 2 else len(self.A)
        if rows.shape != (batch, right.shape[-2]):
            expected = f"({'B' if self.A.ndim == 2 else batch}, {right.shape[-2]}) to go with A {shape_of(self.A)}"
            raise InputError(argument, f"shape {shape_of(rows)}", f"shape {expected}")
        return times(rows, right)

    def magnitude(self, x: Tensor) -> Tensor:
        return times(x.abs(), self.A.abs().mT)

    def gram(self, x: Tensor) -> Tensor:
        return self.A.mT @ self.A


class Mask(LinearOperator):
    """Kx = mask * x, entry by entry: 1 (or true) where an entry is kept, 0 (or false) where it is lost.

    The mask has as many dimensions as x and broadcasts against it: `(B, ...)`, or `(1, ...)` for all instances.

    Args:
        mask: A tensor of 0 and 1 or of booleans, `(B, ...)` or `(1, ...)`.

    >>> import torch
    >>> Mask(torch.tensor([[1, 0]]))(torch.tensor([[2.0, 3.0], [4.0, 5.0]]))
    tensor([[2., 0.],
            [4., 0.]])
    """

    norm, roundings = 1.0, 0.0
    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        self.mask = check_zero_one("mask", mask)
        self.batched = ("mask",) if len(mask) > 1 else ()

    def _apply(self, x: Tensor) -> Tensor:
        if self.mask.ndim != x.ndim or any(m not in (1, n) for m, n in zip(self.mask.shape, x.shape, strict=True)):
            accepted = f"a shape that the mask {shape_of(self.mask)} broadcasts to, dimension by dimension"
            raise InputError("x", f"shape {shape_of(x)}", accepted)
        return self.mask.to(x) * x

    _adjoint = _apply


class Stack(LinearOperator):
    """Map x to (s_1 K_1 x, s_2 K_2 x, ...), flattened instance by instance and joined: z `(B, n)`.

    Args:
        parts: The operators K_j, at least one.
        shapes: For each part, the shape of K_j x without the batch dimension.
        scales: A positive factor s_j for each part; None is 1.

    >>> from lmd.operators import Differences, Identity
    >>> stack = Stack((Differences((2,)), Identity()), ((1, 2), (2,)), (1.0, 10.0))
    >>> stack(torch.tensor([[3.0, 5.0]]))
    tensor([[ 2.,  0., 30., 50.]])
    """

    def __init__(
        self, parts: Sequence[LinearOperator], shapes: Sequence[Sequence[int]], scales: Sequence[float] | None = None
    ) -> None:
        self.parts, self.shapes = tuple(parts), tuple(tuple(shape) for shape in shapes)
        self.scales = check_scales(scales, len(self.parts))

    def stacked(self, terms: Sequence[Term]) -> Stacked:
        return Stacked(terms, self.shapes, self.scales)

    @property
    def blocks(self) -> tuple[LinearOperator, ...]:
        return self.parts

    @cached_property
    def norm(self) -> float:
        return math.hypot(*(scale * part.norm for part, scale in zip(self.parts, self.scales, strict=True)))

    @property
    def roundings(self) -> float:
        return sum(part.roundings for part in self.parts) + len(self.parts)

    def error(self, x: Tensor, z: Tensor) -> Tensor:
        """Combine the errors of the parts and of the products with their scales, which have a relative error of eps."""
        eps = torch.finfo(z.dtype).eps
        errors = [
            part.error(x, piece) if scale == 1 else scale * part.error(x, piece / scale) + eps * size_of(piece)
            for part, piece, scale in zip(self.parts, self.split(z), self.scales, strict=True)
        ]
        return torch.linalg.vector_norm(torch.stack(errors), dim=0)

    def adjoint_error(self, z: Tensor) -> Tensor:
        """Add the errors of the parts and of their sum, whose summands s_j K_j'z_j are at most s_j norm_j ||z_j||."""
        eps = len(self.parts) * torch.finfo(z.dtype).eps
        pieces = zip(self.parts, self.split(z), self.scales, strict=True)
        errors = [scale * (part.adjoint_error(p) + eps * part.norm * size_of(p)) for part, p, scale in pieces]
        return torch.stack(errors).sum(dim=0)

    def split(self, z: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of z `(B, n)` as views `(B, *shapes[j])`."""
        return split(z, self.shapes)

    def _apply(self, x: Tensor) -> Tensor:
        images = [
            part(x) if scale == 1 else scale * part(x) for part, scale in zip(self.parts, self.scales, strict=True)
        ]
        return join(images).to(x.dtype)  # users' operators may return another dtype

    def _adjoint(self, z: Tensor) -> Tensor:
        first, *others = zip(self.parts, self.split(z), self.scales, strict=True)
        x = first[0].adjoint(first[1])
        x = x if first[2] == 1 else x.mul_(first[2])
        for part, piece, scale in others:
            x.add_(part.adjoint(piece), alpha=scale)
        return x

    def gram(self, x: Tensor) -> Tensor:
        grams = [scale**2 * part.gram(x) for part, scale in zip(self.parts, self.scales, strict=True)]
        return reduce(torch.add, grams)
