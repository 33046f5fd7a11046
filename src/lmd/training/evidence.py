"""What a promise about a class is made from: instances drawn one by one, and gaps to minima that are proven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmd.errors import LmdError
from lmd.guarantees.lower_bounds import in_float64, lower_bounds
from lmd.guarantees.promise import Promise, promise
from lmd.guarantees.reference import optimum
from lmd.problems.base import Family, Problem
from lmd.solvers import Solver, Status
from lmd.solvers.run import run
from lmd.training.instances import draw, find_optima
from lmd.training.stacking import stack_instances

PROOF_SHARE = 0.1
"""How much of the target may be open about a minimum."""

FAILED = (Status.DIVERGED, Status.NOT_FINITE)
"""How runs end that have not made all of their iterations."""

MIN_SHARE = 0.5
"""Less than this share of a class is not promised."""


class UnprovenError(LmdError):
    """Minima that are not proven; the message says of what and why."""


def draw_apart(family: Family, seeds: Sequence[int], like: Tensor) -> list[tuple[Problem, Tensor]]:
    """Held-out instances, each drawn by itself from a generator of its own, in as few batches as they stack into.

    Drawn together, instances may share data, such as one random matrix for all of a batch: they are not independent.
    """
    return stack_instances([draw(family, 1, seed, held_out=True, like=like) for seed in seeds])


def try_promise(
    solver: Solver[Any], batches: Sequence[tuple[Problem, Tensor]], target: float, iterations: int
) -> tuple[Promise | None, str]:
    """Return a promise from instances that nothing else has seen, and its text; or None, and why there is none.

    Args:
        solver: As it is handed to the user.
        batches: From `draw_apart`.
        target: The relative gap to promise.
        iterations: After so many, at least 1.
    """
    try:
        _check_different(batches)
        gaps = [bound_gaps(solver, problem, x0, target, iterations) for problem, x0 in batches]
    except UnprovenError as error:
        return None, f"no promise: {error}"
    made = promise(torch.cat(gaps), target, iterations)
    if made.share < MIN_SHARE:
        reached = f"{made.within} of {made.runs} test instances are within {target:g} after {iterations} iterations"
        return None, f"no promise: only {reached}"
    return made, str(made)


def _check_different(batches: Sequence[tuple[Problem, Tensor]]) -> None:
    """Raise where all generators gave one and the same instance."""
    problem, x0 = batches[0]
    if len(batches) > 1 or len(x0) == 1 or not torch.equal(x0, x0[:1].expand_as(x0)):
        return
    points = x0 + torch.linspace(0.1, 1, x0[0].numel(), dtype=x0.dtype, device=x0.device).reshape(1, *x0.shape[1:])
    values = problem.relaxed_value(points)[0]
    if torch.equal(values, values[:1].expand_as(values)):
        raise UnprovenError("held_out gives the same instance for every generator")


@torch.no_grad()
def bound_gaps(solver: Solver[Any], problem: Any, x0: Tensor, target: float, iterations: int) -> Tensor:
    """Bounds on the relative gaps `(B,)` of a run, never below the true ones; those of points outside add how far.

    Infinite where `run` stops because values rise too far: then the iterations that are promised are not made.
    """
    result = run(solver, problem, x0, iterations)
    failed = torch.tensor([status in FAILED for status in result.status], dtype=torch.bool, device=x0.device)
    x = result.x.double()
    exact, low, high = _enclose_minima(problem, x0, PROOF_SHARE * target)
    values, violation = exact.relaxed_value(x)
    inside = violation == 0
    if bool((inside & (values < low - PROOF_SHARE * target * low.abs())).any()):
        raise UnprovenError("values are below the minima that the problem says it has")
    rise = torch.where(inside, (values - low).clamp(min=0), torch.maximum(values - low, high - values))
    size = torch.linalg.vector_norm(x.flatten(1), dim=1).clamp(min=torch.finfo(x.dtype).tiny)
    gaps = rise / torch.maximum(low, -high) + violation / size
    return torch.where(gaps.isnan() | failed, torch.inf, gaps)


def _enclose_minima(problem: Any, x0: Tensor, accuracy: float) -> tuple[Any, Tensor, Tensor]:
    """The problem in float64, and bounds of each minimum, below and above, this close relative to it."""
    exact = in_float64(problem, x0)
    if exact is None:
        raise UnprovenError("minima cannot be proven in float32; give the problem a method `double`")
    x, dual = find_optima(problem, x0)
    x = x.double()
    width = accuracy * exact.relaxed_value(x)[0].abs()
    x, low = lower_bounds(exact, x, None if dual is None else dual.double(), width)
    high = exact.value(x)
    open_ones = ~_is_proven(low, high, accuracy)
    for i in open_ones.nonzero().flatten().tolist():
        try:
            found = optimum(exact.select(i))
        except (LmdError, RuntimeError):
            break
        low[i], high[i] = found.bound[0], found.infimum[0]
        if not bool(_is_proven(low[i], high[i], accuracy)):
            break
    if not bool((proven := _is_proven(low, high, accuracy)).all()):
        left = f"{int((~proven).sum())} of {len(x0)}"
        reason = f"the minima of {left} test instances are not proven to {accuracy:g}"
        advice = "a composite problem, a strong_convexity or a bounded domain would prove them"
        raise UnprovenError(f"{reason}; {advice}")
    return exact, low, high


def _is_proven(low: Tensor, high: Tensor, accuracy: float) -> Tensor:
    """Whether a minimum between two bounds is known to this accuracy, relative to it; never where it may be 0."""
    size = torch.maximum(low, -high)
    return (size > 0) & (high - low <= accuracy * size)
