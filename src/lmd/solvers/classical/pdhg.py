"""The primal-dual hybrid gradient method of Chambolle and Pock: accelerated, settled, and over-relaxed."""

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
from lmd.solvers.tracking import take
from lmd.terms.base import Scale, add_scaled, per_instance, size_of

MAX_STEP = 1e12  # no step is longer, nor shorter than one over it: numbers in files may be anything
SETTLING_START = 20  # the iteration after which tau may begin to fall
DEFAULT_RATIO = 0.03  # tau of `RelaxedPDHG` in units of the problem: nearly best for images at usual weights
UNBOUNDED_STEP = 1e12  # a step with which a prox goes to where its term is least, or as far towards it as matters
MAX_STEP_RATIO = 1e3  # how far PDHG's own steps may be from the units of a problem: balancing makes up for the rest
BALANCING_INTERVAL = 25  # iterations until steps are balanced first; then after ever twice as many
MIN_TRUSTED_ITERATION = 400  # before it, steps in units of the problem are not balanced
MAX_BALANCING_ITERATION = 12_800  # after it steps are fixed


@dataclass(frozen=True, kw_only=True)
class PDHGState(DualState):
    """Points and dual points, and the two steps, which acceleration changes."""

    ahead: Tensor  # the extrapolated points
    tau: Scale
    sigma: Scale
    least: Scale  # where acceleration ends: tau does not fall below


class PDHG(Solver[PDHGState]):
    r"""p_{k+1} = prox_{sigma g*}(p_k + sigma K xbar_k), x_{k+1} = prox_{tau f}(x_k - tau K'p_{k+1}).

    xbar_{k+1} = x_{k+1} + theta (x_{k+1} - x_k), with tau sigma ||K||^2 <= 1; starts at x0 and p = 0.
    Plain: theta = 1, gap O(1/k). Accelerated, where f is strongly convex with constant gamma:
    theta = 1 / \sqrt{1 + 2 gamma tau}, tau <- theta tau, sigma <- sigma / theta, gap O(1/k^2). Chambolle and Pock 2011,
    algorithms 1 and 2.

    Large tau is good for the first twenty iterations, small for the next thousand, and ever smaller is bad for the last
    digits. So tau may `settle`: it falls to about tau / settle, by acceleration or else as 20/k, and stays there. From
    then on this is the plain method, which converges from any point. For TV, settle = 16 makes iteration 1000 ten to a
    hundred times as accurate; settle = 1 is constant steps, or acceleration forever.

    Args:
        tau: The first primal step, positive; None is 1 / (L ||K||), L the smoothness of f (1 where it has none).
        sigma: The dual step, positive; None is 1 / (tau ||K||^2).
        accelerated: Change the steps where f is strongly convex.
        settle: What tau falls by in all, 1 or more.
    """

    needs = ("operator", "dual_prox", "data_prox")
    stays_in_domain = True  # the domain of a composite problem is that of f, whose minimisers and prox these are
    init_cost: ClassVar = {"operator": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "data_prox": 1}

    def __init__(
        self,
        tau: float | None = None,
        sigma: float | None = None,
        accelerated: bool = True,
        settle: float = 1.0,
    ) -> None:
        super().__init__()
        self.tau = None if tau is None else check_step("tau", tau)
        self.sigma = None if sigma is None else check_step("sigma", sigma)
        self.accelerated = bool(accelerated)
        self.settle = check_step("settle", settle)
        if settle < 1:
            raise InputError("settle", settle, "a number of 1 or more")

    def init(self, problem: Any, x0: Tensor) -> PDHGState:
        tau, sigma = self.steps(problem)
        least = tau / self.settle if self.settle > 1 else 0.0
        return PDHGState(x0, dual=torch.zeros_like(problem.operator(x0)), ahead=x0, tau=tau, sigma=sigma, least=least)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> PDHGState:
        """At x and p, with the steps it has settled to, which disturb x least."""
        tau, sigma = self.steps(problem)
        tau, sigma, settled = tau / self.settle, sigma * self.settle, math.ceil(SETTLING_START * self.settle)
        return PDHGState(x, settled, dual=dual, ahead=x, tau=tau, sigma=sigma, least=tau)

    def steps(self, problem: Any) -> tuple[Scale, Scale]:
        """tau and sigma of the first iteration."""
        norm = problem.operator.norm
        smoothness = 1.0 if problem.data_smoothness is None else problem.data_smoothness
        if self.tau is None and self.sigma is not None:
            return 1 / (self.sigma * norm**2), self.sigma
        tau = 1 / (smoothness * norm) if self.tau is None else self.tau
        if self.sigma is None:
            return tau, 1 / (tau * norm**2)
        if tau * self.sigma * norm**2 > 1 + 1e-6:
            raise InputError("sigma", f"{self.sigma:g} with tau {tau:g}", f"at most {1 / (tau * norm**2):g} with it")
        return tau, self.sigma

    def step(self, problem: Any, state: PDHGState) -> PDHGState:
        rise = problem.operator(state.ahead)
        buffer = None if torch.is_grad_enabled() else rise
        dual = add_scaled(state.dual, state.sigma, rise, out=buffer)
        dual = problem.dual_prox(dual, state.sigma, out=buffer)
        fall = problem.operator.adjoint(dual)
        buffer = None if torch.is_grad_enabled() else fall
        x = add_scaled(state.x, -state.tau, fall, out=buffer)
        x = problem.data_prox(x, state.tau, out=buffer)
        theta: Scale = 1.0
        shrink: Scale = self._size(state.iteration + 1) / self._size(state.iteration)
        if self.accelerated and problem.data_strong_convexity is not None:
            theta = shrink = _unless_settled((1 + 2 * problem.data_strong_convexity * state.tau) ** -0.5, state)
        return PDHGState(
            x,
            state.iteration + 1,
            dual=dual,
            ahead=torch.lerp(state.x, x, per_instance(1 + theta, x)),
            tau=state.tau * shrink,
            sigma=state.sigma / shrink,
            least=state.least,
        )

    def _size(self, k: int) -> float:
        """tau at iteration k in units of the first."""
        return min(1.0, max(1 / self.settle, SETTLING_START / max(k, 1)))


