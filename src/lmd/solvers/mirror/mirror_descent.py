"""Mirror descent for any mirror and any steps: classical, learned, lazy, corrected, accelerated and proximal forms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count
from lmd.errors import InputError
from lmd.mirrors.base import DUAL_NORM, Mirror, norm_of
from lmd.mirrors.closed_form import DiagonalQuadratic, Entropic, Euclidean, EuclideanBox, EuclideanSimplex
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State, delegate
from lmd.solvers.steps import LearnedSteps, Step, Steps, as_steps
from lmd.terms import L1, NegativeEntropy
from lmd.terms.base import per_instance
from lmd.terms.domains import same_set

ACCELERATION = 3.0  # r of `AcceleratedMirrorDescent`; r >= 3 gives convergence as 1/k^2


@dataclass(frozen=True)
class MirrorState(State):
    """Points, and the dual points from which `to_primal` computed them."""

    target: Tensor | None = None  # y_k `(B, ...)`; `to_dual(x)` if the inverse is exact; None before step 1

    # to_dual(x) `(B, ...)` if it is already known, as in training; None if the step has to evaluate it
    dual: Tensor | None = None
    mirrored: Tensor | None = None  # z_k `(B, ...)` of `AcceleratedMirrorDescent`; None if it is x


class MirrorDescent(Solver[MirrorState]):
    """y_k = to_dual(x_k) - t_k g_k, x_{k+1} = to_primal(y_k); g_k is a subgradient at x_k.

    With an exact mirror this is mirror descent (equation 2.1 of the paper). With a learned inverse it is approximate
    mirror descent (equation 3.2). Each step computes to_dual(x_k), so the *dual residual* to_dual(x_k) - y_{k-1} of
    the last step costs no further evaluation. The history records its norm if the mirror is not exact, and always
    `step_size` and `subgradient_norm`. `lmd.guarantees` computes certificates from them.

    Args:
        mirror: Any mirror.
        steps: The step sizes t_k: a positive number, or `Steps`.
    """

    geometry: Mirror | None = delegate("mirror")
    step_cost: ClassVar = {"subgradient": 1, "to_dual": 1, "to_primal": 1}

    def __init__(self, mirror: Mirror, steps: Steps | float = 0.01) -> None:
        super().__init__()
        if not isinstance(mirror, Mirror):
            raise InputError("mirror", type(mirror).__name__, "an lmd.mirrors.Mirror")
        self.mirror = mirror
        self.steps = as_steps(steps)
        self.iterations = self.steps.iterations if isinstance(self.steps, LearnedSteps) else None

    def keeps_to_domain(self, problem: Problem) -> bool:
        return same_set(self.mirror.domain, problem.domain)

    def with_steps(self, steps: Steps | float) -> MirrorDescent:
        """Return a solver with the same mirror and other steps, such as the paper's LMD with a fixed step size."""
        return MirrorDescent(self.mirror, steps)

    def init(self, problem: Problem, x0: Tensor) -> MirrorState:
        return MirrorState(self.mirror.check("x0", x0))

    def encode(self, state: MirrorState) -> Tensor:
        """Return the dual point at which the gradient step starts."""
        return self.mirror.to_dual(state.x) if state.dual is None else state.dual

    def step(self, problem: Problem, state: MirrorState) -> MirrorState:
        dual, norm = self.encode(state), DUAL_NORM[self.mirror.norm]
        size, subgradient = self.steps(state.iteration), problem.subgradient(state.x)
        length = norm_of(subgradient.detach(), norm)
        step_size = size.detach().to(length) if isinstance(size, Tensor) else length.new_tensor(size)
        diagnostics = {"step_size": step_size.expand_as(length), "subgradient_norm": length}
        encoded = dual is not state.target  # a lazy step starts at the target itself and has no residual
        if state.target is not None and encoded and not self.mirror.is_exact:
            diagnostics["dual_residual"] = norm_of((dual - state.target).detach(), norm)
        target = dual - size * subgradient
        clipped = self.mirror.clipped(target)
        if clipped is not None:
            diagnostics["clipped"] = clipped
        return MirrorState(self.mirror.to_primal(target), state.iteration + 1, diagnostics, target=target)


