"""Plain residual networks as learned inverses: the paper does not ask the backward map to be a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.checks import check_choice, check_count, check_positive, shape_of
from lmd.config import Configurable
from lmd.errors import InputError
from lmd.mirrors.base import check_width
from lmd.mirrors.potentials import LEAK

BORDERS = {"circular": "circular", "replicate": "replicate"}


class ResidualNetwork(nn.Module, Configurable):
    """x = scale y + V z_layers, z_{i+1} = z_i + g(W_i z_i + b_i), z_0 = g(U y + b): y, x `(B, d)`, z `(B, width)`.

    g is the leaky ReLU. V starts at 0, so the network starts at scale y.
    """

    def __init__(self, dimension: int, width: int = 96, layers: int = 2, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        self.dimension = check_count("dimension", dimension)
        self.width = check_count("width", width)
        self.layers = check_count("layers", layers)
        self.scale = check_positive("scale", scale)
        self.seed = check_count("seed", seed, least=0)
        sizes = [(dimension, width), *[(width, width)] * layers]
        self.inner = nn.ModuleList(_filled(nn.Linear(*size), seed + place) for place, size in enumerate(sizes))
        self.out = nn.Parameter(torch.zeros(dimension, width))

    def config(self) -> dict[str, Any]:
        sizes = {"dimension": self.dimension, "width": self.width, "layers": self.layers}
        return {**sizes, "scale": self.scale, "seed": self.seed}

    def forward(self, y: Tensor) -> Tensor:
        """The network at y."""
        first, *rest = self.inner
        z = functional.leaky_relu(first(check_width("y", y, self.dimension)), LEAK)
        for layer in rest:
            z = z + functional.leaky_relu(layer(z), LEAK)
        return self.scale * y + z @ self.out.T


class ConvResidualNetwork(nn.Module, Configurable):
    """The network of `ResidualNetwork` on images `(B, C, H, W)` of any size, its linear maps convolutions."""

    def __init__(
        self,
        channels: int = 3,
        filters: int = 32,
        layers: int = 2,
        kernel: int = 3,
        border: str = "circular",
        scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.channels = check_count("channels", channels)
        self.filters = check_count("filters", filters)
        self.layers = check_count("layers", layers)
        self.kernel = check_count("kernel", kernel)
        if kernel % 2 == 0:
            raise InputError("kernel", kernel, "an odd number")
        self.border = check_choice("border", border, tuple(BORDERS))
        self.scale = check_positive("scale", scale)
        self.seed = check_count("seed", seed, least=0)
        sizes = [(channels, filters), *[(filters, filters)] * layers]
        same: dict[str, Any] = {"padding": kernel // 2, "padding_mode": BORDERS[border]}
        self.inner = nn.ModuleList(
            _filled(nn.Conv2d(*size, kernel, **same), seed + place) for place, size in enumerate(sizes)
        )
        self.out = nn.Conv2d(filters, channels, kernel, bias=False, **same)
        nn.init.zeros_(self.out.weight)

    def config(self) -> dict[str, Any]:
        sizes = {"channels": self.channels, "filters": self.filters, "layers": self.layers, "kernel": self.kernel}
        return {**sizes, "border": self.border, "scale": self.scale, "seed": self.seed}

    def forward(self, y: Tensor) -> Tensor:
        """The network at y."""
        if y.ndim != 4 or y.shape[1] != self.channels:
            raise InputError("y", f"shape {shape_of(y)}", f"images (B, {self.channels}, H, W)")
        first, *rest = self.inner
        z = functional.leaky_relu(first(y), LEAK)
        for layer in rest:
            z = z + functional.leaky_relu(layer(z), LEAK)
        change: Tensor = self.out(z)
        return self.scale * y + change


def _filled(layer: nn.Linear | nn.Conv2d, seed: int) -> nn.Module:
    """The layer with entries drawn from the seed, uniform with the deviation that keeps the size of its input."""
    generator = torch.Generator().manual_seed(seed)
    width = (3 / layer.weight[0].numel()) ** 0.5
    assert layer.bias is not None
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            parameter.copy_(width * (2 * torch.rand(parameter.shape, generator=generator) - 1))
    return layer
