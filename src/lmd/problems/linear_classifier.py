"""The multi-class linear classifier on fixed features, by cross entropy: section 5.1 of the paper, Figure 7."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmd.core.checks import check_count, check_positive
from lmd.errors import InputError
from lmd.problems.subsets import SubsetFamily, SubsetProblem

FLOOR = -60.0
"""Scores that are further below the highest count as this far: exp(-60) is nothing beside 1, but the far smaller
numbers that random starts would give are not normal ones, and processors are a hundred times slower on those."""


class LinearClassifier(SubsetProblem):
    r"""f(W) = mean_i [log \sum_k exp(W phi_i)_k - (W phi_i)_{y_i}] + ridge/2 ||W||^2 with y_i in {0, ..., classes - 1}.

    x is W `(classes, d)`, one row per class, flattened: `(B, classes * d)`. `features` are the phi_i `(m, d)` and
    `labels` the y_i `(m,)`, or S data sets of them `(S, m, d)` and `(S, m)`; each data set serves `starts`
    consecutive instances of the batch.

    It is no `Composite`: the loss has no prox in closed form, and without a ridge the dual is finite where an equation
    holds alone, so no duality gap would be finite. What it offers is its gradient, and with a ridge its constants.

    The paper has no ridge. Where W can separate the data, and it can for 2000 MNIST features, f then has the infimum
    0 and no minimiser.

    Args:
        features: phi `(m, d)`, or `(S, m, d)` for S data sets.
        labels: `(m,)` or `(S, m)`, whole numbers from 0 to classes - 1.
        classes: How many there are, at least 2.
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

    @property
    def dimension(self) -> int:
        return self.classes * self.features.shape[-1]

    @property
    def scores_per_instance(self) -> int:
        return self.classes * self.features.shape[1]

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
        others = scores.clamp_(min=FLOOR).exp_()
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
        probability = _below_highest(self._scores(data_set, x)).clamp_(min=FLOOR).exp_()
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
            odds = (scores - scores.detach().amax(dim=1, keepdim=True)).clamp(min=FLOOR).exp()
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
    """Where the own class of each pair is among the scores `(classes, m)`, flattened: labels `(S, m)` to `(S, m)`."""
    pairs = labels.shape[1]
    return labels.long() * pairs + torch.arange(pairs, device=labels.device)


def _below_highest(scores: Tensor) -> Tensor:
    """Scores `(b, classes, m)` minus the highest of each pair, in place."""
    scores -= scores.amax(dim=1, keepdim=True)
    return scores


class LinearClassifierFamily(SubsetFamily):
    """Linear classifiers on random subsets, the paper's 2000 pairs by default, from standard normal weights.

    `features` `(n, d)` and `labels` `(n,)`, 0 to classes - 1. Train on the train fold's features, test on the test
    fold's.

    Args:
        features: `(n, d)`, what subsets are drawn from.
        labels: `(n,)`, whole numbers from 0 to classes - 1.
        classes: How many there are, at least 2.
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
        self.classes = classes
        self.ridge = ridge

    def problem(self, features: Tensor, labels: Tensor, starts: int) -> LinearClassifier:
        return LinearClassifier(features, labels, self.classes, self.ridge, starts)
