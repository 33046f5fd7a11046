"""Adapters for [deepinv](https://deepinv.github.io): total variation with a proven prox, mirrors, gaps as metrics.

They use deepinv's units, 1/2 ||Ax - y||^2 + ths ||Dx||_{1,2}, and its layout: images `(B, C, H, W)` or volumes.
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
from lmd.operators.base import LinearOperator, norm_estimate
from lmd.problems import TVDenoising, TVInpainting, TVModel
from lmd.solvers.result import Result
from lmd.terms import Squares
from lmd.terms.base import inner, size_of
from lmd.zoo.solve import solve

ADJOINT_TOLERANCE = 1e-5  # maximum of |<Ax, z> - <x, A'z>| / (||Ax|| ||z||)
Strength = float | Tensor
F64 = torch.float64


class TVDenoiser(TheirDenoiser):
    r"""Compute argmin_x 1/2 ||x - y||^2 + ths ||Dx||_{1,2} to a proven relative gap; replaces deepinv's denoiser.

    Each call starts from the dual point of the previous call if the shape is the same, which suits iterative
    algorithms. `result` is the result of the last call, with its certificate. The answer is differentiable with respect
    to y and ths if they require gradients (`lmd.problems.derivatives`).

    Args:
        tolerance: The relative gap to be proven.
        ths: The strength: a number, or one per image; if None, each call must pass `ths`.
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

    Except for denoising and inpainting, pixels are restricted to the `box`, because the bound would be infinite without
    a box. `result` is the result of the last call, with its certificate.

    Args:
        ths: The strength: a number, or one per image.
        tolerance: The relative gap to be proven.
        box: (low, high), the range of pixels.
    """

    def __init__(self, ths: Strength = 0.05, tolerance: float = 1e-3, box: tuple[float, float] = (0.0, 1.0)) -> None:
        super().__init__()
        self.ths, self.tolerance, self.box = ths, tolerance, box
        self.result: Result | None = None

    def problem(self, y: Tensor, physics: Physics) -> TVModel:
        """Return the problem that `forward` solves."""
        weight = _weights(self.ths, y)
        if isinstance(physics, Denoising):
            return TVDenoising(y, weight, isotropic=True, halved=True)
        if isinstance(physics, Inpainting):
            mask = physics.mask.to(y).expand_as(y)
            return TVInpainting(y, mask, weight, isotropic=True, halved=True)
        forward = OfPhysics(physics, y)
        start = y.new_full(forward.shape, (self.box[0] + self.box[1]) / 2)
        form: dict[str, Any] = {"forward": forward, "size": forward.shape[2:], "box": self.box, "start": start}
        return TVModel(Squares(y, 0.5), weight / 2, isotropic=True, **form)

    def forward(self, y: Tensor, physics: Physics, **_: Any) -> Tensor:
        self.result = solve(self.problem(y, physics), self.tolerance)
        return self.result.x


class OfPhysics(LinearOperator):
    """The operator A of a linear physics, from x `(B, C, ...)` to measurements `(B, ...)`, shared by all instances.

    `A_adjoint` is checked with random arrays and refused if it is not the adjoint of A, because bounds would be wrong;
    tomography that interpolates is an example. The norm is estimated. Proofs are evaluated with a copy of the physics
    in float64.

    Args:
        physics: A linear physics with an `A_adjoint`.
        y: Example measurements `(B, ...)`, which set the shape, dtype and device.
    """

    def __init__(self, physics: Physics, y: Tensor) -> None:
        if not hasattr(physics, "A_adjoint"):
            raise InputError("physics", type(physics).__name__, "a linear one, with an A_adjoint")
        self.physics, self.like = {dtype: _computing_in(physics, dtype) for dtype in (y.dtype, F64)}, y.new_empty(0)
        self.shape, generator = tuple(self._adjoint(y).shape), torch.Generator().manual_seed(0)
        x, z = (
            torch.randn(shape, generator=generator, dtype=F64, device="cpu").to(y) for shape in (self.shape, y.shape)
        )
        image, back = self._apply(x), self._adjoint(z)
        off = ((inner(image, z) - inner(x, back)).abs() / (size_of(image) * size_of(z))).max()
        if not off <= ADJOINT_TOLERANCE:
            given = f"{type(physics).__name__}, whose A_adjoint is off by {float(off):.1g}"
            raise InputError(
                "physics", given, "one with the adjoint of A, such as tomography with adjoint_via_backprop"
            )

    def _apply(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            image: Tensor = self.physics[x.dtype].A(x)
        return image

    def _adjoint(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            back: Tensor = self.physics[z.dtype].A_adjoint(z)
        return back

    @functools.cached_property
    def norm(self) -> float:
        def gram(v: Tensor) -> Tensor:
            return self._adjoint(self._apply(v.to(self.like))).to(v)

        return norm_estimate(gram, (1, *self.shape[1:]))


class MirrorPotential(Bregman):
    """A mirror as a potential for deepinv; its conjugate is phi*(y) = <y, x> - phi(x) at the x with y = phi'(x)."""

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
    """A metric that bounds the relative gap `(B,)` of any image, for the objective of `TVReconstructor`.

    Call the metric as `Gap(ths)(x_net, y=y, physics=physics)`.

    Args:
        ths: The strength: a number, or one per image.
        tolerance: The relative gap of the solve that yields a dual point for the bound.
        **options: Options of deepinv's `Metric`.
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
    """Convert strengths of deepinv to weights `(B,)`: weight = 2 ths."""
    each = torch.as_tensor(strength, dtype=y.dtype, device=y.device).flatten()
    return 2 * each.expand(len(y))


def _computing_in(physics: Physics, dtype: torch.dtype) -> Physics:
    """Return a copy of the physics with real tensors in this dtype and complex tensors in the matching dtype."""
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
