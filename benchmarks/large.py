"""Large images: gaps at the trained horizon at 2048 x 2048 and 96 x 96, and nanoseconds per pixel and iteration.

    python benchmarks/large.py [--cpu] [--weight 0.3] [--horizons 19,42]

Pictures with 5% noise: a mosaic of test images, and a photograph enlarged to 2048 x 2048. The gap of the whole is
beside the median of its own pieces of 96 x 96: the same pixels, so that only the size differs. Nanoseconds are of the
compiled loop with given numbers, from 80 iterations less 16, the fastest of several calls; `--cpu` takes seconds of CPU
by one thread. Exit code 1 where a gap is above 1.3 times that of its pieces, or an iteration above that at 256 x 256.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lmd import kernels
from lmd.problems import TVDenoising
from lmd.problems.image_families import add_noise
from lmd.reproduction.datasets import image_data
from lmd.reproduction.datasets.images import TEST_PHOTOGRAPHS, bundled, read_image
from lmd.solvers.learned.primal_dual import NODES, PLACES
from lmd.tv import match, schedules
from lmd.tv.plans import Denoising, Outcome
from lmd.tv.schedules import Schedule, table_of

SIDE, PIECE = 2048, 96


def pictures() -> dict[str, Tensor]:
    """`(1, 1, 2048, 2048)` each, in [0, 1]."""
    images = image_data("auto").test_images[:, 1].float() / 255
    tiles = images[torch.arange((SIDE // PIECE + 1) ** 2) % len(images)]
    rows = tiles.view(SIDE // PIECE + 1, SIDE // PIECE + 1, PIECE, PIECE).transpose(1, 2).flatten(0, 1).flatten(1)
    found = {"mosaic": rows[None, None, :SIDE, :SIDE]}
    for package, file in TEST_PHOTOGRAPHS:
        image = read_image(bundled(package, file))[None, 1:2].float() / 255
        found[file] = interpolate(image, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)
    return found


def iterate(noisy: Tensor, weight: float, schedule: Schedule) -> list[Outcome]:
    """The ends of solves that have as many iterations as a schedule, and no others to choose from."""
    plan = match(TVDenoising(noisy, weight), 1e-3)
    if not isinstance(plan, Denoising):
        raise SystemExit("nothing is compiled here")
    alone = Schedule(schedule.values, schedule.coarse, [[-100.0] * PLACES] * kernels.library().FORMS)
    return list(plan.solve(1e-12, schedule.iterations, None, table=table_of([alone])).outcomes)


def gap(noisy: Tensor, weight: float, horizon: int) -> float:
    pairs = {(schedule.iterations, schedule.coarse): schedule for schedule in schedules.denoising()}
    ends = iterate(noisy, weight, pairs[horizon, True])
    return float(torch.tensor([end.gap / (end.value - end.gap) for end in ends]).median())


def pieces(noisy: Tensor) -> Tensor:
    places = range(100, SIDE - PIECE, 480)
    return torch.cat([noisy[:, :, i : i + PIECE, j : j + PIECE] for i in places for j in places])


def nanoseconds(side: int, clock: Callable[[], float]) -> float:
    """Of one iteration on one pixel."""
    noisy = torch.rand(1, 1, side, side)
    best = {16: float("inf"), 80: float("inf")}
    for _ in range(max(5, 40 * 256**2 // side**2)):
        for count in best:
            k = torch.arange(count, dtype=torch.float64)
            values = torch.stack([torch.ones_like(k), k / (k + 3)])[:, None].repeat(1, NODES, 1)
            begun = clock()
            iterate(noisy, 0.3, Schedule(values, False, ()))
            best[count] = min(best[count], clock() - begun)
    return 1e9 * (best[80] - best[16]) / (64 * side**2)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weight", type=float, default=0.3)
    parser.add_argument("--horizons", default="19,42")
    parser.add_argument("--cpu", action="store_true", help="seconds of CPU, one thread")
    args = parser.parse_args()
    if args.cpu:
        torch.set_num_threads(1)
    clock, behind = time.thread_time if args.cpu else time.perf_counter, False
    costs = {side: nanoseconds(side, clock) for side in (256, 512, 1024, SIDE)}
    print("ns per pixel and iteration:", ", ".join(f"{side}: {cost:.3f}" for side, cost in costs.items()))
    print("| picture | horizon | gap at 2048 | of its pieces of 96 | ratio |\n|---|---|---|---|---|")
    for name, picture in pictures().items():
        noisy = add_noise(picture, 0.05, torch.Generator().manual_seed(0))
        for horizon in map(int, args.horizons.split(",")):
            large, small = gap(noisy, args.weight, horizon), gap(pieces(noisy), args.weight, horizon)
            behind |= large > 1.3 * small
            print(f"| {name} | {horizon} | {large:.2e} | {small:.2e} | {large / small:.2f} |", flush=True)
    return int(behind or costs[SIDE] > costs[256])


if __name__ == "__main__":
    sys.exit(main())
