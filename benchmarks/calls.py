"""What calls cost on one small image: whole solves to a tolerance, the problem itself, and a run that is watched.

    python benchmarks/calls.py [--noise 20] [--weight 0.05] [--isotropic] [--count 3]

Crops of 96 x 96 pixels of scikit-image's photographs. Ours is `lmd.solve` with its certificate, FGP the same call with
`solver=FGP(restart=True)`; the fastest of many calls, in microseconds, one method after the other again and again. Then
a watched run of 20 iterations with its history over the same without. Last, times added up over the images, FGP over
ours: to each *proven* gap, and to each *true* one, for which of each method the fastest call counts that gets there,
whatever tolerance it was asked for.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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


GAPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


class Row(NamedTuple):
    """A tolerance: microseconds of ours and of FGP, and the true gaps of their answers."""

    times: list[float]
    gaps: list[float]


def true_gaps(problem: TVDenoising, answers: list[torch.Tensor]) -> list[float]:
    """Relative to the minimum, from float64."""
    exact = TVDenoising(problem.noisy.double(), problem.weight.double(), problem.isotropic)
    least = float(lmd.solve(exact, 1e-8).certificate.lower_bound)
    return [float(exact.value(x.double())) / least - 1 for x in answers]


def measured(problem: TVDenoising) -> list[Row]:
    """Each tolerance on one image."""
    classical, rows = FGP(restart=True), []
    for tolerance in GAPS:

        def solve(tolerance: float = tolerance, **options: Any) -> Any:
            result = lmd.solve(problem, tolerance, **options)
            return result, float(result.certificate.bound[0])

        answers = [solve(**options)[0] for options in ({}, {"solver": classical})]
        times = fastest(solve, lambda solve=solve: solve(solver=classical))
        rows.append(Row(times, true_gaps(problem, [each.x for each in answers])))
        told = [
            f"{microseconds:7.0f} us ({int(answer.iterations)}, truly at {gap:.1e})"
            for microseconds, answer, gap in zip(times, answers, rows[-1].gaps, strict=True)
        ]
        print(f"to {tolerance:.0e}: {told[0]}, FGP {told[1]}: {times[1] / times[0]:.2f} times", flush=True)
    return rows


def sums(images: list[list[Row]], true: bool) -> list[float]:
    """FGP over ours at each gap, of times added up over the images."""
    found = []
    for place, gap in enumerate(GAPS):
        totals = [0.0, 0.0]
        for rows in images:
            for method in (0, 1):
                there = [row.times[method] for row in rows if row.gaps[method] <= gap]
                totals[method] += min(there, default=float("inf")) if true else rows[place].times[method]
        found.append(totals[1] / totals[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--noise", type=float, default=20.0)
    parser.add_argument("--weight", type=float, default=0.05)
    parser.add_argument("--isotropic", action="store_true")
    parser.add_argument("--count", type=int, default=3)
    given = parser.parse_args()
    learned, tables = lmd.zoo.load("denoise-20"), []
    for y in images(given.count, given.noise):
        problem = TVDenoising(y, given.weight, given.isotropic)
        tables.append(measured(problem))
        anew, whole, watched = fastest(
            lambda y=y: TVDenoising(y, given.weight, given.isotropic),
            lambda problem=problem: lmd.run(learned, problem, iterations=20, record=False),
            lambda problem=problem: lmd.run(learned, problem, iterations=20),
        )
        print(
            f"a problem {anew:.0f} us; denoise-20 {whole:.0f} us, watched {watched:.0f} us: {watched / whole:.2f} times"
        )
    for word, true in (("proven", False), ("true", True)):
        print(f"FGP over ours, {word:6s}", *(f"{ratio:6.2f}" for ratio in sums(tables, true)))


if __name__ == "__main__":
    main()
