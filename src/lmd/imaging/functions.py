"""One line for people with arrays: `denoise`, `inpaint`, `deblur`, `reconstruct`, `denoise_video`.

How weights map. Ours is that of ||x - y||^2 + weight TV(x); for pictures of bytes x and y are between 0 and 1. Weights
of Poisson counts and absolute distances have no unit.

| library | its weight for the same answer | TV |
|---|---|---|
| scikit-image `denoise_tv_chambolle` | weight / 2 | isotropic |
| prox_tv `tv1_2d` | weight / 2 | anisotropic |
| CIL `TotalVariation(alpha).proximal(y, 1)` | alpha = weight / 2 | isotropic by default |
| deepinv `TVDenoiser` | ths = weight / 2 | isotropic |
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmd.core.checks import check_interval, check_positive, check_readable
from lmd.errors import InputError
from lmd.guarantees.certify import certify
from lmd.imaging.arrays import (
    Axes,
    Axis,
    Batch,
    Units,
    as_batch,
    as_tensor,
    check_kept,
    find_axes,
    move,
    nearest_to_zero,
    warn,
)
from lmd.imaging.forms import Form
from lmd.imaging.noise import at_least, measure, rough_noise
from lmd.imaging.weights import Choice, by_leaving_out, choose_behind_blur, near, warn_of_end
from lmd.operators import Blur, LinearOperator
from lmd.operators.functions import FromFunctions
from lmd.problems import TVDeblurring, TVInpainting
from lmd.problems.base import offers
from lmd.problems.duality import relative_gap
from lmd.problems.reconstruction import TVReconstruction
from lmd.problems.tv import TVProblem
from lmd.solvers import Certificate, Result, Status
from lmd.solvers.result import RunReport
from lmd.zoo.solve import MAX_ITERATIONS as MAX_SOLVE_ITERATIONS
from lmd.zoo.solve import solve

SINGLE = 1e-5
"""Relative gaps down to this are proven in single precision; below it everything is in double."""

AUTO = "auto"

MAX_ITERATIONS = 30_000
"""For problems that are not strongly convex: what they do not prove by then would take minutes."""

ROUGH, MAX_BOXES = (1e-2, 500), 4
"""Tolerance and most iterations of the answer that the box of a reconstruction is put around, and how often it is
widened."""

CHANGE = 0.2
"""A weight is chosen again where the noise or the contrast of a video has changed by this share."""

KERNEL_SUMS = (0.5, 2.0)
"""Kernels of another sum brighten or darken the image, which is hardly meant."""

Model = Callable[[Tensor, Tensor, float], Any]
"""From data `(B, C, ...)`, weights `(B,)`, or maps of them, and the size of the unit that both are given in, to the
problems."""


class Chosen(NamedTuple):
    """The weight, given or chosen."""

    weight: Tensor
    """`(B,)`, or a map, float64 and in the array's own units."""

    choice: Choice | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Info:
    """What there is to know about an answer."""

    weight: Any
    """Of the regulariser: a number, one per image of a batch `(B,)`, or a map `(B, 1 or C, *size)`; in the precision of
    the solve, where the array was solved for as it is."""

    noise: Any
    """The standard deviation of the noise, found or given; None where nothing asked for it."""

    seconds: float
    """Of the whole call, choosing the weight included."""

    result: Result = field(repr=False)
    """The whole result, in the array's own units; bytes are numbers from 0 to 1, and not yet rounded."""

    shape: tuple[int, ...] = ()
    """Of the answer."""

    choice: Choice | None = field(default=None, repr=False)
    """The weights that were tried and their risks, where the weight was chosen."""

    choice_seconds: float = 0.0
    """What choosing the weight took of the seconds."""

    range: float = 1.0
    """From black to white in the units of the result: 1 for bytes and for numbers from 0 to 1, else what the image
    spans."""

    @cached_property
    def certificate(self) -> Certificate:
        """The proven bound on F(x) - min F."""
        found = self.result.certificate
        if found is None:
            raise InputError("result", "a result without a certificate", "one of lmd.solve")
        return found

    @property
    def absolute(self) -> float:
        """The bound, of the worst image."""
        return float(self.certificate.bound.max())

    @property
    def relative(self) -> float:
        """The bound relative to the minimum, of the worst image; infinite where the minimum may be 0."""
        bound, lower = self.certificate.bound, self.certificate.lower_bound
        return float(torch.where(bound == 0, 0.0, bound / lower.clamp(min=0)).max())

    @property
    def grey_levels(self) -> float:
        """How far x is from the minimiser, root mean square, of 255 levels in the `range`, at most: from
        F(x) - min F >= mu/2 ||x - x*||^2; infinite where F is not strongly convex."""
        curvature = self.result.problem.strong_convexity
        if curvature is None:
            return math.inf
        pixels = self.result.x[0].numel()
        return 255 / self.range * float((2 * self.certificate.bound / (curvature * pixels)).max().sqrt())

    def __str__(self) -> str:
        levels = "" if math.isinf(self.grey_levels) else f", {self.grey_levels:.2g} of 255 grey levels from x*"
        each = self.weight.flatten().tolist() if isinstance(self.weight, Tensor) else [self.weight]
        weights = sorted({float(f"{number:.3g}") for number in each})
        weight = f"{weights[0]:g}" if len(weights) == 1 else f"{weights[0]:g} to {weights[-1]:g}"
        seconds = f"{self.seconds:.2g} s"
        if self.choice_seconds > 0:
            seconds += f" ({self.choice_seconds:.2g} s to choose the weight)"
        near = f"within {100 * self.relative:.2g}% of" if math.isfinite(self.relative) else f"{self.absolute:.2g} above"
        return f"weight {weight}, {near} the minimum{levels}, {seconds}"


