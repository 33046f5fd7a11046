"""Solvers that wrap a solver: best point so far, no worse than the start, averages, learned starts, sequences."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.core.checks import check_count, check_same_kind
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import DualState, Solver, State, Wrapper, add_evaluations, delegate, full_counts
from lmd.solvers.initialisers import MeanInitialiser
from lmd.terms.base import per_instance, take

# The last iterations of the windows of `Averaged`; each is 1.5 times the one before
WINDOW_ENDS = tuple(itertools.accumulate(range(45), lambda end, _: int(1.5 * end), initial=8))


@dataclass(frozen=True, kw_only=True)
class WrapperState(State):
    """A state that takes iterates, dual points and values from the state of the inner solver."""

    inner: State
    iterate = delegate("inner.iterate")
    dual_point = delegate("inner.dual_point")
    known_value = delegate("inner.known_value")


@dataclass(frozen=True, kw_only=True)
class BestState(WrapperState):
    """Points with their values, and the rival point and value with which the next iterate is compared."""

    value: Tensor
    rival: tuple[Tensor, Tensor]
    known_value = delegate("value")


class NoWorseThanStart(Wrapper[BestState]):
    """A solver whose answer is x_k of the inner solver if f(x_k) <= f(x_0), otherwise x_0, for each instance.

    This is for solvers with `ends_proven`; for all others there is `lmd.guarantees.Safeguard`. The answer depends only
    on x_k and x_0, so `advance` calls `advance` of the inner solver and evaluates one value at the end.

    >>> import lmd
    >>> wild = lmd.solvers.GradientDescent(3.0)
    >>> lmd.run(NoWorseThanStart(wild), lambda x: (x**2).sum(dim=1), torch.ones(1, 3), 20).values.tolist()
    [3.0]
    """

    @property
    def init_cost(self) -> dict[str, int]:
        cost = self.solver.init_cost
        return {**cost, "value": cost.get("value", 0) + 1}

    def begin(self, problem: Problem, x: Tensor, inner: State) -> BestState:
        value = problem.value(x)
        return BestState(x, inner.iteration, inner=inner, value=value, rival=(x, value))

    def restart_from(
        self, problem: Problem, state: BestState, x0: Tensor, which: Tensor, back: Tensor
    ) -> BestState | None:
        inner = self.solver.restart_from(problem, state.inner, x0, which, back)
        return None if inner is None else replace(state, inner=inner)

    def step(self, problem: Problem, state: BestState) -> BestState:
        return NoWorseThanStart.advance(self, problem, state, 1)

    def advance(self, problem: Problem, state: BestState, count: int) -> BestState:
        inner = self.solver.advance(problem, state.inner, count)
        value, evaluations = inner.known_value, inner.evaluations
        if value is None:
            value = problem.value(inner.x)
            evaluations = add_evaluations(evaluations, full_counts({"value": 1}, inner.x))
        x, lowest = state.rival
        lower = value <= lowest  # False for NaN
        x, value = take(lower, inner.x, x), take(lower, value, lowest)
        return BestState(
            x, inner.iteration, inner.diagnostics, evaluations, inner=inner, value=value, rival=state.rival
        )


class BestSoFar(NoWorseThanStart):
    """A solver whose answer for each instance is the iterate with the lowest value. It evaluates one value per step.

    Subgradient methods do not descend in every step, and their theorems are about the best iterate.
    """

    geometry = delegate("solver.geometry")
    accumulates = delegate("solver.accumulates")

    def step(self, problem: Problem, state: BestState) -> BestState:
        state = super().step(problem, state)
        return replace(state, rival=(state.x, state.value))

    def advance(self, problem: Problem, state: BestState, count: int) -> BestState:
        return Wrapper.advance(self, problem, state, count)


class IterateSums(NamedTuple):
    """Sums of x `(B, ...)` and of dual points over `iterations` iterations, a number or `(B,)`."""

    x: Tensor
    dual: Tensor
    iterations: int | Tensor

    @classmethod
    def none(cls, state: State) -> IterateSums:
        """Return sums over no iterations."""
        if state.dual_point is None:
            raise InputError("solver", f"one whose {type(state).__name__} has no dual point", "one that keeps them")
        return cls(torch.zeros_like(state.x), torch.zeros_like(state.dual_point), 0)

    def plus(self, other: IterateSums) -> IterateSums:
        return IterateSums(self.x + other.x, self.dual + other.dual, self.iterations + other.iterations)

    def without(self, which: Tensor) -> IterateSums:
        """Return the sums, reset to 0 iterations for the instances in `which` `(B,)`."""
        x, dual = (take(which, torch.zeros_like(each), each) for each in (self.x, self.dual))
        return IterateSums(x, dual, torch.where(which, 0, self.iterations))


def sum_steps(solver: Solver[Any], problem: Any, state: Any, count: int) -> tuple[Any, IterateSums]:
    """Return the state `count` steps later, and the sums over the iterates.

    Differences from the first point are summed, because sums of points far from 0 would lose digits.
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
    previous: IterateSums  # over the last complete window
    current: IterateSums  # over the current window
    iterate = delegate("inner.iterate")