def check_step(argument: str, value: float) -> float:
    """Return `value` if it is a positive number that leaves room in float32 for what it is multiplied with."""
    if not 1 / MAX_STEP <= check_positive(argument, value) <= MAX_STEP:
        raise InputError(argument, f"{value:g}", f"a number from {1 / MAX_STEP:g} to {MAX_STEP:g}")
    return float(value)


def _unless_settled(theta: Scale, state: PDHGState) -> Scale:
    """theta, or 1 where it would make tau fall below the least."""
    settled = theta * state.tau < state.least
    return torch.where(settled, 1.0, theta) if isinstance(settled, Tensor) else 1.0 if settled else theta


@dataclass(frozen=True, kw_only=True)
class RelaxedState(DualState):
    """The points x~ and p~ of the last step, which are the answer, and those that the next step starts from."""

    relaxed: Tensor  # x_k `(B, ...)`
    relaxed_dual: Tensor  # p_k, in the shape of Kx
    tau: Tensor  # `(B,)`; sigma is 1 / (tau ||K||^2)
    anchor: Tensor  # x_k at the last time that the steps were balanced
    anchor_dual: Tensor  # p_k at that time
    known: Tensor  # whether tau is in units of the problem `(B,)`: then it fits mostly, and is left alone for long


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

    needs = ("step_scale", *PDHG.needs)
    stays_in_domain = True  # as far as PDHG does: the answer is a prox of f
    ends_proven = True
    init_cost: ClassVar = {"operator": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "data_prox": 1}

    def __init__(self, iterations: int = 0, ratio: float = DEFAULT_RATIO, relaxation: float = 1.9) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations, least=0)
        self.ratio, self.relaxation = check_step("ratio", ratio), float(relaxation)
        if not 0 < self.relaxation < 2:
            raise InputError("relaxation", relaxation, "a number between 0 and 2")
        start = torch.zeros(iterations, 3)
        start[:, 2] = self.relaxation
        self.numbers = nn.Parameter(start)  # a_k, c_k, r_k `(N, 3)`; before training, those of the rest

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
        chosen = {**points, "tau": anew, "known": anew}.items()
        changed: Any = {name: take(those, getattr(begun, name), getattr(state, name)) for name, those in chosen}
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
        tau: Any = state.tau
        product: Any = 1.0
        relaxation: Any = self.relaxation
        if k < self.iterations:
            log_tau, log_product, relaxation = self.numbers[k].to(x.dtype).unbind()
            tau, product = tau * log_tau.exp(), log_product.exp()
        sigma = product / (tau * K.norm**2)
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


def _is_likely(problem: Any, tau: Tensor, own: Scale) -> Tensor:
    """Whether a step in the units of the differences may suit all of g `(B,)`.

    Terms beside them have dual points in units of their own, which PDHG's tau is for: one that is far from it is
    balanced from the beginning.
    """
    if len(getattr(problem, "regularisers", ())) < 2:
        return torch.ones_like(tau, dtype=torch.bool)
    return (tau <= MAX_STEP_RATIO * own) & (MAX_STEP_RATIO * tau >= own)


def _own_step(problem: Any, x: Tensor, own: Scale) -> Tensor:
    """PDHG's own tau `(B,)`, unless the units of the problem ask for one that is far from it.

    Those of x are how far terms would move it, over ||K||; those of p are the lengths of subgradients.
    """
    tau = torch.as_tensor(own, dtype=x.dtype, device=x.device).expand(len(x))
    if not offers(problem, ("regularisers", "double")):
        return tau
    exact = problem.double()
    norm, z = exact.operator.norm, exact.operator(x.double())
    extent = size_of(z - exact.regulariser_prox(z, UNBOUNDED_STEP)) / norm
    units = (extent / size_of(exact.g.subgradient(z)) / norm).to(x.dtype)
    far = units.isfinite() & ((units > MAX_STEP_RATIO * tau) | (MAX_STEP_RATIO * units < tau)) & (units > 0)
    return torch.where(far, units, tau)


def is_balancing_due(k: int) -> bool:
    """Whether steps are balanced after iteration k."""
    return k % BALANCING_INTERVAL == 0 and k <= MAX_BALANCING_ITERATION and (k // BALANCING_INTERVAL).bit_count() == 1


def balanced(problem: Any, state: RelaxedState) -> RelaxedState:
    """With tau moved half of the way, in logarithms, to what the last iterations ask for; by at most 4 times."""
    moved, dual_moved = size_of(state.relaxed - state.anchor), size_of(state.relaxed_dual - state.anchor_dual)
    wanted = moved / (dual_moved * problem.operator.norm) / state.tau
    due = ~state.known | (state.iteration >= MIN_TRUSTED_ITERATION)
    wanted = torch.where(due & torch.isfinite(wanted), wanted.clamp(1 / 16, 16), 1.0)  # x at an end may not move at all
    anchor, dual = state.relaxed, state.relaxed_dual
    return replace(state, tau=state.tau * wanted.sqrt(), anchor=anchor, anchor_dual=dual)
