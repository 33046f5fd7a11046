"""Learned mirror descent on the saddle form of any composite problem: learned steps and momenta, a proven rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_positive
from lmd.solvers.base import DualState
from lmd.solvers.classical.pdhg import PDHG
from lmd.solvers.learned.prefix import LearnedPrefix
from lmd.terms.base import per_instance


@dataclass(frozen=True, kw_only=True)
class LearnedPDHGState(DualState):
    """Points and dual points, and how they moved last."""

    moved: Tensor  # x_k - x_{k-1}
    dual_moved: Tensor  # p_k - p_{k-1}


class LearnedPDHG(LearnedPrefix[LearnedPDHGState]):
    r"""PDHG with steps and momenta of each iteration learned, for k < N; then PDHG as it is.

        p_{k+1} = prox_{s_k g*}(p_k + m_k (p_k - p_{k-1}) + s_k K(x_k + e_k (x_k - x_{k-1})))
        x_{k+1} = prox_{t_k f}(x_k + n_k (x_k - x_{k-1}) - t_k K'p_{k+1})

    with Euclidean mirrors on both sides: for problems whose K says nothing about neighbours, such as the lasso, where
    `LearnedSaddle` has nothing to convolve. t_k and s_k are learned as multiples of PDHG's own steps tau and sigma.

    What holds whatever was learned: p_k is feasible, as a prox is, so there is a duality gap at every iteration; and
    from iteration N on the method is PDHG, started at x_N and p_N, which converges from any start (Chambolle and Pock
    2011). `tau` is PDHG's, for both parts.

    Args:
        iterations: N.
        tau: Of PDHG; None is its own default.
    """

    def __init__(self, iterations: int = 20, tau: float | None = None) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        self.tau = None if tau is None else check_positive("tau", tau)
        start = torch.zeros(iterations, 5)
        start[:, 2] = 1.0
        # log t_k / tau, log s_k / sigma, e_k, m_k, n_k `(N, 5)`; before training, those of PDHG
        self.numbers = nn.Parameter(start)
        self.tail: PDHG = PDHG(tau, accelerated=False)

    @property
    def needs(self) -> tuple[str, ...]:
        return self.tail.needs

    @property
    def init_cost(self) -> dict[str, int]:
        return self.tail.init_cost

    @property
    def step_cost(self) -> dict[str, int]:
        return self.tail.step_cost

    def init(self, problem: Any, x0: Tensor) -> LearnedPDHGState:
        dual = torch.zeros_like(problem.operator(x0))
        return LearnedPDHGState(x0, dual=dual, moved=torch.zeros_like(x0), dual_moved=dual)

    def learned_step(self, problem: Any, state: LearnedPDHGState) -> LearnedPDHGState:
        x, p, moved, dual_moved = state.x, state.dual, state.moved, state.dual_moved
        tau, sigma = self.tail.steps(problem)
        log_t, log_s, ahead, dual_momentum, momentum = self.numbers[state.iteration].to(x.dtype).unbind()
        t, s = (log_t.exp() * tau).expand(len(x)), (log_s.exp() * sigma).expand(len(x))
        rise = problem.operator(x + ahead * moved)
        dual = problem.dual_prox(p + dual_momentum * dual_moved + per_instance(s, rise) * rise, s)
        fall = problem.operator.adjoint(dual)
        target = problem.data_prox(x + momentum * moved - per_instance(t, fall) * fall, t)
        return LearnedPDHGState(target, state.iteration + 1, dual=dual, moved=target - x, dual_moved=dual - p)
