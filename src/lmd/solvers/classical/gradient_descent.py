"""Gradient descent, Nesterov's method, Adam and the proximal gradient method."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.problems.penalised import Split, split_of
from lmd.solvers.base import S, Solver, State
from lmd.solvers.steps import Steps, as_steps
from lmd.solvers.tracking import take
from lmd.terms.base import inner, per_instance, size_of

MAX_DOUBLINGS = 60  # doublings of the curvature in one step, after which an instance stays where it is
CURVATURE_DECAY = 0.7  # what the curvature of the step before is multiplied by for the first trial of a step
MAX_ROUNDINGS = 8  # units of rounding of the values by which the rule of a step may be missed
PROBE_LENGTH = 1e-3  # the length of the move that the first curvature is measured along, relative to the size of x or 1


class _GradientSolver(Solver[S]):
    """What the methods share: steps, and one subgradient for each."""

    step_cost: ClassVar = {"subgradient": 1}

    def __init__(self, steps: Steps | float = 0.01) -> None:
        super().__init__()
        self.steps = as_steps(steps)


def project(problem: Problem, x: Tensor) -> Tensor:
    """The points of the problem's domain nearest to x `(B, ...)`."""
    return x if problem.domain is None else problem.domain.nearest(x)


class GradientDescent(_GradientSolver[State]):
    """x_{k+1} = P(x_k - t_k g_k), g_k a subgradient at x_k, P the Euclidean projection onto the problem's domain.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    stays_in_domain = True

    def init(self, problem: Problem, x0: Tensor) -> State:
        return State(x0)

    def step(self, problem: Problem, state: State) -> State:
        x = state.x - self.steps(state.iteration) * problem.subgradient(state.x)
        return State(project(problem, x), state.iteration + 1)


@dataclass(frozen=True, kw_only=True)
class NesterovState(State):
    """Points, extrapolated points y_k and m_k."""

    extrapolated: Tensor
    momentum: float = 1.0


class Nesterov(_GradientSolver[NesterovState]):
    r"""x_{k+1} = P(y_k - t_k g(y_k)), y_{k+1} = P(x_{k+1} + (m_k - 1)/m_{k+1} (x_{k+1} - x_k)).

    m_0 = 1 and m_{k+1} = (1 + \sqrt{1 + 4 m_k^2}) / 2. Nesterov 1983; Beck and Teboulle 2009. P is the projection onto
    the problem's domain; the extrapolated point is projected too, as the problem may be defined nowhere else.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    stays_in_domain = True

    def init(self, problem: Problem, x0: Tensor) -> NesterovState:
        return NesterovState(x0, extrapolated=x0)

    def step(self, problem: Problem, state: NesterovState) -> NesterovState:
        y = state.extrapolated
        x = project(problem, y - self.steps(state.iteration) * problem.subgradient(y))
        momentum = (1 + math.sqrt(1 + 4 * state.momentum**2)) / 2
        ahead = project(problem, x + ((state.momentum - 1) / momentum) * (x - state.x))
        return NesterovState(x, state.iteration + 1, extrapolated=ahead, momentum=momentum)


@dataclass(frozen=True, kw_only=True)
class AdamState(State):
    """Points, and the running averages of the gradient and of its square."""

    mean: Tensor
    square: Tensor


class Adam(_GradientSolver[AdamState]):
    """x_{k+1} = x_k - t_k mean / (sqrt(square) + epsilon) with bias-corrected averages. Kingma and Ba 2015.

    Args:
        steps: The step-sizes t_k: a positive number, or `Steps`.
        betas: The factors of the averages of gradients and of their squares, in [0, 1).
        epsilon: What the root of the square is kept away from 0 by, positive.
    """

    def __init__(
        self, steps: Steps | float = 0.05, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8
    ) -> None:
        super().__init__(steps)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise InputError("betas", betas, "two numbers in [0, 1)")
        self.betas = (float(betas[0]), float(betas[1]))
        self.epsilon = check_positive("epsilon", epsilon)

    def init(self, problem: Problem, x0: Tensor) -> AdamState:
        return AdamState(x0, mean=torch.zeros_like(x0), square=torch.zeros_like(x0))

    def step(self, problem: Problem, state: AdamState) -> AdamState:
        gradient = problem.subgradient(state.x)
        first, second = self.betas
        k = state.iteration + 1
        mean = first * state.mean + (1 - first) * gradient
        square = second * state.square + (1 - second) * gradient.square()
        direction = (mean / (1 - first**k)) / ((square / (1 - second**k)).sqrt() + self.epsilon)
        return AdamState(state.x - self.steps(state.iteration) * direction, k, mean=mean, square=square)


@dataclass(frozen=True, kw_only=True)
class DescentState(State):
    """Points of a method whose values fall in every step."""

    value: Tensor  # f(x) `(B,)`

    # Which instances `(B,)` found nothing lower without what they learned on the way, and stay where they are
    stuck: Tensor

    @property
    def known_value(self) -> Tensor:
        return self.value

    @property
    def settled(self) -> Tensor | None:
        return self.stuck


