"""PDHG with over-relaxation, steps in the units of the problem and learned numbers per iteration: for any composite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count
from lmd.errors import InputError
from lmd.problems.base import offers
from lmd.solvers.base import DualState, Solver
from lmd.solvers.classical.pdhg import PDHG, check_step
from lmd.solvers.tracking import take
from lmd.terms.base import Scale, add_scaled, size_of

# tau ||K|| in units of the range of x over the size of the dual points, where both are known: best or nearly so for
# inpainting, deblurring and tomography at weights from 0.005 to 0.3
RATIO = 0.03

# Steps are balanced after so many iterations and ever twice as many, those in units of the problem not before the
# second number, and none after the third: then the method is one with fixed steps
BALANCE, TRUSTED, LAST = 25, 400, 12_800


FREE = 1e12  # A step with which a prox goes to where its term is least, or as far towards it as matters

# How far PDHG's own steps may be from what the units of a problem ask for: balancing makes up for the rest
MAX_OFF = 1e3


@dataclass(frozen=True, kw_only=True)
class RelaxedState(DualState):
    """The points x~ and p~ of the last step, which are the answer, and those that the next step starts from."""

    relaxed: Tensor  # x_k `(B, ...)`
    relaxed_dual: Tensor  # p_k, in the shape of Kx
    tau: Tensor  # `(B,)`; sigma is 1 / (tau ||K||^2)
    anchor: Tensor  # x_k at the last time that the steps were balanced
    anchor_dual: Tensor  # p_k at that time
    known: Tensor  # Whether tau is in units of the problem `(B,)`: then it fits mostly, and is left alone for long


class RelaxedPDHG(Solver[RelaxedState]):
    r"""p~ = prox_{s g*}(p_k + s K x_k), x~ = prox_{t f}(x_k - t K'(2 p~ - p_k)), z_{k+1} = z_k + r_k (z~ - z_k).

    z = (x, p), t = e^{a_k} tau and s = e^{c_k} / (t ||K||^2), with numbers a_k, c_k, r_k that are learned for k < N;
    from N on a = c = 0 and r = `relaxation`. This is the proximal point iteration of PDHG relaxed (Condat 2013,
    [doi](https://doi.org/10.1007/s10957-012-0245-9)), which converges for every fixed tau and 0 < r < 2; with r near 2
    it takes half of PDHG's iterations at the same cost. z~ is the answer: its p is feasible, its x in the domain.

    `tau` is in units of the problem, range of x / size of p / ||K|| (`Composite.step_scale`), where these are known,
    and of PDHG's own tau elsewhere. Where it does not fit, it is *balanced*: ever more seldom, tau moves towards
    ||x_k - x_j|| / ||p_k - p_j|| / ||K||, j the iteration of the last time; in the end it is fixed.

    Args:
        iterations: N; 0 is none that are learned.
        ratio: tau in units of the problem, positive.
        relaxation: r, between 0 and 2.
    """

    stays_in_domain = True  # As far as PDHG does: the answer is a prox of f
    ends_proven = True
    init_cost: ClassVar = {"operator": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "data_prox": 1}

    def __init__(self, iterations: int = 0, ratio: float = RATIO, relaxation: float = 1.9) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations, least=0)
        self.ratio, self.relaxation = check_step("ratio", ratio), float(relaxation)
        if not 0 < self.relaxation < 2:
            raise InputError("relaxation", relaxation, "a number between 0 and 2")
        start = torch.zeros(iterations, 3)
        start[:, 2] = self.relaxation
        self.numbers = nn.Parameter(start)  # a_k, c_k, r_k `(N, 3)`; before training, those of the rest

    @property
    def needs(self) -> tuple[str, ...]:
        return ("step_scale", *PDHG().needs)

    @property
    def horizon(self) -> int | None:
        return self.iterations or None

    def init(self, problem: Any, x0: Tensor) -> RelaxedState:
        x = problem.clip(problem.fill_unknown(x0))
        return self._at(problem, x, torch.zeros_like(problem.operator(x)), 0)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> RelaxedState:
        return self._at(problem, x, dual, self.iterations)

    def move_to(
        self, problem: Any, state: RelaxedState, x: Tensor, dual: Tensor, which: Tensor, anew: Tensor
    ) -> RelaxedState:
        """The state with the instances in `which` `(B,)` at x and dual, and with new steps for those in `anew`."""
        begun = self._at(problem, x, dual, state.iteration)
        points = dict.fromkeys(("x", "dual", "relaxed", "relaxed_dual", "anchor", "anchor_dual"), which)
        chosen = {**points, "tau": anew, "known": anew}
        changed: dict[str, Any] = {
            name: take(those, getattr(begun, name), getattr(state, name)) for name, those in chosen.items()
        }
        return replace(state, **changed)

    def _at(self, problem: Any, x: Tensor, dual: Tensor, k: int) -> RelaxedState:
        scale, own = problem.step_scale(x), PDHG(accelerated=False).steps(problem)[0]
        known = torch.isfinite(scale)
        tau = torch.where(known, self.ratio / problem.operator.norm * scale, _own_step(problem, x, own))
        known = known & _is_likely(problem, tau, own)
        return RelaxedState(
            x, k, dual=dual, relaxed=x, relaxed_dual=dual, tau=tau, anchor=x, anchor_dual=dual, known=known
        )

    def step(self, problem: Any, state: RelaxedState) -> RelaxedState:
        k, x, p, K = state.iteration, state.relaxed, state.relaxed_dual, problem.operator
        log_tau, log_product, relaxation = self._numbers(k, x)
        tau = state.tau * log_tau
        sigma = log_product / (tau * K.norm**2)
        dual = problem.dual_prox(add_scaled(p, sigma, K(x)), sigma)
        target = problem.data_prox(add_scaled(x, -tau, K.adjoint(torch.lerp(p, dual, 2.0))), tau)
        following = replace(
            state,
            x=target,
            iteration=k + 1,
            dual=dual,
            relaxed=torch.lerp(x, target, relaxation),
            relaxed_dual=torch.lerp(p, dual, relaxation),
        )
        return balanced(problem, following) if is_balancing_due(k + 1) else following

    def _numbers(self, k: int, x: Tensor) -> tuple[Scale, Scale, Any]:
        """e^{a_k}, e^{c_k} and r_k."""
        if k >= self.iterations:
            return 1.0, 1.0, self.relaxation
        log_tau, log_product, relaxation = self.numbers[k].to(x.dtype).unbind()
        return log_tau.exp(), log_product.exp(), relaxation


def _is_likely(problem: Any, tau: Tensor, own: Scale) -> Tensor:
    """Whether a step in the units of the differences may suit all of g `(B,)`.

    Terms beside them have dual points in units of their own, which PDHG's tau is for: one that is far from it is
    balanced from the beginning.
    """
    if len(getattr(problem, "regularisers", ())) < 2:
        return torch.ones_like(tau, dtype=torch.bool)
    return (tau <= MAX_OFF * own) & (MAX_OFF * tau >= own)


def _own_step(problem: Any, x: Tensor, own: Scale) -> Tensor:
    """PDHG's own tau `(B,)`, unless the units of the problem ask for one that is far from it.

    Those of x are how far terms would move it, over ||K||; those of p are the lengths of subgradients.
    """
    tau = torch.as_tensor(own, dtype=x.dtype, device=x.device).expand(len(x))
    if not offers(problem, ("regularisers", "double")):
        return tau
    exact = problem.double()
    norm, z = exact.operator.norm, exact.operator(x.double())
    extent = size_of(z - exact.regulariser_prox(z, FREE)) / norm
    units = (extent / size_of(exact.g.subgradient(z)) / norm).to(x.dtype)
    far = units.isfinite() & ((units > MAX_OFF * tau) | (MAX_OFF * units < tau)) & (units > 0)
    return torch.where(far, units, tau)


def is_balancing_due(k: int) -> bool:
    """Whether steps are balanced after iteration k."""
    return k % BALANCE == 0 and k <= LAST and (k // BALANCE).bit_count() == 1


def balanced(problem: Any, state: RelaxedState) -> RelaxedState:
    """With tau moved half of the way, in logarithms, to what the last iterations ask for; by at most 4 times."""
    moved, dual_moved = size_of(state.relaxed - state.anchor), size_of(state.relaxed_dual - state.anchor_dual)
    wanted = moved / (dual_moved * problem.operator.norm) / state.tau
    due = ~state.known | (state.iteration >= TRUSTED)
    wanted = torch.where(due & torch.isfinite(wanted), wanted.clamp(1 / 16, 16), 1.0)  # x at an end may not move at all
    anchor, dual = state.relaxed, state.relaxed_dual
    return replace(state, tau=state.tau * wanted.sqrt(), anchor=anchor, anchor_dual=dual)
