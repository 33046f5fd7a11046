"""The solver interface: `init(problem, x0)` returns a state, `step(problem, state)` advances it by one iteration."""

from __future__ import annotations

import abc
import functools
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic, cast

import torch
from torch import Tensor, nn
from typing_extensions import ParamSpec, TypeVar

from lmd.core.checks import check_batch
from lmd.core.config import Configurable
from lmd.errors import CapabilityError, InputError
from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem, check_capabilities

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class State:
    """The state of a solver, which has everything that the next step needs.

    Args:
        x: The current points `(B, ...)`.
        iteration: Number of steps taken so far.
        diagnostics: Numbers per instance `(B,)`, by name, about the points at which the last step *started*.
        evaluations: Evaluations per instance `(B,)` in the last step, by name, in addition to the solver's
            `step_cost`. They are for costs that are known only after the step. A wrapper passes them on.
    """

    x: Tensor
    iteration: int = 0
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    evaluations: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def iterate(self) -> Tensor:
        """The points at which the next step starts; not `x` if a wrapper reports other points, such as means."""
        return self.x

    @property
    def known_value(self) -> Tensor | None:
        """f(x) `(B,)` if the step has evaluated it, so that `run` need not evaluate it again; otherwise None."""
        return None

    @property
    def dual_point(self) -> Tensor | None:
        """A dual point for each instance `(B, ...)`, whose duality gap certifies x; None if the solver has none."""
        return None

    @property
    def settled(self) -> Tensor | None:
        """Which instances `(B,)` no later step will move; None if unknown."""
        return None


@dataclass(frozen=True, kw_only=True)
class DualState(State):
    """A state with a dual point of a composite problem, which gives a duality gap at every iteration."""

    dual: Tensor  # p `(B, ...)`, in the domain of g*, in the shape of Kx; `(B, 0)` if the problem has no dual

    @property
    def dual_point(self) -> Tensor | None:
        return self.dual if self.dual.numel() else None


S = TypeVar("S", bound=State)
L = TypeVar("L", bound=DualState)


class Solver(nn.Module, Configurable, abc.ABC, Generic[S]):
    """An algorithm that advances by one iteration at a time; learned parameters are parameters of this module.

    A solver stores nothing about a run, so one solver can serve many runs. Training unrolls the same `step`.
    `Solver[S]` has states of type S and runs on problems that have the capabilities in `needs`.
    """

    card: Mapping[str, Any] = MappingProxyType({})  # how it was trained: JSON values by name, saved with it

    @property
    def needs(self) -> tuple[str, ...]:
        """Capabilities that the problem must have; checked before a run."""
        return ()

    geometry: Mirror | None = None  # the mirror, if steps are mirror descent and its theorems apply
    accumulates: bool = False  # whether dual points accumulate (lazy form) and `to_dual` is called only at the start
    ends_proven: bool = False  # whether it continues past its horizon with a method that converges from any point
    stays_in_domain: ClassVar[bool] = False  # whether its points lie in the domain of every problem that it can run on

    def keeps_to_domain(self, problem: Problem) -> bool:
        """Return whether all points of the solver lie in the problem's domain; `run` requires this."""
        return self.stays_in_domain or problem.domain is None

    resume_cost: ClassVar[Mapping[str, int]] = {}  # evaluations per instance in `resume`, by name

    @property
    def init_cost(self) -> dict[str, int]:
        """Evaluations per instance in `init`, by name, such as value, subgradient, operator or to_dual."""
        return {}

    @property
    @abc.abstractmethod
    def step_cost(self) -> dict[str, int]:
        """Evaluations per instance in one `step`, by name."""

    @property
    def horizon(self) -> int | None:
        """The number of iterations that the solver was trained for, its `iterations`; None if there is none."""
        return getattr(self, "iterations", None) or None

    @abc.abstractmethod
    def init(self, problem: Any, x0: Tensor) -> S:
        """Return the state before the first step, at the starting points x0 `(B, ...)`."""

    @abc.abstractmethod
    def step(self, problem: Any, state: S) -> S:
        """Return the state one iteration later, without changing `state`."""

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> S:
        """Return a state at points and feasible dual points of an earlier run, if the solver supports this."""
        accepted = "one that can, such as FGP, PDHG or a learned solver that ends in them"
        raise CapabilityError("solver", f"{type(self).__name__}, which cannot start from a dual point", accepted)

    def restart_from(self, problem: Any, state: S, x0: Tensor, which: Tensor, back: Tensor) -> S | None:
        """Return the state with the instances in `which` `(B,)` restarted: at x0 those that are also in `back` `(B,)`,
        all others at their current answers. Return None if the solver does not support restarts."""
        return None

    def advance(self, problem: Any, state: S, count: int) -> S:
        """Return the state `count` iterations later; solvers override this if they can skip intermediate results.

        The `evaluations` of the state are the sums over all steps.
        """
        beyond: dict[str, Tensor] = {}
        for _ in range(count):
            state = self.step(problem, state)
            beyond = add_evaluations(beyond, state.evaluations)
        return replace(state, evaluations=beyond) if beyond else state


def delegate(path: str) -> Any:
    """Return a property that reads an attribute of a component: `needs = delegate("solver.needs")`."""
    return property(operator.attrgetter(path))


