"""The certified optimum of one lasso: accelerated proximal gradient with restarts, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from lmd.errors import LmdError
from lmd.problems.optimum import Optimum

if TYPE_CHECKING:
    from lmd.problems.lasso import Lasso

GOAL = 1e-9
"""The relative duality gap to stop at."""

TOLERANCE = 1e-6
"""The one that still counts as solved at the last iteration."""

ITERATIONS = 100_000


def solve_lasso(problem: Lasso) -> Optimum:
    """The optimum of a batch of one. Beck and Teboulle 2009; momentum restarts when it points uphill."""
    step = 1 / problem.operator.norm**2
    x = ahead = problem.start()
    momentum = 1.0
    for iteration in range(ITERATIONS):
        if iteration % 10 == 0 and (found := _certified(problem, x)).gap <= GOAL * abs(found.value):
            return found
        new = problem.data_prox(ahead - step * problem.misfit_gradient(ahead), step)
        uphill = float(((ahead - new) * (new - x)).sum()) > 0
        following = 1.0 if uphill else (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = new if uphill else new + ((momentum - 1) / following) * (new - x)
        x, momentum = new, following
    if found.gap <= TOLERANCE * abs(found.value):
        return found
    gap = found.gap / abs(found.value)
    raise LmdError(f"Lasso: no certified minimiser, the relative duality gap stays at {gap:.1e}")


def _certified(problem: Lasso, x: Tensor) -> Optimum:
    value = float(problem.value(x))
    gap = float(problem.gap(x, problem.operator(x) - problem.b))
    return Optimum(x[0], value, value - gap)
