"""Mirror descent with a step for each instance and iteration that is found by backtracking, plain and accelerated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.errors import InputError
from lmd.mirrors.base import DUAL_NORM, Mirror, norm_of
from lmd.problems.base import Problem
from lmd.solvers.base import DualState, Solver
from lmd.terms.base import inner
from lmd.terms.domains import same_set

MAX_DOUBLINGS = 40
"""Doublings of the curvature in one step; an instance that needs more stays where it is, and goes on in the next."""

CURVATURE_DECAY = 0.9
"""What the curvature of the step before is multiplied by for the first trial of a step."""

MAX_ROUNDINGS = 8
"""Units of rounding of the values by which the rule may be missed."""


@dataclass(frozen=True, kw_only=True)
class BacktrackedState(DualState):
    """Two points, and what is known of the curvature between them."""

    mirrored: Tensor
    """z `(B, ...)`, the point of the mirror steps."""

    curvature: Tensor
    """M `(B,)`: f was M-smooth relative to the potential along the last step."""

    width: Tensor
    """What the widths of the smoothing begin at, `()`."""

    weight: Tensor
    """A `(B,)`: A (f(x) - min f) <= B(x*, z_0) for smooth f. 0 at the start."""


class Trial(NamedTuple):
    """A step with the curvature M, instance by instance."""

    x: Tensor
    mirrored: Tensor
    weight: Tensor
    gradient: Tensor
    dual: Tensor
    excess: Tensor
    """How far f(x) is above what the rule allows `(B,)`."""


def per_point(numbers: Tensor, x: Tensor) -> Tensor:
    """One number per instance `(B,)` in the shape that multiplies x `(B, ...)`."""
    return numbers.reshape(-1, *(1,) * (x.ndim - 1))


class BacktrackedMirrorDescent(Solver[BacktrackedState, Problem]):
    r"""x_{k+1} = to_primal(to_dual(x_k) - g_k / M_k), M_k the first of 0.9 M_{k-1} 2^j, j = 0, 1, ..., that has

        f(x_{k+1}) <= f(x_k) + <g_k, x_{k+1} - x_k> + M_k B(x_{k+1}, x_k),

    for each instance. That is all that the theorem of relative smoothness needs, so no constant has to be known
    ([Bauschke, Bolte and Teboulle 2017](https://doi.org/10.1287/moor.2016.0817)). A problem that is not smooth is
    smoothed by widths w_k = `width` delay / (delay + k), which fall to 0. The mirror has to be exact.

    Args:
        mirror: An exact one.
        width: w_0, for problems that are not smooth, positive.
        delay: Iterations until the width is half of it, positive.
    """

    def __init__(self, mirror: Mirror, width: float = 0.1, delay: float = 10.0) -> None:
        super().__init__()
        if not isinstance(mirror, Mirror) or not mirror.is_exact:
            raise InputError("mirror", type(mirror).__name__, "an lmd.mirrors.Mirror whose inverse is exact")
        self.mirror = mirror
        self.width, self.delay = check_positive("width", width), check_positive("delay", delay)

    @property
    def geometry(self) -> Mirror | None:
        return self.mirror

    @property
    def step_cost(self) -> dict[str, int]:
        """The trials are counted in the state."""
        return {}

    def keeps_to_domain(self, problem: Problem) -> bool:
        return same_set(self.mirror.domain, problem.domain)

    def init(self, problem: Problem, x0: Tensor) -> BacktrackedState:
        self.mirror.check("x0", x0)
        none, ones = x0.new_empty(len(x0), 0), x0.new_ones(len(x0))
        width = x0.new_tensor(self.width)
        return BacktrackedState(x0, dual=none, mirrored=x0, curvature=ones, width=width, weight=0 * ones)

    def resume(self, problem: Problem, x: Tensor, dual: Tensor) -> BacktrackedState:
        return replace(self.init(problem, x), dual=dual)

    def weights(self, curvature: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The step-size a and the next A, both `(B,)`, for the curvature M: both 1 / M here."""
        return 1 / curvature, 1 / curvature

    def step(self, problem: Problem, state: BacktrackedState) -> BacktrackedState:
        width = state.width * (self.delay / (self.delay + state.iteration))
        curvature = CURVATURE_DECAY * state.curvature
        trial = self._try(problem, state, curvature, width)
        trials = torch.ones_like(curvature, dtype=torch.int64)
        for _ in range(MAX_DOUBLINGS):
            failed = ~(trial.excess <= 0)
            if not bool(failed.any()):
                break
            curvature = torch.where(failed, 2 * curvature, curvature)
            trials = trials + failed
            trial = self._try(problem, state, curvature, width)
        return self._next(state, trial, curvature, trials)

    def _try(self, problem: Problem, state: BacktrackedState, curvature: Tensor, width: Tensor) -> Trial:
        size, weight = self.weights(curvature, state.weight)
        share = per_point(size / weight, state.x)
        between = torch.lerp(state.x, state.mirrored, share)
        gradient, dual = problem.smoothed_gradient(between, width)
        mirrored = self.mirror.descend(state.mirrored, per_point(size, gradient) * gradient)
        x = torch.lerp(state.x, mirrored, share)
        before, after = problem.smoothed_value(between, width), problem.smoothed_value(x, width)
        allowed = before + inner(gradient, x - between) + self.mirror.divergence(mirrored, state.mirrored) / weight
        slack = MAX_ROUNDINGS * torch.finfo(x.dtype).eps * (before.abs() + after.abs())
        return Trial(x, mirrored, weight, gradient, dual, after - allowed - slack)

    def _next(self, state: BacktrackedState, trial: Trial, curvature: Tensor, trials: Tensor) -> BacktrackedState:
        """The state after the trial where the rule holds; elsewhere the point before, and M to go on doubling from."""
        good = trial.excess <= 0
        moved = per_point(good, state.x)
        observed = {} if trial.dual.numel() else self.observe(state, trial, curvature, good)
        return BacktrackedState(
            torch.where(moved, trial.x, state.x),
            state.iteration + 1,
            observed,
            {"value": 2 * trials, "subgradient": trials, "to_dual": trials, "to_primal": trials},
            dual=trial.dual,
            mirrored=torch.where(moved, trial.mirrored, state.mirrored),
            curvature=curvature,
            width=state.width,
            weight=torch.where(good, trial.weight, state.weight),
        )

    def observe(self, state: BacktrackedState, trial: Trial, curvature: Tensor, good: Tensor) -> dict[str, Tensor]:
        """What certificates need of a step on a smooth problem: a step that did not hold has no known size."""
        smoothness = torch.where(good, curvature, torch.nan)
        norm = norm_of(trial.gradient, DUAL_NORM[self.mirror.norm])
        return {"step_size": 1 / smoothness, "subgradient_norm": norm, "relative_smoothness": smoothness}


class AcceleratedBacktrackedMirrorDescent(BacktrackedMirrorDescent):
    r"""The same with momentum: with a = (1 + \sqrt{1 + 4 M A}) / 2 M, A' = A + a and y = x + a/A' (z - x),

        z' = to_primal(to_dual(z) - a grad f(y)),   x' = x + a/A' (z' - x),   M the first of which
        f(x') <= f(y) + <grad f(y), x' - y> + B(z', z) / A'.

    Then A (f(x) - min f) <= B(x*, z_0) in every iteration. For an L-smooth f and a sigma-strongly convex potential any
    M of L / sigma or more will do, so that A grows as k^2 (docs/guarantees.md; the idea is that of
    [Hanzely, Richtarik and Xiao 2021](https://doi.org/10.1007/s10589-021-00273-8)).

    Args:
        mirror: An exact one.
        width: w_0, for problems that are not smooth, positive.
        delay: Iterations until the width is half of it, positive.
    """

    def weights(self, curvature: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        size = (1 + (1 + 4 * curvature * weight).sqrt()) / (2 * curvature)
        return size, weight + size

    def observe(self, state: BacktrackedState, trial: Trial, curvature: Tensor, good: Tensor) -> dict[str, Tensor]:
        norm = norm_of(trial.gradient, DUAL_NORM[self.mirror.norm])
        return {"weight": state.weight, "subgradient_norm": norm}
