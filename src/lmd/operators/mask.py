"""What keeps some entries and loses the others."""

from __future__ import annotations

from torch import Tensor

from lmd.core.batching import Index, chosen
from lmd.core.checks import check_zero_one, shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator


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

    def __init__(self, mask: Tensor) -> None:
        self._mask = check_zero_one("mask", mask)

    @property
    def mask(self) -> Tensor:
        return self._mask

    def _apply(self, x: Tensor) -> Tensor:
        if self.mask.ndim != x.ndim or any(m not in (1, n) for m, n in zip(self.mask.shape, x.shape, strict=True)):
            accepted = f"a shape that the mask {shape_of(self.mask)} broadcasts to, dimension by dimension"
            raise InputError("x", f"shape {shape_of(x)}", accepted)
        return self.mask.to(x) * x

    def _adjoint(self, z: Tensor) -> Tensor:
        return self._apply(z)

    def select(self, index: Index) -> Mask:
        return self if len(self.mask) == 1 else Mask(chosen(self.mask, index))
