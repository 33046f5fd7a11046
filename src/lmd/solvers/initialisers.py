"""Starting points learned from the optima of a problem class: their mean, or a function of the instance's data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count
from lmd.core.config import Configurable
from lmd.errors import InputError
from lmd.problems.base import Problem

MIN_SPREAD = 1e-5  # directions with a smaller spread of the data, relative to the largest spread, are ignored


class MeanInitialiser(nn.Module, Configurable):
    """An initialiser that starts every instance at the mean of the optima of its problem class.

    Args:
        shape: The shape of the points of one instance.
    """

    unit: Tensor  # 1, in the dtype and on the device of the points
    mean: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("unit", torch.ones(()))
        self.shape = [check_count("shape", length) for length in shape]
        self.register_buffer("mean", torch.zeros(*shape))

    def forward(self, problem: Problem, batch: int) -> Tensor:
        """Return points `(B, *shape)` for a problem of `batch` instances."""
        return self.mean.expand(batch, *self.shape)

    def fit_(self, features: Tensor, optima: Tensor) -> None:
        """Fit to the data vectors `(B, m)` of instances and their optima `(B, *shape)`."""
        self.mean = optima.mean(dim=0)


class NetworkInitialiser(MeanInitialiser):
    """x = c + s (L a + network(a)); a `(B, rank)` are the data's components along the directions of largest variance.

    c and s are the mean and the spread of the optima, and `fit_` computes L by ridge regression. The network has two
    hidden layers, returns 0 at first and is trained with the solver. Without `hidden` units, x is affine in the data.

    Args:
        features: Number of entries of `Problem.data_vector`.
        rank: Number of directions.
        hidden: Number of units in each hidden layer; 0 is no network.
    """

    spread: Tensor
    centre: Tensor
    directions: Tensor

    def __init__(self, shape: Sequence[int], features: int, rank: int, hidden: int = 0) -> None:
        super().__init__(shape)
        self.features, self.rank = check_count("features", features), check_count("rank", rank)
        self.hidden, entries = check_count("hidden", hidden, least=0), math.prod(self.shape)
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("directions", torch.zeros(features, rank))
        self.register_buffer("spread", torch.ones(()))
        self.linear = nn.Linear(rank, entries)
        sizes = (rank, hidden, hidden, entries) if hidden else ()
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
        self.network = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
        for number, layer in enumerate((self.linear, *layers)):
            nn.init.zeros_(layer.bias)
            nn.init.zeros_(layer.weight)
            if 0 < number < len(layers):
                drawn = torch.empty(layer.weight.shape, dtype=torch.float32)
                nn.init.kaiming_uniform_(drawn, generator=torch.Generator().manual_seed(number))
                layer.weight.data.copy_(drawn)

    def forward(self, problem: Problem, batch: int) -> Tensor:
        features = problem.data_vector()
        if features.shape[1] != self.features:
            accepted = f"{self.features}, as the start was made for"
            raise InputError("problem", f"{features.shape[1]} numbers per instance", accepted)
        a = (features - self.centre) @ self.directions
        x = self.linear(a) + self.network(a) if self.hidden else self.linear(a)
        return torch.addcmul(self.mean, self.spread, x.reshape(-1, *self.shape))

    @torch.no_grad()
    def fit_(self, features: Tensor, optima: Tensor) -> None:
        kind, given = features.dtype, features.double()
        self.centre = given.mean(dim=0).to(kind)
        _, spread, turned = torch.linalg.svd(given - given.mean(dim=0), full_matrices=False)
        scale = spread[: self.rank].clamp(min=MIN_SPREAD * float(spread[0])) / math.sqrt(len(given))
        directions = turned[: self.rank].mT / scale
        self.directions = directions.to(kind)
        a, mean = (given - given.mean(dim=0)) @ directions, optima.double().mean(dim=0)
        ridge = 1e-4 * len(a) * torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
        centred = (optima - mean).flatten(1)
        spread = centred.std().clamp(min=torch.finfo(kind).tiny)
        self.mean, self.spread = mean.to(kind), spread.to(kind)
        self.linear.weight.copy_(torch.linalg.solve(a.mT @ a + ridge, a.mT @ centred / spread).mT)


def effective_rank(features: Tensor, most: int) -> int:
    """Return the number of directions along which the data `(B, m)` vary, at most `most`."""
    spread = torch.linalg.svdvals(features.double() - features.double().mean(dim=0))
    return min(most, int((spread > MIN_SPREAD * spread[0]).sum()))
