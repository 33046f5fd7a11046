"""Fast gradient projection with learned numbers for TV denoising: recipes, and how far they get at each roughness."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lmd.problems import Family, TVDenoising, TVDenoisingFamily, add_noise
from lmd.problems.tv import TVProblem
from lmd.solvers import LearnedFGP, Solver
from lmd.tasks.task import Recipe
from lmd.tasks.unrolled import PHOTOGRAPHS

CROPS = {"quick": 24, "standard": 64}
HORIZONS = (8, 13, 21, 34, 55, 89, 144, 233)
"""How many iterations: each more than half as many again as the one before."""

WEIGHTS = (0.02, 1.5)


class AllWeights(TVDenoisingFamily):
    """Weights drawn evenly in their logarithm, so that every roughness is met as often."""

    def sample(self, batch: int, generator: torch.Generator) -> tuple[TVProblem, Tensor]:
        images = self.sample_images(batch, generator)
        noisy = add_noise(images, self._uniform(self.noise, batch, generator), generator)
        logarithm = self._uniform((math.log(self.weight[0]), math.log(self.weight[1])), batch, generator)
        return TVDenoising(noisy, logarithm.exp(), self.isotropic, self.halved), noisy


def family(preset: str, isotropic: bool = False) -> Family:
    """Half of the images twice as large: large flat pieces need the most iterations."""
    images = PHOTOGRAPHS.train(preset)
    doubled = interpolate(images.float(), scale_factor=2, mode="bicubic").round().clamp(0, 255).byte()
    kind: dict[str, Any] = {"crop": CROPS[preset], "weight": WEIGHTS, "isotropic": isotropic}
    return AllWeights([*images, *doubled], noise=(0.0, 0.22), **kind)


def _settings(updates: int) -> dict[str, dict[str, Any]]:
    shared: dict[str, Any] = {
        "objective": "duality gap",
        "value_weights": "last",
        "learning_rate": 0.1,
        "schedule": "cosine",
        "clip_gradient": 20.0,
    }
    larger = {"updates": updates, "batch": 8, "warmup": 20, "validation_batch": 48, "checkpoint_every": 100}
    return {"quick": {**shared, "updates": 40, "batch": 4}, "standard": {**shared, **larger}}


def recipes(made: Callable[[str], Family]) -> tuple[Recipe, ...]:
    """One for each horizon, on a family by preset."""
    return tuple(
        Recipe(
            iterations=horizon,
            form="steps",
            title=f"fast gradient projection of {horizon} iterations with learned step-sizes and momenta",
            solver=functools.partial(_learned, horizon),
            family=made,
            source=PHOTOGRAPHS,
            settings=_settings(1000 if horizon <= 55 else 600),
            weak="Only the last trained iterate is good: `lmd.solve` takes the horizon that a tolerance needs.",
        )
        for horizon in HORIZONS
    )


def _learned(horizon: int, seed: int) -> Solver[Any]:
    return LearnedFGP(horizon)
