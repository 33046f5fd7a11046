"""Does a guarded solver keep its promises, compared with its fall-back, on its family and on harder ones?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.errors import CapabilityError
from lmd.guarantees.certify import certify, run
from lmd.guarantees.safeguard import Safeguard, default_fallback, guard
from lmd.mirrors.base import Mirror, norm_of
from lmd.problems.base import Family, Problem, offers
from lmd.solvers.base import Solver, State
from lmd.solvers.classical.pdhg import PDHG
from lmd.solvers.result import Result

EARLY = 20
ITERATIONS = 1000

EXCESS = 0.05  # how far above its fall-back, from the same start, a guarded solver may be at iteration `EARLY`
GAP = 1e-3  # how near the minimum it is promised to be at iteration `ITERATIONS`, relative to the minimum
MAX_PROVING_ITERATIONS = 10_000

MinimumOf = Callable[[Problem], Tensor]
"""From a problem to its minima `(B,)`; raises a CapabilityError where they are not known."""


@dataclass(frozen=True)
class Comparison:
    """A guarded run beside a run of the fall-back alone, from the same points."""

    guarded: Result

    classical: Result  # the run of the fall-back, to iteration `early`
    early: int  # the iteration at which both are compared
    minimum: Tensor  # a lower bound on the minima, or the minima themselves `(B,)`
    scale: Tensor  # what gaps are divided by `(B,)`: the minimum, or where that is 0 the value at x = 0

    @property
    def excess(self) -> Tensor:
        """The share by which the guarded value exceeds the fall-back's at iteration `early` `(B,)`, or 0."""
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
    """Run a guarded solver, and its fall-back alone, from x0 `(B, ...)`.

    `early` defaults to iteration 20, or the last trained one, if that is later. The guarded run ends after `iterations`
    or when all values are at most `target` `(B,)`, but not before iteration `early`. The minimum is bounded from below
    by `proven` `(B,)`, where that is given; else by the certificate of the guarded run, where that is close enough;
    else by that of a longer run, of the fall-back or of a learned solver that ends proven, where the problem is
    composite; and else by `minimum_of(problem)`, by default a closed form.

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
    """Return a lower bound on the minima `(B,)`, close enough to tell whether the answers are as near as promised."""
    values, lower = result.values.double(), (result.certificate or certify(result)).lower_bound.clone()
    far = (values - lower > GAP * lower).nonzero().flatten()
    if len(far) and offers(problem, PDHG().needs):
        longer = run(prover, problem.select(far), x0[far], MAX_PROVING_ITERATIONS, tolerance=GAP / 4)
        lower[far] = torch.maximum(lower[far], (longer.certificate or certify(longer)).lower_bound)
    if bool((values - lower > GAP * lower).any()):
        with suppress(CapabilityError):
            lower = minimum_of(problem).double()
    return lower


@dataclass(frozen=True)
class Finding:
    """One number that was measured, and what was promised about it."""

    variant: str  # the family it was measured on
    name: str
    value: float

    promise: str = ""  # what the number should be, in words; empty where nothing is promised
    holds: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`."""

    findings: tuple[Finding, ...]  # the numbers that were measured
    curves: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """For each family, mean values by iteration `(K+1,)` of the solver `alone` and, where it can be, `guarded`."""

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The promises that were not kept."""
        return tuple(finding for finding in self.findings if not finding.holds)


def diagnose(
    solver: Solver[Any],
    family: Family,
    *,
    batch: int = 16,
    iterations: int = 1000,
    seed: int = 0,
    minimum_of: MinimumOf = Problem.minimum,
) -> Diagnosis:
    """Run a solver on its family and on harder ones, far past what it was trained for, and check its promises.

    Promises: the potential is strongly convex, no certificate is below the true gap, a safeguarded run never rises and
    never fails, is at most 5% above its fall-back at iteration 20 and within 1e-3 of the minimum at 1000.
    Inconsistency, divergence and fall-backs are reported without a promise. The true gap is known where `minimum_of`
    knows the minima; `lmd.guarantees.minimum` knows far more than closed forms, the default.

    Args:
        solver: Any solver, bare or guarded.
        family: The one that it was trained on.
        batch: Instances of each family.
        iterations: Of each run.
        seed: Of the instances.
        minimum_of: From a problem to its minima `(B,)`.

    >>> import lmd
    >>> solver = lmd.zoo.load("least-squares-quadratic-10", bare=True)
    >>> found = diagnose(solver, lmd.problems.LeastSquaresFamily(), batch=4, iterations=50)
    >>> found.broken, len(found.findings) > 10
    ((), True)
    """
    check_count("iterations", iterations)
    families = {"its family": family, **family.harder()}
    findings: list[Finding] = []
    curves: dict[str, dict[str, Tensor]] = {}
    for variant, sampled in families.items():
        problem, x0 = sampled.sample(check_count("batch", batch), torch.Generator().manual_seed(seed))
        alone = run(solver, problem, x0, iterations)
        curves[variant] = {"alone": alone.history.values.mean(dim=1)}
        findings += _mirror_findings(variant, solver, problem, x0)
        findings += _run_findings(variant, solver, problem, alone, minimum_of)
        guarded = guard(solver, problem)
        if guarded is not None:
            found = compare(guarded, problem, x0, iterations=iterations, minimum_of=minimum_of)
            curves[variant]["guarded"] = found.guarded.history.values.mean(dim=1)
            findings += _guarded_findings(variant, problem, found, minimum_of)
    return Diagnosis(tuple(findings), curves)


@torch.no_grad()
def _mirror_findings(variant: str, solver: Solver[Any], problem: Problem, x0: Tensor) -> list[Finding]:
    """Measure convexity between points of a trajectory, and the inconsistency at its ends."""
    mirror = next((part for part in solver.modules() if isinstance(part, Mirror)), None)
    if mirror is None:
        return []
    last = run(solver, problem, x0, solver.horizon or 10).x
    other = last.roll(1, dims=0)
    excess = torch.maximum(_above_chord(mirror, x0, last), _above_chord(mirror, last, other)).max()
    relative = {
        when: float((mirror.inconsistency(x, "l2") / norm_of(x, "l2").clamp(min=1e-30)).mean())
        for when, x in (("start", x0), ("horizon", last))
    }
    convex = "at most 0: the potential is as convex as it says"
    return [
        Finding(variant, "height of the potential above its chords", float(excess), convex, bool(excess <= 0)),
        *(Finding(variant, f"relative inconsistency at the {when}", value) for when, value in relative.items()),
    ]


def _above_chord(mirror: Mirror, a: Tensor, b: Tensor) -> Tensor:
    """Return Psi((a + b) / 2) + sigma/8 ||a - b||^2 - (Psi(a) + Psi(b)) / 2 `(B,)`, less rounding."""
    ends = [mirror.potential(end) for end in (a, b)]
    bow = mirror.strong_convexity / 8 * norm_of(a - b, mirror.norm).square()
    rounding = 256 * torch.finfo(a.dtype).eps * (ends[0].abs() + ends[1].abs() + bow)
    return mirror.potential((a + b) / 2) + bow - (ends[0] + ends[1]) / 2 - rounding


def _run_findings(
    variant: str, solver: Solver[Any], problem: Problem, result: Result, minimum_of: MinimumOf
) -> list[Finding]:
    values = result.history.values.double()
    start, horizon = values[0], values[min(solver.horizon or 10, len(values) - 1)]
    failed = sum(status.failed for status in result.status) / len(result.status)
    return [
        Finding(variant, "mean value at the start", float(start.mean())),
        Finding(variant, "mean value at the horizon", float(horizon.mean())),
        Finding(variant, "mean value at the end", float(values[-1].mean())),
        Finding(variant, "share that failed on the way", failed),
        Finding(variant, "share that ended above the horizon", float((~(values[-1] <= horizon)).double().mean())),
        *_certificate_findings(variant, "certificate", problem, result, minimum_of),
    ]


def _guarded_findings(variant: str, problem: Problem, found: Comparison, minimum_of: MinimumOf) -> list[Finding]:
    """Check a guarded run; fall-backs are counted early, as later most steps of any solver are refused."""
    result, early = found.guarded, min(found.early, len(found.guarded.history) - 1)
    rise = result.history.values.double().diff(dim=0)
    worst = float((rise / result.history.values[0].double().abs().clamp(min=1e-30)).max()) if len(rise) else 0.0
    rounding = 64 * torch.finfo(result.x.dtype).eps
    failed = sum(status.failed for status in result.status) / len(result.status)
    fell_back = result.history.diagnostics["fallback"][1 : early + 1].nanmean(dim=0)
    excess, gap = float(found.excess.max()), float(found.gap.max())
    is_early, late = early == found.early, len(result.history) > ITERATIONS
    return [
        Finding(variant, "guarded: largest relative rise", worst, "at most 0, up to rounding", worst <= rounding),
        Finding(variant, "guarded: share that failed", failed, "0", result.ok),
        _limited(variant, f"guarded: largest excess over the fall-back alone at {early}", excess, EXCESS, is_early),
        _limited(variant, "guarded: largest relative gap at the end", gap, GAP, late),
        Finding(variant, f"guarded: share of the first {early} iterations that fell back", float(fell_back.mean())),
        Finding(variant, "guarded: mean value at the end", float(result.values.mean())),
        *_certificate_findings(variant, "guarded: certificate", problem, result, minimum_of),
    ]


def _limited(variant: str, name: str, value: float, limit: float, is_promised: bool) -> Finding:
    """Return a number that is to be at most a limit, where that is promised."""
    return Finding(variant, name, value, f"at most {limit:g}" if is_promised else "", value <= limit or not is_promised)


def _certificate_findings(
    variant: str, name: str, problem: Problem, result: Result, minimum_of: MinimumOf
) -> list[Finding]:
    """Measure how many instances have a bound, and how far one is below the true gap, where the minimum is known."""
    certificate = result.certificate or certify(result)
    found = [Finding(variant, f"{name}: share with a bound", float(certificate.proven.double().mean()))]
    try:
        gap = result.values.double() - minimum_of(problem.double() or problem).double()
    except CapabilityError:
        return found
    short = float((gap - certificate.bound).max())
    return [
        *found,
        Finding(variant, f"{name}: largest excess of the true gap", max(short, 0.0), "0", short <= 0),
    ]
