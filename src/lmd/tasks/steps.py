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
    8: (2.5, 0.66, 0.11, 6.3e-3, 2.3e-5),
    13: (1.1, 0.33, 4.7e-2, 1.6e-3, 1.8e-6),
    21: (0.51, 0.16, 1.7e-2, 2.9e-4, 1.0e-7),
    34: (0.28, 6.9e-2, 5.6e-3, 3.1e-5, 1.0e-8),
    55: (0.15, 2.7e-2, 1.7e-3, 3.1e-6, 4.9e-9),
    89: (6.0e-2, 1.3e-2, 6.4e-4, 4.6e-7, 3.0e-9),
    144: (2.9e-2, 4.8e-3, 1.3e-4, 5.5e-8, 1.7e-9),
}
"""By the number of iterations, each more than half as many again as the one before: the relative gap that is proven of
half of the held-out images of 96 x 96 pixels, at each roughness that `LearnedFGP` has numbers for. The others need a
few iterations more."""

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
