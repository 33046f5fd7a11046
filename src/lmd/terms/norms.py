"""Weighted norms: the sum of absolute entries, and the sum of the lengths of groups of entries."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.errors import InputError
from lmd.terms.base import (
    Pieces,
    Scale,
    Term,
    check_scale,
    clip,
    filled,
    per_instance,
    rounding_of_sum,
    size_of,
    size_of_scale,
    sum_instances,
    weighted_sum,
    written,
)

NONE = 1e-6
"""Lengths below this, in multiples of step weight, are taken for 0 where it is asked which stay so."""

Axes = tuple[int, ...]
"""The axes along which entries form a group; none where each entry stands alone."""


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
    """Each group drawn to a length of at most `radius`; what is inside stays exactly as it is."""
    if not axes:
        return clip(p, -radius, radius, out)
    # Squares over radius^2, so that a point inside is multiplied by exactly 1, and a zero has a derivative.
    excess = (p.square().sum(dim=axes, keepdim=True) / radius**2).clamp(min=1)
    return torch.mul(p, excess.rsqrt(), out=out)


def group_roundings(z: Tensor, each: Tensor) -> float:
    """How many eps of their size the length and the product of a group of n entries are off by: 24 + 4n."""
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

    def __init__(self, weight: Scale, axes: int | Axes) -> None:
        self.weight = check_scale("weight", weight)
        self.axes = check_axes(axes)

    @property
    def name(self) -> str:
        alike = not isinstance(self.weight, Tensor) or self.weight.ndim < 2
        return "lengths" if type(self) is GroupNorm and alike and self.axes == (2,) else super().name

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
        return lengths(z + by * p, self.axes) <= (1 + NONE) * by * per_instance(self.weight, z)

    def steepness(self, z: Tensor) -> Scale:
        for axis in self.axes:
            z = z.narrow(axis, 0, 1)
        return size_of_scale(self.weight, z)

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

    @property
    def zero_is_exact(self) -> bool:
        return True

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """0."""
        return written(torch.zeros_like(u), out)

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
        weights = size_of_scale(self.weight, each)
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

    @property
    def name(self) -> str:
        return "l1" if self.absolute_weight is not None else type(self).__name__

    @property
    def absolute_weight(self) -> Scale | None:
        alike = not isinstance(self.weight, Tensor) or self.weight.ndim < 2
        return self.weight if alike and type(self) is L1 else None

    def pieces(self, z: Tensor) -> Pieces:
        """w |z| = w z + 2w max(0, -z)."""
        return Pieces(slope=self.weight, fold=2 * self.weight)
