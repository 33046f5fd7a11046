"""What certificate and safeguard cost: the time of a guarded, certified run over that of the learned solver alone.

    python benchmarks/guarantees.py [--repeats 7]

Solvers are untrained, which changes no time as long as their steps are accepted. The two runs alternate, so that
whatever else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import lmd
from lmd.guarantees import DescentSafeguard, Safeguard
from lmd.mirrors import ConvPair, Quadratic
from lmd.problems import LinearClassifier, Problem, TVDenoising, TVInpainting
from lmd.solvers import LearnedMirrorDescent, Solver

Case = tuple[str, Solver, Solver, Problem, torch.Tensor]


def imaging(name: str, problem: Problem, x0: torch.Tensor) -> Case:
    solver = LearnedMirrorDescent(ConvPair(channels=3), iterations=10)
    return name, solver, Safeguard(solver), problem, x0


def cases() -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, 96, 96, generator=generator)
    mask = (torch.rand(96, 96, generator=generator) < 0.8).float()
    features = torch.randn(2000, 50, generator=generator)
    labels = torch.randint(10, (2000,), generator=generator)
    classifier = LinearClassifier(features, labels, ridge=1e-3, starts=50)
    dense = LearnedMirrorDescent(Quadratic(500), iterations=10, initial_step=1.0, interval=(0.1, 2.0))
    start = torch.randn(50, 500, generator=generator)
    return [
        imaging("TV denoising, 4 images, Safeguard", TVDenoising(images, 0.3), images),
        imaging("TV inpainting, 4 images, Safeguard", TVInpainting(mask * images, mask, 0.3), images),
        ("linear classifier, 50 starts, DescentSafeguard", dense, DescentSafeguard(dense), classifier, start),
    ]


def seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def measure(case: Case, repeats: int) -> tuple[float, float]:
    """The medians of the learned run and of the guarded, certified one."""
    _, solver, guarded, problem, x0 = case

    def alone() -> None:
        lmd.solvers.run(solver, problem, x0, 10)

    def certified() -> None:
        assert lmd.run(guarded, problem, x0, 10).certificate is not None

    alone(), certified()  # warm up
    times = [(seconds(alone), seconds(certified)) for _ in range(repeats)]
    return statistics.median(a for a, _ in times), statistics.median(b for _, b in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    print(f"{'10 iterations':<50}{'alone, ms':>12}{'guarded, ms':>14}{'overhead':>10}")
    for case in cases():
        alone, guarded = measure(case, repeats)
        print(f"{case[0]:<50}{1e3 * alone:>12.1f}{1e3 * guarded:>14.1f}{guarded / alone - 1:>10.1%}")


if __name__ == "__main__":
    main()
