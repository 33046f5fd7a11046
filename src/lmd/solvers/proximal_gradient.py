"""The accelerated proximal gradient method with backtracking and restarts: f + g from values and gradients alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.problems.base import Problem
from lmd.problems.penalised import Split, split_of
from lmd.solvers.base import Solver, State
from lmd.terms.base import inner, per_instance, size_of

TRIALS = 60
"""Doublings of the curvature in one step, after which an instance stays where it is."""

EASE = 0.7
"""What the curvature of the step before is multiplied by for the first trial of a step."""

SLACK = 8
"""Units of rounding of the values by which the rule of a step may be missed."""

PROBE = 1e-3
"""The length of the move that the first curvature is measured along, relative to the size of x or 1."""


@dataclass(frozen=True, kw_only=True)
class ProximalGradientState(State):
    """Two points, and what is known of the curvature between them."""

    value: Tensor
    """F(x) `(B,)`."""

    ahead: Tensor
    """z `(B, ...)`, the point of the gradient steps."""

    curvature: Tensor
    """M `(B,)`: f was M-smooth along the last step."""

    weight: Tensor
    """A `(B,)`: A (F(x) - min F) <= ||x* - z_0||^2 / 2, z_0 where it restarted last. 0 there."""

    stuck: Tensor
    """Which instances `(B,)` found nothing lower from a restart, and stay where they are."""

    @property
    def known_value(self) -> Tensor:
        return self.value

    @property
    def settled(self) -> Tensor | None:
        return self.stuck


class Trial(NamedTuple):
    """A step with the curvature M, instance by instance."""

    x: Tensor
    ahead: Tensor
    weight: Tensor
    excess: Tensor
    """How far f(x) is above what the rule allows `(B,)`."""


class ProximalGradient(Solver[ProximalGradientState, Problem]):
    r"""f + g with a gradient of f and a prox of g, the penalty or the domain: with A' = A + a, y = x + a/A' (z - x),

        z' = prox_{a g}(z - a grad f(y)),   x' = x + a/A' (z' - x),   a = (1 + \sqrt{1 + 4 M A}) / 2 M,

    M the first of 0.7 2^j times the one before for which f(x') <= f(y) + <grad f(y), x' - y> + ||z' - z||^2 / 2 A', for
    each instance ([Tseng 2008](https://www.mit.edu/~dimitrib/PTseng/papers/apgm.pdf)). All points lie in the domain of
    g. An instance whose value would rise goes on from x with A = 0 ([O'Donoghue and Candes
    2015](https://doi.org/10.1007/s10208-013-9150-3)), which adapts to strong convexity. No constant has to be known.

    >>> import lmd
    >>> problem = lmd.problems.PenalisedProblem(
    ...     lmd.problems.LeastSquares(torch.eye(2), torch.tensor([[3.0, 0.2]])), lmd.terms.L1(2.0)
    ... )
    >>> lmd.run(ProximalGradient(), problem, torch.zeros(1, 2), 50).x.round(decimals=3)
    tensor([[2., 0.]])
    """

    def config(self) -> dict[str, Any]:
        return {}

    @property
    def init_cost(self) -> dict[str, int]:
        return {"value": 1, "subgradient": 2}

    @property
    def step_cost(self) -> dict[str, int]:
        """Nothing that is known beforehand: the trials are counted in the state."""
        return {}

    def keeps_to_domain(self, problem: Problem) -> bool:
        return True

    def init(self, problem: Problem, x0: Tensor) -> ProximalGradientState:
        """The first curvature is that of f along a short step."""
        split, none = split_of(problem), torch.zeros(len(x0), dtype=torch.bool, device=x0.device)
        gradient, tiny = split.gradient(x0), torch.finfo(x0.dtype).tiny
        length = PROBE * (size_of(x0) + (size_of(x0) == 0)) / size_of(gradient).clamp(min=tiny)
        probe = split.prox(x0 - per_instance(length, x0) * gradient, length)
        moved = size_of(probe - x0)
        curvature = size_of(split.gradient(probe) - gradient) / moved
        known = torch.isfinite(curvature) & (curvature > 0)
        curvature = torch.where(known, curvature, size_of(gradient).clamp(min=tiny) / (1 + size_of(x0)))
        value = problem.value(x0)
        return ProximalGradientState(
            x0, value=value, ahead=x0, curvature=curvature, weight=torch.zeros_like(curvature), stuck=none
        )

    def step(self, problem: Problem, state: ProximalGradientState) -> ProximalGradientState:
        split, curvature = split_of(problem), EASE * state.curvature
        trial = _try(split, state, curvature)
        trials = torch.ones_like(state.stuck, dtype=torch.int64)
        for _ in range(TRIALS):
            failed = ~(trial.excess <= 0) & ~state.stuck
            if not bool(failed.any()):
                break
            curvature = torch.where(failed, 2 * curvature, curvature)
            trials = trials + failed
            trial = _try(split, state, curvature)
        value = problem.value(trial.x)
        falls = (trial.excess <= 0) & (value < state.value) & ~state.stuck
        taken = per_instance(falls, trial.x)
        assert isinstance(taken, Tensor)
        x = torch.where(taken, trial.x, state.x)
        return ProximalGradientState(
            x,
            state.iteration + 1,
            evaluations={"value": 2 * trials + 1, "subgradient": trials},
            value=torch.where(falls, value, state.value),
            ahead=torch.where(taken, trial.ahead, x),
            curvature=torch.where(trial.excess <= 0, curvature, state.curvature),
            weight=torch.where(falls, trial.weight, 0),
            stuck=state.stuck | (~falls & (state.weight == 0)),
        )


def _try(split: Split, state: ProximalGradientState, curvature: Tensor) -> Trial:
    size = (1 + (1 + 4 * curvature * state.weight).sqrt()) / (2 * curvature)
    weight = state.weight + size
    share, by = per_instance(size / weight, state.x), per_instance(size, state.x)
    between = torch.lerp(state.x, state.ahead, share)
    gradient = split.gradient(between)
    ahead = split.prox(state.ahead - by * gradient, size)
    x = torch.lerp(state.x, ahead, share)
    before, after = split.value(between), split.value(x)
    allowed = before + inner(gradient, x - between) + size_of(ahead - state.ahead).square() / (2 * weight)
    slack = SLACK * torch.finfo(x.dtype).eps * (before.abs() + after.abs())
    return Trial(x, ahead, weight, after - allowed - slack)
