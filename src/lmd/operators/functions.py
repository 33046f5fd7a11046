"""Operators given as two functions: what people have who bring a forward model of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from lmd.checks import shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator
from lmd.terms.base import size_of

POWER_ITERATIONS, MARGIN = 60, 1.05
"""A random start has a share in every direction: after so many products the norm is short of a few percent at most."""

ALIKE = 1e-3
"""How well <Ax, z> and <x, A'z> have to agree, relative to ||Ax|| ||z||: forward models often compute in float32."""


class FromFunctions(LinearOperator):
    """A linear map and its adjoint as functions of *one* array: x of this `shape`, (B, C, *shape) in all.

    The adjoint is tried on random arrays. The norm is estimated by power iterations.

    Args:
        forward: From one array x of this shape to one array z, linear.
        adjoint: From such a z back to an array of this shape.
        shape: Of one x, without instances and channels.

    >>> double = FromFunctions(lambda x: 2 * x, lambda z: 2 * z, (5,))
    >>> double(torch.ones(1, 1, 5)), 1.9 < double.norm < 2.2
    (tensor([[[2., 2., 2., 2., 2.]]]), True)
    """

    def __init__(
        self, forward: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor], shape: tuple[int, ...]
    ):
        self.forward, self.backward, self.shape = forward, adjoint, tuple(shape)
        x = _noise((1, 1, *shape), seed=0)
        image = self._apply(x)
        z = _noise(image.shape, seed=1)
        back = self._adjoint(z)
        if back.shape != x.shape:
            raise InputError("adjoint", f"an answer of shape {shape_of(back[0, 0])}", f"shape {self.shape}, as x has")
        one, other = float((image * z).sum()), float((x * back).sum())
        if not abs(one - other) <= ALIKE * float(size_of(image) * size_of(z)):
            raise InputError("adjoint", f"<x, A'z> = {other:g} for <Ax, z> = {one:g}", "the adjoint of forward")

    def _apply(self, x: Tensor) -> Tensor:
        return self._each(self.forward, x)

    def _adjoint(self, z: Tensor) -> Tensor:
        return self._each(self.backward, z)

    @staticmethod
    def _each(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with torch.no_grad():
            images = torch.stack([function(one).to(x) for one in x.flatten(0, 1)])
        return images.reshape(*x.shape[:2], *images.shape[1:])

    @cached_property
    def norm(self) -> float:
        v = _noise((1, 1, *self.shape), seed=2)
        found = 0.0
        for _ in range(POWER_ITERATIONS):
            v = self._adjoint(self._apply(v / size_of(v).clamp(min=1e-300)))
            found = float(size_of(v)) ** 0.5
        return MARGIN * found or 1.0


def _noise(shape: Sequence[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64, device="cpu")