def denoise(
    image: Any,
    weight: Any = AUTO,
    *,
    data: str = "squares",
    order: int = 1,
    noise: float | None = None,
    isotropic: bool = False,
    coupled: bool | None = None,
    huber: float = 0.0,
    spacing: float | Sequence[float] | None = None,
    channel_axis: Axis = AUTO,
    tolerance: float = 1e-3,
    warm: Info | None = None,
    info: bool = False,
) -> Any:
    """An image, signal or volume without its noise: the minimiser of misfit(x, y) + weight TV(x), y the `image`.

    Args:
        image: A numpy array or torch tensor of any dtype and layout: a signal `(N,)`, a grey image `(H, W)`, a colour
            picture `(H, W, 3)`, a volume `(D, H, W)`, a batch `(B, C, ...)`; or a list of those.
        weight: A positive number, one per image of a batch, "auto", or a map: an array of the shape of the image, with
            or without the axis of channels, or with one axis more in front for differences along each axis of space.
            "auto" is chosen by Stein's unbiased risk, for absolute distances by pixels that are left out.
        data: The misfit: "squares", ||x - y||^2; "poisson", the likelihood of counts y of 0 or more; "absolute", the
            sum of |x - y|, for impulses.
        order: 2 for total generalised variation: slopes cost nothing, where the first order makes stairs of them.
        noise: The standard deviation of the noise, for "auto" and squares; estimated from the image by default. In the
            array's own numbers: of 255 for bytes.
        isotropic: Lengths of gradients in place of sums of absolute differences.
        coupled: One length for all channels of a pixel, so that colours have their edges in one place; by default for
            three channels, unless `weight` is a map with one for each.
        huber: Squares in place of lengths for gradients up to this, which avoids staircases; of bytes 1 is white.
        spacing: Of the pixels along each axis, such as the voxels of a scanner.
        channel_axis: The axis of the channels, None if there is none, or "auto": see `lmd.imaging.arrays.as_batch`.
        tolerance: How near to the minimum, relative to it; proven.
        warm: The `Info` of a similar image of the same shape, to start from.
        info: Also return an `Info`: certificate, weight, seconds, the whole result.

    Returns:
        An array of the kind, shape and dtype that came in, or, with `info`, that and the `Info`.

    >>> import numpy as np, lmd
    >>> noisy = np.eye(32) + 0.1 * np.random.default_rng(0).normal(size=(32, 32))
    >>> clean, info = lmd.denoise(noisy, info=True)
    >>> clean.shape, clean.dtype, info.relative < 1.001e-3
    ((32, 32), dtype('float64'), True)
    """
    form = Form(data, order, isotropic, bool(coupled), huber, spacing)
    if isinstance(image, (list, tuple)):
        options = {
            **vars(form),
            "coupled": coupled,
            "noise": noise,
            "channel_axis": channel_axis,
            "tolerance": tolerance,
            "warm": warm,
        }
        return _each(image, lambda one: denoise(one, weight, info=True, **options), info)
    batch = as_batch("image", image, channel_axis, _dtype(tolerance), form.centred)
    if coupled is None:
        form = replace(form, coupled=batch.images.shape[1] == 3 and not _is_map_by_channel(weight, batch))
    form.check("image", float(batch.exact.min()))
    unit = batch.units.unit

    def choose() -> Choice:
        return form.choose(batch.images, _noise(noise, batch), unit, unit * batch.white)

    chosen = _weight(weight, batch, choose, maps=True)
    return _answer(form.problem, batch, chosen, tolerance, warm, info, form.degree)


