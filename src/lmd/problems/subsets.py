"""Problems on data that many instances share: several starting points on one subset of features and labels."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmd.core.batching import doubled
from lmd.core.checks import check_count, check_finite, check_floating, check_same_kind, shape_of
from lmd.errors import InputError
from lmd.problems.base import Family, Problem

Subset = TypeVar("Subset", bound="SubsetProblem")

CHUNK = 1 << 18
"""How many scores to work on at a time: as many float32 as a processor's own cache holds, a megabyte."""


class SubsetProblem(Problem):
    """B functions on S data sets: instance i is on the data set `subset[i]`; no data is copied per instance.

    With `starts` = k, instances 0 to k-1 are on the first data set, the next k on the second, and so on.

    Everything is computed for a few instances at a time, as many as keep what they need in the processor's cache, and
    differentiating a value or a subgradient, as training does, stores nothing but x.
    """

    batched = ("subset",)

    def __init__(self, features: Tensor, labels: Tensor, starts: int) -> None:
        self.features, self.labels = check_pairs(features, labels)
        sets = torch.arange(len(self.features), device=features.device)
        self.subset = sets.repeat_interleave(check_count("starts", starts))

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """n, the number of variables of an instance."""

    @property
    @abc.abstractmethod
    def scores_per_instance(self) -> int:
        """How many numbers an instance needs at once."""

    @abc.abstractmethod
    def evaluate(self, data_set: int, x: Tensor, value: bool, gradient: bool) -> tuple[Tensor, ...]:
        """The values `(b,)`, if asked for, and then the subgradients `(b, n)`, if asked for, at points x `(b, n)`."""

    @abc.abstractmethod
    def curvature(self, data_set: int, x: Tensor, v: Tensor) -> Tensor:
        """The second derivative at points x `(b, n)` times v `(b, n)`, where there is one."""

    @abc.abstractmethod
    def accuracy(self, x: Tensor) -> Tensor:
        """The share of an instance's pairs that x classifies well, `(B,)`."""

    @property
    def terms(self) -> int:
        """m: one for each pair of a data set."""
        return self.features.shape[1]

    def some_pairs(self: Subset, indices: Tensor) -> Subset:
        """A copy with some of the pairs of every data set; what else depends on the pairs is left to the caller."""
        part = copy.copy(self)
        part.features, part.labels = self.features[:, indices], self.labels[:, indices]
        return part

    def check_start(self, x0: Tensor) -> Tensor:
        if x0.shape[1:] != (self.dimension,):
            accepted = f"shape (B, {self.dimension}) to go with features {shape_of(self.features)}"
            raise InputError("x0", f"shape {shape_of(x0)}", accepted)
        check_same_kind("x0", x0, "the features", self.features)
        return super().check_start(x0)

    def double(self: Subset) -> Subset:
        return doubled(self)

    def value(self, x: Tensor) -> Tensor:
        return _value(x, self)

    def subgradient(self, x: Tensor) -> Tensor:
        return _subgradient(x, self)

    def value_and_subgradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() and x.requires_grad:
            return self.value(x), self.subgradient(x)
        values, subgradients = self.in_chunks(partial(self.evaluate, value=True, gradient=True), x)
        return values, subgradients

    def in_chunks(self, function: Callable[..., tuple[Tensor, ...]], *points: Tensor) -> tuple[Tensor, ...]:
        """`function(data set, parts of the points)` of a few instances of one data set at a time, joined."""
        if any(point.shape != (len(self.subset), self.dimension) for point in points):
            shape = (len(self.subset), self.dimension)
            raise InputError("x", f"shape {shape_of(points[0])}", f"shape {shape}, as the problem has")
        size = max(1, CHUNK // self.scores_per_instance)
        runs, counts = torch.unique_consecutive(self.subset, return_counts=True)
        parts, begin = [], 0
        for data_set, count in zip(runs.tolist(), counts.tolist(), strict=True):
            for first in range(begin, begin + count, size):
                last = min(first + size, begin + count)
                parts.append(function(data_set, *(point[first:last] for point in points)))
            begin += count
        return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


class _Value(torch.autograd.Function):
    """The values, whose derivative is the subgradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, problem: SubsetProblem) -> Tensor:
        ctx.save_for_backward(x)
        ctx.problem = problem
        return problem.in_chunks(partial(problem.evaluate, value=True, gradient=False), x)[0]

    @staticmethod
    def backward(ctx: Any, *into: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return into[0].unsqueeze(1) * ctx.problem.subgradient(x), None


class _Subgradient(torch.autograd.Function):
    """The subgradients, whose derivative is the product with the curvature."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, problem: SubsetProblem) -> Tensor:
        ctx.save_for_backward(x)
        ctx.problem = problem
        return problem.in_chunks(partial(problem.evaluate, value=False, gradient=True), x)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *into: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        problem = ctx.problem
        return problem.in_chunks(lambda *parts: (problem.curvature(*parts),), x, into[0])[0], None


_value: Callable[[Tensor, SubsetProblem], Tensor] = _Value.apply
_subgradient: Callable[[Tensor, SubsetProblem], Tensor] = _Subgradient.apply


def check_pairs(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return features `(S, m, d)` and labels `(S, m)`, from S data sets or from one, `(m, d)` and `(m,)`."""
    check_finite("features", check_floating("features", features))
    if not isinstance(labels, Tensor):
        raise InputError("labels", type(labels).__name__, "a torch tensor")
    if features.ndim not in (2, 3):
        raise InputError("features", f"shape {shape_of(features)}", "shape (m, d), or (S, m, d) for S data sets")
    if features.numel() == 0:
        raise InputError("features", f"shape {shape_of(features)}, an empty subset", "at least one pair")
    if labels.shape != features.shape[:-1]:
        raise InputError("labels", f"shape {shape_of(labels)}", f"shape {tuple(features.shape[:-1])}: one per feature")
    if labels.device != features.device:
        raise InputError("labels", f"device {labels.device}", f"device {features.device}, where the features are")
    return (features[None], labels[None]) if features.ndim == 2 else (features, labels)


class SubsetFamily(Family):
    """Random subsets of features and labels, and standard normal starting points.

    Each sample draws `subsets` data sets of `subset` pairs, each without replacement, and shares the starting points
    among them evenly. One data set per sample is what the paper does.
    """

    def __init__(self, features: Tensor, labels: Tensor, subset: int, subsets: int) -> None:
        check_pairs(features, labels)
        if features.ndim != 2:
            raise InputError("features", f"shape {shape_of(features)}", "shape (m, d): the pairs to draw subsets from")
        self.features, self.labels = features, labels
        self.subset = check_count("subset", subset)
        if subset > len(features):
            raise InputError("subset", subset, f"at most {len(features)}, as many pairs as there are")
        self.subsets = check_count("subsets", subsets)

    def harder(self) -> dict[str, Family]:
        return {**super().harder(), **self.shifted()}

    def shifted(self) -> dict[str, Family]:
        """On features that are off: all moved by half their deviation, doubled, or with 20% noise."""
        features, generator = self.features, torch.Generator().manual_seed(0)
        deviation = features.std(dim=0)
        offset, noise = (
            torch.randn(shape, generator=generator, dtype=torch.float32).to(features)
            for shape in (deviation.shape, features.shape)
        )
        variants = {
            "shifted features": features + 0.5 * deviation * offset.sign(),
            "doubled features": 2 * features,
            "features with 20% noise": features + 0.2 * deviation * noise,
        }
        return {name: self._with_features(changed) for name, changed in variants.items()}

    def _with_features(self, features: Tensor) -> SubsetFamily:
        other = copy.copy(self)
        other.features = features
        return other

    @abc.abstractmethod
    def problem(self, features: Tensor, labels: Tensor, starts: int) -> SubsetProblem:
        """The problem on drawn data sets `(S, m, d)`, `(S, m)`."""

    def sample(self, batch: int, generator: torch.Generator) -> tuple[SubsetProblem, Tensor]:
        if check_count("batch", batch) % self.subsets:
            raise InputError("batch", batch, f"a multiple of {self.subsets}, the number of subsets per sample")
        drawn = torch.stack([self._draw(generator) for _ in range(self.subsets)]).to(self.features.device)
        problem = self.problem(self.features[drawn], self.labels[drawn], batch // self.subsets)
        start = torch.randn(
            batch, problem.dimension, generator=generator, dtype=self.features.dtype, device=generator.device
        )
        return problem, start.to(self.features.device)

    def _draw(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(len(self.features), generator=generator, device=generator.device)[: self.subset]
