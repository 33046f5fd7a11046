"""Functions for arrays: `denoise`, `inpaint`, `deblur`, `reconstruct`, `denoise_video`.

The weight is the factor of TV in ||x - y||^2 + weight TV(x); pictures of bytes are scaled to [0, 1]. Weights for
Poisson counts and absolute distances have no unit. Other libraries use other factors:

| library | parameter for the same answer | TV |
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
from lmd.imaging.arrays import Axes, Axis, Batch, Units, as_batch, fill_lost, warn
from lmd.imaging.models import (
    MISFITS,
    Choice,
    DenoisingModel,
    choose_behind_blur,
    choose_by_holdout,
    weights_near,
)
from lmd.imaging.noise import at_least, measure, rough_noise
from lmd.operators import Blur, LinearOperator
from lmd.operators.base import conjugate_gradients
from lmd.operators.functions import FromFunctions
from lmd.problems import TVDeblurring, TVInpainting, TVModel
from lmd.problems.duality import relative_gap
from lmd.solvers import Result, Status
from lmd.solvers.base import Solver, check_solver, in_full_precision
from lmd.solvers.result import Certificate, gap_certificate
from lmd.solvers.wrappers import NoWorseThanStart
from lmd.terms import Squares
from lmd.zoo.solve import MAX_ITERATIONS as MAX_SOLVE_ITERATIONS
from lmd.zoo.solve import solve

AUTO = "auto"
MIN_TOLERANCE_FLOAT32 = 1e-5  # relative gaps down to this are proven in single precision, smaller ones in double
MAX_ITERATIONS = 30_000  # for problems without strong convexity; more iterations would take minutes
ROUGH_TOLERANCE, ROUGH_ITERATIONS = 1e-2, 500  # for the rough answer that determines the box of a reconstruction
ROUGH_STEPS = 10  # conjugate gradient steps on ||Ax - y||^2; the range of their result determines the first box
MAX_BOXES = 4  # the maximum number of boxes that a reconstruction tries
MAX_CHANGE = 0.2  # the weight of a video is chosen again if noise or contrast change by a larger share
KERNEL_SUMS = (0.5, 2.0)  # a kernel with a sum outside this range is probably a mistake: it brightens or darkens
NOISE_PIXELS = 1 << 20  # the approximate number of pixels on which the noise of images with lost pixels is measured

Model = Callable[[Tensor, Tensor, float], Any]
"""A function of data `(B, C, ...)`, weights `(B,)` or maps of weights, and their unit; it returns the problems."""


@dataclass(frozen=True)
class Info:
    """Information about an answer.

    Args:
        weight: The weight of the regulariser: a number, one per image of a batch `(B,)`, or a map
            `(B, 1 or C, *size)`.
        solved: The result in the units and the precision of the solve.
        units: The units of the solve.
        exact: The function that converts `solved` to `result` if they differ.
        value_scale: The factor from values of `solved` to values of F, if `solved` is the same problem in other units
            and without rounding; otherwise None.
        choice: The weights that were tried and their risks, if the weight was chosen automatically.
        range: White minus black in the units of the result: 1 for bytes and for numbers from 0 to 1, otherwise the
            range of the image.
    """

    weight: Any
    solved: Result = field(repr=False)
    units: Units
    exact: Callable[[Result], Result] | None = field(default=None, repr=False)
    value_scale: float | None = None
    choice: Choice | None = field(default=None, repr=False)
    range: float = 1.0

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
        proven = (self.result if self.value_scale is None else self.solved).certificate
        if proven is None:
            raise InputError("result", "a result without a certificate", "one of lmd.solve")
        if self.value_scale is None:
            return proven
        value, gap = self.value_scale * proven.value, self.value_scale * proven.bound
        return gap_certificate(value.tolist(), gap.tolist(), value)

    @cached_property
    def start_value(self) -> float:
        """The objective at the input array; for a batch, the largest value."""
        result = self.result if self.value_scale is None else self.solved
        return (self.value_scale or 1.0) * float(result.problem.value(result.start).max())

    @cached_property
    def absolute(self) -> float:
        """The largest bound of all images."""
        return float(self.certificate.bound.max())

    @cached_property
    def relative(self) -> float:
        """The largest relative bound of all images; infinite if a minimum may be 0."""
        return _relative_bound(self.certificate)

    @cached_property
    def grey_levels(self) -> float:
        """A bound on the root mean square distance of x to the minimiser, in units of `range` / 255.

        It follows from F(x) - min F >= mu/2 ||x - x*||^2 and is infinite if F is not strongly convex.
        """
        is_scaled = self.value_scale is not None
        result, scale = (self.solved, self.units.scale) if is_scaled else (self.result, 1.0)
        curvature = result.problem.strong_convexity
        if curvature is None:
            return math.inf
        bound = self.certificate.bound / (self.value_scale or 1.0)
        return 255 * scale / self.range * float((2 * bound / (curvature * result.x[0].numel())).max().sqrt())

    @property
    def proven(self) -> str:
        """What is proven, in words."""
        if not math.isfinite(self.absolute) or bool(
            (self.certificate.bound > self.certificate.value.clamp(min=0)).any()
        ):
            return "nothing of use is proven; fgp and pdhg prove how good their answers are"  # F >= 0 is known anyway
        percent, levels = 100 * self.relative, self.grey_levels
        near = f"at most {self.absolute:.2g} above"
        if math.isfinite(percent):
            near = f"within {f'{percent:.0f}' if percent >= 10 else f'{percent:.2g}'}% of"
        apart = "" if math.isinf(levels) else f", {levels:.2g} of 255 grey levels from the minimiser (root mean square)"
        return f"{near} the minimum{apart}"

    def __str__(self) -> str:
        each = self.weight.flatten().tolist() if isinstance(self.weight, Tensor) else [self.weight]
        weights = sorted({float(f"{number:.3g}") for number in each})
        weight = f"{weights[0]:g}" if len(weights) == 1 else f"{weights[0]:g} to {weights[-1]:g}"
        choosing = f" ({self.choice_seconds:.2g} s to choose the weight)" if self.choice is not None else ""
        return f"weight {weight}, {self.proven}, {self.seconds:.2g} s{choosing}"


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
            picture `(H, W, 3)`, a volume `(D, H, W)`, a batch `(B, C, ...)`, or a list of such arrays.
        weight: A positive number, one per image of a batch, "auto", or a map: an array with the shape of the image,
            with or without the channel axis, or with an additional first axis for differences along each spatial axis.
            "auto" minimises Stein's unbiased risk estimate or, for absolute distances, the error on held-out pixels.
        data: The misfit: "squares" ||x - y||^2, "poisson" for counts y >= 0, "absolute" sum |x - y| for impulses.
        order: 1 for total variation, 2 for total generalised variation, which does not turn slopes into stairs.
        noise: The standard deviation of the noise (0 to 255 for bytes), used by "auto" with squares; None estimates it.
        isotropic: Sum the lengths of gradients instead of absolute differences.
        coupled: Use one gradient length for all channels; None does so for three, unless `weight` has a map for each.
        huber: Penalise gradients up to this length by their squares, which avoids staircases; for bytes, 1 is white.
        spacing: The distance of pixels along each axis, such as the voxel size of a scanner.
        channel_axis: The axis of the channels, None if there is none, or "auto": see `lmd.imaging.arrays.as_batch`.
        tolerance: The relative gap to be proven; None runs the `solver` for its `iterations`.
        warm: The `Info` of a similar image of the same shape, as a warm start.
        solver: Any solver; None lets lmd pick one.
        iterations: The maximum number of iterations.
        info: Whether to also return an `Info` with certificate, weight, seconds and the full result.

    Returns:
        An array of the same kind, shape and dtype as `image`; with `info`, the pair (array, `Info`).

    >>> import numpy as np, lmd
    >>> clean, info = lmd.denoise(np.eye(32) + 0.1 * np.random.default_rng(0).normal(size=(32, 32)), info=True)
    >>> clean.shape, clean.dtype, info.relative < 1.001e-3
    ((32, 32), dtype('float64'), True)
    """
    if isinstance(image, (list, tuple)):
        return _for_each(denoise, **locals())
    settings, is_centred = Settings(tolerance, warm, solver, iterations, info), data != "poisson" and order == 1
    batch = as_batch("image", image, channel_axis, settings.dtype, is_centred)  # counts and slopes may not be shifted
    coupled = _has_coupled_colours(weight, batch) if coupled is None else coupled
    model = DenoisingModel(data, order, isotropic, coupled, huber, spacing)
    if data == "poisson" and not (least := float(batch.exact.min())) >= 0:
        raise InputError("image", f"counts down to {least:g} with data='poisson'", "counts of 0 or more")
    level = None if noise is None else _noise_level(noise, batch)
    choose = partial(model.choose, batch.images, level, batch.units)
    weights, degree = _find_weight(weight, batch, choose, True), MISFITS[data].degree
    return settings.answer(model.problem, batch, *weights, degree, scales=huber == 0)


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

    Missing pixels may hold any numbers, including NaN. "auto" chooses the weight that best predicts a random tenth of
    the known pixels from the others.

    Args:
        image: An array or tensor, or a list of them, as in `denoise`.
        mask: Z, an array that is nonzero at known pixels, with the shape of the image, with or without the channel
            axis; for a list of images, one mask for all or a list of masks.
        weight: A positive number, one per image of a batch, or "auto".
        isotropic, channel_axis, tolerance, warm, solver, iterations, info: As in `denoise`.

    Returns:
        An array of the same kind, shape and dtype as `image`; with `info`, the pair (array, `Info`).

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

    def model(data: Tensor, weights: Tensor, unit: float = 1.0, kept: Tensor = z) -> TVModel:
        return TVInpainting(data, kept.to(data), weights, isotropic)

    def choose() -> Choice:
        step = 1 + (batch.images[0].numel() // NOISE_PIXELS if batch.images.ndim > 3 else 0)
        level = at_least(rough_noise(batch.images[:, :, ::step], z[:, :, ::step]), batch.images)
        return choose_by_holdout(model, batch.images, z, level, weights_near(level))

    return settings.answer(model, batch, *_find_weight(weight, batch, choose), limit=MAX_ITERATIONS, scales=True)


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
        image: A picture, a batch or a list of pictures, as in `denoise`, each with two spatial axes.
        kernel: k `(h, w)`, an array or tensor that sums to about 1.
        weight: A positive number, one per image of a batch, or "auto".
        border: How the image continues outside: "replicate" or "circular".
        box: (low, high), the range of pixels. The default is [0, 1] for bytes, which are scaled to [0, 1], and for
            numbers that are mostly in [0, 1]; otherwise it is the range of the image.
        noise, isotropic, channel_axis, tolerance, warm, solver, iterations, info: As in `denoise`.

    Returns:
        An array of the same kind, shape and dtype as `image`; with `info`, the pair (array, `Info`).
    """
    if isinstance(image, (list, tuple)):
        return _for_each(deblur, **locals())
    settings = Settings(tolerance, warm, solver, iterations, info)
    batch = as_batch("image", image, channel_axis, settings.dtype, centred=False)
    if batch.images.ndim != 4:
        raise InputError("image", f"shape {tuple(np.shape(image))}", "pictures: two axes beside that of the channels")
    low, high = _range_of(batch) if box is None else check_interval("box", box)
    taps = as_batch("kernel", kernel, None, torch.float64).exact[0, 0]  # rounding to float32 would hide the rank of k
    if not KERNEL_SUMS[0] <= (total := float(taps.sum())) <= KERNEL_SUMS[1]:
        given = f"an array that sums to {total:g}"
        raise InputError("kernel", given, "a sum of about 1, such as kernel / kernel.sum()")

    def model(data: Tensor, weights: Tensor, unit: float = batch.units.scale) -> TVModel:
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

    A is either a function from images of this shape to arrays like `measurements`, given with its `adjoint`, or an
    `lmd.operators.LinearOperator` on `(B, C, *shape)`, for measurements `(B, C, ...)`. Functions may compute in
    float32, and the adjoint may be slightly inexact; the proven bound accounts for this.

    The proof needs a box. The default box is wide and surrounds a rough answer. It is widened if the image comes close
    to its ends, so that the image is also the minimiser without a box. A known box gives a better answer faster.

    Args:
        measurements: y, an array or tensor.
        forward: A, a function or an operator.
        adjoint: A', if A is a function.
        shape: The shape of the image.
        weight: A positive number, or one per image of a batch.
        box: (low, high), the range of pixels, such as (0, 1); the constraint is part of the problem.
        isotropic, tolerance, warm, info: As in `denoise`.

    Returns:
        The image, of the same kind and floating-point dtype as the measurements; with `info`, the pair (image, `Info`).

    >>> import numpy as np, lmd
    >>> A = np.random.default_rng(0).normal(size=(30, 64)) / 8
    >>> x = np.repeat([0.2, 0.8], 32)
    >>> found = lmd.reconstruct(A @ x, lambda x: A @ x, lambda z: A.T @ z, shape=(64,), weight=1e-3)
    >>> bool(np.abs(found - x).max() < 0.05)
    True
    """
    operator, plain = _as_operator(measurements, forward, adjoint, shape)
    settings, is_function = Settings(tolerance, warm, info=info), operator is not forward
    is_double = is_function and plain.dtype == torch.float64  # in float32, Ax - y may have few digits
    batch = as_batch("measurements", plain, Axes(0, 1), torch.float64 if is_double else settings.dtype, centred=False)
    weights, _ = _find_weight(weight, batch, None)

    def solve_in(ends: tuple[float, float], settings: Settings) -> Any:
        def model(data: Tensor, weights: Tensor, unit: float) -> TVModel:
            form: dict[str, Any] = {"isotropic": isotropic, "forward": operator, "size": tuple(shape)}
            return TVModel(Squares(data), weights, box=(ends[0] / unit, ends[1] / unit), **form)

        return settings.answer(model, batch, weights, back=partial(_image_like, measurements, batch, not is_function))

    if box is not None:
        return solve_in(check_interval("box", box), settings)
    image, about = _widen_box(solve_in, settings, batch, operator)
    return (image, about) if info else image


def _widen_box(
    solve_in: Callable[[tuple[float, float], Settings], Any],
    settings: Settings,
    batch: Batch,
    operator: LinearOperator,
) -> tuple[Any, Info]:
    """Return the image and its `Info`, solved in a box that is wide enough not to change the minimiser."""
    start = conjugate_gradients(
        lambda x: operator.adjoint(operator(x)), operator.adjoint(batch.images), 0.0, ROUGH_STEPS
    )
    rough = replace(settings, tolerance=ROUGH_TOLERANCE, iterations=ROUGH_ITERATIONS, warm=None, info=True)
    first = solve_in(_widen(_ends_of(batch.pixels(start)), 1.0), rough)[1]
    ends = _widen(_ends_of(batch.pixels(first.solved.x)), 0.3)
    for _ in range(MAX_BOXES):
        image, about = solve_in(ends, replace(settings, info=True))
        (low, high), room = _ends_of(about.result.x), 0.02 * (ends[1] - ends[0])
        if ends[0] + room <= low and high <= ends[1] - room:
            return image, about
        ends = _widen(ends, 1.0)
    known = "pass box=(low, high), where pixels are known to be"
    warn(f"box: none is given, and the image still touches {ends}; {known}")
    return image, about


def _image_like(measurements: Any, batch: Batch, is_batch: bool, x: Tensor) -> Any:
    """Return images as an array of the kind and floating-point dtype of the measurements."""
    image = batch.pixels(x) if is_batch else batch.pixels(x)[0, 0]
    if isinstance(measurements, Tensor):
        return image.to(measurements.dtype if measurements.dtype.is_floating_point else torch.float32)
    return image.numpy().astype(measurements.dtype if measurements.dtype.kind == "f" else np.float64)


def _ends_of(x: Tensor) -> tuple[float, float]:
    """Return the least and the largest number."""
    low, high = torch.aminmax(x)
    return float(low), float(high)


def _widen(ends: tuple[float, float], share: float) -> tuple[float, float]:
    """Return the interval `ends` with each end moved outwards by `share` times its length."""
    low, high = ends
    width = share * max(high - low, 1e-3 * max(abs(low), abs(high))) or 1.0
    return low - width, high + width


def denoise_video(frames: Any, weight: Any = AUTO, *, info: bool = False, **options: Any) -> Any:
    """Remove the noise of the frames of a video, one after the other.

    An automatic weight is kept from frame to frame and chosen again if the noise or the contrast has changed by more
    than a fifth, as in a video that fades in. Each frame starts from the dual point of the previous frame if this is
    better than a cold start.

    Args:
        frames: An array `(T, ...)`, a list or an iterator of frames.
        weight: As in `denoise`; "auto" follows the frames.
        info: Whether to also return an `Info` for each frame.
        **options: The other options of `denoise`.

    Returns:
        An array for an array, a list for a list, and an iterator for an iterator. With `info`, the pair of the frames
        and a list of `Info`; for an iterator, an iterator of pairs (frame, `Info`).

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
    return batch.units.unit * torch.stack(
        [measure(batch.images).level, batch.images.flatten(1).std(dim=1, correction=0)]
    )


def _for_each(function: Callable[..., Any], image: Sequence[Any], info: bool, **options: Any) -> Any:
    """Call a function for each image of a list; if `mask` is a list, each image gets its own mask."""
    each, masks = [options] * len(image), options.get("mask")
    if isinstance(masks, (list, tuple)):
        if len(masks) != len(image):
            raise InputError("mask", f"{len(masks)} masks", f"one, or one for each of {len(image)} images")
        each = [{**options, "mask": mask} for mask in masks]
    return _unzip([function(one, info=True, **own) for one, own in zip(image, each, strict=True)], info)


def _unzip(pairs: list[tuple[Any, Info]], info: bool) -> Any:
    """Return the list of answers; with `info`, also the list of their `Info`."""
    answers, infos = [answer for answer, _ in pairs], [each for _, each in pairs]
    return (answers, infos) if info else answers


@dataclass(frozen=True)
class Settings:
    """The keywords that all functions share; they say how to solve a problem and what to return."""

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
        """The dtype of the solve: that of the solver's parameters, or chosen by the tolerance if it has none."""
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
        scales: bool = False,
    ) -> Any:
        """Solve for a batch and return the answer for its array, with `info` also the `Info`.

        The `weight` is in the units of the pixels. If the data are multiplied by t, the values of the model are
        multiplied by t^`degree`. `limit` is the default of `iterations`. `back` converts images to the array of the
        answer. `scales` is true if only data and weight have a unit: no box, no Huber length.
        """
        unit, dual_unit = batch.units.scale, batch.units.scale ** (degree - 1)
        problem = model(batch.images, (weight / unit).to(batch.images), unit)
        solver = self.solver
        if solver is not None:
            check_solver(solver, problem)
            solver = NoWorseThanStart(solver)
        if self.tolerance is None and solver is not None:
            result = run(solver, problem, iterations=self.iterations, record=False)
        else:
            warm = None if self.warm is None else _warm_start(self.warm, problem, batch.units, dual_unit)
            tolerance, most = self.tolerance or 0.0, self.iterations or limit
            result = solve(problem, tolerance, solver=solver, warm=warm, iterations=most)
            if solver is None and self.iterations is None and set(result.status) != {Status.TOLERANCE_REACHED}:
                _warn_of_tolerance(result, tolerance)
        answer = (back or batch.back)(problem.image(result.x))
        if not self.info:
            return answer
        if batch.is_exact:
            weight = (weight / unit).to(batch.images).double() * unit  # the certificate holds for the rounded weight

        def exact(result: Result) -> Result:
            return _in_pixels(result, model(batch.exact.double(), weight, 1.0), batch, dual_unit, self.tolerance)

        (low, high), is_plain = _range_of(batch), batch.is_exact and batch.units.is_plain
        is_scaled = scales and batch.is_exact and not is_plain and self.solver is None
        same = (None if is_plain else exact), (dual_unit * unit if is_scaled else None)
        return answer, Info(_one_or_all(weight), result, batch.units, *same, choice, high - low)


