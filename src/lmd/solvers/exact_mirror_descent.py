"""Learned mirror descent with exact mirrors: learned iterations, then backtracked ones in the same kind of geometry."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from lmd.checks import check_count, check_positive
from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem
from lmd.solvers.backtracking import AcceleratedBacktrackedMirrorDescent, per_point
from lmd.solvers.base import DualState
from lmd.solvers.learned_prefix import LearnedPrefix
from lmd.terms.domain import same_set

WIDTHS = (1e-4, 1e3)
"""What learned widths are kept in."""


@dataclass(frozen=True, kw_only=True)
class ExactState(DualState):
    """Points, those before them, and the scale of the problem's gradients."""

    previous: Tensor
    unit: Tensor
    """L `(B,)`: the smoothness of the problem, or of the smooth part of it; 1 where nothing is known."""


class ExactMirrorDescent(LearnedPrefix[ExactState, Problem]):
    r"""N learned iterations of mirror descent with a mirror, a momentum and a smoothing of its own for each,

        v_k = x_k + m_k (x_k - x_{k-1}),   x_{k+1} = to_primal_k(to_dual_k(v_k) - grad f_{w_k}(v_k) / L),

    and then `AcceleratedBacktrackedMirrorDescent`, which converges from any point, so from x_N. f_w is f smoothed by w
    where it is not smooth (`Problem.smoothed_gradient`); its dual points are feasible, so there is a duality gap in
    every iteration where the problem has one. Slopes of the mirrors take the place of step-sizes, as multiples of
    1 / L. All mirrors begin as copies of `mirror`, which is that of the rest.
    """

    def __init__(
        self, mirror: Mirror, iterations: int = 10, width: float = 0.1, final_width: float = 0.02, delay: float = 10.0
    ) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        self.tail: AcceleratedBacktrackedMirrorDescent = AcceleratedBacktrackedMirrorDescent(mirror, final_width, delay)
        self.mirrors = nn.ModuleList(copy.deepcopy(mirror) for _ in range(iterations))
        self.width = width
        start = torch.linspace(math.log(check_positive("width", width)), math.log(final_width), iterations)
        self.log_widths = nn.Parameter(start)
        self.momenta = nn.Parameter(torch.full((iterations,), 0.2))

    def config(self) -> dict[str, Any]:
        tail = self.tail
        return {
            "mirror": tail.mirror,
            "iterations": self.iterations,
            "width": self.width,
            "final_width": tail.width,
            "delay": tail.delay,
        }

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1, "to_dual": 1, "to_primal": 1}

    def keeps_to_domain(self, problem: Problem) -> bool:
        return same_set(self.tail.mirror.domain, problem.domain)

    def init(self, problem: Problem, x0: Tensor) -> ExactState:
        self.tail.mirror.check("x0", x0)
        return ExactState(x0, dual=x0.new_empty(len(x0), 0), previous=problem.filled(x0), unit=_unit(problem, x0))

    def mirror_of(self, k: int) -> Mirror:
        """The mirror of iteration k."""
        return cast(Mirror, self.mirrors[k])

    def learned_step(self, problem: Problem, state: ExactState) -> ExactState:
        k, mirror = state.iteration, self.mirror_of(state.iteration)
        x = state.x if k else state.previous
        ahead = x + self.momenta[k] * (x - state.previous)
        if problem.domain is not None:
            ahead = problem.domain.project(ahead)
        gradient, dual = problem.smoothed_gradient(ahead, self.log_widths[k].exp())
        target = mirror.to_dual(ahead) - gradient / per_point(state.unit, gradient)
        return ExactState(mirror.to_primal(target), k + 1, dual=dual, previous=x, unit=state.unit)

    def tail_at(self, problem: Problem, x: Tensor, dual: Tensor) -> DualState:
        return self.tail.resume(problem, x, dual)

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep momenta in [-1, 1] and widths positive."""
        self.momenta.clamp_(-1, 1)
        low, high = self.log_widths.new_tensor(WIDTHS).log().tolist()
        self.log_widths.clamp_(low, high)


def _unit(problem: Problem, x: Tensor) -> Tensor:
    known = getattr(problem, "data_smoothness", None)
    known = problem.smoothness if known is None else known
    return x.new_ones(len(x)) * (1.0 if known is None else known)