def inpaint(
    image: Any,
    mask: Any,
    weight: Any = AUTO,
    *,
    isotropic: bool = False,
    channel_axis: Axis = AUTO,
    tolerance: float = 1e-3,
    warm: Info | None = None,
    info: bool = False,
) -> Any:
    """An image with its lost pixels filled in: the minimiser of ||Z (x - y)||^2 + weight TV(x).

    `mask` Z is not 0 where a pixel is kept: of the shape of the image, with or without the axis of channels. Lost
    pixels may hold anything, NaN too. "auto" is the weight of which a tenth of the kept pixels, left out, are best
    predicted from the others; the noise is found, and there are no maps. A list of images takes one mask for all, or a
    list of them. All else is as in `denoise`.

    Args:
        image: An array or tensor, or a list of them, as in `denoise`.
        mask: Not 0 where a pixel is kept; for a list of images one for all, or a list.
        weight: A positive number, one per image of a batch, or "auto".
        isotropic: Lengths of gradients in place of sums of absolute differences.
        channel_axis: The axis of the channels, None if there is none, or "auto".
        tolerance: How near to the minimum, relative to it; proven.
        warm: The `Info` of a similar image of the same shape, to start from.
        info: Also return an `Info`: certificate, weight, seconds, the whole result.

    Returns:
        An array of the kind, shape and dtype that came in, or, with `info`, that and the `Info`.

    >>> import numpy as np, lmd
    >>> image = np.outer(np.ones(16), np.arange(16) > 7).astype(float)
    >>> image[5, 3] = np.nan
    >>> bool(abs(lmd.inpaint(image, np.isfinite(image), weight=0.01)[5, 3]) < 0.01)
    True
    """
    if isinstance(image, (list, tuple)):
        options: Any = {"isotropic": isotropic, "channel_axis": channel_axis, "tolerance": tolerance, "warm": warm}
        masks = mask if isinstance(mask, (list, tuple)) else [mask] * len(image)
        if len(masks) != len(image):
            raise InputError("mask", f"{len(masks)} masks", f"one, or one for each of {len(image)} images")
        pairs = zip(image, masks, strict=True)
        return _each(pairs, lambda pair: inpaint(pair[0], pair[1], weight, info=True, **options), info)
    plain, kept = _without_lost(image, mask, channel_axis)
    batch = as_batch("image", plain, channel_axis, _dtype(tolerance))
    z = kept.to(batch.images)

    def masked(data: Tensor, weights: Tensor, masks: Tensor) -> TVProblem:
        return TVInpainting(data, masks, weights, isotropic)

    def choose() -> Choice:
        noise = at_least(rough_noise(batch.images, z), batch.images)
        return by_leaving_out(masked, batch.images, z, noise, near(noise))

    def model(data: Tensor, weights: Tensor, unit: float) -> TVProblem:
        return masked(data, weights, z.to(data))

    return _answer(model, batch, _weight(weight, batch, choose), tolerance, warm, info, limit=MAX_ITERATIONS)


