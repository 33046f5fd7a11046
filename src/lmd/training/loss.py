"""The unrolled loss of section 3.3: how good a solver's first N iterations are, as a function of its parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem, check_values
from lmd.solvers.base import Solver, State
from lmd.training.settings import TrainingSettings


class LossParts(NamedTuple):
    """The loss, which has a graph, and the two parts it is made of, which have none; each is a mean over the batch."""

    loss: Tensor
    """value + s * inconsistency, `()`."""

    value: Tensor
    """sum_k r_k f(x_k), `()`."""

    inconsistency: Tensor
    """sum_k ||to_primal(to_dual(x_k)) - x_k||, `()`; 0 where it was not measured."""


class UnrolledLoss(nn.Module):
    """1/B sum_i [ sum_{k=1}^N r_k f_i(x_k) + s ||(to_primal o to_dual - I)(x_k)|| ], equation 3.7 of the paper.

    The iterates come from the very `step` that `lmd.run` calls. The inconsistency costs nothing where the solver has
    no mirror or an exact one. With `recompute`, an iteration (its step, value and inconsistency) keeps nothing for
    the backward pass but the point it starts from, and is run again there; no number changes.
    """

    def __init__(self, solver: Solver[Any], settings: TrainingSettings) -> None:
        super().__init__()
        iterations = settings.iterations or solver.horizon
        if iterations is None:
            raise InputError(
                "iterations", "None", f"a number of iterations: {type(solver).__name__} has none of its own"
            )
        self.solver = solver
        self.value_weights = settings.weights_for(iterations)
        self.settings = settings
        self.mirror_name = _inexact_mirror(solver)

    @property
    def measures_consistency(self) -> bool:
        """Whether there is an inconsistency to measure."""
        return self.mirror_name is not None

    def forward(self, problem: Problem, x0: Tensor, consistency_weight: float) -> LossParts:
        """The loss of a batch of problems from the starting points x0 `(B, ...)`.

        With a weight of 0 the inconsistency is left out, except where no graph is recorded: then it is a measurement.
        """
        measured = self.measures_consistency and (consistency_weight > 0 or not torch.is_grad_enabled())
        at_start = measured and self.settings.consistency_at in ("start", "all")
        at_iterates = measured and self.settings.consistency_at in ("iterates", "all")
        state = self.solver.init(problem, x0)
        value = inconsistency = x0.new_zeros(x0.shape[0])
        if at_start:
            inconsistency = self._inconsistency(state)
        for weight in self.value_weights:
            state, f, gap = self._iteration(problem, state, weight > 0, at_iterates)
            if f is not None:
                value = value + weight * f
            if gap is not None:
                inconsistency = inconsistency + gap
        mean_value, mean_inconsistency = value.mean(), inconsistency.mean()
        loss = mean_value + consistency_weight * mean_inconsistency if measured else mean_value
        return LossParts(loss, mean_value.detach(), mean_inconsistency.detach())

    def _iteration(self, problem: Problem, state: State, *wanted: bool) -> tuple[State, Tensor | None, Tensor | None]:
        if not (self.settings.recompute and torch.is_grad_enabled()):
            return self._advance(problem, state, *wanted)
        return checkpoint(self._advance, problem, state, *wanted, use_reentrant=False)

    def _advance(
        self, problem: Problem, state: State, with_value: bool, with_inconsistency: bool
    ) -> tuple[State, Tensor | None, Tensor | None]:
        """One iteration: the next state, its values `(B,)` and its inconsistencies `(B,)`, where they are wanted."""
        state = self.solver.step(problem, state)
        value = check_values(problem, problem.value(state.x), state.x) if with_value else None
        return state, value, self._inconsistency(state) if with_inconsistency else None

    def _inconsistency(self, state: State) -> Tensor:
        assert self.mirror_name is not None
        mirror = self.solver.get_submodule(self.mirror_name)
        assert isinstance(mirror, Mirror)
        return mirror.inconsistency(state.x, self.settings.consistency_norm)


def _inexact_mirror(solver: Solver[Any]) -> str | None:
    """The name of the solver's mirror, if it has one whose inverse is learned."""
    for name, module in solver.named_modules():
        if isinstance(module, Mirror) and not module.is_exact:
            return name
    return None
