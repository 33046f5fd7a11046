"""The primal-dual hybrid gradient method of Chambolle and Pock: plain, accelerated and over-relaxed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_positive
from lmd.errors import InputError
from lmd.problems.base import offers
from lmd.solvers.base import DualState, Solver
from lmd.terms.base import Scale, add_scaled, per_instance, size_of, take

MAX_STEP = 1e12  # steps lie in [1 / MAX_STEP, MAX_STEP], because saved files may contain any number
SETTLING_START = 20  # tau may fall after this iteration
DEFAULT_RATIO = 0.03  # tau of `RelaxedPDHG` in units of the problem; nearly optimal for images at usual weights
UNBOUNDED_STEP = 1e12  # a step so long that a prox nearly minimises its term
MAX_STEP_RATIO = 1e3  # largest ratio of PDHG's own steps to the units of a problem; balancing corrects smaller ones
BALANCING_INTERVAL = 25  # steps are balanced after 1, 2, 4, 8, ... times this number of iterations
MIN_TRUSTED_ITERATION = 400  # steps in units of the problem are balanced only from this iteration on
MAX_BALANCING_ITERATION = 12_800  # steps are fixed after this iteration


@dataclass(frozen=True, kw_only=True)
class PDHGState(DualState):
    """Points, dual points, and the primal step, which changes with acceleration."""

    ahead: Tensor  # the extrapolated points
    tau: Scale
    least: Scale  # lower bound of tau


class PDHG(Solver[PDHGState]):
    r"""p_{k+1} = prox_{sigma g*}(p_k + sigma K xbar_k), x_{k+1} = prox_{tau f}(x_k - tau K'p_{k+1}).

    xbar_{k+1} = x_{k+1} + theta (x_{k+1} - x_k), with tau sigma ||K||^2 = 1. The method starts at x0 and p = 0.
    Plain: theta = 1, gap O(1/k). Accelerated, if f is strongly convex with constant gamma:
    theta = 1 / \sqrt{1 + 2 gamma tau}, tau <- theta tau, gap O(1/k^2). Chambolle and Pock 2011, algorithms 1 and 2.

    A large tau is best for the first twenty iterations and a small one for the next thousand, but a tau that keeps
    falling loses the last digits. So tau may `settle`: it falls to about tau / settle, by acceleration or else as 20/k,
    and stays there. From then on this is the plain method, which converges from any point. For TV, settle = 16 makes
    iteration 1000 ten to a hundred times as accurate. With settle = 1, steps are constant or accelerate forever.

    Args:
        tau: The first primal step, positive; None is 1 / (L ||K||), L the smoothness of f (1 if f is not smooth).
        accelerated: Whether to change the steps if f is strongly convex.
        settle: Ratio of the first tau to the last tau, 1 or more.
    """

    needs = ("operator", "f", "g")
    stays_in_domain = True  # the domain of a composite problem is the domain of f, and x is a prox of f
    init_cost: ClassVar = {"operator": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "prox": 1}

    def __init__(self, tau: float | None = None, accelerated: bool = True, settle: float = 1.0) -> None:
        super().__init__()
        self.tau = None if tau is None else check_step("tau", tau)
        self.accelerated = bool(accelerated)
        self.settle = check_step("settle", settle)
        if settle < 1:
            raise InputError("settle", settle, "a number of 1 or more")

    def init(self, problem: Any, x0: Tensor) -> PDHGState:
        tau, _ = self.steps(problem)
        least = tau / self.settle if self.settle > 1 else 0.0
        return PDHGState(x0, dual=torch.zeros_like(problem.operator(x0)), ahead=x0, tau=tau, least=least)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> PDHGState:
        """Start at x and p with the final, short primal steps, which disturb x least."""
        tau, settled = self.steps(problem)[0] / self.settle, math.ceil(SETTLING_START * self.settle)
        return PDHGState(x, settled, dual=dual, ahead=x, tau=tau, least=tau)

    def steps(self, problem: Any) -> tuple[Scale, Scale]:
        """Return tau and sigma of the first iteration."""
        norm = problem.operator.norm
        tau = 1 / (problem.data_smoothness * norm) if self.tau is None else self.tau
        return tau, 1 / (tau * norm**2)

    def step(self, problem: Any, state: PDHGState) -> PDHGState:
        K, k, tau = problem.operator, state.iteration, state.tau
        sigma = 1 / (tau * K.norm**2)
        dual = problem.g.conjugate_prox(add_scaled(state.dual, sigma, K(state.ahead)), sigma)
        x = problem.f.prox(add_scaled(state.x, -tau, K.adjoint(dual)), tau)
        theta: Scale = 1.0
        shrink: Scale = self._size(k + 1) / self._size(k)
        if self.accelerated and problem.f.strong_convexity is not None:
            theta = shrink = _unless_settled((1 + 2 * problem.f.strong_convexity * tau) ** -0.5, state)
        ahead = torch.lerp(state.x, x, per_instance(1 + theta, x))
        return PDHGState(x, k + 1, dual=dual, ahead=ahead, tau=tau * shrink, least=state.least)

    def _size(self, k: int) -> float:
        """Return tau at iteration k in units of the first tau."""
        return min(1.0, max(1 / self.settle, SETTLING_START / max(k, 1)))


def check_step(argument: str, value: float) -> float:
    """Return `value` if it is positive and its products do not overflow in float32."""
    if not 1 / MAX_STEP <= check_positive(argument, value) <= MAX_STEP:
        raise InputError(argument, f"{value:g}", f"a number from {1 / MAX_STEP:g} to {MAX_STEP:g}")
    return float(value)


def _unless_settled(theta: Scale, state: PDHGState) -> Scale:
    """Return theta, or 1 if theta * tau falls below the lower bound of tau."""
    settled = theta * state.tau < state.least
    return torch.where(settled, 1.0, theta) if isinstance(settled, Tensor) else 1.0 if settled else theta


@dataclass(frozen=True, kw_only=True)
class RelaxedState(DualState):
    """The points x~ and p~ of the last step, which are the answer, and the points at which the next step starts."""

    relaxed: Tensor  # x_k `(B, ...)`
    relaxed_dual: Tensor  # p_k, in the shape of Kx
    tau: Tensor  # `(B,)`; sigma is 1 / (tau ||K||^2)
    anchor: Tensor  # x_k when the steps were last balanced
    anchor_dual: Tensor  # p_k when the steps were last balanced
    known: Tensor  # whether tau is in units of the problem `(B,)`; it then usually fits, so balancing begins later


class RelaxedPDHG(Solver[RelaxedState]):
    r"""p~ = prox_{s g*}(p_k + s K x_k), x~ = prox_{t f}(x_k - t K'(2 p~ - p_k)), z_{k+1} = z_k + r_k (z~ - z_k).

    z = (x, p), t = e^{a_k} tau and s = e^{c_k} / (t ||K||^2); a_k, c_k and r_k are learned for k < N. From N on, a and
    c are 0 and r is `relaxation`. This is PDHG as a proximal point iteration with over-relaxation (Condat 2013,
    [doi](https://doi.org/10.1007/s10957-012-0245-9)), which converges for every fixed tau and 0 < r < 2. With r near 2
    it takes half as many iterations as PDHG, at the same cost. In the answer z~, p is feasible and x in the domain.

    `tau` is `ratio` in units of the problem, range of x / size of p / ||K|| (`Composite.step_scale`), if these are
    known; otherwise usually PDHG's own tau. Later, tau is *balanced* ever more rarely: it moves towards
    ||x_k - x_j|| / ||p_k - p_j|| / ||K||, where j is the iteration of the last balancing. In the end tau is fixed.

    Args:
        iterations: N, the number of learned iterations; may be 0.
        ratio: tau in units of the problem, positive.
    """

    needs = ("step_scale", *PDHG.needs)
    stays_in_domain = True  # as far as PDHG does: the answer is a prox of f
    ends_proven = True
    init_cost: ClassVar = {"operator": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "prox": 1}
    relaxation = 1.9  # r, between 0 and 2

    def __init__(self, iterations: int = 0, ratio: float = DEFAULT_RATIO) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations, least=0)
        self.ratio = check_step("ratio", ratio)
        start = torch.zeros(iterations, 3)
        start[:, 2] = self.relaxation
        self.numbers = nn.Parameter(start)  # a_k, c_k, r_k `(N, 3)`; before training 0, 0 and `relaxation`

    def init(self, problem: Any, x0: Tensor) -> RelaxedState:
        x = problem.f.nearest(problem.fill_unknown(x0))
        return self._at(problem, x, torch.zeros_like(problem.operator(x)), 0)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> RelaxedState:
        return self._at(problem, x, dual, self.iterations)

    def move_to(
        self, problem: Any, state: RelaxedState, x: Tensor, dual: Tensor, which: Tensor, anew: Tensor
    ) -> RelaxedState:
        """Return the state with instances in `which` `(B,)` moved to x and dual, and new steps for those in `anew`."""
        begun = self._at(problem, x, dual, state.iteration)
        points = dict.fromkeys(("x", "dual", "relaxed", "relaxed_dual", "anchor", "anchor_dual"), which)
        chosen = {**points, "tau": anew, "known": anew}.items()
        changed: Any = {name: take(those, getattr(begun, name), getattr(state, name)) for name, those in chosen}
        return replace(state, **changed)

    def _at(self, problem: Any, x: Tensor, dual: Tensor, k: int) -> RelaxedState:
        scale, own = problem.step_scale(x), PDHG(accelerated=False).steps(problem)[0]
        known = torch.isfinite(scale)
        tau = torch.where(known, self.ratio / problem.operator.norm * scale, _own_step(problem, x, own))
        if len(getattr(problem, "regularisers", ())) > 1:
            # The dual points of the other terms have other units than those of the differences, and PDHG's tau takes
            # this into account. So a tau that is far from PDHG's is balanced from the beginning
            known = known & (tau <= MAX_STEP_RATIO * own) & (MAX_STEP_RATIO * tau >= own)
        return RelaxedState(
            x, k, dual=dual, relaxed=x, relaxed_dual=dual, tau=tau, anchor=x, anchor_dual=dual, known=known
        )

    def step(self, problem: Any, state: RelaxedState) -> RelaxedState:
        k, x, p, K = state.iteration, state.relaxed, state.relaxed_dual, problem.operator
        tau: Any = state.tau
        product: Any = 1.0
        relaxation: Any = self.relaxation
        if k < self.iterations:
            log_tau, log_product, relaxation = self.numbers[k].to(x.dtype).unbind()
            tau, product = tau * log_tau.exp(), log_product.exp()
        sigma = product / (tau * K.norm**2)
        dual = problem.g.conjugate_prox(add_scaled(p, sigma, K(x)), sigma)
        target = problem.f.prox(add_scaled(x, -tau, K.adjoint(torch.lerp(p, dual, 2.0))), tau)
        following = replace(
            state,
            x=target,
            iteration=k + 1,
            dual=dual,
            relaxed=torch.lerp(x, target, relaxation),
            relaxed_dual=torch.lerp(p, dual, relaxation),
        )
        return balanced(problem, following) if is_balancing_due(k + 1) else following


def _own_step(problem: Any, x: Tensor, own: Scale) -> Tensor:
    """Return PDHG's own tau `(B,)`, or the tau from the units of the problem if the two are far apart.

    The unit of x is the distance to the minimiser of g, over ||K||; the unit of p is the length of a subgradient.
    """
    tau = torch.as_tensor(own, dtype=x.dtype, device=x.device).expand(len(x))
    if not offers(problem, ("regularisers", "double")):
        return tau
    exact = problem.double()
    norm, z = exact.operator.norm, exact.operator(x.double())
    extent = size_of(z - exact.g.prox(z, UNBOUNDED_STEP)) / norm
    units = (extent / size_of(exact.g.subgradient(z)) / norm).to(x.dtype)
    far = units.isfinite() & ((units > MAX_STEP_RATIO * tau) | (MAX_STEP_RATIO * units < tau)) & (units > 0)
    return torch.where(far, units, tau)


def is_balancing_due(k: int) -> bool:
    """Return whether steps are balanced after iteration k."""
    return k % BALANCING_INTERVAL == 0 and k <= MAX_BALANCING_ITERATION and (k // BALANCING_INTERVAL).bit_count() == 1


def balanced(problem: Any, state: RelaxedState) -> RelaxedState:
    """Return the state with log tau moved halfway to the balance of the primal and dual moves since the last balancing.

    tau changes by at most a factor of 4.
    """
    moved, dual_moved = size_of(state.relaxed - state.anchor), size_of(state.relaxed_dual - state.anchor_dual)
    wanted = moved / (dual_moved * problem.operator.norm) / state.tau
    due = ~state.known | (state.iteration >= MIN_TRUSTED_ITERATION)
    wanted = torch.where(due & torch.isfinite(wanted), wanted.clamp(1 / 16, 16), 1.0)  # x or p may not have moved
    anchor, dual = state.relaxed, state.relaxed_dual
    return replace(state, tau=state.tau * wanted.sqrt(), anchor=anchor, anchor_dual=dual)
