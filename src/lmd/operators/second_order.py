"""What second-order total variation measures: how far slopes are from a field of slopes, and how that field bends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from lmd.core.checks import shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator
from lmd.operators.differences import Differences
from lmd.terms.base import size_of


class _WithSlopes(LinearOperator):
    """Of arrays X `(B, n)` that hold images x `(B, C, *shape)` and fields of slopes w `(B, C, d, *shape)`, in turn.

    Along axis a slopes lie between neighbours: the last w_a along it is none, and is left out everywhere.
    """

    def __init__(self, channels: int, shape: Sequence[int], spacing: float | Sequence[float] | None = None) -> None:
        self.channels, self.differences = channels, Differences(shape, spacing)
        self.shape = self.differences.shape

    def split(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """x and w, as views."""
        pixels, axes = self.channels * math.prod(self.shape), len(self.shape)
        if X.ndim != 2 or X.shape[1] != (axes + 1) * pixels:
            raise InputError("X", f"shape {shape_of(X)}", f"shape (B, {(axes + 1) * pixels})")
        x, w = X[:, :pixels], X[:, pixels:]
        return x.view(-1, self.channels, *self.shape), w.view(-1, self.channels, axes, *self.shape)

    def join(self, x: Tensor, w: Tensor) -> Tensor:
        """X `(B, n)`."""
        return torch.cat([x.flatten(1), w.flatten(1)], dim=1)

    def _along(self, field: Tensor, axis: int) -> Tensor:
        """The part of a field that belongs to an axis, counted from the end, without its last entries along it."""
        part = field.select(-len(self.shape) - 1, axis + len(self.shape))
        return part.narrow(axis, 0, self.shape[axis] - 1)


class Slopes(_WithSlopes):
    """X to Dx - w `(B, C, d, *shape)`, D the `Differences` of x; entries of the last w along an axis are 0.

    Args:
        channels: C.
        shape: The length of each axis of an image.
        spacing: Of the pixels: a number, or one for each axis; None is 1.
    """

    @property
    def norm(self) -> float:
        return math.sqrt(self.differences.norm**2 + 1)

    @property
    def roundings(self) -> float:
        """Sums of at most 2d + 1 terms."""
        return 8.0 * (len(self.shape) + 1)

    def error(self, X: Tensor, z: Tensor) -> Tensor:
        """Differences are right to eps relative to themselves, and these are z + w."""
        return 4 * torch.finfo(z.dtype).eps * (size_of(z) + size_of(self.split(X)[1]))

    def _apply(self, X: Tensor) -> Tensor:
        x, w = self.split(X)
        z = self.differences._apply(x)
        for axis in range(-len(self.shape), 0):
            self._along(z, axis).sub_(self._along(w, axis))
        return z

    def _adjoint(self, z: Tensor) -> Tensor:
        w = torch.zeros_like(z)
        for axis in range(-len(self.shape), 0):
            self._along(w, axis).sub_(self._along(z, axis))
        return self.join(self.differences._adjoint(z), w)


class Bends(_WithSlopes):
    r"""X to Ew `(B, C, d (d + 1) / 2, *shape)`: D_a w_a for each axis, and (D_a w_b + D_b w_a) / \sqrt 2 for each pair.

    The symmetrised derivative of w, such that its length is that of the symmetric matrix. Where w is constant, as the
    slopes of a plane are, all of it is 0.

    Args:
        channels: C.
        shape: The length of each axis of an image.
        spacing: Of the pixels: a number, or one for each axis; None is 1.
    """

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The axes that each component belongs to, counted from the end."""
        return list(combinations_with_replacement(range(-len(self.shape), 0), 2))

    @property
    def norm(self) -> float:
        """The symmetric part of a matrix is no longer than the matrix."""
        return self.differences.norm

    @property
    def roundings(self) -> float:
        """Sums of at most 4d quotients, each right to a few eps."""
        return 24.0 * len(self.shape)

    def error(self, X: Tensor, z: Tensor) -> Tensor:
        """Differences and quotients are right to eps relative to themselves, however steep w is."""
        return 8 * torch.finfo(z.dtype).eps * size_of(self.differences._apply(self.split(X)[1].flatten(1, 2)))

    def _terms(self, w: Tensor, z: Tensor) -> list[tuple[Tensor, Tensor, int, float]]:
        """Of each derivative: a part of w, where it goes, the axis of the difference, what it is multiplied by."""
        found = []
        for place, (a, b) in enumerate(self.pairs):
            into, once = z.select(-len(self.shape) - 1, place), a == b
            for axis in (a, b):  # twice along an axis of two differences
                into = into.narrow(axis, 0, max(into.shape[axis] - 1, 0))
            for own, axis in ((a, b),) if once else ((a, b), (b, a)):
                factor = (1.0 if once else 0.5**0.5) / self.differences.spacing[axis]
                found.append((self._along(w, own), into, axis, factor))
        return found

    def _apply(self, X: Tensor) -> Tensor:
        _, w = self.split(X)
        z = w.new_zeros(*w.shape[:2], len(self.pairs), *self.shape)
        for part, into, axis, factor in self._terms(w, z):
            n = into.shape[axis]
            into.add_(part.narrow(axis, min(1, n), n) - part.narrow(axis, 0, n), alpha=factor)
        return z

    def _adjoint(self, z: Tensor) -> Tensor:
        w = z.new_zeros(*z.shape[:2], len(self.shape), *self.shape)
        for part, out, axis, factor in self._terms(w, z):
            n = out.shape[axis]
            part.narrow(axis, min(1, n), n).add_(out, alpha=factor)
            part.narrow(axis, 0, n).sub_(out, alpha=factor)
        return self.join(w.new_zeros(len(w), self.channels, *self.shape), w)