class Averaged(Wrapper[AveragedState]):
    """A solver whose answer is the means of points and dual points over at least the last third of the iterations.

    Saddle-point methods circle around their limit. The mean is nearer to the limit, and its duality gap is far smaller.
    Windows end with iterations 8, 12, 18 and so on; means are over the current and the previous window. Means stay in
    the domain and dual means are feasible, because both sets are convex.

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

    def begin(self, problem: Any, x: Tensor, inner: Any) -> AveragedState:
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
        dual = problem.g.project(dual)
        x = x if problem.domain is None else problem.domain.nearest(x)  # rounding may leave the domain
        return AveragedState(x, end, dual=dual, inner=inner, previous=previous, current=current)

    def restart_from(
        self, problem: Any, state: AveragedState, x0: Tensor, which: Tensor, back: Tensor
    ) -> AveragedState | None:
        """Restart from the means, which are closer to the limit than the iterates."""
        move = getattr(self.solver, "move_to", None)
        if move is None:
            return None
        x, dual = take(back, x0, state.x), take(back, torch.zeros_like(state.dual), state.dual)
        inner = move(problem, state.inner, x, dual, which, back)
        return replace(state, inner=inner, previous=state.previous.without(which), current=state.current.without(which))


class WithInitialiser(Wrapper[State]):
    """A solver that starts at learned points, and optionally at learned dual points, instead of x0.

    Args:
        start: Initialiser of the points.
        dual: Initialiser of the dual points; None is the start of the inner solver.
    """

    def __init__(self, solver: Solver[Any], start: MeanInitialiser, dual: MeanInitialiser | None = None) -> None:
        super().__init__(solver)
        for name, given in (("start", start), ("dual", dual)):
            if not isinstance(given, MeanInitialiser) and not (name == "dual" and given is None):
                raise InputError(name, type(given).__name__, "an lmd.solvers.initialisers.MeanInitialiser")
        self.start, self.dual = start, dual

    def init(self, problem: Any, x0: Tensor) -> State:
        check_same_kind("x0", x0, "the solver's start", self.start.unit)
        dual = None if self.dual is None else self.dual(problem, len(x0))
        return self.begin_at(problem, self.start(problem, len(x0)), dual)

    def advance(self, problem: Any, state: State, count: int) -> State:
        return self.solver.advance(problem, state, count)

    def begin_at(self, problem: Any, x: Tensor, dual: Tensor | None = None) -> State:
        """Return the state before the first step, at the points and dual points of the initialisers."""
        x = x if problem.domain is None else problem.domain.nearest(x)
        if dual is None:
            return self.solver.init(problem, x)
        return replace(self.solver.resume(problem, x, problem.g.project(dual)), iteration=0)


@dataclass(frozen=True, kw_only=True)
class SequentialState(WrapperState):
    """A state that wraps the state of the active solver."""

    start: Tensor  # start of the first solver; the second one also starts here if the first one raised the value


class Sequential(Wrapper[SequentialState]):
    """Run a solver for the N iterations it was trained for, then another one from the better of x_0 and x_N.

    Convergence theorems of the second solver that hold from any start therefore hold from iteration N on.

    Args:
        solver: A solver that was trained for a number of iterations.
        rest: The solver that follows.
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

    def begin(self, problem: Problem, x: Tensor, inner: State) -> SequentialState:
        return SequentialState(inner.x, inner.iteration, inner=inner, start=inner.x)

    def step(self, problem: Problem, state: SequentialState) -> SequentialState:
        solver, inner = (self.solver if state.iteration < self.iterations else self.rest), state.inner
        cost = Counter(solver.step_cost)  # the difference to the step cost of the first solver
        cost.subtract(self.solver.step_cost)
        if state.iteration == self.iterations:
            lower = problem.value(state.x) <= problem.value(state.start)  # False for NaN
            inner = self.rest.init(problem, take(lower, state.x, state.start))
            cost.update({"value": 2})
            cost.update(self.rest.init_cost)
        inner = solver.step(problem, inner)
        spent = add_evaluations(full_counts(cost, state.x), inner.evaluations)
        return SequentialState(inner.x, state.iteration + 1, inner.diagnostics, spent, inner=inner, start=state.start)


class Stochastic(Wrapper[State]):
    """Run a solver whose steps each use `minibatch` of the problem's terms, drawn without replacement in every step.

    The terms of iteration k depend only on `seed` and k and are the same for all instances. With `LazyMirrorDescent`
    this is LSMD, with `AcceleratedStochasticMirrorDescent` it is LASMD.

    Args:
        minibatch: Number of terms per step.
        seed: Seed of the random draws, together with the iteration number.

    >>> import lmd
    >>> problem, x0 = lmd.problems.LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
    >>> solver = Stochastic(lmd.solvers.GradientDescent(0.02), minibatch=1)
    >>> bool((lmd.run(solver, problem, x0, iterations=50).values < problem.value(x0)).all())
    True
    """

    ends_proven = False  # the theorems are about full subgradients

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
        return super().init(problem, x0)

    def step(self, problem: Any, state: State) -> State:
        return self.solver.step(problem.minibatch(self.draw(problem, state)), state)

    def draw(self, problem: Any, state: State) -> Tensor:
        """Return the indices of this iteration's terms `(minibatch,)`."""
        # PyTorch's CPU generator uses the low 32 bits; odd factors spread seeds and iterations over them.
        generator = torch.Generator().manual_seed((0x9E3779B1 * self.seed + 0x85EBCA6B * state.iteration) % 2**32)
        order = torch.randperm(problem.terms, generator=generator, device=generator.device)
        return order[: self.minibatch].to(state.x.device)
