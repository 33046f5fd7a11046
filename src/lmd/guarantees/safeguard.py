"""Safeguards: wrappers under which a learned solver can cost speed, never correctness. Proofs: docs/guarantees.md."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.errors import CapabilityError, InputError
from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem, offers
from lmd.solvers.base import Solver, State, add_evaluations
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.solvers.classical.lbfgs import LBFGS
from lmd.solvers.classical.pdhg import PDHG
from lmd.solvers.tracking import take

FALLBACK_SETTLE = 32.0  # `settle` of the default PDHG: found on TV problems with 1 to 20% noise
MAX_ITERATIONS_BEHIND = 10  # iterations in a row that a solver without a horizon may be behind before it is retired
MAX_DELAY = 10  # the longest delay of `guard`


def default_fallback(problem: Problem) -> Solver[Any]:
    """Return the classical method for a problem.

    PDHG for composite problems, an interior-point method for SVMs, L-BFGS for smooth problems on the whole space.

    Args:
        problem: What it is to run on.
    """
    for fallback in (PDHG(settle=FALLBACK_SETTLE), InteriorPoint()):
        if offers(problem, fallback.needs):
            return fallback
    if problem.domain is None and offers(problem, ("smoothness",)):
        return LBFGS()
    given = f"{type(problem).__name__}, which is neither composite, nor an SVM, nor smooth on the whole space"
    raise CapabilityError("problem", given, "one that is, or a fallback to go with it")


def guard(solver: Solver[Any], problem: Problem) -> Safeguard | None:
    """Return the solver in a safeguard with little overhead; None if no fall-back is known for the problem.

    For networks on images, a classical step costs next to nothing, so the fall-back starts at once. For solvers that
    end in a classical method it starts after the trained iterations. For all others it starts after the trained
    iterations, at most ten, so that the answer is never behind from iteration 20 on.

    Args:
        solver: The learned solver.
        problem: The problem to solve.
    """
    try:
        default_fallback(problem)
    except CapabilityError:
        return None
    return Safeguard(solver, delay=_cheap_delay(solver, problem))


def _cheap_delay(solver: Solver[Any], problem: Problem) -> int:
    learns_inverse = any(isinstance(part, Mirror) and not part.is_exact for part in solver.modules())
    dear = offers(problem, PDHG().needs) and learns_inverse
    delay = solver.horizon or 0
    return 0 if dear else delay if solver.ends_proven else min(delay, MAX_DELAY)


@dataclass(frozen=True, kw_only=True)
class SafeguardState(State):
    """The best points seen, which solver found them, and the states of both solvers."""

    dual: Tensor | None  # a dual point for each instance, of the solver that found the best point, if it has one
    start: Tensor  # x_0, where the fall-back begins
    fallback: Solver[Any] | None  # the fall-back for the problem; None where none is known
    delay: float  # the iteration after which it starts; infinite where there is none
    learned: State
    classical: State | None  # None before the fall-back starts
    value: Tensor  # f(x) `(B,)`
    lowest: Mapping[str, Tensor]
    """The lowest value seen of the `learned` and of the `classical` iterates `(B,)`, x_0 being a learned one."""

    fell_back: Tensor  # instances `(B,)` whose best point is a classical one
    behind: Tensor  # iterations in a row with a lower classical value `(B,)`
    retired: Tensor  # instances `(B,)` that have given up on the learned solver

    @property
    def iterate(self) -> Tensor:
        return self.x if self.classical is None else self.classical.iterate

    @property
    def known_value(self) -> Tensor:
        return self.value

    @property
    def dual_point(self) -> Tensor | None:
        return self.dual


class _Answer:
    """The best points seen of each instance, updated within an iteration."""

    def __init__(self, state: SafeguardState) -> None:
        self.x, self.value, self.fell_back, self.lowest = state.x, state.value, state.fell_back, dict(state.lowest)

    def see(self, whose: str, points: Tensor, values: Tensor) -> None:
        """Take points where their values are below all before."""
        better = values < self.value  # a NaN never is
        self.x = take(better, points, self.x)
        self.value = torch.where(better, values, self.value)
        self.lowest[whose] = torch.fmin(self.lowest[whose], values)
        self.fell_back = self.fell_back | better if whose == "classical" else self.fell_back & ~better


class Safeguard(Solver[SafeguardState]):
    r"""Run a learned and a classical solver side by side; the answer of each instance is the best point of both.

    Each iteration advances both solvers and evaluates f at both points. After its trained iterations, the learned
    solver is given up for an instance as soon as the classical value is lower; a solver without a trained number of
    iterations is given up after ten iterations in a row with higher values.

    So f(x_k) <= f(c_k) in every iteration, with c_k the classical iterates from the same start, and every theorem about
    the values of the fall-back holds on any input. `result.evaluations["fallback"]` counts the iterations that ended
    with a classical answer, and `history.diagnostics["fallback"]` shows which they were. The extra cost is one value
    and the classical step.

    If a classical step costs as much as a learned one, let the fall-back start after a `delay` of d iterations, such as
    the trained ones. It then starts from x_0 and catches up with two steps per iteration: f(x_k) <= f(c_k) from
    iteration 2 d on. If no fall-back is known and the delay is None, the answer is the best learned point, whose value
    is never above that of the start.

    For composite problems the fall-back is PDHG, whose dual point gives every answer a duality gap. Safeguards nest:
    `Safeguard(Safeguard(s, a), b)` is never behind a until b overtakes it.

    Args:
        solver: The learned solver.
        fallback: The classical solver; None is `default_fallback` of the problem.
        delay: d, iterations before the fall-back starts; None chooses it for each problem, as `guard` does.

    >>> import lmd
    >>> problem = lmd.problems.TVDenoising(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), 0.3)
    >>> wild = lmd.solvers.GradientDescent(10.0)
    >>> result = lmd.run(Safeguard(wild), problem, iterations=40)
    >>> result.evaluations["fallback"].tolist(), bool((result.certificate.bound < 0.05 * result.values).all())
    ([40, 40], True)
    """

    def __init__(self, solver: Solver[Any], fallback: Solver[Any] | None = None, delay: int | None = 0) -> None:
        super().__init__()
        for name, given in (("solver", solver), ("fallback", fallback)):
            if not isinstance(given, Solver) and (name == "solver" or given is not None):
                raise InputError(name, type(given).__name__, "an lmd.solvers.Solver")
        self.solver = solver
        self.fallback = fallback
        self.delay = None if delay is None else check_count("delay", delay, least=0)

    def config(self) -> dict[str, Any]:
        return {"solver": self.solver, "fallback": self.fallback, "delay": self.delay}

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.solver.needs, *(() if self.fallback is None else self.fallback.needs))

    def keeps_to_domain(self, problem: Problem) -> bool:
        return all(part is None or part.keeps_to_domain(problem) for part in (self.solver, self.fallback))

    @property
    def init_cost(self) -> dict[str, int]:
        return {**self.solver.init_cost, "value": self.solver.init_cost.get("value", 0) + 1}

    @property
    def step_cost(self) -> dict[str, int]:
        """The cost of the learned step and of its value; differences are counted in the state."""
        cost = self.solver.step_cost
        return {**cost, "value": cost.get("value", 0) + 1, "fallback": 0}

    @property
    def horizon(self) -> int | None:
        return self.solver.horizon

    def init(self, problem: Problem, x0: Tensor) -> SafeguardState:
        fallback, delay = self._plan(problem)
        learned, value = self.solver.init(problem, x0), problem.value(x0)
        none, never = torch.zeros_like(value, dtype=torch.bool), torch.full_like(value, torch.inf)
        classical = None if delay or fallback is None else fallback.init(problem, x0)
        return SafeguardState(
            x0,
            dual=_dual(classical, learned, none),
            start=x0,
            fallback=fallback,
            delay=delay,
            learned=learned,
            classical=classical,
            value=value,
            lowest={"learned": value, "classical": never},
            fell_back=none,
            behind=none.long(),
            retired=none,
        )

    def _plan(self, problem: Problem) -> tuple[Solver[Any] | None, float]:
        """Return the fall-back and its delay."""
        try:
            fallback = default_fallback(problem) if self.fallback is None else self.fallback
        except CapabilityError:
            if self.delay is not None:
                raise
            return None, math.inf
        return fallback, _cheap_delay(self.solver, problem) if self.delay is None else self.delay

    def step(self, problem: Problem, state: SafeguardState) -> SafeguardState:
        if state.fallback is None or state.iteration < state.delay:
            return self._alone(problem, state)
        k, retired, learned = state.iteration + 1, state.retired, state.learned
        classical, cost = self._advance(problem, state, state.fallback)
        answer, gone = _Answer(state), bool(retired.any())
        diagnostics: dict[str, Tensor] = {}
        answer.see("classical", classical.x, _value(problem, classical))
        if not gone or not bool(retired.all()):
            learned = self.solver.step(problem, learned)
            value = torch.where(retired, torch.inf, _value(problem, learned)) if gone else _value(problem, learned)
            answer.see("learned", learned.x, value)
            diagnostics = _known(learned.diagnostics, ~retired) if gone else dict(learned.diagnostics)
            retired = retired | value.isnan()
        if gone or learned.known_value is not None:
            cost = add_evaluations(cost, self._saved(learned, state.retired))
        elif learned.evaluations:
            cost = add_evaluations(cost, learned.evaluations)
        cost["fallback"] = answer.fell_back.long()
        behind, overtaken = self._judge(k, answer, state)
        return replace(
            state,
            x=answer.x,
            iteration=k,
            diagnostics={**diagnostics, "fallback": state.fell_back.to(answer.value.dtype)},
            evaluations=cost,
            dual=_dual(classical, learned, answer.fell_back),
            learned=learned,
            classical=classical,
            value=answer.value,
            lowest=answer.lowest,
            fell_back=answer.fell_back,
            behind=behind,
            retired=retired | overtaken,
        )

    def _alone(self, problem: Problem, state: SafeguardState) -> SafeguardState:
        """Take a learned step before the fall-back starts."""
        learned = self.solver.step(problem, state.learned)
        found = _value(problem, learned)
        better = found < state.value  # a NaN never is
        value = torch.where(better, found, state.value)
        saved = learned.known_value is not None
        return replace(
            state,
            x=take(better, learned.x, state.x),
            iteration=state.iteration + 1,
            diagnostics={**learned.diagnostics, "fallback": state.fell_back},
            evaluations=self._saved(learned, state.retired) if saved else learned.evaluations,
            dual=_dual(None, learned, state.fell_back),
            learned=learned,
            value=value,
            lowest={**state.lowest, "learned": value},
            retired=state.retired | found.isnan(),
        )

    def _judge(self, k: int, answer: _Answer, state: SafeguardState) -> tuple[Tensor, Tensor]:
        """Return for how long each instance has been behind, and where the learned solver is to be retired."""
        behind = torch.where(answer.lowest["classical"] <= answer.lowest["learned"], state.behind + 1, 0)
        if self.horizon is None:
            return behind, behind >= MAX_ITERATIONS_BEHIND
        return behind, (behind > 0) & (k >= self.horizon)

    def _advance(self, problem: Problem, state: SafeguardState, solver: Solver[Any]) -> tuple[State, dict[str, Tensor]]:
        """Return the fall-back after this iteration and its cost: one step, or two where it has to catch up."""
        everyone = torch.ones_like(state.retired)
        cost: dict[str, Tensor] = {}
        if state.iteration == state.delay:
            cost = {name: count * everyone.long() for name, count in solver.init_cost.items()}
        classical = solver.init(problem, state.start) if state.classical is None else state.classical
        for _ in range(min(2, state.iteration + 1 - classical.iteration)):
            classical = solver.step(problem, classical)
            cost = add_evaluations(cost, step_costs(solver, classical, everyone))
        looked = {"value": everyone.long()} if classical.known_value is None else {}
        return classical, add_evaluations(cost, looked)

    def _saved(self, learned: State, retired: Tensor) -> dict[str, Tensor]:
        """Return the difference to the declared cost: none for retired instances, no value where the step knew it."""
        active = (~retired).long()
        looked = active if learned.known_value is None else torch.zeros_like(active)
        declared = {name: -count * retired.long() for name, count in self.solver.step_cost.items()}
        beyond = {name: count * active for name, count in learned.evaluations.items()}
        return add_evaluations(declared, beyond, {"value": looked - 1})


def step_costs(solver: Solver[Any], state: State, taken: Tensor) -> dict[str, Tensor]:
    """Return the cost per instance `(B,)` of the step that led to a state, for those that took it."""
    declared = {name: cost * taken.long() for name, cost in solver.step_cost.items()}
    return add_evaluations(declared, {name: count * taken for name, count in state.evaluations.items()})


def _value(problem: Problem, state: State) -> Tensor:
    return problem.value(state.x) if state.known_value is None else state.known_value


def _dual(classical: State | None, learned: State, fell_back: Tensor) -> Tensor | None:
    """Return a dual point: of the solver that has the answer, if it has one, or of the other."""
    own, others = learned.dual_point, None if classical is None else classical.dual_point
    if own is None or others is None:
        return others if own is None else own
    return take(fell_back, others, own)


def _known(diagnostics: Mapping[str, Tensor], active: Tensor) -> dict[str, Tensor]:
    return {name: torch.where(active, numbers.double(), torch.nan) for name, numbers in diagnostics.items()}