def deblur(
    image: Any,
    kernel: Any,
    weight: Any = AUTO,
    *,
    noise: float | None = None,
    border: str = "replicate",
    box: tuple[float, float] | None = None,
    isotropic: bool = False,
    channel_axis: Axis = AUTO,
    tolerance: float = 1e-3,
    warm: Info | None = None,
    info: bool = False,
) -> Any:
    """An image without its blur: the minimiser of ||k * x - y||^2 + weight TV(x) over low <= x <= high.

    See `lmd.operators.gaussian_kernel` and `motion_kernel` for kernels.

    Args:
        image: An array or tensor, or a list of them, as in `denoise`, of pictures: two axes beside that of the
            channels.
        kernel: k `(h, w)`, an array or tensor that sums to about 1.
        weight: A positive number, one per image of a batch, or "auto".
        noise: The standard deviation of the noise, for "auto"; estimated from the image by default. In the array's own
            numbers: of 255 for bytes.
        border: How the image goes on outside: "replicate" or "circular".
        box: (low, high), where pixels are known to be: by default [0, 1] for bytes, which are numbers from 0 to 1, and
            for numbers that are mostly there, else the range of the image.
        isotropic: Lengths of gradients in place of sums of absolute differences.
        channel_axis: The axis of the channels, None if there is none, or "auto".
        tolerance: How near to the minimum, relative to it; proven.
        warm: The `Info` of a similar image of the same shape, to start from.
        info: Also return an `Info`: certificate, weight, seconds, the whole result.

    Returns:
        An array of the kind, shape and dtype that came in, or, with `info`, that and the `Info`.
    """
    if isinstance(image, (list, tuple)):
        options: Any = {"noise": noise, "border": border, "box": box, "isotropic": isotropic, "warm": warm}
        options.update(channel_axis=channel_axis, tolerance=tolerance)
        return _each(image, lambda one: deblur(one, kernel, weight, info=True, **options), info)
    batch = as_batch("image", image, channel_axis, _dtype(tolerance), centred=False)
    if batch.images.ndim != 4:
        raise InputError("image", f"shape {tuple(np.shape(image))}", "pictures: two axes beside that of the channels")
    low, high = _box(box, batch.exact)
    taps = as_batch("kernel", kernel, None).exact[0, 0].double()  # all its digits, lest its rank gets lost
    if not KERNEL_SUMS[0] <= (total := float(taps.sum())) <= KERNEL_SUMS[1]:
        raise InputError(
            "kernel", f"an array that sums to {total:g}", "a sum of about 1, such as kernel / kernel.sum()"
        )

    def model(data: Tensor, weights: Tensor, unit: float) -> TVProblem:
        return TVDeblurring(data, taps, weights, border, isotropic, box=(low / unit, high / unit))

    def choose() -> Choice:
        def blur(x: Tensor) -> Tensor:
            return Blur(taps, int(x.shape[-2]), int(x.shape[-1]), border)(x)

        given = _noise(noise, batch)
        return choose_behind_blur(_in_units(model, batch), batch.images, blur, taps.shape, given)

    return _answer(model, batch, _weight(weight, batch, choose), tolerance, warm, info, limit=MAX_ITERATIONS)


def reconstruct(
    measurements: Any,
    forward: Any,
    adjoint: Callable[[Any], Any] | None = None,
    *,
    shape: tuple[int, ...],
    weight: Any,
    box: tuple[float, float] | None = None,
    isotropic: bool = False,
    tolerance: float = 1e-3,
    warm: Info | None = None,
    info: bool = False,
) -> Any:
    """An image of this `shape` from measurements: the minimiser of ||Ax - y||^2 + weight TV(x) over low <= x <= high.

    The proof needs a box. By default it is made wide around a rough answer, and wider where the image comes near to its
    ends, so that the image is the minimiser without a box; one that is known gives more and is faster.

    A is a function from images of that shape to arrays like the `measurements`, with its `adjoint`; or an
    `lmd.operators.LinearOperator` on `(B, C, *shape)`, for measurements `(B, C, ...)`. The answer has the kind and the
    dtype of the measurements, floating-point. Functions may compute in float32, and an adjoint may be slightly off:
    what that can do is part of the proven bound.

    Args:
        measurements: y, an array or tensor.
        forward: A, a function, or an operator.
        adjoint: A', a function, where A is one.
        shape: Of the image.
        weight: A positive number, or one per image of a batch.
        box: (low, high), where pixels are known to be, such as (0, 1); part of the problem.
        isotropic: Lengths of gradients in place of sums of absolute differences.
        tolerance: How near to the minimum, relative to it; proven.
        warm: The `Info` of similar measurements, to start from.
        info: Also return an `Info`: certificate, weight, seconds, the whole result.

    Returns:
        The image, or, with `info`, that and the `Info`.

    >>> import numpy as np, lmd
    >>> A = np.random.default_rng(0).normal(size=(30, 64)) / 8
    >>> x = np.repeat([0.2, 0.8], 32)
    >>> found = lmd.reconstruct(A @ x, lambda x: A @ x, lambda z: A.T @ z, shape=(64,), weight=1e-3)
    >>> bool(np.abs(found - x).max() < 0.05)
    True
    """
    operator, plain = _operator(measurements, forward, adjoint, shape)
    own = operator is not forward and plain.dtype == torch.float64  # of little noise Ax - y has few digits in float32
    dtype = torch.float64 if own else _dtype(tolerance)
    batch = as_batch("measurements", plain, Axes(0, 1), dtype, centred=False)

    def back(x: Tensor) -> Any:
        found = batch.own(x) if operator is forward else batch.own(x)[0, 0]
        if isinstance(measurements, Tensor):
            return found.to(measurements.dtype if measurements.dtype.is_floating_point else torch.float32)
        return found.numpy().astype(measurements.dtype if measurements.dtype.kind == "f" else np.float64)

    def model(ends: tuple[float, float]) -> Model:
        def make(data: Tensor, weights: Tensor, unit: float) -> TVProblem:
            in_unit = (ends[0] / unit, ends[1] / unit)
            return TVReconstruction(data, operator, tuple(shape), weights, isotropic, box=in_unit)

        return make

    chosen = _weight(weight, batch, None)
    batch = replace(batch, back=back)
    if box is not None:
        return _answer(model(check_interval("box", box)), batch, chosen, tolerance, warm, info)
    ends = _rough_box(model, operator, batch, chosen, tuple(shape))
    for _ in range(MAX_BOXES):
        found, told = _answer(model(ends), batch, chosen, tolerance, warm, True)
        if _is_inside(told.result.x, ends):
            return (found, told) if info else found
        ends = _widen(ends, 1.0)
    warn(f"box: none is given, and the image still touches {ends}; pass box=(low, high), where pixels are known to be")
    return (found, told) if info else found


