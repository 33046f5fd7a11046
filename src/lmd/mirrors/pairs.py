"""Learned mirrors: an input-convex network as potential and a second network as its inverse. Section 3 of the paper."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import check_choice, check_count, check_positive
from lmd.core.config import Configurable
from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.mirrors.convolutional import BORDERS, ConvICNN, in_tiles, instances_in_cache, pad
from lmd.mirrors.inverse import Refinement, refine
from lmd.mirrors.potentials import LEAK, DenseICNN, PotentialNetwork

BACKWARDS = ("residual", "gradient")
FORWARD_CONSTRAINTS = ("clip", "softplus")


class Pair(Mirror):
    """to_dual(x) = scale forward_net.gradient(x), to_primal(y) = backward_net(y / scale).

    `to_primal(y)` is one evaluation of the backward network, whose error `inconsistency` measures and training keeps
    small. `to_primal(y, tolerance=...)` refines it (`lmd.mirrors.inverse`) until the dual residual
    ||to_dual(x) - y||_2 is at most the tolerance, which leaves an error of at most tolerance / strong_convexity; a
    warning says where that needs too many iterations or where, with a leaky network, no such x exists. No graph leads
    through a refined answer.

    Args:
        forward_net: A `DenseICNN` or `ConvICNN` with a constraint.
        backward_net: A network from y to x with a `config()`, such as a residual one.
        scale: A positive number; it makes step-sizes of a common size fit problems with large gradients.
    """

    is_exact = False

    def __init__(self, forward_net: PotentialNetwork, backward_net: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        if not isinstance(forward_net, PotentialNetwork) or forward_net.constraint == "none":
            raise InputError("forward_net", type(forward_net).__name__, "a DenseICNN or ConvICNN with a constraint")
        if not (isinstance(backward_net, nn.Module) and isinstance(backward_net, Configurable)):
            raise InputError("backward_net", type(backward_net).__name__, "a module with a config()")
        self.forward_net: PotentialNetwork = forward_net
        self.backward_net: nn.Module = backward_net
        self.scale = check_positive("scale", scale)

    def config(self) -> dict[str, Any]:
        return {"forward_net": self.forward_net, "backward_net": self.backward_net, "scale": self.scale}

    def check(self, argument: str, x: Tensor) -> Tensor:
        return self.forward_net.check_shape(argument, super().check(argument, x))

    def potential(self, x: Tensor) -> Tensor:
        return self.scale * self.forward_net.value(x)

    def to_dual(self, x: Tensor) -> Tensor:
        return self.scale * self.forward_net.gradient(x)

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        if tolerance is None:
            return self._guess(y)
        refined = self.refine(y, tolerance)
        missed = ~refined.converged & torch.isfinite(refined.residual)  # NaNs are reported elsewhere
        if bool(missed.any()):
            worst = float(refined.residual[missed].max())
            text = f"{int(missed.sum())} of {len(y)} instances missed the tolerance {tolerance:g}"
            warnings.warn(f"to_primal: {text}, the worst with a dual residual of {worst:.3g}", stacklevel=2)
        return refined.x

    def refine(self, y: Tensor, tolerance: float = 1e-6, iterations: int = 100) -> Refinement:
        """Return `to_primal` to a tolerance, with the residual and iterations of each instance."""
        check_positive("tolerance", tolerance)
        with torch.no_grad():
            start = self._guess(y)
        found = refine(self.forward_net, y / self.scale, start, tolerance / self.scale, iterations)
        return Refinement(found.x, self.scale * found.residual, found.iterations, found.converged)

    def _guess(self, y: Tensor) -> Tensor:
        x: Tensor = self.backward_net(self.forward_net.check_shape("y", y) / self.scale)
        return x

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
            but not convex, as published. Both start at the identity, as `to_dual` does up to a few per cent.
        backward_width: Units of a layer of the backward network; None is `width`.
        backward_layers: Layers of the backward network; None is `layers`.
        scale: What `to_dual` is multiplied by, fixed and positive.
        mixing: mu of the forward network, in (0, 1).
        backward_mixing: mu of a backward network that is a gradient.
        quadratic: Whether layers have the squares (Wq x)^2.
        activation: "smooth" or "leaky".
        beta: The sharpness of the smooth activation, positive.
        constraint: How the forward network stays convex: "clip" or "softplus".
        curvature: Whether the potential has a learned multiple of ||x||^2 / 2, which starts at 1.
        seed: Of the weights at the start.
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
        backward_mixing: float = 0.5,
        quadratic: bool = True,
        activation: str = "smooth",
        beta: float = 10.0,
        constraint: str = "clip",
        curvature: bool = True,
        seed: int = 0,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        size = (backward_width or width, backward_layers or layers)
        options: dict[str, Any] = {"quadratic": quadratic, "activation": activation, "beta": beta}
        options |= {"curvature": curvature, "seed": seed}
        check_choice("constraint", constraint, FORWARD_CONSTRAINTS)
        backward_net: nn.Module
        if check_choice("backward", backward, BACKWARDS) == "residual":
            backward_net = DenseResidual(dimension, *size, seed=seed)
        else:
            backward_net = DenseICNN(dimension, *size, mixing=backward_mixing, constraint="none", **options)
        forward_net = DenseICNN(dimension, width, layers, mixing=mixing, constraint=constraint, **options)
        super().__init__(forward_net, backward_net, scale)
        self.arguments = arguments

    def config(self) -> dict[str, Any]:
        return dict(self.arguments)

    @classmethod
    def published(cls, dimension: int = 51, width: int = 96, backward_width: int = 144, seed: int = 0) -> DensePair:
        """Return the published pair with its published weights at the start: for the SVM, or (500, 128, 196) for the
        classifier."""
        options: dict[str, Any] = {"mixing": 0.5, "activation": "leaky", "curvature": False, "seed": seed}
        pair = cls(dimension, width, 4, "gradient", backward_width, **options)
        generator = torch.Generator().manual_seed(seed)
        nets: Any = (pair.forward_net, pair.backward_net)
        forward_net, backward_net = nets
        with torch.no_grad():
            for net in (forward_net, backward_net):
                net.out_linear.copy_(_uniform(net.out_linear, dimension, generator))
                net.out_quadratic.copy_(_uniform(net.out_quadratic, dimension, generator))
            for weight, gain in _inner_weights(forward_net):
                weight.copy_(
                    torch.exp(-4 + 0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)) / gain
                )
            for weight, gain in _inner_weights(backward_net):
                weight.copy_(_uniform(weight, backward_width, generator) / gain)
        return pair


class ConvPair(Pair):
    """A learned mirror on images x `(B, C, H, W)` of any size.

    Args:
        channels: C.
        filters: Channels inside the forward network.
        layers: Layers of the forward network on top of the first.
        backward: "residual" or "gradient", as for `DensePair`; with the kernel and borders of the forward network.
        backward_filters: Channels inside the backward network; None is `filters`.
        backward_layers: Layers of the backward network; None is `layers`.
        kernel: The side of the convolutions in pixels, odd.
        border: How images continue past their borders: "circular" or "replicate".
        reduction: Whether the read-out is the "sum" or the "mean" over the pixels.
        scale: What `to_dual` is multiplied by, fixed and positive.
        mixing: mu of the forward network, in (0, 1).
        backward_mixing: mu of a backward network that is a gradient.
        quadratic: Whether layers have the squares (Wq x)^2.
        activation: "smooth" or "leaky".
        beta: The sharpness of the smooth activation, positive.
        constraint: How the forward network stays convex: "clip" or "softplus".
        curvature: Whether the potential has a learned multiple of ||x||^2 / 2, which starts at 1.
        seed: Of the weights at the start.

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
        backward_mixing: float = 0.5,
        quadratic: bool = True,
        activation: str = "smooth",
        beta: float = 10.0,
        constraint: str = "clip",
        curvature: bool = True,
        seed: int = 0,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        size = (backward_filters or filters, backward_layers or layers, kernel)
        options: dict[str, Any] = {"border": border, "reduction": reduction, "quadratic": quadratic}
        options |= {"activation": activation, "beta": beta, "curvature": curvature, "seed": seed}
        check_choice("constraint", constraint, FORWARD_CONSTRAINTS)
        backward_net: nn.Module
        if check_choice("backward", backward, BACKWARDS) == "residual":
            backward_net = ConvResidual(channels, *size, border=border, seed=seed)
        else:
            backward_net = ConvICNN(channels, *size, mixing=backward_mixing, constraint="none", **options)
        forward_net = ConvICNN(channels, filters, layers, kernel, mixing=mixing, constraint=constraint, **options)
        super().__init__(forward_net, backward_net, scale)
        self.arguments = arguments

    def config(self) -> dict[str, Any]:
        return dict(self.arguments)

    @classmethod
    def published(cls, channels: int = 3, filters: int = 60, backward_filters: int = 75, seed: int = 0) -> ConvPair:
        """Return the published pair of the imaging experiments with its published weights at the start."""
        options: dict[str, Any] = {"reduction": "mean", "activation": "leaky", "curvature": False, "seed": seed}
        pair = cls(channels, filters, 3, "gradient", backward_filters, 5, **options)
        generator = torch.Generator().manual_seed(seed)
        nets: Any = (pair.forward_net, pair.backward_net)
        forward_net, backward_net = nets
        with torch.no_grad():
            for weight, gain in _inner_weights(forward_net):
                weight.copy_(0.001 * torch.rand(weight.shape, generator=generator, dtype=weight.dtype) / gain)
            for weight, gain in _inner_weights(backward_net):
                weight.copy_(_uniform(weight, 9 * backward_filters, generator) / gain)
            # A last convolution of 3 x 3 taps, to one channel and to as many as the image has, summed up.
            forward_net.out.mul_(9)
            backward_net.out.mul_(math.sqrt(9 * channels))
        return pair


