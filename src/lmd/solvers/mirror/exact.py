"""Mirror descent with exact mirrors: backtracked steps, and learned iterations followed by backtracked steps."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_positive, shape_of
from lmd.errors import InputError
from lmd.mirrors.base import DUAL_NORM, Mirror, norm_of
from lmd.problems.base import Problem
from lmd.solvers.base import DualState, LearnedPrefix, Solver, delegate
from lmd.solvers.classical.gradient_descent import backtrack, excess_of, project
from lmd.terms.base import inner, per_instance, take
from lmd.terms.domains import same_set

WIDTH_RANGE = (1e-4, 1e3)  # the interval of learned widths
MAX_DOUBLINGS = 40  # doublings of the curvature in one step; an instance that needs more continues in the next step
CURVATURE_DECAY = 0.9  # the first trial of a step uses the curvature of the last step times this factor


@dataclass(frozen=True, kw_only=True)
class BacktrackedState(DualState):
    """The points x and z, and the estimated curvature."""

    mirrored: Tensor  # z `(B, ...)`, the point of the mirror steps
    curvature: Tensor  # M `(B,)`: f was M-smooth relative to the potential along the last step
    width: Tensor  # initial width of the smoothing, `()`
    weight: Tensor  # A `(B,)` with A (f(x) - min f) <= B(x*, z_0) for smooth f; 0 at the start


class BacktrackedMirrorDescent(Solver[BacktrackedState]):
    r"""x_{k+1} = to_primal(to_dual(x_k) - g_k / M_k), M_k the first of 0.9 M_{k-1} 2^j, j = 0, 1, ..., with

        f(x_{k+1}) <= f(x_k) + <g_k, x_{k+1} - x_k> + M_k B(x_{k+1}, x_k),

    for each instance; B is the Bregman divergence. The theorem of relative smoothness needs only this condition, so no
    constant has to be known ([Bauschke, Bolte and Teboulle 2017](https://doi.org/10.1287/moor.2016.0817)). A problem
    that is not smooth is smoothed with widths w_k = `width` delay / (delay + k), which fall to 0.

    If `accelerated`, there is momentum: with a = (1 + \sqrt{1 + 4 M A}) / 2 M, A' = A + a and y = x + a/A' (z - x),

        z' = to_primal(to_dual(z) - a grad f(y)),   x' = x + a/A' (z' - x),   M the first one with
        f(x') <= f(y) + <grad f(y), x' - y> + B(z', z) / A'.

    Then A (f(x) - min f) <= B(x*, z_0) in every iteration. For an L-smooth f and a sigma-strongly convex potential,
    every M >= L / sigma fulfils the condition, so A grows as k^2 (docs/guarantees.md; the idea is from
    [Hanzely, Richtarik and Xiao 2021](https://doi.org/10.1007/s10589-021-00273-8)).

    Args:
        mirror: An exact mirror.
        width: w_0, for problems that are not smooth, positive.
        delay: Number of iterations after which the width is w_0 / 2, positive.
        accelerated: Whether to use momentum.
    """

    geometry = delegate("mirror")
    step_cost: ClassVar = {}  # the trials are counted in the state

    def __init__(self, mirror: Mirror, width: float = 0.1, delay: float = 10.0, accelerated: bool = False) -> None:
        super().__init__()
        if not isinstance(mirror, Mirror) or not mirror.is_exact:
            raise InputError("mirror", type(mirror).__name__, "an lmd.mirrors.Mirror whose inverse is exact")
        self.mirror, self.accelerated = mirror, bool(accelerated)
        self.width, self.delay = check_positive("width", width), check_positive("delay", delay)

    def keeps_to_domain(self, problem: Problem) -> bool:
        return same_set(self.mirror.domain, problem.domain)

    def init(self, problem: Problem, x0: Tensor) -> BacktrackedState:
        self.mirror.check("x0", x0)
        none, ones = x0.new_empty(len(x0), 0), x0.new_ones(len(x0))
        width = x0.new_tensor(self.width)
        return BacktrackedState(x0, dual=none, mirrored=x0, curvature=ones, width=width, weight=0 * ones)

    def resume(self, problem: Problem, x: Tensor, dual: Tensor) -> BacktrackedState:
        return replace(self.init(problem, x), dual=dual)

    def step(self, problem: Problem, state: BacktrackedState) -> BacktrackedState:
        width = state.width * (self.delay / (self.delay + state.iteration))

        def attempt(curvature: Tensor) -> tuple[Tensor, ...]:
            """Return a step with the curvature M `(B,)`, and the excess of f(x) over the upper bound."""
            size = weight = 1 / curvature  # a and A'
            if self.accelerated:
                size = (1 + (1 + 4 * curvature * state.weight).sqrt()) / (2 * curvature)
                weight = state.weight + size
            share = per_instance(size / weight, state.x)
            between = torch.lerp(state.x, state.mirrored, share)
            gradient, dual = problem.smoothed_gradient(between, width)
            mirrored = self.mirror.descend(state.mirrored, per_instance(size, gradient) * gradient)
            x = torch.lerp(state.x, mirrored, share)
            before, after = problem.smoothed_value(between, width), problem.smoothed_value(x, width)
            rise = inner(gradient, x - between) + self.mirror.divergence(mirrored, state.mirrored) / weight
            return x, mirrored, weight, gradient, dual, excess_of(after, before, rise)

        trial, curvature, trials = backtrack(attempt, CURVATURE_DECAY * state.curvature, True, MAX_DOUBLINGS)
        x, mirrored, weight, gradient, dual, excess = trial
        good = excess <= 0  # other instances keep their point; their next step starts from the doubled M
        return BacktrackedState(
            take(good, x, state.x),
            state.iteration + 1,
            {} if dual.numel() else self._observe(state, gradient, torch.where(good, curvature, torch.nan)),
            {"value": 2 * trials, "subgradient": trials, "to_dual": trials, "to_primal": trials},
            dual=dual,
            mirrored=take(good, mirrored, state.mirrored),
            curvature=curvature,
            width=state.width,
            weight=torch.where(good, weight, state.weight),
        )

    def _observe(self, state: BacktrackedState, gradient: Tensor, smoothness: Tensor) -> dict[str, Tensor]:
        """Return the diagnostics for certificates of smooth problems; a rejected step has an unknown size (NaN)."""
        norm = norm_of(gradient, DUAL_NORM[self.mirror.norm])
        if self.accelerated:
            return {"weight": state.weight, "subgradient_norm": norm}
        return {"step_size": 1 / smoothness, "subgradient_norm": norm, "relative_smoothness": smoothness}


@dataclass(frozen=True, kw_only=True)
class ExactState(DualState):
    """Points of the last three iterations, and the scale of the problem's gradients."""

    previous: Tensor
    earlier: Tensor
    unit: Tensor  # L `(B,)`: the smoothness of the problem or of its smooth part; 1 if unknown


class ExactMirrorDescent(LearnedPrefix[ExactState]):
    r"""N learned iterations of mirror descent, each with its own mirror, two momenta and a smoothing,

        v_k = x_k + m_k (x_k - x_{k-1}) + n_k (x_{k-1} - x_{k-2}),
        x_{k+1} = to_primal_k(to_dual_k(v_k) - grad f_{w_k}(v_k) / L),

    followed by accelerated `BacktrackedMirrorDescent` with the last mirror, which converges from any point. If f is not
    smooth, f_w is f smoothed by w (`Problem.smoothed_gradient`), or the mean of f_w over several `widths` with learned
    shares. The dual points of the smoothing are feasible, so there is a duality gap in every iteration if the problem
    has a dual. The slopes of the mirrors replace step sizes, in units of 1 / L; L is the smoothness of f, 1 if unknown.

    x_{-1} = x_{-2} is a guess of the solution: x_0 with unknown entries filled in, or a learned point in `dimension`
    variables. Training starts with m_0 = -1, so that v_0 is the guess.

    Args:
        mirror: An exact mirror for the last iteration; the other iterations have copies of it.
        iterations: N.
        width: Width of the smoothing in the first iteration before training, positive.
        final_width: Width in the last learned iteration before training; after it, widths fall.
        delay: Number of iterations after the learned ones until the width has halved.
        dimension: Number of entries of the learned guess; 0 is no learned guess.
        widths: Number of widths per iteration.
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
        # The mirrors of all learned iterations but the last one, which shares the mirror of the tail
        self.mirrors = nn.ModuleList(copy.deepcopy(mirror) for _ in range(iterations - 1))
        apart = torch.linspace(0, check_count("widths", widths) - 1, widths)
        first = torch.linspace(math.log(width), math.log(final_width), iterations)
        # `(N, widths)`; before training, neighbouring widths and shares differ by a factor of e
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

    def mirror_of(self, k: int) -> Mirror:
        """Return the mirror of iteration k < N."""
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
        ahead = project(problem, ahead)
        shares = self.log_shares[k].softmax(dim=0)
        gradient, dual = problem.mixed_gradient(ahead, self.log_widths[k].exp(), shares)
        x_next = mirror.descend(ahead, gradient / per_instance(state.unit, gradient))
        previous, earlier = (x, state.previous) if k else (ahead, ahead)  # the first move starts at v_0
        return ExactState(x_next, k + 1, dual=dual, previous=previous, earlier=earlier, unit=state.unit)

    def tail_at(self, problem: Problem, x: Tensor, dual: Tensor) -> DualState:
        """Return the state of the tail, which starts with the least width of the last learned iteration."""
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
