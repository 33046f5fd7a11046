"""What learned solvers with a proven rest share: learned steps for k < N, then a classical method from their end."""

from __future__ import annotations

import abc
from typing import TypeVar

from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State

S = TypeVar("S", bound=State)


class LearnedPrefix(Solver[S]):
    """N learned iterations, in one compiled call where there is one, then the steps of a method that converges."""

    iterations: int
    """N."""

    @property
    def horizon(self) -> int:
        return self.iterations

    @property
    def ends_proven(self) -> bool:
        return True

    def keeps_to_domain(self, problem: Problem) -> bool:
        """Like the classical method that it ends in."""
        return True

    def step(self, problem: Problem, state: S) -> S:
        return self.advance(problem, state, 1)

    def advance(self, problem: Problem, state: S, count: int) -> S:
        end = state.iteration + count
        while state.iteration < min(end, self.iterations):
            if self.compiles(problem, state):
                state = self.compiled_steps(problem, state, min(end, self.iterations))
            else:
                state = self.learned_step(problem, state)
        while state.iteration < end:
            state = self.classical_step(problem, state)
        return state

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
