"""Images from indirect measurements y = Ax + noise: total variation deblurring and tomography."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from lmd.checks import check_batch, check_interval, shape_of
from lmd.copies import doubled
from lmd.errors import InputError
from lmd.operators.base import LinearOperator, size_of
from lmd.operators.blur import Blur
from lmd.operators.differences import Differences
from lmd.operators.projections import ParallelBeam
from lmd.operators.stack import Stack
from lmd.problems.composite import CompositeProblem, Scale, per_instance, sum_instances
from lmd.problems.domains import Box
from lmd.problems.optimum import Optimum
from lmd.problems.reconstruction_optimum import TOLERANCE, solve_reconstruction
from lmd.problems.tv import TVProblem, check_weight, directions, one_number
from lmd.problems.tv_optimum import optimum


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
    c = `balance` weighs the steps that a primal-dual method takes for the two parts; it does not change the problem.
    """

    def __init__(
        self,
        noisy: Tensor,
        forward: LinearOperator,
        size: tuple[int, int],
        weight: float | Tensor,
        isotropic: bool,
        halved: bool,
        box: tuple[float, float],
        balance: float,
    ) -> None:
        self.noisy = check_batch("noisy", noisy)
        self.weight = check_weight(weight, noisy)
        self.isotropic, self.halved = bool(isotropic), bool(halved)
        self.low, self.high = check_interval("box", box)
        self.domain: Box = Box(self.low, self.high)
        self.forward, self.differences = forward, Differences(size)
        shapes = ((noisy.shape[1], 2, *size), noisy.shape[1:])
        self.operator: Stack = Stack((self.differences, forward), shapes, (1.0, balance))  # type: ignore[assignment]
        self._one_weight = one_number(self.weight)

    data_smoothness = None  # type: ignore[assignment]

    def check_start(self, x0: Tensor) -> Tensor:
        CompositeProblem.check_start(self, x0)
        if x0.shape != (expected := self.image_shape):
            raise InputError("x0", f"shape {shape_of(x0)}", f"shape {expected}, as the images have")
        return x0

    @property
    def image_shape(self) -> tuple[int, ...]:
        """`(B, C, H, W)` of x."""
        return (*self.noisy.shape[:2], *self.differences.shape)

    @property
    def balance(self) -> float:
        """c of the formula."""
        return self.operator.scales[1]

    def start(self) -> Tensor:
        raise NotImplementedError

    def misfit(self, x: Tensor) -> Tensor:
        """s ||Ax - y||^2 `(B,)`."""
        return self.scale * sum_instances((self.forward(x) - self.noisy).square())

    def data_gradient(self, x: Tensor) -> Tensor:
        """The gradient of the misfit: 2s A'(Ax - y)."""
        return self.forward.adjoint((2 * self.scale) * (self.forward(x) - self.noisy))

    @property
    def gradient_smoothness(self) -> float:
        return 2 * self.scale * self.forward.norm**2

    def clip(self, x: Tensor) -> Tensor:
        return x.clamp(self.low, self.high)

    def dual_from(self, p: Tensor, x: Tensor) -> Tensor:
        """(p, 2s (Ax - y) / c): what q is at the solution, taken at x."""
        q = (self.forward(x) - self.noisy) * (2 * self.scale / self.balance)
        return self.operator.join((p, q))

    def value(self, x: Tensor) -> Tensor:
        return self.misfit(x) + super().regulariser_value(self.differences(x))

    def subgradient(self, x: Tensor) -> Tensor:
        """The gradient of the misfit plus b K' sign(Kx), with sign(0) = 0; z / |z| for sign where isotropic."""
        z = self.differences(x)
        signs = directions(z) if self.isotropic else z.sign()
        return self.data_gradient(x) + self.differences.adjoint(per_instance(self.bound, z) * signs)

    def data_value(self, x: Tensor) -> Tensor:
        """f(x) = 0: the box, where x is in it."""
        return x.new_zeros(len(x))

    def data_prox(self, x: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return torch.clamp(x, self.low, self.high, out=out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        ends = torch.where(u > 0, u.new_tensor(self.low), u.new_tensor(self.high))
        return ends if out is None else out.copy_(ends)

    def tilted_minimum(self, u: Tensor) -> Tensor:
        return sum_instances(u.clamp(min=0) * self.low + u.clamp(max=0) * self.high)

    def data_residual(self, x: Tensor, u: Tensor) -> Tensor:
        return sum_instances(u * (x - self.tilted_minimiser(u))).clamp(min=0)

    def regulariser_value(self, z: Tensor) -> Tensor:
        differences, measurements = self.operator.split(z)
        misfit = self.scale * sum_instances((measurements / self.balance - self.noisy).square())
        return super().regulariser_value(differences) + misfit

    def project_differences(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        """The nearest feasible p `(B, C, 2, H, W)`."""
        return super().project_dual(p, out=out)

    def project_dual(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        differences, measurements = self.operator.split(p)
        if out is None:
            return self.operator.join((self.project_differences(differences), measurements))
        to, rest = self.operator.split(out)
        self.project_differences(differences, out=to)
        if out is not p:
            rest.copy_(measurements)
        return out

    def dual_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """p projected, q to (q - step c y) / (1 + step c^2 / 2s)."""
        differences, measurements = self.operator.split(p)
        by = per_instance(step, measurements)
        c = self.balance
        if out is None:
            moved = (measurements - by * c * self.noisy) / (1 + by * (c * c / (2 * self.scale)))
            return self.operator.join((self.project_differences(differences), moved))
        to, rest = self.operator.split(out)
        self.project_differences(differences, out=to)
        torch.addcmul(
            measurements,
            self.noisy,
            torch.as_tensor(by, dtype=self.noisy.dtype, device=self.noisy.device),
            value=-c,
            out=rest,
        )
        rest.div_(1 + by * (c * c / (2 * self.scale)))
        return out

    def regulariser_conjugate(self, p: Tensor) -> Tensor:
        _, q = self.operator.split(p)
        c = self.balance
        return sum_instances(q * (c * self.noisy + (c * c / (4 * self.scale)) * q))

    def regulariser_residual(self, z: Tensor, p: Tensor) -> Tensor:
        c = self.balance
        differences, measurements = self.operator.split(z)
        p, q = self.operator.split(p)
        off = measurements / c - self.noisy - (c / (2 * self.scale)) * q
        return super().regulariser_residual(differences, p) + self.scale * sum_instances(off.square())

    def gap_rounding(self, x: Tensor, p: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        """Pixels are no further from their minimisers than from the ends of the box; A is as exact as it says."""
        eps, c, s, A, K = torch.finfo(x.dtype).eps, self.balance, self.scale, self.forward, self.differences
        u = self.operator.adjoint(p)
        differences, q = self.operator.split(p)
        reach = torch.maximum((x - self.low).abs(), (x - self.high).abs())
        pull = K.roundings * K.norm * size_of(differences) + c * A.roundings * A.norm * size_of(q) + 4 * size_of(u)
        seen = (A.roundings + 8) * A.norm * size_of(x) + 8 * size_of(self.noisy) + 8 * c / (2 * s) * size_of(q)
        off = 2 * s**0.5 * (gap.sqrt() + value.sqrt()) * (eps * seen) + s * (eps * seen).square()
        return super().gap_rounding(x, p, value, gap) + size_of(reach) * (eps * pull) + off

    def optima(self) -> list[Optimum]:
        whole: TVReconstruction = doubled(self, "cpu")
        return [optimum(whole.select(i), solve_reconstruction, TOLERANCE) for i in range(len(self.noisy))]

    def description(self) -> dict[str, Any]:
        return {**super().description(), "low": self.low, "high": self.high}


class TVDeblurring(TVReconstruction):
    """F(x) = ||k * x - y||^2 + weight TV(x) over 0 <= x <= 1, or half of it; y = `noisy` `(B, C, H, W)`.

    k is the `kernel` `(h, w)`, the same for all images, see `Blur`; `border` is "circular" or "replicate". The start
    is y, clipped to the box. See `TVReconstruction`.

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

    def start(self) -> Tensor:
        return self.domain.project(self.noisy)

    def description(self) -> dict[str, Any]:
        kernel = hashlib.sha256(self.kernel.contiguous().numpy().data).hexdigest()
        shape = list(self.kernel.shape)
        return {**super().description(), "border": self.border, "kernel": kernel, "kernel_shape": shape}


class TVTomography(TVReconstruction):
    """F(x) = ||Ax - y||^2 + weight TV(x) over 0 <= x <= 1, or half of it; A the projections of `ParallelBeam`.

    y = `noisy` `(B, C, angles, detectors)` is the sinogram of images of this `size` (H, W). The start is the flat image
    with the mean that the sinogram shows. `balance` is ||K|| / ||A|| by default. `beams` may be given where many
    problems share them. See `TVReconstruction`.
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
        if balance is None:
            balance = Differences(size).norm / beams.norm
        super().__init__(noisy, beams, size, weight, isotropic, halved, box, balance)

    def start(self) -> Tensor:
        seen = self.forward(self.noisy.new_ones(1, 1, *self.image_shape[2:])).sum()
        mean = self.noisy.flatten(2).sum(dim=2) / seen
        return self.domain.project(mean[..., None, None].expand(self.image_shape).contiguous())

    def description(self) -> dict[str, Any]:
        return {**super().description(), "size": list(self.image_shape[2:])}
