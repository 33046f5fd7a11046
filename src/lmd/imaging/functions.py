"""Functions for arrays: `denoise`, `inpaint`, `deblur`, `reconstruct`, `denoise_video`.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmd.core.checks import check_count, check_interval, check_positive
from lmd.errors import InputError
from lmd.guarantees.certify import certify, run
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
from lmd.solvers.base import Solver
from lmd.solvers.result import Certificate
from lmd.zoo.solve import MAX_ITERATIONS as MAX_SOLVE_ITERATIONS
from lmd.zoo.solve import solve

MIN_TOLERANCE_FLOAT32 = 1e-5
"""Relative gaps down to this are proven in single precision; below it everything is in double."""

AUTO = "auto"

MAX_ITERATIONS = 30_000
"""For problems that are not strongly convex: what they do not prove by then would take minutes."""

ROUGH_TOLERANCE, ROUGH_ITERATIONS, MAX_BOXES = 1e-2, 500, 4
"""Of the answer that the box of a reconstruction is put around, and how often the box is widened."""

MAX_CHANGE = 0.2
"""A weight is chosen again where the noise or the contrast of a video has changed by a larger share."""

KERNEL_SUMS = (0.5, 2.0)
"""Kernels of another sum brighten or darken the image, which is hardly meant."""

NOISE_PIXELS = 1 << 20
"""The noise of images that have lost pixels is measured on about so many of them."""

Model = Callable[[Tensor, Tensor, float], Any]
"""From data `(B, C, ...)`, weights `(B,)`, or maps of them, and the unit that both are given in, to the problems."""


@dataclass(frozen=True)
class Info:
    """What is known about an answer."""

    weight: Any
    """Of the regulariser: a number, one per image of a batch `(B,)`, or a map `(B, 1 or C, *size)`; in the precision of
    the solve, where the array was solved for as it is."""

    noise: Any
    """The standard deviation of the noise, found or given; None where nothing asked for it."""

    seconds: float
    """Of the whole call, choosing the weight included."""

    solved: Result = field(repr=False)
    """The result in the units and the precision of the solve."""

    units: Units = field(default_factory=Units)
    """The units of the solve."""

    exact: Callable[[Result], Result] | None = field(default=None, repr=False)
    """From `solved` to `result`, where these differ."""

    shape: tuple[int, ...] = ()
    """Of the answer."""

    choice: Choice | None = field(default=None, repr=False)
    """The weights that were tried and their risks, where the weight was chosen."""

    choice_seconds: float = 0.0
    """The part of the seconds that choosing the weight took."""

    range: float = 1.0
    """From black to white in the units of the result: 1 for bytes and for numbers from 0 to 1, else what the image
    spans."""

    notes: tuple[str, ...] = ()
    """What else there is to know, such as a solver that diverged."""

    @cached_property
    def result(self) -> Result:
        """The whole result, in the array's own units; bytes are numbers from 0 to 1, and not yet rounded.

        It is about the numbers that came in: where these were rounded for the solve, it is evaluated in float64.
        """
        return self.solved if self.exact is None else self.exact(self.solved)

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
        return _relative_bound(self.certificate)

    @property
    def grey_levels(self) -> float:
        """A bound on the distance of x to the minimiser, root mean square, in levels of which the `range` has 255.

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
    tolerance: float | None = 1e-3,
    warm: Info | None = None,
    solver: Solver[Any] | None = None,
    iterations: int | None = None,
    info: bool = False,
) -> Any:
    """Remove the noise of an image, signal or volume: return the minimiser of misfit(x, y) + weight TV(x).

    Args:
        image: y, a numpy array or torch tensor of any dtype and layout: a signal `(N,)`, a grey image `(H, W)`, a
            colour picture `(H, W, 3)`, a volume `(D, H, W)`, a batch `(B, C, ...)`; or a list of those.
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
        tolerance: The relative gap to the minimum to prove; None runs the `solver` for its `iterations`.
        warm: The `Info` of a similar image of the same shape, to start from.
        solver: Any solver; None is chosen by lmd.
        iterations: The largest number of iterations.
        info: Also return an `Info`: certificate, weight, seconds, the whole result.

    Returns:
        An array of the kind, shape and dtype that came in, or, with `info`, that and the `Info`.

    >>> import numpy as np, lmd
    >>> noisy = np.eye(32) + 0.1 * np.random.default_rng(0).normal(size=(32, 32))
    >>> clean, info = lmd.denoise(noisy, info=True)
    >>> clean.shape, clean.dtype, info.relative < 1.001e-3
    ((32, 32), dtype('float64'), True)
    """
    settings = Settings(tolerance, warm, solver, iterations, info)
    if isinstance(image, (list, tuple)):
        options: Any = {"data": data, "order": order, "noise": noise, "isotropic": isotropic, "coupled": coupled}
        options.update(huber=huber, spacing=spacing, channel_axis=channel_axis, **settings.options)
        return _unzip([denoise(one, weight, **options) for one in image], info)
    is_centred = data != "poisson" and order == 1  # counts may not be moved, and slopes are held beside the image
    batch = as_batch("image", image, channel_axis, settings.dtype, is_centred)
    if coupled is None:
        coupled = batch.images.shape[1] == 3 and not _is_map_by_channel(weight, batch)
    model = DenoisingModel(data, order, isotropic, coupled, huber, spacing)
    if data == "poisson" and not (least := float(batch.exact.min())) >= 0:
        raise InputError("image", f"counts down to {least:g} with data='poisson'", "counts of 0 or more")

    def choose() -> Choice:
        return model.choose(batch.images, _noise_level(noise, batch), batch.units)

    chosen = _find_weight(weight, batch, choose, maps=True)
    return settings.answer(model.problem, batch, chosen, MISFITS[data].degree)


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
    """Fill in the lost pixels of an image: return the minimiser of ||Z (x - y)||^2 + weight TV(x).

    Lost pixels may hold anything, NaN too. "auto" is the weight that best predicts a tenth of the kept pixels, left
    out, from the others.

    Args:
        image: An array or tensor, or a list of them, as in `denoise`.
        mask: Z, not 0 where a pixel is kept: of the shape of the image, with or without the axis of channels; for a
            list of images one for all, or a list.
        weight: A positive number, one per image of a batch, or "auto".
        isotropic: Lengths of gradients in place of sums of absolute differences.
        channel_axis: The axis of the channels, None if there is none, or "auto".
        tolerance: The relative gap to the minimum to prove; None runs the `solver` for its `iterations`.
        warm: The `Info` of a similar image of the same shape, to start from.
        solver: Any solver; None is chosen by lmd.
        iterations: The largest number of iterations.
        info: Also return an `Info`: certificate, weight, seconds, the whole result.

    Returns:
        An array of the kind, shape and dtype that came in, or, with `info`, that and the `Info`.

    >>> import numpy as np, lmd
    >>> image = np.outer(np.ones(16), np.arange(16) > 7).astype(float)
    >>> image[5, 3] = np.nan
    >>> bool(abs(lmd.inpaint(image, np.isfinite(image), weight=0.01)[5, 3]) < 0.01)
    True
    """
    settings = Settings(tolerance, warm, solver, iterations, info)
    if isinstance(image, (list, tuple)):
        masks = mask if isinstance(mask, (list, tuple)) else [mask] * len(image)
        if len(masks) != len(image):
            raise InputError("mask", f"{len(masks)} masks", f"one, or one for each of {len(image)} images")
        options: Any = {"isotropic": isotropic, "channel_axis": channel_axis, **settings.options}
        return _unzip([inpaint(y, z, weight, **options) for y, z in zip(image, masks, strict=True)], info)
    filled, kept = fill_lost(image, mask, channel_axis)
    batch = as_batch("image", filled, channel_axis, settings.dtype)
    z = kept.to(batch.images)

    def masked(data: Tensor, weights: Tensor, masks: Tensor) -> TVProblem:
        return TVInpainting(data, masks, weights, isotropic)

    def choose() -> Choice:
        step = 1 + (batch.images[0].numel() // NOISE_PIXELS if batch.images.ndim > 3 else 0)
        noise = at_least(rough_noise(batch.images[:, :, ::step], z[:, :, ::step]), batch.images)
        return choose_by_holdout(masked, batch.images, z, noise, weights_near(noise))

    def model(data: Tensor, weights: Tensor, unit: float) -> TVProblem:
        return masked(data, weights, z.to(data))

    return settings.answer(model, batch, _find_weight(weight, batch, choose), limit=MAX_ITERATIONS)


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
        tolerance: The relative gap to the minimum to prove; None runs the `solver` for its `iterations`.
        warm: The `Info` of a similar image of the same shape, to start from.
        solver: Any solver; None is chosen by lmd.
        iterations: The largest number of iterations.
        info: Also return an `Info`: certificate, weight, seconds, the whole result.

    Returns:
        An array of the kind, shape and dtype that came in, or, with `info`, that and the `Info`.
    """
    settings = Settings(tolerance, warm, solver, iterations, info)
    if isinstance(image, (list, tuple)):
        options: Any = {"noise": noise, "border": border, "box": box, "isotropic": isotropic}
        options.update(channel_axis=channel_axis, **settings.options)
        return _unzip([deblur(one, kernel, weight, **options) for one in image], info)
    batch = as_batch("image", image, channel_axis, settings.dtype, centred=False)
    if batch.images.ndim != 4:
        raise InputError("image", f"shape {tuple(np.shape(image))}", "pictures: two axes beside that of the channels")
    low, high = _range_of(batch) if box is None else check_interval("box", box)
    taps = as_batch("kernel", kernel, None, torch.float64).exact[0, 0]  # all its digits, lest its rank gets lost
    if not KERNEL_SUMS[0] <= (total := float(taps.sum())) <= KERNEL_SUMS[1]:
        given = f"an array that sums to {total:g}"
        raise InputError("kernel", given, "a sum of about 1, such as kernel / kernel.sum()")

    def model(data: Tensor, weights: Tensor, unit: float) -> TVProblem:
        return TVDeblurring(data, taps, weights, border, isotropic, box=(low / unit, high / unit))

    def choose() -> Choice:
        def blur(x: Tensor) -> Tensor:
            return Blur(taps, int(x.shape[-2]), int(x.shape[-1]), border)(x)

        def in_unit(data: Tensor, weights: Tensor) -> TVProblem:
            return model(data, weights, batch.units.unit)

        return choose_behind_blur(in_unit, batch.images, blur, taps.shape, _noise_level(noise, batch))

    return settings.answer(model, batch, _find_weight(weight, batch, choose), limit=MAX_ITERATIONS)


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
    operator, plain = _as_operator(measurements, forward, adjoint, shape)
    settings = Settings(tolerance, warm, info=info)
    own = operator is not forward and plain.dtype == torch.float64  # Ax - y of little noise has few digits in float32
    batch = as_batch("measurements", plain, Axes(0, 1), torch.float64 if own else settings.dtype, centred=False)

    def back(x: Tensor) -> Any:
        found = batch.pixels(x) if operator is forward else batch.pixels(x)[0, 0]
        if isinstance(measurements, Tensor):
            return found.to(measurements.dtype if measurements.dtype.is_floating_point else torch.float32)
        return found.numpy().astype(measurements.dtype if measurements.dtype.kind == "f" else np.float64)

    def model(ends: tuple[float, float]) -> Model:
        def make(data: Tensor, weights: Tensor, unit: float) -> TVProblem:
            in_unit = (ends[0] / unit, ends[1] / unit)
            return TVReconstruction(data, operator, tuple(shape), weights, isotropic, box=in_unit)

        return make

    chosen = _find_weight(weight, batch, None)
    if box is not None:
        return settings.answer(model(check_interval("box", box)), batch, chosen, back=back)
    ends = _rough_box(model, operator, batch, chosen.weight, tuple(shape))
    for _ in range(MAX_BOXES):
        found, about = replace(settings, info=True).answer(model(ends), batch, chosen, back=back)
        if _is_inside(about.result.x, ends):
            return (found, about) if info else found
        ends = _widen(ends, 1.0)
    warn(f"box: none is given, and the image still touches {ends}; pass box=(low, high), where pixels are known to be")
    return (found, about) if info else found


def _rough_box(
    model: Callable[[tuple[float, float]], Model], operator: Any, batch: Batch, weight: Tensor, shape: tuple[int, ...]
) -> tuple[float, float]:
    """Return a box around a rough answer, which is found in a wider one."""
    unit = batch.units.unit
    ends = _widen(_least_squares_range(operator, batch, shape), 1.0)
    problem = model(ends)(batch.images, (weight / unit).to(batch.images), unit)
    x = solve(problem, ROUGH_TOLERANCE, iterations=ROUGH_ITERATIONS).x
    low, high = torch.aminmax(batch.pixels(x))
    return _widen((float(low), float(high)), 0.3)


def _widen(ends: tuple[float, float], share: float) -> tuple[float, float]:
    """Return the ends moved apart, each by this share of their distance."""
    low, high = ends
    width = share * max(high - low, 1e-3 * max(abs(low), abs(high))) or 1.0
    return low - width, high + width


def _is_inside(x: Tensor, ends: tuple[float, float]) -> bool:
    """Return whether an image keeps away from the ends of a box."""
    low, high = (float(end) for end in torch.aminmax(x))
    room = 0.02 * (ends[1] - ends[0])
    return ends[0] + room <= low and high <= ends[1] - room


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
    low, high = torch.aminmax(batch.pixels(x))
    return float(low), float(high)


def denoise_video(frames: Any, weight: Any = AUTO, *, info: bool = False, **options: Any) -> Any:
    """Remove the noise of frames, one after the other.

    An array `(T, ...)` gives an array, a list a list, and an iterator is answered by an iterator, frame by frame. An
    automatic weight is kept from frame to frame and chosen again where the noise or the contrast has changed by more
    than a fifth, as in a video that fades in. Each frame starts from the dual point of the one before, where that is
    better than a cold start.

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


def _noise_and_contrast(frame: Any, options: dict[str, Any]) -> Tensor:
    """Return the noise and the contrast of each image of a frame `(2, B)`."""
    batch = as_batch("frames", frame, options.get("channel_axis", AUTO))
    scale = batch.units.unit * batch.units.white
    return scale * torch.stack([measure(batch.images).level, batch.images.flatten(1).std(dim=1, correction=0)])


class ChosenWeight(NamedTuple):
    """The weight, given or chosen: `(B,)`, or a map, float64 and in the units of the pixels."""

    weight: Tensor
    choice: Choice | None = None
    seconds: float = 0.0


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
    def options(self) -> dict[str, Any]:
        """The keywords for each image of a list."""
        return {**vars(self), "info": True}

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
        chosen: ChosenWeight,
        degree: int = 2,
        limit: int = MAX_SOLVE_ITERATIONS,
        back: Callable[[Tensor], Any] | None = None,
    ) -> Any:
        """Solve for a batch and return the answer for its array, with its `Info` where that is asked for.

        Args:
            model: What to solve.
            batch: The data.
            chosen: The weight.
            degree: Of the model in the unit of the data.
            limit: The largest number of iterations, where none is given.
            back: From the images of the answer to its array; None is that of the batch.
        """
        unit, weight = batch.units.unit, chosen.weight
        problem = model(batch.images, (weight / unit).to(batch.images), unit)
        dual_unit = unit ** (degree - 1)
        before = None if self.warm is None else _warm_start(self.warm, problem, batch.units, dual_unit)
        notes: tuple[str, ...] = ()
        if self.tolerance is None and self.solver is not None:
            result = run(self.solver, problem, iterations=self.iterations, record=False)
        else:
            tolerance, most = self.tolerance or 0.0, self.iterations or limit
            result = solve(problem, tolerance, solver=self.solver, warm=before, iterations=most)
        if self.iterations is not None or self.solver is not None:
            result, notes = _no_worse_than_start(result)
        elif set(result.status) != {Status.TOLERANCE_REACHED}:
            _warn_of_tolerance(result, self.tolerance or 0.0)
        answer = (back or batch.back)(problem.image(result.x))
        if not self.info:
            return answer
        is_exact = batch.is_exact
        if is_exact:
            weight = weight.to(batch.images).double()  # as it was rounded: this is what the certificate holds for

        def exact(result: Result) -> Result:
            return _in_pixels(result, model(batch.exact.double(), weight, 1.0), batch, dual_unit, self.tolerance)

        low, high = _range_of(batch)
        choice, seconds = chosen.choice, result.seconds + chosen.seconds
        noise = None if choice is None else _one_or_all(choice.noise)
        shape, exactly = tuple(answer.shape), None if is_exact else exact
        details = (shape, choice, chosen.seconds, high - low, notes)
        return answer, Info(_one_or_all(weight), noise, seconds, result, batch.units, exactly, *details)


