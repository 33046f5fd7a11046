"""Learned mirror descent that does not drift: the error of the learned inverse is measured, and taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count
from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.problems.base import Problem
from lmd.solvers.mirror.mirror_descent import MirrorDescent, MirrorState
from lmd.solvers.steps import LearnedSteps, Steps


class CorrectedMirrorDescent(MirrorDescent):
    r"""x_{k+1} = to_primal(y_k) - c_k (to_primal(to_dual(x_k)) - x_k), y_k = to_dual(x_k) - t_k g_k, c_k in [0, 1].

    With a learned inverse, to_primal(to_dual(x)) is not x. Approximate mirror descent (c_k = 0) therefore moves even
    where the gradient is zero, however small its steps: its iterates settle at the fixed points of the round trip
    instead of at the minimum. That is why the paper's solvers rise again past their trained iterations, and why small
    steps do not help them (the paper's remark on t_k^{-1}). With c_k = 1 the round trip is subtracted: a point with
    zero gradient stays where it is, and a small step is a step along -J g, J the Jacobian of `to_primal`.

    The drift is not all bad. In the first iterations it takes any start to where the solutions of the family are, and
    a training that may choose makes use of it: c_k is learned for each trained iteration, starts at `initial`, and is
    1 beyond. Costs one more `to_primal` per iteration.

    Args:
        mirror: Any mirror; the corrections matter where its inverse is learned.
        steps: The step-sizes t_k: a positive number, or `Steps`.
        iterations: How many corrections are learned; None is as many as there are learned steps.
        initial: Each c_k to begin with, in [0, 1].
    """

    def __init__(
        self, mirror: Mirror, steps: Steps | float, iterations: int | None = None, initial: float = 0.5
    ) -> None:
        super().__init__(mirror, steps)
        if iterations is None:
            if not isinstance(self.steps, LearnedSteps):
                raise InputError(
                    "iterations", "none", "how many corrections to learn, as the steps have no such number"
                )
            iterations = self.steps.iterations
        self.iterations = check_count("iterations", iterations)
        self.initial = float(initial)
        if not 0 <= self.initial <= 1:
            raise InputError("initial", initial, "a number in [0, 1]")
        self.corrections = nn.Parameter(torch.full((iterations,), self.initial))

    def config(self) -> dict[str, Any]:
        return {"mirror": self.mirror, "steps": self.steps, "iterations": self.iterations, "initial": self.initial}

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1, "to_dual": 1, "to_primal": 2}

    @property
    def horizon(self) -> int | None:
        return self.iterations

    def keeps_to_domain(self, problem: Problem) -> bool:
        """Without a domain; with one, only where there is nothing to correct."""
        return super().keeps_to_domain(problem) and (problem.domain is None or self.mirror.is_exact)

    def correction(self, k: int) -> float | Tensor:
        """c_k."""
        return self.corrections[k] if k < self.iterations else 1.0

    def step(self, problem: Problem, state: MirrorState) -> MirrorState:
        dual = self.encode(state)
        drifted = super().step(problem, replace(state, dual=dual))
        drift = self.mirror.to_primal(dual) - state.x
        return replace(drifted, x=drifted.x - self.correction(state.iteration) * drift)

    def with_steps(self, steps: Steps | float) -> CorrectedMirrorDescent:
        """The same mirror and corrections with other steps."""
        other = CorrectedMirrorDescent(self.mirror, steps, self.iterations, self.initial)
        other.corrections = self.corrections
        return other

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clip the corrections to [0, 1]."""
        self.corrections.clamp_(0, 1)
