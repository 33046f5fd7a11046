"""Functions for arrays: `denoise`, `inpaint`, `deblur`, `reconstruct`, `denoise_video`.

Weights belong to ||x - y||^2 + weight TV(x), where pictures of bytes are scaled to [0, 1]. Weights for Poisson counts
and absolute distances have no unit. Other libraries use other factors:

| library | its parameter for the same answer | TV |
|---|---|---|
| scikit-image `denoise_tv_chambolle` | weight / 2 | isotropic |
| prox_tv `tv1_2d` | weight / 2 | anisotropic |
| CIL `TotalVariation(alpha).proximal(y, 1)` | alpha = weight / 2 | isotropic by default |
| deepinv `TVDenoiser` | ths = weight / 2 | isotropic |
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.core.checks import check_count, check_interval, check_positive
from lmd.errors import InputError
from lmd.guarantees.certify import certify, run
from lmd.guarantees.theorems import gap_certificate
from lmd.imaging.arrays import Axes, Axis, Batch, Units, as_batch, fill_lost, warn
from lmd.imaging.models import (
    MISFITS,
    Choice,
    DenoisingModel,
    choose_behind_blur,
    choose_by_holdout,
    warn_if_at_end,
    weights_near,
)
from lmd.imaging.noise import at_least, measure, rough_noise
from lmd.operators import Blur, LinearOperator
from lmd.operators.functions import FromFunctions
from lmd.problems import TVDeblurring, TVInpainting
from lmd.problems.duality import relative_gap
from lmd.problems.tv import TVProblem, TVReconstruction
from lmd.solvers import Result, Status
from lmd.solvers.base import Solver, in_full_precision
from lmd.solvers.result import Certificate
from lmd.zoo.solve import MAX_ITERATIONS as MAX_SOLVE_ITERATIONS
from lmd.zoo.solve import solve

AUTO = "auto"
MIN_TOLERANCE_FLOAT32 = 1e-5  # relative gaps down to this are proven in single precision, smaller ones in double
MAX_ITERATIONS = 30_000  # without strong convexity: what is not proven by then would take minutes
ROUGH_TOLERANCE, ROUGH_ITERATIONS = 1e-2, 500  # of the answer that the box of a reconstruction is put around
MAX_BOXES = 4  # how often that box is widened
MAX_CHANGE = 0.2  # a weight is chosen again where noise or contrast of a video have changed by a larger share
KERNEL_SUMS = (0.5, 2.0)  # kernels of another sum brighten or darken the image, which is hardly meant
NOISE_PIXELS = 1 << 20  # the noise of images that have lost pixels is measured on about so many of them

Model = Callable[[Tensor, Tensor, float], Any]
"""From data `(B, C, ...)`, weights `(B,)`, or maps of them, and the unit that both are given in, to the problems."""


@dataclass(frozen=True)
class Info:
    """Information about an answer.

    Args:
        weight: The weight of the regulariser: a number, one per image of a batch `(B,)`, or a map
            `(B, 1 or C, *size)`.
        solved: The result in the units and the precision of the solve.
        units: The units of the solve.
        exact: Converts `solved` to `result` if they differ.
        choice: The weights that were tried and their risks, if the weight was chosen.
        range: The difference of white and black in the units of the result: 1 for bytes and for numbers from 0 to 1,
            otherwise the range of the image.
        notes: Further remarks, for instance about a solver that diverged.
    """

    weight: Any
    solved: Result = field(repr=False)
    units: Units
    exact: Callable[[Result], Result] | None = field(default=None, repr=False)
    choice: Choice | None = field(default=None, repr=False)
    range: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def noise(self) -> Any:
        """The standard deviation of the noise, estimated or given; None if it was not needed."""
        return None if self.choice is None else _one_or_all(self.choice.noise)

    @property
    def choice_seconds(self) -> float:
        """The seconds spent on choosing the weight."""
        return 0.0 if self.choice is None else self.choice.seconds

    @property
    def seconds(self) -> float:
        """The seconds of the whole call, including the choice of the weight."""
        return self.choice_seconds + self.solved.seconds

    @cached_property
    def result(self) -> Result:
        """The result in the units of the array, before rounding; bytes are scaled to [0, 1].

        If the array was rounded for the solve, the result is evaluated for the original numbers, in float64.
        """
        return self.solved if self.exact is None else self.exact(self.solved)

    @cached_property
    def certificate(self) -> Certificate:
        """The proven bound on F(x) - min F."""
        proven = self.result.certificate
        if proven is None:
            raise InputError("result", "a result without a certificate", "one of lmd.solve")
        return proven

    @property
    def absolute(self) -> float:
        """The largest bound of all images."""
        return float(self.certificate.bound.max())

    @property
    def relative(self) -> float:
        """The largest bound of all images relative to the minimum; infinite if the minimum may be 0."""
        return _relative_bound(self.certificate)

    @property
    def grey_levels(self) -> float:
        """A bound on the root mean square distance of x to the minimiser, in units of `range` / 255.

        From F(x) - min F >= mu/2 ||x - x*||^2; infinite where F is not strongly convex.
        """
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
        choosing = f" ({self.choice_seconds:.2g} s to choose the weight)" if self.choice is not None else ""
        near = f"within {100 * self.relative:.2g}% of" if math.isfinite(self.relative) else f"{self.absolute:.2g} above"
        return f"weight {weight}, {near} the minimum{levels}, {self.seconds:.2g} s{choosing}"


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
    tolerance: float | None = 1e-3,
    warm: Info | None = None,
    solver: Solver[Any] | None = None,
    iterations: int | None = None,
    info: bool = False,
) -> Any:
    """Remove the noise of an image, signal or volume: return the minimiser of misfit(x, y) + weight TV(x).

    Args:
        image: y, a NumPy array or tensor of any dtype and layout: a signal `(N,)`, a grey image `(H, W)`, a colour
            picture `(H, W, 3)`, a volume `(D, H, W)`, a batch `(B, C, ...)`, or a list of these.
        weight: A positive number, one per image of a batch, "auto", or a map: an array with the shape of the image,
            with or without the channel axis, or with an additional first axis for differences along each spatial axis.
            "auto" minimises Stein's unbiased risk estimate or, for absolute distances, the error on held-out pixels.
        data: The misfit: "squares" ||x - y||^2, "poisson" for counts y >= 0, "absolute" sum |x - y| for impulses.
        order: 1 for total variation, 2 for total generalised variation, which does not turn slopes into stairs.
        noise: The standard deviation of the noise, for "auto" with squares, of 255 for bytes; None estimates it.
        isotropic: Sum the lengths of gradients instead of absolute differences.
        coupled: One gradient length for all channels; by default for three, unless `weight` is a map per channel.
        huber: Penalise gradients up to this length by their squares, which avoids staircases; for bytes, 1 is white.
        spacing: The distance of pixels along each axis, such as the voxel size of a scanner.
        channel_axis: The axis of the channels, None if there is none, or "auto": see `lmd.imaging.arrays.as_batch`.
        tolerance: The relative gap to be proven; None runs the `solver` for its `iterations`.
        warm: The `Info` of a similar image of the same shape, to start from.
        solver: Any solver; None lets lmd pick one.
        iterations: The maximum number of iterations.
        info: Whether to also return an `Info` with certificate, weight, seconds and the full result.

    Returns:
        An array of the same kind, shape and dtype as `image`; with `info`, a pair of it and the `Info`.

    >>> import numpy as np, lmd
    >>> clean, info = lmd.denoise(np.eye(32) + 0.1 * np.random.default_rng(0).normal(size=(32, 32)), info=True)
    >>> clean.shape, clean.dtype, info.relative < 1.001e-3
    ((32, 32), dtype('float64'), True)
    """
    if isinstance(image, (list, tuple)):
        return _for_each(denoise, **locals())
    settings, is_centred = Settings(tolerance, warm, solver, iterations, info), data != "poisson" and order == 1
    batch = as_batch("image", image, channel_axis, settings.dtype, is_centred)  # counts and slopes may not be moved
    coupled = _has_coupled_colours(weight, batch) if coupled is None else coupled
    model = DenoisingModel(data, order, isotropic, coupled, huber, spacing)
    if data == "poisson" and not (least := float(batch.exact.min())) >= 0:
        raise InputError("image", f"counts down to {least:g} with data='poisson'", "counts of 0 or more")
    level = None if noise is None else _noise_level(noise, batch)
    choose = partial(model.choose, batch.images, level, batch.units)
    return settings.answer(model.problem, batch, *_find_weight(weight, batch, choose, True), MISFITS[data].degree)


def inpaint(
    image: Any,
    mask: Any,
    weight: Any = AUTO,
    *,
    isotropic: bool = False,
    channel_axis: Axis = AUTO,
    tolerance: float | None = 1e-3,
    warm: Info | None = None,
    solver: Solver[Any] | None = None,
    iterations: int | None = None,
    info: bool = False,
) -> Any:
    """Fill in the missing pixels of an image: return the minimiser of ||Z (x - y)||^2 + weight TV(x).

    Missing pixels may hold any numbers, including NaN. "auto" is the weight that best predicts a tenth of the known
    pixels from the others.

    Args:
        image: An array or tensor, or a list of them, as in `denoise`.
        mask: Z, nonzero where a pixel is known, with the shape of the image, with or without the channel axis; for a
            list of images one mask for all or a list of masks.
        weight: A positive number, one per image of a batch, or "auto".
        isotropic, channel_axis, tolerance, warm, solver, iterations, info: As in `denoise`.

    Returns:
        An array of the same kind, shape and dtype as `image`; with `info`, a pair of it and the `Info`.

    >>> import numpy as np, lmd
    >>> image = np.outer(np.ones(16), np.arange(16) > 7).astype(float)
    >>> image[5, 3] = np.nan
    >>> bool(abs(lmd.inpaint(image, np.isfinite(image), weight=0.01)[5, 3]) < 0.01)
    True
    """
    if isinstance(image, (list, tuple)):
        return _for_each(inpaint, **locals())
    settings = Settings(tolerance, warm, solver, iterations, info)
    filled, kept = fill_lost(image, mask, channel_axis)
    batch = as_batch("image", filled, channel_axis, settings.dtype)
    z = kept.to(batch.images)

    def model(data: Tensor, weights: Tensor, unit: float = 1.0, kept: Tensor = z) -> TVProblem:
        return TVInpainting(data, kept.to(data), weights, isotropic)

    def choose() -> Choice:
        step = 1 + (batch.images[0].numel() // NOISE_PIXELS if batch.images.ndim > 3 else 0)
        level = at_least(rough_noise(batch.images[:, :, ::step], z[:, :, ::step]), batch.images)
        return choose_by_holdout(model, batch.images, z, level, weights_near(level))

    return settings.answer(model, batch, *_find_weight(weight, batch, choose), limit=MAX_ITERATIONS)


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
    tolerance: float | None = 1e-3,
    warm: Info | None = None,
    solver: Solver[Any] | None = None,
    iterations: int | None = None,
    info: bool = False,
) -> Any:
    """Remove the blur of an image: return the minimiser of ||k * x - y||^2 + weight TV(x) over low <= x <= high.

    See `lmd.operators.gaussian_kernel` and `motion_kernel` for kernels.

    Args:
        image: A picture, or a list of them, as in `denoise`, with two axes besides the channel axis.
        kernel: k `(h, w)`, an array or tensor that sums to about 1.
        weight: A positive number, one per image of a batch, or "auto".
        border: How the image continues outside: "replicate" or "circular".
        box: (low, high), the range of pixels. The default is [0, 1] for bytes, which are scaled to it, and for numbers
            that are mostly in it; otherwise it is the range of the image.
        noise, isotropic, channel_axis, tolerance, warm, solver, iterations, info: As in `denoise`.

    Returns:
        An array of the same kind, shape and dtype as `image`; with `info`, a pair of it and the `Info`.
    """
    if isinstance(image, (list, tuple)):
        return _for_each(deblur, **locals())
    settings = Settings(tolerance, warm, solver, iterations, info)
    batch = as_batch("image", image, channel_axis, settings.dtype, centred=False)
    if batch.images.ndim != 4:
        raise InputError("image", f"shape {tuple(np.shape(image))}", "pictures: two axes beside that of the channels")
    low, high = _range_of(batch) if box is None else check_interval("box", box)
    taps = as_batch("kernel", kernel, None, torch.float64).exact[0, 0]  # all its digits, lest its rank gets lost
    if not KERNEL_SUMS[0] <= (total := float(taps.sum())) <= KERNEL_SUMS[1]:
        given = f"an array that sums to {total:g}"
        raise InputError("kernel", given, "a sum of about 1, such as kernel / kernel.sum()")

    def model(data: Tensor, weights: Tensor, unit: float = batch.units.unit) -> TVProblem:
        return TVDeblurring(data, taps, weights, border, isotropic, box=(low / unit, high / unit))

    def choose() -> Choice:
        def blur(x: Tensor) -> Tensor:
            return Blur(taps, int(x.shape[-2]), int(x.shape[-1]), border)(x)

        level = None if noise is None else _noise_level(noise, batch)
        return choose_behind_blur(model, batch.images, blur, taps.shape, level)

    return settings.answer(model, batch, *_find_weight(weight, batch, choose), limit=MAX_ITERATIONS)


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
    """Reconstruct an image from measurements: return the minimiser of ||Ax - y||^2 + weight TV(x), low <= x <= high.

    A is a function that maps images of this shape to arrays like `measurements`, together with its `adjoint`, or an
    `lmd.operators.LinearOperator` on `(B, C, *shape)`, for measurements `(B, C, ...)`. Functions may compute in
    float32, and the adjoint may be slightly inexact; the proven bound accounts for this.

    The proof needs a box. By default it is a wide one around a rough answer, which is widened if the image comes close
    to its ends, so that the image is the minimiser without a box. A known box gives a better answer and is faster.

    Args:
        measurements: y, an array or tensor.
        forward: A, a function or an operator.
        adjoint: A', if A is a function.
        shape: The shape of the image.
        weight: A positive number, or one per image of a batch.
        box: (low, high), the range of pixels, such as (0, 1); it is part of the problem.
        isotropic, tolerance, warm, info: As in `denoise`.

    Returns:
        The image, of the same kind and floating-point dtype as the measurements; with `info`, a pair of it and the
        `Info`.

    >>> import numpy as np, lmd
    >>> A = np.random.default_rng(0).normal(size=(30, 64)) / 8
    >>> x = np.repeat([0.2, 0.8], 32)
    >>> found = lmd.reconstruct(A @ x, lambda x: A @ x, lambda z: A.T @ z, shape=(64,), weight=1e-3)
    >>> bool(np.abs(found - x).max() < 0.05)
    True
    """
    operator, plain = _as_operator(measurements, forward, adjoint, shape)
    settings = Settings(tolerance, warm, info=info)
    double = (
        operator is not forward and plain.dtype == torch.float64
    )  # Ax - y of little noise has few digits in float32
    batch = as_batch("measurements", plain, Axes(0, 1), torch.float64 if double else settings.dtype, centred=False)
    (weights, _), back = (
        _find_weight(weight, batch, None),
        partial(_image_like, measurements, batch, operator is forward),
    )

    def model(data: Tensor, weights: Tensor, unit: float, ends: tuple[float, float]) -> TVProblem:
        in_unit = (ends[0] / unit, ends[1] / unit)
        return TVReconstruction(data, operator, tuple(shape), weights, isotropic, box=in_unit)

    if box is None:
        return _widen_until_inside(model, operator, batch, weights, tuple(shape), settings, back)
    return settings.answer(partial(model, ends=check_interval("box", box)), batch, weights, back=back)


def _image_like(measurements: Any, batch: Batch, is_batch: bool, x: Tensor) -> Any:
    """Return images as an array of the kind and the floating-point dtype of the measurements."""
    image = batch.pixels(x) if is_batch else batch.pixels(x)[0, 0]
    if isinstance(measurements, Tensor):
        return image.to(measurements.dtype if measurements.dtype.is_floating_point else torch.float32)
    return image.numpy().astype(measurements.dtype if measurements.dtype.kind == "f" else np.float64)


def _widen_until_inside(
    model: Callable[..., TVProblem],
    operator: Any,
    batch: Batch,
    weight: Tensor,
    shape: tuple[int, ...],
    settings: Settings,
    back: Callable[[Tensor], Any],
) -> Any:
    """Return the answer in a box so wide that the image keeps away from its ends."""
    unit, ends = batch.units.unit, _widen(_least_squares_range(operator, batch, shape), 1.0)
    problem = model(batch.images, (weight / unit).to(batch.images), unit, ends)
    x = solve(problem, ROUGH_TOLERANCE, iterations=ROUGH_ITERATIONS).x
    ends = _widen(_ends_of(batch.pixels(x)), 0.3)
    for _ in range(MAX_BOXES):
        image, about = replace(settings, info=True).answer(partial(model, ends=ends), batch, weight, back=back)
        (low, high), room = _ends_of(about.result.x), 0.02 * (ends[1] - ends[0])
        if ends[0] + room <= low and high <= ends[1] - room:
            break
        ends = _widen(ends, 1.0)
    else:
        known = "pass box=(low, high), where pixels are known to be"
        warn(f"box: none is given, and the image still touches {ends}; {known}")
    return (image, about) if settings.info else image


def _ends_of(x: Tensor) -> tuple[float, float]:
    """Return the least and the largest number."""
    low, high = torch.aminmax(x)
    return float(low), float(high)


def _widen(ends: tuple[float, float], share: float) -> tuple[float, float]:
    """Return the ends moved apart, each by this share of their distance."""
    low, high = ends
    width = share * max(high - low, 1e-3 * max(abs(low), abs(high))) or 1.0
    return low - width, high + width


def _least_squares_range(operator: Any, batch: Batch, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return the least and the largest pixel after ten conjugate gradient steps for the least ||Ax - y||^2."""
    y = batch.images
    x, residual = y.new_zeros(*y.shape[:2], *shape), y
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
    return _ends_of(batch.pixels(x))


