"""Learned mirror descent on the dual of total variation: learned convolutions, exact projections, a proven rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lmd import kernels
from lmd.checks import check_count, check_module_kind
from lmd.errors import InputError
from lmd.operators.base import LinearOperator
from lmd.solvers.base import DualState
from lmd.solvers.fgp import FGP, DualProblem
from lmd.solvers.learned_prefix import LearnedPrefix
from lmd.terms.base import Scale, per_instance


@dataclass(frozen=True, kw_only=True)
class LearnedDualState(DualState):
    """Points and the dual points p_k they come from."""

    previous: Tensor
    """p_{k-1}."""


class GridDualProblem(DualProblem, Protocol):
    """What `LearnedDual` needs of a problem beyond what FGP needs: K are differences of images."""

    @property
    def differences(self) -> LinearOperator: ...

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def noisy(self) -> Tensor: ...

    @property
    def weight(self) -> Tensor: ...

    @property
    def bound(self) -> Scale: ...

    def project_dual(self, p: Tensor, out: Tensor | None = None) -> Tensor: ...

    def primal_from_dual(self, p: Tensor) -> Tensor: ...


def check_kernel_size(argument: str, size: int) -> int:
    """Return `size` if it is an odd number: a convolution about a pixel."""
    if check_count(argument, size) % 2 == 0:
        raise InputError(argument, size, "an odd number")
    return size


def convolve(parts: tuple[Tensor, ...], kernel: Tensor) -> Tensor:
    """The convolution of dual fields `(B, C, 2, H, W)`, side by side, with zeros around them, to `(B, C, 2, H, W)`.

    `kernel` is `(2, 2 len(parts), k, k)`; every colour channel is treated alike and by itself.
    """
    shape = parts[0].shape
    planes = torch.cat(parts, dim=2).flatten(0, 1)
    return kernels.convolve(planes, kernel).view(shape)


class LearnedDual(LearnedPrefix[LearnedDualState, GridDualProblem]):
    r"""p_{k+1} = P(p_k + A_k * (gamma K x_k) + M_k * (p_k - p_{k-1})), x_{k+1} = x(p_{k+1}), for k < N; then FGP.

    The dual of a composite problem with a strongly convex data term (constant gamma) is smooth, K x(p) is its gradient,
    and P is the exact projection onto the domain of g*, for TV a box: mirror descent in the dual whose geometry is
    learned. A_k and M_k are convolutions, different in every iteration, of the two components of dual fields
    `(B, C, 2, H, W)` among each other: A_k shapes the gradient, M_k the momentum. x(p) = argmin_x f(x) + <Kx, p>.

    What holds whatever was learned: every p_k is feasible, so there is a duality gap at every iteration and x_k stays
    in a bounded set; and from iteration N on the method is FGP with restarts, started at p_N, whose dual values
    converge at the rate O(1/k^2) from any start (Beck and Teboulle 2009; O'Donoghue and Candes 2015 for the restarts).

    No units are learned: in y and the weight together the iteration is homogeneous, in images it is translation
    equivariant, so that one solver serves all weights, both scalings of the problem and all sizes of images.
    Starts at p = 0: of x0 only the shape matters. An anisotropic problem on the CPU in float32 takes one compiled
    pass per iteration where `lmd.kernels` is available; the numbers are the same to rounding.
    """

    def __init__(self, iterations: int = 10, kernel: int = 5) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        self.kernel = check_kernel_size("kernel", kernel)
        start, middle = torch.zeros(iterations, 2, 4, kernel, kernel), kernel // 2
        for component in range(2):
            start[:, component, component, middle, middle] = 0.2
            start[:, component, 2 + component, middle, middle] = torch.arange(iterations) / (
                torch.arange(iterations) + 3
            )
        self.kernels = nn.Parameter(start)
        """A_k and M_k `(N, 2, 4, k, k)`; before training, those of accelerated gradient ascent with a step of 0.2."""
        self.tail: FGP = FGP(restart=True)

    def config(self) -> dict[str, Any]:
        return {"iterations": self.iterations, "kernel": self.kernel}

    @property
    def needs(self) -> tuple[str, ...]:
        return ("differences", *self.tail.needs)

    @property
    def step_cost(self) -> dict[str, int]:
        return {"operator": 1, "adjoint": 1, "tilted_minimiser": 1}

    def cost_of(self, k: int) -> dict[str, int]:
        """The first step needs x(p_0) besides, the first of FGP K'p_N."""
        extra = {0: "tilted_minimiser", self.iterations: "adjoint"}.get(k)
        cost = super().cost_of(k)
        return cost if extra is None else {**cost, extra: cost[extra] + 1}

    def init(self, problem: GridDualProblem, x0: Tensor) -> LearnedDualState:
        check_module_kind("x0", x0, self, "solver")
        dual = x0.new_zeros(()).expand(*x0.shape[:2], 2, *x0.shape[2:])  # zeros that take no memory
        return LearnedDualState(x0, dual=dual, previous=dual)

    def compiles(self, problem: GridDualProblem, state: LearnedDualState) -> bool:
        if not kernels.has("dual_steps", problem.parts):
            return False
        return kernels.serves(state.x, problem.noisy, problem.weight, self.kernels)

    def learned_step(self, problem: GridDualProblem, state: LearnedDualState) -> LearnedDualState:
        k, before, previous = state.iteration, state.dual, state.previous
        x = state.x if k > 0 else problem.tilted_minimiser(torch.zeros_like(state.x))  # as K'p is 0
        rise = problem.differences(x)
        rise = per_instance(problem.data_strong_convexity, rise) * rise
        dual = problem.project_dual(before + convolve((rise, before - previous), self.kernels[k]))
        return LearnedDualState(problem.primal_from_dual(dual), k + 1, dual=dual, previous=before)

    def compiled_steps(self, problem: GridDualProblem, state: LearnedDualState, end: int) -> LearnedDualState:
        """p is 0 at iteration 0, and so is what was before it at iteration 1."""
        k = state.iteration
        start = (state.x if k > 0 else problem.noisy, state.dual if k > 0 else None, state.previous if k > 1 else None)
        data = (problem.noisy, problem.bound, float(problem.data_strong_convexity))
        dual, previous, x = kernels.dual_steps(*start, *data, self.kernels[k:end])
        return LearnedDualState(x, end, dual=dual, previous=state.dual if previous is None else previous)
