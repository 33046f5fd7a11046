"""Newton's steps for linear classifiers of one class, class by class, with learned numbers and no line search."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_module_kind
from lmd.errors import InputError
from lmd.solvers.base import Solver, State

FIRST = 1.0, 0.36, 1e-3
"""Step, caution and damping to begin with: with a caution of 0.1 steps of 1 diverge on digits, with 0.3 they do not."""


class BlockProblem(Protocol):
    """What steps need of a problem: its gradient, and the blocks on the diagonal of a matrix above its curvature."""

    def blocks(self, x: Tensor, caution: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """The gradient `(B, n)` and K blocks `(B, K, n / K, n / K)`; more caution makes them larger."""


class LearnedBlockNewton(Solver[State, BlockProblem]):
    r"""x_{k+1} = x_k - t_k (M + d_k trace(M) / n)^{-1} g_k, M the blocks of the problem at x_k with caution c_k.

    t_k, c_k and d_k are learned for each iteration. For cross entropy, M sums the pairs by how far they are from right
    ([Boehning 1992](https://doi.org/10.1007/BF00048682) has one M for all x), of which a `share` suffices. Where the
    data can be separated, so that f has no minimiser, a step of t times Newton's divides f by about e^t. Nothing is
    promised: `Then` goes on with a method that converges.

    Args:
        iterations: N, those with numbers of their own.
        share: Of the pairs that M sums, above 0 and at most 1.
    """

    def __init__(self, iterations: int = 10, share: float = 0.1) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        if not 0 < share <= 1:
            raise InputError("share", share, "a number above 0, at most 1")
        self.share = float(share)
        self.numbers = nn.Parameter(torch.zeros(iterations, 3))
        """Logarithms of t_k, c_k and d_k, as multiples of `FIRST` `(N, 3)`."""

    def config(self) -> dict[str, Any]:
        return {"iterations": self.iterations, "share": self.share}

    @property
    def needs(self) -> tuple[str, ...]:
        return ("blocks",)

    @property
    def horizon(self) -> int:
        return self.iterations

    @property
    def step_cost(self) -> dict[str, int]:
        return {"factorisation": 1}

    def init(self, problem: BlockProblem, x0: Tensor) -> State:
        check_module_kind("x0", x0, self, "solver")
        return State(x0)

    def step(self, problem: BlockProblem, state: State) -> State:
        x, k = state.x, state.iteration
        learned = self.numbers[min(k, self.iterations - 1)].exp()
        length, caution, damping = (first * number for first, number in zip(FIRST, learned, strict=True))
        gradient, matrices = problem.blocks(x, caution, self.share)
        trace = matrices.diagonal(dim1=2, dim2=3).mean(dim=(1, 2)) + torch.finfo(x.dtype).tiny
        identity = torch.eye(matrices.shape[-1], dtype=x.dtype, device=x.device)
        damped = matrices + (damping * trace)[:, None, None, None] * identity
        factor = torch.linalg.cholesky_ex(damped).L
        move = torch.cholesky_solve(gradient.reshape(*matrices.shape[:3], 1), factor).reshape_as(x)
        solved = torch.isfinite((2 * move).square().sum(dim=1, keepdim=True))  # else the point stays where it is
        return State(torch.where(solved, x - length * move, x), k + 1)
