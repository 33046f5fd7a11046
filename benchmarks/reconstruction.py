"""Inpainting, deblurring and tomography: `lmd.solve` beside PDHG with the best of ten steps for each image.

    python benchmarks/reconstruction.py [--only NAME] [--images 10] [--data photographs] [--cpu] [--json FILE]

Every row is a setting, with images of 96 x 96 and 2% noise (tomography 5%), one by one: seconds of
`lmd.solve(problem, tolerance)` over those of `lmd.solve(problem, tolerance, solver=PDHG(tau, accelerated=False))`, tau
the one of `RATIOS` that takes fewest iterations on this very image. Both are warmed up, called in turn, and have the
fastest of `--repeats` calls; operators are shared by all problems of a setting, as for anyone with more than one image.
`--cpu` takes seconds of CPU, for machines that are not quiet. Exit code 1 where ours is behind on an image.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lmd
from lmd.operators import Blur, ParallelBeam, gaussian_kernel, motion_kernel
from lmd.problems import TVDeblurring, TVInpainting, TVTomography
from lmd.problems.image_families import add_noise, random_masks
from lmd.reproduction.datasets import image_data
from lmd.solvers import PDHG, Result

RATIOS = tuple(0.005 * 2**k for k in range(10))
"""tau ||K||."""

MOST = 5000
"""Iterations that PDHG gets."""


@dataclass(frozen=True)
class Setting:
    """A kind of problem, its weight and the relative gap to get to."""

    make: Callable[[Tensor, float, torch.Generator], Any]
    weight: float
    tolerance: float


def hole(images: Tensor, weight: float, generator: torch.Generator) -> TVInpainting:
    mask = images.new_ones(images.shape[2:])
    mask[28:68, 28:68] = 0
    return TVInpainting(add_noise(mask * images, 0.02, generator), mask, weight)


def scattered(images: Tensor, weight: float, generator: torch.Generator) -> TVInpainting:
    mask = random_masks(len(images), images.shape[2], images.shape[3], 0.5, generator).to(images)
    return TVInpainting(add_noise(mask * images, 0.02, generator), mask, weight)


def blurred(kernel: Tensor) -> Callable[[Tensor, float, torch.Generator], TVDeblurring]:
    def make(images: Tensor, weight: float, generator: torch.Generator) -> TVDeblurring:
        seen = Blur(kernel, images.shape[2], images.shape[3])(images)
        return TVDeblurring(add_noise(seen, 0.02, generator), kernel, weight)

    return make


def projected(images: Tensor, weight: float, generator: torch.Generator) -> TVTomography:
    size = (images.shape[2], images.shape[3])
    beams = ParallelBeam(*size, angles=30)
    return TVTomography(add_noise(beams(images), 0.05, generator), size, weight, beams=beams)


SETTINGS = {
    "hole": Setting(hole, 0.05, 1e-3),
    "mask": Setting(scattered, 0.3, 1e-3),
    "mask, near": Setting(scattered, 0.3, 1e-5),
    "motion": Setting(blurred(motion_kernel(9.0, 0.6)), 0.005, 1e-2),
    "gaussian": Setting(blurred(gaussian_kernel(1.5)), 0.3, 1e-3),
    "tomography": Setting(projected, 0.3, 1e-3),
}


def tuned(problem: Any, tolerance: float) -> tuple[PDHG, int]:
    """The PDHG of the grid that gets there in fewest iterations, and how many these are."""
    best, least = PDHG(RATIOS[0] / problem.operator.norm, accelerated=False), MOST
    for ratio in sorted(RATIOS, key=lambda ratio: abs(ratio - 0.1)):
        solver = PDHG(ratio / problem.operator.norm, accelerated=False)
        found = lmd.solve(problem, tolerance, solver=solver, iterations=least)
        if found.status[0].name == "TOLERANCE_REACHED" and int(found.iterations[0]) < least:
            best, least = solver, int(found.iterations[0])
    return best, least


def proven(problem: Any, tolerance: float, **options: Any) -> Result:
    """A solve whose certificate is asked for."""
    result = lmd.solve(problem, tolerance, **options)
    assert result.certificate is not None
    return result


def seconds(calls: Sequence[Callable[[], Any]], repeats: int, clock: Callable[[], float]) -> list[float]:
    """The fastest of each, called in turn."""
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for place, call in enumerate(calls):
            begun = clock()
            call()
            best[place] = min(best[place], clock() - begun)
    return best


def measure(name: str, images: Tensor, repeats: int, clock: Callable[[], float]) -> list[dict[str, Any]]:
    """One row for each image."""
    setting, rows = SETTINGS[name], []
    problems = setting.make(images, setting.weight, torch.Generator().manual_seed(0))
    for place in range(len(images)):
        problem = problems.select(place)
        solver, least = tuned(problem, setting.tolerance)
        found = proven(problem, setting.tolerance)
        calls = [
            partial(proven, problem, setting.tolerance),
            partial(proven, problem, setting.tolerance, solver=solver, iterations=least),
        ]
        ours, theirs = seconds(calls, repeats, clock)
        if found.status[0].name != "TOLERANCE_REACHED":
            ours = float("inf")
        row = {"setting": name, "image": place, "ratio": theirs / ours, "ms": 1e3 * ours, "pdhg ms": 1e3 * theirs}
        rows.append({**row, "iterations": int(found.iterations[0]), "pdhg iterations": least})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=SETTINGS, help="one setting")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--data", default="auto", help="photographs, stl10, or stl10 where it is at hand: auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="seconds of CPU")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    images = image_data(args.data).test_images[: args.images].float() / 255
    rows: list[dict[str, Any]] = []
    print("| setting | weight | to | PDHG / ours, least | median | ms, median | PDHG's | iterations | PDHG's |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in SETTINGS if args.only is None else (args.only,):
        found = measure(name, images, args.repeats, clock)
        rows += found
        columns = {key: sorted(row[key] for row in found) for key in found[0] if key != "setting"}
        middle = {key: values[len(values) // 2] for key, values in columns.items()}
        print(
            f"| {name} | {SETTINGS[name].weight} | {SETTINGS[name].tolerance:g} | {columns['ratio'][0]:.2f} "
            f"| {middle['ratio']:.2f} | {middle['ms']:.1f} | {middle['pdhg ms']:.1f} "
            f"| {columns['iterations'][0]} to {columns['iterations'][-1]} "
            f"| {columns['pdhg iterations'][0]} to {columns['pdhg iterations'][-1]} |",
            flush=True,
        )
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1))
    return int(any(row["ratio"] < 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
