"""For [deepinv](https://deepinv.github.io): total variation with an exact prox, mirrors as potentials, gaps as metrics.

Everything is in its units, 1/2 ||Ax - y||^2 + ths ||Dx||_{1,2}, and its layout, images `(B, C, H, W)` or volumes.
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

ADJOINT = 1e-5
"""How well <Ax, z> and <x, A'z> have to agree, relative to ||Ax|| ||z||, for A' to be taken for the adjoint."""

Strength = float | Tensor


class TVDenoiser(TheirDenoiser):
    r"""argmin_x 1/2 ||x - y||^2 + ths ||Dx||_{1,2} to a proven relative gap of `tolerance`, in place of deepinv's.

    In one compiled call for images on the CPU. The dual point of the last call is the start of the next, where the
    shape is the same: what an iterative algorithm asks for. `result` is the last answer, with its certificate. The
    answer has derivatives by y and ths, where these require them (`lmd.problems.derivatives`).

    Args:
        tolerance: The relative gap to be proven.
        ths: The strength: a number, or one per image; None leaves it to each call.
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
    """||Dx||_{1,2}, and the denoiser above for its prox: proven to `tolerance`, warm from call to call.

    Args:
        tolerance: The relative gap to be proven.
    """

    def __init__(self, tolerance: float = 1e-4) -> None:
        super().__init__()
        self.TVModel = TVDenoiser(tolerance)


class TVReconstructor(Reconstructor):
    r"""argmin_x 1/2 ||Ax - y||^2 + ths ||Dx||_{1,2}, to a proven relative gap of `tolerance`, for any linear physics.

    Denoising and inpainting have models of their own. Any other A is taken as it is, over images within the `box`, by
    default [0, 1], without which there would be no finite bound. `result` is the last answer, with its certificate.

    Args:
        ths: The strength: a number, or one per image.
        tolerance: The relative gap to be proven.
        box: (low, high), where pixels are known to be.
    """

    def __init__(self, ths: Strength = 0.05, tolerance: float = 1e-3, box: tuple[float, float] = (0.0, 1.0)) -> None:
        super().__init__()
        self.ths, self.tolerance, self.box = ths, tolerance, box
        self.result: Result | None = None

    def problem(self, y: Tensor, physics: Physics) -> TVProblem:
        """What is minimised, as a problem of `lmd`."""
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
    """A of a linear physics, x `(B, C, ...)` to measurements y `(B, ...)`, the same map for all instances.

    Its `A_adjoint` is tried on random arrays, and refused where it is not the adjoint, as an inverse transform by
    interpolation is not: a bound from it would be none. The norm is by power iterations. In float64, where proofs are
    evaluated, A is that of the physics in float64.

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
        if not off <= ADJOINT:
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
    """A mirror as a potential of deepinv's, with a conjugate that is one: phi*(y) = <y, x> - phi(x), y = phi'(x).

    Args:
        mirror: Any mirror.
    """

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
    """By how much an answer is above the minimum of what `TVReconstructor` minimises, at most, relative to it `(B,)`.

    For answers of any method: `Gap(ths)(x_net, y=y, physics=physics)`. The dual point comes from a solve of ours.

    Args:
        ths: The strength: a number, or one per image.
        tolerance: The relative gap of the solve that the dual point comes from.
        **options: Those of every metric of deepinv's.
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
    """deepinv's strengths as weights of ours, for each image `(B,)`: s weight = ths, with s = 1/2."""
    each = torch.as_tensor(strength, dtype=y.dtype, device=y.device).flatten()
    return 2 * each.expand(len(y))


def _computing_in(physics: Physics, dtype: torch.dtype) -> Physics:
    """A copy with its real tensors in that dtype and its complex ones in the complex one, buffers or not."""
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
    """Numbers that are the same every time."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(like)
