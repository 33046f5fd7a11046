"""The unrolled loss of section 3.3: how good the first N iterations of a solver are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem, check_values
from lmd.solvers.base import Solver, State
from lmd.solvers.mirror.mirror_descent import MirrorState
from lmd.training.settings import TrainingSettings

MIN_GAP = 1e-5  # added to relative gaps before their logarithm is taken
MIN_DUALITY_GAP = 1e-7  # the same for relative duality gaps, which are more precise: sums of terms >= 0
MIN_SQUARE = 1e-9  # the same for mean squares of distances: 90 dB
DECIBEL = math.log(10) / 10  # one decibel, as a natural logarithm


def power_weights(power: float, logarithms: Tensor) -> Tensor:
    """Return weights `(B,)` of sum 1, proportional to exp(logarithms)^power; `logarithms` is `(B,)`.

    >>> power_weights(2.0, torch.tensor([1.0, 3.0]).log())
    tensor([0.1000, 0.9000])
    """
    return torch.softmax(power * logarithms, dim=0)


class LossParts(NamedTuple):
    """The loss, with its graph, and its two parts, without graphs; each is a mean over the batch."""

    loss: Tensor  # value + s * inconsistency, `()`
    value: Tensor  # sum_k r_k f(x_k), `()`, or another objective instead of f
    inconsistency: Tensor  # sum_k ||to_primal(to_dual(x_k)) - x_k||, `()`; 0 if it was not measured


class UnrolledLoss(nn.Module):
    """1/B sum_i [ sum_{k=1}^N r_k f_i(x_k) + s ||(to_primal o to_dual - I)(x_k)|| ], section 3.3 of the paper.

    The iterates come from the `step` that `lmd.run` calls. The inconsistency costs one `to_primal` per iterate, because
    the next step needs the `to_dual` anyway. Without a mirror, or with an exact one, it costs nothing. If `recompute`
    is set, an iteration stores only its first state, and the backward pass runs the iteration again.

    Args:
        solver: The solver to train.
        settings: The settings of the training: iterations, objective, weights, consistency.

    >>> import lmd
    >>> solver = lmd.solvers.LearnedMirrorDescent(lmd.mirrors.Quadratic(2).double(), iterations=3).double()
    >>> problem, x0 = lmd.problems.LeastSquaresFamily().sample(4, torch.Generator().manual_seed(0))
    >>> parts = UnrolledLoss(solver, TrainingSettings())(problem, x0, consistency_weight=1.0)
    >>> bool(parts.loss == lmd.run(solver, problem, x0, 3).history.values[1:].sum(dim=0).mean())
    True
    """

    def __init__(self, solver: Solver[Any], settings: TrainingSettings) -> None:
        super().__init__()
        iterations = settings.iterations or solver.horizon
        if iterations is None:
            name = type(solver).__name__
            raise InputError("iterations", "none", f"how many to unroll, as {name} has no number of its own")
        self.solver = solver
        mirrors = (part for part in solver.modules() if isinstance(part, Mirror))
        self.mirror = next((mirror for mirror in mirrors if not mirror.is_exact), None)  # with a learned inverse
        self.value_weights = settings.weights_for(iterations)
        self.settings = settings

    def forward(self, problem: Problem, x0: Tensor, consistency_weight: float) -> LossParts:
        """Return the loss of a batch of problems from the starting points x0 `(B, ...)`.

        If the weight is 0, the inconsistency is measured only when no graph is recorded.
        """
        measured = self.mirror is not None and (consistency_weight > 0 or not torch.is_grad_enabled())
        points = self.settings.consistency_at if measured else "none"
        state = self.solver.init(problem, x0)
        value = inconsistency = x0.new_zeros(len(x0))
        for k, weight in enumerate((self.settings.start_weight, *self.value_weights)):
            is_measured = points in ("all", "iterates" if k else "start")
            state, f, gap = self._call(self._visit, problem, state, k > 0, weight, is_measured)
            value, inconsistency = value + f, inconsistency + gap
        mean_value, mean_inconsistency = value.mean(), inconsistency.mean()
        loss = mean_value + consistency_weight * mean_inconsistency if measured else mean_value
        return LossParts(loss, mean_value.detach(), mean_inconsistency.detach())

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function`; if `recompute` is set, store no graph, and call it again in the backward pass."""
        if self.settings.recompute and torch.is_grad_enabled():
            return checkpoint(function, *arguments, use_reentrant=False)
        return function(*arguments)

    def _visit(
        self, problem: Problem, state: State, steps: bool, weight: float, is_measured: bool
    ) -> tuple[State, Tensor, Tensor]:
        """Return the state, advanced if `steps` is set, with its weighted scores and inconsistencies `(B,)`.

        If the inconsistency is measured, the dual point is kept in the state for the next step.
        """
        state = self.solver.step(problem, state) if steps else state
        value = inconsistency = state.x.new_zeros(len(state.x))
        if weight > 0:
            value = weight * self._counted(self._score(problem, state))
        if is_measured and self.mirror is not None:
            dual = self.mirror.to_dual(state.iterate)
            inconsistency = self.mirror.inconsistency(state.iterate, "l1", dual)
            state = replace(state, dual=dual) if isinstance(state, MirrorState) else state
        return state, value, inconsistency

    def _counted(self, scores: Tensor) -> Tensor:
        """Return weighted scores `(B,)` whose mean has the same derivatives as 10 / p log10 mean 10^(p s / 10); s are
        the scores and p > 0 is the emphasis."""
        if not self.settings.emphasis:
            return scores
        return len(scores) * power_weights(self.settings.emphasis, scores.detach() * DECIBEL) * scores

    def _score(self, problem: Any, state: State) -> Tensor:
        """Return the objective at the state, one number per instance `(B,)`."""
        x = state.x
        if self.settings.objective == "duality gap":
            return _duality_gap(problem, x, state)
        if self.settings.objective == "value":
            values, violation = problem.relaxed_value(x)
            return check_values(problem, values, x) + violation
        if problem.reference is None:
            raise InputError(
                "objective", self.settings.objective, "value, or a family whose problems have a `reference`"
            )
        if self.settings.objective == "both duality gaps":
            return _duality_gap(problem, x, state) + _duality_gap(problem, problem.reference, state)
        distance = 10 * torch.log10((x - problem.reference).square().flatten(1).mean(dim=1) + MIN_SQUARE)
        if self.settings.objective == "distance":
            return distance
        values, violation = problem.relaxed_value(x)
        least, _ = problem.relaxed_value(problem.reference)
        gap = 10 * torch.log10(((values - least).clamp(min=0) + violation) / least.abs() + MIN_GAP)
        return gap if self.settings.objective == "gap" else gap + distance


def _duality_gap(problem: Any, x: Tensor, state: State) -> Tensor:
    """Return the relative duality gaps `(B,)` of x and the dual point of the state, in decibels."""
    return 10 * torch.log10(problem.gap(x, state.dual_point) / problem.value(x) + MIN_DUALITY_GAP)
