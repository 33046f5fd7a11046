"""A wrapper that makes any solver answer with a point that is no worse than where it started."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmd.problems.base import Problem
from lmd.solvers.base import State, Wrapper, add_evaluations


@dataclass(frozen=True, kw_only=True)
class NotAboveStartState(State):
    """The points of the solver inside, or the start where they are above it; the dual points are the solver's."""

    inner: State
    value: Tensor
    """f(x) `(B,)`."""

    start: Tensor
    start_value: Tensor

    @property
    def iterate(self) -> Tensor:
        return self.inner.iterate

    @property
    def known_value(self) -> Tensor:
        return self.value

    @property
    def dual_point(self) -> Tensor | None:
        return self.inner.dual_point


class NoWorseThanStart(Wrapper[NotAboveStartState]):
    """x_k of the solver inside where f(x_k) <= f(x_0), and x_0 elsewhere, instance by instance.

    For solvers that end proven, so that all they can do wrong is not to have come down yet. Each answer depends on x_k
    and x_0 alone: many iterations are gone through as fast as the solver inside does it, and one value is evaluated at
    their end, which `run` takes for its record. For all others there is `lmd.guarantees.Safeguard`.

    Args:
        solver: The solver inside.

    >>> import lmd
    >>> wild = lmd.solvers.GradientDescent(3.0)
    >>> lmd.run(NoWorseThanStart(wild), lambda x: (x**2).sum(dim=1), torch.ones(1, 3), 20).values.tolist()
    [3.0]
    """

    @property
    def init_cost(self) -> dict[str, int]:
        return {**self.solver.init_cost, "value": self.solver.init_cost.get("value", 0) + 1}

    @property
    def step_cost(self) -> dict[str, int]:
        """That of the step inside; the value, which is one however many steps are taken at once, is in the state."""
        return self.solver.step_cost

    def init(self, problem: Problem, x0: Tensor) -> NotAboveStartState:
        inner, value = self.solver.init(problem, x0), problem.value(x0)
        return NotAboveStartState(x0, inner=inner, value=value, start=x0, start_value=value)

    def resume(self, problem: Problem, x: Tensor, dual: Tensor) -> NotAboveStartState:
        inner, value = self.solver.resume(problem, x, dual), problem.value(x)
        return NotAboveStartState(x, inner.iteration, inner=inner, value=value, start=x, start_value=value)

    def step(self, problem: Problem, state: NotAboveStartState) -> NotAboveStartState:
        return self.advance(problem, state, 1)

    def advance(self, problem: Problem, state: NotAboveStartState, count: int) -> NotAboveStartState:
        inner = self.solver.advance(problem, state.inner, count)
        known = inner.known_value
        return self._around(state, inner, problem.value(inner.x) if known is None else known, int(known is None))

    @staticmethod
    def _around(before: NotAboveStartState, inner: State, value: Tensor, evaluated: int) -> NotAboveStartState:
        """The state around one whose points have these values, for which so many were evaluated."""
        x, below = inner.x, value <= before.start_value  # a NaN never is
        if not bool(below.all()):
            x = torch.where(below.reshape(-1, *(1,) * (x.ndim - 1)), x, before.start)
            value = torch.where(below, value, before.start_value)
        extra = {"value": torch.full_like(value, evaluated, dtype=torch.int64)} if evaluated else {}
        return replace(
            before,
            x=x,
            iteration=inner.iteration,
            diagnostics=inner.diagnostics,
            evaluations=add_evaluations(inner.evaluations, extra),
            inner=inner,
            value=value,
        )
