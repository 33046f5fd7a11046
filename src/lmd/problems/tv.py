"""Total variation models: any misfit with any operator, and the models of sections 5.2 and 5.3 of the paper."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, avg_pool3d

from lmd.core.checks import check_finite, check_interval, check_positive, check_weights, shape_of
from lmd.errors import CapabilityError, InputError
from lmd.operators import Blur, LinearOperator, ParallelBeam
from lmd.operators.differences import Bends, Differences, Slopes
from lmd.operators.matrix import Stack
from lmd.problems.composite import MAX_CONSTANT_GAUGE, Composite, range_ratio
from lmd.terms import L1, Box, GroupNorm, Huber, Squares, Term, Zero
from lmd.terms.base import Scale
from lmd.terms.norms import Axes
from lmd.terms.squares import MaskedSquares
from lmd.terms.wrappers import Boxed, Stacked, join

Spacing = float | Sequence[float] | None
Interval = tuple[float, float]

RANGE_MARGIN = 100.0  # least factor between squares of data and the largest and smallest numbers of their dtype
MIN_SIDE = 16  # the shortest side, in pixels, of images that have a coarser grid


class TVModel(Composite):
    r"""F(x) = misfit(Ax) + weight TV(x) over low <= x <= high; x `(B, C, *size)`.

    `size` has one axis for signals, two for images, three for volumes. Let z_a be the difference from a pixel to the
    next one along axis a, divided by h_a. Then

    anisotropic, as in the paper:  TV(x) = \sum |z_1| + |z_2| + ...
    isotropic:                     TV(x) = \sum (z_1^2 + z_2^2 + ...)^{1/2}

    are sums over all pixels and channels, without differences across the border. h is the `spacing`: a number, or one
    for each axis, 1 by default. K takes these differences. Dual points p `(B, C, axes, *size)` satisfy
    |p| <= b = weight for each entry in the anisotropic form, and for the vector of each pixel in the isotropic form.
    Models that are `halved` minimise half of F, with half of the bound and the same minimiser. Options:

    - `coupled`: all channels of a pixel (of a difference, in the anisotropic form) share one length
      ([Bresson and Chan 2008](https://doi.org/10.3934/ipi.2008.2.455));
    - `weight` may be a map, per pixel `(B, 1 or C, *size)` or, in the anisotropic form, per difference
      `(B, 1 or C, axes, *size)`; it has one channel if channels are coupled;
    - `huber` > 0: gradients up to this length are penalised by their squares, which avoids staircases.

    The `misfit` is a term about data y: `Squares(y)`, `Absolute(y)` for impulses, `KullbackLeibler(y)` for Poisson
    counts; pass a mask as the weight of the misfit, or as `forward=Mask(mask)`. A is `forward`, any operator on
    `(B, C, *size)`, the identity by default. If A is a mask, the misfit leaves out the lost entries, because their
    terms do not depend on x. *The box* `box` is a constraint; with A it is [0, 1] by default. Without A, a minimiser
    lies between the least and the largest y of each channel, clipped to the box: clipping x to these ends lengthens no
    difference and moves no entry away from its y, see `TVInpainting`. So the dual problem uses these ends, which makes
    it finite for every dual point; they are not needed if the conjugate of the misfit is finite, as for squares.

    Args:
        misfit: A term about data y `(B, C, ...)`, such as `Squares(y)`.
        weight: A positive number, one per image `(B,)`, or a map, as above.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        coupled: Whether all channels share one gradient length.
        huber: Penalise gradients up to this length by their squares; 0 disables this.
        spacing: The distance of pixels: a number, or one for each axis; None is 1.
        box: (low, high), the range of pixels.
        forward: A, an operator on `(B, C, *size)`; None is the identity.
        size: The size of x, if A changes it; None is the size of y.
        start: Starting points `(B, C, *size)`, clipped to the box if there is an A; None is y, or the middle of the
            box if there is an A.
        balance: The scale of the block Ax, which changes only the steps of primal-dual methods; None is ||K|| / ||A||.

    >>> from lmd.terms import KullbackLeibler
    >>> import lmd
    >>> counts = torch.tensor([[[[4.0, 0.0, 9.0, 12.0]]]])
    >>> lmd.solve(TVModel(KullbackLeibler(counts), weight=0.4), tolerance=1e-6).x.flatten().round(decimals=1)
    tensor([2.9000, 0.0000, 8.8000, 8.8000])
    """

    batched = ("noisy", "weight")
    data_argument: ClassVar[str] = "misfit"  # the name of the data in error messages
    scale = 1.0  # 1/2 in the halved form

    def __init__(
        self,
        misfit: Term,
        weight: float | Tensor = 0.3,
        *,
        isotropic: bool = False,
        coupled: bool = False,
        huber: float = 0.0,
        spacing: Spacing = None,
        box: Interval | None = None,
        forward: LinearOperator | None = None,
        size: tuple[int, ...] | None = None,
        start: Tensor | None = None,
        balance: float | None = None,
    ) -> None:
        y = self.noisy = check_data(misfit, has_grid=size is None)
        shape = tuple(y.shape[2:] if size is None else size)
        self.isotropic, self.coupled = bool(isotropic), bool(coupled)
        self.huber = check_positive("huber", huber, zero=True) if huber else 0.0
        is_map = isinstance(weight, Tensor) and weight.shape != y.shape[:1]
        self.weight = check_weights(weight, y, *(self._maps(shape) if is_map else ()))
        norm = variation_norm(self.bound, self.isotropic, self.coupled, self.huber)
        differences = Differences(shape, spacing)
        if forward is not None and forward.mask is not None and (kept := misfit.with_mask(forward.mask)) is not None:
            misfit, forward, start, box = kept, None, None, (0.0, 1.0) if box is None else box
        self.forward = forward
        if forward is None:
            f = within_range(misfit, box)
            self.domain = None if box is None else Box(*box)
            inside = f.nearest(y) if start is None else y
            check_range(self.data_argument, inside, self.weight)
            return self.compose(f, (norm, differences), start=inside if start is None else start)
        check_range(self.data_argument, y, self.weight)
        low, high = check_interval("box", (0.0, 1.0) if box is None else box)
        self.domain = Box(low, high)
        start = y.new_full((*y.shape[:2], *shape), (low + high) / 2) if start is None else self.domain.nearest(start)
        scales = (1.0, differences.norm / forward.norm if balance is None else balance)
        self.compose(self.domain, (norm, differences), (misfit, forward), start=start, scales=scales)

    def _maps(self, size: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the accepted shapes of weight maps, which weigh pixels or differences."""
        batch, channels = self.noisy.shape[:2]
        places = [size] if self.isotropic else [size, (len(size), *size)]
        return [(batch, c, *place) for place in places for c in sorted({1} if self.coupled else {1, channels})]

    @property
    def bound(self) -> Scale:
        """b, the bound of the dual points: a number if all weights are equal, which is faster, and otherwise `(B,)`.

        For a weight map, b is `(B, 1 or C, 1 or axes, *size)`, like the differences. If the weight requires a gradient,
        b is computed from the tensor itself.
        """
        weight = self.weight
        if weight.ndim > 1:
            return self.scale * (weight if weight.ndim > self.noisy.ndim else weight.unsqueeze(2))
        first = weight.detach()[0]
        alike = not weight.requires_grad and bool((weight == first).all())
        return self.scale * (float(first) if alike else weight)

    def image(self, x: Tensor) -> Tensor:
        """Return the image of a point, which is the point itself."""
        return x


class TVDenoising(TVModel):
    """F(x) = ||x - y||^2 + weight TV(x), or half of it; y = `noisy` `(B, C, *size)`.

    Args:
        noisy: y `(B, C, *size)`.
        weight, isotropic, spacing, coupled: See `TVModel`.
        halved: Whether to halve the objective, which keeps the minimiser.

    >>> import torch
    >>> problem = TVDenoising(torch.tensor([[[[0.0, 1.0]]]]), weight=0.5)
    >>> x, p = torch.tensor([[[[0.25, 0.75]]]]), torch.tensor([[[[[0.0, 0.0]], [[0.5, 0.0]]]]])
    >>> problem.value(x), problem.gap(x, p)  # the gap proves that x is the minimiser
    (tensor([0.3750]), tensor([0.]))
    """

    data_argument = "noisy"

    def __init__(
        self,
        noisy: Tensor,
        weight: float | Tensor = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        spacing: Spacing = None,
        coupled: bool = False,
    ) -> None:
        self.halved, self.scale = bool(halved), 0.5 if halved else 1.0
        misfit = Squares(noisy, self.scale, name="noisy")
        super().__init__(misfit, weight, isotropic=isotropic, spacing=spacing, coupled=coupled, start=noisy)

    def coarser(self) -> TVDenoising | None:
        """Return this problem on a grid of half the side (`average_squares`); None for signals and small images."""
        means = average_squares(self.noisy)
        if means is None:
            return None
        return TVDenoising(means, self.weight / 2, self.isotropic, self.halved, self.differences.spacing, self.coupled)

    def from_coarser(self, dual: Tensor) -> Tensor:
        """Return dual points `(B, C, axes, *size)` to start from, given the dual points of `coarser`."""
        return self.g.project(refine_dual(dual, *self.noisy.shape[2:]))


class TVInpainting(TVModel):
    r"""F(x) = ||Z (x - y)||^2 + weight TV(x), or half of it; y = `noisy` `(B, C, *size)`.

    Z is the `mask`, 1 where a pixel is kept and 0 where it is lost: `size`, `(B, 1, *size)` or `(B, C, *size)`, with
    at least one kept pixel in each image and channel. F does not depend on y at lost pixels.

    *The box.* Let [low, high] be the range of y over the kept pixels of one image and channel. Clipping x to it moves
    no kept pixel away from its y and lengthens no difference, so F(clip(x)) <= F(x). The minimum over the box is thus
    the minimum of F, and the data term includes the box. Without the box, the dual value would be -infinity unless
    K'p = 0 at every lost pixel. With it, `gap` is a finite bound for every x, inside the box or not, and every p.

    Args:
        noisy: y `(B, C, *size)`.
        mask: 1 where a pixel is kept, 0 where it is lost: `size`, `(B, 1, *size)` or `(B, C, *size)`.
        weight, isotropic, spacing: See `TVModel`.
        halved: Whether to halve the objective, which keeps the minimiser.
    """

    data_argument = "noisy"

    def __init__(
        self,
        noisy: Tensor,
        mask: Tensor,
        weight: float | Tensor = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        spacing: Spacing = None,
    ) -> None:
        self.halved, self.scale = bool(halved), 0.5 if halved else 1.0
        misfit = MaskedSquares(noisy, mask, self.scale, name="noisy")
        super().__init__(misfit, weight, isotropic=isotropic, spacing=spacing, start=noisy)
        self.noisy = noisy


class TVDeblurring(TVModel):
    """F(x) = ||k * x - y||^2 + weight TV(x) over 0 <= x <= 1, or half of it; y = `noisy` `(B, C, H, W)`.

    The start is y, clipped to the box. See `TVModel`, also for the other arguments.

    Args:
        noisy: y, the blurred images `(B, C, H, W)`.
        kernel: k `(h, w)`, the same for all images; see `Blur`.
        border: How images continue past their borders: "circular" or "replicate".
        halved: Whether to halve the objective, which keeps the minimiser.

    >>> import torch
    >>> from lmd.operators import gaussian_kernel
    >>> problem = TVDeblurring(torch.rand(2, 3, 16, 16), gaussian_kernel(1.0))
    >>> problem.start().shape, problem.operator(problem.start()).shape
    (torch.Size([2, 3, 16, 16]), torch.Size([2, 2304]))
    """

    def __init__(
        self,
        noisy: Tensor,
        kernel: Tensor,
        weight: float | Tensor = 0.3,
        border: str = "circular",
        isotropic: bool = False,
        halved: bool = False,
        balance: float = 0.5,
        **options: Any,
    ) -> None:
        self.halved, self.scale = bool(halved), 0.5 if halved else 1.0
        misfit = Squares(noisy, self.scale, name="noisy")
        if noisy.ndim != 4:
            raise InputError("noisy", f"shape {shape_of(noisy)}", "images (B, C, H, W)")
        height, width = noisy.shape[2:]
        blur = Blur(kernel, height, width, border)
        options = {"forward": blur, "size": (height, width), "start": noisy, "balance": balance, **options}
        super().__init__(misfit, weight, isotropic=isotropic, **options)


class TVTomography(TVModel):
    """F(x) = ||Ax - y||^2 + weight TV(x) over 0 <= x <= 1, or half of it; A is a `ParallelBeam`.

    The start is a constant image with the mean that the sinogram implies. See `TVModel`, also for the other arguments.

    Args:
        noisy: y, the sinograms `(B, C, angles, detectors)`.
        size: The size of the images, (H, W).
        halved: Whether to halve the objective, which keeps the minimiser.
        beams: A, which many problems may share; None is a `ParallelBeam` of this size with as many angles as y.
    """

    def __init__(
        self,
        noisy: Tensor,
        size: tuple[int, int],
        weight: float | Tensor = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        beams: ParallelBeam | None = None,
        **options: Any,
    ) -> None:
        self.halved, self.scale = bool(halved), 0.5 if halved else 1.0
        misfit = Squares(noisy, self.scale, name="noisy")
        if noisy.ndim != 4:
            raise InputError("noisy", f"shape {shape_of(noisy)}", "sinograms (B, C, angles, detectors)")
        beams = ParallelBeam(*size, angles=noisy.shape[2]) if beams is None else beams
        if noisy.shape[2:] != (beams.angles, beams.detectors) or (beams.height, beams.width) != tuple(size):
            accepted = f"(B, C, {beams.angles}, {beams.detectors}) for {size}"
            raise InputError("noisy", f"shape {shape_of(noisy)}", accepted)
        mean = noisy.sum(dim=(2, 3), keepdim=True) / beams(noisy.new_ones(1, 1, *size)).sum()
        start = mean.expand(*noisy.shape[:2], *size).contiguous()
        super().__init__(misfit, weight, isotropic=isotropic, forward=beams, size=size, start=start, **options)


class SecondOrderModel(Composite):
    r"""F(x, w) = misfit(x) + weight (||Dx - w|| + ratio ||Ew||) over low <= x <= high: total generalised variation.

    w `(B, C, axes, *size)` is a field of slopes, Ew its symmetrised derivative. Planes cost nothing, which avoids
    staircases ([Bredies, Kunisch and Pock 2010](https://doi.org/10.1137/090769521)). Points X `(B, n)` hold x and w;
    `image(X)` is x. Misfits and `coupled` are as in `TVModel`. A given box is always a constraint. Without one, the box
    is the range of y, unless the conjugate of the misfit is finite, as it is for squares that count all entries.

    *The dual.* w has no term of its own, so a dual point (p, q) gives a bound only if p = E'q. `feasible_dual` keeps q,
    sets p = E'q, and multiplies both by the largest factor of at most 1 that makes them feasible.

    Args:
        misfit: A term about data y `(B, C, *size)`, as in `TVModel`.
        weight: A positive number, or one per image `(B,)`.
        ratio: The weight of ||Ew|| relative to ||Dx - w||, positive.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        coupled: Whether all channels share one gradient length.
        spacing: The distance of pixels: a number, or one for each axis; None is 1.
        box: (low, high), the range of pixels.
    """

    batched = ("noisy", "weight")

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
        spacing: Spacing = None,
        box: Interval | None = None,
    ) -> None:
        self.noisy = check_data(misfit)
        self.isotropic, self.coupled = bool(isotropic), bool(coupled)
        self.weight = check_weights(weight, self.noisy)
        (channels, *size), ratio = self.noisy.shape[1:], check_positive("ratio", ratio)
        self.slopes, self.bends = (kind(channels, size, spacing) for kind in (Slopes, Bends))
        norms = [variation_norm(by * self.weight, self.isotropic, self.coupled) for by in (1.0, ratio)]
        x = boxed(misfit, box)
        f = Stacked((x, Zero()), ((channels, *size), (channels, len(size), *size)))
        y = x.nearest(self.noisy)
        check_range("misfit", y, self.weight)
        start = join((y, y.new_zeros(*y.shape[:2], len(size), *size)))
        self.compose(f, (norms[0], self.slopes), (norms[1], self.bends), start=start)

    def image(self, X: Tensor) -> Tensor:
        """Return x `(B, C, *size)`, a part of X."""
        return self.slopes.split(X)[0]

    def step_scale(self, x: Tensor) -> Tensor:
        """Return the range of the data over the expected size of dual entries `(B,)`; see `range_ratio`."""
        y, misfit = self.noisy, self.f.terms[0]
        extent = y.flatten(1).amax(dim=1) - y.flatten(1).amin(dim=1)
        mean = y.mean(dim=tuple(range(2, y.ndim)), keepdim=True).expand_as(y)
        return range_ratio(extent, self.weight, misfit.subgradient(misfit.nearest(mean)))

    def levelled(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the plane nearest to x in each channel, and whether the dual point suggests it as minimiser `(B,)`.

        `Composite` takes means; this model takes planes, because planes cost nothing here.
        """
        parts = zip(self.regularisers, self.operator.split(dual), strict=True)
        within = torch.stack([term.gauge(part) for term, part in parts]).amax(dim=0) < MAX_CONSTANT_GAUGE
        image, h = self.image(x).double(), self.slopes.differences.spacing
        along = tuple(range(2, image.ndim))
        centred = [torch.arange(n, dtype=torch.float64, device=x.device) - (n - 1) / 2 for n in image.shape[2:]]
        places = torch.stack(torch.meshgrid(*centred, indexing="ij"))  # pixels from the middle `(axes, *size)`
        squares = places.square().flatten(1).mean(dim=1).clamp(min=0.25)  # 0 for an axis of one pixel, 0.25 for two
        slopes = (image.unsqueeze(2) * places).flatten(3).mean(dim=3) / squares
        mean, plane = image.mean(dim=along, keepdim=True), torch.einsum("bca,a...->bc...", slopes, places)
        # The largest share of the plane, at most 1, that keeps its sum with the mean in the box
        ends = (self.f.terms[0].nearest(torch.full_like(self.noisy, end)) for end in (-torch.inf, torch.inf))
        room = torch.maximum(*((end.double() - mean) / plane for end in ends))
        room = torch.where(plane == 0, 1.0, room).nan_to_num(nan=0.0)
        share = room.amin(dim=along, keepdim=True).clamp(0, 1)
        level = self.f.terms[0].nearest((mean + share * plane).to(x.dtype))
        w = (slopes / slopes.new_tensor(h)).reshape(*slopes.shape, *(1,) * len(along)) * share.unsqueeze(2)
        return join((level, w.to(x.dtype).expand(-1, -1, -1, *image.shape[2:]))), within

    def certified_gap(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """Return F(x) and a bound on F(x) - min F `(B,)`, the smaller of the bounds with the box and without it.

        With the box, an infeasible dual point costs the distance from K'p to the domain of the misfit times the width
        of the box. Without it, the dual point is scaled until K'p is in that domain.
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
        q = self.operator.split(self.g.project(p))[1]
        slopes, eps = self.slopes.split(self.bends.adjoint(q))[1], torch.finfo(p.dtype).eps
        whole = join((slopes, q))
        u, norm, misfit = self.image(self.operator.adjoint(whole)), self.regularisers[0], self.f.terms[0]
        error = self.operator.adjoint_error(whole) + self.operator.norm * self.dual_error(whole)
        of_norm, of_misfit = (
            (1 + 16 * eps) * term.gauge(part) + term.gauge(off.reshape(-1, *(1,) * (part.ndim - 1)).expand_as(part))
            for term, part, off in ((norm, slopes, self.bends.adjoint_error(q)), (misfit, -u, error))
        )
        return whole / torch.maximum(of_norm, of_misfit).clamp(min=1)[:, None]

    def dual_error(self, p: Tensor) -> Tensor:
        """Return a bound `(B,)` on the rounding error of p = E'q: rounding of E' and of the quotients."""
        slopes, q = self.operator.split(p)
        return 2 * self.bends.adjoint_error(q) + 4 * torch.finfo(p.dtype).eps * slopes.flatten(1).norm(dim=1)


def check_data(misfit: Term, *, has_grid: bool = True) -> Tensor:
    """Return the data y of a misfit; `has_grid` requires signals `(B, C, n)`, images or volumes `(B, C, D, H, W)`."""
    y = getattr(misfit, "y", None)
    if not isinstance(y, Tensor):
        accepted = "a term about data: Squares(y), Absolute(y), KullbackLeibler(y)"
        raise CapabilityError("misfit", f"{type(misfit).__name__}, which has no y", accepted)
    if has_grid and not 3 <= y.ndim <= 5:
        raise InputError("noisy", f"shape {shape_of(y)}", "signals, images or volumes: (B, C, *size), 1 to 3 axes")
    return y


def check_range(argument: str, y: Tensor, weight: Tensor) -> None:
    """Raise if squares or weighted differences of data y `(B, ...)` would overflow or underflow in their dtype."""
    y, weight, kind, count = y.detach(), weight.detach(), torch.finfo(y.dtype), y[0].numel()
    low, high = math.sqrt(RANGE_MARGIN * kind.tiny), math.sqrt(kind.max / (RANGE_MARGIN * count))
    tiny, huge = kind.tiny, kind.max / count
    rows = y.flatten(1)
    ends = rows.amin(dim=1).tolist(), rows.amax(dim=1).tolist()  # `aminmax` takes four times as long
    weights = (weight if weight.ndim == 1 else weight.flatten(1).amax(dim=1)).tolist()
    for least, most, number in zip(*ends, weights, strict=True):
        extent = most - least
        if not math.isfinite(extent):
            check_finite(argument, y)
        if extent > 0 and not low <= extent <= high:
            accepted = f"0 or {low:.1e} to {high:.1e} in {y.dtype}: change the unit, or pass float64"
            raise InputError(argument, f"a range of {extent:.1e}", accepted)
        if extent > 0 and not tiny <= number * extent <= huge:
            accepted = f"{tiny / extent:.1e} to {huge / extent:.1e} for such data in {y.dtype}"
            raise InputError("weight", f"{number:.1e} for data with a range of {extent:.1e}", accepted)


def variation_norm(weight: Scale, isotropic: bool, coupled: bool = False, huber: float = 0.0) -> Term:
    """Return weight TV as a term of differences `(B, C, axes, *size)`; the options set the axes of the lengths."""
    axes: Axes = (*((1,) if coupled else ()), *((2,) if isotropic else ()))
    if huber > 0:
        return Huber(weight, huber, axes)
    return GroupNorm(weight, axes) if axes else L1(weight)


def boxed(misfit: Term, box: Interval | None) -> Term:
    """Return the misfit in a box, by default the range of its data, or no box if its conjugate is finite."""
    if box is None and misfit.conjugate_is_finite:
        return misfit
    return Boxed(misfit, *(_range(check_data(misfit)) if box is None else check_interval("box", box)))


def within_range(misfit: Term, box: Interval | None) -> Term:
    """Return the misfit in the range of its data, clipped to the box, where TV models have a minimiser.

    This holds for any box and any lost data. If the conjugate of the misfit is finite, the ends are two numbers for all
    instances, and there are none if all data are in the box.
    """
    if not misfit.conjugate_is_finite:
        limits = (-torch.inf, torch.inf) if box is None else check_interval("box", box)
        return Boxed(misfit, *(end.clamp(*limits) for end in _range(check_data(misfit), misfit.counted)))
    if box is None:
        return misfit
    ends, y = check_interval("box", box), check_data(misfit)
    low, high = (float(end) for end in torch.aminmax(y.detach()))
    inside = ends[0] <= low and high <= ends[1]
    return misfit if inside else Boxed(misfit, *(min(max(end, ends[0]), ends[1]) for end in (low, high)))


def _range(y: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the least and largest y of each channel `(B, C, 1, ...)`, among counted entries, or all if none counts."""
    along = tuple(range(2, y.ndim))
    if counted is None:
        return y.amin(along, keepdim=True), y.amax(along, keepdim=True)
    taken = counted | (counted.expand_as(y).sum(along, keepdim=True) == 0)
    low, high = torch.where(taken, y, torch.inf), torch.where(taken, y, -torch.inf)
    return low.amin(along, keepdim=True), high.amax(along, keepdim=True)


def average_squares(y: Tensor) -> Tensor | None:
    """Return means over squares of 2 x 2 pixels, smaller at the border; None if y `(B, C, *size)` is too small.

    For images that are constant on these squares, s ||x - y||^2 + b TV(x) is 4 (s ||x - m||^2 + b/2 TV(x)) plus a
    constant, with the means m and one pixel per square: anisotropic TV counts a difference between two squares twice,
    once per pair of pixels. Cubes in volumes have 8 voxels and 4 pairs with the next cube, which also gives b/2.
    """
    pool = {4: avg_pool2d, 5: avg_pool3d}.get(y.ndim)
    return None if pool is None or min(y.shape[2:]) < MIN_SIDE else pool(y, 2, ceil_mode=True)


def refine_dual(p: Tensor, *size: int) -> Tensor:
    """Return the dual field `(B, C, axes, *size)` of the finer grid that corresponds to p of the coarser grid.

    For the misfit s ||x - y||^2, x = y - K'p / 2s then has the means of the coarser solution. The field is 2p on both
    pairs of pixels between two squares, the mean of both sides inside a square, and at most 2b if p is at most b.
    """
    fields = p.new_empty(*p.shape[:3], *size)
    for along, flow in enumerate(p.unbind(dim=2), 2):
        for axis, length in enumerate(size, 2):
            if axis == along:  # 2 p_i at the end of square i, and p_{i-1} + p_i in its middle
                before = flow.roll(1, axis)
                before.narrow(axis, 0, 1).zero_()
                fine = torch.stack([before + flow, 2 * flow], axis + 1).flatten(axis, axis + 1)
            else:
                fine = flow.repeat_interleave(2, dim=axis)
            flow = fine.narrow(axis, 0, length)
        fields[:, :, along - 2] = flow
        fields.select(2, along - 2).narrow(along, size[along - 2] - 1, 1).zero_()  # across the border
    return fields
