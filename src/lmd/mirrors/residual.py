"""Plain residual networks as learned inverses: the paper asks no more of a backward map than to invert the forward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import check_choice, check_count
from lmd.core.config import Configurable
from lmd.errors import InputError
from lmd.mirrors.convolutional import BORDERS, pad, parts_in_cache
from lmd.mirrors.potentials import LEAK
from lmd.mirrors.tiles import in_tiles


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
        """The map at y."""
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
        """The map at y; of large images tile by tile, where no graph is recorded."""
        if torch.is_grad_enabled():
            return self._map(y)
        return in_tiles(self._in_parts, y, (self.layers + 2) * (self.kernel // 2), self.border)

    def _in_parts(self, y: Tensor) -> Tensor:
        return torch.cat([self._map(part) for part in torch.split(y, parts_in_cache(y, self.filters))])

    def _map(self, y: Tensor) -> Tensor:
        correction = self._correction(y.permute(0, 2, 3, 1), self._convolve)
        return y + correction.permute(0, 3, 1, 2)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A convolution of x `(B, H, W, channels)`, to the same size."""
        padded = pad(x, self.kernel // 2, self.border).permute(0, 3, 1, 2)
        return functional.conv2d(padded, weight, bias).permute(0, 2, 3, 1)
