"""Solvers of several horizons for one kind of problem: a whole solve takes the one that its tolerance needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmd.errors import InputError
from lmd.kernels import loop, volume
from lmd.problems.compiled import composed_of, model_of
from lmd.solvers.base import Passing, Solver
from lmd.solvers.learned_fgp import NODES, between, roughness_of, variation

EASIER = 1.7
"""How many times smaller gaps are after as many iterations in the isotropic form, or more."""


class Ladder(Passing):
    """`LearnedFGP` of several horizons, shortest first. Step by step it is the longest of them.

    A whole solve (`finish`) takes for each instance the shortest one that gets to the tolerance at its roughness, so
    that an instance of a batch gets what it would get alone. `reach` has the relative gap that each of them gets to at
    the roughnesses that it has numbers for.
    """

    def __init__(self, rungs: Sequence[Solver[Any]], reach: Sequence[Sequence[float]]) -> None:
        super().__init__(rungs[-1])
        if [len(gaps) for gaps in reach] != [NODES] * len(rungs):
            raise InputError("reach", f"{len(reach)} rows", f"{len(rungs)} rows, one for each rung, of {NODES} numbers")
        self.rungs = nn.ModuleList(rungs)
        self.horizons = [rung.horizon or 0 for rung in rungs]
        self.given = [list(gaps) for gaps in reach]
        self.reach = [[math.log(gap) for gap in gaps] for gaps in reach]

    def config(self) -> dict[str, Any]:
        return {"rungs": list(self.rungs), "reach": self.given}

    def finish(self, problem: Any, dual: Tensor | None, tolerance: float, limit: int) -> loop.Solved | None:
        model, composed = model_of(problem), composed_of(problem, tolerance)
        if dual is None and model is not None:
            numbers, counts, length = self._numbers(problem, tolerance, model.isotropic)
            solved = loop.fgp(model, loop.Progress(), limit, numbers=numbers, learned=counts, tolerance=tolerance)
            return solved if model.isotropic else solved._replace(first=problem.g.weight * length)
        if dual is None and composed is not None:
            numbers, counts, _ = self._numbers(problem, tolerance, composed.isotropic)
            return volume.fgp(composed, limit, tolerance=tolerance, numbers=numbers, learned=counts)
        return self.solver.finish(problem, dual, tolerance, limit)

    def _numbers(self, problem: Any, tolerance: float, isotropic: bool) -> tuple[Tensor, list[int], Tensor]:
        """Numbers `(2, B, N)` of the rung of each instance, how many each has, and |Ky| `(B,)`."""
        logarithm, length = math.log(tolerance * (EASIER if isotropic else 1.0)), variation(problem)
        rough: list[float] = roughness_of(problem, length).tolist()
        chosen = [self._rung(each, logarithm) for each in rough]
        numbers = torch.zeros(2, len(chosen), self.horizons[max(chosen)], dtype=torch.float64, device="cpu")
        for place, (rung, each) in enumerate(zip(chosen, rough, strict=True)):
            learned: Any = self.rungs[rung]
            numbers[:, place, : self.horizons[rung]] = learned.numbers_at(each)
        return numbers, [self.horizons[rung] for rung in chosen], length

    def _rung(self, rough: float, logarithm: float) -> int:
        """The first that gets to a gap of this logarithm, or the last there is."""
        below, share = between(rough)
        for rung, gaps in enumerate(self.reach):
            if gaps[below] + share * (gaps[below + 1] - gaps[below]) <= logarithm:
                return rung
        return len(self.reach) - 1
