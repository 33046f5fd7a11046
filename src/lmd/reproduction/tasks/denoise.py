"""TV denoising, anisotropic: ||x - y||^2 + weight TV(x)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lmd.problems import Family, TVDenoising, TVDenoisingFamily, add_noise
from lmd.reproduction.tasks import exact, pairs, schedules
from lmd.reproduction.tasks.optima import CertifiedBy
from lmd.reproduction.tasks.peers import COUNTS, ONE_THREAD, Call, Peer, channels_last, stacked
from lmd.reproduction.tasks.task import Contest, Recipe, Task
from lmd.reproduction.tasks.unrolled import CROPS, PHOTOGRAPHS, WEAK, WEIGHT, solved, training
from lmd.solvers import FGP, LearnedDual

EXACT = FGP(restart=True)
REFERENCE = CertifiedBy(EXACT, 1e-6, unique=True)


def family(preset: str, isotropic: bool = False) -> Family:
    """Noise from none to more than 20%; the weight needs no range, as the solvers are homogeneous in it and y."""
    images = PHOTOGRAPHS.train(preset)
    plain = TVDenoisingFamily(images, noise=(0.0, 0.22), crop=CROPS[preset], weight=WEIGHT, isotropic=isotropic)
    return solved(plain, preset, EXACT)


def _smooth(preset: str) -> Family:
    """Half of the images twice as large: in smooth images the minimiser has large flat pieces, which need the most
    iterations; larger crops have room for them."""
    images = PHOTOGRAPHS.train(preset)
    doubled = interpolate(images.float(), scale_factor=2, mode="bicubic").round().clamp(0, 255).byte()
    crop = CROPS["quick" if preset == "quick" else "paper"]
    plain = TVDenoisingFamily([*images, *doubled], noise=(0.0, 0.22), crop=crop, weight=WEIGHT)
    return solved(plain, preset, EXACT)


def _for_pair(preset: str) -> Family:
    """Noise of up to 20%, so that no level of Table 1 is new to the solver."""
    return TVDenoisingFamily(pairs.SOURCE.train(preset), noise=(0.0, 0.2), crop=pairs.CROPS[preset], weight=WEIGHT)


def _for_exact(preset: str) -> Family:
    return TVDenoisingFamily(pairs.SOURCE.train(preset), noise=(0.0, 0.2), crop=exact.CROPS[preset], weight=WEIGHT)


def _published(preset: str) -> Family:
    return TVDenoisingFamily(pairs.SOURCE.train(preset), noise=0.05, crop=pairs.CROPS[preset], weight=WEIGHT)


def make(images: Tensor, noise: float, generator: torch.Generator, isotropic: bool = False) -> TVDenoising:
    """The problem of clean images with noise added."""
    return TVDenoising(add_noise(images, noise, generator), WEIGHT, isotropic)


def _bregman(problem: Any) -> Call:
    """It minimises TV(x) + weight / 2 ||x - y||^2, so its weight is 2 over ours; eps = 0 so that it does not stop."""
    from skimage.restoration import denoise_tv_bregman

    images = [image.movedim(0, -1).contiguous().numpy() for image in problem.noisy]
    weights = [2 / float(weight) for weight in problem.weight]

    def call(iterations: int) -> list[Any]:
        options: Any = {"max_num_iter": iterations, "eps": 0, "isotropic": problem.isotropic, "channel_axis": -1}
        return [denoise_tv_bregman(y, weight=w, **options) for y, w in zip(images, weights, strict=True)]

    return call


SPLIT_BREGMAN = Peer("scikit-image", "skimage", COUNTS[3:], _bregman, channels_last)


def _prox_tv(method: str, threads: int, problem: Any) -> Call:
    """It minimises ||x - y||^2 / 2 + w TV(x) of one channel in double precision; 0 threads are all that torch has."""
    import prox_tv

    images = [image.double().numpy() for image in problem.noisy]
    weights = [float(weight) / 2 for weight in problem.weight]
    options: dict[str, Any] = {"method": method, "n_threads": threads or torch.get_num_threads()}

    def call(iterations: int) -> list[Any]:
        return [
            np.stack([prox_tv.tv1_2d(channel, w, max_iters=iterations, **options) for channel in image])
            for image, w in zip(images, weights, strict=True)
        ]

    return call


def _prox_tv_peers() -> Iterator[Peer]:
    """Every method; those that use threads also with one."""
    for method in ("pd", "dr", "kolmogorov", "yang", "condat", "chambolle-pock"):
        yield Peer(f"prox_tv-{method}", "prox_tv", COUNTS, functools.partial(_prox_tv, method, 0), stacked)
    for method in ("pd", "dr"):
        alone = functools.partial(_prox_tv, method, 1)
        yield Peer(f"prox_tv-{method}{ONE_THREAD}", "prox_tv", COUNTS, alone, stacked)


def _recipe(iterations: int, kernel: int = 5, **changes: Any) -> Recipe:
    shown = (
        f"learned dual mirror descent of {iterations} iterations, {kernel} x {kernel}, for TV denoising of any images"
    )
    made: dict[str, Any] = {
        "title": shown,
        "family": family,
        "settings": training("distance", 1e-2),
        "weak": WEAK
        + "Trained on anisotropic total variation alone. On a batch an iteration costs more than one of PDHG.",
        "fast": kernel == 3,
        **changes,
    }
    return Recipe(
        iterations=iterations,
        solver=lambda seed: LearnedDual(iterations, kernel),
        source=PHOTOGRAPHS,
        **made,
    )


TASK = Task(
    name="denoise",
    title="TV denoising of images, anisotropic",
    recipes=(
        _recipe(5),
        _recipe(10),
        _recipe(20, family=_smooth, settings=training("distance", 4e-3, updates=6000)),
        _recipe(7, kernel=3),
        _recipe(20, kernel=3, settings=training("gap", 4e-3, updates=4000)),
        *schedules.RECIPES,
        pairs.small_recipe("denoising", 0.5, _for_pair, 1400, (0.05,) * 5 + (0.1,) * 4 + (1.0,)),
        exact.for_images("denoising", _for_exact, 700),
        pairs.published_recipe("denoising", _published),
    ),
    reference=REFERENCE,
    contest=Contest(
        make,
        noise=(1, 2, 5, 10, 15, 20),
        peers=(*_prox_tv_peers(), SPLIT_BREGMAN),
    ),
)
