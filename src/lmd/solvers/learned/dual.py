"""Learned mirror descent on the dual of total variation: learned convolutions, exact projections, a proven rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd import kernels
from lmd.core.checks import check_count, check_module_kind
from lmd.errors import CapabilityError, InputError
from lmd.operators.base import LinearOperator
from lmd.solvers.base import DualState
from lmd.solvers.classical.fgp import FGP
from lmd.solvers.learned.prefix import LearnedPrefix
from lmd.terms.base import per_instance


@dataclass(frozen=True, kw_only=True)
class LearnedDualState(DualState):
    """Points and the dual points p_k they come from."""

    previous: Tensor  # p_{k-1}


def check_kernel_size(argument: str, size: int) -> int:
    """Return `size` if it is an odd number: a convolution about a pixel."""
    if check_count(argument, size) % 2 == 0:
        raise InputError(argument, size, "an odd number")
    return size


def check_grid(operator: LinearOperator, axes: int) -> None:
    """Raise unless an operator takes differences along as many axes as the kernels of a solver have."""
    if operator.grid is None or len(operator.grid) != axes:
        along = "no differences on a grid" if operator.grid is None else f"differences along {len(operator.grid)} axes"
        given, accepted = f"one with {along} ({type(operator).__name__})", f"one with differences along {axes}"
        raise CapabilityError("problem", given, f"{accepted}, as `axes` of the solver says")


def convolve(parts: Sequence[Tensor], kernel: Tensor) -> Tensor:
    """The convolution of fields `(B, ..., n, *size)`, side by side, with zeros around them, to `(B, ..., m, *size)`.

    `kernel` is `(m, n len(parts), k, ...)`, with a k for each axis of the size; what lies before the fields, such as
    colour channels, is treated alike and by itself.
    """
    axes = kernel.ndim - 2
    before, size = parts[0].shape[: -axes - 1], parts[0].shape[-axes:]
    planes = torch.cat(list(parts), dim=-axes - 1).flatten(0, len(before) - 1)
    return kernels.convolve(planes, kernel).view(*before, len(kernel), *size)


def at_middle(kernels: Tensor, axes: int) -> Tensor:
    """The entries at the middle of kernels `(..., k, ...)` of so many axes, as a view `(...)`."""
    for _ in range(axes):
        kernels = kernels.select(-1, kernels.shape[-1] // 2)
    return kernels


def zeros_of(x: Tensor, axes: int) -> Tensor:
    """The dual field 0 of points x `(B, ..., *size)`: `(B, ..., axes, *size)`, and it takes no memory."""
    return x.new_zeros(()).expand(*x.shape[:-axes], axes, *x.shape[-axes:])


class LearnedDual(LearnedPrefix[LearnedDualState]):
    r"""p_{k+1} = P(p_k + A_k * (gamma K x_k) + M_k * (p_k - p_{k-1})), x_{k+1} = x(p_{k+1}), for k < N; then FGP.

    The dual of a composite problem with a strongly convex data term (constant gamma) is smooth, K x(p) is its gradient,
    and P is the exact projection onto the domain of g*, for TV a box: mirror descent in the dual whose geometry is
    learned. A_k and M_k are convolutions, different in every iteration, of the components of dual fields
    `(B, ..., axes, *size)` among each other: A_k shapes the gradient, M_k the momentum. x(p) = argmin_x f(x) + <Kx, p>.
    It runs on every composite of a strongly convex term and one behind differences along `axes` axes: signals, images
    (2, the default) or volumes.

    What holds whatever was learned: every p_k is feasible, so there is a duality gap at every iteration and x_k stays
    in a bounded set; and from iteration N on the method is FGP with restarts, started at p_N, whose dual values
    converge at the rate O(1/k^2) from any start (Beck and Teboulle 2009; O'Donoghue and Candes 2015 for the restarts).

    No units are learned: in y and the weight together the iteration is homogeneous, in images it is translation
    equivariant, so that one solver serves all weights, both scalings of the problem and all sizes of images.
    Starts at p = 0: of x0 only the shape matters.

    Args:
        iterations: N.
        kernel: The side of the convolutions, odd.
        axes: Of the differences: 1 for signals, 2 for images, 3 for volumes.
    """

    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "tilted_minimiser": 1}

    def __init__(self, iterations: int = 10, kernel: int = 5, axes: int = 2) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        self.kernel, self.axes = check_kernel_size("kernel", kernel), check_count("axes", axes, most=3)
        start, k = torch.zeros(iterations, axes, 2 * axes, *(kernel,) * axes), torch.arange(iterations)
        for component in range(axes):
            at_middle(start, axes)[:, component, component] = 0.4 / axes
            at_middle(start, axes)[:, component, axes + component] = k / (k + 3)
        # A_k and M_k `(N, 2, 4, k, k)` for two axes; before training, those of accelerated gradient ascent with a step
        # of 0.2, and of 0.4 / axes in general
        self.kernels = nn.Parameter(start)
        self.tail: FGP = FGP(restart=True)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("differences", *self.tail.needs)

    def cost_of(self, k: int) -> dict[str, int]:
        """The first step needs x(p_0) besides, the first of FGP K'p_N."""
        extra = {0: "tilted_minimiser", self.iterations: "adjoint"}.get(k)
        cost = super().cost_of(k)
        return cost if extra is None else {**cost, extra: cost[extra] + 1}

    def init(self, problem: Any, x0: Tensor) -> LearnedDualState:
        check_module_kind("x0", x0, self, "solver")
        check_grid(problem.operator, self.axes)
        dual = zeros_of(x0, self.axes)
        return LearnedDualState(x0, dual=dual, previous=dual)

    def learned_step(self, problem: Any, state: LearnedDualState) -> LearnedDualState:
        k, before, previous = state.iteration, state.dual, state.previous
        x = state.x if k > 0 else problem.tilted_minimiser(torch.zeros_like(state.x))  # as K'p is 0
        rise = problem.differences(x)
        rise = per_instance(problem.data_strong_convexity, rise) * rise
        dual = problem.project_dual(before + convolve((rise, before - previous), self.kernels[k]))
        return LearnedDualState(problem.primal_from_dual(dual), k + 1, dual=dual, previous=before)
