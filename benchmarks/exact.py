"""Learned iterations with exact mirrors beside those of the corrected pair: seconds, interleaved, and their ratio.

    python benchmarks/exact.py --images stl10_248.npz [--threads 2] [--repeats 40]

Eight images with 5% noise; each repeat takes one iteration of either. Ratios are those of the medians and of the least.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from lmd import zoo
from lmd.problems import TVDenoising, TVInpainting
from lmd.problems.image_families import add_noise, as_float, random_masks
from lmd.reproduction.datasets import read_images

NOISE, KEPT, WEIGHT, IMAGES = 0.05, 0.8, 0.3, 8


def seconds(solver: Any, problem: Any, state: Any) -> float:
    """One learned iteration."""
    begun = time.perf_counter()
    solver.step(problem, state)
    return time.perf_counter() - begun


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    images = as_float(read_images(given.images).crops(96)[:IMAGES], torch.float32)
    generator = torch.Generator().manual_seed(0)
    noisy, mask = add_noise(images, NOISE, generator), random_masks(IMAGES, *images.shape[2:], KEPT, generator)
    problems = {"denoise": TVDenoising(noisy, WEIGHT), "inpaint": TVInpainting(mask * noisy, mask, WEIGHT)}
    for name, problem in problems.items():
        solvers = {form: zoo.load(f"{name}-{form}-10", bare=True) for form in ("exact", "pair")}
        states = {form: solver.init(problem, problem.start()) for form, solver in solvers.items()}
        states = {form: solver.step(problem, states[form]) for form, solver in solvers.items()}
        times: dict[str, list[float]] = {form: [] for form in solvers}
        for _ in range(given.repeats):
            for form, solver in solvers.items():
                times[form].append(seconds(solver, problem, states[form]))
        for take in (statistics.median, min):
            exact, pair = (1e3 * take(times[form]) for form in ("exact", "pair"))
            print(f"{name}, {take.__name__}: exact {exact:.2f} ms, pair {pair:.1f} ms, ratio {pair / exact:.1f}")


if __name__ == "__main__":
    main()
