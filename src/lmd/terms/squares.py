"""Squared distances to data, entry by entry."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lmd.core.checks import check_batch, check_positive, check_same_kind, check_zero_one, shape_of
from lmd.errors import InputError
from lmd.terms.base import (
    Pieces,
    Scale,
    Term,
    check_fits,
    check_scale,
    clip,
    divide_or_zero,
    filled,
    inner,
    is_positive,
    max_scale,
    min_scale,
    per_instance,
    rounding_of_sum,
    size_of,
    sum_instances,
    weighted_sum,
    write_to,
)
from lmd.terms.wrappers import Boxed, fill_from_neighbours


class Squares(Term):
    r"""h(z) = scale \sum_i weight_i (z_i - y_i)^2; z, y `(B, ...)`.

    `scale` is a number or one per instance `(B,)`; `weight`, 1 by default, may be one per entry, 0 where an entry does
    not count. With c = scale weight, h*(p) = \sum p y + p^2 / 4c, over p that are 0 where c is.

    Args:
        y: `(B, ...)`, the data.
        scale: A positive number, or one per instance `(B,)`.
        weight: A positive number, or one per instance or entry, of 0 or more.

    >>> term = Squares(torch.tensor([[1.0, 2.0]]))
    >>> z = torch.tensor([[2.0, 2.0]])
    >>> term.value(z), term.residual(z, term.subgradient(z))
    (tensor([1.]), tensor([0.]))
    """

    batched: ClassVar[tuple[str, ...]] = ("y", "scale", "weight")
    zero_is_exact = True

    def __init__(self, y: Tensor, scale: Scale = 1.0, weight: Scale = 1.0) -> None:
        self.y = check_batch("y", y)
        self.scale, self.weight = check_scale("scale", scale), check_scale("weight", weight, zero=True)
        for name, given in (("scale", scale), ("weight", weight)):
            if isinstance(given, Tensor):
                check_fits(name, given, y)
                check_same_kind(name, given, "y", y)

    @property
    def curvature(self) -> Scale:
        """c = scale weight: a number, or a tensor that broadcasts against y."""
        if isinstance(self.scale, float) and isinstance(self.weight, float):
            return self.scale * self.weight
        return per_instance(self.scale, self.y) * per_instance(self.weight, self.y)

    @property
    def counted(self) -> Tensor | None:
        return filled(self.weight, self.y) > 0 if isinstance(self.weight, Tensor) else None

    @property
    def conjugate_is_finite(self) -> bool:
        return is_positive(self.weight)

    @property
    def strong_convexity(self) -> Scale | None:
        return 2 * min_scale(self.curvature) if is_positive(self.weight) else None

    @property
    def smoothness(self) -> Scale | None:
        return 2 * max_scale(self.curvature)

    def value(self, z: Tensor) -> Tensor:
        return weighted_sum(self.curvature, (z - self.y).square())

    def subgradient(self, z: Tensor) -> Tensor:
        return (z - self.y).mul_(2 * self.curvature)

    def pieces(self, z: Tensor) -> Pieces:
        return Pieces(curvature=2 * self.curvature, slope=-2 * self.curvature * self.y)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        pull = 2 * self.curvature * per_instance(step, z)
        return torch.lerp(z, self.y, pull / (1 + pull), out=out)

    def conjugate(self, p: Tensor) -> Tensor:
        return inner(p, self._moved(self.y, p, 0.25))

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        if not isinstance(self.weight, Tensor):
            return write_to(p, out)
        return torch.mul(p, (per_instance(self.weight, p) > 0), out=out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """2c (p - step y) / (2c + step)."""
        by, double = per_instance(step, p), 2 * self.curvature
        return torch.mul(p - by * self.y, double / (double + by), out=out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        return self._moved(self.y, u, -0.5, out)

    def _moved(self, z: Tensor, p: Tensor, by: float, out: Tensor | None = None) -> Tensor:
        """z + by p / c."""
        c = self.curvature
        if isinstance(c, Tensor):
            return torch.add(z, divide_or_zero(p, c), alpha=by, out=out)
        return torch.add(z, p, alpha=by / c, out=out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """sum c (z - y - p / 2c)^2."""
        away, c = z - self.y, self.curvature
        away = self._moved(away, p, -0.5) if isinstance(c, Tensor) else away.sub_(p, alpha=0.5 / c)
        return weighted_sum(c, away.square())

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """The residual is ||a||^2, a = root(c) (z - y) - p / 2 root(c), each part right to 8 eps relative to itself.

        So a is off by e = 8 eps of the sizes of both parts + root(max c) z_error + p_error / 2 root(min c), the square
        by 2 ||a|| e + e^2, and the sum by rounding.
        """
        root = self.curvature**0.5
        least = torch.where(root > 0, root, torch.inf) if isinstance(root, Tensor) else root
        eps, halved = torch.finfo(z.dtype).eps, divide_or_zero(p, 2 * root)
        off = 8 * eps * (size_of((z - self.y).mul_(root)) + size_of(halved))
        off = off + max_scale(root) * z_error + p_error / (2 * min_scale(least))
        return 2 * residual.sqrt() * off + off.square() + rounding_of_sum(z, residual + off.square())

    def with_mask(self, mask: Tensor) -> Squares:
        weight = per_instance(self.weight, self.y) * mask.to(self.y)
        return Squares(self.y, self.scale, weight.expand_as(self.y))

    def best_multiple(self, p: Tensor, most: Scale) -> Tensor:
        """-h*(t p) is a parabola in t."""
        bend = inner(p, divide_or_zero(p, 2 * self.curvature))
        top = -inner(p, self.y) / bend.clamp(min=torch.finfo(p.dtype).tiny)
        return clip(top, -most, most)

    def gauge(self, u: Tensor) -> Tensor:
        """0, or infinite where u is not 0 at an entry that does not count."""
        lost = (filled(self.weight, u) == 0) & (u != 0)
        return torch.where(lost.flatten(1).any(dim=1), torch.inf, u.new_zeros(len(u)))


class MaskedSquares(Boxed):
    r"""h(z) = scale ||Z (z - y)||^2 over low <= z <= high; z, y `(B, C, *size)`, `scale` a number.

    Z is the `mask`, 1 where an entry is kept and 0 where it is lost: `size`, `(B, 1, *size)` or `(B, C, *size)`, with
    at least one kept entry in each instance and channel. What y holds at lost entries does not matter. [low, high]
    `(B, C, 1, ...)` is the range of y over the kept entries of each instance and channel. With it h* is finite
    everywhere: a lost entry goes to the end of the box that p sends it to. *Outside the box* `value` is that of the
    squares alone, so that it is finite everywhere, and `residual` is h(z) + h*(p) - <z, p> with it, or 0 where that is
    negative; `violation` is the distance to the box.

    Args:
        y: `(B, C, *size)`, the data.
        mask: 1 where an entry is kept, 0 where it is lost: `size`, `(B, 1, *size)` or `(B, C, *size)`.
        scale: A positive number.

    >>> term = MaskedSquares(torch.tensor([[[1.0, 2.0, 9.0]]]), torch.tensor([1, 1, 0]))
    >>> term.value(torch.ones(1, 1, 3)), term.high.item(), term.fill_unknown(torch.zeros(1, 1, 3))
    (tensor([1.]), 2.0, tensor([[[0.0000, 0.0000, 1.6667]]]))
    """

    term: Squares
    low: Tensor
    high: Tensor
    strong_convexity = None  # whatever is kept: what methods do should not hang on a single entry

    def __init__(self, y: Tensor, mask: Tensor, scale: float = 1.0) -> None:
        mask, self.scale = _check_mask(mask, check_batch("y", y)), check_positive("scale", scale)
        at = mask.expand_as(y) > 0
        if bool((lost := ~at.flatten(2).any(dim=2)).any()):
            where = tuple(lost.nonzero()[0].tolist())
            raise InputError("mask", f"no kept pixel in image and channel {where}", "at least one in each")
        ends = (*y.shape[:2], *(1,) * (y.ndim - 2))
        low = torch.where(at, y, torch.inf).flatten(2).amin(dim=2).reshape(ends)
        high = torch.where(at, y, -torch.inf).flatten(2).amax(dim=2).reshape(ends)
        super().__init__(Squares(torch.where(at, y, low), self.scale, mask), low, high)

    @property
    def mask(self) -> Tensor:
        """`(B, 1, *size)` or `(B, C, *size)`, in the dtype of y."""
        return filled(self.term.weight, self.y)

    @property
    def smoothness(self) -> float:
        return 2 * self.scale

    def pieces(self, z: Tensor) -> Pieces:
        return self.term.pieces(z)._replace(low=self.low, high=self.high)

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor | None:
        """None: the box moves with the data."""
        return None

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """sum t (d + s t), t = z - y - v for v = argmax - y, and d = 2s v - p, 0 where v is inside the box; and
        p (end - z) at lost entries.

        Relative to y all along: where an image is far from 0, pixels themselves have too few digits.
        """
        low, high, free = self.low - self.y, self.high - self.y, p * (0.5 / self.scale)
        nearest = clip(free, low, high)
        past = (z - self.y).sub_(nearest)
        slope = nearest.sub_(free).mul_(2 * self.scale)  # of the tilted squares at their minimiser: 0 inside the box
        kept = past * slope.add_(past, alpha=self.scale)
        lost = p * torch.where(p < 0, self.low, self.high).sub_(z)
        return sum_instances(torch.where(self.mask > 0, kept, lost)).clamp(min=0)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """With r = max(|z - low|, |z - high|), which |z - y| is at most, t and v are right to 8 eps of 2 r.

        So a product is off by at most 128 eps r (s r + |p|). In p the residual is r-Lipschitz, entry by entry; moving z
        by d adds <2s (z - y) - p, d> + s ||d||^2, and both together at most z_error p_error more.
        """
        s, reach = self.scale, torch.maximum((z - self.low).abs_(), (z - self.high).abs_())
        products = 128 * torch.finfo(z.dtype).eps * inner(reach, p.abs().add_(reach, alpha=s))
        far = size_of(reach)
        moved = z_error * (2 * s * far + size_of(p) + s * z_error + p_error) + far * p_error
        return products + moved + rounding_of_sum(z, residual)

    def fill_unknown(self, z: Tensor) -> Tensor:
        """z with its lost entries replaced by a weighted mean of the kept ones around, 5 along each axis, if any."""
        return fill_from_neighbours(z, self.y, self.mask)


def _check_mask(mask: Tensor, y: Tensor) -> Tensor:
    """The mask as `(B, 1, *size)` or `(B, C, *size)` in the dtype of y."""
    batch, channels, *size = y.shape
    accepted = [(*size,), (batch, 1, *size), (batch, channels, *size)]
    if check_zero_one("mask", mask).shape not in accepted:
        raise InputError("mask", f"shape {shape_of(mask)}", f"shape {' or '.join(map(str, dict.fromkeys(accepted)))}")
    return mask.to(y).expand(batch, 1, *size) if mask.ndim == len(size) else mask.to(y)
