"""Safeguards: wrappers that make answers of learned solvers reliable. The proofs are in docs/guarantees.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.errors import CapabilityError, InputError
from lmd.mirrors.base import Mirror, norm_of
from lmd.problems.base import Problem, offers
from lmd.solvers.base import S, Solver, State, Wrapper, add_evaluations, delegate, full_counts
from lmd.solvers.classical.gradient_descent import LBFGS
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.solvers.classical.pdhg import PDHG
from lmd.terms.base import per_instance, take

FALLBACK_SETTLE = 32.0  # `settle` of the default PDHG, tuned on TV problems with 1 to 20% noise
MAX_ITERATIONS_BEHIND = 10  # iterations in a row for which a solver without a horizon may be behind
MAX_DELAY = 10  # the longest delay of `guard`
PROGRESS = 0.5  # a learned step has to lower f by this share of the proven decrease of a gradient step


def default_fallback(problem: Problem) -> Solver[Any]:
    """Return the classical method for a problem.

    It is PDHG for composite problems, `InteriorPoint` for SVMs, and L-BFGS for smooth problems without a domain.

    Args:
        problem: The problem to solve.
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

    For networks on images, the fall-back starts at once, because a classical step is very cheap in comparison. For
    solvers that continue with a classical method, it starts after the trained iterations. For all others it starts
    after the trained iterations, but at most ten, so that the answer is never behind the fall-back from iteration 20.

    Args:
        solver: The learned solver.
        problem: The problem to solve.
    """
    fallback, delay = Safeguard(solver, delay=None).plan(problem)
    return None if fallback is None else Safeguard(solver, delay=int(delay))


def _cheap_delay(solver: Solver[Any], problem: Problem) -> int:
    learns_inverse = any(isinstance(part, Mirror) and not part.is_exact for part in solver.modules())
    dear = offers(problem, PDHG().needs) and learns_inverse
    delay = solver.horizon or 0
    return 0 if dear else delay if solver.ends_proven else min(delay, MAX_DELAY)


@dataclass(frozen=True, kw_only=True)
class SafeguardState(State):
    """The best points so far, the solver that found each of them, and the states of both solvers."""

    start: Tensor  # x_0, the start of the fall-back
    fallback: Solver[Any] | None  # the fall-back for the problem; None if none is known
    delay: float  # the fall-back starts after this iteration; infinite if there is none
    learned: State
    classical: State | None  # None before the fall-back starts
    value: Tensor  # f(x) `(B,)`
    lowest: Mapping[str, Tensor]  # lowest values of the iterates, `learned` (with x_0) and `classical`
    fell_back: Tensor  # whether the best point is a classical one `(B,)`
    behind: Tensor  # iterations in a row in which the learned solver was behind `(B,)`
    retired: Tensor  # whether the instance has given up on the learned solver `(B,)`
    known_value = delegate("value")

    @property
    def iterate(self) -> Tensor:
        return self.x if self.classical is None else self.classical.iterate

    @property
    def dual_point(self) -> Tensor | None:
        """The dual point of the solver that found the best point; if it has none, of the other solver."""
        learned, classical = self.learned.dual_point, None if self.classical is None else self.classical.dual_point
        if learned is None or classical is None:
            return classical if learned is None else learned
        return take(self.fell_back, classical, learned)

    def see(self, whose: str, points: Tensor, values: Tensor) -> SafeguardState:
        """Return the state with new points of the solver `whose`, "learned" or "classical", where they are better."""
        better = values < self.value  # False for a NaN
        return replace(
            self,
            x=take(better, points, self.x),
            value=torch.where(better, values, self.value),
            lowest={**self.lowest, whose: torch.fmin(self.lowest[whose], values)},
            fell_back=self.fell_back | better if whose == "classical" else self.fell_back & ~better,
        )


class _Guard(Wrapper[S]):
    """A wrapper that evaluates f at the start and after each step of the learned solver."""

    @property
    def init_cost(self) -> dict[str, int]:
        return {**self.solver.init_cost, "value": self.solver.init_cost.get("value", 0) + 1}

    @property
    def step_cost(self) -> dict[str, int]:
        """The cost of the learned step and of one value; `evaluations` of the state counts any differences."""
        return {**self.solver.step_cost, "value": self.solver.step_cost.get("value", 0) + 1, "fallback": 0}


class Safeguard(_Guard[SafeguardState]):
    r"""Run a learned and a classical solver side by side; the answer of each instance is the best point of both.

    Each iteration advances both solvers and evaluates f at both points. After the trained iterations, an instance gives
    up on the learned solver as soon as the lowest classical value is at most the lowest learned value. If the number of
    trained iterations is not known, it gives up once this holds for ten iterations in a row.

    So f(x_k) <= f(c_k) in every iteration, with c_k the classical iterates from the same start, and every theorem about
    the values of the fall-back holds on any input. `result.evaluations["fallback"]` counts the iterations that ended
    with a classical answer, and `history.diagnostics["fallback"]` shows which they were. The extra cost is one value
    and the classical step.

    If a classical step costs as much as a learned one, let the fall-back start after a `delay` of d iterations, such
    as the trained ones. It then starts from x_0 and catches up with two steps per iteration: f(x_k) <= f(c_k) from
    iteration 2 d on. If no fall-back is known and the delay is None, the answer is the best learned point, whose value
    is never above that of the start.

    For composite problems the fall-back is PDHG, whose dual point gives every answer a duality gap. Safeguards nest:
    `Safeguard(Safeguard(s, a), b)` is never behind a until b overtakes it.

    Args:
        solver: The learned solver.
        fallback: The classical solver; if None, `default_fallback` chooses it.
        delay: d, the iterations before the fall-back starts; if None, it is chosen for each problem, as by `guard`.

    >>> import lmd
    >>> problem = lmd.problems.TVDenoising(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), 0.3)
    >>> wild = lmd.solvers.GradientDescent(10.0)
    >>> result = lmd.run(Safeguard(wild), problem, iterations=40)
    >>> result.evaluations["fallback"].tolist(), bool((result.certificate.bound < 0.05 * result.values).all())
    ([40, 40], True)
    """

    ends_proven = False

    def __init__(self, solver: Solver[Any], fallback: Solver[Any] | None = None, delay: int | None = 0) -> None:
        super().__init__(solver)
        if not (fallback is None or isinstance(fallback, Solver)):
            raise InputError("fallback", type(fallback).__name__, "an lmd.solvers.Solver")
        self.fallback = fallback
        self.delay = None if delay is None else check_count("delay", delay, least=0)

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.solver.needs, *(() if self.fallback is None else self.fallback.needs))

    def keeps_to_domain(self, problem: Problem) -> bool:
        return all(part is None or part.keeps_to_domain(problem) for part in (self.solver, self.fallback))

    def begin(self, problem: Problem, x: Tensor, inner: State) -> SafeguardState:
        fallback, delay = self.plan(problem)
        value = problem.value(x)
        none = torch.zeros_like(value, dtype=torch.bool)
        return SafeguardState(
            x,
            start=x,
            fallback=fallback,
            delay=delay,
            learned=inner,
            classical=None if delay or fallback is None else fallback.init(problem, x),
            value=value,
            lowest={"learned": value, "classical": torch.full_like(value, torch.inf)},
            fell_back=none,
            behind=none.long(),
            retired=none,
        )

    def plan(self, problem: Problem) -> tuple[Solver[Any] | None, float]:
        """Return the fall-back for a problem and its delay; None and infinity if there is none."""
        try:
            fallback = default_fallback(problem) if self.fallback is None else self.fallback
        except CapabilityError:
            if self.delay is not None:
                raise
            return None, math.inf
        return fallback, _cheap_delay(self.solver, problem) if self.delay is None else self.delay

    def step(self, problem: Problem, state: SafeguardState) -> SafeguardState:
        k, active, before = state.iteration + 1, ~state.retired, state.fell_back
        cost: dict[str, Tensor] = {}
        if state.fallback is not None and k > state.delay:
            classical, cost = self._advance(problem, state, state.fallback)
            state = replace(state, classical=classical).see("classical", classical.x, _value(problem, classical))
        diagnostics: Mapping[str, Tensor] = {}
        all_active = bool(active.all())
        if all_active or bool(active.any()):
            learned = self.solver.step(problem, state.learned)
            value, diagnostics = _value(problem, learned), learned.diagnostics
            if not all_active:
                value = torch.where(active, value, torch.inf)
                diagnostics = {name: torch.where(active, x.double(), torch.nan) for name, x in diagnostics.items()}
            state = replace(state, learned=learned, retired=state.retired | value.isnan())
            state = state.see("learned", learned.x, value)
        if not all_active or state.learned.known_value is not None:
            cost = add_evaluations(cost, self._saved(state.learned, active))
        else:
            cost = add_evaluations(cost, state.learned.evaluations)
        if state.classical is not None:
            behind = torch.where(state.lowest["classical"] <= state.lowest["learned"], state.behind + 1, 0)
            is_due = behind >= MAX_ITERATIONS_BEHIND if self.horizon is None else (behind > 0) & (k >= self.horizon)
            state = replace(state, behind=behind, retired=state.retired | is_due)
        return replace(
            state,
            iteration=k,
            diagnostics={**diagnostics, "fallback": before.to(state.value.dtype)},
            evaluations={**cost, "fallback": state.fell_back.long()},
        )

    def _advance(self, problem: Problem, state: SafeguardState, solver: Solver[Any]) -> tuple[State, dict[str, Tensor]]:
        """Return the state of the fall-back after this iteration, and the cost: one step, or two to catch up."""
        cost, spent = Counter(solver.init_cost if state.iteration == state.delay else {}), dict[str, Tensor]()
        classical = solver.init(problem, state.start) if state.classical is None else state.classical
        for _ in range(min(2, state.iteration + 1 - classical.iteration)):
            classical = solver.step(problem, classical)
            cost.update(solver.step_cost)
            spent = add_evaluations(spent, classical.evaluations)
        if classical.known_value is None:
            cost["value"] += 1
        return classical, add_evaluations(full_counts(cost, classical.x), spent)

    def _saved(self, learned: State, active: Tensor) -> dict[str, Tensor]:
        """Return the difference to the declared cost: retired instances and known values cost nothing."""
        idle = (~active).long()
        declared = {name: -count * idle for name, count in self.solver.step_cost.items()}
        beyond = {name: count * active for name, count in learned.evaluations.items()}
        value = -idle if learned.known_value is None else torch.full_like(idle, -1)
        return add_evaluations(declared, beyond, {"value": value})


def _value(problem: Problem, state: State) -> Tensor:
    return problem.value(state.x) if state.known_value is None else state.known_value


@dataclass(frozen=True, kw_only=True)
class DescentSafeguardState(State):
    """Points, the state of the learned solver at these points, and the smoothness and values of f."""

    inner: State
    smoothness: Tensor  # L of each instance `(B,)`
    value: Tensor  # f(x) `(B,)`
    known_value = delegate("value")


class DescentSafeguard(_Guard[DescentSafeguardState]):
    r"""Take the step of the learned solver if f falls by at least ||g||^2 / (4 L), and x - g / L otherwise.

    g is the gradient at x and L the smoothness of f, so a gradient step lowers f by at least ||g||^2 / (2 L). Hence
    f(x_{k+1}) <= f(x_k) - ||g_k||^2 / (4 L) for both steps. The values never rise, and f(x_k) - min f is at most
    4 L R^2 / (k + 8), with R the largest distance from x* in the level set of x_0. Up to a factor of 2, this is the
    bound of gradient descent, for any learned solver.

    An iteration costs one function value and one subgradient more than the learned solver; mirror descent in l2 saves
    the subgradient. A fall-back costs another value and subgradient; `result.evaluations["fallback"]` counts the
    fall-backs. The problem has to be smooth on the whole space; for other problems use `Safeguard`.

    Args:
        solver: The learned solver.

    >>> import lmd
    >>> problem, x0 = lmd.problems.LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
    >>> result = lmd.run(DescentSafeguard(lmd.solvers.GradientDescent(10.0)), problem, x0, iterations=200)
    >>> bool((result.values - problem.minimum() < 1e-6).all()), result.evaluations["fallback"].tolist()
    (True, [200, 200, 200])
    """

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.solver.needs, "smoothness")

    def keeps_to_domain(self, problem: Problem) -> bool:
        """Return whether the problem has no domain; gradient steps would leave a domain."""
        return problem.domain is None

    def begin(self, problem: Problem, x: Tensor, inner: State) -> DescentSafeguardState:
        value = problem.value(x)
        L = torch.as_tensor(problem.smoothness, dtype=value.dtype, device=value.device).expand_as(value)
        return DescentSafeguardState(x, inner=inner, smoothness=L, value=value)

    def step(self, problem: Problem, state: DescentSafeguardState) -> DescentSafeguardState:
        inner = self.solver.step(problem, state.inner)
        x, value = inner.x, problem.value(inner.x)
        sure = self._squared_norm(problem, state, inner) / (2 * state.smoothness)
        refused = ~(value <= state.value - PROGRESS * sure)  # True for a NaN
        inner = replace(inner, iteration=state.iteration + 1)
        if bool(refused.any()):
            x = take(refused, state.x - problem.subgradient(state.x) / per_instance(state.smoothness, x), x)
            value = torch.where(refused, problem.value(x), value)
            inner = _merge(refused, self.solver.init(problem, x), inner)
        fallback = refused.long()
        return DescentSafeguardState(
            x,
            state.iteration + 1,
            {**inner.diagnostics, "fallback": refused.to(value.dtype)},
            add_evaluations(inner.evaluations, dict.fromkeys(("fallback", "subgradient", "value"), fallback)),
            inner=inner,
            smoothness=state.smoothness,
            value=value,
        )

    def _squared_norm(self, problem: Problem, state: DescentSafeguardState, inner: State) -> Tensor:
        """Return ||g||_2^2 at x `(B,)`, from the diagnostics if the step was mirror descent from x."""
        geometry, noticed = self.solver.geometry, inner.diagnostics
        from_x = state.inner.iterate is state.inner.x and "step_size" in noticed  # accelerated steps do not report it
        if geometry is not None and geometry.norm == "l2" and from_x:
            return noticed["subgradient_norm"].square()
        return norm_of(problem.subgradient(state.x), "l2").square()


def _merge(where: Tensor, fresh: State, old: State) -> State:
    """Return `fresh` for some of the instances and `old` for the others; fields that are None in `fresh` become NaN."""
    merged: dict[str, Any] = {}
    for name in (field.name for field in fields(old)):
        new, before = getattr(fresh, name), getattr(old, name)
        if name in ("iteration", "diagnostics", "evaluations") or before is None:
            continue
        if not isinstance(before, Tensor) or before.shape[:1] != where.shape:
            raise InputError(
                "solver", f"one whose state keeps {name} for the whole batch", "one that keeps it per instance"
            )
        merged[name] = take(where, torch.full_like(before, torch.nan) if new is None else new, before)
    return replace(old, **merged)