def denoise_video(frames: Any, weight: Any = AUTO, *, info: bool = False, **options: Any) -> Any:
    """Remove the noise of the frames of a video, one after the other.

    An automatic weight is kept from frame to frame and chosen again if the noise or the contrast has changed by more
    than a fifth, as in a video that fades in. Each frame starts from the dual point of the previous one if that is
    better than a cold start.

    Args:
        frames: An array `(T, ...)`, a list or an iterator of frames.
        weight: As in `denoise`; "auto" follows the frames.
        info: Whether to also return an `Info` for each frame.
        **options: The other options of `denoise`.

    Returns:
        An array for an array, a list for a list, and an iterator for an iterator. With `info`, a pair of it and a list
        of `Info`, or an iterator of pairs.

    >>> import numpy as np, lmd
    >>> lmd.denoise_video(np.zeros((4, 8, 9, 3), np.uint8), weight=0.1).shape
    (4, 8, 9, 3)
    """
    answers = _denoise_frames(iter(frames), weight, options)
    if isinstance(frames, Iterator):
        return answers if info else (frame for frame, _ in answers)
    images, infos = _unzip(list(answers), True)
    if not images:
        raise InputError("frames", "none", "at least one frame")
    if isinstance(frames, np.ndarray):
        images = np.stack(images)
    elif isinstance(frames, Tensor):
        images = torch.stack(images)
    return (images, infos) if info else images


