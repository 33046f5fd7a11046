"""The certified optimum of any problem that has a closed form or a reference method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.core.batching import to_double
from lmd.errors import CapabilityError
from lmd.guarantees import reference_linear, reference_tv
from lmd.guarantees.optimum import Effort, Optimum, OptimumCache, Pair, first_proven, is_proven
from lmd.problems.base import Problem, offers
from lmd.solvers.classical.pdhg import PDHG

PDHG_INTERVAL, LASSO_INTERVAL = 50, 10  # iterations from one gap evaluation to the next


def optimum(problem: Problem, cache: OptimumCache | None = None) -> Optimum:
    """Return the certified optimum of each instance: in closed form, or by the method for what the problem offers.

    Args:
        problem: One with a minimiser in closed form, a composite problem, an SVM or a linear classifier.
        cache: Where optima of composite problems are read and written; None for nowhere.

    >>> import lmd
    >>> problem = lmd.problems.TVDenoising(torch.tensor([[[[0.0, 1.0]]]]), weight=0.5)
    >>> found = optimum(problem)
    >>> found.x.flatten().round(decimals=4), bool(found.gap <= 1e-8 * found.value)
    (tensor([0.2500, 0.7500], dtype=torch.float64), True)
    """
    exact: Problem = to_double(problem, "cpu")
    if offers(problem, ("minimiser",)):
        x = exact.minimiser()
        return Optimum.of(x, value := exact.value(x), value)
    chosen, places = _distinct(exact)
    found = [_solve(exact.select(i), cache) for i in chosen]
    return Optimum(*(torch.cat([getattr(one, name) for one in found])[places] for name in vars(found[0])))


def minimum(problem: Problem, cache: OptimumCache | None = None) -> Tensor:
    """Return the certified infima `(B,)`, in the dtype and on the device of the problem.

    Args:
        problem: One that `optimum` has a method for.
        cache: Where optima are read and written; None for nowhere.
    """
    return optimum(problem, cache).infimum.to(_data(problem))


def minimiser(problem: Problem, cache: OptimumCache | None = None) -> Tensor:
    """Return the certified minimisers `(B, ...)`, in the dtype and on the device of the problem.

    Args:
        problem: One that `optimum` has a method for.
        cache: Where optima are read and written; None for nowhere.
    """
    found = optimum(problem, cache)
    if not bool(found.attained.all()):
        given = f"{type(problem).__name__}, of which instance {int(found.attained.int().argmin())} has no minimiser"
        raise CapabilityError("problem", given, "functions that attain their infimum, such as those with a ridge")
    return found.x.to(_data(problem))


def smoothest_minimiser(problem: Any, cache: OptimumCache | None = None) -> Tensor:
    """Return the minimiser whose sum of squares ||Kx||^2 is least, `(B, ...)`, in the dtype and on the device of it.

    TV inpainting has many minimisers: kept pixels are the same in all of them, but a lost one may be anything between
    the middle two of its four neighbours. They form a convex set, in which ||Kx||^2 has one least point, as some pixel
    is kept. Where a problem has no lost pixels, its minimiser is this.

    Proven in two stages: kept pixels by the duality gap of the problem, lost ones by that of
    `reference_tv.second_stage`. The value of the answer is within 1e-5 of the minimum.

    Args:
        problem: One that `optimum` has a method for.
        cache: Where optima are read and written; None for nowhere.
    """
    needs = reference_tv.SECOND_STAGE_NEEDS
    lost = offers(problem, needs) and problem.mask is not None and not bool((problem.mask > 0).all())
    if not lost:
        return minimiser(problem, cache)
    found, exact = optimum(problem, cache), to_double(problem, "cpu")
    answers = [
        reference_tv.smoothest(exact.select([i]), found.x[i : i + 1], found.bound[i : i + 1])
        for i in range(len(found.x))
    ]
    return torch.cat(answers).to(problem.noisy)


def _data(problem: Problem) -> Tensor:
    return next(x for x in vars(problem).values() if isinstance(x, Tensor) and x.dtype.is_floating_point)


def _distinct(problem: Problem) -> tuple[list[int], list[int]]:
    """Return which instances to solve, and for each instance its place among them: those of one data set are equal."""
    subset = getattr(problem, "subset", None)
    if subset is None:
        every = list(range(problem.batch_size or 1))
        return every, every
    sets = subset.tolist()
    chosen = list(dict.fromkeys(sets))
    return [sets.index(k) for k in chosen], [chosen.index(k) for k in sets]


def _solve(problem: Any, cache: OptimumCache | None) -> Optimum:
    """Return the optimum of a batch of one in float64, by the first method whose needs the problem offers."""
    if offers(problem, reference_linear.SVM_NEEDS):
        return reference_linear.solve_svm(problem)
    if offers(problem, reference_linear.CLASSIFIER_NEEDS):
        return reference_linear.solve_classifier(problem)
    method = next((method for method in METHODS if offers(problem, method.needs)), None)
    if method is None:
        accepted = "one with a minimiser in closed form, or a composite problem, an SVM or a linear classifier"
        raise CapabilityError("problem", f"{type(problem).__name__}, which no reference method is for", accepted)
    found = None if cache is None else cache.read(problem)
    if found is None or not is_proven(problem, *found, method.effort.tolerance):
        found = first_proven(problem, method.iterates(problem), method.effort)
        if cache is not None:
            cache.write(problem, *found)
    return Optimum.from_dual(problem, *found)


def _lasso(problem: Any) -> Iterator[Pair]:
    """Yield points x and dual points Ax - b by accelerated proximal gradient steps.

    [Beck and Teboulle 2009](https://doi.org/10.1137/080716542); momentum restarts when it points uphill.
    """
    step = 1 / problem.operator.norm**2
    x = ahead = problem.start()
    momentum = 1.0
    while True:
        yield x, problem.operator(x) - problem.b
        for _ in range(LASSO_INTERVAL):
            new = problem.data_prox(ahead - step * problem.misfit_gradient(ahead), step)
            uphill = float(((ahead - new) * (new - x)).sum()) > 0
            following = 1.0 if uphill else (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = new if uphill else new + ((momentum - 1) / following) * (new - x)
            x, momentum = new, following


def _primal_dual(problem: Any) -> Iterator[Pair]:
    """Yield points and dual points of PDHG."""
    solver = PDHG(settle=8.0)
    state = solver.init(problem, problem.start())
    while True:
        for _ in range(PDHG_INTERVAL):
            state = solver.step(problem, state)
        yield state.x, state.dual


class Method(NamedTuple):
    """A method for one composite problem in float64: what it needs, and points with dual points that get better."""

    needs: tuple[str, ...]
    iterates: Callable[[Any], Iterator[Pair]]
    effort: Effort


METHODS = (
    Method(reference_tv.RECONSTRUCTION_NEEDS, reference_tv.reconstruction, reference_tv.RECONSTRUCTION_EFFORT),
    Method(reference_tv.DENOISING_NEEDS, reference_tv.denoising, reference_tv.DENOISING_EFFORT),
    Method(
        ("operator", "b", "misfit_gradient", "data_prox"),
        _lasso,
        Effort(1e-9, 1e-6, patience=100_000 // LASSO_INTERVAL, evaluations=100_000 // LASSO_INTERVAL),
    ),
    Method(
        (*PDHG().needs, "start", "gap", "relative_gap"),
        _primal_dual,
        Effort(1e-8, 1e-6, patience=20_000 // PDHG_INTERVAL, evaluations=200_000 // PDHG_INTERVAL),
    ),
)
"""The first whose needs a problem offers is taken."""
