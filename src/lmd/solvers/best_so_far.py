"""A wrapper that makes any solver return the best point it has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State


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


class BestSoFar(Solver[BestState]):
    """Runs a solver; its `x` is, instance by instance, the iterate of the lowest value so far.

    Subgradient methods do not descend at every step, and their theorems speak of the best iterate: this is it.
    Costs one function value per iteration.
    """

    def __init__(self, solver: Solver[Any]) -> None:
        super().__init__()
        if not isinstance(solver, Solver):
            raise InputError("solver", type(solver).__name__, "an lmd.solvers.Solver")
        self.solver = solver

    def config(self) -> dict[str, Any]:
        return {"solver": self.solver}

    @property
    def needs(self) -> tuple[str, ...]:
        return self.solver.needs

    def keeps_to_domain(self, problem: Problem) -> bool:
        return self.solver.keeps_to_domain(problem)

    @property
    def init_cost(self) -> dict[str, int]:
        return _plus_value(self.solver.init_cost)

    @property
    def step_cost(self) -> dict[str, int]:
        return _plus_value(self.solver.step_cost)

    @property
    def horizon(self) -> int | None:
        return self.solver.horizon

    @property
    def ends_proven(self) -> bool:
        return self.solver.ends_proven

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
