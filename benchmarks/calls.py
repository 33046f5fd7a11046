"""What calls cost on one small image: whole solves to a tolerance, the problem itself, and a run that is watched.

    python benchmarks/calls.py [--noise 20] [--weight 0.05] [--isotropic] [--count 3]

Crops of 96 x 96 pixels of scikit-image's photographs. Ours is `lmd.solve` with its certificate, FGP the same call with
`solver=FGP(restart=True)`; the fastest of many calls, in microseconds, one method after the other again and again. Last
comes a watched run of 20 iterations with its history over the same without.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from skimage import data

import lmd
from lmd.problems import TVDenoising
from lmd.solvers import FGP


def images(count: int, noise: float) -> Iterator[torch.Tensor]:
    """Noisy images `(1, 3, 96, 96)`."""
    generator = torch.Generator().manual_seed(0)
    for picture in (data.astronaut, data.chelsea, data.coffee)[:count]:
        clean = torch.tensor(np.moveaxis(picture()[60:156, 120:216], -1, 0).copy()).float() / 255
        yield (clean + noise / 100 * torch.randn(clean.shape, generator=generator))[None]


def fastest(*calls: Callable[[], Any], seconds: float = 0.6) -> list[float]:
    """The least microseconds of each, called in short turns."""
    least, end = [float("inf")] * len(calls), time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for place, call in enumerate(calls):
            for _ in range(3):
                begun = time.perf_counter()
                call()
                least[place] = min(least[place], 1e6 * (time.perf_counter() - begun))
    return least


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--noise", type=float, default=20.0)
    parser.add_argument("--weight", type=float, default=0.05)
    parser.add_argument("--isotropic", action="store_true")
    parser.add_argument("--count", type=int, default=3)
    given = parser.parse_args()
    classical, learned = FGP(restart=True), lmd.zoo.load("denoise-20")
    for y in images(given.count, given.noise):
        problem = TVDenoising(y, given.weight, given.isotropic)
        for tolerance in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):

            def solve(tolerance: float = tolerance, problem: TVDenoising = problem, **options: Any) -> Any:
                result = lmd.solve(problem, tolerance, **options)
                return result, float(result.certificate.bound[0])

            ours, theirs = fastest(solve, lambda solve=solve: solve(solver=classical))
            counts = [int(solve(**options)[0].iterations) for options in ({}, {"solver": classical})]
            told = f"{ours:9.0f} us ({counts[0]}), FGP {theirs:9.0f} us ({counts[1]}): {theirs / ours:.2f} times"
            print(f"to {tolerance:.0e}: {told}", flush=True)
        anew, whole, watched = fastest(
            lambda y=y: TVDenoising(y, given.weight, given.isotropic),
            lambda problem=problem: lmd.run(learned, problem, iterations=20, record=False),
            lambda problem=problem: lmd.run(learned, problem, iterations=20),
        )
        print(
            f"a problem {anew:.0f} us; denoise-20 {whole:.0f} us, watched {watched:.0f} us: {watched / whole:.2f} times"
        )


if __name__ == "__main__":
    main()
