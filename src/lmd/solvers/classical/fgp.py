"""Fast gradient projection: accelerated proximal gradient ascent on the dual of a composite problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.solvers.base import DualState, Solver
from lmd.terms.base import Scale, add_scaled, inner, per_instance

RESTART_EVERY = 8  # iterations between two checks of the momentum


@dataclass(frozen=True, kw_only=True)
class FGPState(DualState):
    """Points, the dual points p they come from, and what momentum is made of."""

    adjoint: Tensor  # K'p `(B, ...)`
    ahead: Tensor  # the extrapolated dual points q, from which the next step starts
    ahead_adjoint: Tensor  # K'q: as K' is linear, it is extrapolated with q and never computed
    momentum: Scale  # m_k; one per instance `(B,)` with restarts


class FGP(Solver[FGPState]):
    r"""p_{k+1} = prox(q_k + t K x(q_k)), q_{k+1} = p_{k+1} + (m_k - 1)/m_{k+1} (p_{k+1} - p_k), x_{k+1} = x(p_{k+1}).

    x(p) = argmin_x f(x) + <Kx, p>, which makes K x(p) the gradient of the dual; prox is `dual_prox`, for TV the
    projection; m_0 = 1 and m_{k+1} = (1 + \sqrt{1 + 4 m_k^2}) / 2; t = multiplier * strong convexity of f / ||K||^2.
    Starts at p = 0: of x0 only the shape matters. The dual suboptimality falls as 1/k^2. Beck and Teboulle 2009, "Fast
    gradient-based algorithms for constrained total variation image denoising and deblurring problems".

    `restart` sets an instance's momentum back to m = 1 where it points downhill, <q_k - p_{k+1}, p_{k+1} - p_k> > 0
    (O'Donoghue and Candes 2015), which is checked after every eighth iteration. It changes nothing before the first
    such iteration, some hundred for TV, and makes convergence linear after it.

    Args:
        multiplier: Of the step that the constants allow, positive.
        restart: Set momentum back where it points downhill.
    """

    needs = ("operator", "dual_prox", "tilted_minimiser", "data_strong_convexity")
    stays_in_domain = True  # the domain of a composite problem is that of f, whose minimisers and prox these are
    init_cost: ClassVar = {"operator": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "tilted_minimiser": 2}

    def __init__(self, multiplier: float = 1.0, restart: bool = False) -> None:
        super().__init__()
        self.multiplier = check_positive("multiplier", multiplier)
        self.restart = bool(restart)

    def init(self, problem: Any, x0: Tensor) -> FGPState:
        dual, adjoint = torch.zeros_like(problem.operator(x0)), torch.zeros_like(x0)
        momentum = x0.new_ones(x0.shape[0]) if self.restart else 1.0
        return FGPState(x0, dual=dual, adjoint=adjoint, ahead=dual, ahead_adjoint=adjoint, momentum=momentum)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> FGPState:
        """At p, without momentum."""
        adjoint = problem.operator.adjoint(dual)
        momentum = x.new_ones(len(x)) if self.restart else 1.0
        return FGPState(x, dual=dual, adjoint=adjoint, ahead=dual, ahead_adjoint=adjoint, momentum=momentum)

    def step(self, problem: Any, state: FGPState) -> FGPState:
        t = self.multiplier * problem.data_strong_convexity / problem.operator.norm**2
        rise = problem.operator(problem.tilted_minimiser(state.ahead_adjoint))
        buffer = None if torch.is_grad_enabled() else rise
        dual = add_scaled(state.ahead, t, rise, out=buffer)
        dual = problem.dual_prox(dual, t, out=buffer)
        adjoint = problem.operator.adjoint(dual)
        now = state.momentum
        momentum = (1 + (1 + 4 * now**2) ** 0.5) / 2
        ahead = 1 + (now - 1) / momentum  # how far past p_k, in units of p_{k+1} - p_k
        if self.restart and (state.iteration + 1) % RESTART_EVERY == 0:
            momentum = self._restarted(state, dual, momentum)
        return FGPState(
            problem.tilted_minimiser(adjoint),
            state.iteration + 1,
            dual=dual,
            adjoint=adjoint,
            ahead=torch.lerp(state.dual, dual, per_instance(ahead, dual)),
            ahead_adjoint=torch.lerp(state.adjoint, adjoint, per_instance(ahead, adjoint)),
            momentum=momentum,
        )

    @staticmethod
    def _restarted(state: FGPState, dual: Tensor, momentum: Scale) -> Tensor:
        downhill = inner(state.ahead - dual, dual - state.dual) > 0
        return torch.where(downhill, 1.0, torch.as_tensor(momentum, dtype=dual.dtype, device=dual.device))
