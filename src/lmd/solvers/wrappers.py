"""Solvers around a solver: the best point so far, no worse than the start, means, learned starts, sequences."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.core.checks import check_count, check_same_kind
from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem
from lmd.solvers.base import DualState, Solver, State, Wrapper, add_evaluations, full_counts
from lmd.solvers.initialisers import Initialiser
from lmd.solvers.tracking import take
from lmd.terms.base import per_instance

# The iterations that windows of `Averaged` end with, each 1.5 times the one before
WINDOW_ENDS = tuple(itertools.accumulate(range(45), lambda end, _: int(1.5 * end), initial=8))


@dataclass(frozen=True, kw_only=True)
class WrapperState(State):
    """The state of the solver inside, whose iterates and dual points these are."""

    inner: State

    @property
    def iterate(self) -> Tensor:
        return self.inner.iterate

    @property
    def dual_point(self) -> Tensor | None:
        return self.inner.dual_point


@dataclass(frozen=True, kw_only=True)
class BestState(WrapperState):
    """The best points so far and their values."""

    value: Tensor

    @property
    def known_value(self) -> Tensor:
        return self.value


class BestSoFar(Wrapper[BestState]):
    """The iterate of the lowest value so far, instance by instance, at the cost of one value per iteration.

    Subgradient methods do not descend at every step, and their theorems are about the best iterate.

    Args:
        solver: The solver inside.
    """

    @property
    def init_cost(self) -> dict[str, int]:
        return _plus_value(self.solver.init_cost)

    @property
    def step_cost(self) -> dict[str, int]:
        return _plus_value(self.solver.step_cost)

    @property
    def geometry(self) -> Mirror | None:
        return self.solver.geometry

    @property
    def accumulates(self) -> bool:
        return self.solver.accumulates

    def init(self, problem: Problem, x0: Tensor) -> BestState:
        inner = self.solver.init(problem, x0)
        return BestState(inner.x, inner=inner, value=problem.value(inner.x))

    def step(self, problem: Problem, state: BestState) -> BestState:
        inner = self.solver.step(problem, state.inner)
        value = problem.value(inner.x)
        better = value < state.value  # a NaN is never better
        x, value = take(better, inner.x, state.x), take(better, value, state.value)
        return BestState(x, inner.iteration, inner.diagnostics, inner.evaluations, inner=inner, value=value)


@dataclass(frozen=True, kw_only=True)
class NoWorseState(BestState):
    """The points of the solver inside, or the start where they have higher values."""

    start: Tensor
    start_value: Tensor


class NoWorseThanStart(Wrapper[NoWorseState]):
    """x_k of the solver inside where f(x_k) <= f(x_0), and x_0 elsewhere, instance by instance.

    For solvers with `ends_proven`; `lmd.guarantees.Safeguard` is for all others. The answer depends on x_k and x_0
    alone, so `advance` is as fast as that of the solver inside, and evaluates one value at the end.

    Args:
        solver: The solver inside.

    >>> import lmd
    >>> wild = lmd.solvers.GradientDescent(3.0)
    >>> lmd.run(NoWorseThanStart(wild), lambda x: (x**2).sum(dim=1), torch.ones(1, 3), 20).values.tolist()
    [3.0]
    """

    @property
    def init_cost(self) -> dict[str, int]:
        return _plus_value(self.solver.init_cost)

    def init(self, problem: Problem, x0: Tensor) -> NoWorseState:
        inner, value = self.solver.init(problem, x0), problem.value(x0)
        return NoWorseState(x0, inner=inner, value=value, start=x0, start_value=value)

    def resume(self, problem: Problem, x: Tensor, dual: Tensor) -> NoWorseState:
        inner, value = self.solver.resume(problem, x, dual), problem.value(x)
        return NoWorseState(x, inner.iteration, inner=inner, value=value, start=x, start_value=value)

    def restart_from(
        self, problem: Problem, state: NoWorseState, x0: Tensor, which: Tensor, back: Tensor
    ) -> NoWorseState | None:
        inner = self.solver.restart_from(problem, state.inner, x0, which, back)
        return None if inner is None else replace(state, inner=inner)

    def step(self, problem: Problem, state: NoWorseState) -> NoWorseState:
        return self.advance(problem, state, 1)

    def advance(self, problem: Problem, state: NoWorseState, count: int) -> NoWorseState:
        inner, extra = self.solver.advance(problem, state.inner, count), dict[str, Tensor]()
        value = inner.known_value
        if value is None:
            value, extra = problem.value(inner.x), full_counts({"value": 1}, inner.x)
        lower = value <= state.start_value  # a NaN never is
        return replace(
            state,
            x=take(lower, inner.x, state.start),
            iteration=inner.iteration,
            diagnostics=inner.diagnostics,
            evaluations=add_evaluations(inner.evaluations, extra),
            inner=inner,
            value=take(lower, value, state.start_value),
        )


class IterateSums(NamedTuple):
    """Sums of x `(B, ...)` and of dual points over so many `iterations`, of all instances or of each `(B,)`."""

    x: Tensor
    dual: Tensor
    iterations: int | Tensor

    @classmethod
    def none(cls, state: State) -> IterateSums:
        """Sums over no iterations."""
        if state.dual_point is None:
            raise InputError("solver", f"one whose {type(state).__name__} has no dual point", "one that keeps them")
        return cls(torch.zeros_like(state.x), torch.zeros_like(state.dual_point), 0)

    def plus(self, other: IterateSums) -> IterateSums:
        return IterateSums(self.x + other.x, self.dual + other.dual, self.iterations + other.iterations)

    def without(self, which: Tensor) -> IterateSums:
        """The same over no iterations for the instances in `which` `(B,)`."""
        x, dual = (take(which, torch.zeros_like(each), each) for each in (self.x, self.dual))
        return IterateSums(x, dual, torch.where(which, 0, self.iterations))


def sum_steps(solver: Solver[Any], problem: Any, state: Any, count: int) -> tuple[Any, IterateSums]:
    """The state `count` steps later, and the sums over the iterates.

    Distances to the first point are added up: sums of points that are far from 0 lose their differences.
    """
    x, dual, sums = state.x, state.dual_point, IterateSums.none(state)
    for _ in range(count):
        state = solver.step(problem, state)
        sums = sums.plus(IterateSums(state.x - x, state.dual_point - dual, 1))
    return state, sums.plus(IterateSums(count * x, count * dual, 0))


@dataclass(frozen=True, kw_only=True)
class AveragedState(DualState):
    """The means, the inner solver's state, and the sums from which the means are computed."""

    inner: State
    previous: IterateSums  # over the last whole window
    current: IterateSums  # over the present one

    @property
    def iterate(self) -> Tensor:
        return self.inner.iterate


