"""Total variation models beyond the paper's: coupled colours, volumes, maps of weights, Huber, boxes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lmd.operators import Blur, Mask, ParallelBeam, gaussian_kernel, motion_kernel
from lmd.operators.blur import BORDERS
from lmd.problems import Family, SecondOrderModel, TVDenoising, TVModel
from lmd.problems.base import offers
from lmd.problems.image_families import Range, TVDenoisingFamily, random_masks
from lmd.reproduction.tasks.common import PHOTOGRAPHS, WEIGHT
from lmd.reproduction.tasks.task import CertifiedBy, Contest, Recipe, Task
from lmd.solvers import FGP, RelaxedPDHG
from lmd.solvers.wrappers import Averaged
from lmd.terms import Absolute, KullbackLeibler, Squares

Maker = Callable[..., Any]
"""Makes a problem from clean images `(B, C, H, W)`, noise levels `(B, 1, 1, 1)`, weights `(B,)` and a generator."""


class ModelFamily(TVDenoisingFamily):
    """Random crops as instances of one of several models, drawn for each sample; weights are log-uniform.

    A maker gets images in [0, 1] and adds its noise. See `TVDenoisingFamily` for the other arguments.
    """

    name = "tv-models"

    def __init__(
        self, images: Tensor | Sequence[Tensor], makers: Sequence[Maker], noise: Range, crop: int, weight: Range
    ) -> None:
        super().__init__(images, noise, crop, weight)
        self.makers = tuple(makers)

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Any, Tensor]:
        (chosen,) = self._draw(1, len(self.makers), generator)
        images = self.sample_images(batch, generator)
        noise = self._uniform(self.noise, batch, generator).reshape(-1, 1, 1, 1)
        weight = self._uniform((math.log(self.weight[0]), math.log(self.weight[1])), batch, generator).exp()
        problem = self.makers[chosen](images, noise, weight, generator)
        return problem, problem.start()


def windows(images: Tensor, depth: int) -> Tensor:
    """Return volumes `(B, 1, depth, H - depth, W - depth)`: a window that moves over a grey image."""
    grey, side = images.mean(dim=1), [n - depth for n in images.shape[2:]]
    return torch.stack([grey[:, i : i + side[0], i : i + side[1]] for i in range(depth)], dim=1)[:, None]


CROPS = {"quick": 24, "standard": 56}
DEPTH = {24: 8, 56: 24}
HORIZON, LONGER, PEAK, KEPT = 40, 120, 30.0, 0.7


def noisy(images: Tensor, noise: Any, generator: torch.Generator) -> Tensor:
    """Return images with Gaussian noise; `noise` is one level, or a level for each image `(B, 1, ...)`."""
    return images + noise * torch.randn(images.shape, generator=generator, dtype=images.dtype)


def _plain(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    return TVModel(Squares(noisy(images, noise, generator)), weight, **form)


def _mapped(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    """Return a problem with a weight per pixel; weights differ by up to a factor of five."""
    shape = (len(images), 1, *images.shape[2:])
    spread = 5 ** (torch.rand(shape, generator=generator, dtype=images.dtype) - 0.5)
    return _plain(images, noise, weight.reshape(-1, 1, 1, 1) * spread, generator, **form)


def _volume(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVDenoising:
    depth = DEPTH.get(images.shape[2], images.shape[2] // 3)
    return TVDenoising(noisy(windows(images, depth), noise[..., None], generator), weight, **form)


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
    """Return each model in both forms, anisotropic and isotropic, by name."""
    return {
        name + (", isotropic" if form["isotropic"] else ""): functools.partial(make, **options, **form)
        for name, make, options in models
        for form in FORMS
    }


STRONG = in_forms(_SQUARES)  # models with squares of all entries: their duals are smooth


def counted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return Poisson counts whose mean is `PEAK` times the images."""
    return torch.poisson(PEAK * images.clamp(min=0), generator=generator)


