"""Squared distances to data of which some entries are lost: the data term of inpainting."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.core.checks import check_batch, check_positive, check_zero_one, shape_of
from lmd.errors import InputError
from lmd.terms.base import Scale, clip, filled, inner, per_instance, rounding_of_sum, size_of, sum_instances, written
from lmd.terms.masked import around
from lmd.terms.squares import BoxedSquares


class MaskedSquares(BoxedSquares):
    r"""h(z) = scale ||Z (z - y)||^2 over low <= z <= high; z, y `(B, C, *size)`, `scale` a number.

    Z is the `mask`, 1 where an entry is kept and 0 where it is lost: `size`, `(B, 1, *size)` or `(B, C, *size)`, with
    at least one kept entry in each instance and channel. What y holds at lost entries does not matter. [low, high]
    `(B, C, 1, ...)` is the range of y over the kept entries of each instance and channel, so that h* is finite.

    Args:
        y: `(B, C, *size)`, the data.
        mask: 1 where an entry is kept, 0 where it is lost: `size`, `(B, 1, *size)` or `(B, C, *size)`.
        scale: A positive number.

    >>> term = MaskedSquares(torch.tensor([[[1.0, 2.0, 9.0]]]), torch.tensor([1, 1, 0]))
    >>> term.value(torch.ones(1, 1, 3)), term.high.item(), term.guess(torch.zeros(1, 1, 3))
    (tensor([1.]), 2.0, tensor([[[0.0000, 0.0000, 1.6667]]]))
    """

    scale: float

    def __init__(self, y: Tensor, mask: Tensor, scale: float = 1.0) -> None:
        mask = _check_mask(mask, check_batch("y", y))
        self.scale, self.weight = check_positive("scale", scale), mask
        at = mask.expand_as(y) > 0
        if bool((lost := ~at.flatten(2).any(dim=2)).any()):
            where = tuple(lost.nonzero()[0].tolist())
            raise InputError("mask", f"no kept pixel in image and channel {where}", "at least one in each")
        ends = (*y.shape[:2], *(1,) * (y.ndim - 2))
        self.low = torch.where(at, y, torch.inf).flatten(2).amin(dim=2).reshape(ends)
        self.high = torch.where(at, y, -torch.inf).flatten(2).amax(dim=2).reshape(ends)
        self.y = torch.where(at, y, self.low)

    @property
    def name(self) -> str:
        return "kept squares" if type(self) is MaskedSquares else super().name

    @property
    def mask(self) -> Tensor:
        """`(B, 1, *size)` or `(B, C, *size)`, in the dtype of y."""
        return filled(self.weight, self.y)

    @property
    def strong_convexity(self) -> Scale | None:
        """None, whatever is kept: what methods do should not hang on a single entry."""
        return None

    @property
    def smoothness(self) -> float:
        return 2 * self.scale

    def value(self, z: Tensor) -> Tensor:
        """The box is left out, so that it is finite everywhere."""
        return self.scale * sum_instances((self.mask * (z - self.y)).square())

    def subgradient(self, z: Tensor) -> Tensor:
        return (z - self.y).mul_(2 * self.scale * self.mask)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        pull = 2 * self.scale * per_instance(step, z)
        return self._clip(torch.lerp(z, self.y, self.mask * (pull / (1 + pull)), out=out), out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        inside = self._clip(torch.add(self.y, u, alpha=-0.5 / self.scale))
        return written(torch.where(self.mask > 0, inside, torch.where(u > 0, self.low, self.high)), out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """As of `BoxedSquares`; p (end - z) at lost entries."""
        low, high, free = self.low - self.y, self.high - self.y, p * (0.5 / self.scale)
        nearest = clip(free, low, high)
        past = (z - self.y).sub_(nearest)
        slope = nearest.sub_(free).mul_(2 * self.scale)  # of the tilted squares at their minimiser: 0 inside the box
        kept = past * slope.add_(past, alpha=self.scale)
        lost = p * torch.where(p < 0, self.low, self.high).sub_(z)
        return sum_instances(torch.where(self.mask > 0, kept, lost)).clamp(min=0)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """As of `BoxedSquares`, where y is in the box: |z - y| is at most r = max(|z - low|, |z - high|)."""
        s, reach = self.scale, torch.maximum((z - self.low).abs_(), (z - self.high).abs_())
        products = 128 * torch.finfo(z.dtype).eps * inner(reach, p.abs().add_(reach, alpha=s))
        far = size_of(reach)
        moved = z_error * (2 * s * far + size_of(p) + s * z_error + p_error) + far * p_error
        return products + moved + rounding_of_sum(z, residual)

    def guess(self, z: Tensor) -> Tensor:
        """z with its lost entries replaced by a weighted mean of the kept ones around, 5 along each axis, if any."""
        return around(z, self.y, self.mask)


def _check_mask(mask: Tensor, y: Tensor) -> Tensor:
    """The mask as `(B, 1, *size)` or `(B, C, *size)` in the dtype of y."""
    batch, channels, *size = y.shape
    accepted = [(*size,), (batch, 1, *size), (batch, channels, *size)]
    if check_zero_one("mask", mask).shape not in accepted:
        raise InputError("mask", f"shape {shape_of(mask)}", f"shape {' or '.join(map(str, dict.fromkeys(accepted)))}")
    return mask.to(y).expand(batch, 1, *size) if mask.ndim == len(size) else mask.to(y)
