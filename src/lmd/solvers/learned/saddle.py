"""Learned mirror descent on saddle forms: learned convolutions for grids, learned steps for any composite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_module_kind, check_positive
from lmd.solvers.base import DualState, LearnedPrefix
from lmd.solvers.classical.pdhg import PDHG, PDHGState, check_step
from lmd.solvers.learned.dual import at_middle, check_grid, check_kernel_size, convolve, zeros_of
from lmd.terms.base import per_instance


@dataclass(frozen=True, kw_only=True)
class LearnedPDHGState(DualState):
    """Points x_k and dual points, and how they moved last."""

    moved: Tensor  # x_k - x_{k-1}
    dual_moved: Tensor  # p_k - p_{k-1}


@dataclass(frozen=True, kw_only=True)
class LearnedSaddleState(LearnedPDHGState):
    """Also the part p_k `(B, ..., axes, *size)` of the dual point that belongs to the differences."""

    differences_dual: Tensor


class LearnedSaddle(LearnedPrefix[LearnedSaddleState]):
    r"""Both sides of min_x max_p f(x) + <Kx, p> - g*(p), each with learned convolutions, for k < N; then PDHG.

        p_{k+1} = P(p_k + A_k * (L K x_k) + M_k * (p_k - p_{k-1}) + E_k * (L K(x_k - x_{k-1})))
        x_{k+1} = Q(x_k + C_k * (grad f(x_k) + K'p_{k+1}) / L + D_k * (x_k - x_{k-1}))

    P is the exact projection onto the feasible dual points, Q the one onto the box the pixels are known to lie in, L
    the smoothness of f. A_k, M_k, E_k are convolutions of the components of dual fields among each other, C_k and D_k
    of images; all are different in every iteration, and along `axes` axes: signals, images (2, the default) or volumes.
    f stands for all terms but the one behind the differences, each of them smooth or a box. Where entries are lost
    (`masked`), kept and lost ones are different neighbours: C_k has a kernel for each pair of (from, to), D_k one for
    each `to`. PDHG with steps sigma, tau is A_k = E_k = sigma, C_k = -tau at the middle of the kernels, up to its prox,
    and the start of training.

    Whatever was learned, p_k is feasible and x_k in the box, so there is a duality gap at every iteration and nothing
    diverges; and from iteration N on the method is PDHG, started at x_N and p_N, which converges from any start. Its
    tau is PDHG's own or the one given, over `settle`: short primal steps disturb x_N least. No units are learned: see
    `LearnedDual`. The first step fills lost pixels from their neighbours, as y says nothing about them.

    Args:
        iterations: N.
        kernel: The side of the convolutions of dual points, odd.
        primal_kernel: The side of the convolutions of images, odd.
        masked: Whether kernels tell kept entries from lost ones.
        tau: Of the PDHG that goes on, before it is divided by `settle`; None is its own default.
        settle: What tau of the PDHG that goes on is divided by, positive.
        axes: Of the differences: 1 for signals, 2 for images, 3 for volumes.
    """

    init_cost: ClassVar = {"dual_from": 1}
    # The operator of the learned steps is that of the differences, where the problem has a larger one
    step_cost: ClassVar = {"operator": 2, "adjoint": 1, "data_gradient": 1, "dual_from": 1}

    def __init__(
        self,
        iterations: int = 10,
        kernel: int = 5,
        primal_kernel: int = 5,
        masked: bool = True,
        tau: float | None = None,
        settle: float = 8.0,
        axes: int = 2,
    ) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        self.kernel = check_kernel_size("kernel", kernel)
        self.primal_kernel = check_kernel_size("primal_kernel", primal_kernel)
        self.masked, self.axes = bool(masked), check_count("axes", axes, most=3)
        first = 0.7  # tau of the PDHG that training starts from, in units of 1 / L
        dual = torch.zeros(iterations, axes, 3 * axes, *(kernel,) * axes)
        for component in range(axes):
            at_middle(dual, axes)[:, component, [component, 2 * axes + component]] = 1 / (4 * axes * first)
        sides = 2 if masked else 1
        primal = torch.zeros(iterations, sides, sides + 1, *(primal_kernel,) * axes)
        at_middle(primal, axes)[:, 0, 0] = -first / (1 + first)
        if masked:
            at_middle(primal, axes)[:, 1, 1] = -first
        self.dual_kernels = nn.Parameter(dual)  # A_k, M_k, E_k `(N, 2, 6, k, k)` for two axes
        # C_k, D_k: `(N, 2, 3, k, k)`, to kept and lost pixels, from kept ones, lost ones and the move; `(N, 1, 2, k,
        # k)` where there are no lost pixels
        self.primal_kernels = nn.Parameter(primal)
        self.tail: PDHG = PDHG(tau, accelerated=False)
        self.tau, self.settle = self.tail.tau, check_step("settle", settle)

    @property
    def needs(self) -> tuple[str, ...]:
        own = ("differences", "gradient_smoothness", "data_gradient", "clip")
        return (*own, *(("mask",) if self.masked else ()), *self.tail.needs)

    def init(self, problem: Any, x0: Tensor) -> LearnedSaddleState:
        check_module_kind("x0", x0, self, "solver")
        check_grid(problem.differences, self.axes)
        p, still = zeros_of(x0, self.axes), x0.new_zeros(()).expand(x0.shape)
        return LearnedSaddleState(x0, dual=problem.dual_from(p, x0), differences_dual=p, dual_moved=p, moved=still)

    def learned_step(self, problem: Any, state: LearnedSaddleState) -> LearnedSaddleState:
        k, p, moved, dual_moved = state.iteration, state.differences_dual, state.moved, state.dual_moved
        x = state.x if k > 0 else problem.clip(problem.fill_unknown(state.x))  # lost pixels are filled first
        smoothness = problem.gradient_smoothness
        rise, faster = problem.differences(x), problem.differences(moved)
        scale = per_instance(smoothness, rise)
        ahead = convolve((scale * rise, dual_moved, scale * faster), self.dual_kernels[k])
        ahead = problem.variation.project(p + ahead)
        slope = (problem.data_gradient(x) + problem.differences.adjoint(ahead)) / per_instance(smoothness, x)
        target = problem.clip(x + self._primal_step(problem, slope, moved, self.primal_kernels[k]))
        full = problem.dual_from(ahead, target)
        return LearnedSaddleState(
            target, k + 1, dual=full, differences_dual=ahead, dual_moved=ahead - p, moved=target - x
        )

    def _primal_step(self, problem: Any, slope: Tensor, moved: Tensor, kernel: Tensor) -> Tensor:
        """C_k * slope + D_k * moved, in the shape of x."""
        at = -self.axes - 1
        if not self.masked:
            return convolve([item.unsqueeze(at) for item in (slope, moved)], kernel).squeeze(at)
        mask: Tensor = problem.mask.expand_as(slope)
        kept = slope * mask
        both = convolve([item.unsqueeze(at) for item in (kept, slope - kept, moved)], kernel)
        return torch.where(mask > 0, both.select(at, 0), both.select(at, 1))

    def tail_at(self, problem: Any, x: Tensor, dual: Tensor) -> PDHGState:
        """With shorter primal steps than PDHG's own."""
        tau, sigma = self.tail.steps(problem)
        tau, sigma = tau / self.settle, sigma * self.settle
        return PDHGState(x, dual=dual, ahead=x, tau=tau, sigma=sigma, least=0.0)


class LearnedPDHG(LearnedPrefix[LearnedPDHGState]):
    r"""PDHG with learned step sizes and momenta in the first N iterations, and plain PDHG after them.

        p_{k+1} = prox_{s_k g*}(p_k + m_k (p_k - p_{k-1}) + s_k K(x_k + e_k (x_k - x_{k-1})))
        x_{k+1} = prox_{t_k f}(x_k + n_k (x_k - x_{k-1}) - t_k K'p_{k+1})

    with Euclidean mirrors on both sides: for problems whose K has no grid structure, such as the lasso, where
    `LearnedSaddle` has nothing to convolve. t_k and s_k are learned as multiples of PDHG's own steps tau and sigma.

    Whatever was learned, p_k is feasible, as a prox is, so there is a duality gap at every iteration; and from
    iteration N on the method is PDHG, started at x_N and p_N. `tau` is PDHG's, for both parts.

    Args:
        iterations: N.
        tau: Of PDHG; None is its own default.
    """

    needs = PDHG.needs
    init_cost: ClassVar = PDHG.init_cost
    step_cost: ClassVar = PDHG.step_cost

    def __init__(self, iterations: int = 20, tau: float | None = None) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        self.tau = None if tau is None else check_positive("tau", tau)
        start = torch.zeros(iterations, 5)
        start[:, 2] = 1.0
        # log t_k / tau, log s_k / sigma, e_k, m_k, n_k `(N, 5)`; before training, those of PDHG
        self.numbers = nn.Parameter(start)
        self.tail: PDHG = PDHG(tau, accelerated=False)

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
