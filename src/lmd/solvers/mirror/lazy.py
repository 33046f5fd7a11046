"""Lazy mirror descent, or dual averaging: the dual variable accumulates and no point is ever encoded again."""

from __future__ import annotations

from torch import Tensor

from lmd.problems.base import Problem
from lmd.solvers.mirror.mirror_descent import MirrorDescent, MirrorState


class LazyMirrorDescent(MirrorDescent):
    """y_0 = to_dual(x_0), y_{k+1} = y_k - t_k g_k, x_{k+1} = to_primal(y_{k+1}), with g_k a subgradient at x_k.

    On the whole space and with an exact mirror these are the iterates of `MirrorDescent`; with a learned inverse they
    are not, and errors of the inverse do not build up in y. The step is that of `MirrorDescent`, from y_k in place of
    to_dual(x_k). It costs no `to_dual`, so the dual residual is not known. With minibatch subgradients (`Stochastic`)
    it is LSMD. Nesterov 2009, "Primal-dual subgradient methods for convex problems"; learned: Tan, Mukherjee, Tang and
    Schoenlieb 2024, "Boosting data-driven mirror descent".

    Args:
        mirror: Any mirror.
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    @property
    def accumulates(self) -> bool:
        return True

    @property
    def init_cost(self) -> dict[str, int]:
        return {"to_dual": 1}

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1, "to_primal": 1}

    def init(self, problem: Problem, x0: Tensor) -> MirrorState:
        return MirrorState(self.mirror.check("x0", x0), target=self.mirror.to_dual(x0))

    def encode(self, state: MirrorState) -> Tensor:
        """y_k itself."""
        return super().encode(state) if state.target is None else state.target