def _inner_weights(net: PotentialNetwork) -> tuple[tuple[Tensor, float], tuple[Tensor, float]]:
    return (net.hidden, net.gain), (net.out, net.gain_out)


def _uniform(weight: Tensor, terms: int, generator: torch.Generator) -> Tensor:
    """Draw PyTorch's default start of a linear layer: uniform in +-1/sqrt(terms)."""
    return (2 * torch.rand(weight.shape, generator=generator, dtype=weight.dtype) - 1) / math.sqrt(terms)


class _Residual(nn.Module, Configurable):
    """y + W h_layers, h_0 = g(W_0 y + b_0), h_i = h_{i-1} + g(W_i h_{i-1} + b_i), with g the leaky ReLU.

    The last W starts at 0, so the map starts at the identity.
    """

    def _set_parameters(self, points: int, width: int, layers: int, kernel: tuple[int, ...], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        taps = math.prod(kernel)

        def uniform(*shape: int, terms: int) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(terms))

        self.first = uniform(width, points, *kernel, terms=points * taps)
        self.hidden = uniform(layers, width, width, *kernel, terms=width * taps)
        self.bias = uniform(layers + 1, width, terms=width * taps)
        self.last = nn.Parameter(torch.zeros(points, width, *kernel))

    def _correction(self, y: Tensor, apply: Callable[..., Tensor]) -> Tensor:
        h = functional.leaky_relu(apply(y, self.first, self.bias[0]), LEAK)
        for weight, bias in zip(self.hidden.unbind(0), self.bias[1:].unbind(0), strict=True):
            h = h + functional.leaky_relu(apply(h, weight, bias), LEAK)
        return apply(h, self.last)