class Averaged(Wrapper[AveragedState]):
    """The means of x_j and p_j over the last third of the iterations or more, in place of x_k and p_k.

    Saddle-point methods circle around their limit; the mean is nearer to it, and its duality gap is far smaller.
    Windows end with iterations 8, 12, 18 and so on; means are over the present window and the one before it. Points
    stay in the domain and dual points feasible, as both sets are convex.

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

    def init(self, problem: Any, x0: Tensor) -> AveragedState:
        return self._begin(self.solver.init(problem, x0))

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> AveragedState:
        return self._begin(self.solver.resume(problem, x, dual))

    def _begin(self, inner: Any) -> AveragedState:
        none = IterateSums.none(inner)
        return AveragedState(inner.x, inner.iteration, dual=inner.dual_point, inner=inner, previous=none, current=none)

    def step(self, problem: Problem, state: AveragedState) -> AveragedState:
        return self.advance(problem, state, 1)

    def advance(self, problem: Any, state: AveragedState, count: int) -> AveragedState:
        inner, previous, current = state.inner, state.previous, state.current
        end = state.iteration + count
        while inner.iteration < end:
            until = min(end, WINDOW_ENDS[bisect.bisect_right(WINDOW_ENDS, inner.iteration)])
            own = getattr(self.solver, "sum_steps", functools.partial(sum_steps, self.solver))
            inner, sums = own(problem, inner, until - inner.iteration)
            current = current.plus(sums)
            if until in WINDOW_ENDS:
                previous, current = current, IterateSums.none(inner)
        total = previous.plus(current)
        x, dual = (each / per_instance(total.iterations, each) for each in (total.x, total.dual))
        dual = problem.project_dual(dual)
        x = x if problem.domain is None else problem.domain.nearest(x)  # rounding would lead out of it
        return AveragedState(x, end, dual=dual, inner=inner, previous=previous, current=current)

    def restart_from(
        self, problem: Any, state: AveragedState, x0: Tensor, which: Tensor, back: Tensor
    ) -> AveragedState | None:
        """Restart from the means, which are closer to the limit than the iterates that circle around it."""
        move = getattr(self.solver, "move_to", None)
        if move is None:
            return None
        x, dual = take(back, x0, state.x), take(back, torch.zeros_like(state.dual), state.dual)
        inner = move(problem, state.inner, x, dual, which, back)
        return replace(state, inner=inner, previous=state.previous.without(which), current=state.current.without(which))


class WithInitialiser(Wrapper[State]):
    """A solver that begins at learned points, and possibly dual points, whatever x0 is.

    Args:
        solver: The solver inside.
        start: What gives the points.
        dual: What gives the dual points; None leaves them to the solver.
    """

    def __init__(self, solver: Solver[Any], start: Initialiser, dual: Initialiser | None = None) -> None:
        super().__init__(solver)
        for name, given in (("start", start), ("dual", dual)):
            if not isinstance(given, Initialiser) and not (name == "dual" and given is None):
                raise InputError(name, type(given).__name__, "an lmd.solvers.initialisers.Initialiser")
        self.start, self.dual = start, dual

    def init(self, problem: Any, x0: Tensor) -> State:
        check_same_kind("x0", x0, "the solver's start", self.start.unit)
        dual = None if self.dual is None else self.dual(problem, len(x0))
        return self.begin(problem, self.start(problem, len(x0)), dual)

    def step(self, problem: Any, state: State) -> State:
        return self.solver.step(problem, state)

    def advance(self, problem: Any, state: State, count: int) -> State:
        return self.solver.advance(problem, state, count)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> State:
        return self.solver.resume(problem, x, dual)

    def begin(self, problem: Any, x: Tensor, dual: Tensor | None = None) -> State:
        """The state before the first step, at what the initialisers return."""
        x = x if problem.domain is None else problem.domain.nearest(x)
        if dual is None:
            return self.solver.init(problem, x)
        return replace(self.solver.resume(problem, x, problem.project_dual(dual)), iteration=0)


@dataclass(frozen=True, kw_only=True)
class SequentialState(WrapperState):
    """The state of the solver whose turn it is."""

    start: Tensor  # where the first solver began, and the second one does if the first one made it worse

    @property
    def known_value(self) -> Tensor | None:
        return self.inner.known_value


class Sequential(Wrapper[SequentialState]):
    """The iterations that a solver was trained for, then another one, from the better of where those began and ended.

    So what is proven of the second solver from any point holds of both, from iteration N on.

    Args:
        solver: One that was trained for a number of iterations.
        rest: The one that goes on.
    """

    ends_proven = True

    def __init__(self, solver: Solver[Any], rest: Solver[Any]) -> None:
        super().__init__(solver)
        if not isinstance(rest, Solver) or solver.horizon is None:
            given = type(rest).__name__ if solver.horizon else f"{type(solver).__name__} without a number of iterations"
            raise InputError("rest", given, "a solver, after one that was trained for a number of iterations")
        self.rest, self.iterations = rest, solver.horizon

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.solver.needs, *self.rest.needs)

    def keeps_to_domain(self, problem: Problem) -> bool:
        return self.solver.keeps_to_domain(problem) and self.rest.keeps_to_domain(problem)

    def init(self, problem: Problem, x0: Tensor) -> SequentialState:
        inner = self.solver.init(problem, x0)
        return SequentialState(inner.x, inner=inner, start=inner.x)

    def step(self, problem: Problem, state: SequentialState) -> SequentialState:
        cost: Counter[str] = Counter()  # beyond that of a step of the first solver
        if state.iteration < self.iterations:
            inner = self.solver.step(problem, state.inner)
        else:
            begin = state.inner
            cost.update(self.rest.step_cost)
            cost.subtract(self.solver.step_cost)
            if state.iteration == self.iterations:
                lower = problem.value(state.x) <= problem.value(state.start)  # never where there is no value
                begin = self.rest.init(problem, take(lower, state.x, state.start))
                cost.update({"value": 2})
                cost.update(self.rest.init_cost)
            inner = self.rest.step(problem, begin)
        spent = add_evaluations(full_counts(cost, state.x), inner.evaluations)
        return SequentialState(inner.x, state.iteration + 1, inner.diagnostics, spent, inner=inner, start=state.start)


class Stochastic(Wrapper[State]):
    """Runs a solver whose every step sees `minibatch` of the problem's terms, drawn anew without replacement.

    The terms of iteration k depend on `seed` and k alone and are the same for all instances. With `LazyMirrorDescent`
    it is LSMD, with `AcceleratedStochasticMirrorDescent` it is LASMD.

    Args:
        solver: The solver inside.
        minibatch: Terms per step.
        seed: What the terms are drawn from, with the number of the iteration.

    >>> import lmd
    >>> problem, x0 = lmd.problems.LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
    >>> solver = Stochastic(lmd.solvers.GradientDescent(0.02), minibatch=1)
    >>> bool((lmd.run(solver, problem, x0, iterations=50).values < problem.value(x0)).all())
    True
    """

    ends_proven = False  # no: theorems are about whole subgradients

    def __init__(self, solver: Solver[Any], minibatch: int, seed: int = 0) -> None:
        super().__init__(solver)
        self.minibatch = check_count("minibatch", minibatch)
        self.seed = check_count("seed", seed, least=0)

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.solver.needs, "terms")

    @property
    def step_cost(self) -> dict[str, int]:
        """The cost of the wrapped solver, with its subgradients counted as minibatch subgradients."""
        cost = dict(self.solver.step_cost)
        if "subgradient" in cost:
            cost["minibatch_subgradient"] = cost.pop("subgradient")
        return cost

    def init(self, problem: Any, x0: Tensor) -> State:
        if self.minibatch > problem.terms:
            raise InputError("minibatch", self.minibatch, f"at most {problem.terms}, the number of the problem's terms")
        return self.solver.init(problem, x0)

    def step(self, problem: Any, state: State) -> State:
        return self.solver.step(problem.minibatch(self.draw(problem, state)), state)

    def draw(self, problem: Any, state: State) -> Tensor:
        """The indices of this iteration's terms `(minibatch,)`."""
        # PyTorch's generator on the CPU takes the low 32 bits; odd factors spread seeds and iterations over them.
        generator = torch.Generator().manual_seed((0x9E3779B1 * self.seed + 0x85EBCA6B * state.iteration) % 2**32)
        order = torch.randperm(problem.terms, generator=generator, device=generator.device)
        return order[: self.minibatch].to(state.x.device)


def _plus_value(cost: Mapping[str, int]) -> dict[str, int]:
    return {**cost, "value": cost.get("value", 0) + 1}