def _in_pixels(result: Result, problem: Any, batch: Batch, dual_unit: float, tolerance: float | None) -> Result:
    """Return a result about the pixels that came in, in float64: they may have been rounded for the solve."""
    x, start = batch.pixels(result.x), problem.start()
    dual = None if result.dual is None else result.dual.double() * dual_unit
    history = replace(result.history, values=result.history.values.double() * dual_unit * batch.units.unit)
    found = replace(
        result,
        x=x,
        values=problem.value(x),
        dual=dual,
        problem=problem,
        start=start,
        certifier=certify,
        recorded=history,
    )
    if tolerance is None:
        return found
    proven, words = found.certificate, (Status.STALLED, Status.TOLERANCE_REACHED)
    assert proven is not None
    pairs = zip(result.status, (relative_gap(proven.value, proven.bound) <= tolerance).tolist(), strict=True)
    return replace(found, status=tuple(words[is_near] if status in words else status for status, is_near in pairs))


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
    count, value = int(result.iterations[first]), float(result.values[first])
    note = f"the start is kept: after {count} iterations the value was {value:.6g}, above it"
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


def _find_weight(weight: Any, batch: Batch, choose: Callable[[], Choice] | None, maps: bool = False) -> ChosenWeight:
    """Return one weight per image, or a map."""
    count, device = len(batch.images), batch.images.device
    if isinstance(weight, str):
        if weight != AUTO or choose is None:
            raise InputError("weight", repr(weight), "a positive number" + (" or 'auto'" if choose else ""))
        begun = time.perf_counter()
        choice = choose().times(batch.units.unit)
        warn_if_at_end(choice)
        return ChosenWeight(choice.weight.double(), choice, time.perf_counter() - begun)
    if isinstance(weight, (int, float)):
        return ChosenWeight(torch.full((count,), check_positive("weight", weight), dtype=torch.float64, device=device))
    try:
        found = torch.as_tensor(weight, dtype=torch.float64, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("weight", type(weight).__name__, "a positive number, an array of them or 'auto'") from None
    if not bool((found > 0).all() & torch.isfinite(found).all()):
        given = f"an array from {float(found.min()):g} to {float(found.max()):g}"
        raise InputError("weight", given, "positive numbers")
    if found.shape in ((), (count,)):
        return ChosenWeight(found.expand(count).clone())
    if not maps or (mapped := batch.as_map(found)) is None:
        accepted = f"one number, ({count},)" + (" or a map of the shape of the image" if maps else "")
        raise InputError("weight", f"an array of shape {tuple(found.shape)}", accepted)
    return ChosenWeight(mapped)


def _is_map_by_channel(weight: Any, batch: Batch) -> bool:
    """Return whether a weight is a map with numbers of its own for each channel."""
    if isinstance(weight, (str, int, float)) or np.ndim(weight) <= 1:
        return False
    mapped = batch.as_map(batch.images.new_zeros(1).expand(np.shape(weight)))
    return mapped is not None and mapped.shape[1] > 1


def _noise_level(noise: float | None, batch: Batch) -> Tensor | None:
    """Return the deviation of the noise of each image `(B,)`, in the units of the solve, where it is given."""
    if noise is None:
        return None
    deviation = check_positive("noise", noise) / batch.units.white / batch.units.unit
    return batch.images.new_full((len(batch.images),), deviation)


def _range_of(batch: Batch) -> tuple[float, float]:
    """Return black and white: 0 and 1 for bytes and for pixels that are mostly between, else the ends of the range."""
    some = batch.exact.flatten()[:: max(1, batch.exact.numel() // 100_000)]
    inside = float(((some >= -0.1) & (some <= 1.1)).double().mean())
    if batch.units.white > 1 or (inside > 0.99 and float(some.abs().max()) > 0.1):
        return 0.0, 1.0
    low, high = (float(end) for end in torch.aminmax(batch.exact))
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


def _unzip(pairs: list[tuple[Any, Info]], info: bool) -> Any:
    """Return a list of answers, with `info` also a list of each `Info`."""
    answers, infos = [answer for answer, _ in pairs], [each for _, each in pairs]
    return (answers, infos) if info else answers
