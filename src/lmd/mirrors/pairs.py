"""Learned mirrors: an input-convex network as potential and a second network as its inverse. Section 3 of the paper."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_choice, check_positive
from lmd.core.config import Configurable
from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.mirrors.convolutional import ConvICNN
from lmd.mirrors.inverse import Refinement, refine
from lmd.mirrors.potentials import DenseICNN, PotentialNetwork
from lmd.mirrors.residual import ConvResidual, DenseResidual

BACKWARDS = ("residual", "gradient")
FORWARD_CONSTRAINTS = ("clip", "softplus")


class Pair(Mirror):
    """to_dual(x) = scale forward_net.gradient(x), to_primal(y) = backward_net(y / scale).

    `to_primal(y)` is one evaluation of the backward network, off by as much as it was not learned: `inconsistency`
    measures it, training keeps it small. `to_primal(y, tolerance=...)` starts there and refines the answer (see
    `lmd.mirrors.inverse`) until the dual residual ||to_dual(x) - y||_2 is at most the tolerance, which leaves an error
    of at most tolerance / strong_convexity. It says so with a warning where that takes more iterations than allowed or
    where, with a leaky network, no such x exists. No graph leads through a refined answer.

    `scale` is fixed; it makes step-sizes of a common size fit problems with large gradients.

    Args:
        forward_net: A `DenseICNN` or `ConvICNN` with a constraint, whose gradient is `to_dual`.
        backward_net: A network from y to x with a `config()`, such as a residual one.
        scale: A positive number.
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
        missed = ~refined.converged & torch.isfinite(refined.residual)  # a NaN is left to whoever looks for NaNs
        if bool(missed.any()):
            worst = float(refined.residual[missed].max())
            text = f"{int(missed.sum())} of {len(y)} instances missed the tolerance {tolerance:g}"
            warnings.warn(f"to_primal: {text}, the worst with a dual residual of {worst:.3g}", stacklevel=2)
        return refined.x

    def refine(self, y: Tensor, tolerance: float = 1e-6, iterations: int = 100) -> Refinement:
        """`to_primal` to a tolerance, with what is known about the answer of each instance."""
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
    """A learned mirror on vectors x `(B, d)`; the options of the networks are those of `DenseICNN`.

    Args:
        dimension: d.
        width: Units of a layer of the forward network.
        layers: Of the forward network, on top of the first.
        backward: "residual", a plain residual network, or "gradient", the gradient of a second network like the first
            but not convex, as published. Both start at the identity, as `to_dual` does up to a few per cent.
        backward_width: Units of a layer of the backward network; None is as many as in the forward one.
        backward_layers: Of the backward network; None is as many as in the forward one.
        scale: What `to_dual` is multiplied by, fixed and positive.
        mixing: mu of the forward network, in (0, 1).
        backward_mixing: mu of a backward network that is a gradient.
        quadratic: Whether layers have the squares (Wq x)^2.
        activation: "smooth" or "leaky".
        beta: The sharpness of the smooth activation, positive.
        constraint: How the forward network stays convex: "clip" or "softplus".
        curvature: Whether the potential has a learned multiple of ||x||^2 / 2, which begins at 1.
        seed: What the weights are drawn from.
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
        """The published pair at its published start: by default for the SVM; (500, 128, 196) for the classifier."""
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
    """A learned mirror on images x `(B, C, H, W)` of any size; the options of the networks are those of `ConvICNN`.

    The backward network is chosen as for `DensePair`; its kernel and borders are those of the forward one.

    Args:
        channels: C.
        filters: Channels inside the forward network.
        layers: Of the forward network, on top of the first.
        backward: "residual" or "gradient", as for `DensePair`.
        backward_filters: Channels inside the backward network; None is as many as in the forward one.
        backward_layers: Of the backward network; None is as many as in the forward one.
        kernel: The side of the convolutions in pixels, odd.
        border: How images go on past their borders: "circular" or "replicate".
        reduction: Whether the read-out is the "sum" or the "mean" over the pixels.
        scale: What `to_dual` is multiplied by, fixed and positive.
        mixing: mu of the forward network, in (0, 1).
        backward_mixing: mu of a backward network that is a gradient.
        quadratic: Whether layers have the squares (Wq x)^2.
        activation: "smooth" or "leaky".
        beta: The sharpness of the smooth activation, positive.
        constraint: How the forward network stays convex: "clip" or "softplus".
        curvature: Whether the potential has a learned multiple of ||x||^2 / 2, which begins at 1.
        seed: What the weights are drawn from.

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
        """The published pair of the imaging experiments at its published start."""
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
    """PyTorch's default start of a linear layer: uniform in +-1/sqrt(terms)."""
    return (2 * torch.rand(weight.shape, generator=generator, dtype=weight.dtype) - 1) / math.sqrt(terms)
