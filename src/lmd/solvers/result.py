"""The answer of a run: points, values, what became of each instance, and how it went."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.problems.base import Problem
from lmd.problems.duality import relative_gap
from lmd.solvers.base import Solver


class Constant(NamedTuple):
    """A number that a theorem needs `()`, or one per instance `(B,)`, and where it came from, such as "given"."""

    value: Tensor
    origin: str


@dataclass(frozen=True)
class Certificate:
    """A bound on f(x) - min f for each instance, which no true gap exceeds.

    What a theorem proves is a *lower bound* on the minimum; the bound is the value minus that. An instance about which
    nothing is proven has an infinite bound. `lmd.guarantees` makes certificates.

    Args:
        value: f(x) `(B,)`.
        lower_bound: A lower bound on the minimum `(B,)`; minus infinity where nothing is proven.
        theorem: The theorem that proves it, in words.
        norm: The norm of the statement; dual vectors are measured in its dual norm.
        constants: The constants of the theorem, by name.
        parts: The certificates this is the best of, instance by instance.
    """

    value: Tensor
    lower_bound: Tensor
    theorem: str
    norm: str
    constants: Mapping[str, Constant] = field(default_factory=dict)
    parts: tuple[Certificate, ...] = ()

    @cached_property
    def bound(self) -> Tensor:
        """An upper bound on f(x) - min f, `(B,)`, never negative."""
        return (self.value - self.lower_bound).clamp(min=0)

    @property
    def proven(self) -> Tensor:
        """Which instances `(B,)` have a bound at all."""
        return torch.isfinite(self.bound)

    def explain(self) -> str:
        """One paragraph for a person: the bound, the theorem, the constants and where they came from."""
        proven, bound = self.proven, self.bound
        count, total = int(proven.sum()), len(proven)
        if self.parts:
            best = torch.stack([part.lower_bound for part in self.parts]).argmax(dim=0)[proven]
            shares = zip(self.parts, torch.bincount(best, minlength=len(self.parts)).tolist(), strict=True)
            said = [f"for {share} of {total} instances: {part.explain()}" for part, share in shares if share]
            return " ".join(said) or f"Nothing is proven: {'; '.join(part.theorem for part in self.parts)}."
        needs = "; ".join(f"{name} = {_numbers(value)} ({origin})" for name, (value, origin) in self.constants.items())
        reason = f"{self.theorem}, in the {self.norm} norm" + (f", with {needs}" if needs else "")
        if not count:
            return f"Nothing is proven by {reason}."
        worst = float(bound[proven].max())
        rest = "" if count == total else f" ({total - count} of {total} instances have no bound)"
        return f"The value exceeds the minimum by at most {worst:.3g}{rest}, by {reason}."


def _numbers(value: Tensor) -> str:
    low, high = float(value.min()), float(value.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


class Status(enum.Enum):
    """The outcome of one instance; `message` says what it means and what to do about it."""

    FINISHED = "ran all its iterations; ask for more, or for a target_value, if the answer is not good enough"
    TARGET_REACHED = "reached the target value"
    TOLERANCE_REACHED = "within the tolerance of the minimum: the certificate proves it"
    STALLED = "no more can be proven in this precision; x is the point of which most is: use float64 or more tolerance"
    NOT_FEASIBLE = (
        "x violates the constraints; values are those beside it, and nothing is proven of them: "
        "use more iterations, and check that some point fulfils all constraints"
    )
    NOT_PROVEN = (
        "no further step lowers the value, but nothing is proven of it: give the problem a strong_convexity or a "
        "bounded domain, or write it as a Composite, which has a dual"
    )
    RESIDUAL_REACHED = "the iterates stopped moving, to the requested tolerance"
    TIME_UP = "the time limit was reached; x is the last iterate"
    STOPPED = "a callback asked to stop; x is the last iterate"
    DIVERGED = "the value grew without bound; x is the best point seen before: take a smaller step"
    NOT_FINITE = "a NaN or infinity appeared; x is the best finite point seen before: take a smaller step"

    @property
    def message(self) -> str:
        """One sentence for a person."""
        return str(self.value)

    @property
    def failed(self) -> bool:
        """Whether the solver, rather than the user, ended the run of this instance."""
        return self in (Status.DIVERGED, Status.NOT_FINITE)


@dataclass(frozen=True)
class History:
    """The history of a run; row k belongs to x_k, row 0 to the start. A stopped instance keeps its last numbers.

    Args:
        values: f_i(x_k) `(K+1, B)`.
        residuals: ||x_k - x_{k-1}|| / max(1, ||x_{k-1}||) `(K+1, B)`; NaN in row 0.
        seconds: Time spent in the solver until x_k `(K+1,)`, without the time it took to record this history.
        diagnostics: Those of the solver at x_k `(K+1, B)`, such as `dual_residual`; NaN where not evaluated.
    """

    values: Tensor
    residuals: Tensor
    seconds: Tensor
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.values.shape[0])


@dataclass(frozen=True)
class Result:
    """The answer of `lmd.run` and `lmd.solve`.

    Args:
        x: The final points `(B, ...)`: the last iterate, or the best finite one where an instance failed.
        status: The status of each instance.
        seconds: Wall-clock time of the whole run, recording included.
        values: f_i at `x`, `(B,)`.
        iterations: Number of iterations of each instance `(B,)`.
        solver: The solver that was run; nothing of the run is stored in it.
        problem: The problem it was run on.
        start: x_0 `(B, ...)`.
        dual: A dual point for each instance, where the solver keeps one: its duality gap certifies `x`.
        certifier: The function that computes `certificate`; `lmd.run` and `lmd.solve` set it.
        violation: Distance of each x to the constraints `(B,)`, where f is infinite at x; `values` are then those of
            points inside, or of f without its infinite term (`Problem.relaxed_value`). None where no iterate was
            outside.
        counted: `evaluations`, where they were counted.
        recorded: `history`, where it was recorded.
    """

    x: Tensor
    status: tuple[Status, ...]
    seconds: float
    values: Tensor
    iterations: Tensor
    solver: Solver[Any] = field(repr=False)
    problem: Problem = field(repr=False)
    start: Tensor = field(repr=False)
    dual: Tensor | None = field(default=None, repr=False)
    certifier: Callable[[Result], Certificate] | None = field(default=None, repr=False)
    violation: Tensor | None = None
    counted: Mapping[str, Tensor] | None = field(default=None, repr=False)
    recorded: History | None = field(default=None, repr=False)

    @cached_property
    def evaluations(self) -> Mapping[str, Tensor]:
        """Number of calls of `value`, `subgradient`, `to_dual`, `to_primal`, ... per instance `(B,)`."""
        if self.counted is not None:
            return self.counted
        return {name: each * self.iterations for name, each in self.solver.step_cost.items()}

    @cached_property
    def history(self) -> History:
        """Values and residuals, iteration by iteration; of `lmd.solve`, those of the start and the end."""
        if self.recorded is not None:
            return self.recorded
        with torch.no_grad():
            values = torch.stack([self.problem.value(self.start), self.values])
        seconds = torch.tensor([0.0, self.seconds], dtype=torch.float64, device="cpu")
        return History(values=values, residuals=torch.full_like(values, torch.nan), seconds=seconds)

    @cached_property
    def certificate(self) -> Certificate | None:
        """A proven bound on the distance of `values` to the minima; None without a `certifier`."""
        return None if self.certifier is None else self.certifier(self)

    @property
    def ok(self) -> bool:
        """Whether no instance failed."""
        return not any(status.failed for status in self.status)

    def summary(self) -> str:
        """A short text: counts by status, values and the proven gap."""
        lines = [
            f"{len(self.status)} instance(s), {int(self.iterations.max())} iterations, {self.seconds:.3g} s",
            f"value: mean {float(self.values.mean()):.6g}, worst {float(self.values.max()):.6g}",
        ]
        for status in Status:
            if count := self.status.count(status):
                lines.append(f"{count} {status.name.lower().replace('_', ' ')}: {status.message}")
        if Status.STALLED in self.status:
            lines.append(f"proven: within {self._proven():.2g} of the minimum, relative to it, at the worst")
        if self.violation is not None and bool((self.violation > 0).any()):
            worst = float(self.violation.max())
            lines.append(f"constraints: violated by {worst:.2g} at the worst, values are beside it")
        return "\n".join(lines)

    def _proven(self) -> float:
        """The largest over the instances of the smallest relative gap that was seen, or that the certificate proves."""
        if (seen := self.history.diagnostics.get("relative_gap")) is not None:
            return float(seen.nan_to_num(nan=math.inf).amin(dim=0).max())
        proven = self.certificate
        return math.inf if proven is None else float(relative_gap(proven.value, proven.bound).max())
