"""Mirror descent for any mirror and any steps: classical, learned, lazy, corrected, accelerated and proximal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_positive
from lmd.errors import InputError
from lmd.mirrors.base import DUAL_NORM, Mirror, norm_of
from lmd.mirrors.entropic import Entropic
from lmd.mirrors.euclidean import Euclidean, EuclideanBox, EuclideanSimplex
from lmd.mirrors.quadratic import DiagonalQuadratic
from lmd.problems.base import Problem
from lmd.solvers.base import S, Solver, State
from lmd.solvers.steps import LearnedSteps, Step, Steps, as_steps
from lmd.terms import L1, NegativeEntropy
from lmd.terms.base import per_instance
from lmd.terms.domains import same_set


class MirrorSolver(Solver[S]):
    """What methods of a mirror and steps share.

    Args:
        mirror: Any mirror.
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    def __init__(self, mirror: Mirror, steps: Steps | float = 0.01) -> None:
        super().__init__()
        if not isinstance(mirror, Mirror):
            raise InputError("mirror", type(mirror).__name__, "an lmd.mirrors.Mirror")
        self.mirror = mirror
        self.steps = as_steps(steps)

    @property
    def horizon(self) -> int | None:
        return self.steps.iterations if isinstance(self.steps, LearnedSteps) else None

    def keeps_to_domain(self, problem: Problem) -> bool:
        return same_set(self.mirror.domain, problem.domain)


@dataclass(frozen=True)
class MirrorState(State):
    """Points, and the dual points they were made from."""

    target: Tensor | None = None  # y_k `(B, ...)`: where `to_dual(x)` should be; None before the first step

    # to_dual(x) `(B, ...)` where it is known already, as in training; None where the step has to evaluate it
    dual: Tensor | None = None


class MirrorDescent(MirrorSolver[MirrorState]):
    """y_k = to_dual(x_k) - t_k g_k, x_{k+1} = to_primal(y_k), with g_k a subgradient at x_k.

    With an exact mirror this is mirror descent (equation 2.1 of the paper), with a learned inverse it is approximate
    mirror descent (equation 3.2). Each step re-encodes its point, so the *dual residual* to_dual(x_k) - y_{k-1} of
    the step before is known without another evaluation; a mirror that is not exact has its norm in the history, beside
    `step_size` and `subgradient_norm`, all of which `lmd.guarantees` makes certificates from.

    Args:
        mirror: Any mirror.
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    step_cost: ClassVar = {"subgradient": 1, "to_dual": 1, "to_primal": 1}

    @property
    def geometry(self) -> Mirror | None:
        return self.mirror

    def with_steps(self, steps: Steps | float) -> MirrorDescent:
        """The same mirror with other steps: the paper's LMD with a fixed step-size."""
        return MirrorDescent(self.mirror, steps)

    def init(self, problem: Problem, x0: Tensor) -> MirrorState:
        return MirrorState(self.mirror.check("x0", x0))

    def encode(self, state: MirrorState) -> Tensor:
        """The dual point that the gradient step starts from."""
        return self.mirror.to_dual(state.x) if state.dual is None else state.dual

    def step(self, problem: Problem, state: MirrorState) -> MirrorState:
        dual, norm = self.encode(state), DUAL_NORM[self.mirror.norm]
        size, subgradient = self.steps(state.iteration), problem.subgradient(state.x)
        length = norm_of(subgradient.detach(), norm)
        step_size = size.detach().to(length) if isinstance(size, Tensor) else length.new_tensor(size)
        diagnostics = {"step_size": step_size.expand_as(length), "subgradient_norm": length}
        encoded = dual is not state.target  # a lazy step goes on from the target itself, and knows no residual
        if state.target is not None and encoded and not self.mirror.is_exact:
            diagnostics["dual_residual"] = norm_of((dual - state.target).detach(), norm)
        target = dual - size * subgradient
        clipped = self.mirror.clipped(target)
        if clipped is not None:
            diagnostics["clipped"] = clipped
        return MirrorState(self.mirror.to_primal(target), state.iteration + 1, diagnostics, target=target)


