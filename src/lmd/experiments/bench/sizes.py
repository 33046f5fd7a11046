"""One photograph at many sizes: how the gap and the seconds per pixel grow with the image."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lmd.data import read_images
from lmd.data.images import TEST_PHOTOGRAPHS, bundled, read_image
from lmd.experiments.bench.plan import TEST_SEED, Bench, Plan, contests, methods_for
from lmd.experiments.bench.timing import whole
from lmd.problems.tv_families import as_float
from lmd.report.rows import row
from lmd.solvers import FGP, PDHG
from lmd.tasks.methods import Method, Setting

ITERATIONS = 10
REPEATS = 3
REFERENCE = 200
"""How many iterations of FGP bound f* from below."""


def bench_sizes(bench: Bench) -> None:
    """Denoising at 5% of one photograph at many sizes: the gap at iteration 10 and the seconds per pixel.

    f* is not certified here but bounded from below, by the dual of FGP after 200 iterations, so gaps are a little too
    large for every method alike.
    """
    plan = bench.plan
    photograph = as_float(_largest_image(plan), torch.float32)
    for side in plan.sizes:
        bench.say(f"size {side}")
        image = interpolate(photograph[None], size=(side, side), mode="bicubic", antialias=True).clamp(0, 1)
        problem = contests()["denoise"].make(image, 0.05, torch.Generator().manual_seed(TEST_SEED + side))
        least = _lower_bound(problem)
        methods = methods_for("denoise", problem, ITERATIONS)
        learned = [method for method in methods if method.settings[0].solver.ends_proven]
        for method in [Method("pdhg", (Setting(PDHG(0.2)),), ITERATIONS), *learned]:
            if plan.wants(method.name):
                _record(bench, method, problem, least, side)


def _lower_bound(problem: Any) -> Tensor:
    with torch.inference_mode():
        reference = FGP(restart=True)
        state = reference.init(problem, problem.start())
        for _ in range(REFERENCE):
            state = reference.step(problem, state)
        bound: Tensor = problem.dual_value(state.dual).double()
    return bound


def _record(bench: Bench, method: Method, problem: Any, least: Tensor, side: int) -> None:
    (setting,) = method.settings
    timed = whole(setting.solver, problem, problem.start(), ITERATIONS)
    timed()
    seconds = [timed()[-1] for _ in range(min(bench.plan.repeats, REPEATS))]
    with torch.inference_mode():
        state = setting.solver.advance(problem, setting.solver.init(problem, problem.start()), ITERATIONS)
        gap = float(((problem.value(state.x).double() - least) / least).mean())
    per_pixel = statistics.median(seconds) / ITERATIONS / side**2
    for metric, value in (("relative_gap_bound", gap), ("seconds_per_pixel", per_pixel)):
        bench.rows.append(row(method.name, ITERATIONS, metric, value, problem="denoise", noise=5, batch=1, size=side))


def _largest_image(plan: Plan) -> Tensor:
    if plan.images is not None:
        return max(read_images(plan.images).images, key=lambda image: image.numel())
    return read_image(bundled(*TEST_PHOTOGRAPHS[0]))
