"""Fast gradient projection with learned numbers for TV denoising: recipes, and how far they get at each roughness."""

from __future__ import annotations

import functools
import math
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
REACH = {
    8: (3.5, 0.92, 0.14, 0.0066, 0.00015),
    13: (1.8, 0.48, 0.068, 0.0017, 6.4e-05),
    21: (1.1, 0.26, 0.03, 0.00039, 3e-06),
    34: (0.53, 0.12, 0.011, 5.6e-05, 8.4e-08),
    55: (0.3, 0.064, 0.0042, 9.6e-06, 4.5e-08),
    89: (0.14, 0.034, 0.0016, 2.5e-06, 1.4e-08),
    144: (0.072, 0.015, 0.00037, 2.5e-07, 8.1e-09),
}
"""By the number of iterations, each more than half as many again as the one before: the relative gap that is proven of
four of five held-out images of 96 x 96 pixels, at each roughness that `LearnedFGP` has numbers for."""

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


def _settings(horizon: int) -> dict[str, dict[str, Any]]:
    """Many iterations are sensitive to their numbers and want a smaller rate."""
    shared: dict[str, Any] = {
        "objective": "duality gap",
        "value_weights": "last",
        "learning_rate": 0.1 if horizon < 60 else 2.4 / horizon,
        "schedule": "cosine",
        "clip_gradient": 20.0,
    }
    larger = {
        "updates": 1000 if horizon < 60 else 400,
        "batch": 8,
        "warmup": 20,
        "validation_batch": 48,
        "checkpoint_every": 100,
    }
    return {"quick": {**shared, "updates": 40, "batch": 4}, "standard": {**shared, **larger}}


def _learned(horizon: int, seed: int) -> Solver[Any]:
    return LearnedFGP(horizon)


RECIPES = tuple(
    Recipe(
        iterations=horizon,
        form="steps",
        title=f"fast gradient projection of {horizon} iterations with learned step-sizes and momenta",
        solver=functools.partial(_learned, horizon),
        family=family,
        source=PHOTOGRAPHS,
        settings=_settings(horizon),
        weak="Only the last trained iterate is good: `lmd.solve` takes the horizon that a tolerance needs.",
    )
    for horizon in REACH
)
