"""Solvers of several horizons for one kind of problem: a whole solve takes the one that its tolerance needs."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lmd.core.tensor_cache import TensorCache
from lmd.errors import InputError
from lmd.kernels import loop, volume
from lmd.problems.base import offers
from lmd.problems.compiled import composed_of, model_of
from lmd.solvers.base import Passing, Solver
from lmd.solvers.learned.fgp import FORMS, PLACES, LearnedFGP, between, roughness, schedules_of

_NUMBERS = operator.itemgetter("numbers")

MARGINS = {False: 0.9, True: 0.8}
"""A rung is taken for tolerances from its reach over this on: one that misses costs one look more and iterations. Those
from coarser grids differ more from image to image."""

COUPLED = 0.6
"""The same, besides, where channels are coupled: gaps fall faster there, so that a longer rung costs little."""


class Ladder(Passing):
    """`LearnedFGP` of several horizons, the cheapest first. Step by step it is the last of them.

    A whole solve (`finish`) takes for each instance the first one that gets to the tolerance at its roughness, or the
    one that gets nearest: an instance of a batch gets what it would get alone. Where that was not enough, compiled
    solves go on with the numbers of another one from where they stand, while each lowers the gap by a fifth, and then
    with FGP, which converges. `reach` has the relative gap that each of them gets to at the roughnesses that it has
    numbers for and halfway between, in the anisotropic form, in the isotropic one, and in both with coupled channels:
    `(rungs, FORMS, PLACES)`.

    Args:
        rungs: The solvers, the cheapest first.
        reach: The relative gap that each gets to, by form and roughness.
    """

    def __init__(self, rungs: Sequence[Solver[Any]], reach: Sequence[Sequence[Sequence[float]]]) -> None:
        super().__init__(rungs[-1])
        if [[len(gaps) for gaps in forms] for forms in reach] != [[PLACES] * FORMS] * len(rungs):
            accepted = f"{len(rungs)} rows, one for each rung, of {PLACES} numbers for each of {FORMS} forms"
            raise InputError("reach", f"{len(reach)} rows", accepted)
        self.rungs = nn.ModuleList(rungs)
        self.given = [[list(gaps) for gaps in forms] for forms in reach]
        self._learned = [cast(LearnedFGP, rung) for rung in rungs]
        margins = [MARGINS[rung.coarse] for rung in self._learned]
        self.reach = [
            [
                [math.log(gap / (margin * COUPLED if form >= FORMS // 2 else margin)) for gap in gaps]
                for form, gaps in enumerate(forms)
            ]
            for forms, margin in zip(reach, margins, strict=True)
        ]
        self._own = [rung._parameters for rung in self._learned]
        self._made = TensorCache[loop.Schedules]()

    def config(self) -> dict[str, Any]:
        return {"rungs": list(self.rungs), "reach": self.given}

    def follow(self, problem: Any, dual: Tensor, before: Any, tolerance: float, limit: int) -> loop.Solved | None:
        """The compiled loop finds out whether the dual points of another problem are worth to start from."""
        model = model_of(problem, dual)
        if model is None:
            return None
        frame = before.f.y if type(before) is type(problem) and before.f.y.shape == model.noisy.shape else None
        start = loop.Progress(dual)
        return loop.fgp(model, start, limit, schedules=self._schedules(), before=frame, tolerance=tolerance)

    def finish(self, problem: Any, dual: Tensor | None, tolerance: float, limit: int) -> loop.Solved | None:
        if dual is None and (model := model_of(problem)) is not None:
            return self.climb(model, tolerance, limit)
        if dual is None and (composed := composed_of(problem, tolerance)) is not None:
            if offers(problem, ("coarser",)):
                return self._by_scales(problem, tolerance, limit, composed.isotropic)
            numbers, counts = self._numbers(problem, tolerance, composed.isotropic)
            return volume.fgp(composed, limit, tolerance=tolerance, numbers=numbers, learned=counts)
        return self.solver.finish(problem, dual, tolerance, limit)

    def climb(self, model: loop.Model, tolerance: float, limit: int) -> loop.Solved:
        """A whole solve of denoising, from nothing."""
        return loop.fgp(model, loop.NOTHING, limit, schedules=self._schedules(), tolerance=tolerance)

    def _by_scales(self, problem: Any, tolerance: float, limit: int, isotropic: bool) -> loop.Solved:
        """For volumes and other spacings: one instance after the other, each by its own rung."""
        logarithm, found = math.log(tolerance), []
        for n, rough in enumerate(roughness(problem).tolist()):
            rung = self._rung(rough, logarithm, isotropic, coarse=True)
            found.append(cast(loop.Solved, rung.finish(problem.select(n), None, tolerance, limit)))
        if len(found) == 1:
            return found[0]
        x, dual = torch.cat([each.x for each in found]), torch.cat([each.dual for each in found])
        return loop.Solved(x, dual, dual, [number for each in found for number in each.numbers])

    def _numbers(self, problem: Any, tolerance: float, isotropic: bool) -> tuple[Tensor, list[int]]:
        """For problems without coarser grids: numbers `(2, B, N)` of the rung of each instance, how many each has."""
        logarithm = math.log(tolerance)
        rough: list[float] = roughness(problem).tolist()
        chosen = [self._rung(each, logarithm, isotropic) for each in rough]
        numbers = torch.zeros(
            2, len(chosen), max(rung.iterations for rung in chosen), dtype=torch.float64, device="cpu"
        )
        for place, (rung, each) in enumerate(zip(chosen, rough, strict=True)):
            numbers[:, place, : rung.iterations] = rung.numbers_at(each)
        return numbers, [rung.iterations for rung in chosen]

    def _rung(self, rough: float, logarithm: float, isotropic: bool, coarse: bool = False) -> LearnedFGP:
        """The first that gets to a gap of this logarithm, or the last of them; of those that begin at 0 or of all."""
        below, share = between(rough, PLACES)
        plain = [pair for pair in zip(self._learned, self.reach, strict=True) if coarse or not pair[0].coarse]
        for rung, forms in plain:
            gaps = forms[isotropic]
            if gaps[below] + share * (gaps[below + 1] - gaps[below]) <= logarithm:
                return rung
        return plain[-1][0]

    def _schedules(self) -> loop.Schedules:
        """TensorCache once, and again where numbers have changed since."""
        numbers: Any = list(map(_NUMBERS, self._own))  # at a tenth of what `.numbers` costs
        return self._made.get(numbers, lambda: schedules_of(self._learned, self.reach))
