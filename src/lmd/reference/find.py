"""The optimum of any problem that one of the reference methods, or a closed form, is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmd.core.batching import doubled
from lmd.errors import CapabilityError
from lmd.problems.base import Problem, offers
from lmd.reference import composite, lasso, linear_classifier, reconstruction, svm, total_variation
from lmd.reference.cache import Cache
from lmd.reference.optimum import Optimum
from lmd.reference.proof import certified, first_proven, proven


def optimum(problem: Problem, cache: Cache | None = None) -> Optimum:
    """The certified optimum of each instance: in closed form, or by the method for what the problem offers.

    With a `cache`, the optima of composite problems are read there, and written; without, nothing is.

    Args:
        problem: One with a minimiser in closed form, a composite problem, an SVM or a linear classifier.
        cache: Where optima are read and kept; None for nowhere.

    >>> import lmd
    >>> problem = lmd.problems.TVDenoising(torch.tensor([[[[0.0, 1.0]]]]), weight=0.5)
    >>> found = optimum(problem)
    >>> found.x.flatten().round(decimals=4), bool(found.gap <= 1e-8 * found.value)
    (tensor([0.2500, 0.7500], dtype=torch.float64), True)
    """
    exact: Problem = doubled(problem, "cpu")
    if offers(problem, ("minimiser",)):
        x = exact.minimiser()
        return Optimum.of(x, value := exact.value(x), value)
    solve = next((method for needs, method in METHODS if offers(problem, needs)), None)
    if solve is None:
        accepted = "one with a minimiser in closed form, or a composite problem, an SVM or a linear classifier"
        raise CapabilityError("problem", f"{type(problem).__name__}, which no reference method is for", accepted)
    chosen, whose = _distinct(exact)
    found = [solve(exact.select(i), cache) for i in chosen]
    return Optimum(*(torch.cat([getattr(one, name) for one in found])[whose] for name in vars(found[0])))


def minimum(problem: Problem, cache: Cache | None = None) -> Tensor:
    """The certified infima `(B,)`, in the dtype of the problem and where it is.

    Args:
        problem: One that `optimum` has a method for.
        cache: Where optima are read and kept; None for nowhere.
    """
    return optimum(problem, cache).infimum.to(_data(problem))


def minimiser(problem: Problem, cache: Cache | None = None) -> Tensor:
    """The certified minimisers `(B, ...)`, in the dtype of the problem and where it is.

    Args:
        problem: One that `optimum` has a method for.
        cache: Where optima are read and kept; None for nowhere.
    """
    found = optimum(problem, cache)
    if not bool(found.attained.all()):
        given = f"{type(problem).__name__}, of which instance {int(found.attained.int().argmin())} has no minimiser"
        raise CapabilityError("problem", given, "functions that attain their infimum, such as those with a ridge")
    return found.x.to(_data(problem))


def _data(problem: Problem) -> Tensor:
    return next(x for x in vars(problem).values() if isinstance(x, Tensor) and x.dtype.is_floating_point)


def _distinct(problem: Problem) -> tuple[list[int], list[int]]:
    """Which instances to solve, and in whose place of these each instance is: those on one data set are the same."""
    subset = getattr(problem, "subset", None)
    if subset is None:
        every = list(range(problem.batch_size or 1))
        return every, every
    sets = subset.tolist()
    chosen = list(dict.fromkeys(sets))
    return [sets.index(k) for k in chosen], [chosen.index(k) for k in sets]


def _by_dual(method: Any, problem: Any, cache: Cache | None) -> Optimum:
    """Read and proven again, or solved and written."""
    found = None if cache is None else cache.read(problem)
    if found is None or not proven(problem, *found, method.EFFORT.tolerance):
        found = first_proven(problem, method.iterates(problem), method.EFFORT)
        if cache is not None:
            cache.write(problem, *found)
    return certified(problem, *found)


def _by_itself(method: Any, problem: Any, cache: Cache | None) -> Optimum:
    """By a method that proves its own answers, in less time than reading them takes."""
    found: Optimum = method.solve(problem)
    return found


METHODS: tuple[tuple[tuple[str, ...], Callable[[Any, Cache | None], Optimum]], ...] = (
    *((method.NEEDS, partial(_by_itself, method)) for method in (svm, linear_classifier)),
    *((method.NEEDS, partial(_by_dual, method)) for method in (reconstruction, total_variation, lasso, composite)),
)
"""What a method needs of a problem, and the method, for a batch of one in float64; the first that fits is taken."""
