"""Promises about a class of problems: exact binomial bounds from held-out runs, and a monitor that tests them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count, check_positive
from lmd.errors import InputError, LmdError
from lmd.guarantees.minima import approximate_optima, in_float64, lower_bounds, relative_gaps
from lmd.guarantees.reference import optimum
from lmd.problems.base import Problem
from lmd.solvers import Solver, Status
from lmd.solvers.run import run

MAX_OPEN_SHARE = 0.1  # maximum width of the bounds on a minimum, as a share of the target
MIN_SHARE = 0.5  # no promise is made for a smaller share of a class
BISECTIONS = 60  # enough for the precision of a double
TAIL_ERROR = 1e-9  # more than the relative rounding error of a binomial tail


@dataclass(frozen=True)
class Promise:
    """The promise that, with confidence 1 - delta, at least a `share` of a class reaches `target` after `iterations`.

    This holds for the distribution of the `runs` if they were drawn independently of each other, of the training and of
    the choice of the solver (Theorem 10 of docs/guarantees.md).

    Args:
        target: The relative gap to reach.
        iterations: The iterations of each run.
        runs: The number of held-out instances.
        within: The number of runs that reached the target.
        share: A lower bound on the share of the whole class.
        confidence: 1 - delta, the confidence that all promises made `together` hold.
        together: The number of promises made together, such as on one card.
    """

    target: float
    iterations: int
    runs: int
    within: int
    share: float
    confidence: float
    together: int = 1

    def __str__(self) -> str:
        said = f"within {self.target:g} of the minimum after {self.iterations} iterations"
        others = "" if self.together == 1 else f" for all {self.together} promises together"
        return f"with confidence {self.confidence:.0%}{others}, at least {self.share:.1%} of the class are {said}"


def promise(gaps: Tensor, target: float, iterations: int, confidence: float = 0.95, together: int = 1) -> Promise:
    """Return a promise about a class, from the relative gaps `(n,)` of held-out runs.

    The theorem requires gaps that are never below the true ones, and instances that were drawn independently, each with
    its own generator, because a family may share data within a batch. If several promises are made from the same runs,
    each has the confidence 1 - (1 - confidence) / together, so that all of them hold with `confidence` (Bonferroni).

    Args:
        gaps: Relative gaps `(n,)` of instances that were not used for training or choosing the solver.
        target: The relative gap to reach.
        iterations: The iterations of each run.
        confidence: The confidence, between 0 and 1.
        together: The number of promises made from these runs.

    >>> print(promise(torch.full((300,), 1e-4), target=1e-3, iterations=8))
    with confidence 95%, at least 99.0% of the class are within 0.001 of the minimum after 8 iterations
    """
    runs, within = gaps.numel(), int((gaps <= target).sum())
    share = least_share(within, runs, 1 - (1 - confidence) / check_count("together", together))
    return Promise(target, iterations, runs, within, share, confidence, together)


def least_share(within: int, runs: int, confidence: float = 0.95) -> float:
    r"""Return the largest p such that `within` successes in `runs` trials reject every smaller p at this confidence.

    p solves P(X >= within) = 1 - confidence for a binomial X, and is 0 if nothing succeeded ([Clopper and Pearson
    1934](https://doi.org/10.1093/biomet/26.4.404)). The probability that the true share is below p is at most
    1 - confidence, whatever the true share is.

    >>> round(least_share(299, 299), 3), least_share(0, 10)
    (0.99, 0.0)
    """
    check_count("runs", runs)
    check_count("within", within, least=0, most=runs)
    if not 0 < check_positive("confidence", confidence) < 1:
        raise InputError("confidence", confidence, "a number between 0 and 1")
    if within == 0:
        return 0.0
    counts = torch.arange(within, runs + 1, dtype=torch.float64, device="cpu")
    ways = math.lgamma(runs + 1) - (counts + 1).lgamma() - (runs - counts + 1).lgamma()
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        p = (low + high) / 2
        tail = float((ways + counts * math.log(p) + (runs - counts) * math.log1p(-p)).exp().sum())
        low, high = (p, high) if (1 + TAIL_ERROR) * tail <= 1 - confidence else (low, p)
    return low


class Monitor:
    r"""A test of whether a class still keeps a promise, from the gaps of new solves.

    A promise of a share p says that an instance misses the target with probability at most 1 - p. Let
    e = (1 + b) / (1 + b (1 - p)) for an instance that misses it and 1 / (1 + b (1 - p)) for one that does not; the mean
    of e is at most 1. Then S_t = e_t (S_{t-1} + 1 / t(t+1)) ever reaches 1 / delta with probability at most delta
    ([Ville 1939](http://www.numdam.org/item/THESE_1939__218__1_0/); Theorem 12 of docs/guarantees.md). So the test can
    be evaluated after every solve, and many early successes do not hide later failures.

    Args:
        promised: The promise about the class.
        delta: The probability that there is ever a false alarm.
        bet: b, positive. A larger bet notices large changes earlier and small ones later.

    >>> monitor = Monitor(promise(torch.full((300,), 1e-4), target=1e-3, iterations=8))
    >>> monitor.see(torch.full((1000,), 1e-4)), monitor.see(torch.full((20,), 1e-2))
    (False, True)
    """

    def __init__(self, promised: Promise, delta: float = 1e-3, bet: float = 4.0) -> None:
        self.promised, self.limit = promised, 1 / check_positive("delta", delta)
        fair = 1 + check_positive("bet", bet) * (1 - promised.share)
        self.within, self.outside = 1 / fair, (1 + bet) / fair
        self.seen, self.evidence = 0, 0.0

    @property
    def has_moved(self) -> bool:
        """Whether too many instances missed the target; if so, learn again on current instances."""
        return self.evidence >= self.limit

    def see(self, gaps: Tensor) -> bool:
        """Add the relative gaps `(n,)` of solves with `iterations` iterations; return whether the class has moved."""
        for outside in (~(gaps <= self.promised.target)).flatten().tolist():
            if self.has_moved:
                break
            self.seen += 1
            begun = self.evidence + 1 / (self.seen * (self.seen + 1))
            self.evidence = (self.outside if outside else self.within) * begun
        return self.has_moved


class UnprovenError(LmdError):
    """Raised if a minimum cannot be proven; the message says why."""


def try_promise(
    solver: Solver[Any], batches: Sequence[tuple[Problem, Tensor]], target: float, iterations: int
) -> tuple[Promise | None, str]:
    """Return a promise and its text, or None and the reason why there is none.

    Args:
        solver: The solver, in the form that the user gets.
        batches: Problems and starts. Their instances were drawn one by one and used for nothing else.
        target: The relative gap to promise.
        iterations: The iterations of each run, at least 1.
    """
    try:
        _check_different(batches)
        gaps = [bound_gaps(solver, problem, x0, target, iterations) for problem, x0 in batches]
    except UnprovenError as error:
        return None, f"no promise: {error}"
    found = promise(torch.cat(gaps), target, iterations)
    if found.share < MIN_SHARE:
        reached = f"{found.within} of {found.runs} test instances are within {target:g} after {iterations} iterations"
        return None, f"no promise: only {reached}"
    return found, str(found)


def _check_different(batches: Sequence[tuple[Problem, Tensor]]) -> None:
    """Raise an error if all generators gave the same instance."""
    problem, x0 = batches[0]
    if len(batches) > 1 or len(x0) == 1 or not torch.equal(x0, x0[:1].expand_as(x0)):
        return
    points = x0 + torch.linspace(0.1, 1, x0[0].numel(), dtype=x0.dtype, device=x0.device).reshape(1, *x0.shape[1:])
    values = problem.relaxed_value(points)[0]
    if torch.equal(values, values[:1].expand_as(values)):
        raise UnprovenError("held_out gives the same instance for every generator")


@torch.no_grad()
def bound_gaps(solver: Solver[Any], problem: Any, x0: Tensor, target: float, iterations: int) -> Tensor:
    """Return upper bounds on the relative gaps `(B,)` after a run.

    The violation of constraints is added. The bound is infinite if `run` stops an instance as a failure.
    """
    result = run(solver, problem, x0, iterations)
    stopped = [status in (Status.DIVERGED, Status.NOT_FINITE) for status in result.status]
    failed = torch.tensor(stopped, dtype=torch.bool, device=x0.device)
    x = result.x.double()
    exact, low, high = _enclose_minima(problem, x0, MAX_OPEN_SHARE * target)
    values, violation = exact.relaxed_value(x)
    if bool(((violation == 0) & (values < low - MAX_OPEN_SHARE * target * low.abs())).any()):
        raise UnprovenError("values are below the minima that the problem says it has")
    return torch.where(failed, torch.inf, relative_gaps(exact, x, low, high))


def _enclose_minima(problem: Any, x0: Tensor, accuracy: float) -> tuple[Any, Tensor, Tensor]:
    """Return the problem in float64, and lower and upper bounds `(B,)` on the minima with this relative accuracy."""
    exact = in_float64(problem, x0)
    if exact is None:
        raise UnprovenError("minima cannot be proven in float32; give the problem a method `double`")
    x, dual = approximate_optima(problem, x0)
    x = x.double()
    width = accuracy * exact.relaxed_value(x)[0].abs()
    x, low = lower_bounds(exact, x, None if dual is None else dual.double(), width)
    high = exact.value(x)
    for i in (~_is_proven(low, high, accuracy)).nonzero().flatten().tolist():
        try:
            found = optimum(exact.select(i))
        except (LmdError, RuntimeError):
            break
        low[i], high[i] = found.bound[0], found.infimum[0]
        if not bool(_is_proven(low[i], high[i], accuracy)):
            break
    if not bool((proven := _is_proven(low, high, accuracy)).all()):
        reason = f"the minima of {int((~proven).sum())} of {len(x0)} test instances are not proven to {accuracy:g}"
        advice = "a composite problem, a strong_convexity or a bounded domain would prove them"
        raise UnprovenError(f"{reason}; {advice}")
    return exact, low, high


def _is_proven(low: Tensor, high: Tensor, accuracy: float) -> Tensor:
    """Return whether two bounds give the minimum with this relative accuracy; False if the minimum may be 0."""
    size = torch.maximum(low, -high)
    return (size > 0) & (high - low <= accuracy * size)
