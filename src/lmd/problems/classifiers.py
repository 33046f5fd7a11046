"""Linear classifiers on fixed features: support vector machines and cross entropy (paper, sections 4.2, 5.1)."""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from lmd.core.batching import to_double
from lmd.core.checks import check_count, check_finite, check_floating, check_positive, check_same_kind, shape_of
from lmd.errors import InputError
from lmd.problems.base import Family, Problem
from lmd.terms.base import Scale, filled, per_instance

Subset = TypeVar("Subset", bound="SubsetProblem")

MAX_SCORES = 1 << 18  # scores computed at a time: a megabyte of float32, which fits a processor's cache


class SubsetProblem(Problem):
    """B functions on S data sets: instance i uses the data set `subset[i]`; instances share the data.

    With `starts` = k, instances 0 to k-1 are on the first data set, the next k on the second, and so on. Everything is
    computed for a few instances at a time, so that intermediate results fit the processor's cache. Differentiating a
    value or a subgradient, as training does, stores only x.

    Args:
        features: phi `(m, d)`, or `(S, m, d)` for S data sets.
        labels: `(m,)` or `(S, m)`.
        starts: The number of consecutive instances on each data set: the batch has S * starts instances.
    """

    batched = ("subset",)

    def __init__(self, features: Tensor, labels: Tensor, starts: int) -> None:
        self.features, self.labels = check_pairs(features, labels)
        sets = torch.arange(len(self.features), device=features.device)
        self.subset = sets.repeat_interleave(check_count("starts", starts))

    point_shape: torch.Size  # (n,), n variables for each instance
    scores_per_pair = 1

    @abc.abstractmethod
    def evaluate(self, data_set: int, x: Tensor, value: bool, gradient: bool) -> tuple[Tensor, ...]:
        """Return values `(b,)` if `value`, then subgradients `(b, n)` if `gradient`, at points x `(b, n)`."""

    @abc.abstractmethod
    def curvature(self, data_set: int, x: Tensor, v: Tensor) -> Tensor:
        """Return the second derivative at points x `(b, n)`, which exists almost everywhere, times v `(b, n)`."""

    @abc.abstractmethod
    def is_correct(self, data_set: int, x: Tensor) -> Tensor:
        """Return whether points x `(b, n)` classify each pair correctly `(b, m)`."""

    def accuracy(self, x: Tensor) -> Tensor:
        """Return the share of the pairs that x classifies correctly, `(B,)`."""
        (correct,) = self.in_chunks(lambda *parts: (self.is_correct(*parts),), x)
        return correct.to(x.dtype).mean(dim=1)

    @property
    def terms(self) -> int:
        """m, the number of pairs in a data set."""
        return self.features.shape[1]

    def minibatch(self: Subset, indices: Tensor) -> Subset:
        part = copy.copy(self)
        part.features, part.labels = self.features[:, indices], self.labels[:, indices]
        return part

    def check_start(self, x0: Tensor) -> Tensor:
        check_same_kind("x0", x0, "the features", self.features)
        return super().check_start(x0)

    double = to_double

    def value(self, x: Tensor) -> Tensor:
        return _evaluate(x, self, True, False)[0]

    def subgradient(self, x: Tensor) -> Tensor:
        return _evaluate(x, self, False, True)[0]

    def value_and_subgradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, subgradients = _evaluate(x, self, True, True)
        return values, subgradients

    def in_chunks(self, function: Callable[..., tuple[Tensor, ...]], *points: Tensor) -> tuple[Tensor, ...]:
        """Call `function(data_set, *parts of the points)` for a few instances of a data set at a time; join results."""
        shape = (len(self.subset), *self.point_shape)
        if any(point.shape != shape for point in points):
            raise InputError("x", f"shape {shape_of(points[0])}", f"shape {shape}, as the problem has")
        size = max(1, MAX_SCORES // (self.scores_per_pair * self.terms))
        runs, counts = torch.unique_consecutive(self.subset, return_counts=True)
        parts, begin = [], 0
        for data_set, count in zip(runs.tolist(), counts.tolist(), strict=True):
            for first in range(begin, begin + count, size):
                last = min(first + size, begin + count)
                parts.append(function(data_set, *(point[first:last] for point in points)))
            begin += count
        return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


class _Evaluate(torch.autograd.Function):
    """Values, subgradients, or both; backward through a subgradient is a product with the Hessian."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, problem: SubsetProblem, value: bool, gradient: bool) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x)
        ctx.problem, ctx.value, ctx.gradient = problem, value, gradient
        ctx.set_materialize_grads(False)
        return problem.in_chunks(partial(problem.evaluate, value=value, gradient=gradient), x)

    @staticmethod
    def backward(ctx: Any, *into: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        (x,), problem, change = ctx.saved_tensors, ctx.problem, None
        if ctx.value and into[0] is not None:
            change = into[0].unsqueeze(1) * problem.subgradient(x)
        if ctx.gradient and into[-1] is not None:
            bend = problem.in_chunks(lambda *parts: (problem.curvature(*parts),), x, into[-1])[0]
            change = bend if change is None else change + bend
        return change, None, None, None


_evaluate: Callable[[Tensor, SubsetProblem, bool, bool], tuple[Tensor, ...]] = _Evaluate.apply


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

    Each sample draws `subsets` data sets of `subset` pairs, each without replacement, and divides the starting points
    evenly among them. The paper draws one data set per sample. Train on features of the train fold and test on
    features of the test fold.

    Args:
        features: `(n, d)`, from which subsets are drawn.
        labels: `(n,)`.
        subset: The number of pairs of a feature and a label in each data set.
        subsets: The number of data sets per sample; each has equally many instances.
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
        """Return families with changed features: shifted by half their deviation, doubled, or with 20% noise."""
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
        families: dict[str, Family] = {}
        for name, changed in variants.items():
            families[name] = other = copy.copy(self)
            other.features = changed
        return families

    @abc.abstractmethod
    def problem(self, features: Tensor, labels: Tensor, starts: int) -> SubsetProblem:
        """Return the problem with features `(S, m, d)` and labels `(S, m)` of drawn data sets."""

    def sample(self, batch: int, generator: torch.Generator) -> tuple[SubsetProblem, Tensor]:
        if check_count("batch", batch) % self.subsets:
            raise InputError("batch", batch, f"a multiple of {self.subsets}, the number of subsets per sample")
        pairs = len(self.features)
        orders = [torch.randperm(pairs, generator=generator, device=generator.device) for _ in range(self.subsets)]
        drawn = torch.stack(orders)[:, : self.subset].to(self.features.device)
        problem = self.problem(self.features[drawn], self.labels[drawn], batch // self.subsets)
        dtype, shape = self.features.dtype, (batch, *problem.point_shape)
        start = torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)
        return problem, start.to(self.features.device)


class SVM(SubsetProblem):
    """f(w, b) = 1/2 ||w||^2 + C sum_i max(0, 1 - y_i (w'phi_i + b)) with y_i in {-1, 1}; x = (w, b) `(B, d + 1)`.

    The class is not a `Composite`: b is not penalised, so dual points must satisfy sum a_i y_i = 0 (see `dual_value`),
    and instances share their matrices.

    Args:
        labels: `(m,)` or `(S, m)`, -1 and 1, both in each data set.
        C: The weight of the hinge losses, positive.

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
        self.point_shape = self.rows.shape[2:]

    def value(self, x: Tensor) -> Tensor:
        """Return the values `(B,)`, by one batched matrix product if each data set has one instance."""
        each = torch.arange(len(self.rows), device=self.subset.device)
        alone = torch.equal(self.subset, each) and x.shape == (len(each), *self.point_shape)
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
        """Return the gradient with a parabola at each kink, and the slopes a = clip(shortfall / width, 0, C)."""

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
        """Return v with bias 0, because the hinges are linear near almost every x."""
        return torch.nn.functional.pad(v[:, :-1], (0, 1))

    def minibatch(self, indices: Tensor) -> SVM:
        """Return the problem with some of the pairs, and a larger C to make up for the others."""
        part = super().minibatch(indices)
        part.rows, part.C = self.rows[:, indices], self.C * self.rows.shape[1] / len(indices)
        return part

    def is_correct(self, data_set: int, x: Tensor) -> Tensor:
        """Return whether each pair is on the correct side of the hyperplane `(b, m)`."""
        return x @ self.rows[data_set].T > 0

    def dual_value(self, dual: Tensor) -> Tensor:
        r"""Return a lower bound on each minimum `(B,)`, in float64, from any dual points a `(B, m)`.

        The dual is max \sum a - 1/2 ||\sum_i a_i y_i phi_i||^2 over 0 <= a <= C, \sum_i a_i y_i = 0. First a is made
        feasible: clipped to the box; then the class with the larger sum is scaled down to the sum of the other class.
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
        r"""Return f(x) and f(x) - dual_value `(B,)`, in float64, with room for rounding.

        The dual point violates its equation by r = |\sum_i a_i y_i| <= m eps \sum a, which costs at most r |b|, where b
        is the bias of a minimiser. Some margin is tight there, so |b| <= 1 + ||w|| max ||phi||, and ||w||^2 <= 2 f(x).
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
    """SVMs on random subsets of the pairs of two classes, by default the paper's classes 4 and 9.

    Args:
        labels: `(n,)`; pairs of other classes are left out.
        classes: The two classes to separate: the first gets y = -1, the second y = 1.
        C: The weight of the hinge losses, positive.
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


# Least score relative to the highest one; lower scores are clamped, as exp(-60) is negligible beside 1. Without this,
# random starts would give subnormal numbers, with which processors compute a hundred times slower.
MIN_SCORE = -60.0


class LinearClassifier(SubsetProblem):
    r"""f(W) = mean_i [log \sum_k exp(W phi_i)_k - (W phi_i)_{y_i}] + ridge/2 ||W||^2 with y_i in {0, ..., classes - 1}.

    x is W `(classes, d)`, one row per class, flattened: `(B, classes * d)`.

    The class is not a `Composite`: the loss has no prox in closed form, and without a ridge no duality gap would be
    finite. The paper has no ridge. If W can separate the data, as it can for 2000 MNIST features, f then has the
    infimum 0 and no minimiser.

    Args:
        labels: `(m,)` or `(S, m)`, whole numbers from 0 to classes - 1.
        classes: The number of classes, at least 2.
        ridge: The weight of ||W||^2 / 2, 0 or more.

    >>> problem = LinearClassifier(torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1]), classes=2)
    >>> problem.value(torch.zeros(1, 2))
    tensor([0.6931])
    """

    def __init__(
        self, features: Tensor, labels: Tensor, classes: int = 10, ridge: float = 0.0, starts: int = 1
    ) -> None:
        super().__init__(features, labels, starts)
        self.classes = self.scores_per_pair = check_count("classes", classes, least=2)
        self.ridge = check_positive("ridge", ridge, zero=True)
        if labels.dtype.is_floating_point or labels.dtype == torch.bool:
            raise InputError("labels", labels.dtype, "whole numbers, such as torch.int64")
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            given = f"labels from {int(labels.min())} to {int(labels.max())}"
            raise InputError("labels", given, f"0 to {classes - 1} for {classes} classes")
        self.point_shape = torch.Size([classes * self.features.shape[2]])

    @property
    def smoothness(self) -> Tensor:
        """ridge plus half the largest eigenvalue of mean_i phi_i phi_i', `(B,)` (Boehning 1992)."""
        second_moments = self.features.mT @ self.features / self.features.shape[1]
        return (self.ridge + 0.5 * torch.linalg.eigvalsh(second_moments)[:, -1])[self.subset]

    @property
    def strong_convexity(self) -> Tensor:
        return self.features.new_tensor(self.ridge)

    def evaluate(self, data_set: int, x: Tensor, value: bool, gradient: bool) -> tuple[Tensor, ...]:
        # Subtract the highest score and treat the own class separately, so that a small loss, log(1 + other classes),
        # and a small gradient keep their digits.
        scores, own = self._scores(data_set, x), self._own(data_set)
        scores -= scores.amax(dim=1, keepdim=True)
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
        scores = self._scores(data_set, x)
        probability = (scores - scores.amax(dim=1, keepdim=True)).clamp_(min=MIN_SCORE).exp_()
        probability /= probability.sum(dim=1, keepdim=True)
        change = self._scores(data_set, v)
        change -= (probability * change).sum(dim=1, keepdim=True)
        return self._pull(data_set, probability.mul_(change)).add_(v, alpha=self.ridge)

    def newton_blocks(self, x: Tensor, caution: Tensor, share: float) -> tuple[Tensor, Tensor]:
        r"""Return the gradient `(B, n)`, and for each class a matrix M_k like a Hessian, `(B, classes, d, d)`.

        M_k = ridge I + mean_i s_ik (1 - s_ik + caution) phi_i phi_i', where s_ik is the distance of the probability of
        class k from 0, or from 1 for the pair's own class. With caution 0 and all pairs, M_k is the second derivative
        along row k of W, which vanishes for pairs far on the wrong side although their gradients do not. M_k sums over
        the `share` of pairs with the least probability of their own class, at least 2 d pairs; the gradient uses all.
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

    def is_correct(self, data_set: int, x: Tensor) -> Tensor:
        """Return whether the own class of each pair has the highest score `(b, m)`."""
        scores = self._scores(data_set, x)
        return scores.flatten(1).index_select(1, self._own(data_set)) >= scores.amax(dim=1)

    def _own(self, data_set: int) -> Tensor:
        """Return the index of each pair's own class in the flattened scores `(classes, m)`."""
        return self.labels[data_set].long() * self.terms + torch.arange(self.terms, device=self.labels.device)

    def _scores(self, data_set: int, x: Tensor) -> Tensor:
        """Return (W phi_i)_k of b instances, `(b, classes, m)`, by one matrix product."""
        rows = x.reshape(len(x) * self.classes, -1)
        return (rows @ self.features[data_set].T).reshape(len(x), self.classes, -1)

    def _pull(self, data_set: int, residual: Tensor) -> Tensor:
        """Return mean_i residual_i phi_i' of b instances, from `(b, classes, m)` to `(b, n)`, by one matrix product."""
        features = self.features[data_set]
        return (residual.flatten(0, 1) @ features).reshape(len(residual), -1).div_(len(features))


class LinearClassifierFamily(SubsetFamily):
    """Linear classifiers on random subsets, by default 2000 pairs as in the paper, with standard normal starts.

    Args:
        labels: `(n,)`, whole numbers from 0 to classes - 1.
        classes: The number of classes, at least 2.
        ridge: The weight of ||W||^2 / 2, 0 or more.
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
        LinearClassifier(features, labels, classes, ridge)  # checks the arguments
        self.classes, self.ridge = classes, ridge

    def problem(self, features: Tensor, labels: Tensor, starts: int) -> LinearClassifier:
        return LinearClassifier(features, labels, self.classes, self.ridge, starts)
