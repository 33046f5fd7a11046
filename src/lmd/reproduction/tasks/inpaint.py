"""TV inpainting: ||Z(x - y)||^2 + weight TV(x), Z a mask of pixels that are kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmd.guarantees.reference_tv import second_stage
from lmd.problems import Family, TVInpainting, TVInpaintingFamily, add_noise, random_masks
from lmd.reproduction.tasks import exact, pairs
from lmd.reproduction.tasks.optima import CertifiedBy
from lmd.reproduction.tasks.task import Contest, Recipe, Task
from lmd.reproduction.tasks.unrolled import CROPS, PHOTOGRAPHS, WEAK, WEIGHT, solved, training
from lmd.solvers import PDHG, LearnedSaddle

KEPT = 0.8
EXACT = PDHG(tau=0.35, accelerated=False, settle=8)


def _family(preset: str) -> Family:
    images = PHOTOGRAPHS.train(preset)
    plain = TVInpaintingFamily(images, noise=(0.02, 0.1), crop=CROPS[preset], weight=WEIGHT, kept=(0.65, 0.95))
    return solved(plain, preset, EXACT, iterations=1500)


def _for_pair(preset: str) -> Family:
    """A mask for each image, so that the solver learns no mask by heart."""
    images, crop = pairs.SOURCE.train(preset), pairs.CROPS[preset]
    return TVInpaintingFamily(images, noise=(0.0, 0.1), crop=crop, weight=WEIGHT, kept=(0.7, 0.9))


def _for_exact(preset: str) -> Family:
    images, crop = pairs.SOURCE.train(preset), exact.CROPS[preset]
    plain = TVInpaintingFamily(images, noise=(0.0, 0.2), crop=crop, weight=WEIGHT, kept=(0.7, 0.9))
    return solved(plain, preset, EXACT, share=3, iterations=600, finish=_smooth)


def _smooth(problem: TVInpainting, x: Tensor) -> Tensor:
    """The smoothest of all minimisers, near enough for training."""
    return second_stage(problem, x, evaluations=15)[0]


def _published(preset: str) -> Family:
    images, crop = pairs.SOURCE.train(preset), pairs.CROPS[preset]
    return TVInpaintingFamily(images, noise=0.05, crop=crop, weight=WEIGHT, kept=KEPT)


def make(images: Tensor, noise: float, generator: torch.Generator) -> TVInpainting:
    """The problem of clean images with a fifth of their pixels lost, a mask for each, and noise added."""
    mask = random_masks(len(images), images.shape[2], images.shape[3], KEPT, generator).to(images)
    return TVInpainting(add_noise(mask * images, noise, generator), mask, WEIGHT)


def _recipe(iterations: int, kernel: int, settings: dict[str, dict[str, Any]]) -> Recipe:
    size = f"{iterations} iterations, {kernel} x {kernel}"
    return Recipe(
        iterations=iterations,
        fast=kernel == 3,
        title=f"learned saddle mirror descent of {size}, for TV inpainting of any images",
        solver=lambda seed: LearnedSaddle(iterations, kernel, primal_kernel=kernel),
        family=_family,
        source=PHOTOGRAPHS,
        settings=settings,
        weak=WEAK + "Trained with 65% to 95% of the pixels kept, lost at random: large holes were not tried.",
    )


TASK = Task(
    name="inpaint",
    title="TV inpainting of images",
    recipes=(
        _recipe(10, 5, training("gap", 5e-3)),
        _recipe(20, 5, training("gap", 1.5e-3)),
        _recipe(7, 3, training("distance", 5e-3, updates=2500)),
        _recipe(15, 3, training("gap", 3e-3, updates=3000)),
        pairs.small_recipe("inpainting", 0.2, _for_pair, 800, (0.05,) * 4 + (0.3,) + (0.1,) * 4 + (1.0,)),
        exact.for_images(
            "inpainting", _for_exact, 3000, widths=2, objective="gap and distance", batch=6, clip_gradient=15.0
        ),
        pairs.published_recipe("inpainting", _published),
    ),
    reference=CertifiedBy(EXACT, 1e-5),
    contest=Contest(make),
)
