"""Soft-margin SVMs: the interior-point method in float64, until the dual point it ends with proves the optimum."""

from __future__ import annotations

from typing import Any

import torch

from lmd.errors import LmdError
from lmd.reference.optimum import Optimum
from lmd.solvers.classical.interior_point import InteriorPoint

TOLERANCE = 1e-10
"""The duality gap, relative to the value, at which the search ends."""

CERTIFIED = 1e-6
"""The one that still counts as solved, where rounding keeps the search from getting further."""

ITERATIONS = 100
"""When to give up; 15 to 30 are usual."""

NEEDS = ("rows", "subset", "C", "dual_value")


def solve(problem: Any) -> Optimum:
    """The optimum of a batch of one."""
    solver = InteriorPoint(precision=0.0)
    state = solver.init(problem, torch.zeros_like(problem.rows[:1, 0]))
    best = None
    for _ in range(ITERATIONS):
        state = solver.step(problem, state)
        found = Optimum.of(state.x, problem.value(state.x), problem.dual_value(state.dual))
        best = found if best is None or bool(found.gap < best.gap) else best
        if bool(state.done) or bool(best.gap <= TOLERANCE * best.value):
            break
    if best is None or not bool(best.gap <= CERTIFIED * best.value):
        gap = float("nan") if best is None else float(best.gap)
        raise LmdError(f"SVM: no certified optimum, the duality gap stays at {gap:.1e}; scale the features or C")
    return best
