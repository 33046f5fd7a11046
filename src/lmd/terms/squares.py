"""Squared distances to data, entry by entry."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.core.checks import check_batch, check_positive, check_scale, check_zero_one, shape_of
from lmd.errors import InputError
from lmd.terms.base import (
    Pieces,
    Scale,
    Term,
    add_scaled,
    clip,
    filled,
    inner,
    is_positive,
    max_scale,
    min_scale,
    per_instance,
    rounding_of_sum,
    size_of,
    weighted_sum,
)
from lmd.terms.wrappers import Boxed, fill_from_neighbours, of_part


class Squares(Term):
    r"""h(z) = scale \sum_i weight_i (z_i - y_i)^2; z, y `(B, ...)`.

    `scale` is a number or one per instance `(B,)`; `weight`, 1 by default, may be one per entry, 0 where an entry does
    not count. With c = scale weight, h*(p) = \sum p y + p^2 / 4c for p that are 0 where c is 0.

    Args:
        y: `(B, ...)`, the data.
        scale: A positive number, or one per instance `(B,)`.
        weight: A positive number, or a tensor of 0 or more: one per instance `(B,)` or one per entry.
        name: The name of y in error messages.

    >>> term = Squares(torch.tensor([[1.0, 2.0]]))
    >>> z = torch.tensor([[2.0, 2.0]])
    >>> term.value(z), term.residual(z, term.subgradient(z))
    (tensor([1.]), tensor([0.]))
    """

    batched = ("y", "scale", "weight")
    zero_is_exact = True

    def __init__(self, y: Tensor, scale: Scale = 1.0, weight: Scale = 1.0, *, name: str = "y") -> None:
        self.y = check_batch(name, y)
        self.scale = check_scale("scale", scale, y, name)
        self.weight = check_scale("weight", weight, y, name, zero=True)

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
        return not isinstance(self.weight, Tensor) or is_positive(self.weight)

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

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        pull = 2 * self.curvature * per_instance(step, z)
        return torch.lerp(z, self.y, pull / (1 + pull))

    def conjugate(self, p: Tensor) -> Tensor:
        return inner(p, add_scaled(self.y, 0.25 * self._inverse, p))

    def project(self, p: Tensor) -> Tensor:
        if not isinstance(self.weight, Tensor):
            return p
        return p * (per_instance(self.weight, p) > 0)

    def conjugate_prox(self, p: Tensor, step: Scale) -> Tensor:
        """Return 2c (p - step y) / (2c + step)."""
        by, double = per_instance(step, p), 2 * self.curvature
        return (p - by * self.y) * (double / (double + by))

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        return add_scaled(self.y, -0.5 * self._inverse, u)

    @property
    def _inverse(self) -> Scale:
        """Return 1 / c, and 0 where an entry does not count."""
        c = self.curvature
        return torch.where(c > 0, 1 / torch.where(c > 0, c, 1), 0) if isinstance(c, Tensor) else 1 / c

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """Return sum c (z - y - p / 2c)^2."""
        return weighted_sum(self.curvature, add_scaled(z - self.y, -0.5 * self._inverse, p).square())

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Bound the error of ||a||^2, where a = sqrt(c) (z - y) - p / 2 sqrt(c), by 2 ||a|| e + e^2 and rounding.

        Here e bounds the error of a: 8 eps (||sqrt(c) (z - y)|| + ||p / 2 sqrt(c)||) + sqrt(max c) z_error
        + p_error / 2 sqrt(min c), since each part of a has a relative error of 8 eps.
        """
        root = self.curvature**0.5
        least = torch.where(root > 0, root, torch.inf) if isinstance(root, Tensor) else root
        eps, halved = torch.finfo(z.dtype).eps, p * (0.5 * root * self._inverse)
        off = 8 * eps * (size_of((z - self.y).mul_(root)) + size_of(halved))
        off = off + max_scale(root) * z_error + p_error / (2 * min_scale(least))
        return 2 * residual.sqrt() * off + off.square() + rounding_of_sum(z, residual + off.square())

    def with_mask(self, mask: Tensor) -> Squares:
        weight = per_instance(self.weight, self.y) * mask.to(self.y)
        return Squares(self.y, self.scale, weight.expand_as(self.y))

    def best_multiple(self, p: Tensor, most: Scale) -> Tensor:
        """Return the top of the parabola -h*(t p) in t, clipped to [-most, most]."""
        bend = inner(p, p * (0.5 * self._inverse))
        top = -inner(p, self.y) / bend.clamp(min=torch.finfo(p.dtype).tiny)
        return clip(top, -most, most)

    def gauge(self, u: Tensor) -> Tensor:
        """Return 0, or infinity if u is not 0 at an entry that does not count."""
        lost = (filled(self.weight, u) == 0) & (u != 0)
        return torch.where(lost.flatten(1).any(dim=1), torch.inf, u.new_zeros(len(u)))


