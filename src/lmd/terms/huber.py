"""Huber's function of entries or of the lengths of groups: squares near 0, a norm further out."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.terms.base import (
    Scale,
    Term,
    check_scale,
    filled,
    largest,
    per_instance,
    rounding_of_sum,
    size_of,
    sum_instances,
)
from lmd.terms.norms import Axes, GroupNorm, check_axes, group_roundings, lengths, project_ball


class Huber(Term):
    r"""h(z) = weight \sum_g phi(|z_g|), phi(r) = r^2 / 2 delta up to r = delta, and r - delta / 2 beyond; z `(B, ...)`.

    Groups are entries along `axes`, single entries where there are none ([Huber 1964](https://doi.org/10.1214/aoms/1177703732)).
    Weight and delta are numbers, per instance `(B,)` or per group, as in `GroupNorm`. It is the norm smoothed:
    h*(p) = delta |p|^2 / 2 weight, on the domain of the norm's conjugate, |p_g| <= weight.

    Args:
        weight: A positive number, one per instance `(B,)` or one per group.
        delta: Where squares end, positive, likewise.
        axes: The axis or axes of z that a group extends over; () for single entries.

    >>> Huber(1.0, delta=2.0).value(torch.tensor([[1.0], [4.0]]))
    tensor([0.2500, 3.0000])
    """

    batched = ("weight", "delta")

    def __init__(self, weight: Scale, delta: Scale, axes: int | Axes = ()) -> None:
        self.weight, self.delta = check_scale("weight", weight), check_scale("delta", delta)
        self.axes = check_axes(axes)
        self.norm = GroupNorm(self.weight, self.axes)

    @property
    def smoothness(self) -> Scale | None:
        weight, delta = self.weight, self.delta
        if isinstance(weight, Tensor) and isinstance(delta, Tensor):
            like = max(weight, delta, key=lambda scale: scale.ndim)
            return largest(per_instance(weight, like) / per_instance(delta, like))
        return largest(weight / delta)

    def _scales(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return filled(self.weight, z), filled(self.delta, z)

    def value(self, z: Tensor) -> Tensor:
        weight, delta = self._scales(z)
        each = lengths(z, self.axes)
        near = each.minimum(delta)  # r^2 / 2 delta and r - delta / 2 in one
        return sum_instances(weight * (near.square() / (2 * delta) + (each - near)))

    def subgradient(self, z: Tensor) -> Tensor:
        weight, delta = self._scales(z)
        return (weight / delta) * project_ball(z, delta, self.axes)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """z times the larger of delta / (delta + step weight) and 1 - step weight / |z|."""
        weight, delta = self._scales(z)
        drawn, each = per_instance(step, z) * weight, lengths(z, self.axes)
        far = each > delta + drawn
        factor = torch.where(far, 1 - drawn / torch.where(far, each, 1), delta / (delta + drawn))
        return torch.mul(z, factor, out=out)

    def conjugate(self, p: Tensor) -> Tensor:
        weight, delta = self._scales(p)
        return sum_instances(p.square() * (delta / (2 * weight)))

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        return self.norm.project(p, out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        weight, delta = self._scales(p)
        return self.norm.project(p * (weight / (weight + per_instance(step, p) * delta)), out)

    @property
    def zero_is_exact(self) -> bool:
        return True

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        weight, delta = self._scales(u)
        return torch.mul(u, -delta / weight, out=out)

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest point within delta of 0, and the rest."""
        near = project_ball(z, per_instance(self.delta, z), self.axes)
        return near, z - near

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """That of the norm at the part of z beyond delta, plus sum weight/2 delta (near - delta p / weight)^2."""
        weight, delta = self._scales(z)
        near, rest = self._split(z)
        squares = (weight / (2 * delta)) * (near - p * (delta / weight)).square()
        return self.norm.residual(rest, p) + sum_instances(squares)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Near and rest are right to 8 eps delta; so both parts are, to twice (24 + 4n) eps weight (|z_g| + delta).

        The residual is 2 weight-Lipschitz in z_g, as p is in its domain; its derivative in p_g is delta p / weight - z,
        at most |z_g| + delta.
        """
        eps, (weight, delta) = torch.finfo(z.dtype).eps, self._scales(z)
        each = lengths(z, self.axes)
        weights, reach = size_of(weight.expand_as(each)), size_of(each + delta)
        evaluation = (
            2 * group_roundings(z, each) * eps * (self.norm.value(z) + sum_instances((weight * delta).expand_as(each)))
        )
        return evaluation + 2 * weights * z_error + reach * p_error + rounding_of_sum(z, residual)

    def gauge(self, u: Tensor) -> Tensor:
        return self.norm.gauge(u)
