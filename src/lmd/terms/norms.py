"""Weighted norms of entries or of groups of entries, Huber's function of them, and the hinge loss."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.core.checks import check_fits, check_scale
from lmd.errors import InputError
from lmd.terms.base import (
    Pieces,
    Scale,
    Term,
    clip,
    filled,
    max_scale,
    per_instance,
    rounding_of_sum,
    size_of,
    sum_instances,
    weighted_sum,
)
from lmd.terms.wrappers import Shifted, of_part

ZERO_TOLERANCE = 1e-6
"""Relative tolerance of `GroupNorm.kinks`: lengths below this times step * weight count as 0."""

Axes = tuple[int, ...]  # the axes that a group of entries extends over; () for single entries


def check_axes(axes: int | Axes) -> Axes:
    """Return the axes as a tuple if all are integers of 1 or more."""
    chosen = (axes,) if isinstance(axes, int) else tuple(axes)
    for axis in chosen:
        if not isinstance(axis, int) or axis < 1:
            raise InputError("axes", repr(axes), "numbers of 1 or more: axis 0 is the instance")
    return chosen


def lengths(z: Tensor, axes: Axes) -> Tensor:
    """Return the Euclidean length of each group, with size 1 along the axes; its derivative at 0 is 0."""
    if not axes:
        return z.abs()
    squares = z.square().sum(dim=axes, keepdim=True)
    if not (torch.is_grad_enabled() and z.requires_grad):
        return squares.sqrt_()
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1).sqrt(), 0)


def directions(z: Tensor, axes: Axes) -> Tensor:
    """Return z / |z| for each group, and 0 where z is 0."""
    if not axes:
        return z.detach().sign()  # the derivative of a sign is 0
    squares = z.square().sum(dim=axes, keepdim=True)
    positive = squares > 0
    return z * torch.where(positive, torch.where(positive, squares, 1).rsqrt(), 0)


def project_ball(p: Tensor, radius: Scale, axes: Axes) -> Tensor:
    """Project each group onto the ball of this `radius`; points inside stay exactly as they are."""
    if not axes:
        return clip(p, -radius, radius)
    # Clamping the squares multiplies points inside by exactly 1 and leaves a derivative at 0.
    excess = (p.square().sum(dim=axes, keepdim=True) / radius**2).clamp(min=1)
    return p * excess.rsqrt()


def group_roundings(z: Tensor, each: Tensor) -> float:
    """Return 24 + 4n, the rounding of |z_g| and <z_g, p_g> for groups of n entries, in multiples of eps |z_g|."""
    return 24 + 4 * (z.numel() / each.numel())


class GroupNorm(Term):
    r"""h(z) = weight \sum_g |z_g| for groups g of entries that extend over `axes`; z `(B, ...)`.

    For isotropic total variation of z `(B, C, 2, H, W)`, use axis 2, the axis of the differences; axes (1, 2) also
    couple the channels. The weight is a number, one per instance `(B,)`, or one per group: a tensor with as many
    dimensions as z and size 1 along the axes. h* is 0 on its domain, |p_g| <= weight.

    Args:
        weight: A positive number, one per instance `(B,)` or one per group.
        axes: The axis or axes of z that a group extends over, 1 or more; axis 0 is the instance.

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
        """Return weight z / |z|, and 0 where z is 0."""
        return directions(z, self.axes).mul_(per_instance(self.weight, z))

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor:
        """Return whether |z_g + step p_g| <= step weight, up to a tolerance: then z_g = 0 and |p_g| <= weight.

        The tolerance covers tiny z_g of random direction that a solver leaves in place of 0. Without it, such a z_g
        could move along its own direction but not across it.
        """
        by = per_instance(step, z)
        return lengths(z + by * p, self.axes) <= (1 + ZERO_TOLERANCE) * by * per_instance(self.weight, z)

    def steepness(self, z: Tensor) -> Scale:
        for axis in self.axes:
            z = z.narrow(axis, 0, 1)
        return size_of(filled(self.weight, z).expand_as(z))

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        """Shorten each group by step * weight, at most to 0."""
        radius = per_instance(step, z) * per_instance(self.weight, z)
        return z - project_ball(z, radius, self.axes)

    def conjugate(self, p: Tensor) -> Tensor:
        return p.new_zeros(len(p))

    def project(self, p: Tensor) -> Tensor:
        return project_ball(p, per_instance(self.weight, p), self.axes)

    def conjugate_prox(self, p: Tensor, step: Scale) -> Tensor:
        return self.project(p)

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        return torch.zeros_like(u)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """Return sum weight |z_g| - <z_g, p_g>."""
        most = lengths(z, self.axes).mul_(per_instance(self.weight, z))
        if self.axes:
            return sum_instances(most.sub_((p * z).sum(dim=self.axes, keepdim=True)).clamp_(min=0))
        return sum_instances(most.addcmul_(p, z, value=-1)).clamp_(min=0)  # each is >= 0 up to rounding

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Bound the error of a group of n entries by (24 + 4n) eps weight |z_g|; |p_g| may be a few eps above weight.

        The residual of a group is 2 weight-Lipschitz in z_g and |z_g|-Lipschitz in p_g; Cauchy-Schwarz bounds the sum.
        """
        each = lengths(z, self.axes)
        weights = size_of(filled(self.weight, each).expand_as(each))
        evaluation = group_roundings(z, each) * torch.finfo(z.dtype).eps * weighted_sum(self.weight, each)
        return evaluation + 2 * weights * z_error + size_of(z) * p_error + rounding_of_sum(z, residual)

    def gauge(self, u: Tensor) -> Tensor:
        """Return the largest |u_g| / weight."""
        each, weight = lengths(u, self.axes), filled(self.weight, u)
        ratios = torch.where(each > 0, each / weight, 0)
        return ratios.flatten(1).amax(dim=1)


class L1(GroupNorm):
    r"""h(z) = \sum_i weight_i |z_i| with weights of 0 or more; z `(B, ...)`.

    h* is 0 on its domain, |p_i| <= weight_i.

    Args:
        weight: A positive number, or a tensor of 0 or more: one per instance `(B,)` or one per entry.

    >>> L1(2.0).prox(torch.tensor([[3.0, -1.0]]), step=1.0)
    tensor([[1., 0.]])
    """

    def __init__(self, weight: Scale = 1.0) -> None:
        self.weight = check_scale("weight", weight, zero=True)
        self.axes = ()

    def pieces(self, z: Tensor) -> Pieces:
        """Return the pieces of w |z| = w z + 2w max(0, -z)."""
        return Pieces(slope=self.weight, fold=2 * self.weight)


class Huber(Term):
    r"""h(z) = weight \sum_g phi(|z_g|), phi(r) = r^2 / 2 delta up to r = delta, and r - delta / 2 beyond; z `(B, ...)`.

    Groups extend over `axes`; without axes, they are entries ([Huber 1964](https://doi.org/10.1214/aoms/1177703732)).
    Weight and delta are numbers, per instance `(B,)` or per group, as in `GroupNorm`. h is a smoothed norm:
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
    project, gauge = of_part("norm.project"), of_part("norm.gauge")

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
        near = each.minimum(delta)  # one formula for both cases of phi
        return sum_instances(weight * (near.square() / (2 * delta) + (each - near)))

    def subgradient(self, z: Tensor) -> Tensor:
        weight, delta = self._scales(z)
        return (weight / delta) * project_ball(z, delta, self.axes)

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        """Return z times the larger of delta / (delta + step weight) and 1 - step weight / |z|."""
        weight, delta = self._scales(z)
        drawn, each = per_instance(step, z) * weight, lengths(z, self.axes)
        far = each > delta + drawn
        factor = torch.where(far, 1 - drawn / torch.where(far, each, 1), delta / (delta + drawn))
        return z * factor

    def conjugate(self, p: Tensor) -> Tensor:
        weight, delta = self._scales(p)
        return sum_instances(p.square() * (delta / (2 * weight)))

    def conjugate_prox(self, p: Tensor, step: Scale) -> Tensor:
        weight, delta = self._scales(p)
        return self.norm.project(p * (weight / (weight + per_instance(step, p) * delta)))

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        weight, delta = self._scales(u)
        return u * (-delta / weight)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """Return the residual of the norm at z - near plus sum weight/2 delta (near - delta p / weight)^2.

        near is the projection of each group of z onto the ball of radius delta.
        """
        weight, delta = self._scales(z)
        near = project_ball(z, delta, self.axes)
        squares = (weight / (2 * delta)) * (near - p * (delta / weight)).square()
        return self.norm.residual(z - near, p) + sum_instances(squares)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Bound the error of a group of n by 2 (24 + 4n) eps weight (|z_g| + delta); `near` is accurate to 8 eps delta.

        The residual is 2 weight-Lipschitz in z_g for p in the domain of h*. Its derivative in p_g is
        delta p_g / weight - z_g, of length |z_g| + delta at most.
        """
        eps, (weight, delta) = torch.finfo(z.dtype).eps, self._scales(z)
        each = lengths(z, self.axes)
        weights, reach = size_of(weight.expand_as(each)), size_of(each + delta)
        sizes = self.norm.value(z) + sum_instances((weight * delta).expand_as(each))
        evaluation = 2 * group_roundings(z, each) * eps * sizes
        return evaluation + 2 * weights * z_error + reach * p_error + rounding_of_sum(z, residual)


class Absolute(Shifted):
    r"""h(z) = \sum_i weight_i |z_i - y_i| with weights of 0 or more; z, y `(B, ...)`.

    h*(p) = <p, y> on its domain, |p_i| <= weight_i.

    Args:
        y: `(B, ...)`, the data.
        weight: A positive number, or a tensor of 0 or more: one per instance `(B,)` or one per entry.

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

    best_multiple = Term._best_end


class Hinge(Term):
    r"""h(z) = C \sum_i max(0, 1 - z_i) of margins z `(B, ...)`, which already include the labels +-1.

    C is a number, per instance `(B,)` or per entry. h*(p) = \sum p_i on its domain, -C <= p <= 0
    ([Cortes and Vapnik 1995](https://doi.org/10.1007/BF00994018)).

    Args:
        C: A positive number, one per instance `(B,)` or one per entry.

    >>> Hinge(2.0).value(torch.tensor([[0.5, 3.0]]))
    tensor([1.])
    """

    batched = ("C",)

    def __init__(self, C: Scale = 1.0) -> None:
        self.C = check_scale("C", C)

    def value(self, z: Tensor) -> Tensor:
        return sum_instances(per_instance(self.C, z) * (1 - z).clamp(min=0))

    def subgradient(self, z: Tensor) -> Tensor:
        return -filled(self.C, z) * (z < 1)

    def pieces(self, z: Tensor) -> Pieces:
        return Pieces(fold=self.C, kink=1.0)

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        """Return z + step C, clipped to at most 1, where z < 1; return z elsewhere."""
        raised = z + per_instance(step, z) * per_instance(self.C, z)
        return torch.where(raised < 1, raised, z.clamp(min=1))

    def conjugate(self, p: Tensor) -> Tensor:
        return sum_instances(p)

    def project(self, p: Tensor) -> Tensor:
        return clip(p, -per_instance(self.C, p), 0.0)

    def conjugate_prox(self, p: Tensor, step: Scale) -> Tensor:
        return self.project(p - per_instance(step, p))

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        return torch.ones_like(u)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """Return sum (C + p) max(0, 1 - z) - p max(0, z - 1)."""
        short = 1 - z
        slack = (per_instance(self.C, z) + p).clamp(min=0)
        return sum_instances(slack * short.clamp(min=0) + p.clamp(max=0) * short.clamp(max=0))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Bound the error of each product by 8 eps (C max(0, 1 - z) + the product); C + p is accurate to eps C.

        The residual of an entry is C-Lipschitz in z, as 0 <= C + p <= C, and |1 - z|-Lipschitz in p.
        """
        weights = size_of(filled(self.C, z).expand_as(z))
        evaluation = 8 * torch.finfo(z.dtype).eps * (self.value(z) + residual)
        return evaluation + weights * z_error + size_of(1 - z) * p_error + rounding_of_sum(z, residual)

    best_multiple = Term._best_end

    def gauge(self, u: Tensor) -> Tensor:
        """Return the largest -u / C; infinite if an entry of u is above 0."""
        ratios = torch.where(u > 0, torch.inf, -u / per_instance(self.C, u))
        return ratios.flatten(1).amax(dim=1)