class LazyMirrorDescent(MirrorDescent):
    """y_0 = to_dual(x_0), y_{k+1} = y_k - t_k g_k, x_{k+1} = to_primal(y_{k+1}); g_k is a subgradient at x_k.

    On the whole space and with an exact mirror, the iterates are the same as in `MirrorDescent`. With a learned inverse
    they differ, and errors of the inverse do not accumulate in y. No dual residual is known. Inside `Stochastic` the
    method is LSMD. Nesterov 2009, "Primal-dual subgradient methods for convex problems"; with learned mirrors: Tan,
    Mukherjee, Tang and Schoenlieb 2024, "Boosting data-driven mirror descent".
    """

    accumulates = True
    init_cost: ClassVar = {"to_dual": 1}
    step_cost: ClassVar = {"subgradient": 1, "to_primal": 1}

    def init(self, problem: Problem, x0: Tensor) -> MirrorState:
        return MirrorState(self.mirror.check("x0", x0), target=self.mirror.to_dual(x0))

    def encode(self, state: MirrorState) -> Tensor:
        """Return y_k."""
        return super().encode(state) if state.target is None else state.target


class LearnedMirrorDescent(MirrorDescent):
    """Mirror descent with learned steps (the paper's adaptive LMD), trained for a number of iterations.

    Args:
        mirror: Any mirror; its parameters are learned with the steps.
        iterations: N, the number of learned steps.
        initial_step: Value of each step before training, inside the interval.
        interval: The interval (low, high) to which steps are clipped.
        extension: The rule for steps past N: "last", "mean", "min", "max" or "decay".
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

    With a learned inverse, to_primal(to_dual(x)) is not x. Approximate mirror descent (c_k = 0) therefore moves even if
    the gradient is zero, towards fixed points of to_primal(to_dual(.)), and even with tiny steps (the paper's remark on
    t_k^{-1}). c_k = 1 subtracts this drift. In the first iterations the drift helps, because it moves any start towards
    the solutions of the family. So c_k is learned for each trained iteration and is 1 afterwards.

    Args:
        mirror: Any mirror; the corrections have no effect if its inverse is exact.
        iterations: Number of learned corrections; None is the number of learned steps.
    """

    iterations: int
    step_cost: ClassVar = {"subgradient": 1, "to_dual": 1, "to_primal": 2}

    def __init__(self, mirror: Mirror, steps: Steps | float, iterations: int | None = None) -> None:
        super().__init__(mirror, steps)
        iterations = self.iterations if iterations is None else iterations
        if iterations is None:
            raise InputError("iterations", "none", "how many corrections to learn, as the steps have no such number")
        self.iterations = check_count("iterations", iterations)
        self.corrections = nn.Parameter(torch.full((iterations,), 0.5))

    def keeps_to_domain(self, problem: Problem) -> bool:
        """Return whether points stay in the domain; corrections may leave it, so a domain requires an exact mirror."""
        return super().keeps_to_domain(problem) and (problem.domain is None or self.mirror.is_exact)

    def step(self, problem: Problem, state: MirrorState) -> MirrorState:
        dual = self.encode(state)
        drifted = super().step(problem, replace(state, dual=dual))
        drift = self.mirror.to_primal(dual) - state.x
        correction = self.corrections[state.iteration] if state.iteration < self.iterations else 1.0
        return replace(drifted, x=drifted.x - correction * drift)

    def with_steps(self, steps: Steps | float) -> CorrectedMirrorDescent:
        """Return a solver with the same mirror and corrections and with other steps."""
        other = CorrectedMirrorDescent(self.mirror, steps, self.iterations)
        other.corrections = self.corrections
        return other

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clip the corrections to [0, 1]."""
        self.corrections.clamp_(0, 1)


class AcceleratedMirrorDescent(LazyMirrorDescent):
    """Accelerated mirror descent: mirror steps z_k and gradient steps x_k, with gradients at points v_k between them.

    v_k = l_k z_k + (1 - l_k) x_k with l_k = r / (r + k), g_k is the gradient at v_k, r = 3;
    y_{k+1} = y_k - (k t_k / r) g_k, z_{k+1} = to_primal(y_{k+1}), x_{k+1} = v_k - t_k g_k. If the mirror has a domain,
    x_{k+1} is projected onto it.

    f(x_k) - min f falls as 1/k^2 for smooth f and small enough t. Krichene, Bayen and Bartlett 2015, "Accelerated
    mirror descent in continuous and discrete time". With a learned mirror and learned steps this is LAMD.
    """

    geometry = None  # the theorems are about steps without momentum

    def step(self, problem: Problem, state: MirrorState) -> MirrorState:
        k, mirrored = state.iteration, state.x if state.mirrored is None else state.mirrored
        size, share = self.steps(k), ACCELERATION / (ACCELERATION + k)
        between = share * mirrored + (1 - share) * state.x
        gradient = problem.subgradient(between)
        target = self.encode(state) - (k / ACCELERATION) * size * gradient
        x = between - size * gradient
        if self.mirror.domain is not None:
            x = self.mirror.domain.nearest(x)
        return MirrorState(x, k + 1, target=target, mirrored=self.mirror.to_primal(target))


class AcceleratedStochasticMirrorDescent(LazyMirrorDescent):
    """Weighted dual averaging with averaged points; the weights reduce the noise of minibatch gradients.

    A_0 = 1/2, A_{k+1} = (k+1)(k+2)/2, a_k = A_{k+1} - A_k, s_k = (k+1)^{3/2};
    y_{k+1} = y_k - (a_k / s_k) t_k g_k, x_{k+1} = x_k + a_k / A_{k+1} (to_primal(y_{k+1}) - x_k), g_k the gradient.

    Inside `Stochastic` this is accelerated stochastic mirror descent (Xu, Wang and Gu 2018, "Accelerated stochastic
    mirror descent: from continuous-time dynamics to discrete-time algorithms"). With a learned mirror it is LASMD.
    """

    geometry = None  # the theorems are about steps without averages

    def step(self, problem: Problem, state: MirrorState) -> MirrorState:
        k = state.iteration
        before, after = max(k * (k + 1) / 2, 0.5), (k + 1) * (k + 2) / 2
        weight = after - before
        target = self.encode(state) - (weight / (k + 1) ** 1.5) * self.steps(k) * problem.subgradient(state.x)
        x = state.x + (weight / after) * (self.mirror.to_primal(target) - state.x)
        return MirrorState(x, k + 1, target=target)


class ProximalMirrorDescent(MirrorDescent):
    r"""x_{k+1} = argmin_x <grad f(x_k), x> + g(x) + B(x, x_k) / t_k for a `PenalisedProblem` f + g or a `Lasso`.

    A step is y_k = to_dual(x_k) - t_k grad f(x_k), x_{k+1} = argmin_x Psi(x) - <y_k, x> + t_k g(x), for the mirrors and
    penalties of `proximal_step`; B is the Bregman divergence of the potential Psi. Duchi, Shalev-Shwartz, Singer and
    Tewari 2010, "Composite objective mirror descent". With the Euclidean mirror this is the proximal gradient method.
    With a learned `DiagonalQuadratic` and `L1` it is iterative shrinkage with learned weights.

    Args:
        mirror: A mirror that `proximal_step` supports together with the penalty.
    """

    needs = ("penalty", "misfit_gradient")
    geometry = None  # the theorems are about steps without a prox

    def step(self, problem: Any, state: MirrorState) -> MirrorState:
        size = self.steps(state.iteration)
        target = self.encode(state) - size * problem.misfit_gradient(state.x)
        x = proximal_step(self.mirror, problem.penalty, target, size)
        return MirrorState(x, state.iteration + 1)


def proximal_step(mirror: Mirror, penalty: Any, y: Tensor, t: Step) -> Tensor:
    """Return argmin_x Psi(x) - <y, x> + t g(x), for mirrors and penalties with a closed form.

    Args:
        mirror: `Euclidean`, `EuclideanBox`, `EuclideanSimplex`, `DiagonalQuadratic` or `Entropic`.
        penalty: g: `L1`, or with `Entropic` also `NegativeEntropy`.
        y: Dual points `(B, ...)`.
        t: The step size, positive.
    """
    kinds = type(mirror), type(penalty)
    if kinds[0] in (Euclidean, EuclideanBox, DiagonalQuadratic) and kinds[1] is L1:
        # Psi is separable and convex, so the minimiser on an interval is the clipped minimiser, entry by entry
        y = y.sign() * (y.abs() - t * per_instance(penalty.weight, y)).clamp(min=0)
    elif kinds == (Entropic, NegativeEntropy):  # Psi + t g is (1 + t weight) Psi
        y = y / (1 + torch.as_tensor(t, dtype=y.dtype, device=y.device) * penalty.weight)
    elif kinds[0] not in (Entropic, EuclideanSimplex) or kinds[1] is not L1:  # on the simplex the l1 norm is 1
        boxes = "Euclidean or EuclideanBox or DiagonalQuadratic or EuclideanSimplex"
        known = f"{boxes} or Entropic with L1; Entropic with NegativeEntropy"
        raise InputError("penalty", f"{kinds[1].__name__} with the mirror {kinds[0].__name__}", known)
    return mirror.to_primal(y)
