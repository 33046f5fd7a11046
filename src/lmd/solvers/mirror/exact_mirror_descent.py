"""Learned mirror descent with exact mirrors: learned iterations, then backtracked ones in the same kind of geometry."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_positive, shape_of
from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem
from lmd.solvers.base import DualState
from lmd.solvers.learned.prefix import LearnedPrefix
from lmd.solvers.mirror.backtracking import AcceleratedBacktrackedMirrorDescent, per_point
from lmd.terms.domains import same_set

WIDTHS = (1e-4, 1e3)
"""What learned widths are kept in."""


@dataclass(frozen=True, kw_only=True)
class ExactState(DualState):
    """Points, those of the two iterations before, and the scale of the problem's gradients."""

    previous: Tensor
    earlier: Tensor
    unit: Tensor
    """L `(B,)`: the smoothness of the problem, or of the smooth part of it; 1 where nothing is known."""


class ExactMirrorDescent(LearnedPrefix[ExactState, Problem]):
    r"""N learned iterations of mirror descent with a mirror, two momenta and a smoothing of its own for each,

        v_k = x_k + m_k (x_k - x_{k-1}) + n_k (x_{k-1} - x_{k-2}),
        x_{k+1} = to_primal_k(to_dual_k(v_k) - grad f_{w_k}(v_k) / L),

    and then `AcceleratedBacktrackedMirrorDescent` in the last of the mirrors, which converges from any point, so from
    x_N. f_w is f smoothed by w where it is not smooth (`Problem.smoothed_gradient`), or the mean of such for several
    `widths` in learned shares, which is a smoothing too; its dual points are feasible, so there is a duality gap in
    every iteration where the problem has one. Slopes of the mirrors take the place of step-sizes, in units of 1 / L.

    x_{-1} = x_{-2} is a guess, and m_0 begins at -1, which makes it v_0: x_0 with what is unknown filled in, or, for
    problems in `dimension` variables that have their solutions near one point, that point, which is learned.

    Args:
        mirror: An exact one: that of the last iteration, and copies of it for the others.
        iterations: N.
        width: The smoothing of the first iteration to begin with, positive.
        final_width: That of the last, from which that of the rest falls.
        delay: Iterations of the rest until its width is half of it.
        dimension: Entries of the learned point; 0 is none.
        widths: Smoothings per iteration.
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
        self.tail: AcceleratedBacktrackedMirrorDescent = AcceleratedBacktrackedMirrorDescent(mirror, final_width, delay)
        self.mirrors = nn.ModuleList(copy.deepcopy(mirror) for _ in range(iterations - 1))
        """Those of all learned iterations but the last, whose mirror is that of the rest."""
        apart = torch.linspace(0, check_count("widths", widths) - 1, widths)
        first = torch.linspace(math.log(width), math.log(final_width), iterations)
        self.log_widths = nn.Parameter(first[:, None] + apart)
        """`(N, widths)`; a factor of e apart to begin with, as are their shares."""
        self.log_shares = nn.Parameter(-apart.repeat(iterations, 1), requires_grad=widths > 1)
        self.momenta = nn.Parameter(torch.tensor([[-1.0, 0.0]] + [[0.2, 0.0]] * (iterations - 1)))
        """m and n `(N, 2)`."""
        dimension = check_count("dimension", dimension, least=0)
        self.guess = nn.Parameter(torch.zeros(dimension), requires_grad=dimension > 0)

    def config(self) -> dict[str, Any]:
        tail = self.tail
        return {
            "mirror": tail.mirror,
            "iterations": self.iterations,
            "width": self.width,
            "final_width": tail.width,
            "delay": tail.delay,
            "dimension": len(self.guess),
            "widths": self.log_widths.shape[1],
        }

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": self.log_widths.shape[1], "to_dual": 1, "to_primal": 1}

    def keeps_to_domain(self, problem: Problem) -> bool:
        return same_set(self.tail.mirror.domain, problem.domain)

    def mirror_of(self, k: int) -> Mirror:
        """The mirror of iteration k < N."""
        return self.tail.mirror if k == self.iterations - 1 else cast(Mirror, self.mirrors[k])

    def init(self, problem: Problem, x0: Tensor) -> ExactState:
        self.tail.mirror.check("x0", x0)
        if len(self.guess) and x0.shape[1:] != self.guess.shape:
            raise InputError("x0", f"shape {shape_of(x0)}", f"shape (B, {len(self.guess)}), as its learned start has")
        guess = self.guess.expand_as(x0) if len(self.guess) else problem.filled(x0)
        none, unit = x0.new_empty(len(x0), 0), _unit(problem, x0)
        return ExactState(x0, dual=none, previous=guess, earlier=guess, unit=unit)

    def learned_step(self, problem: Problem, state: ExactState) -> ExactState:
        k, x, mirror = state.iteration, state.x, self.mirror_of(state.iteration)
        first, second = self.momenta[k]
        ahead = torch.addcmul(torch.lerp(state.previous, x, 1 + first), second, state.previous - state.earlier)
        if problem.domain is not None:
            ahead = problem.domain.nearest(ahead)
        shares = self.log_shares[k].softmax(dim=0)
        gradient, dual = problem.mixed_gradient(ahead, self.log_widths[k].exp(), shares)
        x_next = mirror.descend(ahead, gradient / per_point(state.unit, gradient))
        previous, earlier = (x, state.previous) if k else (ahead, ahead)  # the first move is that from v_0
        return ExactState(x_next, k + 1, dual=dual, previous=previous, earlier=earlier, unit=state.unit)

    def tail_at(self, problem: Problem, x: Tensor, dual: Tensor) -> DualState:
        """The rest goes on with the least width of the last learned iteration."""
        return replace(self.tail.resume(problem, x, dual), width=self.log_widths[-1].amin().exp())

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep momenta in [-1, 1] and widths positive."""
        self.momenta.clamp_(-1, 1)
        low, high = self.log_widths.new_tensor(WIDTHS).log().tolist()
        self.log_widths.clamp_(low, high)


def _unit(problem: Problem, x: Tensor) -> Tensor:
    known = getattr(problem, "data_smoothness", None)
    known = problem.smoothness if known is None else known
    unit = x.new_ones(len(x)) * (1.0 if known is None else known)
    return torch.where(unit > 0, unit, 1.0)  # a constant function has gradients of 0 in any unit
