"""Differences of neighbours along axes, and those of second order: what total variation measures."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from lmd.core.checks import check_count, check_positive
from lmd.core.extras import require
from lmd.errors import InputError
from lmd.operators.base import LinearOperator, check_ending
from lmd.terms.base import size_of
from lmd.terms.stacked import split


class Differences(LinearOperator):
    r"""Forward differences along the last d axes: x `(B, ..., *shape)` to z `(B, ..., d, *shape)`, d = len(shape).

    z_a = (the next entry along axis a - the entry itself) / h_a, and 0 where the next entry would be outside: nothing
    wraps around. h is the `spacing`, a number or one for each axis, 1 by default. The adjoint does not look at the
    entries of z that are 0.

    Args:
        shape: The length of each axis that differences are taken along, the last ones of x.
        spacing: h: a positive number, or one for each axis; None is 1.

    >>> Differences((3,))(torch.tensor([[1.0, 2.0, 4.0]]))
    tensor([[[1., 2., 0.]]])

    K'K is the Laplacian with reflecting borders, which the cosine transform diagonalises with eigenvalues
    \sum_a 4 sin^2(pi i_a / 2 n_a) / h_a^2, 0 <= i_a < n_a
    ([Strang 1999](https://doi.org/10.1137/S0036144598336745)). The largest is ||K||^2; `solve` inverts a I + b K'K.
    """

    def __init__(self, shape: Sequence[int], spacing: float | Sequence[float] | None = None) -> None:
        self.shape = tuple(shape) if isinstance(shape, Iterable) else ()
        if not self.shape:
            raise InputError("shape", repr(shape), "the length of each axis, such as (height, width)")
        for n in self.shape:
            if not isinstance(n, int) or n < 1:
                check_count("shape", n)
        self.grid = self.shape
        self.spacing = (1.0,) * len(self.shape) if spacing is None else _check_spacing(spacing, len(self.shape))

    @property
    def wrapped_spectrum(self) -> Tensor | None:
        """The spectrum of differences that wrap around, which include all of these; of two axes."""
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
        return math.sqrt(squared) if squared > 0 else 1.0  # a single entry has no differences: any bound serves it

    @property
    def roundings(self) -> float:
        """An entry of K'z is a sum of 2d quotients; || |K| || is at most 2^(1/2) ||K||, as sin^2 is at least 1/2."""
        return 8.0 * len(self.shape)

    def error(self, x: Tensor, z: Tensor) -> Tensor:
        """Differences and quotients are right to eps relative to themselves, however far x is from 0."""
        once = 1 if all(h == 1 for h in self.spacing) else 2
        return once * torch.finfo(z.dtype).eps * size_of(z)

    def _apply(self, x: Tensor) -> Tensor:
        axes = len(self.shape)
        z = x.new_empty(*check_ending("x", x, self.shape).shape[:-axes], axes, *self.shape)
        for axis, part, n, h in self._axes(z):
            inside = part.narrow(axis, 0, n - 1)
            _subtract(x.narrow(axis, 1, n - 1), x.narrow(axis, 0, n - 1), inside)
            if h != 1:
                inside.div_(h)
            part.narrow(axis, n - 1, 1).zero_()
        return z

    def _adjoint(self, z: Tensor) -> Tensor:
        axes = len(self.shape)
        check_ending("z", z, (axes, *self.shape))
        x = z.new_empty(*z.shape[: -axes - 1], *self.shape)
        for axis, part, n, h in self._axes(z):
            inside = part.narrow(axis, 0, n - 1)
            inside = inside if h == 1 else inside / h
            if axis == -axes:
                _write_adjoint(x, inside, axis)
            else:
                x.narrow(axis, 1, n - 1).add_(inside)
                x.narrow(axis, 0, n - 1).sub_(inside)
        return x

    def _axes(self, z: Tensor) -> list[tuple[int, Tensor, int, float]]:
        """Return for each axis its place, counted from the end, its part of z, its length and its spacing."""
        axes = len(self.shape)
        return list(zip(range(-axes, 0), z.unbind(-axes - 1), self.shape, self.spacing, strict=True))

    def solve(self, x: Tensor, identity: float, gram: float) -> Tensor:
        """(identity I + gram K'K)^{-1} x by the cosine transform, on the CPU."""
        require("scipy")
        from scipy import fft

        axes = tuple(range(-len(self.shape), 0))
        values = identity + gram * self.eigenvalues().to(x.dtype)
        spectrum = torch.from_numpy(fft.dctn(x.numpy(), axes=axes, norm="ortho")).div_(values)
        return torch.from_numpy(fft.idctn(spectrum.numpy(), axes=axes, norm="ortho", overwrite_x=True))

    def eigenvalues(self) -> Tensor:
        """The eigenvalues of K'K in the basis of the cosine transform, in this `shape`, float64."""
        places = [torch.arange(n, dtype=torch.float64, device="cpu") / (2 * n) for n in self.shape]
        sines = [2 * torch.sin(math.pi * place) / h for place, h in zip(places, self.spacing, strict=True)]
        return functools.reduce(operator.add, torch.meshgrid(*[each.square() for each in sines], indexing="ij"))


def _subtract(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write a - b to `out`, which may have gaps: these `torch.compile` does not take for an `out`."""
    if torch.compiler.is_compiling():
        out.copy_(a - b)
    else:
        torch.sub(a, b, out=out)


def _write_adjoint(x: Tensor, inside: Tensor, axis: int) -> None:
    """Write to x what the differences along one axis, n - 1 of them, give to it: 0 where there are none."""
    n = x.shape[axis]
    if n == 1:
        x.zero_()
        return
    x.select(axis, 0).copy_(inside.select(axis, 0)).neg_()
    _subtract(inside.narrow(axis, 0, n - 2), inside.narrow(axis, 1, n - 2), x.narrow(axis, 1, n - 2))
    x.select(axis, n - 1).copy_(inside.select(axis, n - 2))


def _check_spacing(spacing: float | Sequence[float], axes: int) -> tuple[float, ...]:
    """One positive number for each axis."""
    if not isinstance(spacing, Iterable):
        return (check_positive("spacing", spacing),) * axes
    each = tuple(check_positive("spacing", h) for h in spacing)
    if len(each) != axes:
        raise InputError("spacing", f"{len(each)} numbers", f"one number, or one for each of the {axes} axes")
    return each


class _WithSlopes(LinearOperator):
    """Operators on arrays X `(B, n)` of an image x `(B, C, *shape)` and a field of slopes w `(B, C, d, *shape)`.

    Along axis a slopes lie between neighbours: the last w_a along it is none, and is left out everywhere.

    Args:
        channels: C.
        shape: The length of each axis of an image.
        spacing: The distance of pixels: a number, or one for each axis; None is 1.
    """

    def __init__(self, channels: int, shape: Sequence[int], spacing: float | Sequence[float] | None = None) -> None:
        self.channels, self.differences = channels, Differences(shape, spacing)
        self.shape = self.differences.shape

    def split(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """x and w, as views."""
        shapes = ((self.channels, *self.shape), (self.channels, len(self.shape), *self.shape))
        x, w = split(X, shapes, "X")
        return x, w

    def join(self, x: Tensor, w: Tensor) -> Tensor:
        """X `(B, n)`."""
        return torch.cat([x.flatten(1), w.flatten(1)], dim=1)

    def _along(self, field: Tensor, axis: int) -> Tensor:
        """The part of a field that belongs to an axis, counted from the end, without its last entries along it."""
        part = field.select(-len(self.shape) - 1, axis + len(self.shape))
        return part.narrow(axis, 0, self.shape[axis] - 1)


class Slopes(_WithSlopes):
    """X to Dx - w `(B, C, d, *shape)`, D the `Differences` of x; entries of the last w along an axis are 0."""

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
        """Return for each derivative its part of w, its place in z, the axis of the difference, and its factor."""
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
