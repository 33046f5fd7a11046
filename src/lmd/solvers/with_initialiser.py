"""Solvers in sequence: one from points that are learned, and one that goes on where another ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_same_kind
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import Passing, Solver, State, Wrapper, add_evaluations
from lmd.solvers.initialisers import Start


class WithInitialiser(Passing):
    """A solver that begins at learned points, whatever x0 is; with a start for dual points, at those as well.

    Args:
        solver: The solver inside.
        start: What gives the points.
        dual: What gives the dual points; None leaves them to the solver.
    """

    def __init__(self, solver: Solver[Any], start: Start, dual: Start | None = None) -> None:
        super().__init__(solver)
        for name, given in (("start", start), ("dual", dual)):
            if not isinstance(given, Start) and not (name == "dual" and given is None):
                raise InputError(name, type(given).__name__, "an lmd.solvers.initialisers.Start")
        self.start, self.dual = start, dual

    def config(self) -> dict[str, Any]:
        return {"solver": self.solver, "start": self.start, "dual": self.dual}

    def init(self, problem: Any, x0: Tensor) -> State:
        start, dual, count = self.start, self.dual, len(x0)
        check_same_kind("x0", x0, "the solver's start", start.unit)
        point = start.forward(problem, count)
        return self.begin(problem, point, None if dual is None else dual.forward(problem, count))

    def begin(self, problem: Any, x: Tensor, dual: Tensor | None = None) -> State:
        """The state before the first step, at what the starts say."""
        x = x if problem.domain is None else problem.domain.nearest(x)
        if dual is None:
            state: State = self.solver.init(problem, x)
            return state
        return replace(self.solver.resume(problem, x, problem.project_dual(dual)), iteration=0)


@dataclass(frozen=True, kw_only=True)
class ThenState(State):
    """The state of the solver whose turn it is."""

    inner: State

    start: Tensor
    """Where the first solver began: where the second one does, if the first one made it worse."""

    @property
    def iterate(self) -> Tensor:
        return self.inner.iterate

    @property
    def known_value(self) -> Tensor | None:
        return self.inner.known_value

    @property
    def dual_point(self) -> Tensor | None:
        return self.inner.dual_point


class Then(Wrapper[ThenState]):
    """The iterations that a solver was trained for, then another one, from the better of where those began and ended.

    So what is proven of the second solver from any point holds of both, from iteration N on.

    Args:
        solver: One that was trained for a number of iterations.
        rest: The one that goes on.
    """

    def __init__(self, solver: Solver[Any], rest: Solver[Any]) -> None:
        super().__init__(solver)
        if not isinstance(rest, Solver) or solver.horizon is None:
            given = type(rest).__name__ if solver.horizon else f"{type(solver).__name__} without a number of iterations"
            raise InputError("rest", given, "a solver, after one that was trained for a number of iterations")
        self.rest, self.iterations = rest, solver.horizon

    def config(self) -> dict[str, Any]:
        return {"solver": self.solver, "rest": self.rest}

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.solver.needs, *self.rest.needs)

    def keeps_to_domain(self, problem: Problem) -> bool:
        return self.solver.keeps_to_domain(problem) and self.rest.keeps_to_domain(problem)

    @property
    def ends_proven(self) -> bool:
        return True

    @property
    def init_cost(self) -> dict[str, int]:
        return self.solver.init_cost

    @property
    def step_cost(self) -> dict[str, int]:
        return self.solver.step_cost

    def init(self, problem: Problem, x0: Tensor) -> ThenState:
        inner = self.solver.init(problem, x0)
        return ThenState(inner.x, inner=inner, start=inner.x)

    def step(self, problem: Problem, state: ThenState) -> ThenState:
        if state.iteration < self.iterations:
            inner, cost = self.solver.step(problem, state.inner), {}
        else:
            begin, cost = state.inner, _counts(self.rest.step_cost, state.x, minus=self.solver.step_cost)
            if state.iteration == self.iterations:
                begin = self.rest.init(problem, _better(problem, state.start, state.x))
                cost = add_evaluations(cost, _counts({"value": 2}, state.x), _counts(self.rest.init_cost, state.x))
            inner = self.rest.step(problem, begin)
        cost = add_evaluations(cost, inner.evaluations)
        return ThenState(inner.x, state.iteration + 1, inner.diagnostics, cost, inner=inner, start=state.start)


def _better(problem: Problem, start: Tensor, end: Tensor) -> Tensor:
    """Of each instance the point with the lower value; never one without a value."""
    lower = problem.value(end) <= problem.value(start)
    return torch.where(lower.reshape(-1, *(1,) * (end.ndim - 1)), end, start)


def _counts(cost: Mapping[str, int], x: Tensor, minus: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """Evaluations per instance `(B,)`, by name, beyond others."""
    less = minus or {}
    counts = {name: cost.get(name, 0) - less.get(name, 0) for name in (*cost, *less)}
    return {name: x.new_full((len(x),), count, dtype=torch.int64) for name, count in counts.items() if count}
