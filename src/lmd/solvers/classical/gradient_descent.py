"""Gradient descent, with projection where the problem has a domain to stay in."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from lmd.problems.base import Problem
from lmd.solvers.base import P, Solver, State
from lmd.solvers.steps import Steps, as_steps
from lmd.terms import Domain


class _GradientSteps(Solver[State, P]):
    """What both methods share: steps, and one subgradient for each."""

    def __init__(self, steps: Steps | float = 0.01) -> None:
        super().__init__()
        self.steps = as_steps(steps)

    def config(self) -> dict[str, Any]:
        return {"steps": self.steps}

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1}


class GradientDescent(_GradientSteps[Problem]):
    """x_{k+1} = x_k - t_k g_k with g_k a subgradient at x_k.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    def init(self, problem: Problem, x0: Tensor) -> State:
        return State(x0)

    def step(self, problem: Problem, state: State) -> State:
        x = state.x - self.steps(state.iteration) * problem.subgradient(state.x)
        return State(x, state.iteration + 1)


class DomainProblem(Protocol):
    """What projected gradient descent needs of a problem."""

    @property
    def domain(self) -> Domain: ...

    def subgradient(self, x: Tensor) -> Tensor: ...


class ProjectedGradient(_GradientSteps[DomainProblem]):
    """x_{k+1} = P(x_k - t_k g_k) with P the Euclidean projection onto the problem's domain.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    @property
    def needs(self) -> tuple[str, ...]:
        return ("domain",)

    def keeps_to_domain(self, problem: Problem) -> bool:
        return True

    def init(self, problem: DomainProblem, x0: Tensor) -> State:
        return State(problem.domain.check("x0", x0))

    def step(self, problem: DomainProblem, state: State) -> State:
        x = state.x - self.steps(state.iteration) * problem.subgradient(state.x)
        return State(problem.domain.nearest(x), state.iteration + 1)
