"""Certified optima of the instances of a task: the one place that asks for them, and keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd import guarantees
from lmd.guarantees.certify import run
from lmd.solvers import Solver

Reference = Callable[[Any, Tensor], tuple[Tensor, Tensor | None]]
"""From a problem and starts to its minima `(B,)` and, where it is proven where they are, its minimisers."""


def optimum(problem: Any) -> guarantees.Optimum:
    """The certified optima of a batch, from the cache where they are in it."""
    return guarantees.optimum(problem, guarantees.OptimumCache())


def minimum(problem: Any) -> Tensor:
    """The certified minima `(B,)`."""
    return guarantees.minimum(problem, guarantees.OptimumCache())


def minimiser(problem: Any) -> Tensor:
    """The certified minimisers `(B, ...)`; where there are many, as in inpainting, the smoothest."""
    return guarantees.smoothest_minimiser(problem, guarantees.OptimumCache())


def gap_scale(problem: Any, minima: Tensor, like: Tensor) -> Tensor:
    """What gaps are divided by `(B,)`: the minima, or the values at x = 0 where those are next to nothing beside."""
    at_zero: Tensor = problem.value(like.new_zeros(like.shape))
    return minima.where((minima > 1e-6 * at_zero) | torch.isinf(at_zero), at_zero)


def known(problem: Any, x0: Tensor) -> tuple[Tensor, None]:
    """Those of `lmd.guarantees.minimum`."""
    return minimum(problem), None


@dataclass(frozen=True)
class CertifiedBy:
    """Minima, certified to a `tolerance` by a classical solver; with `unique`, minimisers as well.

    A tenth of the gap that a learned solver is expected to leave is enough: for tomographies less would take minutes.
    """

    solver: Solver[Any]
    """One that keeps dual points."""

    tolerance: float
    """The relative gap to be proven."""

    unique: bool = False
    """Whether there is one minimiser, so that points can be compared with it."""

    def __call__(self, problem: Any, x0: Tensor) -> tuple[Tensor, Tensor | None]:
        found = run(self.solver, problem, x0, tolerance=self.tolerance)
        return found.values, found.x if self.unique else None
