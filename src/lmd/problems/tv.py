"""Total variation denoising, inpainting and reconstruction: sections 5.2 and 5.3 of the paper."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from lmd.core.checks import check_batch, check_finite, check_interval, check_positive, check_same_kind, shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator
from lmd.operators.blur import Blur
from lmd.operators.differences import Differences
from lmd.operators.projections import ParallelBeam
from lmd.operators.stack import Stack
from lmd.problems.composite import Composite
from lmd.problems.grids import average_squares, refine_dual
from lmd.terms import L1, Box, GroupNorm, Squares, Term
from lmd.terms.base import Scale
from lmd.terms.squares import MaskedSquares

RANGE_MARGIN = 100.0  # room that squares of data leave below the largest number of their dtype, and above the smallest


class TVProblem(Composite):
    r"""F(x) = s (data term + weight TV(x)), s = 1 or, in the `halved` form, 1/2; x `(B, C, *size)`.

    Signals, images or volumes: `size` has one, two or three axes. With z_a the difference of a pixel to the next one
    along axis a, over h_a,

    anisotropic, as in the paper:  TV(x) = \sum |z_1| + |z_2| + ...
    isotropic:                     TV(x) = \sum (z_1^2 + z_2^2 + ...)^{1/2}

    over all pixels and channels, differences across the border left out; channels do not mix in either form. h is the
    `spacing`, a number or one for each axis, 1 by default. With K these differences and b = s weight, the dual points
    p `(B, C, axes, *size)` are bounded by |p| <= b, entry by entry in the anisotropic form and in the length of those
    of each pixel in the isotropic one.

    `weight` is one number or one per image `(B,)`.

    Args:
        noisy: y, the data `(B, C, ...)`.
        weight: A positive number, or one per image `(B,)`.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        halved: Half of the objective, s = 1/2; the minimiser is the same.
    """

    batched: ClassVar[tuple[str, ...]] = ("noisy", "weight")

    def __init__(self, noisy: Tensor, weight: float | Tensor, isotropic: bool, halved: bool) -> None:
        self.noisy = check_batch("noisy", noisy)
        self.weight = check_weight(weight, noisy)
        self.isotropic, self.halved = bool(isotropic), bool(halved)
        self.scale = 0.5 if halved else 1.0  # s of the formula

    @property
    def bound(self) -> Scale:
        """b = s weight, which bounds the dual points: `(B,)`, or a number where the weights are one, which is faster.

        Where the derivative by the weight is recorded, it is made of the weight itself.
        """
        first = self.weight.detach()[0]
        alike = not self.weight.requires_grad and bool((self.weight == first).all())
        return self.scale * (float(first) if alike else self.weight)

    def image(self, x: Tensor) -> Tensor:
        """The image of a point, which is nothing else."""
        return x

    def _tv_term(self, size: Sequence[int], spacing: float | Sequence[float] | None) -> tuple[Term, Differences]:
        """s weight TV as a term and the differences it stands behind."""
        return (GroupNorm(self.bound, axes=2) if self.isotropic else L1(self.bound)), Differences(size, spacing)


class TVDenoising(TVProblem):
    """F(x) = ||x - y||^2 + weight TV(x), or half of it; y = `noisy` `(B, C, *size)`. See `TVProblem` for TV.

    Args:
        noisy: y `(B, C, *size)`.
        weight: A positive number, or one per image `(B,)`.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        halved: Whether to halve the objective, which keeps the minimiser.
        spacing: The distance of pixels: a number, or one for each axis; None is 1.

    >>> import torch
    >>> problem = TVDenoising(torch.tensor([[[[0.0, 1.0]]]]), weight=0.5)
    >>> x, p = torch.tensor([[[[0.25, 0.75]]]]), torch.tensor([[[[[0.0, 0.0]], [[0.5, 0.0]]]]])
    >>> problem.value(x), problem.gap(x, p)  # the gap proves that x is the minimiser
    (tensor([0.3750]), tensor([0.]))
    """

    def __init__(
        self,
        noisy: Tensor,
        weight: float | Tensor = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        spacing: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(noisy, weight, isotropic, halved)
        size = check_grid(noisy)
        check_scale("noisy", noisy, self.weight)
        self.compose(Squares(noisy, self.scale), self._tv_term(size, spacing), start=noisy)

    def coarser(self) -> TVDenoising | None:
        """The same on squares of 2 x 2 pixels, or cubes (`lmd.problems.grids`); None for signals and few pixels."""
        means = average_squares(self.noisy)
        if means is None:
            return None
        return TVDenoising(means, self.weight / 2, self.isotropic, self.halved, self.differences.spacing)

    def from_coarser(self, dual: Tensor) -> Tensor:
        """The dual points `(B, C, axes, *size)` to begin with where those of `coarser` are known."""
        fine = refine_dual(dual, *self.noisy.shape[2:])
        return self.project_dual(fine, out=fine)


class TVInpainting(TVProblem):
    r"""F(x) = ||Z (x - y)||^2 + weight TV(x), or half of it; y = `noisy` `(B, C, *size)`. See `TVProblem` for TV.

    Z is the `mask`, 1 where a pixel is kept and 0 where it is lost: `size`, `(B, 1, *size)` or `(B, C, *size)`, with
    at least one kept pixel in each image and channel. What y holds at lost pixels does not matter to F.

    *The box.* Let [low, high] be the range of y over the kept pixels of one image and channel. Clipping x to it moves
    no kept pixel away from its y, which is inside, and lengthens no difference, as |clip(a) - clip(b)| <= |a - b|; so
    F(clip(x)) <= F(x), in both forms of TV. Hence the minimum of F over the box is its minimum, and the box may be
    made part of the data term. (Every minimiser is in the box: if x is outside somewhere, either a kept pixel is, and
    clipping brings it nearer to y, or some step between neighbours from a kept pixel to one outside gets shorter;
    both lower F.) Without the box the dual would be -infinity unless K'p = 0 at every lost pixel, which no iterate
    fulfils. With it the tilted minimum is finite for every p: a lost pixel goes to the end of the box that u sends it
    to. So `gap` is finite and holds for every x, inside the box or not, and every p; `data_prox` clips.

    Args:
        noisy: y `(B, C, *size)`.
        mask: 1 where a pixel is kept, 0 where it is lost: `size`, `(B, 1, *size)` or `(B, C, *size)`.
        weight: A positive number, or one per image `(B,)`.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        halved: Whether to halve the objective, which keeps the minimiser.
        spacing: The distance of pixels: a number, or one for each axis; None is 1.
    """

    batched = ("noisy", "weight", "mask", "low", "high")

    f: MaskedSquares

    def __init__(
        self,
        noisy: Tensor,
        mask: Tensor,
        weight: float | Tensor = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        spacing: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(noisy, weight, isotropic, halved)
        size = check_grid(noisy)
        f = MaskedSquares(noisy, mask, self.scale)
        check_scale("noisy", f.y, self.weight)
        self.compose(f, self._tv_term(size, spacing), start=noisy)

    @property
    def mask(self) -> Tensor:
        """Z as `(B, 1, *size)` or `(B, C, *size)`."""
        return self.f.mask

    @property
    def low(self) -> Tensor:
        """The lower ends of the box `(B, C, 1, ...)`."""
        return self.f.low

    @property
    def high(self) -> Tensor:
        """The upper ends of the box `(B, C, 1, ...)`."""
        return self.f.high


def check_grid(noisy: Tensor) -> tuple[int, ...]:
    """The size of signals `(B, C, n)`, images `(B, C, H, W)` or volumes `(B, C, D, H, W)`."""
    if not 3 <= noisy.ndim <= 5:
        raise InputError("noisy", f"shape {shape_of(noisy)}", "signals, images or volumes: (B, C, *size), 1 to 3 axes")
    return tuple(noisy.shape[2:])


def check_scale(argument: str, y: Tensor, weight: Tensor) -> None:
    """Raise where squares of differences of data y `(B, ...)`, or what these cost, are infinite or 0 in their dtype."""
    y, weight = y.detach(), weight.detach()
    low, high, tiny, huge = _limits(y.dtype, y[0].numel())
    rows = y.flatten(1)
    ends = rows.amin(dim=1).tolist(), rows.amax(dim=1).tolist()  # `aminmax` takes four times as long
    weights = (weight if weight.ndim == 1 else weight.flatten(1).amax(dim=1)).tolist()
    for least, most, number in zip(*ends, weights, strict=True):
        extent = most - least
        if extent > 0 and not low <= extent <= high:
            accepted = f"0 or {low:.1e} to {high:.1e} in {y.dtype}: change the unit, or pass float64"
            raise InputError(argument, f"a range of {extent:.1e}", accepted)
        if extent > 0 and not tiny <= number * extent <= huge:
            accepted = f"{tiny / extent:.1e} to {huge / extent:.1e} for such data in {y.dtype}"
            raise InputError("weight", f"{number:.1e} for data with a range of {extent:.1e}", accepted)


@functools.cache
def _limits(dtype: torch.dtype, count: int) -> tuple[float, float, float, float]:
    """The least and the largest range of `count` numbers, and the same of a weight times a range."""
    kind = torch.finfo(dtype)
    return (
        math.sqrt(RANGE_MARGIN * kind.tiny),
        math.sqrt(kind.max / (RANGE_MARGIN * count)),
        kind.tiny,
        kind.max / count,
    )


def check_weight(weight: float | Tensor, noisy: Tensor) -> Tensor:
    """The weight as one number per image `(B,)`, all positive."""
    if not isinstance(weight, Tensor):
        return noisy.new_full((len(noisy),), check_positive("weight", weight))
    if weight.shape not in ((), (len(noisy),)):
        raise InputError("weight", f"shape {shape_of(weight)}", f"one number, or one per image ({len(noisy)},)")
    check_same_kind("weight", weight, "noisy", noisy)
    if not bool((check_finite("weight", weight) > 0).all()):
        raise InputError("weight", f"{float(weight.min()):g}", "positive numbers")
    return weight.expand(len(noisy)).clone()


class TVReconstruction(TVProblem):
    r"""F(x) = s (||Ax - y||^2 + weight TV(x)) over images x `(B, C, H, W)` with low <= x <= high.

    y = `noisy` `(B, C, ...)` are measurements; s and TV as in `TVProblem`. *The box is part of the problem*: pixels are
    known to lie in [low, high], [0, 1] by default, and the minimum is over such images. Without it the dual would be
    -infinity unless A'q + K'p = 0, which no iterate fulfils; with it every dual point gives a finite bound.

    As a composite problem: the data term f is the box alone, 0 on it (and taken as 0 elsewhere, so that values are
    finite), and the regulariser takes differences and measurements, stacked in one array `(B, n)`:

        K_stacked x = (Kx, c Ax),    g(z, w) = s weight TV-norm(z) + s ||w/c - y||^2.

    Dual points (p, q), `operator.split` of one array `(B, n)`: p `(B, C, 2, H, W)` is bounded as in `TVProblem`, q
    `(B, C, ...)` is free, g*(p, q) = c <y, q> + c^2 ||q||^2 / 4s. At the solution q = 2s (Ax - y) / c.
    c = `balance` weighs the steps that a primal-dual method takes for the two parts, ||K|| / ||A|| by default; it does
    not change the problem.

    Args:
        noisy: y, the measurements `(B, C, ...)`.
        forward: A, an operator from images `(B, C, *size)` to arrays like y.
        size: Of the images, such as (H, W).
        weight: A positive number, or one per image `(B,)`.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        halved: Whether to halve the objective, which keeps the minimiser.
        box: (low, high), the range of pixels, which is part of the problem.
        balance: c, for the steps of primal-dual methods; None is ||K|| / ||A||.
    """

    operator: Stack

    def __init__(
        self,
        noisy: Tensor,
        forward: LinearOperator,
        size: tuple[int, ...],
        weight: float | Tensor = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        box: tuple[float, float] = (0.0, 1.0),
        balance: float | None = None,
    ) -> None:
        super().__init__(noisy, weight, isotropic, halved)
        check_scale("noisy", noisy, self.weight)
        self.low, self.high = check_interval("box", box)
        self.domain: Box = Box(self.low, self.high)
        self.forward = forward
        misfit = Squares(noisy, self.scale)
        start = self.domain.nearest(self.first_guess(size))
        balance = Differences(size).norm / forward.norm if balance is None else balance
        behind = (self._tv_term(size, None), (misfit, forward))
        self.compose(self.domain, *behind, start=start, scales=(1.0, balance))

    def first_guess(self, size: tuple[int, ...]) -> Tensor:
        """The start `(B, C, *size)` before it is clipped to the box: the middle of the box by default."""
        return self.noisy.new_full((*self.noisy.shape[:2], *size), (self.low + self.high) / 2)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """`(B, C, H, W)` of x."""
        return tuple(self.points.shape)

    @property
    def balance(self) -> float:
        """c of the formula."""
        return self.operator.scales[1]

    def data_value(self, x: Tensor) -> Tensor:
        """f(x) = 0: the box, where x is in it."""
        return x.new_zeros(len(x))


class TVDeblurring(TVReconstruction):
    """F(x) = ||k * x - y||^2 + weight TV(x) over 0 <= x <= 1, or half of it; y = `noisy` `(B, C, H, W)`.

    k is the `kernel` `(h, w)`, the same for all images, see `Blur`; `border` is "circular" or "replicate". The start
    is y, clipped to the box. See `TVReconstruction`.

    Args:
        noisy: y, the blurred images `(B, C, H, W)`.
        kernel: k `(h, w)`, the same for all images.
        weight: A positive number, or one per image `(B,)`.
        border: How images continue past their borders: "circular" or "replicate".
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        halved: Whether to halve the objective, which keeps the minimiser.
        box: (low, high), the range of pixels, which is part of the problem.
        balance: c of `TVReconstruction`, for the steps of primal-dual methods.

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
        box: tuple[float, float] = (0.0, 1.0),
        balance: float = 0.5,
    ) -> None:
        if check_batch("noisy", noisy).ndim != 4:
            raise InputError("noisy", f"shape {shape_of(noisy)}", "images (B, C, H, W)")
        height, width = noisy.shape[2:]
        blur = Blur(kernel, height, width, border)
        super().__init__(noisy, blur, (height, width), weight, isotropic, halved, box, balance)
        self.kernel, self.border = blur.kernel, border

    def first_guess(self, size: tuple[int, ...]) -> Tensor:
        return self.noisy


