"""Gradient descent, Nesterov's method, Adam, the proximal gradient method and L-BFGS."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.problems.base import Problem, split_of
from lmd.solvers.base import S, Solver, State, delegate
from lmd.solvers.steps import Steps, as_steps
from lmd.terms.base import inner, per_instance, size_of, take

ADAM_BETAS = 0.9, 0.999  # the decay factors of Adam's averages of gradients and of squared gradients
ADAM_EPSILON = 1e-8  # added to the root of the average square, which may be 0
MAX_DOUBLINGS = 60  # doublings of the curvature in one step, after which an instance keeps its point
CURVATURE_DECAY = 0.7  # the first trial of a step uses the curvature of the last step times this factor
MAX_ROUNDINGS = 8  # tolerance of the descent condition, in units of rounding of the values
PROBE_LENGTH = 1e-3  # length of the move that measures the first curvature, relative to the size of x or to 1

SUFFICIENT_DECREASE, CURVATURE = 1e-4, 0.9  # the constants of the Wolfe conditions
MAX_TRIALS = 20  # evaluations of a line search

# A pair must have s'y > MIN_CURVATURE ||g|| s's: then L-BFGS converges without strong convexity
MIN_CURVATURE = 1e-10


class _GradientSolver(Solver[S]):
    """A method with step sizes and one subgradient per step.

    Args:
        steps: The step sizes t_k: a positive number, or `Steps`.
    """

    step_cost: ClassVar = {"subgradient": 1}

    def __init__(self, steps: Steps | float = 0.01) -> None:
        super().__init__()
        self.steps = as_steps(steps)


def project(problem: Problem, x: Tensor) -> Tensor:
    """Return the projection of x `(B, ...)` onto the problem's domain."""
    return x if problem.domain is None else problem.domain.nearest(x)


class GradientDescent(_GradientSolver[State]):
    """x_{k+1} = P(x_k - t_k g_k); g_k is a subgradient at x_k, P the Euclidean projection onto the problem's domain."""

    stays_in_domain = True

    def init(self, problem: Problem, x0: Tensor) -> State:
        return State(x0)

    def step(self, problem: Problem, state: State) -> State:
        x = state.x - self.steps(state.iteration) * problem.subgradient(state.x)
        return State(project(problem, x), state.iteration + 1)


@dataclass(frozen=True, kw_only=True)
class NesterovState(State):
    """Points x_k, extrapolated points y_k and the number m_k that defines the momentum."""

    extrapolated: Tensor
    momentum: float = 1.0


