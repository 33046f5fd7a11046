"""L-BFGS with a line search, instance by instance: what a user would pick for a smooth problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.problems.base import Problem
from lmd.solvers.base import Solver
from lmd.solvers.classical.gradient_descent import DescentState

# The constants of the Wolfe conditions
SUFFICIENT_DECREASE = 1e-4
CURVATURE = 0.9

# A pair must have s'y > MIN_CURVATURE ||g|| s's: with that, L-BFGS converges without strong convexity
MIN_CURVATURE = 1e-10


@dataclass(frozen=True)
class CurvaturePair:
    """What one step showed of the curvature, all flat: `(B, n)`."""

    move: Tensor  # s = x_{k+1} - x_k
    change: Tensor  # y = g_{k+1} - g_k
    weight: Tensor  # 1 / s'y `(B,)`, and 0 for an instance that learns nothing from this pair


@dataclass(frozen=True, kw_only=True)
class LBFGSState(DescentState):
    """Points with their values and subgradients, and the pairs of the last steps, oldest first."""

    gradient: Tensor
    pairs: tuple[CurvaturePair, ...]


class LBFGS(Solver[LBFGSState]):
    """x_{k+1} = x_k - t_k H_k g_k, with H_k the inverse curvature estimated from the last `memory` steps. Nocedal 1980.

    Each instance has its own t_k, found by doubling and bisection such that the value falls and the slope along the
    step flattens: the weak Wolfe conditions, which can also be met where the problem is not smooth (Lewis and Overton
    2013). Curvature that is tiny beside the gradient is not believed (Li and Fukushima 2001). An instance that finds no
    lower value in `trials` evaluations forgets its pairs and tries its subgradient next; if that fails too, it stays
    where it is.

    Args:
        memory: Pairs of steps and changes of the gradient that are kept.
        trials: Evaluations of a line search, at most.
    """

    init_cost: ClassVar = {"value": 1, "subgradient": 1}
    step_cost: ClassVar = {}  # the evaluations of the line search are counted in the state

    def __init__(self, memory: int = 10, trials: int = 20) -> None:
        super().__init__()
        self.memory = check_count("memory", memory)
        self.trials = check_count("trials", trials)

    def init(self, problem: Problem, x0: Tensor) -> LBFGSState:
        value, gradient = problem.value_and_subgradient(x0)
        stuck = torch.zeros(len(x0), dtype=torch.bool, device=x0.device)
        return LBFGSState(x0, value=value, gradient=gradient, pairs=(), stuck=stuck)

    def step(self, problem: Problem, state: LBFGSState) -> LBFGSState:
        gradient = state.gradient.flatten(1)
        direction, informed = _direction(gradient, state.pairs)
        search = _LineSearch(problem, state.x, state.value, gradient, direction, ~state.stuck)
        search.run(self.trials)
        pair = curvature_pair(search.x - state.x.flatten(1), search.gradient - gradient, gradient)
        kept = (CurvaturePair(p.move, p.change, torch.where(search.moved, p.weight, 0)) for p in state.pairs)
        return LBFGSState(
            search.x.reshape_as(state.x),
            state.iteration + 1,
            evaluations={"value": search.trials, "subgradient": search.trials},
            value=search.value,
            gradient=search.gradient.reshape_as(state.x),
            pairs=(*kept, pair)[-self.memory :],
            stuck=state.stuck | ~(search.moved | informed),
        )


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(dim=1)


def curvature_pair(move: Tensor, change: Tensor, gradient: Tensor) -> CurvaturePair:
    """The pair of a step; without clear curvature it has no weight, as it would make H indefinite or unbounded."""
    curvature = _dot(move, change)
    usable = curvature > torch.finfo(curvature.dtype).eps * _dot(change, change)
    usable &= curvature > MIN_CURVATURE * _dot(gradient, gradient).sqrt() * _dot(move, move)
    return CurvaturePair(move, change, torch.where(usable, 1 / torch.where(usable, curvature, 1), 0))


def _direction(gradient: Tensor, pairs: tuple[CurvaturePair, ...]) -> tuple[Tensor, Tensor]:
    """-H g `(B, n)` by the two-loop recursion, and which instances `(B,)` know any curvature.

    For the others, H is 1 / ||g||: a first step of length 1.
    """
    tiny = torch.finfo(gradient.dtype).tiny
    scale = 1 / _dot(gradient, gradient).clamp(min=tiny).sqrt()
    informed = torch.zeros(len(gradient), dtype=torch.bool, device=gradient.device)
    for pair in pairs:
        known = pair.weight > 0
        scale = torch.where(known, 1 / torch.where(known, pair.weight * _dot(pair.change, pair.change), 1), scale)
        informed = informed | known
    return -two_loops(gradient, pairs, lambda q: scale[:, None] * q), informed


def two_loops(gradient: Tensor, pairs: tuple[CurvaturePair, ...], first: Callable[[Tensor], Tensor]) -> Tensor:
    """Hg `(B, n)` by the two-loop recursion, H being `first` with the curvature of the pairs added to it."""
    q, shares = gradient, []
    for pair in reversed(pairs):
        shares.append(pair.weight * _dot(pair.move, q))
        q = q - shares[-1][:, None] * pair.change
    q = first(q)
    for pair, share in zip(pairs, reversed(shares), strict=True):
        q = q + (share - pair.weight * _dot(pair.change, q))[:, None] * pair.move
    return q


class _LineSearch:
    """The step lengths of a batch: each instance keeps the last point it accepted, with its value and subgradient."""

    def __init__(
        self, problem: Problem, x: Tensor, value: Tensor, gradient: Tensor, direction: Tensor, free: Tensor
    ) -> None:
        self.problem, self.shape = problem, x.shape
        self.origin, self.start_value, self.direction = x.flatten(1), value, direction
        self.slope = _dot(gradient, direction)
        self.searching = free & (self.slope < 0)
        self.x, self.value, self.gradient = self.origin, value, gradient
        self.moved = torch.zeros_like(free)
        self.trials = torch.zeros(len(x), dtype=torch.int64, device=x.device)

    def run(self, trials: int) -> None:
        """Double the length until the value has not fallen enough, then halve the interval it must be in."""
        length, low = torch.ones_like(self.slope), torch.zeros_like(self.slope)
        high = torch.full_like(self.slope, torch.inf)
        for _ in range(trials):
            if not bool(self.searching.any()):
                break
            falls, flat = self._try(length)
            low = torch.where(falls, length, low)
            high = torch.where(falls, high, length)
            self.searching = self.searching & ~(falls & flat)
            length = torch.where(high.isinf(), 2 * low, (low + high) / 2)

    def _try(self, length: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each value falls enough, and whether the slope is flat enough; accepts points where it falls."""
        x = self.origin + length[:, None] * self.direction
        value, gradient = self._evaluate(x)
        falls = value <= self.start_value + SUFFICIENT_DECREASE * length * self.slope  # never for a NaN
        accepted = self.searching & falls
        self.x = torch.where(accepted[:, None], x, self.x)
        self.value = torch.where(accepted, value, self.value)
        self.gradient = torch.where(accepted[:, None], gradient, self.gradient)
        self.moved = self.moved | accepted
        self.trials = self.trials + self.searching
        return falls, _dot(gradient, self.direction) >= CURVATURE * self.slope

    def _evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values and flat subgradients; of the searching instances alone where the problem can be taken apart."""
        x = x.reshape(self.shape)
        if self.problem.batch_size is None or bool(self.searching.all()):
            value, gradient = self.problem.value_and_subgradient(x)
            return value, gradient.flatten(1)
        index = self.searching.nonzero().flatten()
        value, gradient = self.problem.select(index).value_and_subgradient(x[index])
        return (
            torch.full_like(self.start_value, torch.nan).index_copy(0, index, value),
            torch.zeros_like(self.direction).index_copy(0, index, gradient.flatten(1)),
        )