class MaskedSquares(Boxed):
    r"""h(z) = scale ||Z (z - y)||^2 over low <= z <= high; z, y `(B, C, *size)`, `scale` a number.

    Z is the `mask`, 1 where an entry is kept and 0 where it is lost: `size`, `(B, 1, *size)` or `(B, C, *size)`, with
    at least one kept entry in each instance and channel. The values of y at lost entries do not matter. [low, high]
    `(B, C, 1, ...)` is the range of y over the kept entries of each instance and channel. Because of these bounds, h*
    is finite everywhere. *Outside the box*, `value` returns scale ||Z (z - y)||^2, which is finite everywhere.
    `residual` is h(z) + h*(p) - <z, p> with this value of h(z), or 0 if negative; `violation` is the distance to the
    box.

    Args:
        y: `(B, C, *size)`, the data.
        mask: 1 where an entry is kept, 0 where it is lost: `size`, `(B, 1, *size)` or `(B, C, *size)`.
        scale: A positive number.
        name: The name of y in error messages.

    >>> term = MaskedSquares(torch.tensor([[[1.0, 2.0, 9.0]]]), torch.tensor([1, 1, 0]))
    >>> term.value(torch.ones(1, 1, 3)), term.high.item(), term.fill_unknown(torch.zeros(1, 1, 3))
    (tensor([1.]), 2.0, tensor([[[0.0000, 0.0000, 1.6667]]]))
    """

    term: Squares
    mask = of_part("term.weight")
    strong_convexity = None  # even if all entries are kept: one entry should not change the method

    def __init__(self, y: Tensor, mask: Tensor, scale: float = 1.0, *, name: str = "y") -> None:
        mask, self.scale = _check_mask(mask, check_batch(name, y)), check_positive("scale", scale)
        at = mask.expand_as(y) > 0
        if bool((lost := ~at.flatten(2).any(dim=2)).any()):
            where = tuple(lost.nonzero()[0].tolist())
            raise InputError("mask", f"no kept pixel in image and channel {where}", "at least one in each")
        ends = (*y.shape[:2], *(1,) * (y.ndim - 2))
        low = torch.where(at, y, torch.inf).flatten(2).amin(dim=2).reshape(ends)
        high = torch.where(at, y, -torch.inf).flatten(2).amax(dim=2).reshape(ends)
        super().__init__(Squares(torch.where(at, y, low), self.scale, mask), low, high)

    @property
    def smoothness(self) -> float:
        return 2 * self.scale

    def pieces(self, z: Tensor) -> Pieces:
        return self.term.pieces(z)._replace(low=self.low, high=self.high)

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor | None:
        """Return None: the ends of the box move with the data, so no entry stays at an end."""
        return None

    def fill_unknown(self, z: Tensor) -> Tensor:
        """Return z with lost entries replaced by a weighted mean of kept y within 2 entries along each axis, if any."""
        return fill_from_neighbours(z, self.y, self.mask)


def _check_mask(mask: Tensor, y: Tensor) -> Tensor:
    """Return the mask as `(B, 1, *size)` or `(B, C, *size)` in the dtype of y."""
    batch, channels, *size = y.shape
    accepted = [(*size,), (batch, 1, *size), (batch, channels, *size)]
    if check_zero_one("mask", mask).shape not in accepted:
        raise InputError("mask", f"shape {shape_of(mask)}", f"shape {' or '.join(map(str, dict.fromkeys(accepted)))}")
    return mask.to(y).expand(batch, 1, *size) if mask.ndim == len(size) else mask.to(y)
