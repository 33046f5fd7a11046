"""The certified optimum of any problem that has a closed form or a dual."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lmd.core.batching import to_double
from lmd.errors import CapabilityError, LmdError
from lmd.guarantees import reference_linear
from lmd.guarantees.optimum import Optimum, OptimumCache, Pair
from lmd.problems.base import Problem, offers
from lmd.problems.composite import Composite
from lmd.solvers.classical.pdhg import RelaxedPDHG
from lmd.terms import Box, Squares

GOAL, TOLERANCE = 1e-8, 1e-6  # relative gaps to look for, and to accept after `PATIENCE` iterations and from a cache
INTERVAL, PATIENCE, MAX_ITERATIONS = 50, 5_000, 200_000  # iterations of one gap evaluation, and of a search
ROUNDING = 1e-15  # a gap of this beside the value at 0 is rounding: a minimum of 0 has no relative gap
SMOOTHEST_NEEDS = ("differences", "mask", "weight", "scale", "clip")
PULLS = (1.0, 1 / 4, 1 / 16)  # e of `smoothest_problem` that are tried; on photographs it is exact below some 1.5
SMOOTHEST_GOAL, SMOOTHEST_TOLERANCE = 1e-6, 1e-5  # as above, of ||Kx||^2; the second is also that of f


def optimum(problem: Problem, cache: OptimumCache | None = None) -> Optimum:
    """Return the certified optimum of each instance: in closed form, or by an algorithm for its class of problems.

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

    Proven in two stages: kept pixels by the duality gap of the problem, lost ones by that of `smoothest_problem`. The
    value of the answer is within 1e-5 of the minimum.

    Args:
        problem: One that `optimum` has a method for.
        cache: Where optima are read and written; None for nowhere.
    """
    lost = offers(problem, SMOOTHEST_NEEDS) and problem.mask is not None and not bool((problem.mask > 0).all())
    if not lost:
        return minimiser(problem, cache)
    found, exact = optimum(problem, cache), to_double(problem, "cpu")
    answers = [_smoothest(exact.select(i), found.x[[i]], found.bound[i]) for i in range(len(found.x))]
    return torch.cat(answers).to(problem.noisy)


def _smoothest(problem: Any, x: Tensor, bound: Tensor) -> Tensor:
    for pull in PULLS:
        answer, _ = _solve_composite(smoothest_problem(problem, x, pull), SMOOTHEST_GOAL, SMOOTHEST_TOLERANCE)
        if bool(problem.value(answer) <= bound * (1 + SMOOTHEST_TOLERANCE)):
            return answer
    raise LmdError(f"{type(problem).__name__}: no certified smoothest minimiser, all that were found are too rough")


def smoothest_problem(problem: Any, x: Tensor, pull: float = PULLS[0]) -> Composite:
    r"""Return the problem min g(Kz) + e/2 ||Kz||^2 over z with the kept pixels of x, in the box of all minimisers.

    x `(B, ...)` is a minimiser of the problem and g its regulariser, s weight TV. g is polyhedral in the anisotropic
    form, so that for every e small enough the z of least g which is smoothest comes out, and not only as e falls to 0
    ([Friedlander and Tseng 2007](https://doi.org/10.1137/060675320)). `pull` is e in units of s weight / range of x.
    """
    K, kept = problem.differences, problem.mask.expand_as(x) > 0
    e = pull * problem.scale * float(problem.weight.mean()) / (float(x.max() - x.min()) or 1.0)
    low, high = (torch.where(kept, x, problem.clip(torch.full_like(x, end))) for end in (-torch.inf, torch.inf))
    return Composite(Box(low, high), (problem.g, K), (Squares(torch.zeros_like(K(x)), e / 2), K), start=x)


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
    """Return the optimum of a batch of one in float64, by an algorithm for its class of problems."""
    if offers(problem, reference_linear.SVM_NEEDS):
        return reference_linear.solve_svm(problem)
    if offers(problem, reference_linear.CLASSIFIER_NEEDS):
        return reference_linear.solve_classifier(problem)
    if not offers(problem, (*RelaxedPDHG().needs, "gap")):
        accepted = "one with a minimiser in closed form, or a composite problem, an SVM or a linear classifier"
        raise CapabilityError("problem", f"{type(problem).__name__}, which no reference method is for", accepted)
    found = None if cache is None else cache.read(problem)
    if found is None or not is_proven(problem, *found, TOLERANCE):
        found = _solve_composite(problem, GOAL, TOLERANCE)
        if cache is not None:
            cache.write(problem, *found)
    return Optimum.from_dual(problem, *found)


@torch.no_grad()
def _solve_composite(problem: Any, goal: float, tolerance: float) -> Pair:
    """Return a point and a dual point that prove a relative gap of `goal`, or of `tolerance` where that takes long."""
    solver, gap = RelaxedPDHG(), math.nan
    state = solver.init(problem, problem.start())
    for done in range(INTERVAL, MAX_ITERATIONS + 1, INTERVAL):
        state = solver.advance(problem, state, INTERVAL)
        if is_proven(problem, state.x, state.dual, goal if done < PATIENCE else tolerance):
            return state.x, state.dual
        gap = float(problem.relative_gap(state.x, state.dual))
    raise LmdError(f"{type(problem).__name__}: no certified minimiser, the relative duality gap stays at {gap:.1e}")


def is_proven(problem: Composite, x: Tensor, dual: Tensor, tolerance: float) -> bool:
    """Return whether the duality gap proves x a minimiser, to a relative tolerance or to rounding; never for a NaN."""
    if float(problem.relative_gap(x, dual)) <= tolerance:
        return True
    size = float(problem.value(torch.zeros_like(x)))  # infinite where 0 breaks a constraint
    return math.isfinite(size) and float(problem.gap(x, dual)) <= ROUNDING * size