def _rough_box(
    model: Callable[[tuple[float, float]], Model], operator: Any, batch: Batch, chosen: Chosen, shape: tuple[int, ...]
) -> tuple[float, float]:
    """A box around a rough answer, which is found in a wider one."""
    unit = batch.units.unit
    ends = _widen(_least_squares_range(operator, batch, shape), 1.0)
    problem = model(ends)(batch.images, (chosen.weight / unit).to(batch.images), unit)
    x = solve(problem, ROUGH[0], iterations=ROUGH[1]).x
    low, high = (float(end) for end in torch.aminmax(batch.own(x)))
    return _widen((low, high), 0.3)


def _widen(ends: tuple[float, float], share: float) -> tuple[float, float]:
    """The ends moved apart, each by this share of their distance."""
    low, high = ends
    width = share * max(high - low, 1e-3 * max(abs(low), abs(high))) or 1.0
    return low - width, high + width


def _is_inside(x: Tensor, ends: tuple[float, float]) -> bool:
    """Whether an image keeps away from the ends of a box."""
    low, high = (float(end) for end in torch.aminmax(x))
    room = 0.02 * (ends[1] - ends[0])
    return ends[0] + room <= low and high <= ends[1] - room


def _least_squares_range(operator: Any, batch: Batch, shape: tuple[int, ...]) -> tuple[float, float]:
    """The least and the largest pixel after a few conjugate gradient steps for the least ||Ax - y||^2."""
    y = batch.images
    x = y.new_zeros(*y.shape[:2], *shape)
    residual = y
    gradient = direction = operator.adjoint(residual)
    size = gradient.square().sum()
    for _ in range(10):
        ahead = operator(direction)
        along = ahead.square().sum()
        if not (float(size) > 0 and float(along) > 0):
            break
        x, residual = x + size / along * direction, residual - size / along * ahead
        gradient = operator.adjoint(residual)
        before, size = size, gradient.square().sum()
        direction = gradient + size / before * direction
    low, high = (float(end) for end in torch.aminmax(batch.own(x)))
    return low, high


