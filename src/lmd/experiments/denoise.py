"""Figures 8 and 9: TV denoising of photographs with a learned convolutional pair."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from lmd.experiments.base import Session
from lmd.experiments.imaging import PhotographExperiment, generator_for, psnr
from lmd.problems import TVProblem
from lmd.tasks.denoise import make
from lmd.tasks.optima import minimiser, minimum
from lmd.tasks.unrolled import WEIGHT

NOISE = 0.05
SCIKIT_IMAGE = "scikit-image"
SCIKIT_IMAGE_ITERATIONS = (2, 3, 5, 10, 20)


class DenoiseExperiment(PhotographExperiment):
    """The learned pair against GD, Adam and Nesterov at five step-sizes, FGP, PDHG and scikit-image."""

    name = "denoise"
    title = "TV denoising of photographs, with a learned mirror pair"
    paper = "Figures 8 and 9"
    solvers = ("denoise-pair-10",)
    methods = ("gd", "adam", "nesterov", "fgp", "pdhg", "lmd", "lmd-adaptive")
    tuned = ("fgp", "pdhg")
    figures = ("figure-8-denoise", "figure-9-pictures")
    damaged = "noisy"

    def problem(self, session: Session, images: Tensor) -> TVProblem:
        session.facts.update(objective=f"||x - y||^2 + {WEIGHT} TV(x), anisotropic", noise=f"{NOISE:.0%}")
        return make(images, NOISE, generator_for(session))

    def record_peers(self, session: Session, problem: TVProblem) -> tuple[str, ...]:
        record_scikit_image(session, problem)
        return (SCIKIT_IMAGE,)


def record_scikit_image(session: Session, problem: TVProblem) -> None:
    """The rows of scikit-image's split Bregman method: TV(x) + 1/weight ||x - y||^2 is this objective over its weight.

    It treats the border a little differently, so that its limit is about 0.1% above the minimum.
    """
    from skimage.restoration import denoise_tv_bregman

    best, least = minimiser(problem), minimum(problem).double()
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
        session.record(SCIKIT_IMAGE, k, "relative_gap", float(((values - least) / least).mean()))
        session.record(SCIKIT_IMAGE, k, "psnr", float(psnr(x, best).mean()))
        session.record(SCIKIT_IMAGE, k, "seconds", statistics.median(times) if k else 0.0)
