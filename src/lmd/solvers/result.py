"""The result of a run: points, values, certificates, statuses and history; and the tracker that collects them."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.problems.base import Problem
from lmd.problems.duality import relative_gap
from lmd.solvers.base import Solver, State, add_evaluations
from lmd.terms.base import take

DUALITY = "weak duality, the gap to a dual point"
ROUNDING = 64  # the assumed error of a value, in units of rounding; certificates allow for it
ROOM = ROUNDING * 2.0**-52


class Constant(NamedTuple):
    """A constant of a theorem, `()` or one per instance `(B,)`, and its origin, such as "given"."""

    value: Tensor
    origin: str


@dataclass(frozen=True)
class Certificate:
    """A proven upper bound on f(x) - min f for each instance.

    Theorems prove a *lower bound* on the minimum; the bound is the value minus this lower bound. It is infinite for an
    instance without a proof. `lmd.guarantees` computes certificates.

    Args:
        value: f(x) `(B,)`.
        lower_bound: A lower bound on the minimum `(B,)`; minus infinity if nothing is proven.
        theorem: The theorem that proves the bound, in words.
        norm: The norm of the theorem; dual vectors are measured in its dual norm.
        constants: The constants of the theorem, by name.
        parts: The certificates of which this one takes the best, for each instance.
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
        """Which instances `(B,)` have a finite bound."""
        return torch.isfinite(self.bound)

    def explain(self) -> str:
        """Return one readable paragraph: the bound, the theorem, the constants and their origins."""
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


def gap_certificate(values: Sequence[float], gaps: Sequence[float], reported: Tensor) -> Certificate:
    """Return the certificate for values F(x) and certified gaps; it also covers the reported values `(B,)`."""
    rows = []
    for value, gap, given in zip(values, gaps, reported.tolist(), strict=True):
        highest = given if given > value or math.isnan(value) else value
        least = value - gap - ROOM * (abs(value) + gap)
        rows.append((highest, -math.inf if math.isnan(least) else min(least, highest), gap))
    above, below, proven = torch.tensor(rows, dtype=torch.float64, device=reported.device).unbind(1)
    return Certificate(above, below, DUALITY, "l2", {"gap": Constant(proven, "the problem's gap")})


def _numbers(value: Tensor) -> str:
    low, high = float(value.min()), float(value.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


class Status(enum.Enum):
    """The outcome of one instance; `message` says what it means and what to do."""

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
    STOPPED = "a callback asked to stop; x is the last iterate"
    DIVERGED = "the value grew without bound; x is the best point seen before: take a smaller step"
    NOT_FINITE = "a NaN or infinity appeared; x is the best finite point seen before: take a smaller step"

    @property
    def message(self) -> str:
        """The meaning of the status in one sentence."""
        return str(self.value)

    @property
    def failed(self) -> bool:
        """Whether the instance diverged or reached a NaN or infinity."""
        return self in (Status.DIVERGED, Status.NOT_FINITE)


@dataclass(frozen=True)
class History:
    """The history of a run; row k belongs to x_k, row 0 to the start. A stopped instance repeats its last value.

    Args:
        values: f_i(x_k) `(K+1, B)`.
        seconds: Time spent in the solver until x_k `(K+1,)`, without the time to record this history.
        diagnostics: Diagnostics of the solver at x_k `(K+1, B)`, such as `dual_residual`; NaN if not evaluated.
    """

    values: Tensor
    seconds: Tensor
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.values.shape[0])


