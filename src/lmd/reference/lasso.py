"""The lasso: accelerated proximal gradient with restarts, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lmd.reference.proof import Effort, Pair

EVERY = 10
"""How many iterations there are from one look at the gap to the next."""

EFFORT = Effort(goal=1e-9, tolerance=1e-6, patience=100_000 // EVERY, looks=100_000 // EVERY)

NEEDS = ("operator", "b", "misfit_gradient", "data_prox")


def iterates(problem: Any) -> Iterator[Pair]:
    """Points x and dual points Ax - b `(1, ...)`, from every `EVERY` iterations one.

    [Beck and Teboulle 2009](https://doi.org/10.1137/080716542); momentum restarts when it points uphill.
    """
    step = 1 / problem.operator.norm**2
    x = ahead = problem.start()
    momentum = 1.0
    while True:
        yield x, problem.operator(x) - problem.b
        for _ in range(EVERY):
            new = problem.data_prox(ahead - step * problem.misfit_gradient(ahead), step)
            uphill = float(((ahead - new) * (new - x)).sum()) > 0
            following = 1.0 if uphill else (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = new if uphill else new + ((momentum - 1) / following) * (new - x)
            x, momentum = new, following
