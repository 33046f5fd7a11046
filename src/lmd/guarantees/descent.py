"""The safeguard for smooth problems: a learned step is taken if it gains about as much as a gradient step must."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lmd.errors import InputError
from lmd.guarantees.safeguard import step_costs
from lmd.mirrors.base import norm_of
from lmd.problems.base import Problem
from lmd.solvers.base import State, Wrapper, add_evaluations
from lmd.solvers.tracking import take
from lmd.terms.base import per_instance

PROGRESS = 0.5  # the share of the proven gain of a gradient step that a learned step has to gain


@dataclass(frozen=True, kw_only=True)
class DescentSafeguardState(State):
    """Points, the state of the learned solver at them, and what is known of f there."""

    inner: State

    floor: Tensor  # a lower bound on f(x) `(B,)`: f(x) itself after an accepted step
    smoothness: Tensor  # L of each instance `(B,)`
    value: Tensor | None  # f(x) `(B,)`, where all are known
    resting: Tensor  # instances `(B,)` that were refused in the last step and do not try in the next

    @property
    def known_value(self) -> Tensor | None:
        return self.value


class DescentSafeguard(Wrapper[DescentSafeguardState]):
    r"""Take the step of the learned solver if f falls by at least ||g||^2 / (4 L), and x - g / L otherwise.

    g is the gradient at x and L the smoothness of f, so a gradient step gains at least ||g||^2 / (2 L). Whichever step
    is taken, f(x_{k+1}) <= f(x_k) - ||g_k||^2 / (4 L). So values never rise, and f(x_k) - min f <= 4 L R^2 / (k + 8), R
    the radius of the starting level set. Up to a factor of 2 this is the bound of gradient descent, for any learned
    solver.

    An iteration costs one function value, and a fall-back one subgradient. After a refused learned step an instance
    pauses for one iteration, in which f(x) is evaluated. `result.evaluations["fallback"]` counts the gradient steps.
    This is for smooth problems on the whole space; for others use `Safeguard`.

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
        """Return whether there is no domain: gradient steps leave any other set."""
        return problem.domain is None

    @property
    def init_cost(self) -> dict[str, int]:
        return {**self.solver.init_cost, "value": self.solver.init_cost.get("value", 0) + 1}

    @property
    def step_cost(self) -> dict[str, int]:
        """One value; the rest is counted in the state."""
        return {"value": 1}

    def init(self, problem: Problem, x0: Tensor) -> DescentSafeguardState:
        value = problem.value(x0)
        none = torch.zeros_like(value, dtype=torch.bool)
        L = torch.as_tensor(problem.smoothness, dtype=value.dtype, device=value.device).expand_as(value)
        return DescentSafeguardState(
            x0, inner=self.solver.init(problem, x0), floor=value, smoothness=L, value=None, resting=none
        )

    def step(self, problem: Problem, state: DescentSafeguardState) -> DescentSafeguardState:
        trying = ~state.resting
        inner = self.solver.step(problem, state.inner) if bool(trying.any()) else state.inner
        value = problem.value(take(trying, inner.x, state.x))
        sure = self._squared_norm(problem, state, inner) / (2 * state.smoothness)
        accepted = trying & (value <= state.floor - PROGRESS * sure)  # never for a NaN
        known = torch.where(trying, state.floor, value)
        x, fall = self._descend(problem, state, ~accepted)
        x = take(accepted, inner.x, x)
        fallback = {"fallback": (~accepted).long(), "subgradient": (~accepted).long()}
        return DescentSafeguardState(
            x,
            state.iteration + 1,
            {**inner.diagnostics, "fallback": (~accepted).to(value.dtype)},
            add_evaluations(step_costs(self.solver, inner, trying), fallback),
            inner=self._resume(problem, inner, x, ~accepted, state.iteration + 1),
            floor=torch.where(accepted, value, known - fall),
            smoothness=state.smoothness,
            value=value if bool(accepted.all()) else None,
            resting=trying & ~accepted,
        )

    def _squared_norm(self, problem: Problem, state: DescentSafeguardState, inner: State) -> Tensor:
        """Return ||g||_2^2 at x `(B,)`: from the diagnostics where the step was mirror descent from x."""
        geometry, noticed = self.solver.geometry, inner.diagnostics
        from_x = state.inner.iterate is state.inner.x and "step_size" in noticed  # accelerated steps tell no size
        if geometry is not None and geometry.norm == "l2" and from_x:
            return noticed["subgradient_norm"].square()
        return norm_of(problem.subgradient(state.x), "l2").square()

    @staticmethod
    def _descend(problem: Problem, state: DescentSafeguardState, where: Tensor) -> tuple[Tensor, Tensor]:
        """Return x - g / L for some of the instances, and the most that f can fall by that: ||g||^2 / L `(B,)`."""
        x = state.x
        if not bool(where.any()):
            return x, torch.zeros_like(state.smoothness)
        if problem.batch_size is None:
            gradient = problem.subgradient(x) * per_instance(where, x)
        else:
            index = where.nonzero().flatten()
            gradient = torch.zeros_like(x).index_copy(0, index, problem.select(index).subgradient(x[index]))
        fall = norm_of(gradient, "l2").square() / state.smoothness
        return x - gradient / per_instance(state.smoothness, x), fall

    def _resume(self, problem: Problem, inner: State, x: Tensor, moved: Tensor, iteration: int) -> State:
        """Return the state of the learned solver, initialised at x for the instances that `moved` without it."""
        inner = replace(inner, iteration=iteration)
        if not bool(moved.any()):
            return inner
        return _merge(moved, self.solver.init(problem, x), inner)


def _merge(where: Tensor, fresh: State, old: State) -> State:
    """Return `fresh` for some of the instances, `old` for the others; what a fresh state does not know is NaN."""
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
