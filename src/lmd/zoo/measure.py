"""What a trained solver is worth on problems it has not seen: the numbers on its card, measured alike for all."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmd import __version__, reference
from lmd.data import digit_features, digits_data, image_data
from lmd.guarantees.certify import run
from lmd.problems import Family, LassoFamily, LeastSquaresFamily, LinearClassifierFamily, Problem, SVMFamily
from lmd.problems.reconstruction import TVDeblurring, TVTomography
from lmd.problems.reconstruction_families import TomographyFamily
from lmd.problems.subsets import SubsetFamily
from lmd.problems.tv import TVDenoising, TVInpainting
from lmd.problems.tv_families import TVFamily
from lmd.solvers import FGP, PDHG, Solver
from lmd.zoo.linear_recipes import digit_data_name
from lmd.zoo.recipes import RECIPES

SEED = 5_000_000
INSTANCES = 8
CROP = 32
"""The side of the pieces of test images, small enough that their minima are quick to have."""

GAP = "relative gap"
DISTANCE = "PSNR to the minimiser, dB"


def measure(name: str, solver: Solver[Any], preset: str) -> dict[str, Any]:
    """Where the trained iterations lead, a mean over held-out instances of what the recipe of that name trains on.

    The relative gap is (f - f*) / f*, with f(0) in place of f* where that is 0; the PSNR, for denoising, is
    10 log10(1 / mean (x - x*)^2). All is in float64.
    """
    made = RECIPES[name]
    problem, x0, least, minimiser = _solved(made.family, made.data(preset), preset)
    result = run(copy.deepcopy(solver).to(x0.dtype), problem, x0, record=False)
    at_zero = problem.value(torch.zeros_like(x0))
    scale = torch.where(least > 1e-6 * at_zero, least, at_zero)
    found: dict[str, Any] = {
        "instances": f"{len(x0)} held out, {' x '.join(map(str, x0.shape[1:]))}",
        "iterations": int(result.iterations.max()),
        GAP: float(((result.values - least) / scale).clamp(min=0).mean()),
    }
    if minimiser is not None:
        mean_square = (result.x - minimiser).square().flatten(1).mean(dim=1)
        found[DISTANCE] = float(-10 * mean_square.clamp(min=1e-30).log10().mean())
    return {**found, "lmd": __version__, "torch": str(torch.__version__)}


@functools.lru_cache
def _solved(make: Callable[[str], Family], data: str, preset: str) -> tuple[Problem, Tensor, Tensor, Tensor | None]:
    """Held-out problems, starts, minima and, for denoising, minimisers: the same for all solvers of one family."""
    problem, x0 = held_out(make(preset), data, preset)
    return problem, x0, *_optimum(problem, x0)


def held_out(trained: Family, data: str, preset: str) -> tuple[Problem, Tensor]:
    """Problems like those of a family, from data that it does not train on; the same ones every time."""
    family, count = _plain(trained), INSTANCES
    if isinstance(family, TVFamily):
        side = CROP
        if isinstance(family, TomographyFamily):  # it is made for one size of images
            count, side = 2, family.beams.height
        family = held_out_images(family, list(image_data(data).test_images), side)
        family.dtype = torch.float64
    elif isinstance(family, (SVMFamily, LinearClassifierFamily)):
        family = held_out_features(family, preset, subsets=2)
        family.features = family.features.double()
    elif isinstance(family, LassoFamily):
        family.A = family.A.double()
    return family.sample(count, torch.Generator().manual_seed(SEED))


def held_out_images(trained: TVFamily, images: list[Tensor], side: int) -> TVFamily:
    """The same objective on other images, or on pieces of them: convolutions solve images of any size."""
    family = copy.copy(trained)
    family.images = images
    family.crop = min([side, *(min(image.shape[1:]) for image in images)])
    return family


def held_out_features(trained: SVMFamily | LinearClassifierFamily, preset: str, subsets: int) -> SubsetFamily:
    """The same problems on the features of the test fold."""
    features = digit_features(digits_data(digit_data_name(preset)))
    pairs = (features.test_features, features.test_labels)
    if isinstance(trained, SVMFamily):
        return SVMFamily(*pairs, subset=trained.subset, C=trained.C, subsets=subsets)
    return LinearClassifierFamily(*pairs, trained.classes, trained.subset, trained.ridge, subsets)


def data_sha256(name: str, preset: str) -> str:
    """The SHA-256 of what a recipe trains on: the images of the train fold, the digits, or the matrix."""
    made = RECIPES[name]
    return _hash(made.family, made.data(preset), preset)


@functools.lru_cache
def _hash(make: Callable[[str], Family], data: str, preset: str) -> str:
    family = _plain(make(preset))
    if isinstance(family, SubsetFamily):
        return digits_data(data).fingerprint()
    if isinstance(family, TVFamily):
        array = image_data(data).train_images
    elif isinstance(family, LassoFamily):
        array = family.A
    else:
        assert isinstance(family, LeastSquaresFamily)
        array = family.W
    digest = hashlib.sha256(repr((tuple(array.shape), str(array.dtype))).encode())
    digest.update(array.contiguous().numpy().data)
    return digest.hexdigest()


def _plain(family: Family) -> Family:
    return family.inside


def _optimum(problem: Problem, x0: Tensor) -> tuple[Tensor, Tensor | None]:
    """The minima `(B,)`, certified, and for denoising, where that proves where the minimisers are, these too.

    To a tenth of the gap that a solver is expected to leave, or better: of tomographies a hundredth would take minutes.
    """
    if isinstance(problem, TVDenoising):
        found = run(FGP(restart=True), problem, x0, tolerance=1e-6)
        return found.values, found.x
    if isinstance(problem, TVTomography):
        return run(PDHG(0.03, accelerated=False), problem, x0, tolerance=1e-3).values, None
    if isinstance(problem, TVDeblurring):
        return run(PDHG(0.1, accelerated=False), problem, x0, tolerance=1e-4).values, None
    if isinstance(problem, TVInpainting):
        return run(PDHG(0.35, accelerated=False, settle=8), problem, x0, tolerance=1e-5).values, None
    return reference.minimum(problem), None
