"""Gradient descent, projected, accelerated, and Adam."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import S, Solver, State
from lmd.solvers.steps import Steps, as_steps


class _GradientSolver(Solver[S]):
    """What the methods share: steps, and one subgradient for each."""

    def __init__(self, steps: Steps | float = 0.01) -> None:
        super().__init__()
        self.steps = as_steps(steps)

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1}


class GradientDescent(_GradientSolver[State]):
    """x_{k+1} = x_k - t_k g_k with g_k a subgradient at x_k.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    def init(self, problem: Problem, x0: Tensor) -> State:
        return State(x0)

    def step(self, problem: Problem, state: State) -> State:
        x = state.x - self.steps(state.iteration) * problem.subgradient(state.x)
        return State(x, state.iteration + 1)


class ProjectedGradient(_GradientSolver[State]):
    """x_{k+1} = P(x_k - t_k g_k) with P the Euclidean projection onto the problem's domain.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    needs = ("domain",)

    def keeps_to_domain(self, problem: Problem) -> bool:
        return True

    def init(self, problem: Any, x0: Tensor) -> State:
        return State(problem.domain.check("x0", x0))

    def step(self, problem: Any, state: State) -> State:
        x = state.x - self.steps(state.iteration) * problem.subgradient(state.x)
        return State(problem.domain.nearest(x), state.iteration + 1)


@dataclass(frozen=True, kw_only=True)
class NesterovState(State):
    """Points, extrapolated points y_k and m_k."""

    extrapolated: Tensor
    momentum: float = 1.0


class Nesterov(_GradientSolver[NesterovState]):
    r"""x_{k+1} = P(y_k - t_k g(y_k)), y_{k+1} = P(x_{k+1} + (m_k - 1)/m_{k+1} (x_{k+1} - x_k)).

    m_0 = 1 and m_{k+1} = (1 + \sqrt{1 + 4 m_k^2}) / 2. Nesterov 1983; Beck and Teboulle 2009. P is the projection onto
    the problem's domain; the extrapolated point is projected too, as the problem may be defined nowhere else.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    def keeps_to_domain(self, problem: Problem) -> bool:
        return True

    def init(self, problem: Problem, x0: Tensor) -> NesterovState:
        return NesterovState(x0, extrapolated=x0)

    def step(self, problem: Problem, state: NesterovState) -> NesterovState:
        y = state.extrapolated
        x = project(problem, y - self.steps(state.iteration) * problem.subgradient(y))
        momentum = (1 + math.sqrt(1 + 4 * state.momentum**2)) / 2
        ahead = project(problem, x + ((state.momentum - 1) / momentum) * (x - state.x))
        return NesterovState(x, state.iteration + 1, extrapolated=ahead, momentum=momentum)


def project(problem: Problem, x: Tensor) -> Tensor:
    """The points of the problem's domain nearest to x `(B, ...)`."""
    return x if problem.domain is None else problem.domain.nearest(x)


@dataclass(frozen=True, kw_only=True)
class AdamState(State):
    """Points, and the running averages of the gradient and of its square."""

    mean: Tensor
    square: Tensor


class Adam(_GradientSolver[AdamState]):
    """x_{k+1} = x_k - t_k mean / (sqrt(square) + epsilon) with bias-corrected averages. Kingma and Ba 2015.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
        betas: The factors of the averages of gradients and of their squares, in [0, 1).
        epsilon: What the root of the square is kept away from 0 by, positive.
    """

    def __init__(
        self, steps: Steps | float = 0.05, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8
    ) -> None:
        super().__init__(steps)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise InputError("betas", betas, "two numbers in [0, 1)")
        self.betas = (float(betas[0]), float(betas[1]))
        self.epsilon = check_positive("epsilon", epsilon)

    def init(self, problem: Problem, x0: Tensor) -> AdamState:
        return AdamState(x0, mean=torch.zeros_like(x0), square=torch.zeros_like(x0))

    def step(self, problem: Problem, state: AdamState) -> AdamState:
        gradient = problem.subgradient(state.x)
        first, second = self.betas
        k = state.iteration + 1
        mean = first * state.mean + (1 - first) * gradient
        square = second * state.square + (1 - second) * gradient.square()
        direction = (mean / (1 - first**k)) / ((square / (1 - second**k)).sqrt() + self.epsilon)
        return AdamState(state.x - self.steps(state.iteration) * direction, k, mean=mean, square=square)
