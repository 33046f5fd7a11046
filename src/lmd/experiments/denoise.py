"""Figures 8 and 9: TV denoising of photographs with a learned convolutional pair."""

from __future__ import annotations

import statistics
import time

import torch

from lmd import reference
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
    psnr,
    record_trials,
    trials_for,
)
from lmd.problems import TVDenoising
from lmd.problems.tv_families import add_noise
from lmd.zoo.imaging_recipes import WEIGHT

NOISE = 0.05
METHODS = ("gd", "adam", "nesterov", "fgp", "pdhg", "lmd", "lmd-adaptive")
SCIKIT_IMAGE = "scikit-image"
SCIKIT_IMAGE_ITERATIONS = (2, 3, 5, 10, 20)


class DenoiseExperiment(Experiment):
    """The learned pair against GD, Adam and Nesterov at five step-sizes, FGP, PDHG and scikit-image."""

    name = "denoise"
    title = "TV denoising of photographs, with a learned mirror pair"
    paper = "Figures 8 and 9"
    solvers = ("denoise",)
    imaging = True

    def run(self, session: Session) -> None:
        images = images_for(session)
        problem = TVDenoising(add_noise(images, NOISE, generator_for(session)), WEIGHT)
        learned = learned_solver(session, "denoise")
        session.facts.update(
            objective=f"||x - y||^2 + {WEIGHT} TV(x), anisotropic", noise=f"{NOISE:.0%}", base_step=BASE_STEP
        )
        session.facts.update(adam_step=ADAM_STEP, pdhg_tau=TAU)
        record_trials(session, problem, trials_for(problem, learned, METHODS))
        record_scikit_image(session, problem)
        draw_curves(
            session,
            "figure-8-denoise",
            ("loss", "relative_gap", "psnr"),
            (*METHODS, SCIKIT_IMAGE),
            ("fgp", "pdhg"),
            f"TV denoising, {session.facts['data']}, {NOISE:.0%} noise: mean loss, relative gap, and PSNR to the true "
            "minimiser, per iteration and time. FGP and PDHG with the step that is best at iteration 10. The grey line "
            "ends the trained iterations.",
        )
        draw_pictures(
            session,
            "figure-9-pictures",
            images,
            problem,
            learned,
            "noisy",
            "The test image with the median minimum: loss, and PSNR to the true minimiser. Adam and PDHG with the step "
            "that is best at iteration 10. The ratio shows where the learned geometry departs from the identity.",
        )


def record_scikit_image(session: Session, problem: TVDenoising) -> None:
    """The rows of scikit-image's split Bregman method: TV(x) + 1/weight ||x - y||^2 is this objective over its weight.

    It treats the border a little differently, so that its limit is about 0.1% above the minimum.
    """
    from skimage.restoration import denoise_tv_bregman

    minimiser, minimum = (known(problem, reference.Cache()) for known in (reference.minimiser, reference.minimum))
    minimum = minimum.double()
    noisy = problem.noisy.double().numpy()
    fidelity = 2 / WEIGHT
    for k in (0, *SCIKIT_IMAGE_ITERATIONS):
        times = []
        for _ in range(max(3, session.repeats)):
            begun = time.perf_counter()
            denoised = [
                denoise_tv_bregman(y, fidelity, max_num_iter=k, eps=1e-12, isotropic=False, channel_axis=0) if k else y
                for y in noisy
            ]
            times.append(time.perf_counter() - begun)
        x = torch.stack([torch.from_numpy(image) for image in denoised]).float()
        values = problem.value(x).double()
        session.record(SCIKIT_IMAGE, k, "loss", float(values.mean()))
        session.record(SCIKIT_IMAGE, k, "relative_gap", float(((values - minimum) / minimum).mean()))
        session.record(SCIKIT_IMAGE, k, "psnr", float(psnr(x, minimiser).mean()))
        session.record(SCIKIT_IMAGE, k, "seconds", statistics.median(times) if k else 0.0)