class Nesterov(_GradientSolver[NesterovState]):
    r"""x_{k+1} = P(y_k - t_k g(y_k)), y_{k+1} = P(x_{k+1} + (m_k - 1)/m_{k+1} (x_{k+1} - x_k)).

    m_0 = 1 and m_{k+1} = (1 + \sqrt{1 + 4 m_k^2}) / 2. Nesterov 1983; Beck and Teboulle 2009. P is the projection onto
    the problem's domain. The extrapolated point is projected too, because f may be undefined outside of the domain.
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
    """x_{k+1} = x_k - t_k mean / (sqrt(square) + epsilon) with bias-corrected averages. Kingma and Ba 2015."""

    def __init__(self, steps: Steps | float = 0.05) -> None:
        super().__init__(steps)

    def init(self, problem: Problem, x0: Tensor) -> AdamState:
        return AdamState(x0, mean=torch.zeros_like(x0), square=torch.zeros_like(x0))

    def step(self, problem: Problem, state: AdamState) -> AdamState:
        gradient = problem.subgradient(state.x)
        first, second = ADAM_BETAS
        k = state.iteration + 1
        mean = first * state.mean + (1 - first) * gradient
        square = second * state.square + (1 - second) * gradient.square()
        direction = (mean / (1 - first**k)) / ((square / (1 - second**k)).sqrt() + ADAM_EPSILON)
        return AdamState(state.x - self.steps(state.iteration) * direction, k, mean=mean, square=square)


@dataclass(frozen=True, kw_only=True)
class DescentState(State):
    """Points of a method that lowers the value in every step."""

    value: Tensor  # f(x) `(B,)`

    # Instances `(B,)` that found no lower value even after a restart; they no longer move
    stuck: Tensor

    known_value = delegate("value")
    settled = delegate("stuck")


@dataclass(frozen=True, kw_only=True)
class ProximalGradientState(DescentState):
    """Two points, and the estimated curvature between them."""

    before: Tensor  # the point one iteration earlier `(B, ...)`; x itself after a restart
    curvature: Tensor  # M `(B,)`: f was M-smooth along the last step
    pace: Tensor  # t_k `(B,)`, which defines the momentum; 1 after a restart


class ProximalGradient(Solver[ProximalGradientState]):
    r"""Minimise f + g by gradients of f and the prox of g, a penalty or a domain:

        y = x_k + (t_k - 1) / t_{k+1} (x_k - x_{k-1}),   x_{k+1} = prox_{g/M}(y - grad f(y) / M),

    t_{k+1} = (1 + \sqrt{1 + 4 t_k^2}) / 2; y is projected onto the domain. M is the last M times 0.7 2^j with the first
    j = 0, 1, ... for which f(x_{k+1}) <= f(y) + <grad f(y), x_{k+1} - y> + M/2 ||x_{k+1} - y||^2, per instance ([Beck
    and Teboulle 2009](https://doi.org/10.1137/080716542)). An instance whose value would rise keeps its point and
    restarts with t = 1 ([O'Donoghue and Candes 2015](https://doi.org/10.1007/s10208-013-9150-3)), which adapts to
    strong convexity. Values never rise, and no constant has to be known.

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
        """Return the first state; its curvature is measured along a short step."""
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
        before, gradient = split.value(y), split.gradient(y)

        def attempt(curvature: Tensor) -> tuple[Tensor, Tensor]:
            """Return the step with the curvature M, and the excess of f over the upper bound `(B,)`."""
            x = split.prox(y - per_instance(1 / curvature, y) * gradient, 1 / curvature)
            rise = inner(gradient, x - y) + curvature / 2 * inner(x - y, x - y)
            return x, excess_of(split.value(x), before, rise)

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


def excess_of(after: Tensor, before: Tensor, rise: Tensor) -> Tensor:
    """Return by how much `after` exceeds `before` plus the allowed `rise`, beyond rounding, `(B,)` each."""
    return after - (before + rise) - MAX_ROUNDINGS * torch.finfo(after.dtype).eps * (before.abs() + after.abs())


def backtrack(
    attempt: Callable[[Tensor], Any], curvature: Tensor, searching: Tensor | bool, doublings: int
) -> tuple[Any, Tensor, Tensor]:
    """Double curvatures until trials succeed; return the trial, its curvature `(B,)` and the number of trials `(B,)`.

    `attempt` maps curvatures to a tuple whose last entry is the excess `(B,)`; a trial succeeds if this is at most 0.
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


@dataclass(frozen=True)
class CurvaturePair:
    """The move and the change of the gradient in one step, flattened to `(B, n)`."""

    move: Tensor  # s = x_{k+1} - x_k
    change: Tensor  # y = g_{k+1} - g_k
    weight: Tensor  # 1 / s'y `(B,)`, or 0 for an instance that does not use this pair


@dataclass(frozen=True, kw_only=True)
class LBFGSState(DescentState):
    """Points with their values and subgradients, and the pairs of the last steps, oldest first."""

    gradient: Tensor
    pairs: tuple[CurvaturePair, ...]


class LBFGS(Solver[LBFGSState]):
    """x_{k+1} = x_k - t_k H_k g_k; H_k is the inverse curvature estimated from the last `memory` steps. Nocedal 1980.

    Each instance finds its own t_k by doubling and bisection until it fulfils the weak Wolfe conditions: the value
    falls and the slope along the step flattens. This also works if the problem is not smooth (Lewis and Overton 2013).
    Pairs whose curvature is tiny relative to the gradient are discarded (Li and Fukushima 2001). An instance that finds
    no lower value in 20 evaluations discards its pairs and next follows its subgradient; if that fails too, it keeps
    its point.

    Args:
        memory: Number of pairs (step, change of the gradient) that are stored.
    """

    init_cost: ClassVar = {"value": 1, "subgradient": 1}
    step_cost: ClassVar = {}  # the evaluations of the line search are counted in the state

    def __init__(self, memory: int = 10) -> None:
        super().__init__()
        self.memory = check_count("memory", memory)

    def init(self, problem: Problem, x0: Tensor) -> LBFGSState:
        value, gradient = problem.value_and_subgradient(x0)
        stuck = torch.zeros(len(x0), dtype=torch.bool, device=x0.device)
        return LBFGSState(x0, value=value, gradient=gradient, pairs=(), stuck=stuck)

    def step(self, problem: Problem, state: LBFGSState) -> LBFGSState:
        gradient = state.gradient.flatten(1)
        direction, informed = _direction(gradient, state.pairs)
        x, value, after, moved, count = _line_search(problem, state, direction)
        pair = curvature_pair((x - state.x).flatten(1), (after - state.gradient).flatten(1), gradient)
        kept = (CurvaturePair(p.move, p.change, torch.where(moved, p.weight, 0)) for p in state.pairs)
        return LBFGSState(
            x,
            state.iteration + 1,
            evaluations={"value": count, "subgradient": count},
            value=value,
            gradient=after,
            pairs=(*kept, pair)[-self.memory :],
            stuck=state.stuck | ~(moved | informed),
        )


def curvature_pair(move: Tensor, change: Tensor, gradient: Tensor) -> CurvaturePair:
    """Return the pair of a step, with weight 0 if its curvature is so small that H may be indefinite or unbounded."""
    curvature = inner(move, change)
    usable = curvature > torch.finfo(curvature.dtype).eps * inner(change, change)
    usable &= curvature > MIN_CURVATURE * inner(gradient, gradient).sqrt() * inner(move, move)
    return CurvaturePair(move, change, torch.where(usable, 1 / torch.where(usable, curvature, 1), 0))


def _direction(gradient: Tensor, pairs: tuple[CurvaturePair, ...]) -> tuple[Tensor, Tensor]:
    """Return -H g `(B, n)` by the two-loop recursion, and which instances `(B,)` have a pair.

    For the others H is 1 / ||g||, so that the first step has length 1.
    """
    tiny = torch.finfo(gradient.dtype).tiny
    scale = 1 / inner(gradient, gradient).clamp(min=tiny).sqrt()
    informed = torch.zeros(len(gradient), dtype=torch.bool, device=gradient.device)
    for pair in pairs:
        known = pair.weight > 0
        scale = torch.where(known, 1 / torch.where(known, pair.weight * inner(pair.change, pair.change), 1), scale)
        informed = informed | known
    return -two_loops(gradient, pairs, lambda q: scale[:, None] * q), informed


def two_loops(gradient: Tensor, pairs: tuple[CurvaturePair, ...], first: Callable[[Tensor], Tensor]) -> Tensor:
    """Return Hg `(B, n)` by the two-loop recursion; H is `first`, updated by the curvature of the pairs."""
    q, shares = gradient, []
    for pair in reversed(pairs):
        shares.append(pair.weight * inner(pair.move, q))
        q = q - shares[-1][:, None] * pair.change
    q = first(q)
    for pair, share in zip(pairs, reversed(shares), strict=True):
        q = q + (share - pair.weight * inner(pair.change, q))[:, None] * pair.move
    return q


def _line_search(problem: Problem, state: LBFGSState, direction: Tensor) -> tuple[Tensor, ...]:
    """Return the last accepted points, their values and subgradients, which instances moved, and the evaluations.

    The step length is doubled until the value does not fall enough; then the search interval is bisected.
    """
    ahead, slope = direction.reshape_as(state.x), inner(state.gradient.flatten(1), direction)
    x, value, gradient = state.x, state.value, state.gradient
    searching = ~state.stuck & (slope < 0)
    moved, count = torch.zeros_like(searching), torch.zeros_like(searching, dtype=torch.int64)
    length, low, high = torch.ones_like(slope), torch.zeros_like(slope), torch.full_like(slope, torch.inf)
    for _ in range(MAX_TRIALS):
        if not bool(searching.any()):
            break
        trial = state.x + per_instance(length, state.x) * ahead
        found, found_gradient = _evaluate(problem, trial, searching)
        falls = found <= state.value + SUFFICIENT_DECREASE * length * slope  # never for a NaN
        flat = inner(found_gradient.flatten(1), direction) >= CURVATURE * slope
        accepted = searching & falls
        x, value = take(accepted, trial, x), torch.where(accepted, found, value)
        gradient = take(accepted, found_gradient, gradient)
        moved, count, searching = moved | accepted, count + searching, searching & ~(falls & flat)
        low, high = torch.where(falls, length, low), torch.where(falls, high, length)
        length = torch.where(high.isinf(), 2 * low, (low + high) / 2)
    return x, value, gradient, moved, count


def _evaluate(problem: Problem, x: Tensor, searching: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and subgradients, only of the searching instances if the problem can select instances."""
    if problem.batch_size is None or bool(searching.all()):
        return problem.value_and_subgradient(x)
    index = searching.nonzero().flatten()
    value, gradient = problem.select(index).value_and_subgradient(x[index])
    whole = x.new_full((len(x),), torch.nan)
    return whole.index_copy(0, index, value), torch.zeros_like(x).index_copy(0, index, gradient)
