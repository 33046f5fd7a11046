"""Learned mirrors: an input-convex network as potential and a second network as its inverse. Section 3 of the paper."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import check_choice, check_count, check_positive
from lmd.mirrors.base import Mirror, norm_of
from lmd.mirrors.potentials import LEAK, Convolutions, Matrices, PotentialNetwork, in_parts
from lmd.operators.base import conjugate_gradients
from lmd.terms.base import inner, per_instance

BACKWARD_MIXING = 0.5  # mu of a backward network that is a gradient, as published
SHARPNESSES = tuple(10.0**k for k in range(1, 11))  # beta of the smooth potentials that approach a leaky one
MAX_CG_ITERATIONS, MAX_TRIALS = 50, 30  # limits for each Newton iteration


class Pair(Mirror):
    """to_dual(x) = scale forward_net.gradient(x), to_primal(y) = backward_net(y / scale).

    `to_primal(y)` is one evaluation of the backward network. `inconsistency` measures its error, and training keeps
    this error small. `to_primal(y, tolerance=...)` improves x (`refine`) until the dual residual ||to_dual(x) - y||_2
    is at most the tolerance; then the error is at most tolerance / strong_convexity. A warning gives the number of
    instances that need too many iterations or, with a leaky network, have no solution. A refined x has no graph.

    Args:
        maps: The linear maps of both networks: `Matrices` or `Convolutions`.
        size: Width and layers of the forward network.
        backward_size: Width and layers of the backward network.
        arguments: The arguments of the constructor of the subclass. The positive number `scale` makes ordinary
            step-sizes suit problems with large gradients.
    """

    is_exact = False

    def __init__(
        self, maps: Matrices, size: tuple[int, int], backward_size: tuple[int, int], arguments: dict[str, Any]
    ) -> None:
        super().__init__()
        self.arguments, self.scale = arguments, check_positive("scale", arguments["scale"])
        options = {name: arguments[name] for name in ("activation", "curvature", "seed")}
        self.forward_net = PotentialNetwork(maps, *size, mixing=arguments["mixing"], **options)
        self.backward_net: nn.Module
        if check_choice("backward", arguments["backward"], ("residual", "gradient")) == "residual":
            self.backward_net = ResidualNetwork(maps, *backward_size, seed=arguments["seed"])
        else:
            gradient = PotentialNetwork(maps, *backward_size, mixing=BACKWARD_MIXING, convex=False, **options)
            self.backward_net = gradient

    def config(self) -> dict[str, Any]:
        return dict(self.arguments)

    def check_shape(self, argument: str, y: Tensor) -> Tensor:
        return self.forward_net.maps.check_shape(argument, y)

    def potential(self, x: Tensor) -> Tensor:
        return self.scale * self.forward_net.value(x)

    def to_dual(self, x: Tensor) -> Tensor:
        return self.scale * self.forward_net.gradient(x)

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        y = self.check_shape("y", y) / self.scale
        if tolerance is None:
            return cast(Tensor, self.backward_net(y))
        check_positive("tolerance", tolerance)
        with torch.no_grad():
            start = self.backward_net(y)
        refined = refine(self.forward_net, y, start, tolerance / self.scale)
        missed = ~refined.converged & torch.isfinite(refined.residual)  # NaNs are reported elsewhere
        if bool(missed.any()):
            worst = self.scale * float(refined.residual[missed].max())
            text = f"{int(missed.sum())} of {len(y)} instances missed the tolerance {tolerance:g}"
            warnings.warn(f"to_primal: {text}, the worst with a dual residual of {worst:.3g}", stacklevel=2)
        return refined.x

    @property
    def strong_convexity(self) -> Tensor:
        return self.scale * self.forward_net.strong_convexity


class DensePair(Pair):
    """A learned mirror on vectors x `(B, d)`.

    Args:
        dimension: d.
        width: Units of a layer of the forward network.
        layers: Layers of the forward network on top of the first.
        backward: "residual", a plain residual network, or "gradient", the gradient of a second network like the first
            but not convex, as published. With `curvature`, either starts at the identity, and `forward_net` near it.
        backward_width: Units of a layer of the backward network; None is `width`.
        backward_layers: Layers of the backward network; None is `layers`.
        scale: A positive factor of `to_dual`, fixed.
        mixing: mu of the forward network, in (0, 1).
        activation: "smooth" or "leaky".
        curvature: Whether the potential has a learned multiple of ||x||^2 / 2, which starts at 1.
        seed: The seed of the initial weights.
    """

    def __init__(
        self,
        dimension: int,
        width: int = 64,
        layers: int = 2,
        backward: str = "residual",
        backward_width: int | None = None,
        backward_layers: int | None = None,
        *,
        scale: float = 1.0,
        mixing: float = 0.1,
        activation: str = "smooth",
        curvature: bool = True,
        seed: int = 0,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        backward_size = (backward_width or width, backward_layers or layers)
        super().__init__(Matrices(dimension), (width, layers), backward_size, arguments)


class ConvPair(Pair):
    """A learned mirror on images x `(B, C, H, W)` of any size.

    Args:
        channels: C.
        filters: Channels inside the forward network.
        layers: Layers of the forward network on top of the first.
        backward_filters: Channels inside the backward network; None is `filters`.
        kernel: The side of the convolutions in pixels, odd.
        border: How images continue past their borders: "circular" or "replicate".
        reduction: Whether the read-out is the "sum" or the "mean" over the pixels.
        backward, backward_layers, scale, mixing, activation, curvature, seed: As for `DensePair`.

    >>> mirror = ConvPair(channels=1, filters=4)
    >>> x = torch.rand(2, 1, 8, 8)
    >>> bool((mirror.inconsistency(x, "linf") < 0.1).all())
    True
    """

    def __init__(
        self,
        channels: int = 3,
        filters: int = 32,
        layers: int = 2,
        backward: str = "residual",
        backward_filters: int | None = None,
        backward_layers: int | None = None,
        *,
        kernel: int = 3,
        border: str = "circular",
        reduction: str = "sum",
        scale: float = 1.0,
        mixing: float = 0.1,
        activation: str = "smooth",
        curvature: bool = True,
        seed: int = 0,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        backward_size = (backward_filters or filters, backward_layers or layers)
        super().__init__(Convolutions(channels, kernel, border, reduction), (filters, layers), backward_size, arguments)

    @classmethod
    def published(cls, channels: int = 3, filters: int = 60, backward_filters: int = 75, seed: int = 0) -> ConvPair:
        """Return the published pair of the imaging experiments with its published weights at the start."""
        options: dict[str, Any] = {"reduction": "mean", "activation": "leaky", "curvature": False, "seed": seed}
        pair = cls(channels, filters, 3, "gradient", backward_filters, 5, **options)
        generator = torch.Generator().manual_seed(seed)
        forward_net, backward_net = pair.forward_net, cast(PotentialNetwork, pair.backward_net)
        bound = 1 / math.sqrt(9 * backward_filters)
        with torch.no_grad():
            for net, low, high in ((forward_net, 0.0, 0.001), (backward_net, -bound, bound)):
                for weight, gain in ((net.hidden, net.gain), (net.out, net.gain_out)):
                    weight.copy_(torch.rand(weight.shape, generator=generator, dtype=weight.dtype))
                    weight.mul_((high - low) / gain).add_(low / gain)
            # Sums of the 3 x 3 taps of the last published convolution, to one channel or to all channels.
            forward_net.out.mul_(9)
            backward_net.out.mul_(math.sqrt(9 * channels))
        return pair


class ResidualNetwork(nn.Module):
    """y + W h_layers, h_0 = g(W_0 y + b_0), h_i = h_{i-1} + g(W_i h_{i-1} + b_i), with g the leaky ReLU.

    The last W starts at 0, so the map starts at the identity.
    """

    def __init__(self, maps: Matrices, width: int = 64, layers: int = 2, *, seed: int = 0) -> None:
        super().__init__()
        self.maps, self.width = maps, check_count("width", width)
        check_count("layers", layers)
        generator = torch.Generator().manual_seed(seed)
        taps = math.prod(maps.kernel)

        def uniform(*shape: int, terms: int) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(terms))

        self.first = uniform(width, maps.points, *maps.kernel, terms=maps.points * taps)
        self.hidden = uniform(layers, width, width, *maps.kernel, terms=width * taps)
        self.bias = uniform(layers + 1, width, terms=width * taps)
        self.last = nn.Parameter(torch.zeros(maps.points, width, *maps.kernel))

    def forward(self, y: Tensor) -> Tensor:
        """Return the map at y, same shape as y."""
        return in_parts(self._map, y, self.width)

    def _map(self, y: Tensor) -> Tensor:
        h = functional.leaky_relu(self.maps.apply(y, self.first, self.bias[0]), LEAK)
        for weight, bias in zip(self.hidden, self.bias[1:], strict=True):
            h = h + functional.leaky_relu(self.maps.apply(h, weight, bias), LEAK)
        return y + self.maps.apply(h, self.last)


@dataclass(frozen=True)
class Refinement:
    """The result of `refine`, instance by instance."""

    x: Tensor  # the points `(B, ...)` of the smallest residual
    residual: Tensor  # ||gradient(x) - y||_2, `(B,)`
    iterations: Tensor  # Newton iterations taken, `(B,)`
    converged: Tensor  # whether the residual is at most the tolerance, `(B,)`


@torch.no_grad()
def refine(
    potential: PotentialNetwork, y: Tensor, start: Tensor, tolerance: float = 1e-6, iterations: int = 100
) -> Refinement:
    r"""Solve gradient(x) = y by minimising the strongly convex Psi(x) - <y, x>, instance by instance, from `start`.

    With sigma the strong convexity of Psi, the solution is within residual / sigma of x. The result has no graph.

    This is Newton's method with conjugate gradients and a line search, at most `iterations` for each instance. A smooth
    potential has a solution for every y. The gradient of a leaky potential jumps at kinks; the kinks are smoothed with
    `Activation(beta)`, and beta grows by factors of ten until the residual is at most the tolerance. If y lies inside a
    jump, no x has this gradient: the instance does not converge, and x is near the kink that minimises Psi(x) - <y, x>.
    Choose a smooth potential if arbitrary y have to be inverted.
    """
    x, best = start.clone(), start.clone()
    residual = norm_of(potential.gradient(x) - y, "l2")
    taken = torch.zeros_like(residual, dtype=torch.int64)
    for beta in (None,) if potential.is_smooth else SHARPNESSES:
        is_last = beta is None or beta == SHARPNESSES[-1]
        left = torch.isfinite(residual) & (residual > tolerance) & (taken < iterations)
        index, goal = left.nonzero().flatten(), None
        while len(index):
            objective = _Objective(potential, x[index], y[index], beta)
            if goal is None:  # a tenth of the residual if a sharper problem follows
                goal = ((0.0 if is_last else 0.1) * objective.norms).clamp(min=tolerance / 2)
            x[index], norms, stuck = objective.search(objective.newton_direction())
            taken[index] += 1
            ended = (norms <= goal) | stuck | (taken[index] >= iterations)
            done, index, goal = index[ended], index[~ended], goal[~ended]
            if len(done):
                norms = norm_of(potential.gradient(x[done]) - y[done], "l2")
                better = norms < residual[done]
                best[done[better]], residual[done[better]] = x[done[better]], norms[better]
    return Refinement(best, residual, taken, residual <= tolerance)


class _Objective:
    """Psi(x) - <y, x> near x; its kinks are smoothed if beta is given."""

    def __init__(self, potential: PotentialNetwork, x: Tensor, y: Tensor, beta: float | None) -> None:
        self.potential, self.y, self.beta = potential, y, beta
        with torch.enable_grad():
            self.x = x.requires_grad_()
            value, self.gradient = potential.value_and_gradient(self.x, beta)
        self.value = value.detach() - inner(x.detach(), y)
        self.slope = self.gradient.detach() - y
        self.norms = norm_of(self.slope, "l2")

    def newton_direction(self) -> Tensor:
        """Solve H d = -slope by conjugate gradients, to the relative residual min(0.1, sqrt(||slope||))."""

        def multiply(along: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(self.gradient, self.x, along, retain_graph=True)  # H is symmetric
            return product

        return conjugate_gradients(multiply, -self.slope, self.norms.clamp(max=0.01).sqrt(), MAX_CG_ITERATIONS)

    def search(self, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return an acceptable point along the direction, its residual, and which instances have none.

        A point is acceptable by Armijo's condition or, if the values agree up to rounding, by a smaller slope.
        """
        x, norms = self.x.detach(), self.norms
        fall = inner(self.slope, direction)
        rounding = 1e3 * torch.finfo(x.dtype).eps * (1 + self.value.abs())
        step = torch.ones_like(fall)
        open_ = torch.ones_like(fall, dtype=torch.bool)
        for _ in range(MAX_TRIALS):
            trial = self.x.detach() + per_instance(step, x) * direction
            value, gradient = self.potential.value_and_gradient(trial, self.beta)
            value = value - inner(trial, self.y)
            slope = inner(gradient - self.y, direction)
            lower = value <= self.value + 1e-4 * step * fall
            flatter = (value <= self.value + rounding) & (slope.abs() <= 0.9 * fall.abs())
            good = open_ & (lower | flatter)
            x = torch.where(good.reshape(-1, *(1,) * (x.ndim - 1)), trial, x)
            norms = torch.where(good, norm_of(gradient - self.y, "l2"), norms)
            open_ = open_ & ~good
            if not bool(open_.any()):
                break
            # Secant step: the slope grows with the step, and would be zero here if it grew linearly.
            step = torch.where(open_, step * (fall / (fall - slope)).clamp(0.1, 0.5), step)
        return x, norms, open_