def _counts(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    return TVModel(KullbackLeibler(counted(images, generator)), weight, **form)


def impulses(images: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
    """Return images with black and white impulses in a share `2 noise` of the entries."""
    drawn = torch.rand(images.shape, generator=generator, dtype=images.dtype)
    return torch.where(drawn < noise, 0, torch.where(drawn > 1 - noise, 1, images))


def _absolute(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    return TVModel(Absolute(impulses(images, noise, generator)), 2 * weight, **form)


def _mask(images: Tensor, generator: torch.Generator) -> Tensor:
    return random_masks(len(images), images.shape[2], images.shape[3], KEPT, generator).to(images)


def _masked(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    """Return a problem with impulses and lost pixels."""
    mask = _mask(images, generator)
    return TVModel(Absolute(mask * impulses(images, noise, generator), mask.expand_as(images)), 2 * weight, **form)


def _masked_counts(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    mask = _mask(images, generator)
    misfit = KullbackLeibler(mask * counted(images, generator))
    return TVModel(misfit, weight, forward=Mask(mask), box=(0.0, 2 * PEAK), **form)


def _kernel(generator: torch.Generator) -> Tensor:
    """A Gaussian of 0.8 to 2 pixels, or a motion of 4 to 9 pixels in any direction."""
    one, other, third = torch.rand(3, generator=generator, dtype=torch.float64, device="cpu").tolist()
    return gaussian_kernel(0.8 + 1.2 * one) if third < 0.5 else motion_kernel(4 + 5 * one, math.pi * other)


def _blurred(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    """Return a deblurring problem with a random kernel and border, a third of the noise and a fifth of the weight."""
    border = BORDERS[int(torch.randint(2, (), generator=generator))]
    blur = Blur(_kernel(generator), images.shape[2], images.shape[3], border)
    return TVModel(Squares(noisy(blur(images), noise / 3, generator)), weight / 5, forward=blur, **form)


def _blurred_counts(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    blur = Blur(_kernel(generator), images.shape[2], images.shape[3], "replicate")
    misfit = KullbackLeibler(counted(blur(images), generator))
    return TVModel(misfit, weight / 2, forward=blur, box=(0.0, 2 * PEAK), **form)


def _projected(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> TVModel:
    """Return a tomography problem with 10 to 40 angles."""
    beams = ParallelBeam(images.shape[2], images.shape[3], 10 + int(torch.randint(31, (), generator=generator)))
    sinogram = noisy(beams(images), noise / 2, generator)
    size = (int(images.shape[2]), int(images.shape[3]))
    return TVModel(Squares(sinogram), weight / 2, forward=beams, size=size, **form)


def _second(images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any) -> SecondOrderModel:
    return SecondOrderModel(Squares(noisy(images, noise, generator)), weight, **form)


def _second_absolute(
    images: Tensor, noise: Tensor, weight: Tensor, generator: torch.Generator, **form: Any
) -> SecondOrderModel:
    return SecondOrderModel(Absolute(impulses(images, noise, generator)), 2 * weight, **form)


COUNTS = in_forms((("counts", _counts, {}), ("masked counts", _masked_counts, {})))  # poisson counts
ABSOLUTE = in_forms((("absolute", _absolute, {}), ("masked absolute", _masked, {})))  # impulses
# with an operator before the misfit, and total generalised variation
SADDLE = in_forms((("blurred", _blurred, {}), ("blurred counts", _blurred_counts, {}), ("tomography", _projected, {})))
SECOND = in_forms((("second order", _second, {}), ("second order, absolute", _second_absolute, {})))


def family(models: dict[str, Maker], preset: str) -> Family:
    """Return a family of these models with 2 to 15% noise and weights of 0.05 to 0.6 for images in [0, 1]."""
    images, makers = PHOTOGRAPHS.train(preset), list(models.values())
    return ModelFamily(images, makers, noise=(0.02, 0.15), crop=CROPS[preset], weight=(0.05, 0.6))


def minima(problem: Any, x0: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return minima to 1e-6 by FGP or relaxed PDHG; to 2e-3 for models with an operator or second differences."""
    if offers(problem, FGP().needs):
        return CertifiedBy(FGP(restart=True), 1e-6)(problem, x0)
    return CertifiedBy(RelaxedPDHG(), 1e-6 if len(problem.regularisers) == 1 else 2e-3)(problem, x0)


_BENCHED: tuple[tuple[str, Maker, dict[str, Any]], ...] = (
    *_SQUARES[:5],
    ("second-order", _second, {}),
    ("counts", _counts, {}),
    ("absolute", _absolute, {}),
    ("masked-absolute", _masked, {}),
    ("masked-counts", _masked_counts, {}),
)


def _contests() -> dict[str, Contest]:
    """Return a contest per model and form, with weight 0.3 times the factor of the model and PDHG's default step."""

    def made(make: Maker, images: Tensor, noise: float, generator: torch.Generator) -> Any:
        level, weight = images.new_full((len(images), 1, 1, 1), noise), images.new_full((len(images),), WEIGHT)
        return make(images, level, weight, generator)

    plain: dict[str, Any] = {"steps": 0.0, "tau": 0.0, "kept": False}
    return {
        name.replace(", ", "-"): Contest(functools.partial(made, make), sized="volume" not in name, **plain)
        for name, make in in_forms(_BENCHED).items()
    }


def _relaxed(
    models: dict[str, Maker], form: str, updates: int, about: str, tried: str, iterations: int = HORIZON
) -> Recipe:
    shared = {"objective": "duality gap", "value_weights": "last", "schedule": "cosine", "clip_gradient": 20.0}
    shared["learning_rate"] = 0.03
    larger = {"updates": updates, "batch": 3, "warmup": 20, "validation_batch": 16, "checkpoint_every": 50}
    last = "Only the last trained iterate is good. Tried on photographs, 2 to 15% noise, weights of 0.05 to 0.6"
    return Recipe(
        iterations=iterations,
        form=form,
        title=f"relaxed PDHG of {iterations} iterations with learned numbers, for {about}",
        solver=lambda seed: Averaged(RelaxedPDHG(iterations)),
        family=functools.partial(family, models),
        source=PHOTOGRAPHS,
        settings={"quick": {**shared, "updates": 20, "batch": 2}, "standard": {**shared, **larger}},
        weak=f"{last}: {tried}.",
    )


_BEHIND = "blurs of any kernel, tomography, Poisson counts with a peak of 30 behind blurs"
_BENT = "total generalised variation with a ratio of 2, squares and impulses"
_COUNTED = "Poisson counts with a peak of 30, also with lost pixels"
_STRUCK = "impulses in twice as many pixels, also with lost pixels besides"


MODELS = Task(
    name="models",
    title="TV models: volumes, coupled colours, maps of weights, Huber, boxes, counts, impulses, blurs, second order",
    recipes=(
        _relaxed(COUNTS, "counts", 250, "TV models of Poisson counts", _COUNTED),
        _relaxed(ABSOLUTE, "absolute", 250, "TV models of impulses", _STRUCK),
        *(_relaxed(SADDLE, "saddle", 800, "TV models behind operators", _BEHIND, n) for n in (HORIZON, LONGER)),
        *(_relaxed(SECOND, "second", 400, "total generalised variation", _BENT, n) for n in (HORIZON, LONGER)),
    ),
    models=_contests(),
    reference=minima,
    slow=True,
)
