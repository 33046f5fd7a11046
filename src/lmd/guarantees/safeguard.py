"""Safeguards: wrappers under which a learned solver can cost speed, never correctness. Proofs: docs/guarantees.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import DualState, Solver, State
from lmd.solvers.pdhg import PDHG

SETTLE = 8.0
"""What the default fall-back's primal step settles to a fraction of: found on TV inpainting with 1 to 20% noise."""


@dataclass(frozen=True)
class SafeguardState(DualState):
    """The best points seen, whose they are, and the states of both solvers."""

    learned: State | None = None
    classical: State | None = None

    value: Tensor | None = None
    """f(x) `(B,)`."""

    lowest: Mapping[str, Tensor] | None = None
    """The lowest value seen of the `learned` and of the `classical` iterates `(B,)`."""

    fell_back: Tensor | None = None
    """Which instances `(B,)` answer with a classical point."""

    retired: Tensor | None = None
    """Which instances `(B,)` have given up on the learned solver."""

    @property
    def iterate(self) -> Tensor:
        return self.x if self.classical is None else self.classical.iterate

    @property
    def known_value(self) -> Tensor | None:
        return self.value


class Safeguard(Solver[SafeguardState]):
    r"""Runs a learned solver with a classical one beside it; the answer of each instance is the best point seen.

    Each iteration advances both and evaluates f at both points. A point is accepted when it is below everything seen
    before, so where the learned solver does not lead, the answer falls back on the classical one. Past the iterations
    it was trained for, an instance whose classical value is the lower one gives up on the learned solver for good.

    So f(x_k) <= f(c_k) in every iteration, with c_k the classical iterates from the same start: what is proven for the
    fall-back holds on any input. `result.evaluations["fallback"]` counts the iterations that ended with a classical
    answer, `history.diagnostics["fallback"]` shows where they were. A run evaluates one value per iteration for its
    record; it takes the safeguard's instead, so the extra cost is one value and the classical step.

    `fallback` is any solver; None is `PDHG` for composite problems, whose step costs next to nothing beside that of a
    network, and whose dual point gives every answer a duality gap. Safeguards nest: `Safeguard(Safeguard(s, a), b)` is
    never behind a, as long as it has not been overtaken by b.

    >>> import lmd
    >>> problem = lmd.problems.TVDenoising(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), 0.3)
    >>> wild = lmd.solvers.GradientDescent(10.0)
    >>> result = lmd.run(Safeguard(wild), problem, iterations=40)
    >>> result.evaluations["fallback"].tolist(), bool((result.certificate.bound < 0.05 * result.values).all())
    ([40, 40], True)
    """

    def __init__(self, solver: Solver[Any], fallback: Solver[Any] | None = None) -> None:
        super().__init__()
        for name, given in (("solver", solver), ("fallback", fallback)):
            if not isinstance(given, Solver) and (name == "solver" or given is not None):
                raise InputError(name, type(given).__name__, "an lmd.solvers.Solver")
        self.solver = solver
        self.fallback = fallback

    def config(self) -> dict[str, Any]:
        return {"solver": self.solver, "fallback": self.fallback}

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.solver.needs, *self._classical().needs)

    @property
    def init_cost(self) -> dict[str, int]:
        costs = [self.solver.init_cost, self._classical().init_cost, {"value": 1}]
        return {name: sum(cost.get(name, 0) for cost in costs) for cost in costs for name in cost}

    @property
    def step_cost(self) -> dict[str, int]:
        """Nothing that is known beforehand: what both steps cost is counted in the state."""
        return {}

    @property
    def horizon(self) -> int | None:
        return self.solver.horizon

    def _classical(self) -> Solver[Any]:
        return PDHG(settle=SETTLE) if self.fallback is None else self.fallback

    def init(self, problem: Problem, x0: Tensor) -> SafeguardState:
        learned, classical = self.solver.init(problem, x0), self._classical().init(problem, x0)
        value = problem.value(x0)
        none, never = torch.zeros_like(value, dtype=torch.bool), torch.full_like(value, torch.inf)
        return SafeguardState(
            x0,
            dual=_dual(classical, learned),
            learned=learned,
            classical=classical,
            value=value,
            lowest={"learned": never, "classical": never},
            fell_back=none,
            retired=none,
        )

    def step(self, problem: Problem, state: SafeguardState) -> SafeguardState:
        assert state.learned is not None and state.retired is not None and state.fell_back is not None
        assert state.value is not None and state.lowest is not None
        k, active = state.iteration + 1, ~state.retired
        classical = self._classical().step(problem, state.classical)
        learned = self.solver.step(problem, state.learned) if bool(active.any()) else state.learned
        found = _value(problem, learned) if bool(active.any()) else state.value
        values = {"classical": _value(problem, classical), "learned": torch.where(active, found, torch.inf)}
        leads = values["learned"] < values["classical"]  # a NaN never does
        candidate = torch.where(widen(leads, learned.x), learned.x, classical.x)
        value = torch.where(leads, values["learned"], values["classical"])
        better = value < state.value
        lowest = {name: torch.fmin(state.lowest[name], values[name]) for name in values}
        past = self.horizon is not None and k >= self.horizon
        overtaken = past & (lowest["classical"] <= lowest["learned"])
        fell_back = torch.where(better, ~leads, state.fell_back)
        return SafeguardState(
            torch.where(widen(better, candidate), candidate, state.x),
            k,
            {**_known(learned.diagnostics, active), "fallback": state.fell_back.to(value.dtype)},
            self._evaluations(learned, classical, active, fell_back),
            dual=_dual(classical, learned),
            learned=learned,
            classical=classical,
            value=torch.where(better, value, state.value),
            lowest=lowest,
            fell_back=fell_back,
            retired=state.retired | overtaken | values["learned"].isnan(),
        )

    def _evaluations(self, learned: State, classical: State, active: Tensor, fell_back: Tensor) -> dict[str, Tensor]:
        """What both steps cost, the learned one only where it is still wanted, and whether the answer fell back."""
        counts = {"fallback": fell_back.long(), "value": torch.zeros_like(active).long()}
        steps = ((self.solver, learned, active), (self._classical(), classical, torch.ones_like(active)))
        for solver, state, taken in steps:
            looked = {"value": taken.long()} if state.known_value is None else {}
            counts = add_costs(counts, looked, step_costs(solver, state, taken))
        return counts


def step_costs(solver: Solver[Any], state: State, taken: Tensor) -> dict[str, Tensor]:
    """What the step that led to a state cost per instance `(B,)`, for those that took it."""
    declared = {name: cost * taken.long() for name, cost in solver.step_cost.items()}
    return add_costs(declared, {name: count * taken for name, count in state.evaluations.items()})


def add_costs(*costs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sum of evaluation counts, name by name."""
    total: dict[str, Tensor] = {}
    for cost in costs:
        for name, count in cost.items():
            total[name] = total[name] + count if name in total else count
    return total


def _value(problem: Problem, state: State) -> Tensor:
    return problem.value(state.x) if state.known_value is None else state.known_value


def _dual(*states: State) -> Tensor | None:
    """A dual point of a composite problem, the first that any of the states keeps."""
    return next((state.dual for state in states if isinstance(state, DualState) and state.dual is not None), None)


def widen(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of the instances `(B,)` in the shape `(B, 1, ...)`."""
    return mask.reshape(-1, *(1,) * (like.ndim - 1))


def _known(diagnostics: Mapping[str, Tensor], active: Tensor) -> dict[str, Tensor]:
    return {name: torch.where(active, numbers.double(), torch.nan) for name, numbers in diagnostics.items()}
