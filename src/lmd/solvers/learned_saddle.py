"""Learned mirror descent on the saddle form of total variation problems: a learned geometry for each side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lmd import kernels
from lmd.checks import check_count, check_module_kind
from lmd.operators.base import LinearOperator
from lmd.solvers.base import DualState
from lmd.solvers.learned_dual import check_kernel_size, convolve
from lmd.solvers.learned_prefix import LearnedPrefix
from lmd.solvers.pdhg import PDHG, PDHGState, SaddleProblem, check_step
from lmd.terms.base import Scale


@dataclass(frozen=True, kw_only=True)
class LearnedSaddleState(DualState):
    """Points x_k and dual points, and how they moved last."""

    differences_dual: Tensor
    """p_k `(B, C, 2, H, W)`: the dual point, or its part that belongs to the differences."""

    dual_moved: Tensor
    """p_k - p_{k-1}."""

    moved: Tensor
    """x_k - x_{k-1}."""


class GridSaddleProblem(SaddleProblem, Protocol):
    """What `LearnedSaddle` needs of a problem beyond what PDHG needs: differences of images, a smooth data term."""

    @property
    def differences(self) -> LinearOperator: ...

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def gradient_smoothness(self) -> float: ...

    def data_gradient(self, x: Tensor) -> Tensor: ...

    def clip(self, x: Tensor) -> Tensor: ...

    def filled(self, x: Tensor) -> Tensor: ...

    def project_differences(self, p: Tensor, out: Tensor | None = None) -> Tensor: ...

    def dual_from(self, p: Tensor, x: Tensor) -> Tensor: ...


class MaskedProblem(GridSaddleProblem, Protocol):
    """And where pixels are lost."""

    noisy: Tensor
    mask: Tensor
    weight: Tensor
    low: Tensor
    high: Tensor

    @property
    def bound(self) -> Scale: ...


class LearnedSaddle(LearnedPrefix[LearnedSaddleState, Any]):
    r"""Both sides of min_x max_p f(x) + <Kx, p> - g*(p), each with learned convolutions, for k < N; then PDHG.

        p_{k+1} = P(p_k + A_k * (L K x_k) + M_k * (p_k - p_{k-1}) + E_k * (L K(x_k - x_{k-1})))
        x_{k+1} = Q(x_k + C_k * (grad f(x_k) + K'p_{k+1}) / L + D_k * (x_k - x_{k-1}))

    P is the exact projection onto the feasible dual points, Q the one onto the box the pixels are known to lie in, L
    the smoothness of f. A_k, M_k, E_k are convolutions of the two components of dual fields among each other, C_k and
    D_k of images; all are different in every iteration. Where pixels are lost (`masked`), kept and lost ones are
    different neighbours: C_k has a kernel for each pair of (from, to), D_k one for each `to`. PDHG with steps
    sigma, tau is A_k = E_k = sigma, C_k = -tau at the middle of the kernels, up to its prox, and the start of training.

    What holds whatever was learned: p_k is feasible and x_k in the box, so there is a duality gap at every iteration
    and nothing diverges; and from iteration N on the method is PDHG, started at x_N and p_N, which converges from any
    start (Chambolle and Pock 2011). Its tau is PDHG's own or the one given, over `settle`: near the solution short
    primal steps are the better ones, and disturb x_N least. No units are learned: see `LearnedDual`. The first step
    fills lost pixels from their neighbours (`TVInpainting.filled`), as y says nothing about them.
    """

    def __init__(
        self,
        iterations: int = 10,
        kernel: int = 5,
        primal_kernel: int = 5,
        masked: bool = True,
        tau: float | None = None,
        settle: float = 8.0,
    ) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        self.kernel = check_kernel_size("kernel", kernel)
        self.primal_kernel = check_kernel_size("primal_kernel", primal_kernel)
        self.masked = bool(masked)
        first = 0.7  # tau of the PDHG that training starts from, in units of 1 / L
        dual, middle = torch.zeros(iterations, 2, 6, kernel, kernel), kernel // 2
        for component in range(2):
            dual[:, component, component, middle, middle] = 1 / (8 * first)
            dual[:, component, 4 + component, middle, middle] = 1 / (8 * first)
        sides = 2 if masked else 1
        primal, middle = torch.zeros(iterations, sides, sides + 1, primal_kernel, primal_kernel), primal_kernel // 2
        primal[:, 0, 0, middle, middle] = -first / (1 + first)
        if masked:
            primal[:, 1, 1, middle, middle] = -first
        self.dual_kernels = nn.Parameter(dual)
        """A_k, M_k, E_k `(N, 2, 6, k, k)`."""
        self.primal_kernels = nn.Parameter(primal)
        """C_k, D_k: `(N, 2, 3, k, k)`, to kept and lost pixels, from kept ones, lost ones and the move; `(N, 1, 2, k,
        k)` where there are no lost pixels."""
        self.tail: PDHG = PDHG(tau, accelerated=False)
        self.settle = check_step("settle", settle)

    def config(self) -> dict[str, Any]:
        return {
            "iterations": self.iterations,
            "kernel": self.kernel,
            "primal_kernel": self.primal_kernel,
            "masked": self.masked,
            "tau": self.tail.tau,
            "settle": self.settle,
        }

    @property
    def needs(self) -> tuple[str, ...]:
        return ("differences", "data_gradient", "clip", *(("mask",) if self.masked else ()), *self.tail.needs)

    @property
    def init_cost(self) -> dict[str, int]:
        return {"dual_from": 1}

    @property
    def step_cost(self) -> dict[str, int]:
        """The operator of the learned steps is that of the differences, where the problem has a larger one."""
        return {"operator": 2, "adjoint": 1, "data_gradient": 1, "dual_from": 1}

    def init(self, problem: GridSaddleProblem, x0: Tensor) -> LearnedSaddleState:
        check_module_kind("x0", x0, self, "solver")
        zero = x0.new_zeros(())  # zeros that take no memory
        p, still = zero.expand(*x0.shape[:2], 2, *x0.shape[2:]), zero.expand(x0.shape)
        return LearnedSaddleState(x0, dual=problem.dual_from(p, x0), differences_dual=p, dual_moved=p, moved=still)

    def compiles(self, problem: MaskedProblem, state: LearnedSaddleState) -> bool:
        if not self.masked or not kernels.has("saddle_steps", problem.parts):
            return False
        data = (problem.noisy, problem.mask, problem.weight)
        return kernels.serves(state.x, *data, self.dual_kernels, self.primal_kernels)

    def _first(self, problem: GridSaddleProblem, state: LearnedSaddleState) -> Tensor:
        """The x that a step starts from: lost pixels are filled before the first one."""
        return state.x if state.iteration > 0 else problem.clip(problem.filled(state.x))

    def learned_step(self, problem: GridSaddleProblem, state: LearnedSaddleState) -> LearnedSaddleState:
        k, p, moved, dual_moved = state.iteration, state.differences_dual, state.moved, state.dual_moved
        x, smoothness = self._first(problem, state), problem.gradient_smoothness
        rise, faster = problem.differences(x), problem.differences(moved)
        ahead = convolve((smoothness * rise, dual_moved, smoothness * faster), self.dual_kernels[k])
        ahead = problem.project_differences(p + ahead)
        slope = (problem.data_gradient(x) + problem.differences.adjoint(ahead)) / smoothness
        target = problem.clip(x + self._primal_step(problem, slope, moved, self.primal_kernels[k]))
        return self._state(problem, k + 1, target, target - x, ahead, ahead - p)

    def compiled_steps(self, problem: MaskedProblem, state: LearnedSaddleState, end: int) -> LearnedSaddleState:
        """Everything but x is 0 at iteration 0."""
        k, x = state.iteration, self._first(problem, state)
        start = (x, state.moved, state.differences_dual, state.dual_moved) if k > 0 else (x, None, None, None)
        data = (problem.noisy, problem.mask, (problem.low, problem.high), problem.bound, problem.gradient_smoothness)
        found = kernels.saddle_steps(start, *data, (self.dual_kernels[k:end], self.primal_kernels[k:end]))
        return self._state(problem, end, *found)

    @staticmethod
    def _state(
        problem: GridSaddleProblem, k: int, x: Tensor, moved: Tensor, p: Tensor, dual_moved: Tensor
    ) -> LearnedSaddleState:
        dual = problem.dual_from(p, x)
        return LearnedSaddleState(x, k, dual=dual, differences_dual=p, dual_moved=dual_moved, moved=moved)

    def _primal_step(self, problem: Any, slope: Tensor, moved: Tensor, kernel: Tensor) -> Tensor:
        """C_k * slope + D_k * moved, `(B, C, H, W)`."""
        if not self.masked:
            return kernels.convolve(torch.stack((slope, moved), dim=2).flatten(0, 1), kernel).reshape(slope.shape)
        mask: Tensor = problem.mask.expand_as(slope)
        kept = slope * mask
        planes = torch.stack((kept, slope - kept, moved), dim=2).flatten(0, 1)
        both = kernels.convolve(planes, kernel).view(*slope.shape[:2], 2, *slope.shape[2:])
        return torch.where(mask > 0, both[:, :, 0], both[:, :, 1])

    def tail_at(self, problem: GridSaddleProblem, x: Tensor, dual: Tensor) -> PDHGState:
        """With shorter primal steps than PDHG's own."""
        tau, sigma = self.tail.steps(problem)
        tau, sigma = tau / self.settle, sigma * self.settle
        return PDHGState(x, dual=dual, ahead=x, tau=tau, sigma=sigma, least=0.0)
