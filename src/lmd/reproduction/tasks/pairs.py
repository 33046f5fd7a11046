"""What the recipes of learned mirror pairs for images share: small networks for two cores, and the published ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmd.mirrors import ConvPair
from lmd.problems import Family
from lmd.reproduction.tasks.sources import Images
from lmd.reproduction.tasks.task import Recipe
from lmd.solvers import CorrectedMirrorDescent, LearnedMirrorDescent, LearnedSteps

SOURCE = Images(large=True)
CROPS = {"quick": 16, "standard": 28, "paper": None}
"""The side of the crops that are trained on: the networks are convolutions, and solve images of any size."""

TRAINING: dict[str, Any] = {
    "batch": 4,
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "clip_gradient": 100.0,
    "consistency_weight": 0.02,
    "consistency_growth": 1.0,
    "consistency_at": "start",
    "checkpoint_every": 50,
    "validation_batch": 8,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "paper": {
        "updates": 100_000,
        "batch": 10,
        "learning_rate": 1e-5,
        "consistency_at": "start",
        "updates_per_epoch": 100,
        "recompute": True,
    }
}
"""The published settings; recomputing each iteration makes them fit into the memory of a workstation."""


def small_pair(scale: float, seed: int) -> CorrectedMirrorDescent:
    """Small enough for two cores: 8 filters forward, 24 backward; a border that repeats the nearest pixel.

    A scale of 0.5 makes steps of about 0.02 the right ones for denoising. Lost pixels have further to go: 0.2 makes
    the same steps longer.
    """
    options: dict[str, Any] = {"backward_filters": 24, "backward_layers": 2, "border": "replicate"}
    mirror = ConvPair(3, 8, 1, scale=scale, seed=seed, **options)
    return CorrectedMirrorDescent(mirror, LearnedSteps(10, 0.02, (1e-3, 1e-1), "min"))


def small_recipe(
    doing: str, scale: float, family: Callable[[str], Family], updates: int, weights: tuple[float, ...]
) -> Recipe:
    """The solver that a CPU can train; what counts is where ten iterations lead, the first ones weigh little."""
    return Recipe(
        form="pair",
        iterations=10,
        title=f"corrected adaptive LMD with a learned convolutional pair, for TV {doing}",
        solver=lambda seed: small_pair(scale, seed),
        family=family,
        source=SOURCE,
        settings={
            "quick": {**TRAINING, "updates": 40},
            "standard": {**TRAINING, "updates": updates, "value_weights": weights},
        },
    )


def published_recipe(doing: str, family: Callable[[str], Family]) -> Recipe:
    """The published networks in the paper's algorithm."""
    return Recipe(
        form="published",
        iterations=10,
        title=f"the paper's adaptive LMD at its published size, for TV {doing}",
        solver=lambda seed: LearnedMirrorDescent(ConvPair.published(seed=seed), 10, 0.01, (1e-3, 1e-1), "last"),
        family=family,
        source=SOURCE,
        settings=PUBLISHED,
    )