def _in_pixels(result: Result, problem: Any, batch: Batch, dual_unit: float, tolerance: float | None) -> Result:
    """Return the result in float64 for the original pixels, which may have been rounded for the solve."""
    x, dual = batch.pixels(result.x), None if result.dual is None else result.dual.double() * dual_unit
    history = result.recorded
    if history is not None:
        history = replace(history, values=history.values.double() * dual_unit * batch.units.scale)
    same: dict[str, Any] = {"problem": problem, "start": problem.start(), "recorded": history}
    if tolerance is None or dual is None:
        return replace(result, x=x, values=problem.value(x), dual=dual, certifier=certify, **same)
    values, gaps = problem.certified_gap(x, dual)
    proven = gap_certificate(values.tolist(), gaps.tolist(), values)
    near, words = relative_gap(proven.value, proven.bound) <= tolerance, (Status.STALLED, Status.TOLERANCE_REACHED)
    pairs = zip(result.status, near.tolist(), strict=True)
    status = tuple([words[is_near] if status in words else status for status, is_near in pairs])
    return replace(result, x=x, status=status, values=values, dual=dual, certifier=lambda _: proven, **same)


def _relative_bound(certificate: Certificate) -> float:
    """Return the largest bound relative to the minimum; infinite if a minimum may be 0."""
    bound, lower = certificate.bound, certificate.lower_bound
    return float(torch.where(bound == 0, 0.0, bound / lower.clamp(min=0)).max())


