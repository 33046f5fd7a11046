"""Interior-point steps from a learned start for a class of support vector machines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd import kernels
from lmd.core.checks import check_count, check_module_kind
from lmd.errors import InputError
from lmd.solvers.base import DualState, LearnedPrefix
from lmd.solvers.classical.interior_point import InteriorPoint, Iterate, NewtonSystem
from lmd.terms.quadratic import times

FIRST_SHARE = 0.3  # share of the rows that the first iterations use

# Iterations that choose rows, and how many they choose, relative to the first choice. With fewer, rounding errors show.
ROW_SHARES = {0: 1.0, 2: 0.85, 5: 0.7}


@dataclass(frozen=True, kw_only=True)
class LearnedInteriorState(DualState):
    """One iterate per data set, shared by all instances of that data set."""

    sets: Tensor  # the data sets `(S,)`
    place: Tensor  # position of each instance's data set in `sets` `(B,)`
    numbers: Tensor  # indices of the rows of each data set that are used `(S, k)`
    inner: Iterate


class LearnedInteriorPoint(LearnedPrefix[LearnedInteriorState]):
    r"""Predictor-corrector steps from a learned start, on the rows with the least margins; then `InteriorPoint`.

    The directions are those of `InteriorPoint`. All instances start at one learned point with a learned mean product
    mu_0. Each row starts with a dual number, slack and surplus whose products are exactly mu_0: the dual number is
    C/2 (1 + u / (1 + sqrt(u^2 + 1))) with u = C (1 - margin) / (2 mu_0). Only the rows with the least margins are used;
    they are chosen again before the third and the sixth iteration. The centring, as a multiple of Mehrotra's
    ([Mehrotra 1992](https://doi.org/10.1137/0802028)), and the share of the way to the boundary are learned for each
    iteration; there is no line search. `InteriorPoint` continues from the last points, on all rows.

    Instances on one data set have the same answer, which is computed once. x is `(B, size)`.

    Args:
        size: Entries of x.
        iterations: N.
    """

    needs = ("rows", "subset", "C")
    step_cost: ClassVar = {"factorisation": 1}

    def __init__(self, size: int, iterations: int = 10) -> None:
        super().__init__()
        self.size, self.iterations = check_count("size", size), check_count("iterations", iterations)
        self.tail = InteriorPoint()
        self.guess = nn.Parameter(torch.zeros(size))
        self.log_mean = nn.Parameter(torch.zeros(()))  # log mu_0 / C
        self.centring = nn.Parameter(torch.zeros(iterations))  # logarithms of multiples of Mehrotra's sigma
        # Logits of the share of the way to the boundary that each step goes
        self.lengths = nn.Parameter(torch.full((iterations,), math.log(0.995 / 0.005)))

    def init(self, problem: Any, x0: Tensor) -> LearnedInteriorState:
        """Start at the learned point without rows; the first iteration chooses them."""
        check_module_kind("x0", x0, self, "solver")
        if x0.shape[1:] != (self.size,):
            raise InputError("x0", f"{x0[0].numel()} entries", f"{self.size}, as the solver has")
        sets, place = torch.unique(problem.subset, return_inverse=True)
        point = self.guess.double().expand(len(sets), -1)
        none = point[:, :0]
        return self._state(x0, 0, problem, sets, place, none.long(), Iterate(point, none, none, none, none))

    def _state(
        self, like: Tensor, k: int, problem: Any, sets: Tensor, place: Tensor, numbers: Tensor, inner: Iterate
    ) -> LearnedInteriorState:
        nothing = inner.dual.new_zeros(len(sets), problem.rows.shape[1])
        dual = nothing.scatter(1, numbers, inner.dual)
        x = inner.point[place].to(like)
        solved = torch.isfinite((2 * x).square().sum(dim=1, keepdim=True))  # otherwise x does not move
        x, dual = torch.where(solved, x, like), torch.where(solved, dual[place], 0.0)
        return LearnedInteriorState(x, k, dual=dual, sets=sets, place=place, numbers=numbers, inner=inner)

    def learned_step(self, problem: Any, state: LearnedInteriorState) -> LearnedInteriorState:
        k, numbers, now = state.iteration, *self._working_set(problem, state)
        rows = _rows(problem, state.sets).gather(1, numbers[..., None].expand(-1, -1, self.size)).double()
        by, _ = NewtonSystem(rows, now).corrected_direction(self.centring[k].exp())
        after = now.moved(self.lengths[k].sigmoid() * now.longest(by), by)
        return self._state(state.x, k + 1, problem, state.sets, state.place, numbers, after)

    def step(self, problem: Any, state: Any) -> Any:
        after = self._compiled(problem, state, state.iteration + 1)
        return super().step(problem, state) if after is None else after

    def advance(self, problem: Any, state: Any, count: int) -> Any:
        end = state.iteration + count
        while (after := self._compiled(problem, state, end)) is not None:
            state = after
        return super().advance(problem, state, end - state.iteration)

    def _compiled(self, problem: Any, state: Any, end: int) -> LearnedInteriorState | None:
        """Run compiled code to `end` or to the next choice of rows; return None past N or without compiled code."""
        end = min(end, self.iterations)
        is_learned = isinstance(state, LearnedInteriorState) and state.iteration < end
        if not is_learned or self.size == 1 or not kernels.serves(problem.rows, self.guess):
            return None
        k, numbers, now = state.iteration, *self._working_set(problem, state)
        end = min([end, *(later for later in ROW_SHARES if later > k)])
        rows, steps = _rows(problem, state.sets), torch.stack([self.centring.exp(), self.lengths.sigmoid()], dim=1)
        point, positive = now.point.clone(memory_format=torch.contiguous_format), torch.stack(now[1:], dim=1)
        arrays = (rows.contiguous(), numbers.contiguous(), steps[k:end].detach(), point, positive)
        sizes = (*rows.shape, numbers.shape[1], end - k)
        kernels.call("interior", arrays, (), sizes, threads=kernels.threads_for(rows))
        after = Iterate(point, *positive.unbind(dim=1))
        return self._state(state.x, end, problem, state.sets, state.place, numbers, after)

    def _working_set(self, problem: Any, state: LearnedInteriorState) -> tuple[Tensor, Iterate]:
        """Return the rows and the iterate that an iteration starts from.

        If the iteration chooses rows, it takes those with the least margins; new rows begin with products of mu.
        """
        if state.iteration not in ROW_SHARES:
            return state.numbers, state.inner
        rows, now = _rows(problem, state.sets), state.inner
        margins = times(now.point.to(rows.dtype), rows.mT)
        count = math.ceil(ROW_SHARES[state.iteration] * FIRST_SHARE * problem.rows.shape[1])
        numbers = margins.topk(count, largest=False, sorted=False).indices
        first = (problem.C * self.log_mean.double().exp()).expand(len(rows))
        mean = now.mean_product() if state.iteration > 0 else first
        fresh = Iterate.around(now.point, margins.gather(1, numbers).double(), mean, problem.C)
        none = torch.zeros_like(margins, dtype=torch.float64)
        kept = (none.scatter(1, state.numbers, old).gather(1, numbers) for old in now[1:])
        positive = (torch.where(old > 0, old, new) for old, new in zip(kept, fresh[1:], strict=True))
        return numbers, Iterate(now.point, *positive)


def _rows(problem: Any, sets: Tensor) -> Tensor:
    return problem.rows if len(sets) == len(problem.rows) else problem.rows[sets]
