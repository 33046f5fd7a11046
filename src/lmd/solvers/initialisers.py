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
from lmd.core.tensor_cache import TensorCache
from lmd.errors import InputError
from lmd.problems.base import Problem

MIN_SPREAD = 1e-5
"""Directions of the data along which instances vary by less than this share of the most are left out."""


class Initialiser(nn.Module, Configurable, abc.ABC):
    """Points `(B, *shape)` for the instances of a problem.

    Args:
        shape: Of the points of one instance.
    """

    unit: Tensor
    """1, in the dtype and on the device of the points."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("unit", torch.ones(()))
        self.shape = [check_count("shape", length) for length in shape]

    @abc.abstractmethod
    def forward(self, problem: Problem, batch: int) -> Tensor:
        """Points `(B, *shape)` for a problem of `batch` instances."""

    @abc.abstractmethod
    def fit_(self, features: Tensor, optima: Tensor) -> None:
        """Learn from what tells instances apart `(B, m)`, and from their optima `(B, *shape)`."""


class MeanInitialiser(Initialiser):
    """The mean of the optima, for every instance.

    Args:
        shape: Of the points of one instance.
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
        shape: Of the points of one instance.
        count: Training instances that are kept.
        features: Numbers that tell instances apart.
    """

    seen: Tensor
    weight: Tensor
    optima: Tensor

    def __init__(self, shape: Sequence[int], count: int, features: int) -> None:
        super().__init__(shape)
        self.count, self.features = check_count("count", count), check_count("features", features)
        self.register_buffer("seen", torch.zeros(count, features))
        self.register_buffer("weight", torch.ones(features))
        self.register_buffer("optima", torch.zeros(count, *shape))

    def forward(self, problem: Problem, batch: int) -> Tensor:
        far = torch.cdist(_features(problem, self.features) * self.weight, self.seen)
        return self.optima[far.argmin(dim=1)]

    def fit_(self, features: Tensor, optima: Tensor) -> None:
        spread = features.std(dim=0)
        self.weight = torch.where(spread > MIN_SPREAD * spread.max(), 1 / spread, 0)
        self.seen, self.optima = features * self.weight, optima


class NetworkInitialiser(Initialiser):
    """x = c + s (L a + network(a)) with a `(B, rank)` the data along the directions in which instances vary most.

    c and s are the mean and the spread of the optima, `fit_` solves for L by ridge regression; the network, of two
    hidden layers, begins at 0 and is trained with the solver. Without `hidden` units the start is linear in the data.

    Args:
        shape: Of the points of one instance.
        features: Numbers that tell instances apart.
        rank: Directions of the data that are looked at.
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
        self._folds = TensorCache[list[Tensor]]()
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
        features = _features(problem, self.features)
        directions, base, line, *layers = self._parts() if torch.is_grad_enabled() else self._folded()
        told = features @ directions
        x = torch.addmm(base, told, line)
        if layers:
            one, first, two, second, last = layers
            inner = torch.addmm(two, torch.addmm(one, told, first).relu_(), second).relu_()
            x.addmm_(inner, last)
        return x.reshape(-1, *self.shape)

    def _parts(self) -> list[Tensor]:
        """What points are computed from: matrices and shifts, with the centre, the mean and the spread within them."""
        shift, line = -self.centre @ self.directions, self.spread * self.linear.weight.mT
        layers = [layer for layer in self.network if isinstance(layer, nn.Linear)]
        last = self.linear.bias + (layers[-1].bias if layers else 0)
        along = self.directions.mT.contiguous().mT  # which torch multiplies by faster, where there are few directions
        parts = [along, torch.addcmul(self.mean, self.spread, last) + shift @ line, line]
        if layers:
            first, second, third = (layer.weight.mT for layer in layers)
            parts += [layers[0].bias + shift @ first, first, layers[1].bias, second, self.spread * third]
        return parts

    def _folded(self) -> list[Tensor]:
        """The same, computed anew when something has changed."""
        return self._folds.get([self.centre, self.directions, self.mean, self.spread, *self.parameters()], self._parts)

    @torch.no_grad()
    def fit_(self, features: Tensor, optima: Tensor) -> None:
        kind, given = features.dtype, features.double()
        self.centre = given.mean(dim=0).to(kind)
        _, spread, turned = torch.linalg.svd(given - given.mean(dim=0), full_matrices=False)
        scale = spread[: self.rank].clamp(min=MIN_SPREAD * float(spread[0])) / math.sqrt(len(given))
        directions = turned[: self.rank].mT / scale
        self.directions = directions.to(kind)
        told, wanted = (given - given.mean(dim=0)) @ directions, optima.flatten(1).double()
        ridge = 1e-4 * len(told) * torch.eye(told.shape[1], dtype=told.dtype, device=told.device)
        away = wanted - wanted.mean(dim=0)
        spread = away.std().clamp(min=torch.finfo(kind).tiny)
        self.mean, self.spread = wanted.mean(dim=0).to(kind), spread.to(kind)
        self.linear.weight.copy_(torch.linalg.solve(told.mT @ told + ridge, told.mT @ away / spread).mT)


def effective_rank(features: Tensor, most: int) -> int:
    """Along how many directions the data `(B, m)` vary, at most `most`."""
    spread = torch.linalg.svdvals(features.double() - features.double().mean(dim=0))
    return min(most, int((spread > MIN_SPREAD * spread[0]).sum()))


def _features(problem: Problem, count: int) -> Tensor:
    features = problem.data_vector()
    if features.shape[1] != count:
        raise InputError("problem", f"{features.shape[1]} numbers per instance", f"{count}, as the start was made for")
    return features
