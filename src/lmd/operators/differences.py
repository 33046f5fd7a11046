"""First and second differences of neighbours along axes, for total variation."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from lmd.core.checks import check_count, check_positive
from lmd.errors import InputError
from lmd.operators.base import LinearOperator, check_ending
from lmd.terms.base import size_of
from lmd.terms.wrappers import join, split


class Differences(LinearOperator):
    r"""Forward differences along the last d axes: x `(B, ..., *shape)` to z `(B, ..., d, *shape)`, d = len(shape).

    z_a = (the next entry along axis a - the entry itself) / h_a, and 0 at the last entry: differences do not wrap
    around. h is the `spacing`, a number or one for each axis, 1 by default. The adjoint ignores the last
    entry of z_a along axis a.

    Args:
        shape: The lengths of the last axes of x, along which differences are taken.
        spacing: h: a positive number, or one for each axis; None is 1.

    >>> Differences((3,))(torch.tensor([[1.0, 2.0, 4.0]]))
    tensor([[[1., 2., 0.]]])

    K'K is the Laplacian with reflecting borders, with eigenvalues \sum_a 4 sin^2(pi i_a / 2 n_a) / h_a^2 for
    0 <= i_a < n_a ([Strang 1999](https://doi.org/10.1137/S0036144598336745)); the largest is ||K||^2.
    """

    def __init__(self, shape: Sequence[int], spacing: float | Sequence[float] | None = None) -> None:
        self.shape = tuple(shape) if isinstance(shape, Iterable) else ()
        if not self.shape:
            raise InputError("shape", repr(shape), "the length of each axis, such as (height, width)")
        for n in self.shape:
            if not isinstance(n, int) or n < 1:
                check_count("shape", n)
        self.grid = self.shape
        self.spacing = (1.0,) * len(self.shape)
        if spacing is not None:
            given = spacing if isinstance(spacing, Iterable) else (spacing,) * len(self.shape)
            self.spacing = tuple(check_positive("spacing", h) for h in given)
        if len(self.spacing) != len(self.shape):
            accepted = f"one number, or one for each of the {len(self.shape)} axes"
            raise InputError("spacing", f"{len(self.spacing)} numbers", accepted)

    @property
    def wrapped_spectrum(self) -> Tensor | None:
        """The eigenvalues of K'K for differences that wrap around; None unless there are two axes."""
        if len(self.shape) != 2:
            return None
        turns = [torch.arange(n, dtype=torch.float64, device="cpu") * (2 * math.pi / n) for n in self.shape]
        down, right = ((2 - 2 * torch.cos(turn)) / h**2 for turn, h in zip(turns, self.spacing, strict=True))
        return (down[:, None] + right)[:, : self.shape[1] // 2 + 1]

    @functools.cached_property
    def norm(self) -> float:
        squared = 0.0
        for n, h in zip(self.shape, self.spacing, strict=True):
            squared += 4 * math.sin(math.pi * (n - 1) / (2 * n)) ** 2 / (h * h)
        return math.sqrt(squared) if squared > 0 else 1.0  # a single entry has no differences: any positive bound holds

    @property
    def roundings(self) -> float:
        """An entry of K'z is a sum of 2d quotients; || |K| || is at most 2^(1/2) ||K||, as sin^2 is at least 1/2."""
        return 8.0 * len(self.shape)

    def error(self, x: Tensor, z: Tensor) -> Tensor:
        """Differences and quotients have a relative error of eps each, however far x is from 0."""
        once = 1 if set(self.spacing) == {1.0} else 2
        return once * torch.finfo(z.dtype).eps * size_of(z)

    def _apply(self, x: Tensor) -> Tensor:
        axes = len(self.shape)
        z = x.new_empty(*check_ending("x", x, self.shape).shape[:-axes], axes, *self.shape)
        for axis, part, n, h in self._axes(z):
            inside = part.narrow(axis, 0, n - 1)
            if torch.compiler.is_compiling():  # which accepts only a contiguous `out`
                inside.copy_(x.narrow(axis, 1, n - 1) - x.narrow(axis, 0, n - 1))
            else:
                torch.sub(x.narrow(axis, 1, n - 1), x.narrow(axis, 0, n - 1), out=inside)
            if h != 1:
                inside.div_(h)
            part.narrow(axis, n - 1, 1).zero_()
        return z

    def _adjoint(self, z: Tensor) -> Tensor:
        axes = len(self.shape)
        x = check_ending("z", z, (axes, *self.shape)).new_zeros(*z.shape[: -axes - 1], *self.shape)
        for axis, part, n, h in self._axes(z):
            inside = part.narrow(axis, 0, n - 1)
            inside = inside if h == 1 else inside / h
            x.narrow(axis, 1, n - 1).add_(inside)
            x.narrow(axis, 0, n - 1).sub_(inside)
        return x

    def _axes(self, z: Tensor) -> list[tuple[int, Tensor, int, float]]:
        """Return the index of each axis, counted from the end, with its part of z, its length and its spacing."""
        axes = len(self.shape)
        return list(zip(range(-axes, 0), z.unbind(-axes - 1), self.shape, self.spacing, strict=True))


class _WithSlopes(LinearOperator):
    """Operators on arrays X `(B, n)` of an image x `(B, C, *shape)` and a field of slopes w `(B, C, d, *shape)`.

    Slopes lie between neighbours along an axis: the last w_a along axis a has no meaning and is ignored.

    Args:
        channels: C.
        shape: The length of each axis of an image.
        spacing: The distance of pixels: a number, or one for each axis; None is 1.
    """

    def __init__(self, channels: int, shape: Sequence[int], spacing: float | Sequence[float] | None = None) -> None:
        self.channels, self.differences = channels, Differences(shape, spacing)
        self.shape = self.differences.shape

    def split(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and w as views of X."""
        shapes = ((self.channels, *self.shape), (self.channels, len(self.shape), *self.shape))
        x, w = split(X, shapes)
        return x, w

    def _inside(self, w: Tensor) -> Tensor:
        """Return a copy of w with 0 for the last slopes along each axis."""
        w = w.clone()
        for axis in range(-len(self.shape), 0):
            w.select(-len(self.shape) - 1, axis).narrow(axis, -1, 1).zero_()
        return w


class Slopes(_WithSlopes):
    """X to Dx - w `(B, C, d, *shape)` with D the `Differences`; the last slopes along each axis count as 0."""

    @property
    def norm(self) -> float:
        return math.sqrt(self.differences.norm**2 + 1)

    @property
    def roundings(self) -> float:
        """Entries are sums of at most 2d + 1 terms."""
        return 8.0 * (len(self.shape) + 1)

    def error(self, X: Tensor, z: Tensor) -> Tensor:
        """Differences have a relative error of eps, and are equal to z + w."""
        return 4 * torch.finfo(z.dtype).eps * (size_of(z) + size_of(self.split(X)[1]))

    def _apply(self, X: Tensor) -> Tensor:
        x, w = self.split(X)
        return self.differences._apply(x).sub_(self._inside(w))

    def _adjoint(self, z: Tensor) -> Tensor:
        return join((self.differences._adjoint(z), self._inside(z).neg_()))


class Bends(_WithSlopes):
    r"""X to Ew `(B, C, d (d + 1) / 2, *shape)`: D_a w_a for each axis, and (D_a w_b + D_b w_a) / \sqrt 2 for each pair.

    Ew is the symmetrised derivative of w, scaled so that its norm is the Frobenius norm of the symmetric matrix. It is
    0 where w is constant, such as for the slopes of a plane.
    """

    @property
    def norm(self) -> float:
        """The symmetric part of a matrix has at most the Frobenius norm of the matrix."""
        return self.differences.norm

    @property
    def roundings(self) -> float:
        """Entries are sums of at most 4d quotients, each with a relative error of a few eps."""
        return 24.0 * len(self.shape)

    def error(self, X: Tensor, z: Tensor) -> Tensor:
        """Differences and quotients have a relative error of eps each, however steep w is."""
        return 8 * torch.finfo(z.dtype).eps * size_of(self.differences._apply(self.split(X)[1].flatten(1, 2)))

    def _pairs(self) -> list[tuple[int, int]]:
        """Return the two axes of each component."""
        return list(combinations_with_replacement(range(len(self.shape)), 2))

    def _without_ends(self, z: Tensor) -> Tensor:
        """Set D_a w_a to 0 in place at the last two pixels along axis a, which have no difference of slopes."""
        for place, (a, b) in enumerate(self._pairs()):
            if a == b:
                axis, n = a - len(self.shape), self.shape[a]
                z[:, :, place].narrow(axis, max(n - 2, 0), min(n, 2)).zero_()
        return z

    def _apply(self, X: Tensor) -> Tensor:
        D = self.differences._apply(self._inside(self.split(X)[1]))  # D_b w_a at [:, :, a, b]
        both = [D[:, :, a, a] if a == b else (D[:, :, a, b] + D[:, :, b, a]) * 0.5**0.5 for a, b in self._pairs()]
        return self._without_ends(torch.stack(both, dim=2))

    def _adjoint(self, z: Tensor) -> Tensor:
        D = z.new_zeros(*z.shape[:2], len(self.shape), len(self.shape), *self.shape)
        for (a, b), part in zip(self._pairs(), self._without_ends(z.clone()).unbind(2), strict=True):
            D[:, :, a, b] = D[:, :, b, a] = part if a == b else part * 0.5**0.5
        w = self._inside(self.differences._adjoint(D))
        return join((w.new_zeros(len(w), self.channels, *self.shape), w))
