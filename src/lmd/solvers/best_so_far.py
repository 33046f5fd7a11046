"""A wrapper that makes any solver return the best point it has seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem
from lmd.solvers.base import State, Wrapper


@dataclass(frozen=True, kw_only=True)
class BestState(State):
    """The best points so far, their values, and the state of the solver inside; the dual points are that solver's."""

    inner: State
    value: Tensor

    @property
    def iterate(self) -> Tensor:
        return self.inner.iterate

    @property
    def known_value(self) -> Tensor:
        return self.value

    @property
    def dual_point(self) -> Tensor | None:
        return self.inner.dual_point


class BestSoFar(Wrapper[BestState]):
    """Runs a solver; its `x` is, instance by instance, the iterate of the lowest value so far.

    Subgradient methods do not descend at every step, and their theorems speak of the best iterate: this is it.
    Costs one function value per iteration.

    Args:
        solver: The solver inside.
    """

    @property
    def init_cost(self) -> dict[str, int]:
        return _plus_value(self.solver.init_cost)

    @property
    def step_cost(self) -> dict[str, int]:
        return _plus_value(self.solver.step_cost)

    @property
    def geometry(self) -> Mirror | None:
        return self.solver.geometry

    @property
    def accumulates(self) -> bool:
        return self.solver.accumulates

    def init(self, problem: Problem, x0: Tensor) -> BestState:
        inner = self.solver.init(problem, x0)
        return BestState(inner.x, inner=inner, value=problem.value(inner.x))

    def step(self, problem: Problem, state: BestState) -> BestState:
        inner = self.solver.step(problem, state.inner)
        value = problem.value(inner.x)
        better = value < state.value  # a NaN is never better
        shape = (-1,) + (1,) * (inner.x.ndim - 1)
        x = torch.where(better.reshape(shape), inner.x, state.x)
        best = torch.where(better, value, state.value)
        done = (inner.iteration, inner.diagnostics, inner.evaluations)
        return BestState(x, *done, inner=inner, value=best)


def _plus_value(cost: dict[str, int]) -> dict[str, int]:
    return {**cost, "value": cost.get("value", 0) + 1}
