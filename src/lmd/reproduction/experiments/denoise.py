"""Figures 8 and 9: TV denoising of photographs with a learned convolutional pair."""

from __future__ import annotations

import statistics
import time

from torch import Tensor

from lmd.problems import TVProblem
from lmd.reproduction.experiments.base import Session
from lmd.reproduction.experiments.imaging import PhotographExperiment, generator_for, psnr
from lmd.reproduction.tasks.denoise import SPLIT_BREGMAN, make
from lmd.reproduction.tasks.optima import minimiser, minimum
from lmd.reproduction.tasks.unrolled import WEIGHT

NOISE = 0.05
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
        return (SPLIT_BREGMAN.name,)


def record_scikit_image(session: Session, problem: TVProblem) -> None:
    """The rows of scikit-image's split Bregman method, which treats the border a little differently.

    Its limit is about 0.1% above the minimum.
    """
    best, least, call = minimiser(problem), minimum(problem).double(), SPLIT_BREGMAN.prepare(problem)
    for k in (0, *SCIKIT_IMAGE_ITERATIONS):
        x, times = problem.start(), [0.0]
        for repeat in range(max(3, session.repeats) if k else 0):
            begun = time.perf_counter()
            answer = call(k)
            times[repeat:] = [time.perf_counter() - begun]
            x = SPLIT_BREGMAN.finish(problem, answer)
        values = problem.value(x).double()
        found = {"loss": values, "relative_gap": (values - least) / least, "psnr": psnr(x, best)}
        for metric, measured in found.items():
            session.record(SPLIT_BREGMAN.name, k, metric, float(measured.mean()))
        session.record(SPLIT_BREGMAN.name, k, "seconds", statistics.median(times))