def _denoise_frames(frames: Iterator[Any], weight: Any, options: dict[str, Any]) -> Iterator[tuple[Any, Info]]:
    about: Info | None = None
    shape: tuple[int, ...] | None = None
    seen, current = None, weight
    for frame in frames:
        before, shape = shape, np.shape(frame)
        if isinstance(weight, str):
            now = _noise_and_contrast(frame, options)
            if seen is None or before != shape or bool(((now - seen).abs() > MAX_CHANGE * seen).any()):
                seen, current = now, weight
        clean, about = denoise(frame, current, info=True, warm=about if before == shape else None, **options)
        current = about.weight if isinstance(current, str) else current
        yield clean, about


@in_full_precision
def _noise_and_contrast(frame: Any, options: dict[str, Any]) -> Tensor:
    """Return the noise and the contrast of each image of a frame `(2, B)`."""
    batch = as_batch("frames", frame, options.get("channel_axis", AUTO))
    scale = batch.units.unit * batch.units.white
    return scale * torch.stack([measure(batch.images).level, batch.images.flatten(1).std(dim=1, correction=0)])


def _for_each(function: Callable[..., Any], image: Sequence[Any], info: bool, **options: Any) -> Any:
    """Call a function for each image of a list, and with a mask for each where there is a list of masks."""
    each, masks = [options] * len(image), options.get("mask")
    if isinstance(masks, (list, tuple)):
        if len(masks) != len(image):
            raise InputError("mask", f"{len(masks)} masks", f"one, or one for each of {len(image)} images")
        each = [{**options, "mask": mask} for mask in masks]
    return _unzip([function(one, info=True, **own) for one, own in zip(image, each, strict=True)], info)


