"""Is a guarded solver as good as its fall-back early, and at the minimum late? Instance by instance."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.errors import CapabilityError
from lmd.guarantees.certify import certify, run
from lmd.guarantees.safeguard import Safeguard, default_fallback
from lmd.problems.base import Problem, offers
from lmd.solvers.base import Solver, State
from lmd.solvers.classical.pdhg import PDHG
from lmd.solvers.result import Result

EARLY = 20
ITERATIONS = 1000

EXCESS = 0.05
"""How far above its fall-back, started at the same point, a guarded solver may be at iteration `EARLY`."""

LONGEST = 10_000
"""How many iterations a solver has at most to prove a lower bound."""

GAP = 1e-3
"""How near the minimum it is promised to be at iteration `ITERATIONS`, relative to the minimum."""

MinimumOf = Callable[[Problem], Tensor]
"""What knows the minima `(B,)` of a problem; a CapabilityError says that it does not."""


@dataclass(frozen=True)
class Comparison:
    """A guarded run beside a run of the fall-back alone, from the same points."""

    guarded: Result
    """The run of the guarded solver."""

    classical: Result
    """The run of the fall-back, to iteration `early`."""

    early: int
    """The iteration at which both are compared."""

    minimum: Tensor
    """A lower bound on the minima, or the minima themselves `(B,)`."""

    scale: Tensor
    """What gaps are divided by `(B,)`: the minimum, or where that is 0 the value at x = 0."""

    @property
    def excess(self) -> Tensor:
        """By what share the guarded value exceeds the fall-back's at iteration `early` `(B,)`; 0 where it does not."""
        guarded, classical = (
            r.history.values.double()[min(self.early, len(r.history) - 1)] for r in (self.guarded, self.classical)
        )
        return torch.where(guarded <= classical, 0.0, (guarded - classical) / classical.abs())

    @property
    def gap(self) -> Tensor:
        """(f - min f) / scale at the end of the guarded run `(B,)`, or something larger."""
        return ((self.guarded.values.double() - self.minimum) / self.scale).clamp(min=0)


def compare(
    guarded: Safeguard,
    problem: Problem,
    x0: Tensor,
    *,
    early: int | None = None,
    iterations: int = ITERATIONS,
    target: Tensor | None = None,
    proven: Tensor | None = None,
    minimum_of: MinimumOf = Problem.minimum,
) -> Comparison:
    """Run a guarded solver, and its fall-back alone.

    `early` is iteration 20, or the last trained one, if that is later: those before it need not be good.
    The guarded run ends when all values are at most `target` `(B,)`, but not before iteration `early`: as its values
    never rise, going on would change nothing about that. The minimum is bounded from below by `proven` `(B,)`, where
    that is known. Else by the certificate of the guarded run where that proves it to be at the minimum already;
    elsewhere by the one of a longer run, of the fall-back or of a learned solver that ends proven, where the problem
    is composite; and where neither proves enough `minimum_of` is asked, such as `lmd.guarantees.minimum`: by default
    the problem itself, for a closed form.

    Args:
        guarded: The guarded solver.
        problem: What both run on.
        x0: `(B, ...)`, where both start.
        early: The iteration up to which the fall-back runs alone; None is as above.
        iterations: Of the guarded run, at most.
        target: Values `(B,)` at which the guarded run may end; None runs on.
        proven: Lower bounds on the minima `(B,)`, where they are known.
        minimum_of: From a problem to its minima `(B,)`.

    >>> import lmd
    >>> problem, x0 = lmd.problems.LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
    >>> found = compare(Safeguard(lmd.solvers.GradientDescent(10.0)), problem, x0, iterations=30)
    >>> found.excess.tolist(), bool((found.gap < 1e-9).all())
    ([0.0, 0.0, 0.0], True)
    """
    early = max(EARLY, guarded.horizon or 0) if early is None else early
    iterations = max(iterations, early)
    fallback: Any = default_fallback(problem) if guarded.fallback is None else guarded.fallback

    def reached(state: State, values: Tensor) -> bool:
        return target is not None and state.iteration >= early and bool((values <= target).all())

    result = run(guarded, problem, x0, iterations, callbacks=[reached])
    classical = run(fallback, problem, x0, early)
    if proven is None:
        proves = guarded.solver.ends_proven and guarded.solver.init(problem, x0).dual_point is not None
        proven = _lower_bound(result, guarded.solver if proves else fallback, problem, x0, minimum_of)
    lower = torch.maximum(proven.double(), (result.certificate or certify(result)).lower_bound)
    with torch.no_grad():
        at_zero = problem.value(torch.zeros_like(x0)).double()
    scale = torch.where(lower > 1e-6 * at_zero, lower, at_zero)
    return Comparison(result, classical, early, lower, scale)


def _lower_bound(result: Result, prover: Solver[Any], problem: Problem, x0: Tensor, minimum_of: MinimumOf) -> Tensor:
    """A lower bound on the minima `(B,)`, close enough to tell whether the answers are as near as is promised."""
    values, lower = result.values.double(), (result.certificate or certify(result)).lower_bound.clone()
    far = (values - lower > GAP * lower).nonzero().flatten()
    if len(far) and offers(problem, PDHG().needs):
        longer = run(prover, problem.select(far), x0[far], LONGEST, tolerance=GAP / 4)
        lower[far] = torch.maximum(lower[far], (longer.certificate or certify(longer)).lower_bound)
    if bool((values - lower > GAP * lower).any()):
        with suppress(CapabilityError):
            lower = minimum_of(problem).double()
    return lower
