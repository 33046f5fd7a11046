"""Weighted norms of entries or of groups of entries, and Huber's function of them."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.errors import InputError
from lmd.terms.base import (
    Pieces,
    Scale,
    Term,
    check_fits,
    check_scale,
    clip,
    filled,
    inner,
    max_scale,
    per_instance,
    rounding_of_sum,
    size_of,
    sum_instances,
    weighted_sum,
    write_to,
)
from lmd.terms.wrappers import Shifted

ZERO_TOLERANCE = 1e-6
"""Lengths below this, in multiples of step weight, are taken for 0 where it is asked which stay so."""

Axes = tuple[int, ...]  # the axes along which entries form a group; none where each entry stands alone


def check_axes(axes: int | Axes) -> Axes:
    """The axes as a tuple, if all are numbers of 1 or more."""
    chosen = (axes,) if isinstance(axes, int) else tuple(axes)
    if not all(isinstance(axis, int) and axis >= 1 for axis in chosen):
        raise InputError("axes", repr(axes), "numbers of 1 or more: axis 0 is the instance")
    return chosen


def lengths(z: Tensor, axes: Axes) -> Tensor:
    """The Euclidean length of each group, the axes kept with size 1; its derivative at 0 is 0."""
    if not axes:
        return z.abs()
    squares = z.square().sum(dim=axes, keepdim=True)
    if not (torch.is_grad_enabled() and z.requires_grad):
        return squares.sqrt_()
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1).sqrt(), 0)


def directions(z: Tensor, axes: Axes) -> Tensor:
    """z / |z| for each group, and 0 where z is 0."""
    if not axes:
        return z.detach().sign()  # which have no derivative to record
    squares = z.square().sum(dim=axes, keepdim=True)
    positive = squares > 0
    return z * torch.where(positive, torch.where(positive, squares, 1).rsqrt(), 0)


def project_ball(p: Tensor, radius: Scale, axes: Axes, out: Tensor | None = None) -> Tensor:
    """Project each group onto the ball of this `radius`; points inside stay exactly as they are."""
    if not axes:
        return clip(p, -radius, radius, out)
    # Squares over radius^2, so that a point inside is multiplied by exactly 1, and a zero has a derivative.
    excess = (p.square().sum(dim=axes, keepdim=True) / radius**2).clamp(min=1)
    return torch.mul(p, excess.rsqrt(), out=out)


def group_roundings(z: Tensor, each: Tensor) -> float:
    """Rounding of the length and the product of a group of n entries, in eps of their size: 24 + 4n."""
    return 24 + 4 * (z.numel() / each.numel())


class GroupNorm(Term):
    r"""h(z) = weight \sum_g |z_g|, the lengths of the groups of entries along `axes`; z `(B, ...)`.

    Isotropic total variation has the axis of the differences, 2 for z `(B, C, 2, H, W)`; with axes (1, 2) the channels
    are coupled. The weight is a number, one per instance `(B,)`, or one per group: as many dimensions as z, of size 1
    along the axes. h* is 0 on its domain, |p_g| <= weight.

    Args:
        weight: A positive number, one per instance `(B,)` or one per group.
        axes: The axis or axes of z that a group extends over, counted from that of the instances, 0.

    >>> term = GroupNorm(2.0, axes=1)
    >>> term.value(torch.tensor([[3.0, 4.0]])), term.project(torch.tensor([[3.0, 4.0]]))
    (tensor([10.]), tensor([[1.2000, 1.6000]]))
    """

    batched = ("weight",)
    zero_is_exact = True

    def __init__(self, weight: Scale, axes: int | Axes) -> None:
        self.weight = check_scale("weight", weight)
        self.axes = check_axes(axes)

    def value(self, z: Tensor) -> Tensor:
        return weighted_sum(self.weight, lengths(z, self.axes))

    def subgradient(self, z: Tensor) -> Tensor:
        """weight z / |z|, and 0 where z is 0."""
        return directions(z, self.axes).mul_(per_instance(self.weight, z))

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor:
        """|z_g + step p_g| <= step weight, or next to it: z_g = 0, and p_g inside the ball.

        Lengths that a solve leaves where there are none point anywhere: a pixel that were free to move in such a
        direction alone would be held in the other.
        """
        by = per_instance(step, z)
        return lengths(z + by * p, self.axes) <= (1 + ZERO_TOLERANCE) * by * per_instance(self.weight, z)

    def steepness(self, z: Tensor) -> Scale:
        for axis in self.axes:
            z = z.narrow(axis, 0, 1)
        return size_of(filled(self.weight, z).expand_as(z))

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """Lengths drawn to 0 by step * weight."""
        radius = per_instance(step, z) * per_instance(self.weight, z)
        return torch.sub(z, project_ball(z, radius, self.axes), out=out)

    def conjugate(self, p: Tensor) -> Tensor:
        return p.new_zeros(len(p))

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        return project_ball(p, per_instance(self.weight, p), self.axes, out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """The projection."""
        return self.project(p, out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """0."""
        return write_to(torch.zeros_like(u), out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """sum weight |z_g| - <z_g, p_g>."""
        most = lengths(z, self.axes).mul_(per_instance(self.weight, z))
        if self.axes:
            return sum_instances(most.sub_((p * z).sum(dim=self.axes, keepdim=True)).clamp_(min=0))
        return sum_instances(most.addcmul_(p, z, value=-1)).clamp_(min=0)  # each is 0 or more, but for rounding

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """A group of n is right to (24 + 4n) eps weight |z_g|, also where p is longer than the weight by a few eps.

        Its residual is 2 weight-Lipschitz in z_g and |z_g|-Lipschitz in p_g; sums are at most these times the errors.
        """
        each = lengths(z, self.axes)
        weights = size_of(filled(self.weight, each).expand_as(each))
        evaluation = group_roundings(z, each) * torch.finfo(z.dtype).eps * weighted_sum(self.weight, each)
        return evaluation + 2 * weights * z_error + size_of(z) * p_error + rounding_of_sum(z, residual)

    def gauge(self, u: Tensor) -> Tensor:
        """The largest |u_g| / weight."""
        each, weight = lengths(u, self.axes), filled(self.weight, u)
        ratios = torch.where(each > 0, each / weight, 0)
        return ratios.flatten(1).amax(dim=1)


class L1(GroupNorm):
    r"""h(z) = \sum_i weight_i |z_i|; z `(B, ...)`; weights numbers, per instance `(B,)` or per entry, 0 or more.

    h* is 0 on its domain, |p_i| <= weight_i.

    Args:
        weight: A positive number, or one per instance `(B,)` or entry, of 0 or more.

    >>> L1(2.0).prox(torch.tensor([[3.0, -1.0]]), step=1.0)
    tensor([[1., 0.]])
    """

    def __init__(self, weight: Scale = 1.0) -> None:
        self.weight = check_scale("weight", weight, zero=True)
        self.axes = ()

    def pieces(self, z: Tensor) -> Pieces:
        """w |z| = w z + 2w max(0, -z)."""
        return Pieces(slope=self.weight, fold=2 * self.weight)


class Huber(Term):
    r"""h(z) = weight \sum_g phi(|z_g|), phi(r) = r^2 / 2 delta up to r = delta, and r - delta / 2 beyond; z `(B, ...)`.

    Groups are entries along `axes`, single entries where there are none ([Huber 1964](https://doi.org/10.1214/aoms/1177703732)).
    Weight and delta are numbers, per instance `(B,)` or per group, as in `GroupNorm`. It is the norm smoothed:
    h*(p) = delta |p|^2 / 2 weight, on the domain of the norm's conjugate, |p_g| <= weight.

    Args:
        weight: A positive number, one per instance `(B,)` or one per group.
        delta: The length at which the quadratic part ends; positive, of the same shapes as `weight`.
        axes: The axis or axes of z that a group extends over; () for single entries.

    >>> Huber(1.0, delta=2.0).value(torch.tensor([[1.0], [4.0]]))
    tensor([0.2500, 3.0000])
    """

    batched = ("weight", "delta")
    zero_is_exact = True

    def __init__(self, weight: Scale, delta: Scale, axes: int | Axes = ()) -> None:
        self.weight, self.delta = check_scale("weight", weight), check_scale("delta", delta)
        self.axes = check_axes(axes)
        self.norm = GroupNorm(self.weight, self.axes)

    @property
    def smoothness(self) -> Scale | None:
        weight, delta = self.weight, self.delta
        if isinstance(weight, Tensor) and isinstance(delta, Tensor):
            like = max(weight, delta, key=lambda scale: scale.ndim)
            return max_scale(per_instance(weight, like) / per_instance(delta, like))
        return max_scale(weight / delta)

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

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        weight, delta = self._scales(u)
        return torch.mul(u, -delta / weight, out=out)

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest point within delta of 0, and the rest."""
        near = project_ball(z, per_instance(self.delta, z), self.axes)
        return near, z - near

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """Residual of the norm at the part of z beyond delta, plus sum weight/2 delta (near - delta p / weight)^2."""
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
        sizes = self.norm.value(z) + sum_instances((weight * delta).expand_as(each))
        evaluation = 2 * group_roundings(z, each) * eps * sizes
        return evaluation + 2 * weights * z_error + reach * p_error + rounding_of_sum(z, residual)

    def gauge(self, u: Tensor) -> Tensor:
        return self.norm.gauge(u)


class Absolute(Shifted):
    r"""h(z) = \sum_i weight_i |z_i - y_i|; z, y `(B, ...)`; weights a number, per instance `(B,)` or per entry.

    h*(p) = <p, y> on its domain, |p_i| <= weight_i.

    Args:
        y: `(B, ...)`, the data.
        weight: A positive number, or one per instance `(B,)` or entry, of 0 or more.

    >>> term = Absolute(torch.tensor([[1.0, 2.0]]), weight=0.5)
    >>> term.value(torch.tensor([[2.0, 4.0]])), term.prox(torch.tensor([[2.0, 4.0]]), step=2.0)
    (tensor([1.5000]), tensor([[1., 3.]]))
    """

    term: L1

    def __init__(self, y: Tensor, weight: Scale = 1.0) -> None:
        super().__init__(L1(check_fits("weight", weight, y)), y)

    @property
    def counted(self) -> Tensor | None:
        return filled(self.term.weight, self.y) > 0 if isinstance(self.term.weight, Tensor) else None

    def with_mask(self, mask: Tensor) -> Absolute:
        weight = per_instance(self.term.weight, self.y) * mask.to(self.y)
        return Absolute(self.y, weight.expand_as(self.y))

    def best_multiple(self, p: Tensor, most: Scale) -> Tensor:
        """-h*(t p) = -t <p, y> is largest at an end of what both `most` and the domain of h* allow."""
        slope, gauge = inner(p, self.y), self.gauge(p)
        reach = torch.minimum(filled(most, slope), 1 / gauge.clamp(min=torch.finfo(p.dtype).tiny))
        return torch.where(slope > 0, -reach, reach)
