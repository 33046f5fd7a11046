"""Gradient, quasi-Newton and Newton steps with learned metrics, step sizes and momenta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_module_kind
from lmd.core.config import Configurable
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State
from lmd.solvers.classical.gradient_descent import CurvaturePair, curvature_pair, project, two_loops

# Step, caution and damping of `LearnedBlockNewton` before training; with a caution of 0.1 it diverges on digits
INITIAL = 1.0, 0.36, 1e-3


class Metric(nn.Module, Configurable):
    """A learned positive definite matrix M, which maps g `(B, n)` to Mg `(B, n)`.

    M = B (I + E)(I + E)'B' with a fixed B `(n, n)` and a learned E, which starts at 0; or M = diag(exp(c)).

    Args:
        size: n.
        dense: Whether M has the first form; otherwise it is diagonal.
    """

    base: Tensor

    def __init__(self, size: int, dense: bool = True) -> None:
        super().__init__()
        self.size, self.dense = check_count("size", size), bool(dense)
        self.register_buffer("base", torch.eye(size if dense else 0))
        self.change = nn.Parameter(torch.zeros((size, size) if dense else size))  # E, or c

    def forward(self, gradient: Tensor) -> Tensor:
        """Return M times each gradient `(B, n)`."""
        if not self.dense:
            return self.change.exp() * gradient
        factor = self.base + self.base @ self.change
        return gradient @ (factor @ factor.mT)

    @torch.no_grad()
    def fit_(self, matrix: Tensor) -> None:
        """Initialise M with a positive definite matrix `(n, n)`, such as an inverse Hessian.

        A diagonal M becomes the largest multiple of the matrix's diagonal with matrix - M positive semidefinite.
        """
        matrix = matrix.double()
        if self.dense:
            self.base = torch.linalg.cholesky(matrix).to(self.base.dtype)
            return
        root = matrix.diagonal().rsqrt()
        ratio = torch.linalg.eigvalsh(root[:, None] * matrix * root)[0].clamp(min=1e-30)
        self.change.copy_((ratio * matrix.diagonal()).log())


@dataclass(frozen=True, kw_only=True)
class LearnedGradientState(State):
    """Points, the points of the next gradients, and the curvature pairs of earlier steps."""

    ahead: Tensor  # y_k `(B, ...)`
    gradient: Tensor  # g(y_{k-1}) `(B, n)`; 0 before the first step
    move: Tensor  # y_k - y_{k-1} `(B, n)`
    pairs: tuple[CurvaturePair, ...]  # oldest first


class LearnedGradient(Solver[LearnedGradientState]):
    r"""x_{k+1} = P(y_k - t_k H_k g(y_k)), y_{k+1} = P(x_{k+1} + m_k (x_{k+1} - x_k)), with H_0, t_k and m_k learned.

    H_0 is a metric, such as an inverse Hessian that suits the problem class. P is the Euclidean projection onto the
    problem's domain. Without `memory`, H_k = H_0; with it, m_k = 0 and H_k is the matrix of L-BFGS for the last steps
    ([Nocedal 1980](https://doi.org/10.1090/S0025-5718-1980-0572855-7)), with the metric instead of a scaled identity.

    An iteration costs one gradient and no value. Iterations past N repeat the last learned step. Convergence is not
    guaranteed; wrap the solver in `Sequential` to continue with a method that converges.

    Args:
        metric: H_0; its size is the number of entries of x.
        iterations: N, the number of learned t_k and m_k.
        memory: Number of stored curvature pairs; 0 uses momentum instead.
    """

    stays_in_domain = True
    step_cost: ClassVar = {"subgradient": 1}

    def __init__(self, metric: Metric, iterations: int = 8, memory: int = 0) -> None:
        super().__init__()
        if not isinstance(metric, Metric):
            raise InputError("metric", type(metric).__name__, "an lmd.solvers.learned.gradient.Metric")
        self.metric, self.iterations = metric, check_count("iterations", iterations)
        self.memory = check_count("memory", memory, least=0)
        self.steps = nn.Parameter(torch.zeros(iterations))  # log t_k `(N,)`
        self.momenta = nn.Parameter(torch.zeros(iterations), requires_grad=memory == 0)  # m_k `(N,)`

    def init(self, problem: Problem, x0: Tensor) -> LearnedGradientState:
        check_module_kind("x0", x0, self, "solver")
        if x0[0].numel() != self.metric.size:
            raise InputError("x0", f"{x0[0].numel()} entries", f"{self.metric.size}, as the metric has")
        zeros = torch.zeros_like(x0).flatten(1)
        return LearnedGradientState(x0, ahead=x0, gradient=zeros, move=zeros, pairs=())

    def step(self, problem: Problem, state: LearnedGradientState) -> LearnedGradientState:
        k, y, pairs = min(state.iteration, self.iterations - 1), state.ahead, state.pairs
        g = problem.subgradient(y).flatten(1)
        if state.iteration > 0 and self.memory > 0:
            pairs = (*pairs, curvature_pair(state.move, g - state.gradient, state.gradient))[-self.memory :]
        direction = two_loops(g, pairs, self.metric).reshape_as(y)
        ahead = x = project(problem, torch.addcmul(y, self.steps[k].exp(), direction, value=-1))
        if self.memory == 0:
            ahead = project(problem, torch.addcmul(x, self.momenta[k], x - state.x))
        move = (ahead - y).flatten(1)
        return LearnedGradientState(x, state.iteration + 1, ahead=ahead, gradient=g, move=move, pairs=pairs)


class LearnedBlockNewton(Solver[State]):
    r"""x_{k+1} = x_k - t_k (M + d_k trace(M) / n)^{-1} g_k; M is the problem's `newton_blocks` at x_k with caution c_k.

    t_k, c_k and d_k are learned for each iteration. For cross entropy, M is a weighted sum over the tenth of the data
    pairs with the largest errors ([Boehning 1992](https://doi.org/10.1007/BF00048682) uses one M for all x).
    Convergence is not guaranteed; wrap the solver in `Sequential` to continue with a method that converges.

    Args:
        iterations: Number of iterations with learned t_k, c_k and d_k.
    """

    needs = ("newton_blocks",)
    step_cost: ClassVar = {"factorisation": 1}
    share = 0.1  # share of the data pairs that M sums over

    def __init__(self, iterations: int = 10) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        # Logarithms `(N, 3)` of t_k, c_k and d_k relative to `INITIAL`
        self.numbers = nn.Parameter(torch.zeros(iterations, 3))

    def init(self, problem: Any, x0: Tensor) -> State:
        check_module_kind("x0", x0, self, "solver")
        return State(x0)

    def step(self, problem: Any, state: State) -> State:
        x, k = state.x, state.iteration
        learned = self.numbers[min(k, self.iterations - 1)].exp()
        length, caution, damping = (initial * number for initial, number in zip(INITIAL, learned, strict=True))
        gradient, matrices = problem.newton_blocks(x, caution, self.share)
        trace = matrices.diagonal(dim1=2, dim2=3).mean(dim=(1, 2)) + torch.finfo(x.dtype).tiny
        identity = torch.eye(matrices.shape[-1], dtype=x.dtype, device=x.device)
        damped = matrices + (damping * trace)[:, None, None, None] * identity
        factor = torch.linalg.cholesky_ex(damped).L
        move = torch.cholesky_solve(gradient.reshape(*matrices.shape[:3], 1), factor).reshape_as(x)
        solved = torch.isfinite((2 * move).square().sum(dim=1, keepdim=True))  # otherwise x does not move
        return State(torch.where(solved, x - length * move, x), k + 1)
