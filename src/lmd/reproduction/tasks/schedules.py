"""Fast gradient projection with learned numbers for TV denoising: recipes."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lmd import tv
from lmd.problems import Family, TVDenoising, TVDenoisingFamily, add_noise
from lmd.problems.tv import TVProblem
from lmd.reproduction.tasks.task import Recipe
from lmd.reproduction.tasks.unrolled import PHOTOGRAPHS
from lmd.solvers import FGP, LearnedFGP, Solver
from lmd.training.solved import SolvedFamily
from lmd.tv.denoising import Denoising

STEPS, SCALES = (2, 4, 8, 13, 21, 55), (19, 28, 42, 64, 100, 180)
"""Lengths of the schedules from p = 0, and of those from coarser grids."""

CROPS = {"quick": 24, "standard": 64}
WEIGHTS = (0.02, 1.5)


class AllWeights(TVDenoisingFamily):
    """Weights drawn evenly in their logarithm, so that every roughness is met as often."""

    def sample(self, batch: int, generator: torch.Generator) -> tuple[TVProblem, Tensor]:
        images = self.sample_images(batch, generator)
        noisy = add_noise(images, self._uniform(self.noise, batch, generator), generator)
        logarithm = self._uniform((math.log(self.weight[0]), math.log(self.weight[1])), batch, generator)
        return TVDenoising(noisy, logarithm.exp(), self.isotropic, self.halved), noisy


def family(preset: str) -> Family:
    """Half of the images twice as large: large flat pieces need the most iterations."""
    images = PHOTOGRAPHS.train(preset)
    doubled = interpolate(images.float(), scale_factor=2, mode="bicubic").round().clamp(0, 255).byte()
    return AllWeights([*images, *doubled], noise=(0.0, 0.22), crop=CROPS[preset], weight=WEIGHTS)


FLAT = {False: 34, True: 42}
"""From so many iterations on, from p = 0 and from coarser grids, a solve ends with x drawn flat, as often as not: what
counts then is the dual point, so that numbers are learned for its gap to the solution too."""

POOLS = {"quick": 60, "standard": 3000}
"""Instances that are drawn and solved before such numbers are learned."""


def solved_family(preset: str) -> Family:
    """The same with solutions."""
    return SolvedFamily(family(preset), POOLS[preset], FGP(restart=True), iterations=1, finish=_solution)


def _solution(problem: TVProblem, x: Tensor) -> Tensor:
    plan = tv.match(problem, 1e-8)
    return plan.solve(1e-8, 10_000, None).x if isinstance(plan, Denoising) else x


def _settings(horizon: int, coarse: bool) -> dict[str, dict[str, Any]]:
    """Many iterations are sensitive to their numbers and want a smaller rate. Those from coarser grids, and those for
    two gaps, gain from more updates at half of it."""
    both = horizon >= FLAT[coarse]
    longer = coarse or both
    rate = 0.1 if horizon < 60 else 2.4 / horizon
    shared: dict[str, Any] = {
        "objective": "both duality gaps" if both else "duality gap",
        "value_weights": "last",
        "learning_rate": rate / 2 if longer else rate,
        "schedule": "cosine",
        "clip_gradient": 20.0,
    }
    updates = 3000 if both else 2000 if coarse else 1000 if horizon >= 8 else 400
    larger = {"updates": updates, "batch": 8, "warmup": 20, "validation_batch": 48, "checkpoint_every": 100}
    return {"quick": {**shared, "updates": 40, "batch": 4}, "standard": {**shared, **larger}}


def _learned(horizon: int, coarse: bool, seed: int) -> Solver[Any]:
    return LearnedFGP(horizon, coarse)


def _recipe(horizon: int, coarse: bool) -> Recipe:
    start = ", begun on coarser grids" if coarse else ""
    return Recipe(
        iterations=horizon,
        form="scales" if coarse else "steps",
        rung=True,
        title=f"fast gradient projection of {horizon} iterations with learned step-sizes and momenta{start}",
        solver=functools.partial(_learned, horizon, coarse),
        family=solved_family if horizon >= FLAT[coarse] else family,
        source=PHOTOGRAPHS,
        settings=_settings(horizon, coarse),
        weak="Only the last trained iterate is good: `lmd.solve` takes the horizon that a tolerance needs.",
    )


RECIPES = (*(_recipe(horizon, False) for horizon in STEPS), *(_recipe(horizon, True) for horizon in SCALES))
