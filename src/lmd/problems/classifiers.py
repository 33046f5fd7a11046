"""Linear classifiers on fixed features: support vector machines and cross entropy (sections 4.2, 5.1)."""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmd.core.batching import to_double
from lmd.core.checks import check_count, check_finite, check_floating, check_positive, check_same_kind, shape_of
from lmd.errors import InputError
from lmd.problems.base import Family, Problem
from lmd.terms.base import Scale, filled, per_instance

Subset = TypeVar("Subset", bound="SubsetProblem")

MAX_SCORES = 1 << 18  # scores computed at a time: a megabyte of float32, which fits a processor's cache


class SubsetProblem(Problem):
    """B functions on S data sets: instance i is on the data set `subset[i]`; no data is copied per instance.

    With `starts` = k, instances 0 to k-1 are on the first data set, the next k on the second, and so on. Everything is
    computed for a few instances at a time, as many as keep what they need in the processor's cache, and differentiating
    a value or a subgradient, as training does, stores nothing but x.

    Args:
        features: phi `(m, d)`, or `(S, m, d)` for S data sets.
        labels: `(m,)` or `(S, m)`.
        starts: Consecutive instances on each data set: the batch has S * starts.
    """

    batched = ("subset",)

    def __init__(self, features: Tensor, labels: Tensor, starts: int) -> None:
        self.features, self.labels = check_pairs(features, labels)
        sets = torch.arange(len(self.features), device=features.device)
        self.subset = sets.repeat_interleave(check_count("starts", starts))

    dimension: int  # n, the number of variables of an instance
    scores_per_instance: int

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
        part.scores_per_instance = self.scores_per_instance // self.features.shape[1] * len(indices)
        return part

    def check_start(self, x0: Tensor) -> Tensor:
        if x0.shape[1:] != (self.dimension,):
            accepted = f"shape (B, {self.dimension}) to go with features {shape_of(self.features)}"
            raise InputError("x0", f"shape {shape_of(x0)}", accepted)
        check_same_kind("x0", x0, "the features", self.features)
        return super().check_start(x0)

    def double(self: Subset) -> Subset:
        return to_double(self)

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
        size = max(1, MAX_SCORES // self.scores_per_instance)
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
    among them evenly. One data set per sample is what the paper does. Train on features of the train fold, test on
    those of the test fold.
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
        """The same family on changed features: moved by half their deviation, doubled, or with 20% noise."""
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
        dtype, shape = self.features.dtype, (batch, problem.dimension)
        start = torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)
        return problem, start.to(self.features.device)

    def _draw(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(len(self.features), generator=generator, device=generator.device)[: self.subset]


class SVM(SubsetProblem):
    """f(w, b) = 1/2 ||w||^2 + C sum_i max(0, 1 - y_i (w'phi_i + b)) with y_i in {-1, 1}; x = (w, b) `(B, d + 1)`.

    It is 1/2 ||w||^2 plus a `Hinge` behind a matrix, but no `Composite`: as b is not penalised, dual points have to
    fulfil an equation, sum a_i y_i = 0, which no multiple of one that does not will fulfil (see `dual_value`); and the
    instances of a batch share their matrices, which are worked through a few instances at a time.

    Args:
        features: phi `(m, d)`, or `(S, m, d)` for S data sets.
        labels: `(m,)` or `(S, m)`, -1 and 1, both in each data set.
        C: The weight of the hinge losses, positive.
        starts: Consecutive instances on each data set: the batch has S * starts.

    >>> problem = SVM(torch.tensor([[1.0], [-1.0]]), torch.tensor([1, -1]), starts=2)
    >>> problem.value(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    tensor([0.5000, 2.0000])
    """

    def __init__(self, features: Tensor, labels: Tensor, C: float = 1.0, starts: int = 1) -> None:
        super().__init__(features, labels, starts)
        self.C = check_positive("C", C)
        for values in (torch.unique(each).tolist() for each in self.labels):
            if values != [-1, 1]:
                shown = ", ".join(f"{value:g}" for value in values[:5])
                raise InputError("labels", f"the values {shown}", "two classes, -1 and 1, in each data set")
        signs = self.labels.to(self.features.dtype).unsqueeze(-1)
        # y_i (phi_i, 1) `(S, m, d + 1)`: the margins are one product with x.
        self.rows = torch.cat([signs * self.features, signs], dim=-1)
        self.scores_per_instance, self.dimension = self.rows.shape[1:]

    def value(self, x: Tensor) -> Tensor:
        """As in `SubsetProblem`; one matrix product for all where each data set has one instance."""
        each = torch.arange(len(self.rows), device=self.subset.device)
        alone = torch.equal(self.subset, each) and x.shape == (len(each), self.dimension)
        if not alone or (torch.is_grad_enabled() and x.requires_grad):
            return super().value(x)
        hinges = (1 - torch.bmm(x[:, None], self.rows.mT)[:, 0]).clamp_(min=0).sum(dim=1)
        return 0.5 * x[:, :-1].square().sum(dim=1) + self.C * hinges

    def evaluate(self, data_set: int, x: Tensor, value: bool, gradient: bool) -> tuple[Tensor, ...]:
        rows, weights = self.rows[data_set], x[:, :-1]
        shortfall = 1 - x @ rows.T
        answer = []
        if gradient:
            active = torch.gt(shortfall, 0, out=torch.empty_like(shortfall))
            # The bias is not penalised.
            answer.append(torch.nn.functional.pad(weights, (0, 1)).sub_(active @ rows, alpha=self.C))
        if value:
            hinges = shortfall.clamp_(min=0).sum(dim=1)
            answer.insert(0, 0.5 * weights.square().sum(dim=1) + self.C * hinges)
        return tuple(answer)

    def smoothed_gradient(self, x: Tensor, width: Scale) -> tuple[Tensor, Tensor]:
        """The gradient with a parabola at the kink of each hinge, and the slopes a = clip(shortfall / width, 0, C)."""

        def parts(data_set: int, point: Tensor, wide: Tensor) -> tuple[Tensor, Tensor]:
            rows = self.rows[data_set]
            dual = ((1 - point @ rows.T) / wide[:, :1]).clamp(0, self.C)
            return torch.nn.functional.pad(point[:, :-1], (0, 1)) - dual @ rows, dual

        gradient, dual = self.in_chunks(parts, x, filled(width, x).expand_as(x))
        return gradient, dual

    def smoothed_value(self, x: Tensor, width: Scale) -> Tensor:
        (short,) = self.in_chunks(lambda data_set, part: (1 - part @ self.rows[data_set].T,), x)
        dual = (short / per_instance(width, x)).clamp(0, self.C)
        hinges = (dual * (short - per_instance(width, x) / 2 * dual)).sum(dim=1)
        return 0.5 * x[:, :-1].square().sum(dim=1) + hinges

    def curvature(self, data_set: int, x: Tensor, v: Tensor) -> Tensor:
        """v without its bias: the hinges are linear near almost every x."""
        return torch.nn.functional.pad(v[:, :-1], (0, 1))

    def minibatch(self, indices: Tensor) -> SVM:
        """The hinges of some of the pairs, with a C that makes up for the others; 1/2 ||w||^2 stays whole."""
        part = self.some_pairs(indices)
        part.rows, part.C = self.rows[:, indices], self.C * self.rows.shape[1] / len(indices)
        return part

    def accuracy(self, x: Tensor) -> Tensor:
        """The share of pairs on the right side of the hyperplane, `(B,)`."""
        sides = self.in_chunks(lambda data_set, part: (part @ self.rows[data_set].T > 0,), x)[0]
        return sides.to(x.dtype).mean(dim=1)

    def dual_value(self, dual: Tensor) -> Tensor:
        r"""A lower bound on each minimum `(B,)`, in float64, from any dual points a `(B, m)`.

        The dual is max \sum a - 1/2 ||\sum_i a_i y_i phi_i||^2 over 0 <= a <= C, \sum_i a_i y_i = 0; a is made feasible
        first: cut to the box, then the class of more weight is scaled down to the weight of the other.
        """
        bounds = torch.empty(len(dual), dtype=torch.float64, device=dual.device)
        for data_set in torch.unique(self.subset):
            index, rows = (self.subset == data_set).nonzero().flatten(), self.rows[data_set].double()
            a, second = dual[index].double().clamp(0, self.C), rows[:, -1] > 0
            weights = torch.stack([a[:, ~second].sum(dim=1), a[:, second].sum(dim=1)], dim=1)
            share = weights.amin(dim=1, keepdim=True) / weights.clamp(min=torch.finfo(a.dtype).tiny)
            a = a * share[:, second.long()]
            bounds[index] = a.sum(dim=1) - 0.5 * (a @ rows[:, :-1]).square().sum(dim=1)
        return bounds

    def certified_gap(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        r"""f(x) and f(x) - dual_value `(B,)`, in float64, with room for rounding.

        The dual point is feasible up to r = |\sum_i a_i y_i| <= m eps \sum a, which costs r |b| at most, b the bias of
        a minimiser: some margin is tight there, so |b| <= 1 + ||w|| max ||phi||, and ||w||^2 <= 2 f(x).
        """
        exact, x = self.double(), x.double()
        value, lower = exact.value(x), exact.dual_value(dual)
        pairs, width = exact.rows.shape[1:]
        longest = torch.linalg.vector_norm(exact.rows, dim=2).amax(dim=1)[self.subset]
        total = dual.double().clamp(0, self.C).sum(dim=1)
        bias = 1 + (2 * value).sqrt() * longest
        hinges = self.C * pairs * (1 + torch.linalg.vector_norm(x, dim=1) * longest)
        squares = (total * longest).square()
        sizes = (pairs + width) * (value + total * bias + squares) + width * hinges
        return value, value - lower + 8 * torch.finfo(torch.float64).eps * sizes


class SVMFamily(SubsetFamily):
    """SVMs on random subsets of the pairs of two classes, the paper's 4 and 9 by default.

    Args:
        features: `(n, d)`, from which subsets are drawn.
        labels: `(n,)`, of any classes.
        classes: The two classes to separate: the first gets y = -1, the second y = 1.
        subset: Pairs of a feature and a label in a data set.
        C: The weight of the hinge losses, positive.
        subsets: Data sets per sample, which share its instances evenly.
    """

    name = "svm"

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        classes: tuple[int, int] = (4, 9),
        subset: int = 1000,
        C: float = 1.0,
        subsets: int = 1,
    ) -> None:
        check_pairs(features, labels)
        if len(classes) != 2 or classes[0] == classes[1]:
            raise InputError("classes", classes, "two different classes")
        for wanted in classes:
            if not bool((labels == wanted).any()):
                found = ", ".join(str(value) for value in torch.unique(labels).tolist()[:12])
                raise InputError("labels", f"no pair of class {wanted} among {found}", f"both classes {classes}")
        chosen = (labels == classes[0]) | (labels == classes[1])
        signs = torch.where(labels[chosen] == classes[0], -1, 1)
        super().__init__(features[chosen], signs, subset, subsets)
        self.C = check_positive("C", C)

    def problem(self, features: Tensor, labels: Tensor, starts: int) -> SVM:
        return SVM(features, labels, self.C, starts)


# Scores that are further below the highest count as this far: exp(-60) is nothing beside 1, and the far smaller numbers
# that random starts would give are not normal ones, on which processors are a hundred times slower.
MIN_SCORE = -60.0


class LinearClassifier(SubsetProblem):
    r"""f(W) = mean_i [log \sum_k exp(W phi_i)_k - (W phi_i)_{y_i}] + ridge/2 ||W||^2 with y_i in {0, ..., classes - 1}.

    x is W `(classes, d)`, one row per class, flattened: `(B, classes * d)`.

    It is no `Composite`: the loss has no prox in closed form, and without a ridge the dual is finite where an equation
    holds alone, so no duality gap would be finite. What it offers is its gradient, and with a ridge its constants.

    The paper has no ridge. Where W can separate the data, and it can for 2000 MNIST features, f then has the infimum
    0 and no minimiser.

    Args:
        features: phi `(m, d)`, or `(S, m, d)` for S data sets.
        labels: `(m,)` or `(S, m)`, whole numbers from 0 to classes - 1.
        classes: The number of classes, at least 2.
        ridge: The weight of ||W||^2 / 2, 0 or more.
        starts: Consecutive instances on each data set: the batch has S * starts.

    >>> problem = LinearClassifier(torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1]), classes=2)
    >>> problem.value(torch.zeros(1, 2))
    tensor([0.6931])
    """

    def __init__(
        self, features: Tensor, labels: Tensor, classes: int = 10, ridge: float = 0.0, starts: int = 1
    ) -> None:
        super().__init__(features, labels, starts)
        self.classes = check_count("classes", classes, least=2)
        self.ridge = check_positive("ridge", ridge, zero=True)
        if labels.dtype.is_floating_point or labels.dtype == torch.bool:
            raise InputError("labels", labels.dtype, "whole numbers, such as torch.int64")
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            given = f"labels from {int(labels.min())} to {int(labels.max())}"
            raise InputError("labels", given, f"0 to {classes - 1} for {classes} classes")
        self.own = _own_scores(self.labels)
        self.scores_per_instance, self.dimension = (classes * n for n in self.features.shape[1:])

    @property
    def smoothness(self) -> Tensor:
        """ridge + 1/2 the largest eigenvalue of the mean of phi_i phi_i', `(B,)`. Boehning 1992."""
        second_moments = self.features.mT @ self.features / self.features.shape[1]
        return (self.ridge + 0.5 * torch.linalg.eigvalsh(second_moments)[:, -1])[self.subset]

    @property
    def strong_convexity(self) -> Tensor:
        return self.features.new_tensor(self.ridge)

    def evaluate(self, data_set: int, x: Tensor, value: bool, gradient: bool) -> tuple[Tensor, ...]:
        # Relative to the highest score, with the own class apart: so that a small loss, log(1 + the other classes),
        # and a small gradient keep their digits.
        scores, own = _below_highest(self._scores(data_set, x)), self.own[data_set]
        lead = scores.flatten(1).index_select(1, own)
        others = scores.clamp_(min=MIN_SCORE).exp_()
        others.flatten(1).index_fill_(1, own, 0)
        rest = others.sum(dim=1)
        answer = []
        if value:
            losses = (lead.expm1() + rest).log1p_().sub_(lead)
            answer.append(losses.mean(dim=1) + 0.5 * self.ridge * x.square().sum(dim=1))
        if gradient:
            others.flatten(1).index_copy_(1, own, -rest)
            others /= (lead.exp_() + rest).unsqueeze(1)
            answer.append(self._pull(data_set, others).add_(x, alpha=self.ridge))
        return tuple(answer)

    def curvature(self, data_set: int, x: Tensor, v: Tensor) -> Tensor:
        probability = _below_highest(self._scores(data_set, x)).clamp_(min=MIN_SCORE).exp_()
        probability /= probability.sum(dim=1, keepdim=True)
        change = self._scores(data_set, v)
        change -= (probability * change).sum(dim=1, keepdim=True)
        return self._pull(data_set, probability.mul_(change)).add_(v, alpha=self.ridge)

    def newton_blocks(self, x: Tensor, caution: Tensor, share: float) -> tuple[Tensor, Tensor]:
        r"""The gradient `(B, n)`, and for each class a matrix that bounds how it changes, `(B, classes, d, d)`.

        M_k = ridge I + mean_i s_ik (1 - s_ik + caution) phi_i phi_i': s_ik is how far the probability of class k is
        from 0, or of the pair's own class from 1. Without caution, M_k is the second derivative along row k of W; it is
        nothing where a pair is far on the wrong side, and the gradient is not. The `share` of the pairs whose own class
        is furthest from 1 take part, at least 2 d of them; in the gradient, all do.
        """
        pairs, width = self.features.shape[1:]
        taken = min(pairs, max(math.ceil(share * pairs), 2 * width))
        ridge = self.ridge * torch.eye(width, dtype=x.dtype, device=x.device)

        def parts(data_set: int, part: Tensor) -> tuple[Tensor, Tensor]:
            features, scores = self.features[data_set], self._scores(data_set, part)
            odds = (scores - scores.detach().amax(dim=1, keepdim=True)).clamp(min=MIN_SCORE).exp()
            own = self.labels[data_set] == torch.arange(self.classes, device=x.device)[:, None]
            others = odds.masked_fill(own, 0) / odds.sum(dim=1, keepdim=True)
            rest = others.sum(dim=1, keepdim=True)
            gradient = self._pull(data_set, torch.where(own, -rest, others)) + self.ridge * part
            chosen = rest[:, 0].topk(taken, sorted=False).indices
            off = torch.where(own, rest, others).gather(2, chosen[:, None].expand(-1, self.classes, -1))
            rows, weight = features[chosen], off * (1 - off + caution) / pairs
            sums = (weight[:, :, None] * rows.mT[:, None]).flatten(1, 2) @ rows
            return gradient, sums.reshape(-1, self.classes, width, width) + ridge

        gradient, matrices = self.in_chunks(parts, x)
        return gradient, matrices

    def minibatch(self, indices: Tensor) -> LinearClassifier:
        part = self.some_pairs(indices)
        part.own = _own_scores(part.labels)
        return part

    def accuracy(self, x: Tensor) -> Tensor:
        """The share of pairs whose own class has the highest score, `(B,)`."""

        def share(data_set: int, part: Tensor) -> tuple[Tensor]:
            scores = self._scores(data_set, part)
            own = scores.flatten(1).index_select(1, self.own[data_set])
            return ((own >= scores.amax(dim=1)).to(x.dtype).mean(dim=1),)

        return self.in_chunks(share, x)[0]

    def _scores(self, data_set: int, x: Tensor) -> Tensor:
        """(W phi_i)_k of b instances: `(b, classes, m)`, one matrix product."""
        rows = x.reshape(len(x) * self.classes, -1)
        return (rows @ self.features[data_set].T).reshape(len(x), self.classes, -1)

    def _pull(self, data_set: int, residual: Tensor) -> Tensor:
        """mean_i residual_i phi_i' of b instances, from `(b, classes, m)` to `(b, n)`: one matrix product."""
        features = self.features[data_set]
        return (residual.flatten(0, 1) @ features).reshape(len(residual), -1).div_(len(features))


def _own_scores(labels: Tensor) -> Tensor:
    """Return the index of the own class of each pair among the flattened scores `(classes, m)`, `(S, m)`."""
    pairs = labels.shape[1]
    return labels.long() * pairs + torch.arange(pairs, device=labels.device)


def _below_highest(scores: Tensor) -> Tensor:
    """Scores `(b, classes, m)` minus the highest of each pair, in place."""
    scores -= scores.amax(dim=1, keepdim=True)
    return scores


class LinearClassifierFamily(SubsetFamily):
    """Linear classifiers on random subsets, the paper's 2000 pairs by default, from standard normal weights.

    Args:
        features: `(n, d)`, from which subsets are drawn.
        labels: `(n,)`, whole numbers from 0 to classes - 1.
        classes: The number of classes, at least 2.
        subset: Pairs of a feature and a label in a data set.
        ridge: The weight of ||W||^2 / 2, 0 or more.
        subsets: Data sets per sample, which share its instances evenly.
    """

    name = "linear-classifier"

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        classes: int = 10,
        subset: int = 2000,
        ridge: float = 0.0,
        subsets: int = 1,
    ) -> None:
        super().__init__(features, labels, subset, subsets)
        LinearClassifier(features, labels, classes, ridge)  # checks what the samples will be made of
        self.classes, self.ridge = classes, ridge

    def problem(self, features: Tensor, labels: Tensor, starts: int) -> LinearClassifier:
        return LinearClassifier(features, labels, self.classes, self.ridge, starts)
