"""What a solver is: `init(problem, x0)` makes a state, `step(problem, state)` advances it by one iteration."""

from __future__ import annotations

import abc
import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic

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
    """Where a solver is: everything it needs for the next step and nothing else.

    Args:
        x: The current points `(B, ...)`.
        iteration: How many steps have been taken.
        diagnostics: Numbers per instance `(B,)` that the step learned about the points it *started* from.
        evaluations: Evaluations per instance `(B,)` in the step that led here, by name, beyond the solver's
            `step_cost`: for a step whose cost is known only once it is taken. A wrapper passes them on.
    """

    x: Tensor
    iteration: int = 0
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    evaluations: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def iterate(self) -> Tensor:
        """The points the next step starts from: `x`, unless a wrapper answers with other points than it works on."""
        return self.x

    @property
    def known_value(self) -> Tensor | None:
        """f(x) `(B,)`, where the step had to evaluate it: then `run` need not do it again for the record."""
        return None

    @property
    def dual_point(self) -> Tensor | None:
        """A dual point for each instance `(B, ...)`, where the solver keeps one: its duality gap certifies x."""
        return None

    @property
    def settled(self) -> Tensor | None:
        """Which instances `(B,)` stay where they are, whatever steps follow; None where a step does not know."""
        return None


@dataclass(frozen=True, kw_only=True)
class DualState(State):
    """A state with a dual point of a composite problem, from which a duality gap can be had at every iteration."""

    dual: Tensor  # p `(B, ...)`, in the domain of g*, in the shape of Kx; `(B, 0)` where the problem has none

    @property
    def dual_point(self) -> Tensor | None:
        return self.dual if self.dual.numel() else None


S = TypeVar("S", bound=State)
L = TypeVar("L", bound=DualState)


class Solver(nn.Module, Configurable, abc.ABC, Generic[S]):
    """An algorithm, advanced one iteration at a time; the parameters of a learned one are the module's own.

    Nothing about a run is stored in the solver, so one solver can serve many runs. Training unrolls `step` itself.
    `Solver[S]` has states S and runs on problems that offer what it `needs`.
    """

    card: Mapping[str, Any] = MappingProxyType({})  # how it was trained: JSON values by name, saved along with it

    @property
    def needs(self) -> tuple[str, ...]:
        """Capabilities the problem must have, checked before a run."""
        return ()

    stays_in_domain: ClassVar[bool] = False  # whether its points lie in the domain of every problem that it serves

    def keeps_to_domain(self, problem: Problem) -> bool:
        """Whether all its points lie in the domain of a problem; one that does not is refused before it runs."""
        return self.stays_in_domain or problem.domain is None

    @property
    def init_cost(self) -> dict[str, int]:
        """Evaluations per instance in `init`, by name: value, subgradient, to_dual, to_primal."""
        return {}

    @property
    @abc.abstractmethod
    def step_cost(self) -> dict[str, int]:
        """Evaluations per instance in one `step`, by name."""

    @property
    def horizon(self) -> int | None:
        """How many iterations it was made or trained for; None where there is no such number."""
        return None

    @property
    def geometry(self) -> Mirror | None:
        """The mirror whose mirror descent the steps are, whatever its inverse is, for the theorems about it."""
        return None

    @property
    def accumulates(self) -> bool:
        """Whether steps go on from their dual points, and never encode a point again: the lazy form."""
        return False

    @property
    def ends_proven(self) -> bool:
        """Whether it goes on past its horizon with a method that converges from any point."""
        return False

    @abc.abstractmethod
    def init(self, problem: Any, x0: Tensor) -> S:
        """The state before the first step, at the starting points x0 `(B, ...)`."""

    @abc.abstractmethod
    def step(self, problem: Any, state: S) -> S:
        """The state one iteration later; the one passed in is left as it is."""

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> S:
        """The state from which to go on at points and feasible dual points of an earlier run, where that can be."""
        accepted = "one that can, such as FGP, PDHG or a learned solver that ends in them"
        raise CapabilityError("solver", f"{type(self).__name__}, which cannot start from a dual point", accepted)

    def restart_from(self, problem: Any, state: S, x0: Tensor, which: Tensor, back: Tensor) -> S | None:
        """The state from which the instances in `which` `(B,)` go on at their answers, those in `back` at x0; None
        where that changes nothing, or is not possible."""
        return None

    def advance(self, problem: Any, state: S, count: int) -> S:
        """The state `count` iterations later: as many steps, or faster where nothing between them has to be kept.

        Its `evaluations` are those of all the steps.
        """
        beyond: dict[str, Tensor] = {}
        for _ in range(count):
            state = self.step(problem, state)
            beyond = add_evaluations(beyond, state.evaluations)
        return replace(state, evaluations=beyond) if beyond else state


