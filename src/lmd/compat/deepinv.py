"""Adapters for [deepinv](https://deepinv.github.io): total variation with a proven prox, mirrors, gaps as metrics.

They use its units, 1/2 ||Ax - y||^2 + ths ||Dx||_{1,2}, and its layout, images `(B, C, H, W)` or volumes.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import Any

import torch
from deepinv.loss.metric import Metric
from deepinv.models import Reconstructor
from deepinv.models import TVDenoiser as TheirDenoiser
from deepinv.optim import TVPrior as TheirPrior
from deepinv.optim.bregman import Bregman
from deepinv.physics import Denoising, Inpainting, Physics
from torch import Tensor

from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.operators.base import LinearOperator
from lmd.operators.functions import NORM_MARGIN, POWER_ITERATIONS
from lmd.problems import TVDenoising, TVInpainting, TVReconstruction
from lmd.problems.tv import TVProblem
from lmd.solvers.result import Result
from lmd.terms.base import inner, size_of
from lmd.zoo.solve import solve

ADJOINT_TOLERANCE = 1e-5  # largest difference of <Ax, z> and <x, A'z>, relative to ||Ax|| ||z||
Strength = float | Tensor


class TVDenoiser(TheirDenoiser):
    r"""Compute argmin_x 1/2 ||x - y||^2 + ths ||Dx||_{1,2} to a proven relative gap; replaces deepinv's denoiser.

    Each call starts from the dual point of the last one if the shape is the same, which suits iterative algorithms.
    `result` is the last answer, with its certificate. The answer has derivatives with respect to y and ths if these
    require them (`lmd.problems.derivatives`).

    Args:
        tolerance: The relative gap to be proven.
        ths: The strength: a number, or one per image; None means that each call passes it.
    """

    def __init__(self, tolerance: float = 1e-4, ths: Strength | None = None) -> None:
        super().__init__(ths=ths)
        self.tolerance = tolerance
        self.result: Result | None = None

    def forward(self, y: Tensor, ths: Strength | None = None, **_: Any) -> Tensor:
        strength = self.ths if ths is None else ths
        if strength is None:
            raise InputError("ths", "nothing", "a strength, here or when the denoiser is made")
        weight, last = _weights(strength, y), self.result
        fits = last is not None and last.x.shape == y.shape and last.x.dtype == y.dtype and last.x.device == y.device
        recording = torch.is_grad_enabled() and (y.requires_grad or weight.requires_grad)
        problem = TVDenoising(y, weight, isotropic=True, halved=True)
        found = solve(problem, self.tolerance, warm=last if fits else None, differentiable=recording)
        self.result = replace(found, x=found.x.detach())
        return found.x


class TVPrior(TheirPrior):
    """The prior ||Dx||_{1,2}, whose prox is `TVDenoiser(tolerance)`."""

    def __init__(self, tolerance: float = 1e-4) -> None:
        super().__init__()
        self.TVModel = TVDenoiser(tolerance)


class TVReconstructor(Reconstructor):
    r"""Compute argmin_x 1/2 ||Ax - y||^2 + ths ||Dx||_{1,2} to a proven relative gap, for any linear physics.

    Except for denoising and inpainting, pixels are restricted to the `box`, without which there would be no finite
    bound. `result` is the last answer, with its certificate.

    Args:
        ths: The strength: a number, or one per image.
        tolerance: The relative gap to be proven.
        box: (low, high), the range of pixels.
    """

    def __init__(self, ths: Strength = 0.05, tolerance: float = 1e-3, box: tuple[float, float] = (0.0, 1.0)) -> None:
        super().__init__()
        self.ths, self.tolerance, self.box = ths, tolerance, box
        self.result: Result | None = None

    def problem(self, y: Tensor, physics: Physics) -> TVProblem:
        """Return the problem that is solved."""
        weight = _weights(self.ths, y)
        if isinstance(physics, Denoising):
            return TVDenoising(y, weight, isotropic=True, halved=True)
        if isinstance(physics, Inpainting):
            mask = physics.mask.to(y).expand_as(y)
            return TVInpainting(y, mask, weight, isotropic=True, halved=True)
        return _Measured(y, OfPhysics(physics, y), weight, self.box)

    def forward(self, y: Tensor, physics: Physics, **_: Any) -> Tensor:
        self.result = solve(self.problem(y, physics), self.tolerance)
        return self.result.x


class _Measured(TVReconstruction):
    """Images from measurements `(B, ...)` by an operator that knows their shape."""

    def __init__(self, y: Tensor, forward: OfPhysics, weight: Tensor, box: tuple[float, float]) -> None:
        self.shape = forward.shape
        super().__init__(y, forward, self.shape[2:], weight, isotropic=True, halved=True, box=box)

    def first_guess(self, size: tuple[int, ...]) -> Tensor:
        return self.noisy.new_full(self.shape, (self.low + self.high) / 2)


class OfPhysics(LinearOperator):
    """The operator A of a linear physics, x `(B, C, ...)` to measurements y `(B, ...)`, the same for all instances.

    `A_adjoint` is checked with random arrays and refused if it is not the adjoint, because bounds would be wrong; the
    adjoint of tomography by interpolation is an example. The norm is estimated by power iterations. For proofs, which
    are evaluated in float64, the physics is converted to float64.

    Args:
        physics: A linear one.
        y: Measurements `(B, ...)`, for their shape, dtype and device.
    """

    def __init__(self, physics: Physics, y: Tensor) -> None:
        if not hasattr(physics, "A_adjoint"):
            raise InputError("physics", type(physics).__name__, "a linear one, with an A_adjoint")
        self.physics, self.like = _computing_in(physics, y.dtype), y.new_empty(0)
        self.shape = tuple(self._adjoint(y).shape)
        x, z = _noise(self.shape, y), _noise(tuple(y.shape), y)
        image, back = self._apply(x), self._adjoint(z)
        off = ((inner(image, z) - inner(x, back)).abs() / (size_of(image) * size_of(z))).max()
        if not off <= ADJOINT_TOLERANCE:
            given = f"{type(physics).__name__}, whose A_adjoint is off by {float(off):.1g}"
            raise InputError(
                "physics", given, "one with the adjoint of A, such as tomography with adjoint_via_backprop"
            )

    @functools.cached_property
    def _physics64(self) -> Physics:
        return _computing_in(self.physics, torch.float64)

    def _of(self, x: Tensor) -> Physics:
        return self._physics64 if x.dtype == torch.float64 else self.physics

    def _apply(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            image: Tensor = self._of(x).A(x)
        return image

    def _adjoint(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            back: Tensor = self._of(z).A_adjoint(z)
        return back

    @functools.cached_property
    def norm(self) -> float:
        v = _noise((1, *self.shape[1:]), self.like)
        found = 0.0
        for _ in range(POWER_ITERATIONS):
            v = self._adjoint(self._apply(v / size_of(v).clamp(min=1e-300)))
            found = float(size_of(v)) ** 0.5
        return NORM_MARGIN * found or 1.0


class MirrorPotential(Bregman):
    """A mirror as a potential for deepinv, with the conjugate phi*(y) = <y, x> - phi(x), y = phi'(x)."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__()
        self.mirror = mirror

    def fn(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.mirror.potential(x)

    def grad(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.mirror.to_dual(x)

    def conjugate(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        point = self.mirror.to_primal(x)
        return inner(x, point) - self.mirror.potential(point)

    def grad_conj(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.mirror.to_primal(x)

    def div(self, x: Tensor, y: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.mirror.divergence(x, y)

    def MD_step(self, x: Tensor, grad: Tensor, *_: Any, gamma: Strength = 1.0, **__: Any) -> Tensor:  # noqa: N802
        return self.mirror.descend(x, gamma * grad)


class Gap(Metric):
    """A bound `(B,)` on the relative gap of any image to the minimum of the objective of `TVReconstructor`.

    Call it as `Gap(ths)(x_net, y=y, physics=physics)`.

    Args:
        ths: The strength: a number, or one per image.
        tolerance: The relative gap of the solve from which the dual point comes.
        **options: The options of every deepinv metric.
    """

    def __init__(self, ths: Strength = 0.05, tolerance: float = 1e-6, **options: Any) -> None:
        super().__init__(**options)
        self.reconstructor = TVReconstructor(ths, tolerance)

    def metric(self, x_net: Tensor, x: Tensor | None = None, *_: Any, **given: Any) -> Tensor:
        problem = self.reconstructor.problem(given["y"], given["physics"])
        dual = solve(problem, self.reconstructor.tolerance).dual
        if dual is None:
            return torch.full_like(x_net[:, 0].flatten(1)[:, 0], torch.inf)
        return problem.relative_gap(x_net, dual).to(x_net.dtype)


def _weights(strength: Strength, y: Tensor) -> Tensor:
    """Convert deepinv's strengths to weights for each image `(B,)`: s weight = ths, with s = 1/2."""
    each = torch.as_tensor(strength, dtype=y.dtype, device=y.device).flatten()
    return 2 * each.expand(len(y))


def _computing_in(physics: Physics, dtype: torch.dtype) -> Physics:
    """Return a copy whose real tensors have this dtype and whose complex tensors have its complex counterpart."""
    physics = copy.deepcopy(physics)
    of = {False: dtype, True: dtype.to_complex()}
    for module in physics.modules():
        for place in (vars(module), module._buffers, module._parameters):
            for name, value in list(place.items()):
                if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                    place[name] = value.detach().to(of[value.is_complex()])
                elif value in (torch.float32, torch.float64):
                    place[name] = dtype
    return physics


def _noise(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return random numbers that are the same every time."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(like)
