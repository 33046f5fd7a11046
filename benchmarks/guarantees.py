"""What certificate and safeguard cost: the time of a guarded, certified run over that of the learned solver alone.

    python benchmarks/guarantees.py [--repeats 7] [--only NAME]

Each solver that ships, guarded as `lmd.guarantees.guard` does it, for as many iterations as it was trained for; and
networks of the default size on images, which are untrained: that changes no time as long as their steps are accepted.
The two runs alternate, and the shortest time of each counts, so that whatever else the machine does matters least. The
last column is the same for a run that goes on to iteration 20, when a fall-back that started late has caught up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch

import lmd
from lmd.guarantees import DescentSafeguard, guard
from lmd.mirrors import ConvPair
from lmd.problems import Problem, TVDenoising, TVInpainting
from lmd.problems.image_families import TVDenoisingFamily
from lmd.reproduction import recipes
from lmd.reproduction.tasks.common import SolvedFamily
from lmd.solvers import LearnedMirrorDescent, Solver

Case = tuple[str, Solver, Solver, Problem, torch.Tensor]
LATER = 20


def guarded_case(name: str, solver: Solver, problem: Problem, x0: torch.Tensor) -> Case:
    guarded = guard(solver, problem)
    assert guarded is not None
    return f"{name}, {len(x0)} instances", solver, guarded, problem, x0


def cases(preset: str) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, 96, 96, generator=generator)
    mask = (torch.rand(96, 96, generator=generator) < 0.8).float()
    network = LearnedMirrorDescent(ConvPair(channels=3), iterations=10)
    yield guarded_case("networks on images, denoising", network, TVDenoising(images, 0.3), images)
    yield guarded_case("networks on images, inpainting", network, TVInpainting(mask * images, mask, 0.3), images)
    for name in lmd.zoo.names():
        family = recipes.recipe(name).family(preset)
        family = family.family if isinstance(family, SolvedFamily) else family
        if isinstance(family, TVDenoisingFamily):
            family.crop = 96
        problem, x0 = family.sample(4 if isinstance(family, TVDenoisingFamily) else 50, generator)
        solver = lmd.zoo.load(name, bare=True).to(x0.dtype)
        yield guarded_case(name, solver, problem, x0)
        if name == "linear-classifier":
            yield f"{name}, {len(x0)} instances, DescentSafeguard", solver, DescentSafeguard(solver), problem, x0


def seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def measure(case: Case, iterations: int, repeats: int) -> tuple[float, float]:
    """The shortest times of the learned run and of the guarded, certified one."""
    _, solver, guarded, problem, x0 = case

    def alone() -> None:
        lmd.solvers.run(solver, problem, x0, iterations)

    def certified() -> None:
        assert lmd.run(guarded, problem, x0, iterations).certificate is not None

    alone(), certified()  # warm up
    times = [(seconds(alone), seconds(certified)) for _ in range(repeats)]
    return min(a for a, _ in times), min(b for _, b in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--preset", choices=("quick", "standard"), default="standard", help="size of the problems")
    parser.add_argument("--only", default="", help="part of a name: only the cases that have it in theirs")
    arguments = parser.parse_args()
    print(f"{'':<60}{'alone, ms':>12}{'guarded, ms':>14}{'overhead':>10}{'at 20':>10}")
    for case in (case for case in cases(arguments.preset) if arguments.only in case[0]):
        alone, guarded = measure(case, case[1].horizon or 10, arguments.repeats)
        later = measure(case, LATER, max(1, arguments.repeats // 3))
        over = [f"{guarded / alone - 1:>10.1%}", f"{later[1] / later[0] - 1:>10.1%}"]
        print(f"{case[0]:<60}{1e3 * alone:>12.2f}{1e3 * guarded:>14.2f}{''.join(over)}", flush=True)


if __name__ == "__main__":
    main()