@dataclass(frozen=True, kw_only=True)
class ProximalGradientState(DescentState):
    """Two points, and what is known of the curvature between them."""

    before: Tensor  # the point one iteration earlier `(B, ...)`; x itself after a restart
    curvature: Tensor  # M `(B,)`: f was M-smooth along the last step
    pace: Tensor  # t `(B,)`, of which the momentum is made: 1 after a restart


class ProximalGradient(Solver[ProximalGradientState]):
    r"""f + g with a gradient of f and a prox of g, the penalty or the domain:

        y = x_k + (t_k - 1) / t_{k+1} (x_k - x_{k-1}),   x_{k+1} = prox_{g/M}(y - grad f(y) / M),

    t_{k+1} = (1 + \sqrt{1 + 4 t_k^2}) / 2, y moved into the domain, M the first of 0.7 2^j times the one before with
    f(x_{k+1}) <= f(y) + <grad f(y), x_{k+1} - y> + M/2 ||x_{k+1} - y||^2, for each instance ([Beck and Teboulle
    2009](https://doi.org/10.1137/080716542)). An instance whose value would rise stays and goes on with t = 1, without
    momentum ([O'Donoghue and Candes 2015](https://doi.org/10.1007/s10208-013-9150-3)), which adapts to strong
    convexity. Values fall in every step, and no constant has to be known.

    >>> import lmd
    >>> problem = lmd.problems.PenalisedProblem(
    ...     lmd.problems.LeastSquares(torch.eye(2), torch.tensor([[3.0, 0.2]])), lmd.terms.L1(2.0)
    ... )
    >>> lmd.run(ProximalGradient(), problem, torch.zeros(1, 2), 50).x.round(decimals=3)
    tensor([[2., 0.]])
    """

    stays_in_domain = True
    init_cost: ClassVar = {"value": 1, "subgradient": 2}
    step_cost: ClassVar = {}  # the trials are counted in the state

    def init(self, problem: Problem, x0: Tensor) -> ProximalGradientState:
        """The first curvature is that of f along a short step."""
        split, none = split_of(problem), torch.zeros(len(x0), dtype=torch.bool, device=x0.device)
        gradient, tiny = split.gradient(x0), torch.finfo(x0.dtype).tiny
        length = PROBE_LENGTH * (size_of(x0) + (size_of(x0) == 0)) / size_of(gradient).clamp(min=tiny)
        probe = split.prox(x0 - per_instance(length, x0) * gradient, length)
        curvature = size_of(split.gradient(probe) - gradient) / size_of(probe - x0)
        known = torch.isfinite(curvature) & (curvature > 0)
        curvature = torch.where(known, curvature, size_of(gradient).clamp(min=tiny) / (1 + size_of(x0)))
        value, pace = problem.value(x0), torch.ones_like(curvature)
        return ProximalGradientState(x0, value=value, before=x0, curvature=curvature, pace=pace, stuck=none)

    def step(self, problem: Problem, state: ProximalGradientState) -> ProximalGradientState:
        split, curvature = split_of(problem), CURVATURE_DECAY * state.curvature
        pace = (1 + (1 + 4 * state.pace.square()).sqrt()) / 2
        y = torch.lerp(state.before, state.x, per_instance(1 + (state.pace - 1) / pace, state.x))
        y = y if split.term is None else split.term.nearest(y)
        attempt = functools.partial(_try, split, y, split.value(y), split.gradient(y))
        (x, excess), curvature, trials = backtrack(attempt, curvature, ~state.stuck, MAX_DOUBLINGS)
        value = problem.value(x)
        falls = (excess <= 0) & (value < state.value) & ~state.stuck
        return ProximalGradientState(
            take(falls, x, state.x),
            state.iteration + 1,
            evaluations={"value": trials + 2, "subgradient": torch.ones_like(trials)},
            value=torch.where(falls, value, state.value),
            before=state.x,
            curvature=torch.where(excess <= 0, curvature, state.curvature),
            pace=torch.where(falls, pace, 1),
            stuck=state.stuck | (~falls & (state.pace == 1)),
        )


def _try(split: Split, y: Tensor, before: Tensor, gradient: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
    """The step with the curvature M, and how far f is above what the rule allows `(B,)`."""
    x = split.prox(y - per_instance(1 / curvature, y) * gradient, 1 / curvature)
    after, move = split.value(x), x - y
    allowed = before + inner(gradient, move) + curvature / 2 * inner(move, move)
    slack = MAX_ROUNDINGS * torch.finfo(x.dtype).eps * (before.abs() + after.abs())
    return x, after - allowed - slack


def backtrack(
    attempt: Callable[[Tensor], Any], curvature: Tensor, searching: Tensor | bool, doublings: int
) -> tuple[Any, Tensor, Tensor]:
    """Return the first trial that holds, its curvature `(B,)`, which is doubled until then, and the number of trials.

    `attempt` maps curvatures to a tuple that ends in how far the rule is missed `(B,)`.
    """
    trial, trials = attempt(curvature), torch.ones_like(curvature, dtype=torch.int64)
    for _ in range(doublings):
        failed = ~(trial[-1] <= 0) & searching
        if not bool(failed.any()):
            break
        curvature = torch.where(failed, 2 * curvature, curvature)
        trials = trials + failed
        trial = attempt(curvature)
    return trial, curvature, trials
