"""Several operators of the same x as one."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from lmd.core.batching import Index
from lmd.core.checks import check_positive, shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator
from lmd.terms import Term
from lmd.terms.base import size_of
from lmd.terms.stacked import Stacked, split


class Stack(LinearOperator):
    """x to (s_1 K_1 x, s_2 K_2 x, ...), flattened instance by instance and joined: z `(B, n)`.

    Args:
        parts: The operators K_j, at least one.
        shapes: Of K_j x of one instance, for each part.
        scales: s_j, positive, for each part; None is 1.

    >>> from lmd.operators import Differences, Identity
    >>> stack = Stack((Differences((2,)), Identity()), ((1, 2), (2,)), (1.0, 10.0))
    >>> stack(torch.tensor([[3.0, 5.0]]))
    tensor([[ 2.,  0., 30., 50.]])
    """

    def __init__(
        self,
        parts: Sequence[LinearOperator],
        shapes: Sequence[Sequence[int]],
        scales: Sequence[float] | None = None,
    ) -> None:
        self.parts, self.shapes = tuple(parts), tuple(tuple(shape) for shape in shapes)
        given = (1.0,) * len(self.parts) if scales is None else tuple(scales)
        self.scales = tuple(check_positive("scales", scale) for scale in given)
        if not self.parts:
            raise InputError("parts", "none", "at least one operator")
        for argument, each in (("shapes", self.shapes), ("scales", self.scales)):
            if len(each) != len(self.parts):
                raise InputError(argument, f"{len(each)} of them", f"{len(self.parts)}, one for each part")

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
        """The errors of the parts, and of the products with their scales: eps relative to themselves."""
        eps = torch.finfo(z.dtype).eps
        errors = [
            part.error(x, piece) if scale == 1 else scale * part.error(x, piece / scale) + eps * size_of(piece)
            for part, piece, scale in zip(self.parts, self.split(z), self.scales, strict=True)
        ]
        return torch.linalg.vector_norm(torch.stack(errors), dim=0)

    def adjoint_error(self, z: Tensor) -> Tensor:
        """The errors of the parts, and of their sum, whose terms s_j K_j'z_j are at most s_j norm_j ||z_j||."""
        eps = len(self.parts) * torch.finfo(z.dtype).eps
        pieces = zip(self.parts, self.split(z), self.scales, strict=True)
        errors = [scale * (part.adjoint_error(p) + eps * part.norm * size_of(p)) for part, p, scale in pieces]
        return torch.stack(errors).sum(dim=0)

    def split(self, z: Tensor) -> tuple[Tensor, ...]:
        """The parts of z `(B, n)` in their shapes `(B, *shape)`, as views of it."""
        return split(z, self.shapes)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The parts `(B, *shape)` in one array `(B, n)`."""
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def _apply(self, x: Tensor) -> Tensor:
        images = [
            part(x) if scale == 1 else scale * part(x) for part, scale in zip(self.parts, self.scales, strict=True)
        ]
        for image, shape in zip(images, self.shapes, strict=True):
            if image.shape[1:] != shape:
                given = f"{shape} for a part of shape {shape_of(image)}"
                raise InputError("shapes", given, f"{tuple(image.shape[1:])}")
        return self.join(images).to(x.dtype)  # of users' operators, some answer in another

    def _adjoint(self, z: Tensor) -> Tensor:
        first, *others = zip(self.parts, self.split(z), self.scales, strict=True)
        x = first[0].adjoint(first[1])
        x = x if first[2] == 1 else x.mul_(first[2])
        for part, piece, scale in others:
            x.add_(part.adjoint(piece), alpha=scale)
        return x

    def gram(self, x: Tensor) -> Tensor:
        grams = [scale**2 * part.gram(x) for part, scale in zip(self.parts, self.scales, strict=True)]
        return functools.reduce(torch.add, grams)

    def select(self, index: Index) -> Stack:
        parts = tuple(part.select(index) for part in self.parts)
        return self if parts == self.parts else Stack(parts, self.shapes, self.scales)
