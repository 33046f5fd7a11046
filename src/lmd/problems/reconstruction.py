"""Images from indirect measurements y = Ax + noise: total variation deblurring and tomography."""

from __future__ import annotations

from torch import Tensor

from lmd.core.checks import check_batch, check_interval, shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator
from lmd.operators.blur import Blur
from lmd.operators.differences import Differences
from lmd.operators.projections import ParallelBeam
from lmd.operators.stack import Stack
from lmd.problems.tv import TVProblem, check_scale
from lmd.terms import Box, Squares


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
        isotropic: Lengths of gradients in place of sums of absolute differences.
        halved: Half of the objective; the minimiser is the same.
        box: (low, high), where pixels are known to be; part of the problem.
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
        """What the start is, before it is clipped to the box `(B, C, *size)`: its middle, if nothing is better."""
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
        border: How images go on past their borders: "circular" or "replicate".
        isotropic: Lengths of gradients in place of sums of absolute differences.
        halved: Half of the objective; the minimiser is the same.
        box: (low, high), where pixels are known to be; part of the problem.
        balance: c of `TVReconstruction`, for the steps of primal-dual methods.

    >>> import torch
    >>> from lmd.problems import gaussian_kernel
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
        isotropic: Lengths of gradients in place of sums of absolute differences.
        halved: Half of the objective; the minimiser is the same.
        box: (low, high), where pixels are known to be; part of the problem.
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
