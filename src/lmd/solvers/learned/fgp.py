"""Fast gradient projection with learned numbers: a step-size and a momentum per iteration, at no extra cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_module_kind
from lmd.solvers.base import DualState
from lmd.solvers.classical.fgp import FGP
from lmd.solvers.learned.prefix import LearnedPrefix
from lmd.terms import L1
from lmd.terms.base import add_scaled, per_instance

# Roughnesses that numbers are learned for: the lowest, from one to the next, and how many
LOWEST, RATIO, NODES = 0.05, 4.0, 5

PLACES = 2 * NODES - 1  # Roughnesses at which is measured how far numbers get: these, and halfway between them


@dataclass(frozen=True, kw_only=True)
class LearnedFGPState(DualState):
    """Points, the dual points p they come from, and what the next step is made of."""

    adjoint: Tensor  # K'p `(B, ...)`
    ahead: Tensor  # The extrapolated dual points q, from which the next step starts
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
    likewise, down to a few pixels (`lmd.problems.grids`): information that would need an iteration for each pixel on
    its way is there from the start, for a third of the work again. The iterations that are counted are those on the
    pixels themselves. Of x0 only the shape matters.

    Every p_k is feasible whatever was learned, and from iteration N on the method is FGP with restarts, started at
    p_N. Only x_N is meant to be good, not the points before it.

    Args:
        iterations: N.
        coarse: Begin on coarser pixels.
    """

    init_cost: ClassVar = {"operator": 2}

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

    @property
    def step_cost(self) -> dict[str, int]:
        return self.tail.step_cost

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
        return torch.stack([self.numbers_at(each) for each in rough.tolist()], dim=1)

    def numbers_at(self, rough: float) -> Tensor:
        """Those of one roughness `(2, N)`."""
        below, share = between(rough)
        return torch.lerp(self.numbers[:, below], self.numbers[:, below + 1], share)

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
    return roughness_of(problem, L1(1.0).value(problem.differences(problem.f.y)))


def roughness_of(problem: Any, length: Tensor) -> Tensor:
    """The same for |Ky| `(B,)`."""
    weight = problem.g.weight
    mean = weight.flatten(1).mean(dim=1) if isinstance(weight, Tensor) and weight.ndim > 1 else weight
    count = len(problem.differences.grid or ()) * problem.f.y[0].numel()
    return problem.data_strong_convexity / count * length / mean
