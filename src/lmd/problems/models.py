"""Total variation models: any misfit, coupled colours, maps of weights, Huber, second order, boxes, any operator."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmd.core.checks import check_batch, check_finite, check_interval, check_positive, check_same_kind, shape_of
from lmd.errors import InputError
from lmd.operators import Differences, LinearOperator
from lmd.operators.differences import Bends, Slopes
from lmd.operators.stack import Stack
from lmd.problems.composite import Composite
from lmd.problems.grids import MAX_CONSTANT_GAUGE, balancing_size, dual_size
from lmd.problems.tv import TVProblem, check_grid, check_scale, check_weight
from lmd.terms import L1, Box, GroupNorm, Huber, Term, Zero
from lmd.terms.base import Scale
from lmd.terms.norms import Axes
from lmd.terms.stacked import Stacked
from lmd.terms.wrappers import Boxed, data_of

Interval = tuple[float, float]


class TVModel(TVProblem):
    r"""F(x) = misfit(Ax) + weight TV(x) over low <= x <= high; x `(B, C, *size)`.

    The `misfit` is a term about data y: `Squares(y)`, `Absolute(y)` for impulses, `KullbackLeibler(y)` for Poisson
    counts; a mask is the weight of its entries, or `forward=Mask(mask)`. TV is that of `TVProblem`, and besides

    - `coupled`: one length for all channels of a pixel, or of a difference in the anisotropic form
      ([Bresson and Chan 2008](https://doi.org/10.3934/ipi.2008.2.455));
    - `weight` may be a map, per pixel `(B, 1 or C, *size)` or, in the anisotropic form, per difference
      `(B, 1 or C, axes, *size)`; 1 of them where channels are coupled;
    - `huber` > 0: gradients up to this length are penalised by their squares, which avoids staircases.

    A is `forward`, any operator on `(B, C, *size)`, the identity where there is none. Behind a mask, the entries of a
    misfit that are lost are left out of it: they are the same whatever x is. *The box* is given by `box` and then part
    of the problem; with A it is [0, 1] by default. Without A the minimum is attained between the ends of the range of y
    in each channel, clipped to the box: clipping to them lengthens no difference and brings no entry away from its y,
    see `TVInpainting`. So the dual is taken with these ends and is finite for every dual point, or without any where
    that of squares is.

    Args:
        misfit: A term about data y `(B, C, ...)`, such as `Squares(y)`.
        weight: A positive number, one per image `(B,)`, or a map, as above.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        coupled: Whether all channels share one gradient length.
        huber: Penalise gradients up to this length by their squares; 0 disables this.
        spacing: The distance of pixels: a number, or one for each axis; None is 1.
        box: (low, high), the range of pixels.
        forward: A, an operator on `(B, C, *size)`; None is the identity.
        size: Of the images, where A makes something else of them; None is that of y.

    >>> from lmd.terms import KullbackLeibler
    >>> import lmd
    >>> counts = torch.tensor([[[[4.0, 0.0, 9.0, 12.0]]]])
    >>> lmd.solve(TVModel(KullbackLeibler(counts), weight=0.4), tolerance=1e-6).x.flatten().round(decimals=1)
    tensor([2.9000, 0.0000, 8.8000, 8.8000])
    """

    def __init__(
        self,
        misfit: Term,
        weight: float | Tensor = 0.3,
        *,
        isotropic: bool = False,
        coupled: bool = False,
        huber: float = 0.0,
        spacing: float | Sequence[float] | None = None,
        box: Interval | None = None,
        forward: LinearOperator | None = None,
        size: tuple[int, ...] | None = None,
    ) -> None:
        self.noisy, self.isotropic = check_batch("y", data_of(misfit)), bool(isotropic)
        self.coupled, self.huber = bool(coupled), check_positive("huber", huber, zero=True)
        self.scale = 1.0  # the misfit has a scale of its own
        shape = check_grid(self.noisy) if size is None else tuple(size)
        self.weight = _check_map(weight, self.noisy, shape, self.isotropic, self.coupled)
        variation = (_norm(self.bound, self.isotropic, self.coupled, self.huber), Differences(shape, spacing))
        if forward is not None and forward.mask is not None and (kept := misfit.with_mask(forward.mask)) is not None:
            misfit, forward, box = kept, None, (0.0, 1.0) if box is None else box
        self.forward = forward
        if forward is not None:
            low, high = check_interval("box", (0.0, 1.0) if box is None else box)
            self.domain = Box(low, high)
            start = self.noisy.new_full((*self.noisy.shape[:2], *shape), (low + high) / 2)
            scales = (1.0, variation[1].norm / forward.norm)
            self.compose(self.domain, variation, (misfit, forward), start=start, scales=scales)
            return
        f = within_range(misfit, box)
        check_scale("misfit", f.nearest(self.noisy), self.weight)
        self.domain = None if box is None else Box(*box)
        self.compose(f, variation, start=f.nearest(self.noisy))

    @property
    def bound(self) -> Scale:
        """b of `TVProblem`; of a map, in the shape of the differences `(B, 1 or C, 1 or axes, *size)`."""
        if self.weight.ndim == 1:
            return super().bound
        return self.weight if self.weight.ndim > self.noisy.ndim else self.weight.unsqueeze(2)

    @property
    def balance(self) -> float | None:
        """Scale of Ax beside differences in the steps of primal-dual methods; None without A."""
        return self.operator.scales[1] if self.forward is not None else None


class SecondOrderModel(Composite):
    r"""F(x, w) = misfit(x) + weight (||Dx - w|| + ratio ||Ew||) over low <= x <= high: total generalised variation.

    w `(B, C, axes, *size)` is a field of slopes, Ew its symmetrised derivative: what is a plane costs nothing, so that
    there are no staircases ([Bredies, Kunisch and Pock 2010](https://doi.org/10.1137/090769521)). Points are X
    `(B, n)`, which hold x and w; `image(X)` is x. Misfits and `coupled` are as in `TVModel`; here a box is always part
    of the problem, and the range of y where none is given and squares do not count all entries.

    *The dual.* w has no term of its own, so a dual point (p, q) gives a bound where p = E'q. `feasible_dual` takes q,
    and both times the largest number of at most 1 for which E'q is in the domain.

    Args:
        misfit: A term about data y `(B, C, *size)`, as in `TVModel`.
        weight: A positive number, or one per image `(B,)`.
        ratio: The weight of ||Ew|| relative to ||Dx - w||, positive.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        coupled: Whether all channels share one gradient length.
        spacing: The distance of pixels: a number, or one for each axis; None is 1.
        box: (low, high), the range of pixels.
    """

    batched: ClassVar[tuple[str, ...]] = ("noisy", "weight")

    operator: Stack
    f: Stacked

    def __init__(
        self,
        misfit: Term,
        weight: float | Tensor = 0.3,
        *,
        ratio: float = 2.0,
        isotropic: bool = False,
        coupled: bool = False,
        spacing: float | Sequence[float] | None = None,
        box: Interval | None = None,
    ) -> None:
        self.noisy = check_batch("y", data_of(misfit))
        self.isotropic, self.coupled = bool(isotropic), bool(coupled)
        self.weight = check_weight(weight, self.noisy)
        size, channels, ratio = check_grid(self.noisy), self.noisy.shape[1], check_positive("ratio", ratio)
        self.slopes, self.bends = (kind(channels, size, spacing) for kind in (Slopes, Bends))
        norms = [_norm(by * self.weight, self.isotropic, self.coupled, 0.0) for by in (1.0, ratio)]
        x = boxed(misfit, box)
        f = Stacked((x, Zero()), ((channels, *size), (channels, len(size), *size)))
        y = x.nearest(self.noisy)
        check_scale("misfit", y, self.weight)
        start = self.slopes.join(y, y.new_zeros(*y.shape[:2], len(size), *size))
        self.compose(f, (norms[0], self.slopes), (norms[1], self.bends), start=start)

    def image(self, X: Tensor) -> Tensor:
        """x `(B, C, *size)` of X."""
        return self.slopes.split(X)[0]

    def step_scale(self, x: Tensor) -> Tensor:
        """The range of the data over the size of dual points: the weight, or less where that is large."""
        y, misfit = self.noisy, self.f.terms[0]
        extent = y.flatten(1).amax(dim=1) - y.flatten(1).amin(dim=1)
        mean = y.mean(dim=tuple(range(2, y.ndim)), keepdim=True).expand_as(y)
        pull = balancing_size(misfit.subgradient(misfit.nearest(mean)), y.shape[1:]).to(y)
        return torch.where(extent > 0, extent / dual_size(self.weight, pull), torch.nan)

    def clip(self, x: Tensor) -> Tensor:
        """Slopes have no domain, and x is kept to its own by the prox."""
        return x

    def levelled(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """The plane nearest to x in each channel, and for which instances `(B,)` the dual point says that it will do.

        As in `Composite`, with planes in place of means: these are what costs nothing here.
        """
        parts = zip(self.regularisers, self.operator.split(dual), strict=True)
        within = torch.stack([term.gauge(part) for term, part in parts]).amax(dim=0) < MAX_CONSTANT_GAUGE
        image = self.image(x).double()
        along = tuple(range(2, image.ndim))
        mean = image.mean(dim=along, keepdim=True)
        plane = torch.zeros_like(image)
        w = x.new_zeros(*image.shape[:2], len(along), *image.shape[2:], dtype=torch.float64)
        for n, (axis, h) in enumerate(zip(along, self.slopes.differences.spacing, strict=True)):
            length = image.shape[axis]
            place = torch.arange(length, dtype=torch.float64, device=x.device) - (length - 1) / 2
            place = place.reshape(-1, *[1] * (image.ndim - 1 - axis))
            slope = (image * place).mean(dim=along, keepdim=True) / (place.square().mean() if length > 1 else 1)
            plane = plane + slope * place
            w[:, :, n] = slope / h
        share = self._share_within(mean, plane)
        level = self.f.terms[0].nearest((mean + share * plane).to(x.dtype))
        return self.slopes.join(level, (share.unsqueeze(2) * w).to(x.dtype)), within

    def _share_within(self, mean: Tensor, plane: Tensor) -> Tensor:
        """The most of a plane that can be added to means without leaving the box `(B, C, 1, ...)`, at most 1."""
        ends = (self.f.terms[0].nearest(torch.full_like(self.noisy, end)) for end in (-torch.inf, torch.inf))
        room = torch.maximum(*((end.double() - mean) / plane for end in ends))
        room = torch.where(plane == 0, 1.0, room).nan_to_num(nan=0.0)
        return room.amin(dim=tuple(range(2, plane.ndim)), keepdim=True).clamp(0, 1)

    def certified_gap(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """As in `Composite`; the smaller of the bounds that the dual proves with the box and without it.

        With the box, a dual point costs the distance of K'p to the domain of the misfit times the width of the box;
        without, it is multiplied by what brings K'p into that domain.
        """
        value, gap = super().certified_gap(x, dual)
        misfit, rest = self.f.terms
        if not isinstance(misfit, Boxed) or misfit.term.conjugate_is_finite:
            return value, gap
        free = copy.copy(self)
        vars(free).pop("feasible_block", None)
        free.f = Stacked((misfit.term, rest), self.f.shapes)
        _, free_gap = super(SecondOrderModel, free).certified_gap(x, dual)
        return value, torch.where(torch.isfinite(value), torch.minimum(gap, free_gap), torch.inf)

    def feasible_dual(self, p: Tensor) -> Tensor:
        q = self.operator.split(self.project_dual(p))[1]
        slopes, eps = self.slopes.split(self.bends.adjoint(q))[1], torch.finfo(p.dtype).eps
        whole = self.operator.join([slopes, q])
        u, norm, misfit = self.image(self.operator.adjoint(whole)), self.regularisers[0], self.f.terms[0]
        error = self.operator.adjoint_error(whole) + self.operator.norm * self.dual_error(whole)
        of_norm, of_misfit = (
            (1 + 16 * eps) * term.gauge(part) + term.gauge(off.reshape(-1, *(1,) * (part.ndim - 1)).expand_as(part))
            for term, part, off in ((norm, slopes, self.bends.adjoint_error(q)), (misfit, -u, error))
        )
        return whole / torch.maximum(of_norm, of_misfit).clamp(min=1)[:, None]

    def dual_error(self, p: Tensor) -> Tensor:
        """p as computed is E'q up to the rounding of E' and of the quotients."""
        slopes, q = self.operator.split(p)
        return 2 * self.bends.adjoint_error(q) + 4 * torch.finfo(p.dtype).eps * slopes.flatten(1).norm(dim=1)


def boxed(misfit: Term, box: Interval | None) -> Term:
    """The misfit in a box; where none is given, in the range of its data, and as it is where its dual is finite."""
    if box is None and misfit.conjugate_is_finite:
        return misfit
    return Boxed(misfit, *(_range(data_of(misfit)) if box is None else check_interval("box", box)))


def within_range(misfit: Term, box: Interval | None) -> Term:
    """The same where it stands beside total variation: the part of the box in the range of the data is all that counts.

    However wide the box is, and whatever data are lost. Where the dual is finite without ends, these are numbers for
    all, or none if no data are outside of the box.
    """
    if not misfit.conjugate_is_finite:
        limits = (-torch.inf, torch.inf) if box is None else check_interval("box", box)
        return Boxed(misfit, *(end.clamp(*limits) for end in _range(data_of(misfit), misfit.counted)))
    if box is None:
        return misfit
    ends, y = check_interval("box", box), data_of(misfit)
    low, high = (float(end) for end in torch.aminmax(y.detach()))
    inside = ends[0] <= low and high <= ends[1]
    return misfit if inside else Boxed(misfit, *(min(max(end, ends[0]), ends[1]) for end in (low, high)))


def _range(y: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The ends of the range of each channel `(B, C, 1, ...)`: of the entries that count, or of all if none does."""
    along = tuple(range(2, y.ndim))
    if counted is None:
        return y.amin(along, keepdim=True), y.amax(along, keepdim=True)
    taken = counted | (counted.expand_as(y).sum(along, keepdim=True) == 0)
    low, high = torch.where(taken, y, torch.inf), torch.where(taken, y, -torch.inf)
    return low.amin(along, keepdim=True), high.amax(along, keepdim=True)


def _norm(weight: Scale, isotropic: bool, coupled: bool, huber: float) -> Term:
    """weight TV of differences `(B, C, axes, *size)`: the axes along which lengths are taken make the difference."""
    axes: Axes = (*((1,) if coupled else ()), *((2,) if isotropic else ()))
    if huber > 0:
        return Huber(weight, huber, axes)
    return GroupNorm(weight, axes) if axes else L1(weight)


def _check_map(weight: Any, y: Tensor, size: tuple[int, ...], isotropic: bool, coupled: bool) -> Tensor:
    """One number per image `(B,)`, or a map of positive numbers that goes with pixels or differences."""
    if not isinstance(weight, Tensor) or weight.ndim < 2:
        return check_weight(weight, y)
    channels = {1} if coupled else {1, y.shape[1]}
    shapes = [(len(y), c, *size) for c in sorted(channels)]
    if not isotropic:
        shapes += [(len(y), c, len(size), *size) for c in sorted(channels)]
    if weight.shape not in shapes:
        accepted = "one number, one per image, or a map of shape " + " or ".join(map(str, shapes))
        raise InputError("weight", f"shape {shape_of(weight)}", accepted)
    check_same_kind("weight", weight, "y", y)
    if not bool((check_finite("weight", weight) > 0).all()):
        raise InputError("weight", f"{float(weight.min()):g}", "positive numbers")
    return weight
