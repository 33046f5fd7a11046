"""Gradient, quasi-Newton and Newton steps whose metrics, step-sizes and momenta are learned."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_module_kind
from lmd.core.config import Configurable
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import S, Solver, State
from lmd.solvers.classical.gradient_descent import project
from lmd.solvers.classical.lbfgs import CurvaturePair, curvature_pair, two_loops

# Step, caution and damping of `LearnedBlockNewton` to begin with; with a caution of 0.1 it diverges on digits
INITIAL = 1.0, 0.36, 1e-3


class Metric(nn.Module, Configurable, abc.ABC):
    """A positive definite matrix M that is learned: g `(B, n)` to Mg `(B, n)`.

    Args:
        size: n.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_count("size", size)

    @abc.abstractmethod
    def forward(self, gradient: Tensor) -> Tensor:
        """M times each gradient `(B, n)`."""

    @abc.abstractmethod
    def fit_(self, matrix: Tensor) -> None:
        """Begin at the M of its kind that is near a positive definite matrix `(n, n)`, such as an inverse Hessian."""


class DiagonalMetric(Metric):
    """M = diag(exp(c)), c `(n,)`."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.logarithms = nn.Parameter(torch.zeros(size))

    def forward(self, gradient: Tensor) -> Tensor:
        return self.logarithms.exp() * gradient

    @torch.no_grad()
    def fit_(self, matrix: Tensor) -> None:
        """The largest multiple of the diagonal that lies below the matrix."""
        diagonal = matrix.double().diagonal()
        root = diagonal.rsqrt()
        ratio = torch.linalg.eigvalsh(root[:, None] * matrix.double() * root)[0].clamp(min=1e-30)
        self.logarithms.copy_((ratio * diagonal).log())


class DenseMetric(Metric):
    """M = B (I + E)(I + E)'B', B `(n, n)` where it begins, E learned: in units of B."""

    base: Tensor

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.register_buffer("base", torch.eye(size))
        self.change = nn.Parameter(torch.zeros(size, size))

    def forward(self, gradient: Tensor) -> Tensor:
        factor = self.base + self.base @ self.change
        return gradient @ (factor @ factor.mT)

    @torch.no_grad()
    def fit_(self, matrix: Tensor) -> None:
        self.base = torch.linalg.cholesky(matrix.double()).to(self.base.dtype)


class _MetricSolver(Solver[S]):
    """A metric, and a learned step-size for each iteration; iterations past the learned ones are as the last.

    Nothing is promised of them: `Sequential` goes on with a method that converges.
    """

    step_cost: ClassVar = {"subgradient": 1}

    def __init__(self, metric: Metric, iterations: int) -> None:
        super().__init__()
        if not isinstance(metric, Metric):
            raise InputError("metric", type(metric).__name__, "an lmd.solvers.learned.gradient.Metric")
        self.metric, self.iterations = metric, check_count("iterations", iterations)
        self.steps = nn.Parameter(torch.zeros(iterations))  # log t_k `(N,)`

    @property
    def horizon(self) -> int:
        return self.iterations

    def check(self, x0: Tensor) -> Tensor:
        """Return x0 if it is of the size and dtype of the metric."""
        check_module_kind("x0", x0, self, "solver")
        if x0[0].numel() != self.metric.size:
            raise InputError("x0", f"{x0[0].numel()} entries", f"{self.metric.size}, as the metric has")
        return x0


@dataclass(frozen=True, kw_only=True)
class LearnedGradientState(State):
    """Points, and the extrapolated points at which the next gradient is taken."""

    ahead: Tensor


class LearnedGradient(_MetricSolver[LearnedGradientState]):
    r"""x_{k+1} = P(y_k - t_k M g(y_k)), y_{k+1} = P(x_{k+1} + m_k (x_{k+1} - x_k)), with M, t_k and m_k learned.

    M is a metric, such as an inverse Hessian that suits the class. P is the Euclidean projection onto the problem's
    domain.

    Args:
        metric: M, for problems whose x has as many entries.
        iterations: How many t_k and m_k are learned.
    """

    stays_in_domain = True

    def __init__(self, metric: Metric, iterations: int = 8) -> None:
        super().__init__(metric, iterations)
        self.momenta = nn.Parameter(torch.zeros(iterations))  # m_k `(N,)`

    def init(self, problem: Problem, x0: Tensor) -> LearnedGradientState:
        return LearnedGradientState(self.check(x0), ahead=x0)

    def step(self, problem: Problem, state: LearnedGradientState) -> LearnedGradientState:
        k, y = min(state.iteration, self.iterations - 1), state.ahead
        direction = self.metric(problem.subgradient(y).flatten(1)).reshape_as(y)
        x = project(problem, torch.addcmul(y, self.steps[k].exp(), direction, value=-1))
        ahead = project(problem, torch.addcmul(x, self.momenta[k], x - state.x))
        return LearnedGradientState(x, state.iteration + 1, ahead=ahead)


@dataclass(frozen=True, kw_only=True)
class LearnedQuasiNewtonState(State):
    """Points, and what earlier steps showed of the curvature."""

    gradient: Tensor  # g_{k-1} `(B, n)`; 0 before the first step
    move: Tensor  # x_k - x_{k-1} `(B, n)`
    pairs: tuple[CurvaturePair, ...]  # oldest first


class LearnedQuasiNewton(_MetricSolver[LearnedQuasiNewtonState]):
    r"""x_{k+1} = x_k - t_k H_k g_k: H_0 is a learned metric, H_k adds the curvature of the last `memory` steps to it.

    H_k is that of L-BFGS ([Nocedal 1980](https://doi.org/10.1090/S0025-5718-1980-0572855-7)) with the metric in place
    of a number. One gradient an iteration and no values. For problems on the whole space.

    Args:
        metric: H_0, for problems whose x has as many entries.
        iterations: How many t_k are learned.
        memory: Steps whose curvature is kept, 0 or more.
    """

    def __init__(self, metric: Metric, iterations: int = 8, memory: int = 8) -> None:
        super().__init__(metric, iterations)
        self.memory = check_count("memory", memory, least=0)

    def init(self, problem: Problem, x0: Tensor) -> LearnedQuasiNewtonState:
        zeros = torch.zeros_like(self.check(x0)).flatten(1)
        return LearnedQuasiNewtonState(x0, gradient=zeros, move=zeros, pairs=())

    def step(self, problem: Problem, state: LearnedQuasiNewtonState) -> LearnedQuasiNewtonState:
        k, g, pairs = state.iteration, problem.subgradient(state.x).flatten(1), state.pairs
        if k > 0 and self.memory > 0:
            pairs = (*pairs, curvature_pair(state.move, g - state.gradient, state.gradient))[-self.memory :]
        size = self.steps[min(k, self.iterations - 1)].exp()
        move = -size * two_loops(g, pairs, self.metric)
        return LearnedQuasiNewtonState(state.x + move.reshape_as(state.x), k + 1, gradient=g, move=move, pairs=pairs)


class LearnedBlockNewton(Solver[State]):
    r"""x_{k+1} = x_k - t_k (M + d_k trace(M) / n)^{-1} g_k, M the blocks of the problem at x_k with caution c_k.

    t_k, c_k and d_k are learned for each iteration. For cross entropy, M sums the pairs by how far they are from right
    ([Boehning 1992](https://doi.org/10.1007/BF00048682) has one M for all x), of which a `share` suffices. Nothing is
    promised: `Sequential` goes on with a method that converges.

    Args:
        iterations: How many t_k, c_k and d_k are learned.
        share: Of the pairs that M sums, above 0 and at most 1.
    """

    needs = ("newton_blocks",)
    step_cost: ClassVar = {"factorisation": 1}

    def __init__(self, iterations: int = 10, share: float = 0.1) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        if not 0 < share <= 1:
            raise InputError("share", share, "a number above 0, at most 1")
        self.share = float(share)
        # Logarithms of t_k, c_k and d_k, as multiples of `INITIAL` `(N, 3)`
        self.numbers = nn.Parameter(torch.zeros(iterations, 3))

    @property
    def horizon(self) -> int:
        return self.iterations

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
        solved = torch.isfinite((2 * move).square().sum(dim=1, keepdim=True))  # else the point stays where it is
        return State(torch.where(solved, x - length * move, x), k + 1)
