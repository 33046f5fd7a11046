"""Starting points that are learned from the optima of a class, by themselves or from the data of an instance."""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count
from lmd.core.config import Configurable
from lmd.errors import InputError
from lmd.problems.base import Problem

MIN_SPREAD = 1e-5  # directions along which the data vary by less than this share of the largest spread are left out


class Initialiser(nn.Module, Configurable, abc.ABC):
    """Points `(B, *shape)` for the instances of a problem.

    Args:
        shape: The shape of the points of one instance.
    """

    unit: Tensor  # 1, in the dtype and on the device of the points

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("unit", torch.ones(()))
        self.shape = [check_count("shape", length) for length in shape]

    @abc.abstractmethod
    def forward(self, problem: Problem, batch: int) -> Tensor:
        """Points `(B, *shape)` for a problem of `batch` instances."""

    @abc.abstractmethod
    def fit_(self, features: Tensor, optima: Tensor) -> None:
        """Fit to the data vectors of instances `(B, m)` and their optima `(B, *shape)`."""


class MeanInitialiser(Initialiser):
    """The mean of the optima, for every instance.

    Args:
        shape: The shape of the points of one instance.
    """

    mean: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__(shape)
        self.register_buffer("mean", torch.zeros(*shape))

    def forward(self, problem: Problem, batch: int) -> Tensor:
        return self.mean.expand(batch, *self.shape)

    def fit_(self, features: Tensor, optima: Tensor) -> None:
        self.mean = optima.mean(dim=0)


class NearestInitialiser(Initialiser):
    """The optimum of the training instance whose data are nearest, each number measured by how much it varies.

    Args:
        shape: The shape of the points of one instance.
        count: Number of training instances.
        features: Entries of `Problem.data_vector`.
    """

    scaled: Tensor
    weight: Tensor
    optima: Tensor

    def __init__(self, shape: Sequence[int], count: int, features: int) -> None:
        super().__init__(shape)
        self.count, self.features = check_count("count", count), check_count("features", features)
        self.register_buffer("scaled", torch.zeros(count, features))
        self.register_buffer("weight", torch.ones(features))
        self.register_buffer("optima", torch.zeros(count, *shape))

    def forward(self, problem: Problem, batch: int) -> Tensor:
        distance = torch.cdist(_features(problem, self.features) * self.weight, self.scaled)
        return self.optima[distance.argmin(dim=1)]

    def fit_(self, features: Tensor, optima: Tensor) -> None:
        spread = features.std(dim=0)
        self.weight = torch.where(spread > MIN_SPREAD * spread.max(), 1 / spread, 0)
        self.scaled, self.optima = features * self.weight, optima


class NetworkInitialiser(Initialiser):
    """x = c + s (L a + network(a)) with a `(B, rank)` the data along the directions in which instances vary most.

    c and s are the mean and the spread of the optima, `fit_` solves for L by ridge regression; the network, of two
    hidden layers, begins at 0 and is trained with the solver. Without `hidden` units the start is linear in the data.

    Args:
        shape: The shape of the points of one instance.
        features: Entries of `Problem.data_vector`.
        rank: Number of directions.
        hidden: Units of each hidden layer; 0 is no network.
    """

    mean: Tensor
    spread: Tensor

    centre: Tensor
    directions: Tensor

    def __init__(self, shape: Sequence[int], features: int, rank: int, hidden: int = 0) -> None:
        super().__init__(shape)
        self.features, self.rank = check_count("features", features), check_count("rank", rank)
        self.hidden, entries = check_count("hidden", hidden, least=0), math.prod(self.shape)
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("directions", torch.zeros(features, rank))
        self.register_buffer("mean", torch.zeros(entries))
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
        a = (_features(problem, self.features) - self.centre) @ self.directions
        x = self.linear(a) + self.network(a) if self.hidden else self.linear(a)
        return torch.addcmul(self.mean, self.spread, x).reshape(-1, *self.shape)

    @torch.no_grad()
    def fit_(self, features: Tensor, optima: Tensor) -> None:
        kind, given = features.dtype, features.double()
        self.centre = given.mean(dim=0).to(kind)
        _, spread, turned = torch.linalg.svd(given - given.mean(dim=0), full_matrices=False)
        scale = spread[: self.rank].clamp(min=MIN_SPREAD * float(spread[0])) / math.sqrt(len(given))
        directions = turned[: self.rank].mT / scale
        self.directions = directions.to(kind)
        a, targets = (given - given.mean(dim=0)) @ directions, optima.flatten(1).double()
        ridge = 1e-4 * len(a) * torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
        centred = targets - targets.mean(dim=0)
        spread = centred.std().clamp(min=torch.finfo(kind).tiny)
        self.mean, self.spread = targets.mean(dim=0).to(kind), spread.to(kind)
        self.linear.weight.copy_(torch.linalg.solve(a.mT @ a + ridge, a.mT @ centred / spread).mT)


def effective_rank(features: Tensor, most: int) -> int:
    """The number of directions along which the data `(B, m)` vary, at most `most`."""
    spread = torch.linalg.svdvals(features.double() - features.double().mean(dim=0))
    return min(most, int((spread > MIN_SPREAD * spread[0]).sum()))


def _features(problem: Problem, count: int) -> Tensor:
    features = problem.data_vector()
    if features.shape[1] != count:
        raise InputError("problem", f"{features.shape[1]} numbers per instance", f"{count}, as the start was made for")
    return features
