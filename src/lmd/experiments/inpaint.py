"""Figures 10 and 11: TV inpainting of photographs with a learned convolutional pair."""

from __future__ import annotations

from torch import Tensor

from lmd.experiments.base import Experiment, Session
from lmd.experiments.imaging import (
    ADAM_STEP,
    BASE_STEP,
    TAU,
    draw_curves,
    draw_pictures,
    generator_for,
    images_for,
    learned_solver,
    record_trials,
    trials_for,
)
from lmd.problems import TVInpainting
from lmd.problems.tv_families import add_noise, random_masks
from lmd.zoo.imaging_recipes import WEIGHT

NOISE = 0.05
KEPT = 0.8
METHODS = ("gd", "adam", "nesterov", "pdhg", "lmd", "lmd-adaptive")


class InpaintExperiment(Experiment):
    """The learned pair against GD, Adam and Nesterov at five step-sizes and PDHG; one mask for all images."""

    name = "inpaint"
    title = "TV inpainting of photographs, with a learned mirror pair"
    paper = "Figures 10 and 11"
    solvers = ("inpaint",)
    imaging = True

    def run(self, session: Session) -> None:
        images = images_for(session)
        problem = inpainting_problem(session, images)
        learned = learned_solver(session, "inpaint")
        session.facts.update(
            objective=f"||Z(x - y)||^2 + {WEIGHT} TV(x), anisotropic",
            noise=f"{NOISE:.0%}",
            kept=f"{KEPT:.0%} of the pixels, the same in all images",
            base_step=BASE_STEP,
            adam_step=ADAM_STEP,
            pdhg_tau=TAU,
        )
        record_trials(session, problem, trials_for(problem, learned, METHODS))
        draw_curves(
            session,
            "figure-10-inpaint",
            ("loss", "relative_gap", "psnr"),
            METHODS,
            ("pdhg",),
            f"TV inpainting, {session.facts['data']}, {1 - KEPT:.0%} of the pixels lost, {NOISE:.0%} noise: mean loss, "
            "relative gap, and PSNR to the true minimiser, per iteration and time. PDHG with the step that is best at "
            "iteration 10. The grey line ends the trained iterations.",
        )
        draw_pictures(
            session,
            "figure-11-pictures",
            images,
            problem,
            learned,
            "pixels lost, noisy",
            "The test image with the median minimum: loss, and PSNR to the true minimiser. Adam and PDHG with the step "
            "that is best at iteration 10. The ratio shows where the learned geometry departs from the identity.",
        )


def inpainting_problem(session: Session, images: Tensor) -> TVInpainting:
    """The paper's problem for these images `(B, C, H, W)`: one mask for all, noise for each."""
    mask = random_masks(1, images.shape[2], images.shape[3], KEPT, generator_for(session, purpose=1))[0, 0]
    return TVInpainting(add_noise(mask * images, NOISE, generator_for(session)), mask, WEIGHT)
