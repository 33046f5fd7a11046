"""Operators given by two functions, for users with their own forward model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from lmd.core.checks import shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator, norm_estimate
from lmd.terms.base import size_of

ADJOINT_TOLERANCE = 1e-3  # largest accepted |<Ax, z> - <x, A'z>| / (||Ax|| ||z||); `adjoint_error` covers smaller ones
MAX_EXACT = 128  # entries of x up to which the error of A'z is measured along every unit vector
PROBES = 16  # random directions along which the error of A'z is measured for larger x
LOW_QUANTILE = 0.565  # a sum of PROBES squared normal numbers is below this with probability 1e-9
LINEARITY_FACTOR = 16  # assumed ratio of the rounding of A to the measured deviation from linearity


class FromFunctions(LinearOperator):
    """A linear map and its adjoint, given as functions of *one* array of this `shape`; x is `(B, C, *shape)`.

    The constructor tests the adjoint on random arrays and raises an error if it is far off. The norm is estimated.
    The functions may compute in float32: their deviation from a linear map and its adjoint is measured and included in
    `error` and `adjoint_error`, so that certificates hold.

    Args:
        forward: The linear function from one array x of this shape to one array z.
        adjoint: The adjoint function, from one array z to one array of this shape.
        shape: The shape of one array x, without instances and channels.
        dtype: The dtype of the arrays passed to the functions; None keeps the dtype of x or z.

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
        """Add a multiple of the measured deviation from linearity to the default bound."""
        return super().error(x, z) + self._unit * size_of(x)

    def adjoint_error(self, z: Tensor) -> Tensor:
        r"""Bound the norm of e = A'z - adjoint(z), using <d, e> = <Ad, z> - <d, adjoint(z)> for directions d.

        If the directions are all unit vectors, <d, e> are the entries of e. For normal random directions, \sum <d, e>^2
        is ||e||^2 times a chi-squared variable; the bound fails with probability 1e-9.
        """
        directions, images, least = self._probes
        rows = z.double().flatten(2)
        back = self._adjoint(z.double()).flatten(2)
        seen = rows @ images.mT.to(rows) - back @ directions.mT.to(rows)
        measured = (seen.square().sum(dim=(1, 2)) / least).sqrt().to(z)
        return super().adjoint_error(z) + measured + self._unit * size_of(z)

    @cached_property
    def _probes(self) -> tuple[Tensor, Tensor, float]:
        """Directions d `(n, entries of x)`, Ad `(n, entries of z)`, and a number c with sum <d, e>^2 >= c ||e||^2."""
        count = math.prod(self.shape)
        exact = count <= MAX_EXACT
        directions = torch.eye(count, dtype=torch.float64, device="cpu") if exact else _noise((PROBES, count), seed=3)
        images = self._apply(directions.reshape(1, -1, *self.shape))
        return directions, images[0].flatten(1), 1.0 if exact else LOW_QUANTILE

    @cached_property
    def _unit(self) -> float:
        """An estimated bound on ||computed Ax - Ax|| / ||x||, from positive arrays, whose rounding is largest."""
        pair = _noise((1, 2, *self.shape), seed=4).abs()
        apart, together = self._apply(pair).sum(dim=1), self._apply(pair.sum(dim=1, keepdim=True))[:, 0]
        return LINEARITY_FACTOR * float(size_of(apart - together) / size_of(pair))

    @cached_property
    def norm(self) -> float:
        return norm_estimate(lambda v: self._adjoint(self._apply(v)), (1, 1, *self.shape))


def _noise(shape: Sequence[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64, device="cpu")
