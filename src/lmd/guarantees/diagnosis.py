"""Checks whether a solver, with and without a safeguard, keeps its promises on its family and on harder families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.errors import CapabilityError
from lmd.guarantees.certify import certify, run
from lmd.guarantees.safeguard import Safeguard, default_fallback, guard
from lmd.mirrors.base import Mirror, norm_of
from lmd.problems.base import Family, Problem
from lmd.solvers.base import Solver, State
from lmd.solvers.result import Result

EARLY = 20
ITERATIONS = 1000

EXCESS = 0.05  # the promised limit of the relative excess over the fall-back at iteration `EARLY`
GAP = 1e-3  # the promised relative gap at iteration `ITERATIONS`

Measured = tuple[str, Tensor | float, float | None]  # a name, numbers whose mean is reported, and their limit


class Comparison(NamedTuple):
    """A comparison of a guarded run with a run of its fall-back from the same points."""

    guarded: Result
    early: int  # the iteration at which both runs are compared
    excess: Tensor  # relative excess of the guarded value over the fall-back at iteration `early` `(B,)`, at least 0
    minimum: Tensor  # the minima, or lower bounds on them `(B,)`
    scale: Tensor  # the denominator of gaps `(B,)`: the minimum, or f(0) if the minimum is 0

    @property
    def gap(self) -> Tensor:
        """(f - min f) / scale at the end of the guarded run `(B,)`, or an upper bound on it."""
        return ((self.guarded.values.double() - self.minimum) / self.scale).clamp(min=0)


def compare(
    guarded: Safeguard,
    problem: Problem,
    x0: Tensor,
    *,
    iterations: int = ITERATIONS,
    target: Tensor | None = None,
    proven: Tensor | None = None,
) -> Comparison:
    """Run a guarded solver and its fall-back alone from the same points x0 `(B, ...)`, and compare them.

    Both runs are compared at iteration 20, or at the last trained iteration if it is later. The guarded run ends after
    `iterations`, or when all values are at most `target` `(B,)`, but never before the comparison. The certificate of
    the guarded run bounds the minima from below, and so does `proven` `(B,)`, if it is given.

    >>> import lmd
    >>> problem, x0 = lmd.problems.LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
    >>> solver = Safeguard(lmd.solvers.GradientDescent(10.0))
    >>> found = compare(solver, problem, x0, iterations=30, proven=problem.minimum())
    >>> found.excess.tolist(), bool((found.gap < 1e-9).all())
    ([0.0, 0.0, 0.0], True)
    """
    early = max(EARLY, guarded.horizon or 0)
    fallback: Any = default_fallback(problem) if guarded.fallback is None else guarded.fallback

    def reached(state: State, values: Tensor) -> bool:
        return target is not None and state.iteration >= early and bool((values <= target).all())

    result = run(guarded, problem, x0, max(iterations, early), callbacks=[reached])
    runs = (result, run(fallback, problem, x0, early))
    ours, theirs = (each.history.values.double()[min(early, len(each.history) - 1)] for each in runs)
    excess = torch.where(ours <= theirs, 0.0, (ours - theirs) / theirs.abs())
    lower = certify(result).lower_bound
    if proven is not None:
        lower = torch.maximum(lower, proven.double())
    with torch.no_grad():
        at_zero = problem.value(torch.zeros_like(x0)).double()
    return Comparison(result, early, excess, lower, torch.where(lower > 1e-6 * at_zero, lower, at_zero))


class Finding(NamedTuple):
    """A measured number, and the promise about it."""

    variant: str  # the family on which it was measured
    name: str
    value: float
    promise: str = ""  # the promise in words; empty if nothing is promised
    holds: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`."""

    findings: tuple[Finding, ...]  # the numbers that were measured
    curves: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """For each family, the mean values `(K+1,)` by iteration, of the solver `alone` and, if possible, `guarded`."""

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
    minimum_of: Callable[[Problem], Tensor] = Problem.minimum,
) -> Diagnosis:
    """Run a solver on its family and on harder ones, for many more iterations than trained, and check its promises.

    These are the promises: The potential is strongly convex. No certificate is below the true gap. A safeguarded run
    never rises and never fails; it is at most 5% above its fall-back at iteration 20, and within 1e-3 of the minimum at
    1000. Inconsistency, divergence and fall-backs are reported without a promise. True gaps need `minimum_of`, whose
    default knows only minima in closed form; `lmd.guarantees.minimum` knows many more.

    Args:
        solver: Any solver, bare or guarded.
        family: The family that it was trained on.
        batch: The number of instances per family.
        iterations: The iterations of each run.
        seed: The seed of the instances.
        minimum_of: A function that returns the minima `(B,)` of a problem, or raises a CapabilityError.

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
        try:
            minimum: Tensor | None = minimum_of(problem.double() or problem).double()
        except CapabilityError:
            minimum = None
        alone = run(solver, problem, x0, iterations)
        measured = [*_measure_mirror(solver, problem, x0), *_measure_run(solver, alone, minimum)]
        curves[variant] = {"alone": alone.history.values.mean(dim=1)}
        guarded = guard(solver, problem)
        if guarded is not None:
            found = compare(guarded, problem, x0, iterations=iterations, proven=minimum)
            measured += _measure_guarded(found, minimum)
            curves[variant]["guarded"] = found.guarded.history.values.mean(dim=1)
        for name, numbers, limit in measured:
            value = float(torch.as_tensor(numbers, dtype=torch.float64, device="cpu").mean())
            said = "" if limit is None else f"at most {limit:g}"
            findings.append(Finding(variant, name, value, said, limit is None or value <= limit))
    return Diagnosis(tuple(findings), curves)


@torch.no_grad()
def _measure_mirror(solver: Solver[Any], problem: Problem, x0: Tensor) -> list[Measured]:
    """Measure the convexity of the potential between points of a run, and the inconsistency at its ends."""
    mirror = next((part for part in solver.modules() if isinstance(part, Mirror)), None)
    if mirror is None:
        return []
    last = run(solver, problem, x0, solver.horizon or 10).x
    heights = torch.stack([_above_chord(mirror, *pair) for pair in ((x0, last), (last, last.roll(1, dims=0)))])
    found: list[Measured] = [("height of the potential above its chords", float(heights.max()), 0.0)]
    for when, x in (("start", x0), ("horizon", last)):
        inconsistency = mirror.inconsistency(x, "l2") / norm_of(x, "l2").clamp(min=1e-30)
        found.append((f"relative inconsistency at the {when}", inconsistency, None))
    return found


def _above_chord(mirror: Mirror, a: Tensor, b: Tensor) -> Tensor:
    """Return Psi((a + b) / 2) + sigma/8 ||a - b||^2 - (Psi(a) + Psi(b)) / 2 `(B,)`, minus rounding errors."""
    ends = [mirror.potential(end) for end in (a, b)]
    bow = mirror.strong_convexity / 8 * norm_of(a - b, mirror.norm).square()
    rounding = 256 * torch.finfo(a.dtype).eps * (ends[0].abs() + ends[1].abs() + bow)
    return mirror.potential((a + b) / 2) + bow - (ends[0] + ends[1]) / 2 - rounding


def _measure_run(solver: Solver[Any], result: Result, minimum: Tensor | None) -> list[Measured]:
    values = result.history.values.double()
    horizon = values[min(solver.horizon or 10, len(values) - 1)]
    return [
        ("mean value at the start", values[0], None),
        ("mean value at the horizon", horizon, None),
        ("mean value at the end", values[-1], None),
        ("share that failed on the way", _failed(result), None),
        ("share that ended above the horizon", ~(values[-1] <= horizon), None),
        *_measure_certificate("certificate", result, minimum),
    ]


def _measure_guarded(found: Comparison, minimum: Tensor | None) -> list[Measured]:
    """Measure a guarded run. Fall-backs are counted early, because later most steps of any solver are refused."""
    result, early = found.guarded, min(found.early, len(found.guarded.history) - 1)
    values = result.history.values.double()
    rise = (values.diff(dim=0) / values[0].abs().clamp(min=1e-30)).flatten()
    rounding = 64 * torch.finfo(result.x.dtype).eps
    fell_back = result.history.diagnostics["fallback"][1 : early + 1].nanmean(dim=0)
    excess, is_early = f"guarded: largest excess over the fall-back alone at {early}", early == found.early
    return [
        ("guarded: largest relative rise", float(rise.max()) if len(rise) else 0.0, rounding),
        ("guarded: share that failed", _failed(result), 0.0),
        (excess, float(found.excess.max()), EXCESS if is_early else None),
        ("guarded: largest relative gap at the end", float(found.gap.max()), GAP if len(values) > ITERATIONS else None),
        (f"guarded: share of the first {early} iterations that fell back", fell_back, None),
        ("guarded: mean value at the end", result.values, None),
        *_measure_certificate("guarded: certificate", result, minimum),
    ]


def _measure_certificate(name: str, result: Result, minimum: Tensor | None) -> list[Measured]:
    """Measure the share of instances with a bound and, if minima are known, the excess of true gaps over bounds."""
    certificate = certify(result)
    share: Measured = (f"{name}: share with a bound", certificate.proven, None)
    if minimum is None:
        return [share]
    short = float((result.values.double() - minimum - certificate.bound).max())
    return [share, (f"{name}: largest excess of the true gap", max(short, 0.0), 0.0)]


def _failed(result: Result) -> float:
    return sum(status.failed for status in result.status) / len(result.status)
