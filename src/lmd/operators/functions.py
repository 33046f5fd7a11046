"""Operators given as two functions: what people have who bring a forward model of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from lmd.core.checks import shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator
from lmd.terms.base import size_of

POWER_ITERATIONS, NORM_MARGIN = 60, 1.05  # from a random start the norm is then short of a few percent at most
ADJOINT_TOLERANCE = 1e-3  # largest |<Ax, z> - <x, A'z>| / (||Ax|| ||z||); `adjoint_error` includes the rest
MAX_EXACT = 128  # entries of x up to which the error of A'z is measured along every axis
PROBES = 16  # random directions along which it is measured otherwise
LOW_QUANTILE = 0.565  # a sum of so many squared normal numbers is below this with probability 1e-9
LINEARITY_FACTOR = 16  # assumed rounding of A over the measured departure from linearity


class FromFunctions(LinearOperator):
    """A linear map and its adjoint as functions of *one* array: x of this `shape`, (B, C, *shape) in all.

    The adjoint is tried on random arrays, and refused where it is far off. The norm is estimated by power iterations.
    The functions may compute in float32: how far they are from one linear map and its adjoint is measured, and part of
    `error` and `adjoint_error`, so that certificates hold.

    Args:
        forward: From one array x of this shape to one array z, linear.
        adjoint: From such a z back to an array of this shape.
        shape: Of one x, without instances and channels.
        dtype: What the functions are given; None is the dtype of whatever they are applied to.

    >>> double = FromFunctions(lambda x: 2 * x, lambda z: 2 * z, (5,))
    >>> double(torch.ones(1, 1, 5)), 1.9 < double.norm < 2.2
    (tensor([[[2., 2., 2., 2., 2.]]]), True)
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        adjoint: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype | None = None,
    ):
        self.forward, self.backward, self.shape, self.dtype = forward, adjoint, tuple(shape), dtype
        x = _noise((1, 1, *shape), seed=0)
        image = self._apply(x)
        z = _noise(image.shape, seed=1)
        back = self._adjoint(z)
        if back.shape != x.shape:
            raise InputError("adjoint", f"an answer of shape {shape_of(back[0, 0])}", f"shape {self.shape}, as x has")
        one, other = float((image * z).sum()), float((x * back).sum())
        if not abs(one - other) <= ADJOINT_TOLERANCE * float(size_of(image) * size_of(z)):
            raise InputError("adjoint", f"<x, A'z> = {other:g} for <Ax, z> = {one:g}", "the adjoint of forward")

    def _apply(self, x: Tensor) -> Tensor:
        return self._each(self.forward, x)

    def _adjoint(self, z: Tensor) -> Tensor:
        return self._each(self.backward, z)

    def _each(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with torch.no_grad():
            given = x.flatten(0, 1).to(self.dtype or x.dtype)
            images = torch.stack([function(one).to(x) for one in given])
        return images.reshape(*x.shape[:2], *images.shape[1:])

    def error(self, x: Tensor, z: Tensor) -> Tensor:
        """The error of a float64 map plus a multiple of the measured departure from linearity."""
        return super().error(x, z) + self._unit * size_of(x)

    def adjoint_error(self, z: Tensor) -> Tensor:
        r"""A bound on the distance e from the answer of `adjoint` to the true A'z, from <Ad, z> - <d, adjoint(z)>.

        Where the directions d are all axes, that is each entry of e. Of normal random directions \sum <d, e>^2 is
        ||e||^2 times a chi-squared number: too small to bound e with probability 1e-9.
        """
        directions, images, least = self._probes
        rows = z.double().flatten(2)
        back = self._adjoint(z.double()).flatten(2)
        seen = rows @ images.mT.to(rows) - back @ directions.mT.to(rows)
        measured = (seen.square().sum(dim=(1, 2)) / least).sqrt().to(z)
        return super().adjoint_error(z) + measured + self._unit * size_of(z)

    @cached_property
    def _probes(self) -> tuple[Tensor, Tensor, float]:
        """Directions `(n, numbers of x)`, their images `(n, numbers of z)`, what squares along them are at least."""
        count = math.prod(self.shape)
        exact = count <= MAX_EXACT
        directions = torch.eye(count, dtype=torch.float64, device="cpu") if exact else _noise((PROBES, count), seed=3)
        images = self._apply(directions.reshape(1, -1, *self.shape))
        return directions, images[0].flatten(1), 1.0 if exact else LOW_QUANTILE

    @cached_property
    def _unit(self) -> float:
        """||computed Ax - Ax|| / ||x||, at most: from sums of arrays of positive numbers, whose rounding is largest."""
        pair = _noise((1, 2, *self.shape), seed=4).abs()
        apart, together = self._apply(pair).sum(dim=1), self._apply(pair.sum(dim=1, keepdim=True))[:, 0]
        return LINEARITY_FACTOR * float(size_of(apart - together) / size_of(pair))

    @cached_property
    def norm(self) -> float:
        v = _noise((1, 1, *self.shape), seed=2)
        found = 0.0
        for _ in range(POWER_ITERATIONS):
            v = self._adjoint(self._apply(v / size_of(v).clamp(min=1e-300)))
            found = float(size_of(v)) ** 0.5
        return NORM_MARGIN * found or 1.0


def _noise(shape: Sequence[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64, device="cpu")
