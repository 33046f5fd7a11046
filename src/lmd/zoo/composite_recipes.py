"""Recipes of the learned solvers on dual and saddle forms: the ones that `lmd solve` uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.functional import interpolate

from lmd.data import image_data
from lmd.problems import (
    Family,
    LassoFamily,
    TomographyFamily,
    TVDeblurringFamily,
    TVDenoisingFamily,
    TVInpaintingFamily,
)
from lmd.solvers import FGP, PDHG, LearnedDual, LearnedPDHG, LearnedSaddle, Solver
from lmd.training.solved import SolvedFamily
from lmd.zoo.imaging_recipes import WEIGHT
from lmd.zoo.recipe import Recipe

CROPS = {"quick": 24, "standard": 48, "paper": 64}
POOLS = {"quick": 60, "standard": 1000, "paper": 4000}
"""Instances that are drawn and solved before training begins."""

_WEAK = (
    "Only the last trained iterate is good, not those before it: to stop early, take the solver of fewer iterations. "
)
_WEAK_DENOISING = (
    _WEAK + "Trained on anisotropic total variation alone. On a batch an iteration costs more than one of PDHG."
)
_WEAK_ISOTROPIC = _WEAK + "Trained on isotropic total variation alone. Its steps are not compiled in one piece."
_WEAK_LASSO = _WEAK + "Trained for one matrix, the one of LassoFamily(): for another one, train again, in a minute."
_WEAK_INPAINTING = _WEAK + "Trained with 65% to 95% of the pixels kept, lost at random: large holes were not tried."
_WEAK_DEBLURRING = _WEAK + "Trained on Gaussian blurs of 1.2 to 1.8 pixels: others were not tried."
_WEAK_TOMOGRAPHY = _WEAK + "Trained on 96 x 96 images and 30 angles: others were not tried."


def _photographs(preset: str) -> str:
    return "photographs"


def _random_regressions(preset: str) -> str:
    return "random sparse regressions"


def _solved(family: Family, preset: str, solver: Solver[Any], share: int = 1, iterations: int = 1000) -> Family:
    """The family with solutions, in a pool that is this many times smaller than the usual one."""
    return SolvedFamily(family, POOLS[preset] // share, solver, iterations=300 if preset == "quick" else iterations)


def _denoising(preset: str, isotropic: bool = False) -> Family:
    """Noise from none to more than 20%; the weight needs no range, as the solvers are homogeneous in it and y."""
    images = image_data("photographs").train_images
    family = TVDenoisingFamily(images, noise=(0.0, 0.22), crop=CROPS[preset], weight=WEIGHT, isotropic=isotropic)
    return _solved(family, preset, FGP(restart=True))


def _isotropic_denoising(preset: str) -> Family:
    return _denoising(preset, isotropic=True)


def _lasso(preset: str) -> Family:
    return _solved(LassoFamily(), preset, PDHG(0.5), iterations=2000)


def _smooth_denoising(preset: str) -> Family:
    """Half of the images twice as large: in smooth images the minimiser has large flat pieces, which need the most
    iterations; larger crops have room for them."""
    images = image_data("photographs").train_images
    doubled = interpolate(images.float(), scale_factor=2, mode="bicubic").round().clamp(0, 255).byte()
    crop = CROPS["quick" if preset == "quick" else "paper"]
    family = TVDenoisingFamily([*images, *doubled], noise=(0.0, 0.22), crop=crop, weight=WEIGHT)
    return _solved(family, preset, FGP(restart=True))


def _inpainting(preset: str) -> Family:
    images = image_data("photographs").train_images
    family = TVInpaintingFamily(images, noise=(0.02, 0.1), crop=CROPS[preset], weight=WEIGHT, kept=(0.65, 0.95))
    return _solved(family, preset, PDHG(tau=0.35, accelerated=False, settle=8), iterations=1500)


def _deblurring(preset: str) -> Family:
    images = image_data("photographs").train_images
    family = TVDeblurringFamily(images, noise=(0.02, 0.08), crop=CROPS[preset], weight=WEIGHT, blur=(1.2, 1.8))
    return _solved(family, preset, PDHG(0.1), share=2)


def _tomography(preset: str) -> Family:
    """Whole images: the spectrum of projections, unlike that of blurs, depends on their size."""
    images = image_data("photographs").train_images
    crop = CROPS[preset] if preset == "quick" else None
    family = TomographyFamily(images, noise=(0.02, 0.08), crop=crop, weight=WEIGHT)
    return _solved(family, preset, PDHG(0.03), share=6)


def _settings(objective: str, learning_rate: float, updates: int = 2000, batch: int = 6) -> dict[str, dict[str, Any]]:
    shared: dict[str, Any] = {
        "objective": objective,
        "value_weights": "last",
        "learning_rate": learning_rate,
        "schedule": "cosine",
        "clip_gradient": 5.0,
    }
    return {
        "quick": {**shared, "updates": 60, "batch": 4, "warmup": 5},
        "standard": {
            **shared,
            "updates": updates,
            "batch": batch,
            "warmup": 50,
            "validation_batch": 50,
            "checkpoint_every": 200,
        },
        "paper": {**shared, "updates": 10_000, "batch": 16, "warmup": 50, "validation_batch": 100},
    }


def _learning_rate(iterations: int) -> float:
    """Many iterations are sensitive to their kernels: twenty, trained at the rate of ten, get worse and stay so."""
    return 1e-2 if iterations <= 10 else 3e-3


def _dual(iterations: int, kernel: int = 5) -> Callable[[int], Solver[Any]]:
    return lambda seed: LearnedDual(iterations, kernel)


def _saddle(iterations: int, kernel: int) -> Callable[[int], Solver[Any]]:
    return lambda seed: LearnedSaddle(iterations, kernel, primal_kernel=kernel)


def _unmasked(tau: float) -> Callable[[int], Solver[Any]]:
    return lambda seed: LearnedSaddle(20, kernel=5, primal_kernel=7, masked=False, tau=tau, settle=1.0)


def _denoiser(iterations: int, kernel: int = 5) -> Recipe:
    title = (
        f"learned dual mirror descent of {iterations} iterations, {kernel} x {kernel}, for TV denoising of any images"
    )
    settings = _settings("distance", _learning_rate(iterations))
    return Recipe(title, _dual(iterations, kernel), _denoising, _photographs, settings, _WEAK_DENOISING)


def _inpainter(iterations: int, kernel: int, settings: dict[str, dict[str, Any]]) -> Recipe:
    size = f"{iterations} iterations, {kernel} x {kernel}"
    title = f"learned saddle mirror descent of {size}, for TV inpainting of any images"
    return Recipe(title, _saddle(iterations, kernel), _inpainting, _photographs, settings, _WEAK_INPAINTING)


RECIPES: dict[str, Recipe] = {
    "tv-denoising": _denoiser(10),
    "tv-denoising-5": _denoiser(5),
    "tv-denoising-fast-7": _denoiser(7, kernel=3),
    "tv-denoising-fast-20": Recipe(
        "learned dual mirror descent of 20 iterations, 3 x 3, for TV denoising of any images to a small duality gap",
        _dual(20, kernel=3),
        _denoising,
        _photographs,
        _settings("gap", 4e-3, updates=4000),
        _WEAK_DENOISING,
    ),
    "tv-denoising-20": Recipe(
        "learned dual mirror descent of 20 iterations, 5 x 5, for TV denoising of any images",
        _dual(20),
        _smooth_denoising,
        _photographs,
        _settings("distance", 4e-3, updates=6000),
        _WEAK_DENOISING,
    ),
    "isotropic-tv-denoising": Recipe(
        "learned dual mirror descent of 10 iterations, 5 x 5, for isotropic TV denoising of any images",
        _dual(10),
        _isotropic_denoising,
        _photographs,
        _settings("distance", _learning_rate(10)),
        _WEAK_ISOTROPIC,
    ),
    "tv-inpainting": _inpainter(10, 5, _settings("gap", 5e-3)),
    "tv-inpainting-20": _inpainter(20, 5, _settings("gap", 1.5e-3)),
    "tv-inpainting-fast-7": _inpainter(7, 3, _settings("distance", 5e-3, updates=2500)),
    "tv-inpainting-fast-15": _inpainter(15, 3, _settings("gap", 3e-3, updates=3000)),
    "tv-deblurring": Recipe(
        "learned saddle mirror descent of 20 iterations, for TV deblurring of Gaussian blurs",
        _unmasked(0.1),
        _deblurring,
        _photographs,
        _settings("gap", 2e-3),
        _WEAK_DEBLURRING,
    ),
    "tv-tomography": Recipe(
        "learned saddle mirror descent of 20 iterations, for TV tomography with 30 angles of 96 x 96 images",
        _unmasked(0.03),
        _tomography,
        _photographs,
        _settings("gap", 3e-3, updates=600, batch=3),
        _WEAK_TOMOGRAPHY,
    ),
    "lasso": Recipe(
        "learned saddle mirror descent of 10 iterations, steps and momenta alone, for the lasso with one matrix",
        lambda seed: LearnedPDHG(10, tau=0.5),
        _lasso,
        _random_regressions,
        _settings("gap", 2e-2, updates=1500, batch=10),
        _WEAK_LASSO,
    ),
}
