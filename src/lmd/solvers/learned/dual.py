"""Learned methods on the dual of total variation: convolutions, or step-sizes and momenta, and a proven rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd import kernels
from lmd.core.checks import check_count, check_module_kind
from lmd.errors import CapabilityError, InputError
from lmd.operators.base import LinearOperator
from lmd.solvers.base import DualState, LearnedPrefix
from lmd.solvers.classical.fgp import FGP
from lmd.terms import L1
from lmd.terms.base import add_scaled, per_instance

LOWEST, RATIO, NODES = 0.05, 4.0, 5  # roughnesses of `LearnedFGP`: the lowest, from one to the next, and how many
PLACES = 2 * NODES - 1  # roughnesses at which is measured how far numbers get: these, and halfway between them


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

    Whatever was learned, every p_k is feasible, so there is a duality gap at every iteration; and from iteration N on
    the method is FGP with restarts, started at p_N, whose dual values converge as O(1/k^2) from any start. The
    iteration is homogeneous in y and the weight together, and translation equivariant, so that one solver serves all
    weights and all sizes of images. Starts at p = 0: of x0 only the shape matters.

    Args:
        iterations: N.
        kernel: The side of the convolutions, odd.
        axes: Of the differences: 1 for signals, 2 for images, 3 for volumes.
    """

    needs = ("differences", *FGP.needs)
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
        x = problem.tilted_minimiser(problem.operator.adjoint(dual))
        return LearnedDualState(x, k + 1, dual=dual, previous=before)


@dataclass(frozen=True, kw_only=True)
class LearnedFGPState(DualState):
    """Points, the dual points p they come from, and what the next step is made of."""

    adjoint: Tensor  # K'p `(B, ...)`
    ahead: Tensor  # the extrapolated dual points q, from which the next step starts
    ahead_adjoint: Tensor  # K'q
    numbers: Tensor  # Step-sizes and momenta of all iterations for each instance `(2, B, N)`


class LearnedFGP(LearnedPrefix[LearnedFGPState]):
    r"""p_{k+1} = P(q_k + s_k gamma / ||K||^2 K x(q_k)), q_{k+1} = p_{k+1} + m_k (p_{k+1} - p_k), for k < N; then FGP.

    FGP itself (Beck and Teboulle 2009, [doi](https://doi.org/10.1109/TIP.2009.2028250)) with learned step-sizes s_k, in
    multiples of what the constants allow, and momenta m_k: an iteration costs what FGP's costs. P is the projection
    onto the domain of g*, x(p) = argmin_x f(x) + <Kx, p>, gamma the strong convexity of f; x_k = x(p_k).

    The numbers depend on the *roughness* of the data, r = gamma mean |Ky| / b with b the bound of the dual points: that
    is all that sizes of noise and weights can do to an iteration which is homogeneous in both. `numbers` `(2, J, N)`
    has them for roughnesses in geometric progression; in between they are interpolated in log r.

    p_0 = 0, or, where it is `coarse`, what the same N iterations found on squares of 2 x 2 pixels, where they began
    likewise, down to a few pixels (`lmd.problems.grids`), for a third of the work again. The iterations that are
    counted are those on the pixels themselves. Of x0 only the shape matters.

    Every p_k is feasible whatever was learned, and from iteration N on the method is FGP with restarts, started at
    p_N. Only x_N is meant to be good, not the points before it.

    Args:
        iterations: N.
        coarse: Begin on coarser pixels.
    """

    init_cost: ClassVar = {"operator": 2}
    step_cost: ClassVar = FGP.step_cost

    def __init__(self, iterations: int = 20, coarse: bool = False) -> None:
        super().__init__()
        self.iterations, self.coarse = check_count("iterations", iterations), bool(coarse)
        k = torch.arange(iterations)
        start = torch.stack([torch.full_like(k, 1.0, dtype=torch.get_default_dtype()), k / (k + 3)])
        # Step-sizes and momenta `(2, J, N)`; before training, those of FGP
        self.numbers = nn.Parameter(start[:, None].repeat(1, NODES, 1))
        self.tail: FGP = FGP(restart=True)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("differences", "f", "g", *(("coarser",) if self.coarse else ()), *self.tail.needs)

    def cost_of(self, k: int) -> dict[str, int]:
        """The first step of FGP needs K'p_N besides."""
        cost = super().cost_of(k)
        return {**cost, "adjoint": cost["adjoint"] + 1} if k == self.iterations else cost

    def init(self, problem: Any, x0: Tensor) -> LearnedFGPState:
        check_module_kind("x0", x0, self, "solver")
        numbers, coarse = self.numbers_for(roughness(problem)), problem.coarser() if self.coarse else None
        if coarse is None:
            dual, adjoint = torch.zeros_like(problem.differences(x0)), torch.zeros_like(x0)
        else:
            with torch.no_grad():
                found = self.advance(coarse, self.init(coarse, coarse.start()), self.iterations)
                dual = problem.from_coarser(found.dual)
                adjoint = problem.differences.adjoint(dual)
        return LearnedFGPState(x0, dual=dual, adjoint=adjoint, ahead=dual, ahead_adjoint=adjoint, numbers=numbers)

    def numbers_for(self, rough: Tensor) -> Tensor:
        """Step-sizes and momenta `(2, B, N)` for roughnesses `(B,)`."""
        places = [between(each) for each in rough.tolist()]
        pairs = [torch.lerp(self.numbers[:, k], self.numbers[:, k + 1], share) for k, share in places]
        return torch.stack(pairs, dim=1)

    def learned_step(self, problem: Any, state: LearnedFGPState) -> LearnedFGPState:
        k = state.iteration
        step, momentum = state.numbers[:, :, k]
        rise = problem.differences(problem.tilted_minimiser(state.ahead_adjoint))
        scale = problem.data_strong_convexity / problem.differences.norm**2
        dual = problem.dual_prox(add_scaled(state.ahead, step * scale, rise), step * scale)
        adjoint = problem.differences.adjoint(dual)
        return LearnedFGPState(
            problem.tilted_minimiser(adjoint),
            k + 1,
            dual=dual,
            adjoint=adjoint,
            ahead=torch.lerp(state.dual, dual, per_instance(1 + momentum, dual)),
            ahead_adjoint=torch.lerp(state.adjoint, adjoint, per_instance(1 + momentum, adjoint)),
            numbers=state.numbers,
        )


def between(rough: float, count: int = NODES) -> tuple[int, float]:
    """The node below a roughness, of so many from the first to the last, and how far it is to the next one, from 0 to
    1, in logarithms."""
    place = min(max(math.log(max(rough, 1e-6) / LOWEST, RATIO) / (NODES - 1), 0.0), 1.0) * (count - 1)
    below = min(int(place), count - 2)
    return below, place - below


def roughness(problem: Any) -> Tensor:
    """gamma mean |Ky| / b `(B,)`."""
    length = L1(1.0).value(problem.differences(problem.f.y))
    weight = problem.g.weight
    mean = weight.flatten(1).mean(dim=1) if isinstance(weight, Tensor) and weight.ndim > 1 else weight
    count = len(problem.differences.grid or ()) * problem.f.y[0].numel()
    return problem.data_strong_convexity / count * length / mean
