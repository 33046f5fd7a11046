"""Interior-point steps for a class of support vector machines, from a learned start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from lmd import kernels
from lmd.core.checks import check_count, check_module_kind
from lmd.errors import InputError
from lmd.solvers.base import DualState, LearnedPrefix
from lmd.solvers.classical.interior_point import CENTRING, Direction, InteriorPoint, NewtonSystem

# Iterations before which rows are chosen, and how many, as a share of those at first. With fewer, rounding shows.
ROW_SHARES = {0: 1.0, 2: 0.85, 5: 0.7}


class Centred(NamedTuple):
    """Points `(S, n)` of S data sets, and what is positive around them, each `(S, k)` for k rows; float64."""

    point: Tensor
    dual: Tensor
    room: Tensor
    slack: Tensor
    surplus: Tensor

    @classmethod
    def around(cls, point: Tensor, margins: Tensor, mean: Tensor, C: float) -> Centred:
        """What has products of `mean` `(S,)`, and a slack and surplus that fit the margins `(S, k)`."""
        mean = mean[:, None]
        lean = C / (2 * mean) * (1 - margins)
        root = 1 + (lean.square() + 1).sqrt()
        dual, room = (C / 2 * (root + side * lean) / root for side in (1, -1))
        return cls(point, dual, room, mean / room, mean / dual)

    @classmethod
    def along(cls, move: Direction) -> Centred:
        """A direction, with that of the room beside it."""
        return cls(move.point, move.dual, -move.dual, move.slack, move.surplus)

    def mean_product(self) -> Tensor:
        """mu `(S,)`."""
        return (self.dual * self.surplus + self.room * self.slack).mean(dim=1) / 2

    def moved(self, length: Tensor, by: Centred) -> Centred:
        far = length[:, None]
        return Centred(*(now + far * move for now, move in zip(self, by, strict=True)))

    def longest(self, by: Centred) -> Tensor:
        """The longest step, at most 1, that keeps all positive `(S,)`."""
        steepest = [(-move / now).amax(dim=1) for now, move in zip(self[1:], by[1:], strict=True)]
        return 1 / torch.stack(steepest).amax(dim=0).clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class LearnedInteriorState(DualState):
    """One computation for each data set, whatever the instances on it start from."""

    sets: Tensor  # the data sets `(S,)`
    place: Tensor  # where the data set of each instance is among them `(B,)`
    numbers: Tensor  # which rows of the data sets are worked with `(S, k)`
    inner: Centred


class LearnedInteriorPoint(LearnedPrefix[LearnedInteriorState]):
    r"""Predictor-corrector steps from a learned point and mean product, on the rows that may matter; then all of them.

    The directions are those of `InteriorPoint`. The start is the same for all instances: a point that is learned, and
    for each row the dual number, slack and surplus with products of exactly mu_0: with u = C (1 - margin) / 2 mu_0 the
    dual number is C/2 (1 + u / (1 + sqrt(u^2 + 1))). The `share` of the rows with the least margins takes part; they
    are chosen again before the third and the sixth iteration. How much of Mehrotra's centring to take
    ([Mehrotra 1992](https://doi.org/10.1137/0802028)), and how far to go to the boundary, is learned for each
    iteration; nothing is searched or checked. `InteriorPoint` goes on from the last points, on all rows.

    Instances on one data set have one answer, which is computed once. x `(B, size)`.

    Args:
        size: Entries of x.
        iterations: N.
        share: Of the rows that take part at first, above 0 and at most 1.
    """

    needs = ("rows", "subset", "C")
    step_cost: ClassVar = {"factorisation": 1}

    def __init__(self, size: int, iterations: int = 10, share: float = 0.3) -> None:
        super().__init__()
        self.size, self.iterations = check_count("size", size), check_count("iterations", iterations)
        if not 0 < share <= 1:
            raise InputError("share", share, "a number above 0, at most 1")
        self.share, self.tail = float(share), InteriorPoint()
        self.guess = nn.Parameter(torch.zeros(size))
        self.log_mean = nn.Parameter(torch.zeros(()))  # log mu_0 / C
        self.centring = nn.Parameter(torch.zeros(iterations))  # logarithms of multiples of Mehrotra's sigma
        # Shares of the way to the boundary, as logits
        self.lengths = nn.Parameter(torch.full((iterations,), math.log(0.995 / 0.005)))

    def init(self, problem: Any, x0: Tensor) -> LearnedInteriorState:
        """At the learned point, with no rows yet: the first iteration chooses them."""
        check_module_kind("x0", x0, self, "solver")
        if x0.shape[1:] != (self.size,):
            raise InputError("x0", f"{x0[0].numel()} entries", f"{self.size}, as the solver has")
        sets, place = torch.unique(problem.subset, return_inverse=True)
        point = self.guess.double().expand(len(sets), -1)
        none = point[:, :0]
        return self._state(x0, 0, problem, sets, place, none.long(), Centred(point, none, none, none, none))

    def _state(
        self, like: Tensor, k: int, problem: Any, sets: Tensor, place: Tensor, numbers: Tensor, inner: Centred
    ) -> LearnedInteriorState:
        nothing = inner.dual.new_zeros(len(sets), problem.rows.shape[1])
        dual = nothing.scatter(1, numbers, inner.dual)
        x = inner.point[place].to(like)
        solved = torch.isfinite((2 * x).square().sum(dim=1, keepdim=True))  # else no system was: x stays where it is
        x, dual = torch.where(solved, x, like), torch.where(solved, dual[place], 0.0)
        return LearnedInteriorState(x, k, dual=dual, sets=sets, place=place, numbers=numbers, inner=inner)

    def learned_step(self, problem: Any, state: LearnedInteriorState) -> LearnedInteriorState:
        k, numbers, now = state.iteration, state.numbers, state.inner
        if k in ROW_SHARES:
            numbers, now = self._choose_rows(problem, state)
        rows = _rows(problem, state.sets).gather(1, numbers[..., None].expand(-1, -1, self.size)).double()
        system, mu = NewtonSystem(rows, now), now.mean_product()
        pushes = now.dual * now.surplus, now.room * now.slack
        ahead = Centred.along(system.direction(-pushes[0], -pushes[1]))
        reached = now.moved(now.longest(ahead), ahead).mean_product()
        sigma = (self.centring[k].exp() * (reached / mu).pow(3)).clamp(*CENTRING)
        aim = (sigma * mu)[:, None]
        corrected = aim - pushes[0] - ahead.dual * ahead.surplus, aim - pushes[1] - ahead.room * ahead.slack
        by = Centred.along(system.direction(*corrected))
        after = now.moved(self.lengths[k].sigmoid() * now.longest(by), by)
        return self._state(state.x, k + 1, problem, state.sets, state.place, numbers, after)

    def compiled_steps(self, problem: Any, state: LearnedInteriorState, end: int) -> LearnedInteriorState | None:
        """From the start alone, for float32 on the CPU."""
        if state.iteration > 0 or self.size == 1 or not kernels.serves(problem.rows, self.guess):
            return None
        rows = _rows(problem, state.sets)
        counts = [self._count(problem, k) if k in ROW_SHARES else 0 for k in range(self.iterations)]
        each = torch.stack([self.centring.exp(), self.lengths.sigmoid(), self.guess.new_tensor(counts)], dim=1)
        numbers = torch.cat([(problem.C * self.log_mean.exp())[None], each.flatten()])
        inputs: kernels.Inputs = {
            "rows": (rows, rows.shape),
            "guess": (self.guess, (self.size,)),
            "numbers": (numbers, numbers.shape),
        }
        kept = [count for count in counts[:end] if count][-1]
        sizes, outputs = (*rows.shape, kept, end), ((len(rows), self.size), (len(rows), 5, kept))
        points, found = kernels.call("lmd_interior", inputs, problem.C, sizes, outputs, kind=torch.float64)
        places, *around = found.unbind(dim=1)
        inner = Centred(points, *around)
        return self._state(state.x, end, problem, state.sets, state.place, places.long(), inner)

    def _count(self, problem: Any, k: int) -> int:
        """How many rows iteration k chooses."""
        return math.ceil(ROW_SHARES[k] * self.share * problem.rows.shape[1])

    def _choose_rows(self, problem: Any, state: LearnedInteriorState) -> tuple[Tensor, Centred]:
        """The rows with the least margins now; those that are new begin with products of mu."""
        rows, now, begun = _rows(problem, state.sets), state.inner, state.iteration > 0
        margins = (rows @ now.point.to(rows.dtype)[..., None])[..., 0]
        numbers = margins.topk(self._count(problem, state.iteration), largest=False, sorted=False).indices
        first = (problem.C * self.log_mean.double().exp()).expand(len(rows))
        fresh = Centred.around(now.point, margins.double(), now.mean_product() if begun else first, problem.C)
        kept = (new.scatter(1, state.numbers, old) for new, old in zip(fresh[1:], now[1:], strict=True))
        return numbers, Centred(now.point, *(each.gather(1, numbers) for each in kept))


def _rows(problem: Any, sets: Tensor) -> Tensor:
    return problem.rows if len(sets) == len(problem.rows) else problem.rows[sets]
