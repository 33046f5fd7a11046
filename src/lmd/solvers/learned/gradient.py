"""Accelerated gradient steps in a learned metric, with learned step-sizes and momenta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_module_kind
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State
from lmd.solvers.learned.metrics import Metric


@dataclass(frozen=True, kw_only=True)
class LearnedGradientState(State):
    """Points, and where the next gradient is taken."""

    ahead: Tensor


class LearnedGradient(Solver[LearnedGradientState]):
    r"""x_{k+1} = P(y_k - t_k M g(y_k)), y_{k+1} = P(x_{k+1} + m_k (x_{k+1} - x_k)), with M, t_k and m_k learned.

    M is a metric, such as an inverse Hessian that suits the class; t_k, as a logarithm, says how much of it to trust.
    P is the projection onto the problem's domain, in the Euclidean norm; iterations past the learned ones are as the
    last. Nothing is promised of them: `Then` goes on with a method that converges.

    Args:
        metric: M, for problems whose x has as many entries.
        iterations: How many t_k and m_k are learned.
    """

    def __init__(self, metric: Metric, iterations: int = 8) -> None:
        super().__init__()
        if not isinstance(metric, Metric):
            raise InputError("metric", type(metric).__name__, "an lmd.solvers.learned.metrics.Metric")
        self.metric, self.iterations = metric, check_count("iterations", iterations)
        self.steps = nn.Parameter(torch.zeros(iterations))
        """log t_k `(N,)`."""
        self.momenta = nn.Parameter(torch.zeros(iterations))
        """m_k `(N,)`."""

    def config(self) -> dict[str, Any]:
        return {"metric": self.metric, "iterations": self.iterations}

    @property
    def horizon(self) -> int:
        return self.iterations

    def keeps_to_domain(self, problem: Problem) -> bool:
        return True

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1}

    def init(self, problem: Problem, x0: Tensor) -> LearnedGradientState:
        check_module_kind("x0", x0, self, "solver")
        if x0[0].numel() != self.metric.size:
            raise InputError("x0", f"{x0[0].numel()} entries", f"{self.metric.size}, as the metric has")
        return LearnedGradientState(x0, ahead=x0)

    def step(self, problem: Problem, state: LearnedGradientState) -> LearnedGradientState:
        k, y = min(state.iteration, self.iterations - 1), state.ahead
        direction = self.metric(problem.subgradient(y).flatten(1)).reshape_as(y)
        x = _inside(problem, torch.addcmul(y, self.steps[k].exp(), direction, value=-1))
        ahead = _inside(problem, torch.addcmul(x, self.momenta[k], x - state.x))
        return LearnedGradientState(x, state.iteration + 1, ahead=ahead)


def _inside(problem: Problem, x: Tensor) -> Tensor:
    return x if problem.domain is None else problem.domain.nearest(x)
