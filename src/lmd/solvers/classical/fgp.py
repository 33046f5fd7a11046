"""Fast gradient projection: accelerated proximal gradient ascent on the dual of a composite problem."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.solvers.base import DualState, Solver
from lmd.terms.base import Scale, add_scaled, inner, per_instance

RESTART_EVERY = 8  # iterations between two checks of the momentum


@dataclass(frozen=True, kw_only=True)
class FGPState(DualState):
    """Points, the dual points p that they come from, and the extrapolated dual points."""

    adjoint: Tensor  # K'p `(B, ...)`
    ahead: Tensor  # the extrapolated dual points q, from which the next step starts
    ahead_adjoint: Tensor  # K'q: as K' is linear, it is extrapolated with q and never computed
    momentum: Scale  # m_k; with restarts one per instance `(B,)`


F = TypeVar("F", bound=FGPState)


class FGP(Solver[FGPState]):
    r"""p_{k+1} = prox(q_k + t K x(q_k)), q_{k+1} = p_{k+1} + (m_k - 1)/m_{k+1} (p_{k+1} - p_k), x_{k+1} = x(p_{k+1}).

    x(p) = argmin_x f(x) + <Kx, p>, so K x(p) is the gradient of the dual. prox is the prox of g*, a projection for TV.
    m_0 = 1 and m_{k+1} = (1 + \sqrt{1 + 4 m_k^2}) / 2; t = multiplier * strong convexity of f / ||K||^2. The method
    starts at p = 0 and uses only the shape of x0. The dual suboptimality falls as 1/k^2. Beck and Teboulle 2009, "Fast
    gradient-based algorithms for constrained total variation image denoising and deblurring problems".

    `restart` resets the momentum of an instance to m = 1 if it points downhill, <q_k - p_{k+1}, p_{k+1} - p_k> > 0
    (O'Donoghue and Candes 2015); this is checked after every eighth iteration. For TV, the first reset comes after some
    hundred iterations; from then on convergence is linear.

    Args:
        multiplier: Factor of the standard step, positive.
        restart: Whether to reset the momentum if it points downhill.
    """

    needs = ("operator", "g", "f.strong_convexity")
    stays_in_domain = True  # the domain of a composite problem is the domain of f, and x minimises f plus a linear term
    init_cost: ClassVar = {"operator": 1}
    resume_cost: ClassVar = {"adjoint": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "tilted_minimiser": 2}

    def __init__(self, multiplier: float = 1.0, restart: bool = False) -> None:
        super().__init__()
        self.multiplier = check_positive("multiplier", multiplier)
        self.restart = bool(restart)

    def init(self, problem: Any, x0: Tensor) -> FGPState:
        return self._begin(x0, torch.zeros_like(problem.operator(x0)), torch.zeros_like(x0))

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> FGPState:
        """Start at the dual point p, without momentum."""
        return self._begin(x, dual, problem.operator.adjoint(dual))

    def _begin(self, x: Tensor, dual: Tensor, adjoint: Tensor) -> FGPState:
        momentum = x.new_ones(len(x)) if self.restart else 1.0
        return FGPState(x, dual=dual, adjoint=adjoint, ahead=dual, ahead_adjoint=adjoint, momentum=momentum)

    def step(self, problem: Any, state: FGPState) -> FGPState:
        t, now = self.multiplier * problem.f.strong_convexity / problem.operator.norm**2, state.momentum
        momentum = (1 + (1 + 4 * now**2) ** 0.5) / 2
        following = accelerated_step(problem, state, t, (now - 1) / momentum)
        if self.restart and following.iteration % RESTART_EVERY == 0:
            downhill = inner(state.ahead - following.dual, following.dual - state.dual) > 0
            momentum = torch.where(downhill, 1.0, torch.as_tensor(momentum, dtype=state.x.dtype, device=state.x.device))
        return replace(following, momentum=momentum)


def accelerated_step(problem: Any, state: F, t: Scale, momentum: Scale) -> F:
    """Return the state with p_{k+1} = prox(q_k + t K x(q_k)) and q_{k+1} = p_{k+1} + momentum (p_{k+1} - p_k)."""
    rise = problem.operator(problem.f.tilted_minimiser(state.ahead_adjoint))
    dual = problem.g.conjugate_prox(add_scaled(state.ahead, t, rise), t)
    adjoint = problem.operator.adjoint(dual)
    return replace(
        state,
        x=problem.f.tilted_minimiser(adjoint),
        iteration=state.iteration + 1,
        dual=dual,
        adjoint=adjoint,
        ahead=torch.lerp(state.dual, dual, per_instance(1 + momentum, dual)),
        ahead_adjoint=torch.lerp(state.adjoint, adjoint, per_instance(1 + momentum, adjoint)),
    )
