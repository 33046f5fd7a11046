"""Means over the last iterations in place of the last one: for methods that circle around their limit."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import DualState, Solver, State, Wrapper

FIRST, GROWTH, WINDOWS = 8, 1.5, 45
"""The iteration with which the first window ends, how many times as many each later one ends with, and how many."""

ENDS = tuple(itertools.accumulate(range(WINDOWS), lambda end, _: int(GROWTH * end), initial=FIRST))
"""The iterations that windows end with."""


class IterateSums(NamedTuple):
    """Sums over iterations."""

    x: Tensor
    """Of the points `(B, ...)`."""

    dual: Tensor
    """Of the dual points."""

    done: int
    """How many iterations."""

    def plus(self, other: IterateSums) -> IterateSums:
        """Over both."""
        return IterateSums(self.x + other.x, self.dual + other.dual, self.done + other.done)


@dataclass(frozen=True, kw_only=True)
class AveragedState(DualState):
    """The means, the state of the solver inside, and sums over the last whole window and over the present one."""

    inner: State

    before: IterateSums
    """Over the window before."""

    now: IterateSums
    """Over the present one."""

    @property
    def iterate(self) -> Tensor:
        return self.inner.iterate


class Averaged(Wrapper[AveragedState]):
    """The means of x_j and p_j over the last third of the iterations or more, in place of x_k and p_k.

    Saddle-point methods circle around their limit where it is no corner, and the more so the less convex a problem is;
    the middle of the circle is nearer, and its duality gap is smaller by far. Windows end with iterations 8, 12, 18 and
    so on, each 1.5 times the one before, and the means are over the present window and the one before it. Points stay
    in the domain and dual points feasible, for both sets are convex, and what converges does so in the mean of its last
    part. Numbers that are learned are learned for the means.

    Args:
        solver: A solver that keeps dual points, such as `RelaxedPDHG`.

    >>> import lmd
    >>> from lmd.solvers import RelaxedPDHG
    >>> noisy = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    >>> problem = lmd.problems.TVModel(lmd.terms.Absolute(noisy), 0.6, box=(0.0, 1.0))
    >>> rounds = [lmd.solve(problem, 1e-3, solver=each).iterations for each in (Averaged(RelaxedPDHG()), RelaxedPDHG())]
    >>> bool(2 * rounds[0] < rounds[1])
    True
    """

    @property
    def init_cost(self) -> dict[str, int]:
        return self.solver.init_cost

    @property
    def step_cost(self) -> dict[str, int]:
        return self.solver.step_cost

    @property
    def first_look(self) -> int | None:
        """The end of the last window up to the horizon: means are best at ends."""
        learned = self.solver.horizon
        return None if learned is None else max((end for end in ENDS if end <= learned), default=learned)

    def init(self, problem: Any, x0: Tensor) -> AveragedState:
        return self._begun(self.solver.init(problem, x0))

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> AveragedState:
        return self._begun(self.solver.resume(problem, x, dual))

    def _begun(self, inner: State) -> AveragedState:
        none = _nothing(inner)
        dual = none.dual if inner.dual_point is None else inner.dual_point
        return AveragedState(inner.x, inner.iteration, dual=dual, inner=inner, before=none, now=none)

    def step(self, problem: Problem, state: AveragedState) -> AveragedState:
        return self.advance(problem, state, 1)

    def advance(self, problem: Any, state: AveragedState, count: int) -> AveragedState:
        inner, before, now = state.inner, state.before, state.now
        end = state.iteration + count
        while inner.iteration < end:
            until = min(end, ENDS[bisect.bisect_right(ENDS, inner.iteration)])
            inner, more = self._summed(problem, inner, until - inner.iteration)
            now = now.plus(more)
            if until in ENDS:
                before, now = now, _nothing(inner)
        whole = before.plus(now)
        x, dual = whole.x / whole.done, problem.project_dual(whole.dual / whole.done)
        x = x if problem.domain is None else problem.domain.nearest(x)  # rounding would lead out of it
        return AveragedState(x, end, dual=dual, inner=inner, before=before, now=now)

    def _summed(self, problem: Any, inner: Any, count: int) -> tuple[Any, IterateSums]:
        """So many iterations, and the sums over what they end with: by the solver itself, where it can."""
        summed = getattr(self.solver, "summed", None)
        return add_up(self.solver, problem, inner, count) if summed is None else summed(problem, inner, count)


def _nothing(state: State) -> IterateSums:
    if state.dual_point is None:
        raise InputError("solver", f"one whose {type(state).__name__} has no dual point", "one that keeps them")
    return IterateSums(torch.zeros_like(state.x), torch.zeros_like(state.dual_point), 0)


def add_up(solver: Solver[Any], problem: Any, state: Any, count: int) -> tuple[Any, IterateSums]:
    """So many steps of a solver, and the sums over what they end with."""
    sums = _nothing(state)
    for _ in range(count):
        state = solver.step(problem, state)
        sums = sums.plus(IterateSums(state.x, state.dual_point, 1))
    return state, sums