def denoise_video(frames: Any, weight: Any = AUTO, *, info: bool = False, **options: Any) -> Any:
    """Frames without noise, one after the other; takes what `denoise` takes.

    An array `(T, ...)` gives an array, a list a list, and an iterator is answered by an iterator, frame by frame. An
    automatic weight is kept from frame to frame and chosen again where the noise or the contrast has changed by more
    than a fifth, as in a video that fades in. Each frame starts from the answer to the one before, moved along with the
    picture, where that is better than nothing: of noise that is new in each frame nothing is kept.

    Args:
        frames: An array `(T, ...)`, a list or an iterator of frames.
        weight: As in `denoise`; "auto" follows the frames.
        info: Also return an `Info` for each frame.
        **options: Those of `denoise`.

    Returns:
        Frames of the kind that came in; with `info`, that and a list of each `Info`, or an iterator of pairs.

    >>> import numpy as np, lmd
    >>> lmd.denoise_video(np.zeros((4, 8, 9, 3), np.uint8), weight=0.1).shape
    (4, 8, 9, 3)
    """
    answers = _video(iter(frames), weight, options)
    if isinstance(frames, Iterator):
        return answers if info else (frame for frame, _ in answers)
    pairs = list(answers)
    images: Any = [frame for frame, _ in pairs]
    if not pairs:
        raise InputError("frames", "none", "at least one frame")
    if isinstance(frames, np.ndarray):
        images = np.stack(images)
    elif isinstance(frames, Tensor):
        images = torch.stack(images)
    return (images, [told for _, told in pairs]) if info else images


def _video(frames: Iterator[Any], weight: Any, options: dict[str, Any]) -> Iterator[tuple[Any, Info]]:
    told: Info | None = None
    shape: tuple[int, ...] | None = None
    seen, kept = None, weight
    for frame in frames:
        before, shape = shape, np.shape(frame)
        if isinstance(weight, str):
            now = _look(frame, options)
            if seen is None or before != shape or bool(((now - seen).abs() > CHANGE * seen).any()):
                seen, kept = now, weight
        clean, told = denoise(frame, kept, info=True, warm=told if before == shape else None, **options)
        kept = told.weight if isinstance(kept, str) else kept
        yield clean, told


def _look(frame: Any, options: dict[str, Any]) -> Tensor:
    """The noise and the contrast of each image of a frame `(2, B)`."""
    batch = as_batch("frames", frame, options.get("channel_axis", AUTO))
    scale = batch.units.unit * batch.white
    return scale * torch.stack([measure(batch.images).level, batch.images.flatten(1).std(dim=1, correction=0)])


def _answer(
    model: Model,
    batch: Batch,
    chosen: Chosen,
    tolerance: float,
    warm: Info | None,
    info: bool,
    degree: int = 2,
    limit: int = MAX_SOLVE_ITERATIONS,
) -> Any:
    """What the user gets, after `limit` iterations at most; `degree` is that of the model in the unit of the data."""
    weight, choice, choice_seconds = chosen
    unit = batch.units.unit
    problem = model(batch.images, (weight / unit).to(batch.images), unit)
    dual_unit = unit ** (degree - 1)
    before: Any = _warm(warm, problem, batch.units, dual_unit)
    follows = before is not None and all(offers(each, ("noisy",)) for each in (problem, before.problem))
    if follows and batch.units != Units(0.0, 1.0):
        frame = (before.problem.noisy - batch.units.centre) / unit  # a motion is found between frames in one unit
        before = replace(before, problem=model(frame.to(batch.images), (weight / unit).to(batch.images), unit))
    result = solve(problem, tolerance, warm=before, iterations=limit)
    _warn_of_tolerance(result, tolerance)
    answer = batch.back(problem.image(result.x))
    if not info:
        return answer
    if batch.exact is not batch.images:  # what is proven is said of the numbers that came in
        exact, x = model(batch.exact.double(), weight, 1.0), batch.own(result.x)
        dual = None if result.dual is None else result.dual.double() * dual_unit
        report = RunReport(exact.value(x), result.iterations, result.evaluations, result.history)
        result = replace(result, x=x, report=report, dual=dual, problem=exact, start=exact.start(), certifier=certify)
        result = replace(result, status=_status_of(result, tolerance))
    else:
        weight = weight.to(batch.images).double()  # as it was rounded: this is what the certificate holds for
    noise = None if choice is None else _said(choice.noise)
    low, high = _box(None, batch.exact)
    span = 1.0 if batch.white > 1 else high - low
    seconds = result.seconds + choice_seconds
    told = Info(_said(weight), noise, seconds, result, tuple(answer.shape), choice, choice_seconds, span)
    return answer, told


