"""The primal-dual hybrid gradient method of Chambolle and Pock, accelerated where the data term is strongly convex."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.errors import InputError
from lmd.solvers.base import DualState, Solver
from lmd.terms.base import Scale, add_scaled, per_instance

MAX_STEP = 1e12  # No step is longer, nor shorter than one over it: numbers in files may be anything
SETTLING_START = 20  # The iteration after which tau may begin to fall


@dataclass(frozen=True, kw_only=True)
class PDHGState(DualState):
    """Points and dual points, and the two steps, which acceleration changes."""

    ahead: Tensor  # The extrapolated points
    tau: Scale
    sigma: Scale
    least: Scale  # Where acceleration ends: tau does not fall below


class PDHG(Solver[PDHGState]):
    r"""p_{k+1} = prox_{sigma g*}(p_k + sigma K xbar_k), x_{k+1} = prox_{tau f}(x_k - tau K'p_{k+1}).

    xbar_{k+1} = x_{k+1} + theta (x_{k+1} - x_k), with tau sigma ||K||^2 <= 1; starts at x0 and p = 0.
    Plain: theta = 1, gap O(1/k). Accelerated, where f is strongly convex with constant gamma:
    theta = 1 / \sqrt{1 + 2 gamma tau}, tau <- theta tau, sigma <- sigma / theta, gap O(1/k^2). Chambolle and Pock 2011,
    algorithms 1 and 2.

    Large tau is good for the first twenty iterations, small for the next thousand, and ever smaller is bad for the last
    digits. So tau may `settle`: it falls to about tau / settle, by acceleration or else as 20/k, and stays there. From
    then on this is the plain method, which converges from any point. For TV, settle = 16 makes iteration 1000 ten to a
    hundred times as accurate; settle = 1 is constant steps, or acceleration for ever.

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
    if isinstance(settled, Tensor):
        return torch.where(settled, 1.0, theta)
    return 1.0 if settled else theta