class Wrapper(Solver[S]):
    """A solver around another one: what it does not change is that one's."""

    def __init__(self, solver: Solver[Any]) -> None:
        super().__init__()
        if not isinstance(solver, Solver):
            raise InputError("solver", type(solver).__name__, "an lmd.solvers.Solver")
        self.solver = solver

    @property
    def needs(self) -> tuple[str, ...]:
        return self.solver.needs

    def keeps_to_domain(self, problem: Problem) -> bool:
        return self.solver.keeps_to_domain(problem)

    @property
    def init_cost(self) -> dict[str, int]:
        return self.solver.init_cost

    @property
    def step_cost(self) -> dict[str, int]:
        return self.solver.step_cost

    @property
    def horizon(self) -> int | None:
        return self.solver.horizon

    @property
    def ends_proven(self) -> bool:
        return self.solver.ends_proven


@dataclass(frozen=True, kw_only=True)
class TailState(DualState):
    """Past the learned iterations: the state of the classical method."""

    inner: DualState


class LearnedPrefix(Solver[L | TailState]):
    """N learned iterations, in one compiled call where there is one, then the steps of a method that converges.

    `step_cost` is the cost of a learned step; where a step costs something else, its state says so.
    """

    stays_in_domain = True  # like the classical method that it ends in
    ends_proven = True

    iterations: int  # N
    tail: Solver[Any]  # the method that converges

    @property
    def horizon(self) -> int:
        return self.iterations

    def cost_of(self, k: int) -> dict[str, int]:
        """Evaluations per instance in the step from x_k, by name; a compiled one counts as what it stands for."""
        return self.step_cost if k < self.iterations else self.tail.step_cost

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> TailState:
        """Past the learned iterations: they are for a start that knows nothing."""
        return TailState(x, self.iterations, dual=dual, inner=self.tail_at(problem, x, dual))

    def step(self, problem: Any, state: L | TailState) -> L | TailState:
        return self.advance(problem, state, 1)

    def advance(self, problem: Any, state: L | TailState, count: int) -> L | TailState:
        begin, end = state.iteration, state.iteration + count
        while not isinstance(state, TailState) and state.iteration < min(end, self.iterations):
            compiled = self.compiled_steps(problem, state, min(end, self.iterations))
            state = self.learned_step(problem, state) if compiled is None else compiled
        spent: dict[str, Tensor] = {}  # by steps of the classical method that count for themselves
        while state.iteration < end:
            inner = state.inner if isinstance(state, TailState) else self.tail_at(problem, state.x, state.dual)
            inner = self.tail.step(problem, inner)
            spent = add_evaluations(spent, inner.evaluations)
            state = TailState(inner.x, state.iteration + 1, dual=inner.dual, inner=inner)
        cost: Counter[str] = Counter()  # of the steps beyond `step_cost` each: less than 0 where they cost less
        for k in range(begin, end):
            cost.update(self.cost_of(k))
            cost.subtract(self.step_cost)
        beyond = add_evaluations(full_counts(cost, state.x), spent)
        return replace(state, evaluations=beyond) if beyond else state

    def compiled_steps(self, problem: Any, state: L, end: int) -> L | None:
        """All learned steps up to iteration `end` in one compiled call; None where there is none."""
        return None

    @abc.abstractmethod
    def learned_step(self, problem: Any, state: L) -> L:
        """One learned iteration."""

    def tail_at(self, problem: Any, x: Tensor, dual: Tensor) -> DualState:
        """The state of the classical method at the last learned points, or at those of an earlier run."""
        state: DualState = self.tail.resume(problem, x, dual)
        return state


def check_fit(solver: Solver[Any], problem: Problem, x0: Tensor) -> None:
    """Raise unless the solver can run on the problem from x0: before it does, rather than with a wrong answer after."""
    check_start(problem, x0)
    check_solver(solver, problem)


def check_start(problem: Problem, x0: Tensor) -> Tensor:
    """Return x0 `(B, ...)` if a run on the problem can start there."""
    problem.check_start(check_batch("x0", x0))
    return x0 if problem.domain is None else problem.domain.check("x0", x0)


def in_full_precision(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """A function that `torch.autocast` leaves alone: with matrix products of few digits nothing converges."""

    @functools.wraps(function)
    def call(*given: Given.args, **named: Given.kwargs) -> Answer:
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return function(*given, **named)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*given, **named)

    return call


def check_solver(solver: Solver[Any], problem: Problem) -> None:
    """Raise unless the problem offers what the solver needs, and the solver keeps to its domain."""
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
    """The sum of evaluation counts, name by name."""
    total: dict[str, Tensor] = {}
    for name, count in (item for each in counts for item in each.items()):
        total[name] = total[name] + count if name in total else count
    return total


def full_counts(cost: Mapping[str, int], x: Tensor) -> dict[str, Tensor]:
    """Evaluations that are the same for all instances of x `(B, ...)`, each `(B,)`; none where they are 0."""
    return {name: x.new_full((len(x),), count, dtype=torch.int64) for name, count in cost.items() if count}
