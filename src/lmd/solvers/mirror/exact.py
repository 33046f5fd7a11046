"""Mirror descent with exact mirrors: steps found by backtracking, and learned steps before them."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_positive, shape_of
from lmd.errors import InputError
from lmd.mirrors.base import DUAL_NORM, Mirror, norm_of
from lmd.problems.base import Problem
from lmd.solvers.base import DualState, LearnedPrefix, Solver
from lmd.solvers.classical.gradient_descent import backtrack
from lmd.solvers.tracking import take
from lmd.terms.base import inner, per_instance
from lmd.terms.domains import same_set

WIDTH_RANGE = (1e-4, 1e3)  # the interval of learned widths
MAX_DOUBLINGS = 40  # of the curvature in one step; an instance that needs more goes on in the next
CURVATURE_DECAY = 0.9  # what the curvature of the step before is multiplied by for the first trial of a step
MAX_ROUNDINGS = 8  # units of rounding of the values by which the rule may be missed


@dataclass(frozen=True, kw_only=True)
class BacktrackedState(DualState):
    """Two points, and what is known of the curvature between them."""

    mirrored: Tensor  # z `(B, ...)`, the point of the mirror steps
    curvature: Tensor  # M `(B,)`: f was M-smooth relative to the potential along the last step
    width: Tensor  # what the widths of the smoothing begin at, `()`
    weight: Tensor  # A `(B,)`: A (f(x) - min f) <= B(x*, z_0) for smooth f. 0 at the start.


class Trial(NamedTuple):
    """A step with the curvature M, instance by instance; `excess` is how far f(x) is above what the rule allows."""

    x: Tensor
    mirrored: Tensor
    weight: Tensor
    gradient: Tensor
    dual: Tensor
    excess: Tensor


class BacktrackedMirrorDescent(Solver[BacktrackedState]):
    r"""x_{k+1} = to_primal(to_dual(x_k) - g_k / M_k), M_k the first of 0.9 M_{k-1} 2^j, j = 0, 1, ..., that has

        f(x_{k+1}) <= f(x_k) + <g_k, x_{k+1} - x_k> + M_k B(x_{k+1}, x_k),

    for each instance. That is all that the theorem of relative smoothness needs, so no constant has to be known
    ([Bauschke, Bolte and Teboulle 2017](https://doi.org/10.1287/moor.2016.0817)). A problem that is not smooth is
    smoothed by widths w_k = `width` delay / (delay + k), which fall to 0. The mirror has to be exact.

    `accelerated` it has momentum: with a = (1 + \sqrt{1 + 4 M A}) / 2 M, A' = A + a and y = x + a/A' (z - x),

        z' = to_primal(to_dual(z) - a grad f(y)),   x' = x + a/A' (z' - x),   M the first of which
        f(x') <= f(y) + <grad f(y), x' - y> + B(z', z) / A'.

    Then A (f(x) - min f) <= B(x*, z_0) in every iteration. For an L-smooth f and a sigma-strongly convex potential any
    M of L / sigma or more will do, so that A grows as k^2 (docs/guarantees.md; the idea is that of
    [Hanzely, Richtarik and Xiao 2021](https://doi.org/10.1007/s10589-021-00273-8)).

    Args:
        mirror: An exact one.
        width: w_0, for problems that are not smooth, positive.
        delay: Iterations until the width is half of it, positive.
        accelerated: With momentum.
    """

    step_cost: ClassVar = {}  # the trials are counted in the state

    def __init__(self, mirror: Mirror, width: float = 0.1, delay: float = 10.0, accelerated: bool = False) -> None:
        super().__init__()
        if not isinstance(mirror, Mirror) or not mirror.is_exact:
            raise InputError("mirror", type(mirror).__name__, "an lmd.mirrors.Mirror whose inverse is exact")
        self.mirror, self.accelerated = mirror, bool(accelerated)
        self.width, self.delay = check_positive("width", width), check_positive("delay", delay)

    @property
    def geometry(self) -> Mirror | None:
        return self.mirror

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
        """The step-size a and the next A, both `(B,)`, for the curvature M; both are 1 / M without momentum."""
        if not self.accelerated:
            return 1 / curvature, 1 / curvature
        size = (1 + (1 + 4 * curvature * weight).sqrt()) / (2 * curvature)
        return size, weight + size

    def step(self, problem: Problem, state: BacktrackedState) -> BacktrackedState:
        width = state.width * (self.delay / (self.delay + state.iteration))
        curvature = CURVATURE_DECAY * state.curvature
        attempt = functools.partial(self._try, problem, state, width)
        return self._next(state, *backtrack(attempt, curvature, True, MAX_DOUBLINGS))

    def _try(self, problem: Problem, state: BacktrackedState, width: Tensor, curvature: Tensor) -> Trial:
        size, weight = self.weights(curvature, state.weight)
        share = per_instance(size / weight, state.x)
        between = torch.lerp(state.x, state.mirrored, share)
        gradient, dual = problem.smoothed_gradient(between, width)
        mirrored = self.mirror.descend(state.mirrored, per_instance(size, gradient) * gradient)
        x = torch.lerp(state.x, mirrored, share)
        before, after = problem.smoothed_value(between, width), problem.smoothed_value(x, width)
        allowed = before + inner(gradient, x - between) + self.mirror.divergence(mirrored, state.mirrored) / weight
        slack = MAX_ROUNDINGS * torch.finfo(x.dtype).eps * (before.abs() + after.abs())
        return Trial(x, mirrored, weight, gradient, dual, after - allowed - slack)

    def _next(self, state: BacktrackedState, trial: Trial, curvature: Tensor, trials: Tensor) -> BacktrackedState:
        """The state after the trial where the rule holds; elsewhere the point before, and M to go on doubling from."""
        good = trial.excess <= 0
        observed = {} if trial.dual.numel() else self.observe(state, trial, curvature, good)
        return BacktrackedState(
            take(good, trial.x, state.x),
            state.iteration + 1,
            observed,
            {"value": 2 * trials, "subgradient": trials, "to_dual": trials, "to_primal": trials},
            dual=trial.dual,
            mirrored=take(good, trial.mirrored, state.mirrored),
            curvature=curvature,
            width=state.width,
            weight=torch.where(good, trial.weight, state.weight),
        )

    def observe(self, state: BacktrackedState, trial: Trial, curvature: Tensor, good: Tensor) -> dict[str, Tensor]:
        """What certificates need of a step on a smooth problem: a step that did not hold has no known size."""
        norm = norm_of(trial.gradient, DUAL_NORM[self.mirror.norm])
        if self.accelerated:
            return {"weight": state.weight, "subgradient_norm": norm}
        smoothness = torch.where(good, curvature, torch.nan)
        return {"step_size": 1 / smoothness, "subgradient_norm": norm, "relative_smoothness": smoothness}


@dataclass(frozen=True, kw_only=True)
class ExactState(DualState):
    """Points, those of the two iterations before, and the scale of the problem's gradients."""

    previous: Tensor
    earlier: Tensor
    unit: Tensor  # L `(B,)`: the smoothness of the problem, or of the smooth part of it; 1 where nothing is known


class ExactMirrorDescent(LearnedPrefix[ExactState]):
    r"""N learned iterations of mirror descent with a mirror, two momenta and a smoothing of its own for each,

        v_k = x_k + m_k (x_k - x_{k-1}) + n_k (x_{k-1} - x_{k-2}),
        x_{k+1} = to_primal_k(to_dual_k(v_k) - grad f_{w_k}(v_k) / L),

    and then accelerated `BacktrackedMirrorDescent` in the last of the mirrors, which converges from any point, so from
    x_N. f_w is f smoothed by w where it is not smooth (`Problem.smoothed_gradient`), or the mean of such for several
    `widths` in learned shares, which is a smoothing too; its dual points are feasible, so there is a duality gap in
    every iteration where the problem has one. Slopes of the mirrors take the place of step-sizes, in units of 1 / L.

    x_{-1} = x_{-2} is a guess, and m_0 begins at -1, which makes it v_0: x_0 with what is unknown filled in, or a point
    in `dimension` variables that is learned.

    Args:
        mirror: An exact one: that of the last iteration, and copies of it for the others.
        iterations: N.
        width: The smoothing of the first iteration at the start, positive.
        final_width: That of the last, from which that of the rest falls.
        delay: Iterations of the rest until its width is half of it.
        dimension: Entries of the learned point; 0 is none.
        widths: Smoothings per iteration.
    """

    def __init__(
        self,
        mirror: Mirror,
        iterations: int = 10,
        width: float = 0.1,
        final_width: float = 0.02,
        delay: float = 10.0,
        dimension: int = 0,
        widths: int = 1,
    ) -> None:
        super().__init__()
        self.iterations, self.width = check_count("iterations", iterations), check_positive("width", width)
        self.tail: BacktrackedMirrorDescent = BacktrackedMirrorDescent(mirror, final_width, delay, accelerated=True)
        # Those of all learned iterations but the last, whose mirror is that of the rest
        self.mirrors = nn.ModuleList(copy.deepcopy(mirror) for _ in range(iterations - 1))
        apart = torch.linspace(0, check_count("widths", widths) - 1, widths)
        first = torch.linspace(math.log(width), math.log(final_width), iterations)
        # `(N, widths)`; a factor of e apart to begin with, as are their shares
        self.log_widths = nn.Parameter(first[:, None] + apart)
        self.log_shares = nn.Parameter(-apart.repeat(iterations, 1), requires_grad=widths > 1)
        self.momenta = nn.Parameter(torch.tensor([[-1.0, 0.0]] + [[0.2, 0.0]] * (iterations - 1)))  # m and n `(N, 2)`
        self.guess = nn.Parameter(
            torch.zeros(check_count("dimension", dimension, least=0)), requires_grad=dimension > 0
        )

    def config(self) -> dict[str, Any]:
        tail, sizes = self.tail, {"dimension": len(self.guess), "widths": self.log_widths.shape[1]}
        widths = {"width": self.width, "final_width": tail.width, "delay": tail.delay}
        return {"mirror": tail.mirror, "iterations": self.iterations, **widths, **sizes}

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": self.log_widths.shape[1], "to_dual": 1, "to_primal": 1}

    def keeps_to_domain(self, problem: Problem) -> bool:
        return same_set(self.tail.mirror.domain, problem.domain)

    def mirror_of(self, k: int) -> Mirror:
        """The mirror of iteration k < N."""
        return self.tail.mirror if k == self.iterations - 1 else cast(Mirror, self.mirrors[k])

    def init(self, problem: Problem, x0: Tensor) -> ExactState:
        self.tail.mirror.check("x0", x0)
        if len(self.guess) and x0.shape[1:] != self.guess.shape:
            raise InputError("x0", f"shape {shape_of(x0)}", f"shape (B, {len(self.guess)}), as its learned start has")
        guess = self.guess.expand_as(x0) if len(self.guess) else problem.fill_unknown(x0)
        none, unit = x0.new_empty(len(x0), 0), _unit(problem, x0)
        return ExactState(x0, dual=none, previous=guess, earlier=guess, unit=unit)

    def learned_step(self, problem: Problem, state: ExactState) -> ExactState:
        k, x, mirror = state.iteration, state.x, self.mirror_of(state.iteration)
        first, second = self.momenta[k]
        ahead = torch.addcmul(torch.lerp(state.previous, x, 1 + first), second, state.previous - state.earlier)
        if problem.domain is not None:
            ahead = problem.domain.nearest(ahead)
        shares = self.log_shares[k].softmax(dim=0)
        gradient, dual = problem.mixed_gradient(ahead, self.log_widths[k].exp(), shares)
        x_next = mirror.descend(ahead, gradient / per_instance(state.unit, gradient))
        previous, earlier = (x, state.previous) if k else (ahead, ahead)  # the first move is that from v_0
        return ExactState(x_next, k + 1, dual=dual, previous=previous, earlier=earlier, unit=state.unit)

    def tail_at(self, problem: Problem, x: Tensor, dual: Tensor) -> DualState:
        """The rest goes on with the least width of the last learned iteration."""
        return replace(self.tail.resume(problem, x, dual), width=self.log_widths[-1].amin().exp())

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep momenta in [-1, 1] and widths positive."""
        self.momenta.clamp_(-1, 1)
        low, high = self.log_widths.new_tensor(WIDTH_RANGE).log().tolist()
        self.log_widths.clamp_(low, high)


def _unit(problem: Problem, x: Tensor) -> Tensor:
    known = getattr(problem, "data_smoothness", None)
    known = problem.smoothness if known is None else known
    unit = x.new_ones(len(x)) * (1.0 if known is None else known)
    return torch.where(unit > 0, unit, 1.0)  # a constant function has gradients of 0 in any unit