def _warn_of_tolerance(result: Result, tolerance: float) -> None:
    """Warn if the proven gap is larger than the tolerance."""
    proven = math.inf if result.certificate is None else _relative_bound(result.certificate)
    if not proven <= 1.001 * tolerance:
        why = next(status.name for status in result.status if status is not Status.TOLERANCE_REACHED)
        what = f"{proven:.2g}" if math.isfinite(proven) else "nothing relative to the minimum"
        warn(f"tolerance: {tolerance:g} was asked for, {what} is proven ({why}); pass a larger one")


def _one_or_all(each: Tensor) -> float | Tensor:
    """Return a float if there is one image, otherwise the tensor `(B,)`."""
    return float(each[0]) if each.numel() == 1 else each


def _warm_start(warm: Any, problem: TVModel, units: Units, dual_unit: float) -> Result:
    """Return the result in an `Info` as a warm start, in the units of the problem."""
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


def _find_weight(
    weight: Any, batch: Batch, choose: Callable[[], Choice] | None, maps: bool = False
) -> tuple[Tensor, Choice | None]:
    """Return a weight per image or a map, in float64 and the units of the pixels; and its `Choice`, if automatic."""
    count, device = len(batch.images), batch.images.device
    if isinstance(weight, str):
        if weight != AUTO or choose is None:
            raise InputError("weight", repr(weight), "a positive number" + (" or 'auto'" if choose else ""))
        begun = time.perf_counter()
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            choice = choose().times(batch.units.scale)
        if bool(choice.at_end.any()):
            at = float(choice.weight[choice.at_end][0])
            warn(f"weight: {at:.3g}, at the end of those that were tried, fits best; try others beyond it")
        return choice.weight.double(), replace(choice, seconds=time.perf_counter() - begun)
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
    """Return whether there are three channels and the weight, if it is a map, is the same for all of them."""
    if batch.images.shape[1] != 3 or isinstance(weight, str) or np.ndim(weight) <= 1:
        return batch.images.shape[1] == 3
    mapped = batch.as_map(batch.images.new_zeros(1).expand(np.shape(weight)))
    return mapped is None or mapped.shape[1] == 1


def _noise_level(noise: float, batch: Batch) -> Tensor:
    """Return the given standard deviation of the noise as `(B,)`, in the units of the solve."""
    deviation = check_positive("noise", noise) / batch.units.unit
    return batch.images.new_full((len(batch.images),), deviation)


def _range_of(batch: Batch) -> tuple[float, float]:
    """Return black and white: 0 and 1 for bytes and for pixels mostly in [0, 1], otherwise the range of the pixels."""
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
