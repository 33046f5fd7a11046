"""Any other composite problem with a duality gap: the primal-dual method, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lmd.reference.proof import Effort, Pair
from lmd.solvers.classical.pdhg import PDHG

EVERY = 50
"""How many iterations there are from one look at the gap to the next."""

EFFORT = Effort(goal=1e-8, tolerance=1e-6, patience=20_000 // EVERY, looks=200_000 // EVERY)

NEEDS = (*PDHG().needs, "start", "gap", "relative_gap")


def iterates(problem: Any) -> Iterator[Pair]:
    """Points and dual points `(1, ...)`, from every `EVERY` iterations one."""
    solver = PDHG(settle=8.0)
    state = solver.init(problem, problem.start())
    while True:
        for _ in range(EVERY):
            state = solver.step(problem, state)
        yield state.x, state.dual
