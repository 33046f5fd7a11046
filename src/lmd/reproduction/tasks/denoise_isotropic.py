"""TV denoising, isotropic: ||x - y||^2 + weight TV(x), all directions alike."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from lmd.reproduction.tasks import denoise
from lmd.reproduction.tasks.peers import COUNTS, Call, Peer, channels_last
from lmd.reproduction.tasks.task import Contest, Recipe, Task
from lmd.reproduction.tasks.unrolled import PHOTOGRAPHS, WEAK, training
from lmd.solvers import LearnedDual


def _chambolle(problem: Any) -> Call:
    """It minimises ||x - y||^2 / 2 + weight TV(x), isotropic, so its weight is half of ours."""
    from skimage import restoration

    images = [image.movedim(0, -1).contiguous().numpy() for image in problem.noisy]
    weights = [float(weight) / 2 for weight in problem.weight]
    chambolle: Any = restoration.denoise_tv_chambolle

    def call(iterations: int) -> list[Any]:
        options: Any = {"max_num_iter": iterations, "eps": 0, "channel_axis": -1}
        return [chambolle(y, weight=w, **options) for y, w in zip(images, weights, strict=True)]

    return call


def _deepinv(problem: Any) -> Call:
    """Over-relaxed Chambolle and Pock on ||x - y||^2 / 2 + w TV(x), isotropic; crit = 0 so that it does not stop."""
    from deepinv.models import TVDenoiser

    def call(iterations: int) -> Tensor:
        denoiser = TVDenoiser(tau=0.35, n_it_max=iterations, crit=0.0)
        answer: Tensor = denoiser(problem.noisy, float(problem.weight[0]) / 2)
        return answer

    return call


_OWN = "deepinv in an environment of its own, as it wants torchvision"

TASK = Task(
    name="denoise-isotropic",
    title="TV denoising of images, isotropic",
    recipes=(
        Recipe(
            iterations=10,
            title="learned dual mirror descent of 10 iterations, 5 x 5, for isotropic TV denoising of any images",
            solver=lambda seed: LearnedDual(10, 5),
            family=partial(denoise.family, isotropic=True),
            source=PHOTOGRAPHS,
            settings=training("distance", 1e-2),
            weak=WEAK + "Trained on isotropic total variation alone. Its steps are not compiled in one piece.",
        ),
    ),
    reference=denoise.REFERENCE,
    contest=Contest(
        partial(denoise.make, isotropic=True),
        peers=(
            Peer("scikit-image", "skimage", COUNTS[3:], _chambolle, channels_last),
            Peer("deepinv", "deepinv", COUNTS[3:], _deepinv, lambda _, answer: answer, _OWN),
        ),
    ),
)
