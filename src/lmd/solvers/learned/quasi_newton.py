"""Quasi-Newton steps that begin with a learned metric, with learned step-sizes and no line search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_module_kind
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State
from lmd.solvers.classical.lbfgs import CurvaturePair, curvature_pair, two_loops
from lmd.solvers.learned.metrics import Metric


@dataclass(frozen=True, kw_only=True)
class LearnedQuasiNewtonState(State):
    """Points, the gradients and moves of the step before, and what earlier steps taught about the curvature."""

    gradient: Tensor
    """g_{k-1} `(B, n)`; 0 before the first step."""

    move: Tensor
    """x_k - x_{k-1} `(B, n)`."""

    pairs: tuple[CurvaturePair, ...]
    """Oldest first."""


class LearnedQuasiNewton(Solver[LearnedQuasiNewtonState]):
    r"""x_{k+1} = x_k - t_k H_k g_k: H_0 is a learned metric, H_k adds the curvature of the last `memory` steps to it.

    H_k is that of L-BFGS ([Nocedal 1980](https://doi.org/10.1090/S0025-5718-1980-0572855-7)) with the metric in place
    of a number, which suits the class from the first step on; log t_k is learned. One gradient an iteration and no
    values: nothing is promised, and `Then` goes on with a method that converges. For the whole space.

    Args:
        metric: H_0, for problems whose x has as many entries.
        iterations: How many t_k are learned.
        memory: Steps whose curvature is kept, 0 or more.
    """

    def __init__(self, metric: Metric, iterations: int = 8, memory: int = 8) -> None:
        super().__init__()
        if not isinstance(metric, Metric):
            raise InputError("metric", type(metric).__name__, "an lmd.solvers.learned.metrics.Metric")
        self.metric = metric
        self.iterations, self.memory = check_count("iterations", iterations), check_count("memory", memory, least=0)
        self.steps = nn.Parameter(torch.zeros(iterations))
        """log t_k `(N,)`."""

    def config(self) -> dict[str, Any]:
        return {"metric": self.metric, "iterations": self.iterations, "memory": self.memory}

    @property
    def horizon(self) -> int:
        return self.iterations

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1}

    def init(self, problem: Problem, x0: Tensor) -> LearnedQuasiNewtonState:
        check_module_kind("x0", x0, self, "solver")
        if x0[0].numel() != self.metric.size:
            raise InputError("x0", f"{x0[0].numel()} entries", f"{self.metric.size}, as the metric has")
        nothing = torch.zeros_like(x0).flatten(1)
        return LearnedQuasiNewtonState(x0, gradient=nothing, move=nothing, pairs=())

    def step(self, problem: Problem, state: LearnedQuasiNewtonState) -> LearnedQuasiNewtonState:
        k, g, pairs = state.iteration, problem.subgradient(state.x).flatten(1), state.pairs
        if k > 0 and self.memory > 0:
            pairs = (*pairs, curvature_pair(state.move, g - state.gradient, state.gradient))[-self.memory :]
        size = self.steps[min(k, self.iterations - 1)].exp()
        move = -size * two_loops(g, pairs, self.metric)
        return LearnedQuasiNewtonState(state.x + move.reshape_as(state.x), k + 1, gradient=g, move=move, pairs=pairs)