class DenseResidual(_Residual):
    """The residual network on vectors y `(B, d)`."""

    def __init__(self, dimension: int, width: int = 64, layers: int = 2, *, seed: int = 0) -> None:
        super().__init__()
        self.dimension = check_count("dimension", dimension)
        self.width = check_count("width", width)
        self.layers = check_count("layers", layers)
        self.seed = check_count("seed", seed, least=0)
        self._set_parameters(dimension, width, layers, (), seed)

    def config(self) -> dict[str, Any]:
        return {"dimension": self.dimension, "width": self.width, "layers": self.layers, "seed": self.seed}

    def forward(self, y: Tensor) -> Tensor:
        """Return the map at y."""
        return y + self._correction(y, functional.linear)


class ConvResidual(_Residual):
    """The residual network on images y `(B, C, H, W)` of any size, its linear maps convolutions."""

    def __init__(
        self,
        channels: int = 3,
        filters: int = 32,
        layers: int = 2,
        kernel: int = 3,
        *,
        border: str = "circular",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.channels = check_count("channels", channels)
        self.filters = check_count("filters", filters)
        self.layers = check_count("layers", layers)
        self.kernel = check_count("kernel", kernel)
        if kernel % 2 == 0:
            raise InputError("kernel", kernel, "an odd number")
        self.border = check_choice("border", border, BORDERS)
        self.seed = check_count("seed", seed, least=0)
        self._set_parameters(channels, filters, layers, (kernel, kernel), seed)

    def config(self) -> dict[str, Any]:
        sizes = {"channels": self.channels, "filters": self.filters, "layers": self.layers, "kernel": self.kernel}
        return {**sizes, "border": self.border, "seed": self.seed}

    def forward(self, y: Tensor) -> Tensor:
        """Return the map at y; of large images tile by tile, where no graph is recorded."""
        if torch.is_grad_enabled():
            return self._map(y)
        return in_tiles(self._in_parts, y, (self.layers + 2) * (self.kernel // 2), self.border)

    def _in_parts(self, y: Tensor) -> Tensor:
        return torch.cat([self._map(part) for part in torch.split(y, instances_in_cache(y, self.filters))])

    def _map(self, y: Tensor) -> Tensor:
        correction = self._correction(y.permute(0, 2, 3, 1), self._convolve)
        return y + correction.permute(0, 3, 1, 2)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Convolve x `(B, H, W, channels)`, to the same size."""
        padded = pad(x, self.kernel // 2, self.border).permute(0, 3, 1, 2)
        return functional.conv2d(padded, weight, bias).permute(0, 2, 3, 1)
