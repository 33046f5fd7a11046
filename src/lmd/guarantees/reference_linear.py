"""Reference methods for SVMs and linear classifiers, in float64, with bounds from the dual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.errors import LmdError
from lmd.guarantees.optimum import Optimum
from lmd.solvers.classical.interior_point import InteriorPoint

TOLERANCE = 1e-10  # the gap, relative to the value, at which a search ends
SVM_ACCEPTED_GAP = 1e-6
"""The relative gap that still counts as solved, where rounding keeps the search from getting further."""

SVM_MAX_ITERATIONS = 100  # 15 to 30 are usual
CLASSIFIER_MAX_ITERATIONS = 60  # 3 to 20 are usual
SVM_NEEDS = ("rows", "subset", "C", "dual_value")
CLASSIFIER_NEEDS = ("features", "labels", "subset", "classes", "ridge")


def solve_svm(problem: Any) -> Optimum:
    """Return the optimum of a batch of one by the interior-point method, until its dual point proves it."""
    solver = InteriorPoint(precision=0.0)
    state = solver.init(problem, torch.zeros_like(problem.rows[:1, 0]))
    best = None
    for _ in range(SVM_MAX_ITERATIONS):
        state = solver.step(problem, state)
        found = Optimum.of(state.x, problem.value(state.x), problem.dual_value(state.dual))
        best = found if best is None or bool(found.gap < best.gap) else best
        if bool(state.done) or bool(best.gap <= TOLERANCE * best.value):
            break
    if best is None or not bool(best.gap <= SVM_ACCEPTED_GAP * best.value):
        gap = float("nan") if best is None else float(best.gap)
        raise LmdError(f"SVM: no certified optimum, the duality gap stays at {gap:.1e}; scale the features or C")
    return best


def solve_classifier(problem: Any) -> Optimum:
    r"""Return inf_W mean_i [log \sum_k exp(W phi_i)_k - (W phi_i)_{y_i}] + ridge/2 ||W||^2 of a batch of one.

    Newton's method from W = 0, until the infimum is certified, in one of three ways:

    - With a ridge, f(W) - inf f <= ||gradient||^2 / (2 ridge).
    - Without, by the dual. Where P `(m, classes)` are probabilities with mean_i (P_i - Y_i) phi_i' = 0, Y the labels
      as indicators, inf f is at least the mean entropy of the P_i. The probabilities at W, changed to first order by
      the Newton step, are such a P. (The gradient alone bounds nothing without a ridge.)
    - Where W gives each pair's own class the highest score, f(tW) falls to 0 as t grows: inf f = 0, never attained.
    """
    data_set, ridge = int(problem.subset), problem.ridge
    objective = _Objective.of(problem.features[data_set], problem.labels[data_set].long(), problem.classes, ridge)
    W = objective.features.new_zeros(problem.classes, objective.features.shape[1])
    for _ in range(CLASSIFIER_MAX_ITERATIONS):
        value, probability = objective.value(W), objective.probability(W)
        gradient = objective.gradient(W, probability)
        if ridge == 0 and objective.separates(W):
            return objective.answer(W, value, value, attained=False)
        step = objective.newton_step(probability, gradient)
        gap = objective.gap(value, probability, gradient, step)
        if gap <= TOLERANCE * value:
            return objective.answer(W, value, gap)
        W = objective.descend(W, value, gradient, step)
    raise LmdError(
        f"linear classifier: no certified infimum, the value {value:.6g} falls for ever towards something above 0; "
        "give the problem a ridge, such as 1e-4"
    )


@dataclass(frozen=True)
class _Objective:
    """Cross entropy on features of full rank: `basis` `(d, r)` spans their rows, W lives in its coordinates."""

    features: Tensor
    labels: Tensor
    indicators: Tensor
    basis: Tensor
    ridge: float

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int, ridge: float) -> _Objective:
        _, sizes, directions = torch.linalg.svd(features, full_matrices=False)
        basis = directions[sizes > 1e-12 * sizes[0]].T
        indicators = torch.nn.functional.one_hot(labels, classes).to(features.dtype)
        return cls(features @ basis, labels, indicators, basis, ridge)

    def answer(self, W: Tensor, value: float, gap: float, attained: bool = True) -> Optimum:
        """W of all features, flattened, `(1, n)`; what a point far along the way has for a gap is all of its value."""
        x = (W @ self.basis.T).reshape(1, -1)
        return Optimum.of(x, x.new_tensor([value]), x.new_tensor([value - gap]), attained)

    def value(self, W: Tensor) -> float:
        loss = torch.nn.functional.cross_entropy(self.features @ W.T, self.labels)
        return float(loss + 0.5 * self.ridge * W.square().sum())

    def probability(self, W: Tensor) -> Tensor:
        return (self.features @ W.T).softmax(dim=1)

    def gradient(self, W: Tensor, probability: Tensor) -> Tensor:
        return (probability - self.indicators).T @ self.features / len(self.features) + self.ridge * W

    def separates(self, W: Tensor) -> bool:
        scores = self.features @ W.T
        others = scores.masked_fill(self.indicators.bool(), -torch.inf).amax(dim=1)
        margin = (scores * self.indicators).sum(dim=1) - others
        return bool(margin.min() > 1e-9 * scores.abs().max())  # clear of rounding

    def newton_step(self, probability: Tensor, gradient: Tensor) -> Tensor:
        """The Newton step; of all that differ by one row added to every class, which changes nothing, the shortest."""
        count, classes = probability.shape
        weighted = probability[:, :, None] * self.features[:, None, :]
        mixed = weighted.flatten(1)
        hessian = -mixed.T @ mixed / count
        width = self.features.shape[1]
        blocks = hessian.view(classes, width, classes, width)
        # The same row for every class is in the hessian's kernel; this makes it invertible, and the answer no other.
        blocks += (self.features.T @ self.features / (count * classes))[None, :, None, :]
        for k in range(classes):
            blocks[k, :, k] += weighted[:, k].T @ self.features / count
        hessian.diagonal().add_(self.ridge)
        return -torch.cholesky_solve(gradient.reshape(-1, 1), _cholesky(hessian)).reshape_as(gradient)

    def gap(self, value: float, probability: Tensor, gradient: Tensor, step: Tensor) -> float:
        """A bound on f(W) - inf f; the value itself, as f is never negative, where nothing better is known."""
        if self.ridge > 0:
            return min(value, float(gradient.square().sum()) / (2 * self.ridge))
        change = self.features @ step.T
        change = change - (probability * change).sum(dim=1, keepdim=True)
        if float(change.min()) < -1:
            return value
        moved = probability * (1 + change)
        entropy = -torch.special.xlogy(moved, moved).sum(dim=1).mean()
        return min(value, max(0.0, value - float(entropy)))

    def descend(self, W: Tensor, value: float, gradient: Tensor, step: Tensor) -> Tensor:
        """W + t step with the first t = 1, 1/2, 1/4, ... that lowers the value enough."""
        slope = float((gradient * step).sum())
        length = 1.0
        while length > 1e-10:
            if self.value(W + length * step) <= value + 1e-4 * length * slope:
                break
            length /= 2
        return W + length * step


def _cholesky(matrix: Tensor) -> Tensor:
    """The Cholesky factor, of a slightly larger matrix where rounding has left this one indefinite."""
    jitter = 0.0
    while True:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not int(failed):
            return factor
        jitter = 100 * jitter or 1e-15 * float(matrix.diagonal().mean())
        matrix = matrix + jitter * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