def _status_of(result: Result, tolerance: float) -> tuple[Status, ...]:
    """What became of each instance, where its numbers were rounded for the solve: the tolerance may be missed by it."""
    proven = result.certificate
    assert proven is not None
    reached = relative_gap(proven.value, proven.bound) <= tolerance
    words = (Status.STALLED, Status.TOLERANCE_REACHED)
    pairs = zip(result.status, reached.tolist(), strict=True)
    return tuple(words[is_near] if status in words else status for status, is_near in pairs)


def _warn_of_tolerance(result: Result, tolerance: float) -> None:
    """Warn where less was proven than was asked for."""
    missed = [status for status in result.status if status is not Status.TOLERANCE_REACHED]
    if not missed or result.certificate is None:
        return
    proven = Info(0.0, None, 0.0, result).relative
    if not proven <= 1.001 * tolerance:
        what = f"{proven:.2g}" if math.isfinite(proven) else "nothing relative to the minimum"
        warn(f"tolerance: {tolerance:g} was asked for, {what} is proven ({missed[0].name}); pass a larger one")


def _said(each: Tensor) -> float | Tensor:
    """One number of one image."""
    return float(each[0]) if each.numel() == 1 else each


def _warm(warm: Info | None, problem: TVProblem, units: Units, dual_unit: float) -> Result | None:
    """The result to start from, in the units of the problem."""
    if warm is None:
        return None
    if not isinstance(warm, Info):
        raise InputError("warm", type(warm).__name__, "the Info of an earlier answer: lmd.denoise(..., info=True)")
    like = problem.start()
    if warm.result.x.shape != like.shape:
        raise InputError("warm", f"an answer of shape {tuple(warm.result.x.shape)}", f"shape {tuple(like.shape)}")
    dual = warm.result.dual
    if units == Units(0.0, 1.0) and warm.result.x.dtype == like.dtype:
        return warm.result
    return replace(
        warm.result,
        x=((warm.result.x - units.centre) / units.unit).to(like),
        dual=None if dual is None else (dual / dual_unit).to(like),
    )


