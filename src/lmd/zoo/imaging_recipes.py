"""Recipes of the solvers for images: total variation denoising and inpainting with a learned convolutional pair."""

from __future__ import annotations

from typing import Any

from lmd.data import image_data
from lmd.mirrors import ConvPair
from lmd.problems import Family, TVDenoisingFamily, TVInpaintingFamily
from lmd.solvers import CorrectedMirrorDescent, LearnedMirrorDescent, LearnedSteps, Solver
from lmd.zoo.recipe import Recipe

WEIGHT = 0.3
"""The weight of the total variation, as in the paper, for images in [0, 1]."""

CROPS = {"quick": 16, "standard": 28, "paper": None}
"""The side of the crops that are trained on: the networks are convolutions, and solve images of any size."""


def image_data_name(preset: str) -> str:
    """The bundled photographs, at `paper` size STL-10, where it is at hand."""
    return image_data("auto").name if preset == "paper" else "photographs"


def _denoising(preset: str) -> Family:
    """Noise of up to 20%, so that no level of Table 1 is new to the solver."""
    images = image_data(image_data_name(preset)).train_images
    return TVDenoisingFamily(images, noise=(0.0, 0.2), crop=CROPS[preset], weight=WEIGHT)


def _published_denoising(preset: str) -> Family:
    images = image_data(image_data_name(preset)).train_images
    return TVDenoisingFamily(images, noise=0.05, crop=CROPS[preset], weight=WEIGHT)


def _inpainting(preset: str) -> Family:
    """A mask for each image, so that the solver learns no mask by heart."""
    images = image_data(image_data_name(preset)).train_images
    return TVInpaintingFamily(images, noise=(0.0, 0.1), crop=CROPS[preset], weight=WEIGHT, kept=(0.7, 0.9))


def _published_inpainting(preset: str) -> Family:
    images = image_data(image_data_name(preset)).train_images
    return TVInpaintingFamily(images, noise=0.05, crop=CROPS[preset], weight=WEIGHT, kept=0.8)


def _pair(scale: float, seed: int) -> ConvPair:
    """Small enough for two cores: 8 filters forward, 24 backward; a border that repeats the nearest pixel."""
    options: dict[str, Any] = {"backward_filters": 24, "backward_layers": 2, "border": "replicate"}
    return ConvPair(3, 8, 1, scale=scale, seed=seed, **options)


def _pair_denoising(seed: int) -> Solver[Any]:
    """A scale of 0.5 makes steps of about 0.02 the right ones."""
    return CorrectedMirrorDescent(_pair(0.5, seed), LearnedSteps(10, 0.02, (1e-3, 1e-1), "min"))


def _pair_inpainting(seed: int) -> Solver[Any]:
    """Lost pixels have further to go: a scale of 0.2 makes the same steps longer."""
    return CorrectedMirrorDescent(_pair(0.2, seed), LearnedSteps(10, 0.02, (1e-3, 1e-1), "min"))


def _published(seed: int) -> Solver[Any]:
    """The published networks in the paper's algorithm."""
    return LearnedMirrorDescent(ConvPair.published(seed=seed), 10, 0.01, (1e-3, 1e-1), "last")


_TRAINING: dict[str, Any] = {
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
"""The first iterations count for little: what matters is where ten of them lead."""

_DENOISING: dict[str, dict[str, Any]] = {
    "quick": {**_TRAINING, "updates": 40},
    "standard": {**_TRAINING, "updates": 1400, "value_weights": (0.05,) * 5 + (0.1,) * 4 + (1.0,)},
}

_INPAINTING: dict[str, dict[str, Any]] = {
    "quick": {**_TRAINING, "updates": 40},
    "standard": {**_TRAINING, "updates": 800, "value_weights": (0.05,) * 4 + (0.3,) + (0.1,) * 4 + (1.0,)},
}

_PUBLISHED: dict[str, dict[str, Any]] = {
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

RECIPES: dict[str, Recipe] = {
    "denoise": Recipe(
        "corrected adaptive LMD with a learned convolutional pair, for TV denoising",
        _pair_denoising,
        _denoising,
        image_data_name,
        _DENOISING,
    ),
    "denoise-published": Recipe(
        "the paper's adaptive LMD at its published size, for TV denoising",
        _published,
        _published_denoising,
        image_data_name,
        _PUBLISHED,
    ),
    "inpaint": Recipe(
        "corrected adaptive LMD with a learned convolutional pair, for TV inpainting",
        _pair_inpainting,
        _inpainting,
        image_data_name,
        _INPAINTING,
    ),
    "inpaint-published": Recipe(
        "the paper's adaptive LMD at its published size, for TV inpainting",
        _published,
        _published_inpainting,
        image_data_name,
        _PUBLISHED,
    ),
}
