"""TV inpainting, deblurring and tomography."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmd import problems
from lmd.guarantees.reference import smoothest_problem
from lmd.operators import Blur, ParallelBeam, gaussian_kernel
from lmd.problems.image_families import add_noise, random_masks
from lmd.reproduction.tasks import common
from lmd.reproduction.tasks.common import CROPS, PAIR_CROPS, PHOTOGRAPHS, WEAK, WEIGHT
from lmd.reproduction.tasks.task import CertifiedBy, Contest, Images, Recipe, Task
from lmd.solvers import PDHG, LearnedSaddle, RelaxedPDHG

KEPT = 0.8
SMOOTHING_ITERATIONS = 300
INPAINTING_SOLVER = PDHG(tau=0.35, accelerated=False, settle=8)


def _inpainting_family(preset: str) -> problems.Family:
    images = PHOTOGRAPHS.train(preset)
    plain = problems.TVInpaintingFamily(images, noise=(0.02, 0.1), crop=CROPS[preset], weight=WEIGHT, kept=(0.65, 0.95))
    return common.solved(plain, preset, INPAINTING_SOLVER, iterations=1500)


def _unsolved(noise: Any, kept: Any, preset: str) -> problems.Family:
    """Return the family without solutions, with a mask for each image, so that the solver cannot memorise one."""
    images, crop = common.PAIR_IMAGES.train(preset), PAIR_CROPS[preset]
    return problems.TVInpaintingFamily(images, noise=noise, crop=crop, weight=WEIGHT, kept=kept)


def _for_exact(preset: str) -> problems.Family:
    images, crop = common.PAIR_IMAGES.train(preset), common.EXACT_CROPS[preset]
    plain = problems.TVInpaintingFamily(images, noise=(0.0, 0.2), crop=crop, weight=WEIGHT, kept=(0.7, 0.9))
    return common.solved(plain, preset, INPAINTING_SOLVER, share=3, iterations=600, finish=_smooth)


def _smooth(problem: problems.TVInpainting, x: Tensor) -> Tensor:
    """Return the smoothest of all minimisers, accurate enough for training."""
    second, solver = smoothest_problem(problem, x), RelaxedPDHG()
    return solver.advance(second, solver.init(second, x), SMOOTHING_ITERATIONS).x


def make_inpainting(images: Tensor, noise: float, generator: torch.Generator) -> problems.TVInpainting:
    """The problem of clean images with a fifth of their pixels lost, a mask for each, and noise added."""
    mask = random_masks(len(images), images.shape[2], images.shape[3], KEPT, generator).to(images)
    return problems.TVInpainting(add_noise(mask * images, noise, generator), mask, WEIGHT)


def _recipe(iterations: int, kernel: int, settings: dict[str, dict[str, Any]]) -> Recipe:
    size = f"{iterations} iterations, {kernel} x {kernel}"
    return Recipe(
        iterations=iterations,
        fast=kernel == 3,
        title=f"learned saddle mirror descent of {size}, for TV inpainting of any images",
        solver=lambda seed: LearnedSaddle(iterations, kernel, primal_kernel=kernel),
        family=_inpainting_family,
        source=PHOTOGRAPHS,
        settings=settings,
        weak=WEAK + "Trained with 65% to 95% of the pixels kept, lost at random: large holes were not tried.",
    )


INPAINT = Task(
    name="inpaint",
    title="TV inpainting of images",
    recipes=(
        _recipe(10, 5, common.training("gap", 5e-3)),
        _recipe(20, 5, common.training("gap", 1.5e-3)),
        _recipe(7, 3, common.training("distance", 5e-3, updates=2500)),
        _recipe(15, 3, common.training("gap", 3e-3, updates=3000)),
        common.small_recipe(
            "inpainting",
            0.2,
            partial(_unsolved, (0.0, 0.1), (0.7, 0.9)),
            800,
            (0.05,) * 4 + (0.3,) + (0.1,) * 4 + (1.0,),
        ),
        common.exact_recipe_for_images(
            "inpainting", _for_exact, 3000, widths=2, objective="gap and distance", batch=6, clip_gradient=15.0
        ),
        common.published_recipe("inpainting", partial(_unsolved, 0.05, KEPT)),
    ),
    reference=CertifiedBy(INPAINTING_SOLVER, 1e-5),
    contest=Contest(make_inpainting),
)


BLUR_WIDTH = 1.5


def _deblurring_family(preset: str) -> problems.Family:
    images = PHOTOGRAPHS.train(preset)
    plain = problems.TVDeblurringFamily(images, noise=(0.02, 0.08), crop=CROPS[preset], weight=WEIGHT, blur=(1.2, 1.8))
    return common.solved(plain, preset, PDHG(0.1), share=2)


def make_deblurring(images: Tensor, noise: float, generator: torch.Generator) -> problems.TVDeblurring:
    """The problem of clean images, blurred, with noise added."""
    kernel = gaussian_kernel(BLUR_WIDTH)
    blurred = Blur(kernel, images.shape[2], images.shape[3])(images)
    return problems.TVDeblurring(add_noise(blurred, noise, generator), kernel, WEIGHT)


def _saddle_recipe(title: str, tau: float, family: Any, source: Images, settings: Any, tried: str) -> Recipe:
    return Recipe(
        iterations=20,
        title=f"learned saddle mirror descent of 20 iterations, for TV {title}",
        solver=lambda seed: LearnedSaddle(20, kernel=5, primal_kernel=7, masked=False, tau=tau, settle=1.0),
        family=family,
        source=source,
        settings=settings,
        weak=f"{WEAK}Trained on {tried}: others were not tried.",
    )


DEBLUR = Task(
    name="deblur",
    title="TV deblurring of images with Gaussian blurs",
    recipes=(
        _saddle_recipe(
            "deblurring of Gaussian blurs",
            tau=0.1,
            family=_deblurring_family,
            source=PHOTOGRAPHS,
            settings=common.training("gap", 2e-3),
            tried="Gaussian blurs of 1.2 to 1.8 pixels",
        ),
    ),
    reference=CertifiedBy(PDHG(0.1, accelerated=False), 1e-4),
    slow=True,
    contest=Contest(make_deblurring, tau=0.04),
)


ANGLES = 30
WHOLE_PHOTOGRAPHS = Images(whole=True)


def _tomography_family(preset: str) -> problems.Family:
    """Return the family of whole images, as the spectrum of projections depends on the size."""
    crop = CROPS[preset] if preset == "quick" else None
    plain = problems.TomographyFamily(WHOLE_PHOTOGRAPHS.train(preset), noise=(0.02, 0.08), crop=crop, weight=WEIGHT)
    return common.solved(plain, preset, PDHG(0.03), share=6)


def make_tomography(images: Tensor, noise: float, generator: torch.Generator) -> problems.TVTomography:
    """The problem of clean images, projected, with noise added."""
    size = (images.shape[2], images.shape[3])
    beams = ParallelBeam(*size, angles=ANGLES)
    return problems.TVTomography(add_noise(beams(images), noise, generator), size, WEIGHT, beams=beams)


TOMOGRAPHY = Task(
    name="tomography",
    title="TV tomography with 30 angles",
    recipes=(
        _saddle_recipe(
            "tomography with 30 angles of 96 x 96 images",
            tau=0.03,
            family=_tomography_family,
            source=WHOLE_PHOTOGRAPHS,
            settings=common.training("gap", 3e-3, updates=600, batch=3),
            tried="96 x 96 images and 30 angles",
        ),
    ),
    reference=CertifiedBy(PDHG(0.03, accelerated=False), 1e-3),
    instances=2,
    slow=True,
    contest=Contest(make_tomography, steps=0.001, tau=0.012),
)
