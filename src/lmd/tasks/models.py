"""Total variation models beyond the paper's: coupled colours, volumes, maps of weights, Huber, boxes."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from lmd.problems import Family, TVModel
from lmd.problems.model_families import Maker, ModelFamily, windows
from lmd.solvers import FGP, LearnedFGP, Solver
from lmd.tasks.optima import CertifiedBy
from lmd.tasks.task import Recipe, Task
from lmd.tasks.unrolled import PHOTOGRAPHS
from lmd.terms import Squares

CROPS = {"quick": 24, "standard": 56}
DEPTH = {24: 8, 56: 24}
HORIZON = 40


def noisy(images: Tensor, noise: Any, generator: torch.Generator) -> Tensor:
    """Images with Gaussian noise, one level or one for each `(B, 1, ...)`."""
    return images + noise * torch.randn(images.shape, generator=generator, dtype=images.dtype)


def _plain(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    return TVModel(Squares(noisy(images, noise, generator)), weight, **form)


def _mapped(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    """Weights that change from pixel to pixel, by up to a factor of five."""
    shape = (len(images), 1, *images.shape[2:])
    spread = 5 ** (torch.rand(shape, generator=generator, dtype=images.dtype) - 0.5)
    return _plain(images, noise, weight.reshape(-1, 1, 1, 1) * spread, generator, **form)


def _volume(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    depth = DEPTH.get(images.shape[2], images.shape[2] // 3)
    return _plain(windows(images, depth), noise[..., None], weight, generator, **form)


FORMS: tuple[dict[str, Any], ...] = ({"isotropic": False}, {"isotropic": True})
_SQUARES: tuple[tuple[str, Maker, dict[str, Any]], ...] = (
    ("coupled", _plain, {"coupled": True}),
    ("map", _mapped, {}),
    ("huber", _plain, {"huber": 0.02}),
    ("box", _plain, {"box": (0.0, 1.0)}),
    ("volume", _volume, {}),
    ("spacings", _volume, {"spacing": (2.0, 1.0, 1.0)}),
)


def in_forms(models: tuple[tuple[str, Maker, dict[str, Any]], ...]) -> dict[str, Maker]:
    """Each model in both forms, by name."""
    return {
        name + (", isotropic" if form["isotropic"] else ""): functools.partial(make, **options, **form)
        for name, make, options in models
        for form in FORMS
    }


STRONG = in_forms(_SQUARES)
"""Models with squares of all entries: their duals are smooth."""


def _family(preset: str) -> Family:
    makers = list(STRONG.values())
    return ModelFamily(PHOTOGRAPHS.train(preset), makers, noise=(0.02, 0.15), crop=CROPS[preset], weight=(0.05, 0.6))


def _learned(seed: int) -> Solver[Any]:
    return LearnedFGP(HORIZON)


def _settings(updates: int, rate: float) -> dict[str, dict[str, Any]]:
    shared: dict[str, Any] = {
        "objective": "duality gap",
        "value_weights": "last",
        "learning_rate": rate,
        "schedule": "cosine",
        "clip_gradient": 20.0,
    }
    larger = {"updates": updates, "batch": 4, "warmup": 20, "validation_batch": 16, "checkpoint_every": 50}
    return {"quick": {**shared, "updates": 20, "batch": 2}, "standard": {**shared, **larger}}


TASK = Task(
    name="models",
    title="TV models with squares: coupled colours, volumes, maps of weights, Huber, boxes",
    recipes=(
        Recipe(
            iterations=HORIZON,
            title=f"fast gradient projection of {HORIZON} iterations, learned numbers, for TV models with squares",
            solver=_learned,
            family=_family,
            source=PHOTOGRAPHS,
            settings=_settings(600, 0.06),
            weak="Only the last trained iterate is good. Tried on photographs and volumes of moving windows of them, 2 "
            "to 15% noise, weights of 0.05 to 0.6: coupled colours, maps of weights, Huber of 0.02, boxes, spacings.",
        ),
    ),
    reference=CertifiedBy(FGP(restart=True), 1e-6),
)
