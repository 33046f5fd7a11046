"""Squared distances to data, entry by entry, and the same over a box."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lmd.core.checks import check_batch, check_same_kind
from lmd.errors import InputError
from lmd.terms.base import (
    Pieces,
    Scale,
    Term,
    check_fits,
    check_scale,
    clip,
    divided,
    filled,
    inner,
    largest,
    per_instance,
    positive,
    rounding_of_sum,
    size_of,
    smallest,
    sum_instances,
    weighted_sum,
    written,
)


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

    def __init__(self, y: Tensor, scale: Scale = 1.0, weight: Scale = 1.0) -> None:
        self.y = check_batch("y", y)
        self.scale = check_fits("scale", check_scale("scale", scale), y)
        self.weight = check_fits("weight", check_scale("weight", weight, zero=True), y)
        for name, given in (("scale", scale), ("weight", weight)):
            if isinstance(given, Tensor):
                check_same_kind(name, given, "y", y)

    @property
    def curvature(self) -> Scale:
        """c = scale weight: a number, or a tensor that broadcasts against y."""
        return per_instance(self.scale, self.y) * per_instance(self.weight, self.y)

    @property
    def name(self) -> str:
        return "squares" if type(self) is Squares and not isinstance(self.curvature, Tensor) else super().name

    @property
    def conjugate_is_finite(self) -> bool:
        return positive(self.weight)

    @property
    def strong_convexity(self) -> Scale | None:
        return 2 * smallest(self.curvature) if positive(self.weight) else None

    @property
    def smoothness(self) -> Scale | None:
        return 2 * largest(self.curvature)

    def value(self, z: Tensor) -> Tensor:
        return weighted_sum(self.curvature, (z - self.y).square())

    def subgradient(self, z: Tensor) -> Tensor:
        return (z - self.y).mul_(2 * self.curvature)

    @property
    def zero_is_exact(self) -> bool:
        return True

    def pieces(self, z: Tensor) -> Pieces:
        return Pieces(curvature=2 * self.curvature, slope=-2 * self.curvature * self.y)

    def own_subgradient(self, z: Tensor) -> Tensor:
        return self.subgradient(z)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        pull = 2 * self.curvature * per_instance(step, z)
        return torch.lerp(z, self.y, pull / (1 + pull), out=out)

    def conjugate(self, p: Tensor) -> Tensor:
        return inner(p, self._moved(self.y, p, 0.25))

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        if not isinstance(self.weight, Tensor):
            return written(p, out)
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
            return torch.add(z, divided(p, c), alpha=by, out=out)
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
        eps, halved = torch.finfo(z.dtype).eps, divided(p, 2 * root)
        off = 8 * eps * (size_of((z - self.y).mul_(root)) + size_of(halved))
        off = off + largest(root) * z_error + p_error / (2 * smallest(least))
        return 2 * residual.sqrt() * off + off.square() + rounding_of_sum(z, residual + off.square())

    def kept(self, mask: Tensor) -> Term | None:
        if type(self) is not Squares:  # those in a box have more to keep
            return None
        weight = per_instance(self.weight, self.y) * mask.to(self.y)
        return Squares(self.y, self.scale, weight.expand_as(self.y))

    def best_multiple(self, p: Tensor, most: Scale) -> Tensor:
        """-h*(t p) is a parabola in t."""
        bend = inner(p, divided(p, 2 * self.curvature))
        top = -inner(p, self.y) / bend.clamp(min=torch.finfo(p.dtype).tiny)
        return clip(top, -most, most)

    def gauge(self, u: Tensor) -> Tensor:
        """0, or infinite where u is not 0 at an entry that does not count."""
        lost = (filled(self.weight, u) == 0) & (u != 0)
        return torch.where(lost.flatten(1).any(dim=1), torch.inf, u.new_zeros(len(u)))


class BoxedSquares(Squares):
    r"""h(z) = scale \sum_i weight_i (z_i - y_i)^2 over low <= z <= high; z, y `(B, ...)`.

    The ends are numbers, one per instance `(B,)` or entries that broadcast, such as one per channel `(B, C, 1, 1)`.
    With them h* is finite everywhere, whatever the weights: an entry that does not count goes to the end of the box
    that p sends it to. *Outside the box* `value` is that of the squares alone, so that it is finite everywhere, and
    `residual` is h(z) + h*(p) - <z, p> with it, or 0 where that is negative; `violation` is the distance to the box.

    Args:
        y: `(B, ...)`, the data.
        low, high: The ends, finite: numbers, one per instance `(B,)` or entries that broadcast.
        scale: A positive number, or one per instance `(B,)`.
        weight: A positive number, or one per instance or entry, of 0 or more.
    """

    batched = ("y", "scale", "weight", "low", "high")

    def __init__(self, y: Tensor, low: Scale, high: Scale, scale: Scale = 1.0, weight: Scale = 1.0) -> None:
        super().__init__(y, scale, weight)
        self.low, self.high = filled(check_fits("low", low, y), y), filled(check_fits("high", high, y), y)
        finite = bool(torch.isfinite(self.low).all() & torch.isfinite(self.high).all())
        if not finite or not bool((self.low <= self.high).all()):
            raise InputError("low, high", "ends that are not finite or in the wrong order", "finite low <= high")
        # What y holds at entries that do not count does not matter: there it is in the box, to lose no digits.
        self.y = torch.where(filled(self.weight, y) > 0, y, self._clip(y))

    @property
    def conjugate_is_finite(self) -> bool:
        return True

    def pieces(self, z: Tensor) -> Pieces:
        return super().pieces(z)._replace(low=self.low, high=self.high)

    def _clip(self, z: Tensor, out: Tensor | None = None) -> Tensor:
        return clip(z, self.low, self.high, out)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return self._clip(super().prox(z, step, out), out)

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        return written(p, out)

    def conjugate(self, p: Tensor) -> Tensor:
        """sum p y + v (p - c v), v = argmax, both relative to y."""
        v = self._nearest(p)
        return inner(p, self.y) + inner(v, p - self.curvature * v)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """By Moreau's identity."""
        return Term.conjugate_prox(self, p, step, out)

    def _nearest(self, p: Tensor) -> Tensor:
        """argmax_z <z, p> - h(z), minus y."""
        low, high = self.low - self.y, self.high - self.y
        inside = clip(divided(p, 2 * self.curvature), low, high)
        return torch.where(filled(self.curvature, p) > 0, inside, torch.where(p < 0, low, high))

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        free = self.y - divided(u, 2 * self.curvature)
        end = torch.where(u > 0, self.low, self.high)
        return written(torch.where(filled(self.curvature, u) > 0, self._clip(free), end), out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """sum t (d + c t), t = z - y - v for v = argmax - y, and d = 2c v - p, 0 where v is inside the box.

        Relative to y all along: where an image is far from 0, pixels themselves have too few digits.
        """
        v, c = self._nearest(p), self.curvature
        free = (v == divided(p, 2 * c)) & (filled(c, p) > 0)
        slope = torch.where(free, 0, 2 * c * v - p)
        past = z - self.y - v
        return sum_instances(past * (slope + c * past)).clamp(min=0)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """With r = max(|z - low|, |z - high|, |z - y|), t and v are at most 2 r, and right to 8 eps of that.

        So a product is off by at most 128 eps r (c r + |p|). In p the residual is r-Lipschitz, entry by entry; moving z
        by d adds <2c (z - y) - p, d> + c ||d||^2, and both together at most z_error p_error more.
        """
        c, away = self.curvature, z - self.y
        reach = torch.maximum((z - self.low).abs(), (z - self.high).abs())
        reach = torch.maximum(reach, away.abs())
        products = 128 * torch.finfo(z.dtype).eps * sum_instances(reach * (c * reach + p.abs()))
        moved = z_error * (size_of(2 * c * away - p) + largest(c) * z_error + p_error) + size_of(reach) * p_error
        return products + moved + rounding_of_sum(z, residual)

    def best_multiple(self, p: Tensor, most: Scale) -> Tensor:
        return Term.best_multiple(self, p, most)

    def gauge(self, u: Tensor) -> Tensor:
        return u.new_zeros(len(u))

    def nearest(self, z: Tensor) -> Tensor:
        return self._clip(z)

    def violation(self, z: Tensor) -> Tensor:
        return size_of(z - self._clip(z))