class LazyMirrorDescent(MirrorDescent):
    """y_0 = to_dual(x_0), y_{k+1} = y_k - t_k g_k, x_{k+1} = to_primal(y_{k+1}), with g_k a subgradient at x_k.

    On the whole space and with an exact mirror these are the iterates of `MirrorDescent`; with a learned inverse they
    are not, and errors of the inverse do not build up in y. No dual residual is known. Inside `Stochastic` it is LSMD.
    Nesterov 2009, "Primal-dual subgradient methods for convex problems"; learned: Tan, Mukherjee, Tang and Schoenlieb
    2024, "Boosting data-driven mirror descent".

    Args:
        mirror: Any mirror.
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    accumulates = True
    init_cost: ClassVar = {"to_dual": 1}
    step_cost: ClassVar = {"subgradient": 1, "to_primal": 1}

    def init(self, problem: Problem, x0: Tensor) -> MirrorState:
        return MirrorState(self.mirror.check("x0", x0), target=self.mirror.to_dual(x0))

    def encode(self, state: MirrorState) -> Tensor:
        """y_k itself."""
        return super().encode(state) if state.target is None else state.target


class LearnedMirrorDescent(MirrorDescent):
    """Mirror descent with learned steps (the paper's adaptive LMD), trained for a number of iterations.

    Args:
        mirror: Any mirror; its parameters are learned with the steps.
        iterations: N, how many steps are learned.
        initial_step: Each step at the start, inside the interval.
        interval: (low, high), what the steps are clipped to.
        extension: The rule past N: "last", "mean", "min", "max" or "decay".
    """

    steps: LearnedSteps

    def __init__(
        self,
        mirror: Mirror,
        iterations: int = 10,
        initial_step: float = 0.01,
        interval: tuple[float, float] = (1e-3, 1e-1),
        extension: str = "min",
    ) -> None:
        super().__init__(mirror, LearnedSteps(iterations, initial_step, interval, extension))
        self.iterations, self.initial_step, self.interval = iterations, self.steps.initial, self.steps.interval
        self.extension = extension


class CorrectedMirrorDescent(MirrorDescent):
    r"""x_{k+1} = to_primal(y_k) - c_k (to_primal(to_dual(x_k)) - x_k), y_k = to_dual(x_k) - t_k g_k, c_k in [0, 1].

    With a learned inverse, to_primal(to_dual(x)) is not x, so approximate mirror descent (c_k = 0) moves even where the
    gradient is zero, to the fixed points of the round trip, however small its steps (the paper's remark on t_k^{-1}).
    With c_k = 1 the round trip is subtracted. In the first iterations it is useful, as it takes any start to where the
    solutions of the family are: c_k is learned for each trained iteration, and is 1 beyond.

    Args:
        mirror: Any mirror; the corrections matter where its inverse is learned.
        steps: The step-sizes t_k: a positive number, or `Steps`.
        iterations: How many corrections are learned; None is as many as there are learned steps.
        initial: Each c_k at the start, in [0, 1].
    """

    step_cost: ClassVar = {"subgradient": 1, "to_dual": 1, "to_primal": 2}

    def __init__(
        self, mirror: Mirror, steps: Steps | float, iterations: int | None = None, initial: float = 0.5
    ) -> None:
        super().__init__(mirror, steps)
        iterations = super().horizon if iterations is None else iterations
        if iterations is None:
            raise InputError("iterations", "none", "how many corrections to learn, as the steps have no such number")
        self.iterations = check_count("iterations", iterations)
        self.initial = float(initial)
        if not 0 <= self.initial <= 1:
            raise InputError("initial", initial, "a number in [0, 1]")
        self.corrections = nn.Parameter(torch.full((iterations,), self.initial))

    @property
    def horizon(self) -> int | None:
        return self.iterations

    def keeps_to_domain(self, problem: Problem) -> bool:
        """Without a domain; with one, only where there is nothing to correct."""
        return super().keeps_to_domain(problem) and (problem.domain is None or self.mirror.is_exact)

    def step(self, problem: Problem, state: MirrorState) -> MirrorState:
        dual = self.encode(state)
        drifted = super().step(problem, replace(state, dual=dual))
        drift = self.mirror.to_primal(dual) - state.x
        correction = self.corrections[state.iteration] if state.iteration < self.iterations else 1.0
        return replace(drifted, x=drifted.x - correction * drift)

    def with_steps(self, steps: Steps | float) -> CorrectedMirrorDescent:
        """The same mirror and corrections with other steps."""
        other = CorrectedMirrorDescent(self.mirror, steps, self.iterations, self.initial)
        other.corrections = self.corrections
        return other

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clip the corrections to [0, 1]."""
        self.corrections.clamp_(0, 1)


@dataclass(frozen=True, kw_only=True)
class AcceleratedState(State):
    """Points, y_k, which accumulates the gradients, and z_k = to_primal(y_k), each `(B, ...)`."""

    accumulated: Tensor
    mirrored: Tensor


class _AccumulatingSolver(MirrorSolver[AcceleratedState]):
    """What the two methods share: a start at z_0 = x_0, y_0 = to_dual(x_0), and the costs."""

    init_cost: ClassVar = {"to_dual": 1}
    step_cost: ClassVar = {"subgradient": 1, "to_primal": 1}

    def init(self, problem: Problem, x0: Tensor) -> AcceleratedState:
        self.mirror.check("x0", x0)
        return AcceleratedState(x0, accumulated=self.mirror.to_dual(x0), mirrored=x0)


class AcceleratedMirrorDescent(_AccumulatingSolver):
    """Two sequences, one in the geometry of the mirror and one of gradient steps, and g_k at a point between them.

    v_k = l_k z_k + (1 - l_k) x_k with l_k = r / (r + k), g_k the gradient at v_k;
    y_{k+1} = y_k - (k t_k / r) g_k, z_{k+1} = to_primal(y_{k+1}), x_{k+1} = v_k - gamma t_k g_k, projected onto the
    domain of the mirror, where it has one.

    f(x_k) - min f falls as 1/k^2 for smooth f and small enough t and gamma. Krichene, Bayen and Bartlett 2015,
    "Accelerated mirror descent in continuous and discrete time"; with a learned mirror and learned steps it is LAMD.

    Args:
        mirror: Any mirror.
        steps: The step-sizes t_k: a positive number, or `Steps`.
        r: 3 or more.
        gamma: Positive.
    """

    def __init__(self, mirror: Mirror, steps: Steps | float = 0.01, r: float = 3.0, gamma: float = 1.0) -> None:
        super().__init__(mirror, steps)
        if not isinstance(r, (int, float)) or not r >= 3:
            raise InputError("r", r, "a number of 3 or more")
        self.r = float(r)
        self.gamma = check_positive("gamma", gamma)

    def step(self, problem: Problem, state: AcceleratedState) -> AcceleratedState:
        k = state.iteration
        size, share = self.steps(k), self.r / (self.r + k)
        between = share * state.mirrored + (1 - share) * state.x
        gradient = problem.subgradient(between)
        dual = state.accumulated - (k / self.r) * size * gradient
        x = between - self.gamma * size * gradient
        if self.mirror.domain is not None:
            x = self.mirror.domain.nearest(x)
        return AcceleratedState(x, k + 1, accumulated=dual, mirrored=self.mirror.to_primal(dual))


class AcceleratedStochasticMirrorDescent(_AccumulatingSolver):
    """Weighted dual averaging with averaged points, whose weights reduce the noise of minibatch gradients.

    A_0 = 1/2, A_{k+1} = (k+1)(k+2)/2, a_k = A_{k+1} - A_k, s_k = (k+1)^{3/2};
    y_{k+1} = y_k - (a_k / s_k) t_k g_k, x_{k+1} = x_k + a_k / A_{k+1} (to_primal(y_{k+1}) - x_k), g_k the gradient.

    Inside `Stochastic` it is accelerated stochastic mirror descent (Xu, Wang and Gu 2018, "Accelerated stochastic
    mirror descent: from continuous-time dynamics to discrete-time algorithms"), and with a learned mirror LASMD.

    Args:
        mirror: Any mirror.
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    def step(self, problem: Problem, state: AcceleratedState) -> AcceleratedState:
        k = state.iteration
        before, after = max(k * (k + 1) / 2, 0.5), (k + 1) * (k + 2) / 2
        weight = after - before
        dual = state.accumulated - (weight / (k + 1) ** 1.5) * self.steps(k) * problem.subgradient(state.x)
        mirrored = self.mirror.to_primal(dual)
        x = state.x + (weight / after) * (mirrored - state.x)
        return AcceleratedState(x, k + 1, accumulated=dual, mirrored=mirrored)


ProximalMap = Callable[[Tensor, Step], Tensor]


class ProximalMirrorDescent(MirrorDescent):
    r"""x_{k+1} = argmin_x <grad f(x_k), x> + g(x) + B(x, x_k) / t_k for a `PenalisedProblem` f + g or a `Lasso`.

    That is y_k = to_dual(x_k) - t_k grad f(x_k), then x_{k+1} = argmin_x Psi(x) - <y_k, x> + t_k g(x), for the mirrors
    and penalties of `proximal_map`. Duchi, Shalev-Shwartz, Singer and Tewari 2010, "Composite objective mirror
    descent". With the Euclidean mirror it is the proximal gradient method, with a learned `DiagonalQuadratic` and
    `L1` it is iterative shrinkage with learned weights.

    Args:
        mirror: One that `proximal_map` serves with the penalty.
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    needs = ("penalty", "misfit_gradient")

    @property
    def geometry(self) -> Mirror | None:
        """None: the theorems are about steps without a prox."""
        return None

    def step(self, problem: Any, state: MirrorState) -> MirrorState:
        size = self.steps(state.iteration)
        target = self.encode(state) - size * problem.misfit_gradient(state.x)
        x = proximal_map(self.mirror, problem.penalty)(target, size)
        return MirrorState(x, state.iteration + 1)


def proximal_map(mirror: Mirror, penalty: Any) -> ProximalMap:
    """Return the function from (y, t) to argmin_x Psi(x) - <y, x> + t g(x), where that has a closed form.

    Args:
        mirror: `Euclidean`, `EuclideanBox`, `EuclideanSimplex`, `DiagonalQuadratic` or `Entropic`.
        penalty: g: `L1`, or with `Entropic` also `NegativeEntropy`.
    """
    kinds = type(mirror), type(penalty)
    if kinds[0] in (Euclidean, EuclideanBox, DiagonalQuadratic) and kinds[1] is L1:
        # Psi is separable: entry by entry a convex function, whose minimiser on an interval is the clipped one
        return lambda y, t: mirror.to_primal(y.sign() * (y.abs() - t * per_instance(penalty.weight, y)).clamp(min=0))
    if kinds[0] in (Entropic, EuclideanSimplex) and kinds[1] is L1:
        return lambda y, t: mirror.to_primal(y)  # on the simplex the l1 norm is 1 everywhere
    if kinds == (Entropic, NegativeEntropy):  # Psi + t g is (1 + t weight) Psi
        return lambda y, t: mirror.to_primal(
            y / (1 + torch.as_tensor(t, dtype=y.dtype, device=y.device) * penalty.weight)
        )
    boxes = "Euclidean or EuclideanBox or DiagonalQuadratic or EuclideanSimplex"
    known = f"{boxes} or Entropic with L1; Entropic with NegativeEntropy"
    raise InputError("penalty", f"{kinds[1].__name__} with the mirror {kinds[0].__name__}", known)
