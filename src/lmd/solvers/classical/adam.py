"""Adam on the optimisation variable itself, the paper's second baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State
from lmd.solvers.steps import Steps, as_steps


@dataclass(frozen=True, kw_only=True)
class AdamState(State):
    """Points, and the running averages of the gradient and of its square."""

    mean: Tensor
    square: Tensor


class Adam(Solver[AdamState]):
    """x_{k+1} = x_k - t_k mean / (sqrt(square) + epsilon) with bias-corrected averages. Kingma and Ba 2015.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
        betas: The factors of the averages of gradients and of their squares, in [0, 1).
        epsilon: What the root of the square is kept away from 0 by, positive.
    """

    def __init__(
        self, steps: Steps | float = 0.05, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8
    ) -> None:
        super().__init__()
        self.steps = as_steps(steps)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise InputError("betas", betas, "two numbers in [0, 1)")
        self.betas = (float(betas[0]), float(betas[1]))
        self.epsilon = check_positive("epsilon", epsilon)

    def config(self) -> dict[str, Any]:
        return {"steps": self.steps, "betas": list(self.betas), "epsilon": self.epsilon}

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1}

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
