"""Nesterov's accelerated gradient method, with projection where the problem has a domain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State
from lmd.solvers.steps import Steps, as_steps


@dataclass(frozen=True, kw_only=True)
class NesterovState(State):
    """Points, and what momentum is made of."""

    extrapolated: Tensor
    momentum: float = 1.0


class Nesterov(Solver[NesterovState]):
    r"""x_{k+1} = P(y_k - t_k g(y_k)), y_{k+1} = P(x_{k+1} + (m_k - 1)/m_{k+1} (x_{k+1} - x_k)).

    m_0 = 1 and m_{k+1} = (1 + \sqrt{1 + 4 m_k^2}) / 2. Nesterov 1983; Beck and Teboulle 2009. P is the projection onto
    the problem's domain; the extrapolated point is projected too, as the problem may be defined nowhere else.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    def __init__(self, steps: Steps | float = 0.01) -> None:
        super().__init__()
        self.steps = as_steps(steps)

    def config(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def keeps_to_domain(self, problem: Problem) -> bool:
        return True

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1}

    def init(self, problem: Problem, x0: Tensor) -> NesterovState:
        return NesterovState(x0, extrapolated=x0)

    def step(self, problem: Problem, state: NesterovState) -> NesterovState:
        y = state.extrapolated
        x = y - self.steps(state.iteration) * problem.subgradient(y)
        if problem.domain is not None:
            x = problem.domain.nearest(x)
        momentum = (1 + math.sqrt(1 + 4 * state.momentum**2)) / 2
        ahead = x + ((state.momentum - 1) / momentum) * (x - state.x)
        if problem.domain is not None:
            ahead = problem.domain.nearest(ahead)
        return NesterovState(x, state.iteration + 1, extrapolated=ahead, momentum=momentum)