def _unzip(pairs: list[tuple[Any, Info]], info: bool) -> Any:
    """Return a list of answers, with `info` also a list of each `Info`."""
    answers, infos = [answer for answer, _ in pairs], [each for _, each in pairs]
    return (answers, infos) if info else answers


@dataclass(frozen=True)
class Settings:
    """How a problem is solved and what is returned: the keywords that the functions share."""

    tolerance: float | None
    warm: Info | None
    solver: Solver[Any] | None = None
    iterations: int | None = None
    info: bool = False

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            check_positive("tolerance", self.tolerance)
        elif self.solver is None:
            raise InputError("tolerance", None, "a positive number, or a solver to run")
        if self.iterations is not None:
            check_count("iterations", self.iterations)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the solve: that of the solver, where it has one."""
        for parameter in self.solver.parameters() if self.solver is not None else ():
            if parameter.dtype.is_floating_point:
                return parameter.dtype
        return torch.float32 if (self.tolerance or 1.0) >= MIN_TOLERANCE_FLOAT32 else torch.float64

    def answer(
        self,
        model: Model,
        batch: Batch,
        weight: Tensor,
        choice: Choice | None = None,
        degree: int = 2,
        limit: int = MAX_SOLVE_ITERATIONS,
        back: Callable[[Tensor], Any] | None = None,
    ) -> Any:
        """Solve for a batch and return the answer for its array, with its `Info` where that is asked for.

        The `weight` is in the units of the pixels, `degree` that of the model in the unit of the data, `limit` the
        largest number of iterations where none is given, and `back` takes images to the array of the answer.
        """
        unit = batch.units.unit
        problem = model(batch.images, (weight / unit).to(batch.images), unit)
        result, notes = self._solve(problem, batch.units, unit ** (degree - 1), limit)
        answer = (back or batch.back)(problem.image(result.x))
        if not self.info:
            return answer
        if batch.is_exact:
            weight = weight.to(batch.images).double()  # as it was rounded: this is what the certificate holds for

        def exact(result: Result) -> Result:
            return _in_pixels(
                result, model(batch.exact.double(), weight, 1.0), batch, unit ** (degree - 1), self.tolerance
            )

        (low, high), rest = _range_of(batch), None if batch.is_exact else exact
        return answer, Info(_one_or_all(weight), result, batch.units, rest, choice, high - low, notes)

    def _solve(self, problem: Any, units: Units, dual_unit: float, limit: int) -> tuple[Result, tuple[str, ...]]:
        """Return the result and notes about it."""
        if self.tolerance is None and self.solver is not None:
            return _no_worse_than_start(run(self.solver, problem, iterations=self.iterations, record=False))
        warm = None if self.warm is None else _warm_start(self.warm, problem, units, dual_unit)
        tolerance, most = self.tolerance or 0.0, self.iterations or limit
        result = solve(problem, tolerance, solver=self.solver, warm=warm, iterations=most)
        if self.iterations is not None or self.solver is not None:
            return _no_worse_than_start(result)
        if set(result.status) != {Status.TOLERANCE_REACHED}:
            _warn_of_tolerance(result, tolerance)
        return result, ()


def _in_pixels(result: Result, problem: Any, batch: Batch, dual_unit: float, tolerance: float | None) -> Result:
    """Return a result about the pixels that came in, in float64: they may have been rounded for the solve."""
    x, dual = batch.pixels(result.x), None if result.dual is None else result.dual.double() * dual_unit
    history = replace(result.history, values=result.history.values.double() * dual_unit * batch.units.unit)
    same: dict[str, Any] = {"problem": problem, "start": problem.start(), "recorded": history}
    if tolerance is None or dual is None:
        return replace(result, x=x, values=problem.value(x), dual=dual, certifier=certify, **same)
    values, gaps = problem.certified_gap(x, dual)
    proven = gap_certificate(values.tolist(), gaps.tolist(), values.tolist(), x)
    near, words = relative_gap(proven.value, proven.bound) <= tolerance, (Status.STALLED, Status.TOLERANCE_REACHED)
    pairs = zip(result.status, near.tolist(), strict=True)
    status = tuple([words[is_near] if status in words else status for status, is_near in pairs])
    return replace(result, x=x, status=status, values=values, dual=dual, certifier=lambda _: proven, **same)


def _no_worse_than_start(result: Result) -> tuple[Result, tuple[str, ...]]:
    """Return the result with the start in place of answers above it, and a note; what is proven holds for both."""
    worse = result.values > result.history.values[0]
    if not bool(worse.any()) or (exact := result.problem.double()) is None:
        return result, ()
    values = exact.value(result.start.double())
    worse &= values < result.values
    if not bool(worse.any()):
        return result, ()
    first, proven = int(worse.nonzero()[0]), result.certificate
    ended = f"after {int(result.iterations[first])} iterations the value was {float(result.values[first]):.6g}"
    note = f"the start is kept: {ended}, above it"
    x = torch.where(worse.reshape(-1, *(1,) * (result.x.ndim - 1)), result.start, result.x)
    values = torch.where(worse, values, result.values)

    def certificate(_: Result) -> Certificate:
        assert proven is not None
        return Certificate(values.to(proven.lower_bound), proven.lower_bound, proven.theorem, proven.norm)

    rounded = values.to(result.values)
    return replace(result, x=x, values=rounded, certifier=certificate, recorded=result.history), (note,)


def _relative_bound(certificate: Certificate) -> float:
    """Return the largest bound relative to the minimum; infinite where that may be 0."""
    bound, lower = certificate.bound, certificate.lower_bound
    return float(torch.where(bound == 0, 0.0, bound / lower.clamp(min=0)).max())


def _warn_of_tolerance(result: Result, tolerance: float) -> None:
    """Warn where less was proven than was asked for."""
    proven = math.inf if result.certificate is None else _relative_bound(result.certificate)
    if not proven <= 1.001 * tolerance:
        why = next(status.name for status in result.status if status is not Status.TOLERANCE_REACHED)
        what = f"{proven:.2g}" if math.isfinite(proven) else "nothing relative to the minimum"
        warn(f"tolerance: {tolerance:g} was asked for, {what} is proven ({why}); pass a larger one")


def _one_or_all(each: Tensor) -> float | Tensor:
    """Return the number of a single image, or those of all."""
    return float(each[0]) if each.numel() == 1 else each


def _warm_start(warm: Any, problem: TVProblem, units: Units, dual_unit: float) -> Result:
    """Return the result to start from, in the units of the problem."""
    if not isinstance(warm, Info):
        raise InputError("warm", type(warm).__name__, "the Info of an earlier answer: lmd.denoise(..., info=True)")
    like, shape = problem.start(), warm.solved.x.shape
    if shape != like.shape:
        raise InputError("warm", f"an answer of shape {tuple(shape)}", f"shape {tuple(like.shape)}")
    if warm.units == units:
        x, dual = warm.solved.x, warm.solved.dual
    else:
        x, dual = units.to_solver(warm.result.x), warm.result.dual
        dual = None if dual is None else dual / dual_unit
    return replace(warm.solved, x=x.to(like), dual=None if dual is None else dual.to(like))


@in_full_precision
def _find_weight(
    weight: Any, batch: Batch, choose: Callable[[], Choice] | None, maps: bool = False
) -> tuple[Tensor, Choice | None]:
    """Return one weight per image, or a map, float64 and in the units of the pixels, and how it was chosen."""
    count, device = len(batch.images), batch.images.device
    if isinstance(weight, str):
        if weight != AUTO or choose is None:
            raise InputError("weight", repr(weight), "a positive number" + (" or 'auto'" if choose else ""))
        begun = time.perf_counter()
        choice = choose().times(batch.units.unit, time.perf_counter() - begun)
        warn_if_at_end(choice)
        return choice.weight.double(), choice
    if isinstance(weight, (int, float)):
        return torch.full((count,), check_positive("weight", weight), dtype=torch.float64, device=device), None
    try:
        given = torch.as_tensor(weight, dtype=torch.float64, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("weight", type(weight).__name__, "a positive number, an array of them or 'auto'") from None
    if not bool((given > 0).all() & torch.isfinite(given).all()):
        raise InputError(
            "weight", f"an array from {float(given.min()):g} to {float(given.max()):g}", "positive numbers"
        )
    if given.shape in ((), (count,)):
        return given.expand(count).clone(), None
    if not maps or (mapped := batch.as_map(given)) is None:
        accepted = f"one number, ({count},)" + (" or a map of the shape of the image" if maps else "")
        raise InputError("weight", f"an array of shape {tuple(given.shape)}", accepted)
    return mapped, None


def _has_coupled_colours(weight: Any, batch: Batch) -> bool:
    """Return whether there are three channels, and no map of weights with numbers of its own for each."""
    if batch.images.shape[1] != 3 or isinstance(weight, str) or np.ndim(weight) <= 1:
        return batch.images.shape[1] == 3
    mapped = batch.as_map(batch.images.new_zeros(1).expand(np.shape(weight)))
    return mapped is None or mapped.shape[1] == 1


def _noise_level(noise: float, batch: Batch) -> Tensor:
    """Return a given deviation of the noise for each image `(B,)`, in the units of the solve."""
    deviation = check_positive("noise", noise) / batch.units.white / batch.units.unit
    return batch.images.new_full((len(batch.images),), deviation)


def _range_of(batch: Batch) -> tuple[float, float]:
    """Return black and white: 0 and 1 for bytes and for pixels that are mostly between, else the ends of the range."""
    if batch.units.white > 1:
        return 0.0, 1.0
    some = batch.exact.flatten()[:: max(1, batch.exact.numel() // 100_000)]
    inside = float(((some >= -0.1) & (some <= 1.1)).double().mean())
    if inside > 0.99 and float(some.abs().max()) > 0.1:
        return 0.0, 1.0
    low, high = _ends_of(batch.exact)
    return (low, high) if low < high else (low - 1, high + 1)


def _as_operator(
    measurements: Any, forward: Any, adjoint: Callable[[Any], Any] | None, shape: tuple[int, ...]
) -> tuple[LinearOperator, Any]:
    """Return the operator, and the measurements as `(B, C, ...)`."""
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
