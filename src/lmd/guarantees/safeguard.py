"""Safeguards: wrappers under which a learned solver can cost speed, never correctness. Proofs: docs/guarantees.md."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
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

SETTLE = 32.0
"""What the default fall-back's primal step settles to a fraction of: found on TV problems with 1 to 20% noise."""

PATIENCE = 10
"""For how many iterations in a row a solver without a horizon may be behind before it is given up on."""

LATEST = 10
"""The longest delay of `guard`."""


def default_fallback(problem: Problem) -> Solver[Any]:
    """The strongest classical method here that needs nothing but the problem.

    PDHG for composite problems, an interior-point method for SVMs, L-BFGS for smooth problems on the whole space.

    Args:
        problem: The one that it is for.
    """
    for fallback in (PDHG(settle=SETTLE), InteriorPoint()):
        if offers(problem, fallback.needs):
            return fallback
    if problem.domain is None and offers(problem, ("smoothness",)):
        return LBFGS()
    given = f"{type(problem).__name__}, which is neither composite, nor an SVM, nor smooth on the whole space"
    raise CapabilityError("problem", given, "one that is, or a fallback to go with it")


def guard(solver: Solver[Any], problem: Problem) -> Safeguard | None:
    """The solver in a safeguard that costs little beside it; None where no fall-back is known for the problem.

    Beside a network on images a classical step costs next to nothing, and runs along from the start. Beside anything
    else it starts when the trained iterations are over, or ten iterations: it is never behind from iteration 20 on.
    Beside a solver that ends in a classical method it starts when the trained iterations are over, however many.

    Args:
        solver: The learned solver.
        problem: The one that it is to run on.
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
    return 0 if dear else delay if solver.ends_proven else min(delay, LATEST)


@dataclass(frozen=True, kw_only=True)
class SafeguardState(State):
    """The best points seen, whose they are, and the states of both solvers."""

    dual: Tensor | None
    """A dual point for each instance, of the solver that has the answer, where it keeps one."""

    start: Tensor
    """x_0, where the fall-back begins."""

    fallback: Solver[Any] | None
    """The fall-back, as it was chosen for the problem; None where none is known."""

    delay: float
    """The iteration after which it begins: infinite where there is none."""

    learned: State
    classical: State | None
    """None before the fall-back begins."""

    value: Tensor
    """f(x) `(B,)`."""

    lowest: Mapping[str, Tensor]
    """The lowest value seen of the `learned` and of the `classical` iterates `(B,)`, x_0 being a learned one."""

    fell_back: Tensor
    """Which instances `(B,)` answer with a classical point."""

    behind: Tensor
    """For how many iterations in a row the classical value has been the lower one `(B,)`."""

    retired: Tensor
    """Which instances `(B,)` have given up on the learned solver."""

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
    """The best points seen of each instance, while an iteration looks at others."""

    def __init__(self, state: SafeguardState) -> None:
        self.x, self.value, self.fell_back, self.lowest = state.x, state.value, state.fell_back, dict(state.lowest)

    def see(self, whose: str, points: Tensor, values: Tensor) -> None:
        """Other points: they are the answer where they are below all before."""
        better = values < self.value  # a NaN never is
        self.x = torch.where(widen(better, points), points, self.x)
        self.value = torch.where(better, values, self.value)
        self.lowest[whose] = torch.fmin(self.lowest[whose], values)
        self.fell_back = self.fell_back | better if whose == "classical" else self.fell_back & ~better


class Safeguard(Solver[SafeguardState]):
    r"""Runs a learned solver with a classical one beside it; the answer of each instance is the best point seen.

    Each iteration advances both and evaluates f at both points. A point is accepted when it is below everything seen
    before, so where the learned solver does not lead, the answer falls back on the classical one. Past the iterations
    it was trained for, an instance whose classical value is the lower one gives up on the learned solver for good; one
    that was not trained for any number is given up on after ten iterations behind.

    So f(x_k) <= f(c_k) in every iteration, with c_k the classical iterates from the same start: what is proven for the
    fall-back holds on any input. `result.evaluations["fallback"]` counts the iterations that ended with a classical
    answer, `history.diagnostics["fallback"]` shows where they were. A run evaluates one value per iteration for its
    record; it takes the safeguard's instead, so the extra cost is one value and the classical step.

    Where a classical step is no cheaper than a learned one, let it start after a `delay` of d iterations, such as the
    trained ones: until then nothing is evaluated that the run alone would not evaluate, and the answer is the best
    learned point. Then the fall-back starts from x_0 and catches up, two steps at a time: f(x_k) <= f(c_k) from
    iteration 2 d on. A delay of None is chosen for each problem, as `guard` would; where no fall-back is known, it is
    infinite: then all that is promised is the best learned point, which is never above the start.

    `fallback` is any solver; None is what `default_fallback` says of the problem. PDHG, for composite problems, keeps a
    dual point, which gives every answer a duality gap. Safeguards nest: `Safeguard(Safeguard(s, a), b)` is never behind
    a, as long as it has not been overtaken by b.

    Args:
        solver: The learned solver.
        fallback: The classical one; None is `default_fallback` of the problem.
        delay: d, iterations before the fall-back starts; None is chosen for each problem.

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
        """Those of the learned step and of its value; whatever is more, or less, is counted in the state."""
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
        """The fall-back and its delay."""
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
        retired = retired | overtaken
        return SafeguardState(
            answer.x,
            k,
            {**diagnostics, "fallback": state.fell_back.to(answer.value.dtype)},
            cost,
            dual=_dual(classical, learned, answer.fell_back),
            start=state.start,
            fallback=state.fallback,
            delay=state.delay,
            learned=learned,
            classical=classical,
            value=answer.value,
            lowest=answer.lowest,
            fell_back=answer.fell_back,
            behind=behind,
            retired=retired,
        )

    def _alone(self, problem: Problem, state: SafeguardState) -> SafeguardState:
        """A learned step before the fall-back begins: little more than the step, as it may be a very cheap one."""
        learned = self.solver.step(problem, state.learned)
        x, value, retired = learned.x, _value(problem, learned), state.retired
        better = value < state.value
        if not bool(better.any()):
            retired, x, value = retired | value.isnan(), state.x, state.value
        elif not bool(better.all()):
            retired = retired | value.isnan()
            x = torch.where(widen(better, x), x, state.x)
            value = torch.where(better, value, state.value)
        saved = learned.known_value is not None
        return SafeguardState(
            x,
            state.iteration + 1,
            {**learned.diagnostics, "fallback": state.fell_back},
            self._saved(learned, state.retired) if saved else learned.evaluations,
            dual=_dual(None, learned, state.fell_back),
            start=state.start,
            fallback=state.fallback,
            delay=state.delay,
            learned=learned,
            classical=None,
            value=value,
            lowest={**state.lowest, "learned": value},
            fell_back=state.fell_back,
            behind=state.behind,
            retired=retired,
        )

    def _judge(self, k: int, answer: _Answer, state: SafeguardState) -> tuple[Tensor, Tensor]:
        """For how long each instance has been behind, and where that is a reason to give up on the learned solver."""
        behind = torch.where(answer.lowest["classical"] <= answer.lowest["learned"], state.behind + 1, 0)
        if self.horizon is None:
            return behind, behind >= PATIENCE
        return behind, (behind > 0) & (k >= self.horizon)

    def _advance(self, problem: Problem, state: SafeguardState, solver: Solver[Any]) -> tuple[State, dict[str, Tensor]]:
        """The fall-back after this iteration, and what it cost: a step, or two where it has to catch up."""
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
        """What differs from the declared cost: nothing for those who retired, no value where the step knew it."""
        active = (~retired).long()
        looked = active if learned.known_value is None else torch.zeros_like(active)
        declared = {name: -count * retired.long() for name, count in self.solver.step_cost.items()}
        beyond = {name: count * active for name, count in learned.evaluations.items()}
        return add_evaluations(declared, beyond, {"value": looked - 1})


def step_costs(solver: Solver[Any], state: State, taken: Tensor) -> dict[str, Tensor]:
    """What the step that led to a state cost per instance `(B,)`, for those that took it."""
    declared = {name: cost * taken.long() for name, cost in solver.step_cost.items()}
    return add_evaluations(declared, {name: count * taken for name, count in state.evaluations.items()})


def _value(problem: Problem, state: State) -> Tensor:
    return problem.value(state.x) if state.known_value is None else state.known_value


def _dual(classical: State | None, learned: State, fell_back: Tensor) -> Tensor | None:
    """A dual point of a composite problem: of the solver that has the answer, if it keeps one, or of the other."""
    own, others = learned.dual_point, None if classical is None else classical.dual_point
    if own is None or others is None:
        return others if own is None else own
    return torch.where(widen(fell_back, own), others, own)


def widen(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of the instances `(B,)` in the shape `(B, 1, ...)`."""
    return mask.reshape(-1, *(1,) * (like.ndim - 1))


def _known(diagnostics: Mapping[str, Tensor], active: Tensor) -> dict[str, Tensor]:
    return {name: torch.where(active, numbers.double(), torch.nan) for name, numbers in diagnostics.items()}
