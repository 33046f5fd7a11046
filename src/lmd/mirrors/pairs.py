"""Learned mirrors: an input-convex network as potential and a second network as its inverse. Section 3 of the paper."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from lmd.checks import check_choice
from lmd.config import Configurable
from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.mirrors.convolutional import ConvICNN
from lmd.mirrors.inverse import Refinement, refine
from lmd.mirrors.potentials import DenseICNN, PotentialNetwork
from lmd.mirrors.residual import ConvResidual, DenseResidual

BACKWARDS = ("residual", "gradient")
PUBLISHED_SIZES = {"svm": (51, 96, 144), "classifier": (500, 128, 196)}
"""Dimension, width of the forward and of the backward network, of the published dense pairs."""


class LearnedPair(Mirror):
    """to_dual is the gradient of an input-convex `network`, to_primal a learned map `inverse`.

    `to_primal(y)` is one evaluation of the inverse, off by as much as it was not learned: `inconsistency` measures it,
    training keeps it small. `to_primal(y, tolerance=...)` starts there and refines the answer (see
    `lmd.mirrors.inverse`) until the dual residual ||to_dual(x) - y||_2 is at most the tolerance, which leaves an error
    of at most tolerance / strong_convexity. It says so with a warning where that takes more iterations than allowed or
    where, with a leaky network, no such x exists. No graph leads through a refined answer.
    """

    is_exact = False

    def __init__(self, network: PotentialNetwork, inverse: nn.Module) -> None:
        super().__init__()
        if not isinstance(network, PotentialNetwork) or network.constraint == "none":
            raise InputError("network", type(network).__name__, "a DenseICNN or ConvICNN with a constraint")
        if not isinstance(inverse, nn.Module) or not isinstance(inverse, Configurable):
            raise InputError("inverse", type(inverse).__name__, "a module with a config()")
        self.network = network
        self.inverse = inverse

    def config(self) -> dict[str, Any]:
        return {"network": self.network, "inverse": self.inverse}

    def check(self, argument: str, x: Tensor) -> Tensor:
        return self.network.check_shape(argument, super().check(argument, x))

    def potential(self, x: Tensor) -> Tensor:
        return self.network.value(x)

    def to_dual(self, x: Tensor) -> Tensor:
        return self.network.gradient(x)

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        self.network.check_shape("y", y)
        if tolerance is None:
            return self.inverse(y)
        refined = self.refine(y, tolerance)
        missed = ~refined.converged & torch.isfinite(refined.residual)  # a NaN is left to whoever looks for NaNs
        if bool(missed.any()):
            worst = float(refined.residual[missed].max())
            text = f"{int(missed.sum())} of {len(y)} instances missed the tolerance {tolerance:g}"
            warnings.warn(f"to_primal: {text}, the worst with a dual residual of {worst:.3g}", stacklevel=2)
        return refined.x

    def refine(self, y: Tensor, tolerance: float = 1e-6, iterations: int = 100) -> Refinement:
        """`to_primal` to a tolerance, with what is known about the answer of each instance."""
        with torch.no_grad():
            start = self.inverse(y)
        return refine(self.network, y, start, tolerance, iterations)

    @property
    def strong_convexity(self) -> Tensor:
        return self.network.strong_convexity


class DensePair(LearnedPair):
    """A learned mirror on vectors x `(B, d)`; the options of the networks are those of `DenseICNN`.

    backward    `residual`: a plain residual network, or `gradient`: the gradient of a second network like the first but
                not convex, as published. Both start at the identity, as `to_dual` does up to a few per cent.
    backward_width, backward_layers    the size of the backward network; as large as the forward one by default.
    backward_mixing                    mu of a backward network that is a gradient.
    """

    def __init__(
        self,
        dimension: int,
        width: int = 64,
        layers: int = 2,
        *,
        backward: str = "residual",
        backward_width: int | None = None,
        backward_layers: int | None = None,
        backward_mixing: float = 0.5,
        mixing: float = 0.1,
        quadratic: bool = True,
        activation: str = "smooth",
        beta: float = 10.0,
        constraint: str = "clip",
        curvature: bool = True,
        seed: int = 0,
    ) -> None:
        self.arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        size = (backward_width or width, backward_layers or layers)
        options: dict[str, Any] = {"quadratic": quadratic, "activation": activation, "beta": beta}
        options |= {"curvature": curvature, "seed": seed}
        inverse: nn.Module
        if check_choice("backward", backward, BACKWARDS) == "residual":
            inverse = DenseResidual(dimension, *size, seed=seed)
        else:
            inverse = DenseICNN(dimension, *size, mixing=backward_mixing, constraint="none", **options)
        network = DenseICNN(dimension, width, layers, mixing=mixing, constraint=constraint, **options)
        super().__init__(network, inverse)

    def config(self) -> dict[str, Any]:
        return dict(self.arguments)

    @classmethod
    def published(cls, name: str = "svm", seed: int = 0) -> DensePair:
        """The pair of the published experiments `svm` or `classifier`, at its published start."""
        dimension, width, backward = PUBLISHED_SIZES[check_choice("name", name, tuple(PUBLISHED_SIZES))]
        pair = cls(
            dimension,
            width,
            layers=4,
            backward="gradient",
            backward_width=backward,
            mixing=0.5,
            activation="leaky",
            curvature=False,
            seed=seed,
        )
        generator = torch.Generator().manual_seed(seed)
        assert isinstance(pair.network, DenseICNN) and isinstance(pair.inverse, DenseICNN)
        for net in (pair.network, pair.inverse):
            _published_uniform(net.out_linear, dimension, generator)
            _published_uniform(net.out_quadratic, dimension, generator)
        with torch.no_grad():
            for weight, gain in _hidden_weights(pair.network):
                weight.copy_(torch.exp(-4 + 0.1 * torch.randn(weight.shape, generator=generator)) / gain)
            for weight, gain in _hidden_weights(pair.inverse):
                _published_uniform(weight, backward, generator, gain)
        return pair


class ConvPair(LearnedPair):
    """A learned mirror on images x `(B, C, H, W)` of any size; the options of the networks are those of `ConvICNN`.

    The backward network is chosen as for `DensePair`; its kernel and borders are those of the forward one.

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
        kernel: int = 3,
        *,
        backward: str = "residual",
        backward_filters: int | None = None,
        backward_layers: int | None = None,
        backward_mixing: float = 0.5,
        border: str = "circular",
        reduction: str = "sum",
        mixing: float = 0.1,
        quadratic: bool = True,
        activation: str = "smooth",
        beta: float = 10.0,
        constraint: str = "clip",
        curvature: bool = True,
        seed: int = 0,
    ) -> None:
        self.arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        size = (backward_filters or filters, backward_layers or layers, kernel)
        options: dict[str, Any] = {"border": border, "reduction": reduction, "quadratic": quadratic}
        options |= {"activation": activation, "beta": beta, "curvature": curvature, "seed": seed}
        inverse: nn.Module
        if check_choice("backward", backward, BACKWARDS) == "residual":
            inverse = ConvResidual(channels, *size, border=border, seed=seed)
        else:
            inverse = ConvICNN(channels, *size, mixing=backward_mixing, constraint="none", **options)
        network = ConvICNN(channels, filters, layers, kernel, mixing=mixing, constraint=constraint, **options)
        super().__init__(network, inverse)

    def config(self) -> dict[str, Any]:
        return dict(self.arguments)

    @classmethod
    def published(cls, channels: int = 3, seed: int = 0) -> ConvPair:
        """The pair of the published imaging experiments, at its published start."""
        pair = cls(
            channels,
            filters=60,
            layers=3,
            backward="gradient",
            backward_filters=75,
            backward_layers=5,
            reduction="mean",
            activation="leaky",
            curvature=False,
            seed=seed,
        )
        generator = torch.Generator().manual_seed(seed)
        assert isinstance(pair.network, ConvICNN) and isinstance(pair.inverse, ConvICNN)
        with torch.no_grad():
            for weight, gain in _hidden_weights(pair.network):
                weight.copy_(0.001 * torch.rand(weight.shape, generator=generator) / gain)
            pair.network.out.mul_(9)  # a last convolution of 3 x 3 taps, summed up
            for weight, gain in _hidden_weights(pair.inverse):
                _published_uniform(weight, 75 * 9, generator, gain)
            pair.inverse.out.mul_(math.sqrt(9 * channels))
        return pair


def _hidden_weights(net: PotentialNetwork) -> tuple[tuple[Tensor, float], tuple[Tensor, float]]:
    return (net.hidden, net.gain), (net.out, net.gain_out)


@torch.no_grad()
def _published_uniform(weight: Tensor, terms: int, generator: torch.Generator, gain: float = 1.0) -> None:
    """PyTorch's default start of a linear layer: uniform in +-1/sqrt(terms)."""
    uniform = 2 * torch.rand(weight.shape, generator=generator) - 1
    weight.copy_(uniform / math.sqrt(terms) / gain)