class Wrapper(Solver[S]):
    """A solver that changes the behaviour of another solver and delegates the rest to it.

    Args:
        solver: The inner solver.
    """

    needs = delegate("solver.needs")
    init_cost = delegate("solver.init_cost")
    step_cost = delegate("solver.step_cost")
    horizon = delegate("solver.horizon")
    ends_proven = delegate("solver.ends_proven")

    def __init__(self, solver: Solver[Any]) -> None:
        super().__init__()
        if not isinstance(solver, Solver):
            raise InputError("solver", type(solver).__name__, "an lmd.solvers.Solver")
        self.solver = solver

    def keeps_to_domain(self, problem: Problem) -> bool:
        return self.solver.keeps_to_domain(problem)

    def init(self, problem: Any, x0: Tensor) -> S:
        return self.begin(problem, x0, self.solver.init(problem, x0))

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> S:
        return self.begin(problem, x, self.solver.resume(problem, x, dual))

    def begin(self, problem: Any, x: Tensor, inner: Any) -> S:
        """Return the state at points x `(B, ...)` for the initial state `inner` of the inner solver."""
        return cast(S, inner)

    def step(self, problem: Any, state: S) -> S:
        """Return the state after one step of the inner solver."""
        return cast(S, self.solver.step(problem, state))


@dataclass(frozen=True, kw_only=True)
class TailState(DualState):
    """The state after the learned iterations, which contains the state of the classical method."""

    inner: DualState


class LearnedPrefix(Solver[L | TailState]):
    """N learned iterations, followed by a convergent classical method.

    `step_cost` is the cost of a learned step. After a classical step, `evaluations` holds the difference in cost.
    """

    ends_proven = True

    iterations: int  # N
    tail: Solver[Any]  # the convergent method

    def keeps_to_domain(self, problem: Problem) -> bool:
        return self.tail.keeps_to_domain(problem)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> TailState:
        """Start after the learned iterations, because they are trained for cold starts."""
        return TailState(x, self.iterations, dual=dual, inner=self.tail_at(problem, x, dual))

    def step(self, problem: Any, state: L | TailState) -> L | TailState:
        if not isinstance(state, TailState) and state.iteration < self.iterations:
            return self.learned_step(problem, state)
        inner = state.inner if isinstance(state, TailState) else self.tail_at(problem, state.x, state.dual)
        inner = self.tail.step(problem, inner)
        cost = Counter(self.tail.step_cost)  # the difference to `step_cost`, which may be negative
        cost.update(self.tail.resume_cost if state.iteration == self.iterations else {})
        cost.subtract(self.step_cost)
        spent = add_evaluations(full_counts(cost, inner.x), inner.evaluations)
        return TailState(inner.x, state.iteration + 1, evaluations=spent, dual=inner.dual, inner=inner)

    @abc.abstractmethod
    def learned_step(self, problem: Any, state: L) -> L:
        """Return the state after one learned iteration."""

    def tail_at(self, problem: Any, x: Tensor, dual: Tensor) -> DualState:
        """Return the state of the classical method at points and dual points, learned or from an earlier run."""
        return cast(DualState, self.tail.resume(problem, x, dual))


def check_fit(solver: Solver[Any], problem: Problem, x0: Tensor) -> None:
    """Raise an error unless the solver can run on the problem from x0."""
    check_start(problem, x0)
    check_solver(solver, problem)


def check_start(problem: Problem, x0: Tensor) -> Tensor:
    """Return x0 `(B, ...)` if it is a valid start for the problem, or raise an error."""
    problem.check_start(check_batch("x0", x0))
    return x0 if problem.domain is None else problem.domain.check("x0", x0)


def in_full_precision(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Wrap a function so that `torch.autocast` is off inside it: solvers do not converge in reduced precision."""

    @functools.wraps(function)
    def call(*given: Given.args, **named: Given.kwargs) -> Answer:
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return function(*given, **named)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*given, **named)

    return call


def check_solver(solver: Solver[Any], problem: Problem) -> None:
    """Raise an error unless the problem has what the solver needs and the solver stays in the problem's domain."""
    if not isinstance(solver, Solver):
        raise InputError("solver", type(solver).__name__, "an lmd.solvers.Solver")
    first = next(solver.parameters(), None)
    if first is not None and first.is_meta:
        raise InputError("solver", "weights on the meta device", "a solver whose weights hold numbers")
    check_capabilities(problem, solver.needs, type(solver).__name__)
    if problem.domain is not None and not solver.keeps_to_domain(problem):
        given = f"{type(solver).__name__}, which may leave the problem's domain"
        accepted = "one that keeps to it, such as GradientDescent, or MirrorDescent with a mirror on that domain"
        raise CapabilityError("solver", f"{given} ({problem.domain.description})", accepted)


def add_evaluations(*counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum of evaluation counts, name by name."""
    total: dict[str, Tensor] = {}
    for name, count in (item for each in counts for item in each.items()):
        total[name] = total[name] + count if name in total else count
    return total


def full_counts(cost: Mapping[str, int], x: Tensor) -> dict[str, Tensor]:
    """Return equal evaluation counts `(B,)` for all instances of x `(B, ...)`, by name; counts of 0 are left out."""
    return {name: x.new_full((len(x),), count, dtype=torch.int64) for name, count in cost.items() if count}
