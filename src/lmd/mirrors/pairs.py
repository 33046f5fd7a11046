"""Learned mirrors: an input-convex network as potential and a second network as its inverse. Section 3 of the paper."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import check_choice, check_count, check_positive
from lmd.mirrors.base import Mirror
from lmd.mirrors.convolutional import BORDERS, ConvICNN, check_kernel, instances_in_cache, pad
from lmd.mirrors.inverse import refine
from lmd.mirrors.potentials import LEAK, DenseICNN, PotentialNetwork

BACKWARDS = ("residual", "gradient")
BACKWARD_MIXING = 0.5  # mu of a backward network that is a gradient, as published


class Pair(Mirror):
    """to_dual(x) = scale forward_net.gradient(x), to_primal(y) = backward_net(y / scale).

    `to_primal(y)` is one evaluation of the backward network, whose error `inconsistency` measures and training keeps
    small. `to_primal(y, tolerance=...)` refines it (`lmd.mirrors.inverse`) until the dual residual
    ||to_dual(x) - y||_2 is at most the tolerance, which leaves an error of at most tolerance / strong_convexity; a
    warning says how many instances need too many iterations or, with a leaky network, have no such x. No graph leads
    through a refined answer.

    Args:
        forward_net: An input-convex network.
        backward_net: A network from y to x.
        arguments: The arguments of the constructor of the subclass; its `scale`, a positive number, makes step-sizes
            of a common size fit problems with large gradients.
    """

    is_exact = False

    def __init__(self, forward_net: PotentialNetwork, backward_net: nn.Module, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.forward_net, self.backward_net, self.arguments = forward_net, backward_net, arguments
        self.scale = check_positive("scale", arguments["scale"])

    def config(self) -> dict[str, Any]:
        return dict(self.arguments)

    def check_shape(self, argument: str, y: Tensor) -> Tensor:
        return self.forward_net.check_shape(argument, y)

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
            but not convex, as published. Both start at the identity, as `to_dual` does up to a few per cent.
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
        size = (backward_width or width, backward_layers or layers)
        options: dict[str, Any] = {"activation": activation, "curvature": curvature, "seed": seed}
        backward_net: nn.Module
        if check_choice("backward", backward, BACKWARDS) == "residual":
            backward_net = DenseResidual(dimension, *size, seed=seed)
        else:
            backward_net = DenseICNN(dimension, *size, mixing=BACKWARD_MIXING, convex=False, **options)
        super().__init__(DenseICNN(dimension, width, layers, mixing=mixing, **options), backward_net, arguments)


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
        scale: A positive factor of `to_dual`, fixed.
        mixing: mu of the forward network, in (0, 1).
        activation: "smooth" or "leaky".
        curvature: Whether the potential has a learned multiple of ||x||^2 / 2, which starts at 1.
        seed: The seed of the initial weights.

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
        size = (backward_filters or filters, backward_layers or layers, kernel)
        options: dict[str, Any] = {"border": border, "reduction": reduction, "activation": activation}
        options |= {"curvature": curvature, "seed": seed}
        backward_net: nn.Module
        if check_choice("backward", backward, BACKWARDS) == "residual":
            backward_net = ConvResidual(channels, *size, border=border, seed=seed)
        else:
            backward_net = ConvICNN(channels, *size, mixing=BACKWARD_MIXING, convex=False, **options)
        forward_net = ConvICNN(channels, filters, layers, kernel, mixing=mixing, **options)
        super().__init__(forward_net, backward_net, arguments)

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
            # A last convolution of 3 x 3 taps, to one channel and to as many as the image has, summed up.
            forward_net.out.mul_(9)
            backward_net.out.mul_(math.sqrt(9 * channels))
        return pair


class _Residual(nn.Module):
    """y + W h_layers, h_0 = g(W_0 y + b_0), h_i = h_{i-1} + g(W_i h_{i-1} + b_i), with g the leaky ReLU.

    The last W starts at 0, so the map starts at the identity.
    """

    def __init__(self, points: int, width: int, layers: int, kernel: tuple[int, ...], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        check_count("width", width)
        check_count("layers", layers)
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
        super().__init__(check_count("dimension", dimension), width, layers, (), seed)

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
        check_kernel(kernel)
        super().__init__(check_count("channels", channels), filters, layers, (kernel, kernel), seed)
        self.filters, self.radius, self.border = filters, kernel // 2, check_choice("border", border, BORDERS)

    def forward(self, y: Tensor) -> Tensor:
        """Return the map at y; without a graph, for as many images at once as fit into the cache."""
        parts = (y,) if torch.is_grad_enabled() else torch.split(y, instances_in_cache(y, self.filters))
        return torch.cat([self._map(part) for part in parts])

    def _map(self, y: Tensor) -> Tensor:
        correction = self._correction(y.permute(0, 2, 3, 1), self._convolve)
        return y + correction.permute(0, 3, 1, 2)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Convolve x `(B, H, W, channels)`, to the same size."""
        padded = pad(x, self.radius, self.border).permute(0, 3, 1, 2)
        return functional.conv2d(padded, weight, bias).permute(0, 2, 3, 1)
