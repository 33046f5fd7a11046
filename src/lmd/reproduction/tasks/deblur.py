"""TV deblurring of Gaussian blurs: ||Bx - y||^2 + weight TV(x) in a box."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.operators import Blur
from lmd.problems import Family, TVDeblurring, TVDeblurringFamily, add_noise, gaussian_kernel
from lmd.reproduction.tasks.optima import CertifiedBy
from lmd.reproduction.tasks.task import Contest, Recipe, Task
from lmd.reproduction.tasks.unrolled import CROPS, PHOTOGRAPHS, WEAK, WEIGHT, solved, training
from lmd.solvers import PDHG, LearnedSaddle

BLUR = 1.5


def _family(preset: str) -> Family:
    images = PHOTOGRAPHS.train(preset)
    plain = TVDeblurringFamily(images, noise=(0.02, 0.08), crop=CROPS[preset], weight=WEIGHT, blur=(1.2, 1.8))
    return solved(plain, preset, PDHG(0.1), share=2)


def make(images: Tensor, noise: float, generator: torch.Generator) -> TVDeblurring:
    """The problem of clean images, blurred, with noise added."""
    kernel = gaussian_kernel(BLUR)
    blurred = Blur(kernel, images.shape[2], images.shape[3])(images)
    return TVDeblurring(add_noise(blurred, noise, generator), kernel, WEIGHT)


TASK = Task(
    name="deblur",
    title="TV deblurring of images with Gaussian blurs",
    recipes=(
        Recipe(
            iterations=20,
            title="learned saddle mirror descent of 20 iterations, for TV deblurring of Gaussian blurs",
            solver=lambda seed: LearnedSaddle(20, kernel=5, primal_kernel=7, masked=False, tau=0.1, settle=1.0),
            family=_family,
            source=PHOTOGRAPHS,
            settings=training("gap", 2e-3),
            weak=WEAK + "Trained on Gaussian blurs of 1.2 to 1.8 pixels: others were not tried.",
        ),
    ),
    reference=CertifiedBy(PDHG(0.1, accelerated=False), 1e-4),
    slow=True,
    contest=Contest(make, tau=0.04),
)
