"""What learned solvers with a proven rest share: learned steps for k < N, then a classical method from their end."""

from __future__ import annotations

import abc
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypeVar

from lmd.solvers.base import DualState, Solver, add_evaluations


@dataclass(frozen=True, kw_only=True)
class TailState(DualState):
    """Past the learned iterations: the state of the classical method."""

    inner: DualState


L = TypeVar("L", bound=DualState)


class LearnedPrefix(Solver[L | TailState]):
    """N learned iterations, in one compiled call where there is one, then the steps of a method that converges.

    `step_cost` is the cost of a learned step; where a step costs something else, its state says so.
    """

    stays_in_domain = True  # Like the classical method that it ends in
    ends_proven = True

    iterations: int  # N
    tail: Solver[Any]  # The method that converges

    @property
    def horizon(self) -> int:
        return self.iterations

    def cost_of(self, k: int) -> dict[str, int]:
        """Evaluations per instance in the step from x_k, by name; a compiled one counts as what it stands for."""
        return self.step_cost if k < self.iterations else self.tail.step_cost

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> TailState:
        """Past the learned iterations: they are for a start that knows nothing."""
        return TailState(x, self.iterations, dual=dual, inner=self.tail_at(problem, x, dual))

    def step(self, problem: Any, state: L | TailState) -> L | TailState:
        return self.advance(problem, state, 1)

    def advance(self, problem: Any, state: L | TailState, count: int) -> L | TailState:
        begin, end = state.iteration, state.iteration + count
        while not isinstance(state, TailState) and state.iteration < min(end, self.iterations):
            compiled = self.compiled_steps(problem, state, min(end, self.iterations))
            state = self.learned_step(problem, state) if compiled is None else compiled
        spent: dict[str, Tensor] = {}  # by steps of the classical method that count for themselves
        while state.iteration < end:
            inner = state.inner if isinstance(state, TailState) else self.tail_at(problem, state.x, state.dual)
            inner = self.tail.step(problem, inner)
            spent = add_evaluations(spent, inner.evaluations)
            state = TailState(inner.x, state.iteration + 1, dual=inner.dual, inner=inner)
        beyond = add_evaluations(self._beyond(begin, end, state.x), spent)
        return replace(state, evaluations=beyond) if beyond else state

    def _beyond(self, begin: int, end: int, x: Tensor) -> dict[str, Tensor]:
        """What the steps from x_begin to x_end cost beyond `step_cost` each: less than 0 where they cost less."""
        cost: Counter[str] = Counter()
        for k in range(begin, end):
            cost.update(self.cost_of(k))
            cost.subtract(self.step_cost)
        return {name: x.new_full(x.shape[:1], extra, dtype=torch.int64) for name, extra in cost.items() if extra}

    def compiled_steps(self, problem: Any, state: L, end: int) -> L | None:
        """All learned steps up to iteration `end` in one compiled call; None where there is none."""
        return None

    @abc.abstractmethod
    def learned_step(self, problem: Any, state: L) -> L:
        """One learned iteration."""

    def tail_at(self, problem: Any, x: Tensor, dual: Tensor) -> DualState:
        """The state of the classical method at the last learned points, or at those of an earlier run."""
        state: DualState = self.tail.resume(problem, x, dual)
        return state
