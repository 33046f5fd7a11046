"""Does a solver keep its promises, on its family and on harder ones? The core of `lmd check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.errors import CapabilityError
from lmd.guarantees.certify import certify, run
from lmd.guarantees.comparison import EXCESS, GAP, ITERATIONS, Comparison, MinimumOf, compare
from lmd.guarantees.safeguard import guard
from lmd.mirrors.base import Mirror, norm_of
from lmd.problems.base import Family, Problem
from lmd.solvers.base import Solver
from lmd.solvers.result import Result


@dataclass(frozen=True)
class Finding:
    """One number that was measured, and what was promised about it."""

    variant: str
    """Which family it was measured on."""

    name: str
    """What was measured."""

    value: float
    """The number."""

    promise: str = ""
    """What the number should be, in words; nothing where nothing is promised."""

    holds: bool = True
    """Whether it is as promised."""


@dataclass(frozen=True)
class Diagnosis:
    """Everything `diagnose` found."""

    findings: tuple[Finding, ...]
    """Every number that was measured."""

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
    harder: Mapping[str, Family] | None = None,
    batch: int = 16,
    iterations: int = 1000,
    seed: int = 0,
    minimum_of: MinimumOf = Problem.minimum,
) -> Diagnosis:
    """Run a solver on its family and on harder ones, far past what it was trained for, and see what holds.

    Promises: the potential is strongly convex, no certificate is below the true gap, a safeguarded run never rises and
    never fails, is at most 5% above its fall-back at iteration 20 and within 1e-3 of the minimum at 1000.
    Inconsistency, divergence and fall-backs are reported, as nothing is promised about them. The true gap is known
    where `minimum_of` knows the minima: `lmd.guarantees.minimum` does of far more than closed forms, the default.

    Args:
        solver: Any solver, bare or guarded.
        family: The one that it was trained on.
        harder: Families by name; None is what the family itself calls harder.
        batch: Instances of each family.
        iterations: Of each run.
        seed: What the instances are drawn from.
        minimum_of: From a problem to its minima `(B,)`.

    >>> import lmd
    >>> solver = lmd.zoo.load("least-squares-quadratic-10", bare=True)
    >>> found = diagnose(solver, lmd.problems.LeastSquaresFamily(), batch=4, iterations=50)
    >>> found.broken, len(found.findings) > 10
    ((), True)
    """
    check_count("iterations", iterations)
    families = {"its family": family, **(family.harder() if harder is None else harder)}
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
    """Convexity between points of a trajectory, and the inconsistency at its ends."""
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
    """Psi((a + b) / 2) + sigma/8 ||a - b||^2 - (Psi(a) + Psi(b)) / 2 `(B,)`, less what rounding can do."""
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
    """Fall-backs are counted early: later, most steps of any solver are refused."""
    result, early = found.guarded, min(found.early, len(found.guarded.history) - 1)
    rise = result.history.values.double().diff(dim=0)
    worst = float((rise / result.history.values[0].double().abs().clamp(min=1e-30)).max()) if len(rise) else 0.0
    rounding = 64 * torch.finfo(result.x.dtype).eps
    failed = sum(status.failed for status in result.status) / len(result.status)
    fell_back = result.history.diagnostics["fallback"][1 : early + 1].nanmean(dim=0)
    excess, gap = float(found.excess.max()), float(found.gap.max())
    late = len(result.history) > ITERATIONS
    return [
        Finding(variant, "guarded: largest relative rise", worst, "at most 0, up to rounding", worst <= rounding),
        Finding(variant, "guarded: share that failed", failed, "0", result.ok),
        Finding(
            variant,
            f"guarded: largest excess over the fall-back alone at {early}",
            excess,
            f"at most {EXCESS:g}" if early == found.early else "",
            excess <= EXCESS or early < found.early,
        ),
        Finding(
            variant,
            "guarded: largest relative gap at the end",
            gap,
            f"at most {GAP:g}" if late else "",
            gap <= GAP or not late,
        ),
        Finding(variant, f"guarded: share of the first {early} iterations that fell back", float(fell_back.mean())),
        Finding(variant, "guarded: mean value at the end", float(result.values.mean())),
        *_certificate_findings(variant, "guarded: certificate", problem, result, minimum_of),
    ]


def _certificate_findings(
    variant: str, name: str, problem: Problem, result: Result, minimum_of: MinimumOf
) -> list[Finding]:
    """How many instances have a bound, and how far below the true gap one is, where the minimum is known."""
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
