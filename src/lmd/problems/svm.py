"""The soft-margin support vector machine on fixed features: sections 4.2 and 5.1 of the paper, Figures 4 to 6."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.errors import InputError
from lmd.problems.subsets import SubsetFamily, SubsetProblem, check_pairs
from lmd.terms.base import Scale, filled, per_instance


class SVM(SubsetProblem):
    """f(w, b) = 1/2 ||w||^2 + C sum_i max(0, 1 - y_i (w'phi_i + b)) with y_i in {-1, 1}; x = (w, b) `(B, d + 1)`.

    `features` are the phi_i `(m, d)` and `labels` the y_i `(m,)`, or S data sets of them `(S, m, d)` and `(S, m)`;
    each data set serves `starts` consecutive instances of the batch.

    It is 1/2 ||w||^2 plus a `Hinge` behind a matrix, but no `Composite`: as b is not penalised, dual points have to
    fulfil an equation, sum a_i y_i = 0, which no multiple of one that does not will fulfil (see `dual_value`); and the
    instances of a batch share their matrices, which are worked through a few instances at a time.

    Args:
        features: phi `(m, d)`, or `(S, m, d)` for S data sets.
        labels: `(m,)` or `(S, m)`, -1 and 1, both in each data set.
        C: What the hinge losses count for, positive.
        starts: Consecutive instances on each data set: the batch has S * starts.

    >>> problem = SVM(torch.tensor([[1.0], [-1.0]]), torch.tensor([1, -1]), starts=2)
    >>> problem.value(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    tensor([0.5000, 2.0000])
    """

    def __init__(self, features: Tensor, labels: Tensor, C: float = 1.0, starts: int = 1) -> None:
        super().__init__(features, labels, starts)
        self.C = check_positive("C", C)
        for labels_of_set in self.labels:
            if (values := torch.unique(labels_of_set).tolist()) != [-1, 1]:
                shown = ", ".join(f"{value:g}" for value in values[:5])
                raise InputError("labels", f"the values {shown}", "two classes, -1 and 1, in each data set")
        signs = self.labels.to(self.features.dtype).unsqueeze(-1)
        self.rows = torch.cat([signs * self.features, signs], dim=-1)
        """y_i (phi_i, 1) `(S, m, d + 1)`: the margins are one product with x."""

    @property
    def dimension(self) -> int:
        return self.rows.shape[-1]

    @property
    def scores_per_instance(self) -> int:
        return self.rows.shape[1]

    def value(self, x: Tensor) -> Tensor:
        """As of any problem; where each data set has one instance, all of them are one product."""
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
        """That of hinges with a parabola at their kink, and the slopes a = clip(shortfall / width, 0, C)."""

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
        part.rows = self.rows[:, indices]
        part.C = self.C * self.rows.shape[1] / len(indices)
        return part

    def accuracy(self, x: Tensor) -> Tensor:
        """The share of pairs on the right side of the hyperplane, `(B,)`."""

        def share(data_set: int, part: Tensor) -> tuple[Tensor]:
            return ((part @ self.rows[data_set].T > 0).to(x.dtype).mean(dim=1),)

        return self.in_chunks(share, x)[0]

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

    `features` `(n, d)` and `labels` `(n,)` may have any classes; pairs of the first of `classes` get y = -1, of the
    second y = 1. Train on the train fold's features, test on the test fold's.

    Args:
        features: `(n, d)`, what subsets are drawn from.
        labels: `(n,)`, of any classes.
        classes: The two that are told apart: the first gets y = -1, the second y = 1.
        subset: Pairs of a feature and a label in a data set.
        C: What the hinge losses count for, positive.
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