def _weight(weight: Any, batch: Batch, choose: Callable[[], Choice] | None, maps: bool = False) -> Chosen:
    """One weight per image, or a map."""
    count, device = len(batch.images), batch.images.device
    if isinstance(weight, str):
        if weight != AUTO or choose is None:
            raise InputError("weight", repr(weight), "a positive number" + (" or 'auto'" if choose else ""))
        begun = time.perf_counter()
        choice = choose().times(batch.units.unit)
        warn_of_end(choice)
        return Chosen(choice.weight.double(), choice, time.perf_counter() - begun)
    if isinstance(weight, (int, float)):
        return Chosen(torch.full((count,), check_positive("weight", weight), dtype=torch.float64, device=device))
    try:
        found = torch.as_tensor(weight, dtype=torch.float64, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("weight", type(weight).__name__, "a positive number, an array of them or 'auto'") from None
    if not bool((found > 0).all() & torch.isfinite(found).all()):
        raise InputError(
            "weight", f"an array from {float(found.min()):g} to {float(found.max()):g}", "positive numbers"
        )
    if found.shape in ((), (count,)):
        return Chosen(found.expand(count).clone())
    if not maps or (mapped := batch.as_map(found)) is None:
        accepted = f"one number, ({count},)" + (" or a map of the shape of the image" if maps else "")
        raise InputError("weight", f"an array of shape {tuple(found.shape)}", accepted)
    return Chosen(mapped)


def _is_map_by_channel(weight: Any, batch: Batch) -> bool:
    """Whether a weight is a map with numbers of its own for each channel."""
    if isinstance(weight, (str, int, float)) or np.ndim(weight) <= 1:
        return False
    shape = batch.images.new_zeros(1).expand(np.shape(weight))
    mapped = batch.as_map(shape)
    return mapped is not None and mapped.shape[1] > 1


def _noise(noise: float | None, batch: Batch) -> Tensor | None:
    """The deviation of the noise of each image `(B,)`, in the units of the batch, where it is given."""
    if noise is None:
        return None
    deviation = check_positive("noise", noise) / batch.white / batch.units.unit
    return batch.images.new_full((len(batch.images),), deviation)


def _in_units(model: Model, batch: Batch) -> Callable[[Tensor, Tensor], Any]:
    return lambda data, weights: model(data, weights, batch.units.unit)


def _box(box: tuple[float, float] | None, images: Tensor) -> tuple[float, float]:
    if box is not None:
        return check_interval("box", box)
    some = images.flatten()[:: max(1, images.numel() // 100_000)]
    inside = float(((some >= -0.1) & (some <= 1.1)).double().mean())
    if inside > 0.99 and float(some.abs().max()) > 0.1:
        return 0.0, 1.0
    low, high = (float(end) for end in torch.aminmax(images))
    return (low, high) if low < high else (low - 1, high + 1)


def _without_lost(image: Any, mask: Any, channel_axis: Axis) -> tuple[Any, Tensor]:
    """The image with numbers near those that are kept for those that are lost, and the mask as `(B, C or 1, *size)`."""
    if not isinstance(image, (np.ndarray, Tensor)):
        raise InputError("image", type(image).__name__, "a numpy array or torch tensor of real numbers")
    if isinstance(image, Tensor):
        as_tensor("image", image)
    kept = _is_kept(mask)
    axes = find_axes("image", tuple(image.shape), isinstance(image, Tensor), channel_axis)
    size = [length for axis, length in enumerate(image.shape) if axis not in (axes.batch, axes.channel)]
    if tuple(kept.shape) == tuple(image.shape):
        kept, full = move(kept, axes), kept
    elif list(kept.shape) == size:
        channels = kept if axes.channel is None else kept.unsqueeze(axes.channel - (axes.batch is not None))
        full = channels.expand(image.shape)
        kept = kept[None, None].expand(image.shape[0] if axes.batch is not None else 1, 1, *size)
    else:
        raise InputError("mask", f"shape {tuple(kept.shape)}", f"shape {tuple(image.shape)} or {tuple(size)}")
    if axes.has_alpha and axes.channel is not None:  # which stays as it is
        full = full.clone()
        full.select(axes.channel, -1).fill_(True)
    numbers = image.detach().double().cpu().numpy() if isinstance(image, Tensor) else image
    check_kept(numbers, full.cpu().numpy())
    if isinstance(image, Tensor):
        full, plain = full.to(image.device), image.detach()
        fill = nearest_to_zero(plain[full].double().cpu().numpy())
        return torch.where(full, image, torch.full_like(image, fill)), kept
    return np.where(full.numpy(), image, np.full_like(image, nearest_to_zero(image[full.numpy()]))), kept


def _is_kept(mask: Any) -> Tensor:
    """Where a mask is not 0."""
    try:
        given = mask if isinstance(mask, Tensor) else torch.from_numpy(np.array(mask))
    except (TypeError, ValueError):
        raise InputError("mask", type(mask).__name__, "an array of numbers, not 0 where a pixel is kept") from None
    given = check_readable("mask", given).detach().cpu()
    if given.is_floating_point() and (lost := int(given.isnan().sum())):
        raise InputError("mask", f"{lost} of {given.numel()} numbers that are NaN", "0 for lost pixels, 1 for others")
    return given != 0


def _operator(
    measurements: Any, forward: Any, adjoint: Callable[[Any], Any] | None, shape: tuple[int, ...]
) -> tuple[LinearOperator, Any]:
    """The operator, and the measurements as `(B, C, ...)`."""
    if isinstance(forward, LinearOperator):
        return forward, measurements
    if adjoint is None or not callable(forward):
        raise InputError("adjoint", "nothing", "the adjoint of forward, or an lmd.operators.LinearOperator as forward")
    if not isinstance(measurements, (np.ndarray, Tensor)):
        raise InputError("measurements", type(measurements).__name__, "a numpy array or torch tensor of real numbers")
    if isinstance(measurements, Tensor):
        single = torch.float32 if measurements.dtype == torch.float32 else None
        return FromFunctions(forward, adjoint, shape, single), measurements[None, None]

    def numpy(function: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.from_numpy(np.asarray(function(x.numpy()), dtype=np.float64))

    return FromFunctions(numpy(forward), numpy(adjoint), shape), torch.from_numpy(np.array(measurements))[None, None]


def _each(images: Iterable[Any], answer: Callable[[Any], tuple[Any, Info]], info: bool) -> Any:
    """A list of images, one by one; a list comes back."""
    pairs = [answer(image) for image in images]
    clean = [image for image, _ in pairs]
    return (clean, [told for _, told in pairs]) if info else clean


def _dtype(tolerance: float) -> torch.dtype:
    return torch.float32 if check_positive("tolerance", tolerance) >= SINGLE else torch.float64
