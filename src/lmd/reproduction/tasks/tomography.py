"""TV tomography with parallel beams: ||Px - y||^2 + weight TV(x) in a box."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.operators import ParallelBeam
from lmd.problems import Family, TomographyFamily, TVTomography, add_noise
from lmd.reproduction.tasks.optima import CertifiedBy
from lmd.reproduction.tasks.sources import Images
from lmd.reproduction.tasks.task import Contest, Recipe, Task
from lmd.reproduction.tasks.unrolled import CROPS, WEAK, WEIGHT, solved, training
from lmd.solvers import PDHG, LearnedSaddle

ANGLES = 30
SOURCE = Images(whole=True)


def _family(preset: str) -> Family:
    """Whole images: the spectrum of projections, unlike that of blurs, depends on their size."""
    crop = CROPS[preset] if preset == "quick" else None
    plain = TomographyFamily(SOURCE.train(preset), noise=(0.02, 0.08), crop=crop, weight=WEIGHT)
    return solved(plain, preset, PDHG(0.03), share=6)


def make(images: Tensor, noise: float, generator: torch.Generator) -> TVTomography:
    """The problem of clean images, projected, with noise added."""
    size = (images.shape[2], images.shape[3])
    beams = ParallelBeam(*size, angles=ANGLES)
    return TVTomography(add_noise(beams(images), noise, generator), size, WEIGHT, beams=beams)


TASK = Task(
    name="tomography",
    title="TV tomography with 30 angles",
    recipes=(
        Recipe(
            iterations=20,
            title="learned saddle mirror descent of 20 iterations, for TV tomography with 30 angles of 96 x 96 images",
            solver=lambda seed: LearnedSaddle(20, kernel=5, primal_kernel=7, masked=False, tau=0.03, settle=1.0),
            family=_family,
            source=SOURCE,
            settings=training("gap", 3e-3, updates=600, batch=3),
            weak=WEAK + "Trained on 96 x 96 images and 30 angles: others were not tried.",
        ),
    ),
    reference=CertifiedBy(PDHG(0.03, accelerated=False), 1e-3),
    instances=2,
    slow=True,
    contest=Contest(make, steps=0.001, tau=0.012),
)
