"""Figures 10 and 11: TV inpainting of photographs with a learned convolutional pair."""

from __future__ import annotations

from torch import Tensor

from lmd.problems import TVInpainting
from lmd.problems.image_families import add_noise, random_masks
from lmd.reproduction.experiments.base import Session
from lmd.reproduction.experiments.imaging import PhotographExperiment, generator_for
from lmd.reproduction.tasks.inpaint import KEPT
from lmd.reproduction.tasks.unrolled import WEIGHT

NOISE = 0.05


class InpaintExperiment(PhotographExperiment):
    """The learned pair against GD, Adam and Nesterov at five step-sizes and PDHG; one mask for all images."""

    name = "inpaint"
    title = "TV inpainting of photographs, with a learned mirror pair"
    paper = "Figures 10 and 11"
    solvers = ("inpaint-pair-10",)
    methods = ("gd", "adam", "nesterov", "pdhg", "lmd", "lmd-adaptive")
    tuned = ("pdhg",)
    figures = ("figure-10-inpaint", "figure-11-pictures")
    damaged = "pixels lost, noisy"

    def problem(self, session: Session, images: Tensor) -> TVInpainting:
        session.facts.update(
            objective=f"||Z(x - y)||^2 + {WEIGHT} TV(x), anisotropic",
            noise=f"{NOISE:.0%}",
            kept=f"{KEPT:.0%} of the pixels, the same in all images",
        )
        return inpainting_problem(session, images)


def inpainting_problem(session: Session, images: Tensor) -> TVInpainting:
    """The paper's problem for these images `(B, C, H, W)`: one mask for all, noise for each."""
    mask = random_masks(1, images.shape[2], images.shape[3], KEPT, generator_for(session, purpose=1))[0, 0]
    return TVInpainting(add_noise(mask * images, NOISE, generator_for(session)), mask, WEIGHT)