class TVTomography(TVReconstruction):
    """F(x) = ||Ax - y||^2 + weight TV(x) over 0 <= x <= 1, or half of it; A the projections of `ParallelBeam`.

    y = `noisy` `(B, C, angles, detectors)` is the sinogram of images of this `size` (H, W). The start is the flat image
    with the mean that the sinogram shows. `balance` is ||K|| / ||A|| by default. `beams` may be given where many
    problems share them. See `TVReconstruction`.

    Args:
        noisy: y, the sinograms `(B, C, angles, detectors)`.
        size: Of the images, (H, W).
        weight: A positive number, or one per image `(B,)`.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        halved: Whether to halve the objective, which keeps the minimiser.
        box: (low, high), the range of pixels, which is part of the problem.
        balance: c of `TVReconstruction`, for the steps of primal-dual methods; None is ||K|| / ||A||.
        beams: A; None is `ParallelBeam` of this size and as many angles as y has.
    """

    def __init__(
        self,
        noisy: Tensor,
        size: tuple[int, int],
        weight: float | Tensor = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        box: tuple[float, float] = (0.0, 1.0),
        balance: float | None = None,
        beams: ParallelBeam | None = None,
    ) -> None:
        if check_batch("noisy", noisy).ndim != 4:
            raise InputError("noisy", f"shape {shape_of(noisy)}", "sinograms (B, C, angles, detectors)")
        beams = ParallelBeam(*size, angles=noisy.shape[2]) if beams is None else beams
        expected = (beams.angles, beams.detectors)
        if noisy.shape[2:] != expected or (beams.height, beams.width) != tuple(size):
            raise InputError(
                "noisy", f"shape {shape_of(noisy)}", f"(B, C, {beams.angles}, {beams.detectors}) for {size}"
            )
        super().__init__(noisy, beams, size, weight, isotropic, halved, box, balance)

    def first_guess(self, size: tuple[int, ...]) -> Tensor:
        seen = self.forward(self.noisy.new_ones(1, 1, *size)).sum()
        mean = self.noisy.flatten(2).sum(dim=2) / seen
        return mean[..., None, None].expand(*mean.shape, *size).contiguous()
