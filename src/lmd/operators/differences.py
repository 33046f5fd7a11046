"""Differences of neighbours along one axis or several: what total variation measures."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lmd.core.checks import check_count, check_positive
from lmd.core.extras import require
from lmd.errors import InputError
from lmd.operators.base import LinearOperator, check_ending, check_place
from lmd.terms import Term
from lmd.terms.base import Scale, add_scaled, size_of, sum_instances


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
        if not isinstance(shape, Iterable) or len(tuple(shape)) == 0:
            raise InputError("shape", repr(shape), "the length of each axis, such as (height, width)")
        self.shape = tuple(check_count("shape", n) for n in shape)
        self.spacing = _check_spacing(spacing, len(self.shape))

    @property
    def name(self) -> str:
        plain = type(self) is Differences and len(self.shape) == 2 and all(h == 1 for h in self.spacing)
        return "differences" if plain else super().name

    @property
    def grid(self) -> tuple[int, ...]:
        return self.shape

    @property
    def wrapped_spectrum(self) -> Tensor | None:
        """That of differences which wrap around: they have all of these, and more. Of two axes."""
        if len(self.shape) != 2:
            return None
        turns = [torch.arange(n, dtype=torch.float64, device="cpu") * (2 * math.pi / n) for n in self.shape]
        down, right = ((2 - 2 * torch.cos(turn)) / h**2 for turn, h in zip(turns, self.spacing, strict=True))
        return (down[:, None] + right)[:, : self.shape[1] // 2 + 1]

    @functools.cached_property
    def norm(self) -> float:
        squared = sum(
            4 * math.sin(math.pi * (n - 1) / (2 * n)) ** 2 / (h * h)
            for n, h in zip(self.shape, self.spacing, strict=True)
        )
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
        return self._write(x, x.new_empty(self._image(x)))

    def write(self, x: Tensor, z: Tensor) -> Tensor:
        """Write Kx to z `(B, ..., d, *shape)`, which may be part of a larger array, and return z."""
        return self._write(x, check_place(z, self._image(x)))

    def value_behind(self, term: Term, x: Tensor) -> Tensor:
        """Axis by axis, without the array Kx, where the term is a sum of absolute values."""
        if (weight := term.absolute_weight) is None:
            return super().value_behind(term, x)
        check_ending("x", x, self.shape)
        sums = [sum_instances(self._along(x, axis).abs()) for axis in range(-len(self.shape), 0)]
        return weight * functools.reduce(operator.add, sums)

    def add_subgradient(self, term: Term, x: Tensor, onto: Tensor) -> Tensor:
        """Likewise; the signs do not change near almost every x, so they have no derivative to record."""
        if (weight := term.absolute_weight) is None:
            return super().add_subgradient(term, x, onto)
        check_ending("x", x, self.shape)
        if not torch.is_grad_enabled():
            return self._add_signs(x, weight, onto)
        with torch.no_grad():
            signs = self._add_signs(x, 1.0, torch.zeros_like(x))
        return add_scaled(onto, weight, signs)

    def _add_signs(self, x: Tensor, weight: Scale, out: Tensor) -> Tensor:
        """Add weight K' sign(Kx) to `out`."""
        for axis, n, h in zip(range(-len(self.shape), 0), self.shape, self.spacing, strict=True):
            signs, by = self._along(x, axis).sign_(), weight if h == 1 else weight / h
            ahead, here = out.narrow(axis, 1, n - 1), out.narrow(axis, 0, n - 1)
            add_scaled(ahead, by, signs, out=ahead)
            add_scaled(here, -by, signs, out=here)
        return out

    def _along(self, x: Tensor, axis: int) -> Tensor:
        """The n - 1 differences along an axis."""
        n, h = x.shape[axis], self.spacing[axis]
        differences = x.narrow(axis, 1, n - 1) - x.narrow(axis, 0, n - 1)
        return differences if h == 1 else differences / h

    def _image(self, x: Tensor) -> tuple[int, ...]:
        """The shape of Kx."""
        axes = len(self.shape)
        return (*check_ending("x", x, self.shape).shape[:-axes], axes, *self.shape)

    def _write(self, x: Tensor, z: Tensor) -> Tensor:
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
        """Of each axis its place, counted from the end, the part of z that belongs to it, its length and spacing."""
        axes = len(self.shape)
        parts = z.unbind(-axes - 1)
        return list(zip(range(-axes, 0), parts, self.shape, self.spacing, strict=True))

    def solve(self, x: Tensor, identity: float, gram: float) -> Tensor:
        """(identity I + gram K'K)^{-1} x by the cosine transform, on the CPU."""
        require("scipy")
        from scipy import fft

        axes = tuple(range(-len(self.shape), 0))
        values = identity + gram * self.eigenvalues().to(x.dtype)
        spectrum = torch.from_numpy(fft.dctn(x.numpy(), axes=axes, norm="ortho")).div_(values)
        return torch.from_numpy(fft.idctn(spectrum.numpy(), axes=axes, norm="ortho", overwrite_x=True))

    def eigenvalues(self) -> Tensor:
        """Those of K'K in the basis of the cosine transform, of this `shape`, float64."""
        along = [
            4 * torch.sin(torch.arange(n, dtype=torch.float64, device="cpu") * (math.pi / (2 * n))).square() / (h * h)
            for n, h in zip(self.shape, self.spacing, strict=True)
        ]
        return functools.reduce(operator.add, torch.meshgrid(*along, indexing="ij"))


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


def _check_spacing(spacing: float | Sequence[float] | None, axes: int) -> tuple[float, ...]:
    """One positive number for each axis."""
    if spacing is None:
        return (1.0,) * axes
    if not isinstance(spacing, Iterable):
        return (check_positive("spacing", spacing),) * axes
    each = tuple(check_positive("spacing", h) for h in spacing)
    if len(each) != axes:
        raise InputError("spacing", f"{len(each)} numbers", f"one number, or one for each of the {axes} axes")
    return each
