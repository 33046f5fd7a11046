"""Promises about a class of problems, from held-out runs: exact binomial bounds, and a monitor of whether they hold."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from lmd.core.checks import check_count, check_positive
from lmd.core.extras import require
from lmd.errors import InputError


@dataclass(frozen=True)
class Promise:
    """With confidence 1 - delta, at least a `share` of the class is within `target` after so many iterations.

    It holds for the distribution that the `runs` were drawn from: independently of each other, one by one, and of the
    training and the choice of the solver. Theorem and proof: docs/guarantees.md.
    """

    target: float
    """The relative gap to get to."""

    iterations: int
    """How many each run was given."""

    runs: int
    """How many held-out instances were run."""

    within: int
    """How many of the runs were within the target."""

    share: float
    """A lower bound on the share of the whole class."""

    confidence: float
    """1 - delta; of all `together`, that all of them hold."""

    together: int = 1
    """How many promises are made together, such as on one card."""

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        said = f"within {self.target:g} of the minimum after {self.iterations} iterations"
        others = "" if self.together == 1 else f" for all {self.together} promises together"
        return f"with confidence {self.confidence:.0%}{others}, at least {self.share:.1%} of the class are {said}"


def promise(gaps: Tensor, target: float, iterations: int, confidence: float = 0.95, together: int = 1) -> Promise:
    """What the relative gaps `(n,)` of held-out runs promise of the class they were drawn from.

    The theorem asks for gaps that are never below the true ones, of instances that were drawn one by one, each from a
    generator of its own: a family may share data within a batch. With several promises from the same runs, each is made
    at the confidence 1 - (1 - confidence) / together, so that all hold together with `confidence` (Bonferroni).

    Args:
        gaps: Relative gaps `(n,)`, of instances that nothing was trained on or chosen by.
        target: The relative gap that a run is to get to.
        iterations: That each run was given.
        confidence: Between 0 and 1.
        together: How many promises are made, of which this is one.

    >>> import torch
    >>> print(promise(torch.full((300,), 1e-4), target=1e-3, iterations=8))
    with confidence 95%, at least 99.0% of the class are within 0.001 of the minimum after 8 iterations
    """
    runs, within = gaps.numel(), int((gaps <= target).sum())
    share = least_share(within, runs, 1 - (1 - confidence) / check_count("together", together))
    return Promise(target, iterations, runs, within, share, confidence, together)


def least_share(within: int, runs: int, confidence: float = 0.95) -> float:
    r"""The largest p that `within` successes in `runs` independent trials refute all smaller p of, at this confidence.

    p solves P(X >= within) = 1 - confidence for a binomial X; 0 where nothing succeeded ([Clopper and Pearson
    1934](https://doi.org/10.1093/biomet/26.4.404)). The probability that the true share is below it is at most
    1 - confidence, whatever the share is.

    Args:
        within: Trials that succeeded.
        runs: Trials in all.
        confidence: Between 0 and 1.

    >>> round(least_share(299, 299), 3), least_share(0, 10)
    (0.99, 0.0)
    """
    check_count("runs", runs)
    check_count("within", within, least=0, most=runs)
    if not 0 < check_positive("confidence", confidence) < 1:
        raise InputError("confidence", confidence, "a number between 0 and 1")
    require("scipy")
    from scipy.special import betaincinv

    return float(betaincinv(within, runs - within + 1, 1 - confidence)) if within else 0.0


def runs_needed(share: float, confidence: float = 0.95, failures: int = 0) -> int:
    """How many held-out runs promise this share, if no more than so many of them fail.

    Args:
        share: Of the class, between 0 and 1.
        confidence: Between 0 and 1.
        failures: Runs that may fail.

    >>> [runs_needed(0.95), runs_needed(0.99), runs_needed(0.99, failures=1)]
    [59, 299, 473]
    """
    if not 0 < check_positive("share", share) < 1:
        raise InputError("share", share, "a number between 0 and 1")
    runs = failures + 1
    while least_share(runs - failures, runs, confidence) < share:
        runs += 1
    return runs


class Drift(enum.Enum):
    """What a monitor has seen so far."""

    HOLDS = "nothing that was seen speaks against the promise"
    MOVED = "too many instances are outside the target: the class has moved; learn again, on instances of today"


class Monitor:
    r"""Watches the gaps of a running solver: whether the class that a promise was made for has moved.

    A promise of a share p says that an instance is outside the target with probability at most 1 - p. Then
    e = (1 + b) / (1 + b (1 - p)) for one that is outside, 1 / (1 + b (1 - p)) for one within, is 1 or less on average,
    and S_t = e_t (S_{t-1} + 1 / t(t+1)) reaches 1 / delta with probability at most delta, over all times together
    ([Ville 1939](http://www.numdam.org/item/THESE_1939__218__1_0/)): it may be looked at after every solve, and
    instances that were within long ago do not hide those that are outside now. docs/guarantees.md.

    Args:
        promised: What was promised of the class.
        delta: The probability of a false alarm, ever.
        bet: b, positive: the larger, the sooner a great change is seen, and the later a small one.

    >>> import torch
    >>> monitor = Monitor(promise(torch.full((300,), 1e-4), target=1e-3, iterations=8))
    >>> monitor.see(torch.full((1000,), 1e-4)).name, monitor.see(torch.full((20,), 1e-2)).name
    ('HOLDS', 'MOVED')
    """

    def __init__(self, promised: Promise, delta: float = 1e-3, bet: float = 4.0) -> None:
        self.promised, self.limit = promised, 1 / check_positive("delta", delta)
        fair = 1 + check_positive("bet", bet) * (1 - promised.share)
        self.within, self.outside = 1 / fair, (1 + bet) / fair
        self.seen, self.evidence, self.status = 0, 0.0, Drift.HOLDS

    def see(self, gaps: Tensor) -> Drift:
        """The status after the relative gaps `(n,)` of more solves, each as many iterations as were promised for."""
        for outside in (~(gaps <= self.promised.target)).flatten().tolist():
            self.seen += 1
            begun = self.evidence + 1 / (self.seen * (self.seen + 1))
            self.evidence = min((self.outside if outside else self.within) * begun, self.limit)
            if self.evidence >= self.limit:
                self.status = Drift.MOVED
        return self.status
