"""Learned dual and saddle-point methods for composite problems, each followed by a convergent classical method."""

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
from lmd.solvers.classical.fgp import FGP, FGPState, accelerated_step
from lmd.solvers.classical.pdhg import PDHG, PDHGState, check_step
from lmd.terms import L1
from lmd.terms.base import Scale, per_instance

LOWEST, RATIO, NODES = 0.05, 4.0, 5  # roughness grid of `LearnedFGP`: lowest node, ratio, number of nodes
PLACES = 2 * NODES - 1  # roughnesses at which schedules are evaluated: the nodes and the points halfway between them


@dataclass(frozen=True, kw_only=True)
class LearnedDualState(DualState):
    """Points and the dual points p_k they come from."""

    previous: Tensor  # p_{k-1}


def check_kernel_size(argument: str, size: int) -> int:
    """Return `size` if it is an odd number, so that the kernel has a central pixel."""
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
    """Return the zero-padded convolution `(B, ..., m, *size)` of the stacked fields `(B, ..., n, *size)`.

    `kernel` is `(m, n len(parts), k, ...)`, with one k for each axis of the size. The leading axes, such as colour
    channels, are treated as part of the batch.
    """
    axes = kernel.ndim - 2
    before, size = parts[0].shape[: -axes - 1], parts[0].shape[-axes:]
    planes = torch.cat(list(parts), dim=-axes - 1).flatten(0, len(before) - 1)
    return kernels.convolve(planes, kernel).view(*before, len(kernel), *size)