@dataclass(frozen=True)
class Result:
    """The answer of `lmd.run` and `lmd.solve`.

    Args:
        x: The final points `(B, ...)`: the last iterate, or the best one if the instance failed or stalled.
        status: The status of each instance.
        seconds: Wall-clock time of the whole run, recording included.
        values: f_i at `x`, `(B,)`.
        iterations: Number of iterations of each instance `(B,)`.
        solver: The solver of the run; it stores nothing about the run.
        problem: The problem of the run.
        start: The starting points x_0 `(B, ...)`.
        dual: A dual point for each instance, whose duality gap certifies `x`; None if the solver has none.
        certifier: The function that computes `certificate`; `lmd.run` and `lmd.solve` set it.
        violation: Distance of each x to the constraints `(B,)`; None if no iterate violated them. If x violates them, f
            is infinite at x, and its entry in `values` is f at a nearby feasible point, or f without its infinite term
            (`Problem.relaxed_value`).
        counted: The counted `evaluations`; None computes them from the solver's `step_cost`.
        recorded: The recorded `history`; None is a history of the start and the end.
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
        """Values at every iteration; for `lmd.solve`, only at the start and the end."""
        if self.recorded is not None:
            return self.recorded
        with torch.no_grad():
            values = torch.stack([self.problem.value(self.start), self.values])
        seconds = torch.tensor([0.0, self.seconds], dtype=torch.float64, device="cpu")
        return History(values=values, seconds=seconds)

    @cached_property
    def certificate(self) -> Certificate | None:
        """A proven bound on `values` minus the minima; None without a `certifier`."""
        return None if self.certifier is None else self.certifier(self)

    @property
    def ok(self) -> bool:
        """Whether no instance failed."""
        return not any(status.failed for status in self.status)

    def summary(self) -> str:
        """Return a short text with the number of instances per status, the values and the proven gap."""
        lines = [
            f"{len(self.status)} instance(s), {int(self.iterations.max())} iterations, {self.seconds:.3g} s",
            f"value: mean {float(self.values.mean()):.6g}, worst {float(self.values.max()):.6g}",
        ]
        for status in Status:
            if count := self.status.count(status):
                lines.append(f"{count} {status.name.lower().replace('_', ' ')}: {status.message}")
        if Status.STALLED in self.status and (proven := self.certificate) is not None:
            worst = float(relative_gap(proven.value, proven.bound).max())
            lines.append(f"proven: within {worst:.2g} of the minimum, relative to it, at the worst")
        if self.violation is not None and bool((self.violation > 0).any()):
            worst = float(self.violation.max())
            lines.append(f"constraints: violated by {worst:.2g} at the worst, values are beside it")
        return "\n".join(lines)


# Values `(B,)` and distances of the points to the domain of f `(B,)`; the latter None if all points are inside
Evaluation = tuple[Tensor, Tensor | None]

DIVERGENCE_FACTOR = 1e6  # a value may rise by this multiple of the size of the first value


def divergence_ceiling(values: Tensor, factor: float = DIVERGENCE_FACTOR) -> Tensor:
    """Return the values `(B,)` above which an instance has diverged, given the values at the start."""
    return values + factor * values.abs().clamp(min=1)


class Tracker:
    """The record that `run` keeps of each instance: whether it still runs, its best point, its answer, its history.

    Stopped instances still advance with the batch, but their answer is stored when they stop, so solvers need no code
    for stopping. Numbers per instance are stored in rows of tables, which double in length when they are full; many
    small tensors between large temporary ones would fragment the memory.
    """

    def __init__(self, x0: Tensor, evaluation: Evaluation, seconds: float, divergence_factor: float) -> None:
        values, violation = evaluation
        self.running = torch.ones(len(x0), dtype=torch.bool, device=x0.device)
        self.status: list[Status | None] = [None] * len(x0)
        self.stopped_at = torch.zeros_like(self.running, dtype=torch.int64)
        self.ceiling = divergence_ceiling(values, divergence_factor)
        self.x = x0
        self.values = values  # the latest values; for stopped instances, the last ones before they stopped
        self.answer = {"x": x0, "values": values}  # answers of stopped instances; also `dual` and `violation`
        self.best, self.best_values = x0, values
        self.dual: Tensor | None = None
        self.violation: Tensor | None = None
        self.row, self.seconds = 0, [seconds]
        self.evaluations: dict[str, Tensor] = {}
        self._tables: dict[str, Tensor] = {}
        self._length = 64  # rows of every table
        self._put("values", values)
        self._note_violation(violation)

    def _put(self, name: str, numbers: Tensor) -> None:
        """Write numbers `(B,)` to the last row of a table; rows that are never written are NaN."""
        if name not in self._tables:
            self._tables[name] = self.values.new_full((self._length, len(numbers)), torch.nan)
        if self.row >= self._length:
            more = self.values.new_full((self._length, len(numbers)), torch.nan)
            self._tables = {each: torch.cat([table, more]) for each, table in self._tables.items()}
            self._length *= 2
        self._tables[name][self.row] = numbers

    def note(self, name: str, numbers: Tensor) -> None:
        """Add numbers `(B,)` under this name to the last row of the history."""
        self._put(name, torch.where(self.running, numbers, torch.nan))

    def _note_violation(self, violation: Tensor | None) -> None:
        if violation is not None or self.violation is not None:
            self.violation = torch.zeros_like(self.values) if violation is None else violation
            self.note("violation", self.violation)

    def record(self, problem: Problem, state: State, evaluation: Evaluation, seconds: float, steps: int) -> None:
        """Record the state after `steps` more steps, and stop instances that diverge or are not finite.

        Diagnostics belong to the points at which the last step started, that is to the row before.
        """
        values, violation = evaluation
        for name, numbers in state.diagnostics.items() if steps == 1 else ():
            self.note(name, numbers)
        self.row += 1
        self.values = take(self.running, values, self.values)
        self._put("values", self.values)
        self._note_violation(violation)
        self.seconds.append(seconds)
        self.stopped_at += steps * self.running
        for name, counts in state.evaluations.items():
            self.evaluations[name] = self.evaluations.get(name, 0) + torch.where(self.running, counts, 0)
        self.x, self.dual = state.x, state.dual_point
        if violation is not None and problem.domain is not None:
            self.x = take(violation > 0, problem.domain.nearest(state.x), state.x)
        finite = torch.isfinite(values) & torch.isfinite(state.iterate).flatten(1).all(dim=1)
        better = self.running & finite & (values < self.best_values)
        self.best, self.best_values = take(better, self.x, self.best), take(better, values, self.best_values)
        best = self.best, self.dual, self.best_values
        self.stop(~finite, Status.NOT_FINITE, best)
        self.stop(self.values > self.ceiling, Status.DIVERGED, best)

    def stop(self, which: Tensor, status: Status, answer: tuple[Tensor, Tensor | None, Tensor] | None = None) -> None:
        """Stop the instances in `which` `(B,)` at an answer (points, dual points, values); None takes the latest."""
        x, dual, values = answer or (self.x, self.dual, self.values)
        which = which & self.running
        if not bool(which.any()):
            return
        for name, new in {"x": x, "values": values, "dual": dual, "violation": self.violation}.items():
            if new is not None:
                before = self.answer.get(name)
                self.answer[name] = take(which, new, torch.zeros_like(new) if before is None else before)
        self.running &= ~which
        for instance in which.nonzero().flatten().tolist():
            self.status[instance] = status

    def history(self) -> History:
        """Return the history so far."""
        tables = {name: table[: self.row + 1].clone() for name, table in self._tables.items()}
        seconds = torch.tensor(self.seconds, dtype=torch.float64, device="cpu")
        return History(tables.pop("values"), seconds, tables)

    def result(self, solver: Solver[Any], problem: Problem, x0: Tensor, seconds: float) -> Result:
        """Return the result with the answers of all instances."""
        counts = {name: torch.full_like(self.stopped_at, count) for name, count in solver.init_cost.items()}
        declared = {name: count * self.stopped_at for name, count in solver.step_cost.items()}
        x = self.answer["x"]
        return Result(
            x=x.clone() if x is x0 else x,
            status=tuple(status for status in self.status if status is not None),
            seconds=seconds,
            values=self.answer["values"],
            iterations=self.stopped_at,
            solver=solver,
            problem=problem,
            start=x0,
            dual=self.answer.get("dual"),
            violation=self.answer.get("violation"),
            counted=add_evaluations(counts, declared, self.evaluations),
            recorded=self.history(),
        )
