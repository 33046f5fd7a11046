"""Accelerated mirror descent, for full and for minibatch gradients: LAMD and LASMD with a learned mirror."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lmd.core.checks import check_positive
from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem
from lmd.solvers.base import State
from lmd.solvers.mirror.mirror_descent import MirrorSolver
from lmd.solvers.steps import Steps


@dataclass(frozen=True, kw_only=True)
class AcceleratedState(State):
    """Points, y_k, which accumulates the gradients, and z_k = to_primal(y_k), each `(B, ...)`."""

    accumulated: Tensor
    mirrored: Tensor


class _AccumulatingSolver(MirrorSolver[AcceleratedState]):
    """What the two methods share: a start at z_0 = x_0, y_0 = to_dual(x_0), and the costs."""

    @property
    def init_cost(self) -> dict[str, int]:
        return {"to_dual": 1}

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1, "to_primal": 1}

    def init(self, problem: Problem, x0: Tensor) -> AcceleratedState:
        self.mirror.check("x0", x0)
        return AcceleratedState(x0, accumulated=self.mirror.to_dual(x0), mirrored=x0)


class AcceleratedMirrorDescent(_AccumulatingSolver):
    """Two sequences, one in the geometry of the mirror and one of gradient steps, and g_k at a point between them.

    v_k = l_k z_k + (1 - l_k) x_k with l_k = r / (r + k), g_k the gradient at v_k;
    y_{k+1} = y_k - (k t_k / r) g_k, z_{k+1} = to_primal(y_{k+1}), x_{k+1} = v_k - gamma t_k g_k, projected onto the
    domain of the mirror, where it has one.

    f(x_k) - min f falls as 1/k^2 for smooth f and small enough t and gamma. Krichene, Bayen and Bartlett 2015,
    "Accelerated mirror descent in continuous and discrete time"; with a learned mirror and learned steps it is LAMD.

    Args:
        mirror: Any mirror.
        steps: The step-sizes t_k: a positive number, or `Steps`.
        r: 3 or more.
        gamma: Positive.
    """

    def __init__(self, mirror: Mirror, steps: Steps | float = 0.01, r: float = 3.0, gamma: float = 1.0) -> None:
        super().__init__(mirror, steps)
        if not isinstance(r, (int, float)) or not r >= 3:
            raise InputError("r", r, "a number of 3 or more")
        self.r = float(r)
        self.gamma = check_positive("gamma", gamma)

    def step(self, problem: Problem, state: AcceleratedState) -> AcceleratedState:
        k = state.iteration
        size, share = self.steps(k), self.r / (self.r + k)
        between = share * state.mirrored + (1 - share) * state.x
        gradient = problem.subgradient(between)
        dual = state.accumulated - (k / self.r) * size * gradient
        x = between - self.gamma * size * gradient
        if self.mirror.domain is not None:
            x = self.mirror.domain.nearest(x)
        return AcceleratedState(x, k + 1, accumulated=dual, mirrored=self.mirror.to_primal(dual))


class AcceleratedStochasticMirrorDescent(_AccumulatingSolver):
    """Weighted dual averaging with averaged points, whose weights keep the noise of minibatch gradients in check.

    A_0 = 1/2, A_{k+1} = (k+1)(k+2)/2, a_k = A_{k+1} - A_k, s_k = (k+1)^{3/2};
    y_{k+1} = y_k - (a_k / s_k) t_k g_k, x_{k+1} = x_k + a_k / A_{k+1} (to_primal(y_{k+1}) - x_k), g_k the gradient.

    Inside `Stochastic` it is accelerated stochastic mirror descent (Xu, Wang and Gu 2018, "Accelerated stochastic
    mirror descent: from continuous-time dynamics to discrete-time algorithms"), and with a learned mirror LASMD.

    Args:
        mirror: Any mirror.
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    def step(self, problem: Problem, state: AcceleratedState) -> AcceleratedState:
        k = state.iteration
        before, after = max(k * (k + 1) / 2, 0.5), (k + 1) * (k + 2) / 2
        weight = after - before
        dual = state.accumulated - (weight / (k + 1) ** 1.5) * self.steps(k) * problem.subgradient(state.x)
        mirrored = self.mirror.to_primal(dual)
        x = state.x + (weight / after) * (mirrored - state.x)
        return AcceleratedState(x, k + 1, accumulated=dual, mirrored=mirrored)