def at_middle(kernels: Tensor, axes: int) -> Tensor:
    """Return a view `(...)` of the middle entries of kernels `(..., k, ...)` with `axes` axes."""
    for _ in range(axes):
        kernels = kernels.select(-1, kernels.shape[-1] // 2)
    return kernels


def zeros_of(x: Tensor, axes: int) -> Tensor:
    """Return the dual field 0 `(B, ..., axes, *size)` for points x `(B, ..., *size)`, as a view without memory."""
    return x.new_zeros(()).expand(*x.shape[:-axes], axes, *x.shape[-axes:])


class LearnedDual(LearnedPrefix[LearnedDualState]):
    r"""p_{k+1} = P(p_k + A_k * (gamma K x_k) + M_k * (p_k - p_{k-1})), x_{k+1} = x(p_{k+1}), for k < N; then FGP.

    The dual of a composite problem with a strongly convex data term (constant gamma) is smooth, K x(p) is its gradient,
    and P is the exact projection onto the domain of g*, a box for TV. The method is mirror descent in the dual with a
    learned geometry. A_k and M_k are convolutions that mix the components of dual fields `(B, ..., axes, *size)`; they
    differ in every iteration. A_k shapes the gradient, M_k the momentum. x(p) = argmin_x f(x) + <Kx, p>. The problem is
    the sum of a strongly convex term and a term of the differences along `axes` axes of a signal, an image (2, the
    default) or a volume.

    Every p_k is feasible whatever was learned, so there is a duality gap at every iteration. From iteration N on the
    method is FGP with restarts, started at p_N. Its dual values converge as O(1/k^2) from any start. Scaling the data
    and the weight together only scales the iterates, and the iteration is translation equivariant. So one solver serves
    all weights and image sizes. The method starts at p = 0 and uses only the shape of x0.

    Args:
        iterations: N.
        kernel: Side length of the kernels, odd.
        axes: Number of axes of the differences: 1 for signals, 2 for images, 3 for volumes.
    """

    needs = ("differences", *FGP.needs)
    init_cost: ClassVar = {"tilted_minimiser": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "tilted_minimiser": 1}

    def __init__(self, iterations: int = 10, kernel: int = 5, axes: int = 2) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        self.kernel, self.axes = check_kernel_size("kernel", kernel), check_count("axes", axes, most=3)
        start, k = torch.zeros(iterations, axes, 2 * axes, *(kernel,) * axes), torch.arange(iterations)
        for component in range(axes):
            at_middle(start, axes)[:, component, component] = 0.4 / axes
            at_middle(start, axes)[:, component, axes + component] = k / (k + 3)
        # A_k and M_k `(N, 2, 4, k, k)` for two axes. Before training they are accelerated gradient ascent with the step
        # 0.4 / axes, which is 0.2 for two axes
        self.kernels = nn.Parameter(start)
        self.tail: FGP = FGP(restart=True)

    def init(self, problem: Any, x0: Tensor) -> LearnedDualState:
        """Start at p = 0 and x(0)."""
        check_module_kind("x0", x0, self, "solver")
        check_grid(problem.operator, self.axes)
        dual = zeros_of(x0, self.axes)
        return LearnedDualState(problem.f.tilted_minimiser(torch.zeros_like(x0)), dual=dual, previous=dual)

    def learned_step(self, problem: Any, state: LearnedDualState) -> LearnedDualState:
        k, before, previous = state.iteration, state.dual, state.previous
        rise = problem.differences(state.x)
        rise = per_instance(problem.f.strong_convexity, rise) * rise
        dual = problem.g.project(before + convolve((rise, before - previous), self.kernels[k]))
        x = problem.f.tilted_minimiser(problem.operator.adjoint(dual))
        return LearnedDualState(x, k + 1, dual=dual, previous=before)


@dataclass(frozen=True, kw_only=True)
class LearnedFGPState(FGPState):
    """A state of FGP with the step sizes and momenta of all iterations, for each instance."""

    numbers: Tensor  # `(2, B, N)`
    momentum: Scale = 1.0  # m_k of the classical FGP


class LearnedFGP(LearnedPrefix[LearnedFGPState]):
    r"""p_{k+1} = P(q_k + s_k gamma / ||K||^2 K x(q_k)), q_{k+1} = p_{k+1} + m_k (p_{k+1} - p_k), for k < N; then FGP.

    This is FGP (Beck and Teboulle 2009, [doi](https://doi.org/10.1109/TIP.2009.2028250)) with learned momenta m_k and
    learned step sizes s_k, in multiples of FGP's own step. An iteration costs the same as in FGP. P is the projection
    onto the domain of g*, x(p) = argmin_x f(x) + <Kx, p>, gamma the strong convexity of f; x_k = x(p_k).

    The schedule depends on the *roughness* of the data y, r = gamma mean |Ky| / b, where b bounds the dual points.
    Scaling y and the weight together only scales the iterates, so noise level and weight matter only through r.
    `numbers` `(2, J, N)` has a schedule for each of J values of r on a geometric grid, interpolated linearly in log r.

    p_0 = 0 by default. If `coarse`, p_0 comes from the same N iterations on squares of 2 x 2 pixels, which start on
    still coarser pixels, and so on (`lmd.problems.tv`). This adds a third to the work. Only iterations on the full grid
    are counted. Only the shape of x0 is used.

    Every p_k is feasible whatever was learned, and from iteration N on the method is FGP with restarts, started at
    p_N. Training makes only x_N accurate, not the points before it.

    Args:
        iterations: N.
        coarse: Whether to compute p_0 on coarser pixels.
    """

    init_cost: ClassVar = {"operator": 2}
    step_cost: ClassVar = FGP.step_cost

    def __init__(self, iterations: int = 20, coarse: bool = False) -> None:
        super().__init__()
        self.iterations, self.coarse = check_count("iterations", iterations), bool(coarse)
        k = torch.arange(iterations)
        start = torch.stack([torch.full_like(k, 1.0, dtype=torch.get_default_dtype()), k / (k + 3)])
        # Step sizes and momenta `(2, J, N)`; before training they equal FGP's
        self.numbers = nn.Parameter(start[:, None].repeat(1, NODES, 1))
        self.tail: FGP = FGP(restart=True)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("differences", "f", "g", *(("coarser",) if self.coarse else ()), *self.tail.needs)

    def init(self, problem: Any, x0: Tensor) -> LearnedFGPState:
        check_module_kind("x0", x0, self, "solver")
        places = [between(each) for each in roughness(problem).tolist()]
        pairs = [torch.lerp(self.numbers[:, k], self.numbers[:, k + 1], share) for k, share in places]
        numbers, coarse = torch.stack(pairs, dim=1), problem.coarser() if self.coarse else None
        if coarse is None:
            dual, adjoint = torch.zeros_like(problem.differences(x0)), torch.zeros_like(x0)
        else:
            with torch.no_grad():
                found = self.advance(coarse, self.init(coarse, coarse.start()), self.iterations)
                dual = problem.from_coarser(found.dual)
                adjoint = problem.differences.adjoint(dual)
        return LearnedFGPState(x0, dual=dual, adjoint=adjoint, ahead=dual, ahead_adjoint=adjoint, numbers=numbers)

    def learned_step(self, problem: Any, state: LearnedFGPState) -> LearnedFGPState:
        step, momentum = state.numbers[:, :, state.iteration]
        t = step * problem.f.strong_convexity / problem.operator.norm**2
        return accelerated_step(problem, state, t, momentum)


def between(rough: float, count: int = NODES) -> tuple[int, float]:
    """Return the node below a roughness on a grid of `count` nodes, and the position of the roughness between this node
    and the next one, from 0 to 1 on a logarithmic scale."""
    place = min(max(math.log(max(rough, 1e-6) / LOWEST, RATIO) / (NODES - 1), 0.0), 1.0) * (count - 1)
    below = min(int(place), count - 2)
    return below, place - below


def roughness(problem: Any) -> Tensor:
    """Return the roughness gamma mean |Ky| / b `(B,)` of the data y: see `LearnedFGP`."""
    length = L1(1.0).value(problem.differences(problem.f.y))
    weight = problem.g.weight
    mean = weight.flatten(1).mean(dim=1) if isinstance(weight, Tensor) and weight.ndim > 1 else weight
    count = len(problem.differences.grid or ()) * problem.f.y[0].numel()
    return problem.f.strong_convexity / count * length / mean


@dataclass(frozen=True, kw_only=True)
class LearnedPDHGState(DualState):
    """Points x_k and dual points p_k, with their last moves."""

    moved: Tensor  # x_k - x_{k-1}
    dual_moved: Tensor  # p_k - p_{k-1}


@dataclass(frozen=True, kw_only=True)
class LearnedSaddleState(LearnedPDHGState):
    """A state with the part p_k `(B, ..., axes, *size)` of the dual point that belongs to the differences."""

    differences_dual: Tensor


class LearnedSaddle(LearnedPrefix[LearnedSaddleState]):
    r"""Learned convolutional steps in x and p for min_x max_p f(x) + <Kx, p> - g*(p), for k < N; then PDHG.

        p_{k+1} = P(p_k + A_k * (L K x_k) + M_k * (p_k - p_{k-1}) + E_k * (L K(x_k - x_{k-1})))
        x_{k+1} = Q(x_k + C_k * (grad f(x_k) + K'p_{k+1}) / L + D_k * (x_k - x_{k-1}))

    P is the exact projection onto the feasible dual points, Q the projection onto the box that contains the pixels, and
    L the smoothness of f. A_k, M_k, E_k are convolutions that mix the components of dual fields; C_k and D_k act on
    images. Each iteration has its own kernels, with `axes` axes: for signals, images (2, the default) or volumes. f is
    the sum of all terms except the term of the differences; each is smooth or a box. If entries are lost (`masked`),
    C_k has four kernels, from kept or lost entries to kept or lost entries; D_k has two, to kept and to lost entries.
    Training starts at PDHG with steps sigma and tau, up to its prox: A_k = E_k = sigma and C_k = -tau at the middle of
    the kernels.

    Whatever was learned, p_k is feasible and x_k lies in the box, so there is a duality gap at every iteration and
    nothing diverges. From iteration N on the method is PDHG, started at x_N and p_N, which converges from any start. It
    uses tau / `settle`, because short primal steps disturb x_N least. As in `LearnedDual`, the kernels do not depend on
    the scale of the data. The first step fills lost pixels from their neighbours, because they have no data.

    Args:
        iterations: N.
        kernel: Side length of the kernels for dual points, odd.
        primal_kernel: Side length of the kernels for images, odd.
        masked: Whether kernels distinguish kept entries from lost ones.
        tau: Primal step of the final PDHG, before division by `settle`; None is PDHG's default.
        settle: Divisor of tau in the final PDHG, positive.
        axes: Number of axes of the differences: 1 for signals, 2 for images, 3 for volumes.
    """

    init_cost: ClassVar = {"dual_from": 1}
    # The learned steps apply only the differences, even if the operator of the problem has more blocks
    step_cost: ClassVar = {"operator": 2, "adjoint": 1, "data_gradient": 1, "dual_from": 1}

    def __init__(
        self,
        iterations: int = 10,
        kernel: int = 5,
        primal_kernel: int = 5,
        masked: bool = True,
        tau: float | None = None,
        settle: float = 8.0,
        axes: int = 2,
    ) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        self.kernel = check_kernel_size("kernel", kernel)
        self.primal_kernel = check_kernel_size("primal_kernel", primal_kernel)
        self.masked, self.axes = bool(masked), check_count("axes", axes, most=3)
        first = 0.7  # primal step before training, in units of 1 / L
        dual = torch.zeros(iterations, axes, 3 * axes, *(kernel,) * axes)
        for component in range(axes):
            at_middle(dual, axes)[:, component, [component, 2 * axes + component]] = 1 / (4 * axes * first)
        sides = 2 if masked else 1
        primal = torch.zeros(iterations, sides, sides + 1, *(primal_kernel,) * axes)
        at_middle(primal, axes)[:, 0, 0] = -first / (1 + first)
        if masked:
            at_middle(primal, axes)[:, 1, 1] = -first
        self.dual_kernels = nn.Parameter(dual)  # A_k, M_k, E_k `(N, 2, 6, k, k)` for two axes
        # C_k, D_k: `(N, 2, 3, k, k)`; outputs are kept and lost pixels, inputs are kept pixels, lost pixels and the
        # move. Without lost pixels: `(N, 1, 2, k, k)`
        self.primal_kernels = nn.Parameter(primal)
        self.tail: PDHG = PDHG(tau, accelerated=False)
        self.tau, self.settle = self.tail.tau, check_step("settle", settle)

    @property
    def needs(self) -> tuple[str, ...]:
        own = ("differences", "gradient_smoothness", "data_gradient", "f")
        return (*own, *(("mask",) if self.masked else ()), *self.tail.needs)

    def init(self, problem: Any, x0: Tensor) -> LearnedSaddleState:
        check_module_kind("x0", x0, self, "solver")
        check_grid(problem.differences, self.axes)
        p, still = zeros_of(x0, self.axes), x0.new_zeros(()).expand(x0.shape)
        return LearnedSaddleState(x0, dual=problem.dual_from(p, x0), differences_dual=p, dual_moved=p, moved=still)

    def learned_step(self, problem: Any, state: LearnedSaddleState) -> LearnedSaddleState:
        k, p, moved, dual_moved = state.iteration, state.differences_dual, state.moved, state.dual_moved
        x = state.x if k > 0 else problem.f.nearest(problem.fill_unknown(state.x))  # lost pixels are filled first
        smoothness = problem.gradient_smoothness
        rise, faster = problem.differences(x), problem.differences(moved)
        scale = per_instance(smoothness, rise)
        ahead = convolve((scale * rise, dual_moved, scale * faster), self.dual_kernels[k])
        ahead = problem.variation.project(p + ahead)
        slope = (problem.data_gradient(x) + problem.differences.adjoint(ahead)) / per_instance(smoothness, x)
        target = problem.f.nearest(x + self._primal_step(problem, slope, moved, self.primal_kernels[k]))
        full = problem.dual_from(ahead, target)
        return LearnedSaddleState(
            target, k + 1, dual=full, differences_dual=ahead, dual_moved=ahead - p, moved=target - x
        )

    def _primal_step(self, problem: Any, slope: Tensor, moved: Tensor, kernel: Tensor) -> Tensor:
        """Return C_k * slope + D_k * moved, in the shape of x."""
        at = -self.axes - 1
        if not self.masked:
            return convolve([item.unsqueeze(at) for item in (slope, moved)], kernel).squeeze(at)
        mask: Tensor = problem.mask.expand_as(slope)
        kept = slope * mask
        both = convolve([item.unsqueeze(at) for item in (kept, slope - kept, moved)], kernel)
        return torch.where(mask > 0, both.select(at, 0), both.select(at, 1))

    def tail_at(self, problem: Any, x: Tensor, dual: Tensor) -> PDHGState:
        """Return the state of PDHG with primal steps that are shorter than its own."""
        tau, _ = self.tail.steps(problem)
        return PDHGState(x, dual=dual, ahead=x, tau=tau / self.settle, least=0.0)


class LearnedPDHG(LearnedPrefix[LearnedPDHGState]):
    r"""PDHG with learned step sizes and momenta in the first N iterations, and plain PDHG after them.

        p_{k+1} = prox_{s_k g*}(p_k + m_k (p_k - p_{k-1}) + s_k K(x_k + e_k (x_k - x_{k-1})))
        x_{k+1} = prox_{t_k f}(x_k + n_k (x_k - x_{k-1}) - t_k K'p_{k+1})

    with Euclidean mirrors in x and p. It is for problems whose K has no grid structure, such as the lasso, because
    `LearnedSaddle` needs a grid to convolve. t_k and s_k are learned as multiples of PDHG's own steps tau and sigma.

    Whatever was learned, p_k is the value of a prox and so feasible: there is a duality gap at every iteration. From
    iteration N on the method is PDHG, started at x_N and p_N. Both parts use the same `tau`.

    Args:
        iterations: N.
        tau: Primal step of PDHG; None is its default.
    """

    needs = PDHG.needs
    init_cost: ClassVar = PDHG.init_cost
    step_cost: ClassVar = PDHG.step_cost

    def __init__(self, iterations: int = 20, tau: float | None = None) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        start = torch.zeros(iterations, 5)
        start[:, 2] = 1.0
        # log t_k / tau, log s_k / sigma, e_k, m_k, n_k `(N, 5)`; before training they equal PDHG's
        self.numbers = nn.Parameter(start)
        self.tail: PDHG = PDHG(tau, accelerated=False)
        self.tau = self.tail.tau

    def init(self, problem: Any, x0: Tensor) -> LearnedPDHGState:
        dual = torch.zeros_like(problem.operator(x0))
        return LearnedPDHGState(x0, dual=dual, moved=torch.zeros_like(x0), dual_moved=dual)

    def learned_step(self, problem: Any, state: LearnedPDHGState) -> LearnedPDHGState:
        x, p, moved, dual_moved = state.x, state.dual, state.moved, state.dual_moved
        tau, sigma = self.tail.steps(problem)
        log_t, log_s, ahead, dual_momentum, momentum = self.numbers[state.iteration].to(x.dtype).unbind()
        t, s = (log_t.exp() * tau).expand(len(x)), (log_s.exp() * sigma).expand(len(x))
        rise = problem.operator(x + ahead * moved)
        dual = problem.g.conjugate_prox(p + dual_momentum * dual_moved + per_instance(s, rise) * rise, s)
        fall = problem.operator.adjoint(dual)
        target = problem.f.prox(x + momentum * moved - per_instance(t, fall) * fall, t)
        return LearnedPDHGState(target, state.iteration + 1, dual=dual, moved=target - x, dual_moved=dual - p)
