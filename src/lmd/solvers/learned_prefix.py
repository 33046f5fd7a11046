"""What learned solvers with a proven rest share: learned steps for k < N, then a classical method from their end."""

from __future__ import annotations

import abc
from collections import Counter
from dataclasses import replace
from typing import Any, TypeVar

import torch

from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State

S = TypeVar("S", bound=State)


class LearnedPrefix(Solver[S]):
    """N learned iterations, in one compiled call where there is one, then the steps of a method that converges.

    `step_cost` is the cost of a learned step; where a step costs something else, its state says so.
    """

    iterations: int
    """N."""

    tail: Solver[Any]
    """The method that converges."""

    @property
    def horizon(self) -> int:
        return self.iterations

    @property
    def ends_proven(self) -> bool:
        return True

    def keeps_to_domain(self, problem: Problem) -> bool:
        """Like the classical method that it ends in."""
        return True

    def cost_of(self, k: int) -> dict[str, int]:
        """Evaluations per instance in the step from x_k, by name; a compiled one counts as what it stands for."""
        return self.step_cost if k < self.iterations else self.tail.step_cost

    def step(self, problem: Problem, state: S) -> S:
        return self.advance(problem, state, 1)

    def advance(self, problem: Problem, state: S, count: int) -> S:
        begin, end = state.iteration, state.iteration + count
        while state.iteration < min(end, self.iterations):
            if self.compiles(problem, state):
                state = self.compiled_steps(problem, state, min(end, self.iterations))
            else:
                state = self.learned_step(problem, state)
        while state.iteration < end:
            state = self.classical_step(problem, state)
        beyond = {
            name: state.x.new_full(state.x.shape[:1], extra, dtype=torch.int64)
            for name, extra in self._beyond(begin, end).items()
        }
        return replace(state, evaluations=beyond) if beyond else state

    def _beyond(self, begin: int, end: int) -> dict[str, int]:
        """What the steps from x_begin to x_end cost beyond `step_cost` each: less than 0 where they cost less."""
        cost: Counter[str] = Counter()
        for k in range(begin, end):
            cost.update(self.cost_of(k))
            cost.subtract(self.step_cost)
        return {name: extra for name, extra in cost.items() if extra}

    def compiles(self, problem: Problem, state: S) -> bool:
        """Whether `compiled_steps` can take the place of `learned_step` here."""
        return False

    def compiled_steps(self, problem: Problem, state: S, end: int) -> S:
        """All learned steps up to iteration `end`, at once."""
        raise NotImplementedError

    @abc.abstractmethod
    def learned_step(self, problem: Problem, state: S) -> S:
        """One learned iteration."""

    @abc.abstractmethod
    def classical_step(self, problem: Problem, state: S) -> S:
        """One iteration past the learned ones; the first of them starts the classical method at their last point."""
