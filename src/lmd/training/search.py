"""Few numbers of a solver by random search on what they are for: how many iterations it takes to accuracies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lmd.solvers import Solver
from lmd.training.instances import Instances
from lmd.training.measure import curve

FIRST, SHORTEST, LONGEST = 0.5, 0.1, 1.0
"""How far changes of logarithms go, at first, at least and at most."""

LONGER, SHORTER = 1.3, 0.93
"""What that is multiplied by after a change for the better, and after one for the worse."""

PATIENCE = 1.3
"""A change is not looked at for more iterations than so many times those that were best."""

MOST = 200
"""Iterations to begin with."""


def search_(
    solver: Solver[Any],
    part: Any,
    rows: Sequence[int],
    keep: Callable[[], None],
    instances: Instances,
    accuracies: Sequence[float],
    trials: int,
    seed: int,
) -> None:
    """Change the numbers of `part` of a solver, in place: those of one of its `rows` after the other, by normal moves.

    What lowers the sum of the logarithms of iterations until 95% of the instances are within each of the accuracies,
    in decreasing order, stays. `keep` is called when numbers have changed. Counts and quantiles have no derivatives.
    """
    generator, far = torch.Generator().manual_seed(seed), dict.fromkeys(rows, FIRST)
    directions = part.search_directions()
    best, most = _score(solver, instances, accuracies, MOST)
    for trial in range(trials):
        row, before = rows[trial % len(rows)], part.state_dict()
        before = {name: tensor.clone() for name, tensor in before.items()}
        part.move_(
            row,
            far[row]
            * torch.randn(len(directions), generator=generator, dtype=torch.float64, device="cpu").to(directions)
            @ directions,
        )
        keep()
        score, length = _score(solver, instances, accuracies, math.ceil(PATIENCE * most))
        if score < best:
            best, most = score, length
            far[row] = min(LONGEST, LONGER * far[row])
        else:
            part.load_state_dict(before)
            far[row] = max(SHORTEST, SHORTER * far[row])
    keep()


def climb(
    sizes: Sequence[int], first: Sequence[int], rank: Callable[[tuple[int, ...]], tuple[float, float]]
) -> tuple[int, ...]:
    """Return the places on some axes, of which each has a size, that no step along one of them makes better.

    From the first places, by strides of two along axes of more than four places, then by single steps, as long as ranks
    fall. Every place is ranked once.
    """
    known: dict[tuple[int, ...], tuple[float, float]] = {}

    def ranked(places: tuple[int, ...]) -> tuple[float, float]:
        if places not in known:
            known[places] = rank(places)
        return known[places]

    best, before = tuple(first), None
    for stride in (2, 1):
        while best != before:
            before = best
            for axis, size in enumerate(sizes):
                for step in (stride, -stride) if size > 4 else (1, -1):
                    while 0 <= (place := best[axis] + step) < size:
                        moved = (*best[:axis], place, *best[axis + 1 :])
                        if not ranked(moved) < ranked(best):
                            break
                        best = moved
        before = None
    return best


def _score(solver: Solver[Any], instances: Instances, accuracies: Sequence[float], most: int) -> tuple[float, int]:
    """The sum of the logarithms of the iterations to each accuracy, between two where it is met, and all of them."""
    quantiles = curve(solver, [instances], most, accuracies[-1])
    return sum(math.log(1 + _crossing(quantiles, accuracy)) for accuracy in accuracies), len(quantiles) - 1


def _crossing(quantiles: Sequence[float], accuracy: float) -> float:
    """Where the logarithms of the quantiles, joined by lines, meet an accuracy; far off where they do not."""
    levels = [math.log(max(each, 1e-30) / accuracy) for each in quantiles]
    after = next((k for k, level in enumerate(levels) if level <= 0), None)
    if after is None:
        return (len(levels) + MOST) * (1 + min(max(levels[-1], 0.0), 1e3))
    return after - 1 + levels[after - 1] / (levels[after - 1] - levels[after]) if after else 0.0
