"""TV denoising: ||x - y||^2 + weight TV(x), anisotropic and isotropic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lmd import tv
from lmd.problems import Family, TVDenoising, TVDenoisingFamily
from lmd.problems.image_families import add_noise
from lmd.problems.tv import TVModel
from lmd.reproduction.tasks import common
from lmd.reproduction.tasks.common import PHOTOGRAPHS, WEAK, WEIGHT, SolvedFamily
from lmd.reproduction.tasks.task import (
    COUNTS,
    ONE_THREAD,
    Call,
    CertifiedBy,
    Contest,
    Peer,
    Recipe,
    Task,
    channels_last,
    stacked,
)
from lmd.solvers import FGP, LearnedDual, LearnedFGP
from lmd.tv.plans import Denoising

STEPS, SCALES = (1, 2, 4, 5, 9, 13, 21, 55), (19, 28, 42, 64, 100, 180)  # iterations from p = 0, and from coarser grids
SCHEDULE_CROPS = {"quick": 24, "standard": 64}
SCHEDULE_WEIGHTS = (0.02, 1.5)
SCHEDULE_POOLS = {"quick": 60, "standard": 3000}  # instances that are solved before long schedules are learned
MIN_FLAT = {False: 34, True: 42}
"""Schedules with at least this many iterations, from p = 0 and from coarser grids, usually end with x averaged over
constant regions. Then the dual point matters most, so these schedules are also trained for its gap."""


class AllWeights(TVDenoisingFamily):
    """TV denoising with log-uniform weights, so that all orders of magnitude are equally frequent."""

    def sample(self, batch: int, generator: torch.Generator) -> tuple[TVModel, Tensor]:
        images = self.sample_images(batch, generator)
        noisy = add_noise(images, self._uniform(self.noise, batch, generator), generator)
        logarithm = self._uniform((math.log(self.weight[0]), math.log(self.weight[1])), batch, generator)
        return TVDenoising(noisy, logarithm.exp(), self.isotropic, self.halved), noisy


def _with_doubled(images: Tensor) -> list[Tensor]:
    """Return the images and copies of twice the size, which have large flat regions and need the most iterations."""
    doubled = interpolate(images.float(), scale_factor=2, mode="bicubic").round().clamp(0, 255).byte()
    return [*images, *doubled]


def schedule_family(preset: str) -> Family:
    """Return the family of photographs with 0 to 22% noise and log-uniform weights."""
    images, crop = _with_doubled(PHOTOGRAPHS.train(preset)), SCHEDULE_CROPS[preset]
    return AllWeights(images, noise=(0.0, 0.22), crop=crop, weight=SCHEDULE_WEIGHTS)


def solved_family(preset: str) -> Family:
    """Return `schedule_family` with solutions."""
    count, solver = SCHEDULE_POOLS[preset], FGP(restart=True)
    return SolvedFamily(schedule_family(preset), count, solver, iterations=1, finish=_solution)


def _solution(problem: TVModel, x: Tensor) -> Tensor:
    plan = tv.match(problem, 1e-8)
    return plan.solve(1e-8, 10_000, None).x if isinstance(plan, Denoising) else x


def _settings(horizon: int, coarse: bool) -> dict[str, dict[str, Any]]:
    """Return training settings: long schedules need a smaller rate, and some of them more updates."""
    both = horizon >= MIN_FLAT[coarse]
    longer = coarse or both
    rate = 0.1 if horizon < 60 else 2.4 / horizon
    shared: dict[str, Any] = {
        "objective": "both duality gaps" if both else "duality gap",
        "value_weights": "last",
        "learning_rate": rate / 2 if longer else rate,
        "schedule": "cosine",
        "clip_gradient": 20.0,
    }
    updates = 3000 if both else 2000 if coarse else 1000 if horizon >= 8 else 400
    larger = {"updates": updates, "batch": 8, "warmup": 20, "validation_batch": 48, "checkpoint_every": 100}
    return {"quick": {**shared, "updates": 40, "batch": 4}, "standard": {**shared, **larger}}


def _schedule_recipe(horizon: int, coarse: bool) -> Recipe:
    start = ", begun on coarser grids" if coarse else ""
    return Recipe(
        iterations=horizon,
        form="scales" if coarse else "steps",
        rung=True,
        title=f"fast gradient projection of {horizon} iterations with learned step-sizes and momenta{start}",
        solver=lambda seed: LearnedFGP(horizon, coarse),
        family=solved_family if horizon >= MIN_FLAT[coarse] else schedule_family,
        source=PHOTOGRAPHS,
        settings=_settings(horizon, coarse),
        weak="Only the last trained iterate is good: `lmd.solve` takes the horizon that a tolerance needs.",
    )


EXACT = FGP(restart=True)
REFERENCE = CertifiedBy(EXACT, 1e-6, unique=True)


def family(preset: str, isotropic: bool = False) -> Family:
    """Return the training family with up to 22% noise. One weight is enough, as solvers are homogeneous in it and y."""
    images, crop = PHOTOGRAPHS.train(preset), common.CROPS[preset]
    plain = TVDenoisingFamily(images, noise=(0.0, 0.22), crop=crop, weight=WEIGHT, isotropic=isotropic)
    return common.solved(plain, preset, EXACT)


def _smooth(preset: str) -> Family:
    """Return the training family with half of the images enlarged and larger crops, for large flat regions."""
    images, crop = _with_doubled(PHOTOGRAPHS.train(preset)), common.CROPS["quick" if preset == "quick" else "paper"]
    return common.solved(TVDenoisingFamily(images, noise=(0.0, 0.22), crop=crop, weight=WEIGHT), preset, EXACT)


def _unsolved(noise: Any, crops: dict[str, int | None], preset: str) -> Family:
    """Return the family without solutions, for mirrors, with up to 20% noise to cover all levels of Table 1."""
    return TVDenoisingFamily(common.PAIR_IMAGES.train(preset), noise=noise, crop=crops[preset], weight=WEIGHT)


def make(images: Tensor, noise: float, generator: torch.Generator, isotropic: bool = False) -> TVDenoising:
    """The problem of clean images with noise added."""
    return TVDenoising(add_noise(images, noise, generator), WEIGHT, isotropic)


def _scikit_image(name: str, problem: Any) -> Call:
    """Call a function of skimage.restoration with eps = 0, so that it does not stop early.

    `denoise_tv_bregman` minimises TV(x) + weight / 2 ||x - y||^2, so its weight is 2 over ours. `denoise_tv_chambolle`
    minimises ||x - y||^2 / 2 + weight TV(x), isotropic, so its weight is half of ours.
    """
    from skimage import restoration

    images = [image.movedim(0, -1).contiguous().numpy() for image in problem.noisy]
    options: dict[str, Any] = {"eps": 0, "channel_axis": -1}
    weights = [float(weight) / 2 for weight in problem.weight]
    if name == "denoise_tv_bregman":
        options["isotropic"], weights = problem.isotropic, [1 / weight for weight in weights]
    denoiser: Any = getattr(restoration, name)

    def call(iterations: int) -> list[Any]:
        return [denoiser(y, weight=w, max_num_iter=iterations, **options) for y, w in zip(images, weights, strict=True)]

    return call


SPLIT_BREGMAN = Peer("scikit-image", "skimage", COUNTS[3:], partial(_scikit_image, "denoise_tv_bregman"), channels_last)


def _prox_tv(method: str, threads: int, problem: Any) -> Call:
    """Call prox_tv: ||x - y||^2 / 2 + w TV(x) per channel in float64. 0 threads means all that torch has."""
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
    """Return every method of prox_tv; parallel ones also with one thread."""
    for method in ("pd", "dr", "kolmogorov", "yang", "condat", "chambolle-pock"):
        yield Peer(f"prox_tv-{method}", "prox_tv", COUNTS, partial(_prox_tv, method, 0), stacked)
    for method in ("pd", "dr"):
        alone = partial(_prox_tv, method, 1)
        yield Peer(f"prox_tv-{method}{ONE_THREAD}", "prox_tv", COUNTS, alone, stacked)


def _recipe(iterations: int, kernel: int = 5, **changes: Any) -> Recipe:
    size = f"{iterations} iterations, {kernel} x {kernel}"
    alone = "Trained on anisotropic total variation alone. On a batch an iteration costs more than one of PDHG."
    options: dict[str, Any] = {"family": family, "settings": common.training("distance", 1e-2), **changes}
    return Recipe(
        iterations=iterations,
        fast=kernel == 3,
        title=f"learned dual mirror descent of {size}, for TV denoising of any images",
        solver=lambda seed: LearnedDual(iterations, kernel),
        source=PHOTOGRAPHS,
        weak=WEAK + alone,
        **options,
    )


DENOISE = Task(
    name="denoise",
    title="TV denoising of images, anisotropic",
    recipes=(
        _recipe(5),
        _recipe(10),
        _recipe(20, family=_smooth, settings=common.training("distance", 4e-3, updates=6000)),
        _recipe(7, kernel=3),
        _recipe(20, kernel=3, settings=common.training("gap", 4e-3, updates=4000)),
        *(_schedule_recipe(horizon, False) for horizon in STEPS),
        *(_schedule_recipe(horizon, True) for horizon in SCALES),
        common.small_recipe(
            "denoising", 0.5, partial(_unsolved, (0.0, 0.2), common.PAIR_CROPS), 1400, (0.05,) * 5 + (0.1,) * 4 + (1.0,)
        ),
        common.exact_recipe_for_images("denoising", partial(_unsolved, (0.0, 0.2), common.EXACT_CROPS), 700),
        common.published_recipe("denoising", partial(_unsolved, 0.05, common.PAIR_CROPS)),
    ),
    reference=REFERENCE,
    contest=Contest(make, noise=(1, 2, 5, 10, 15, 20), peers=(*_prox_tv_peers(), SPLIT_BREGMAN)),
)


def _deepinv(problem: Any) -> Call:
    """Call deepinv's Chambolle-Pock: ||x - y||^2 / 2 + w TV(x), isotropic. With crit = 0 it does not stop early."""
    from deepinv.models import TVDenoiser

    def call(iterations: int) -> Tensor:
        denoiser = TVDenoiser(tau=0.35, n_it_max=iterations, crit=0.0)
        answer: Tensor = denoiser(problem.noisy, float(problem.weight[0]) / 2)
        return answer

    return call


_OWN = "deepinv in an environment of its own, as it wants torchvision"

DENOISE_ISOTROPIC = Task(
    name="denoise-isotropic",
    title="TV denoising of images, isotropic",
    recipes=(
        Recipe(
            iterations=10,
            title="learned dual mirror descent of 10 iterations, 5 x 5, for isotropic TV denoising of any images",
            solver=lambda seed: LearnedDual(10, 5),
            family=partial(family, isotropic=True),
            source=PHOTOGRAPHS,
            settings=common.training("distance", 1e-2),
            weak=WEAK + "Trained on isotropic total variation alone. Its steps are not compiled in one piece.",
        ),
    ),
    reference=REFERENCE,
    contest=Contest(
        partial(make, isotropic=True),
        peers=(
            Peer("scikit-image", "skimage", COUNTS[3:], partial(_scikit_image, "denoise_tv_chambolle"), channels_last),
            Peer("deepinv", "deepinv", COUNTS[3:], _deepinv, lambda _, answer: answer, _OWN),
        ),
    ),
)
