"""What a run keeps of each instance: whether it still runs, its best point, its answer, its history."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from lmd.mirrors.base import norm_of
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State, add_evaluations
from lmd.solvers.result import History, Result, Status

# Values `(B,)`, and how far points are from where f is finite `(B,)`; None where all of them are there
Evaluation = tuple[Tensor, Tensor | None]


def evaluate(problem: Problem, x: Tensor, known: Tensor | None) -> Evaluation:
    """The values for the record; where they are not finite, those of points where the constraints hold."""
    values = problem.value(x) if known is None else known
    if not isinstance(values, Tensor) or bool(torch.isfinite(values).all()) or not bool(torch.isfinite(x).all()):
        return values, None
    return problem.relaxed_value(x)


def take(which: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`new` for the instances in `which` `(B,)` and `old` for the others; no copy where it is all of one."""
    if bool(which.all()):
        return new
    return torch.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old) if bool(which.any()) else old


class Clock:
    """Adds up the time spent inside `with clock`, waiting for the device where it works asynchronously."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def __enter__(self) -> None:
        self._started = self._now()

    def __exit__(self, *_: object) -> None:
        self.seconds += self._now() - self._started


DIVERGENCE_FACTOR = 1e6  # sizes of the value at the start by which a value may rise


def divergence_ceiling(values: Tensor, factor: float = DIVERGENCE_FACTOR) -> Tensor:
    """Return the values `(B,)` above which an instance has diverged, from those at the start."""
    return values + factor * values.abs().clamp(min=1)


class Tracker:
    """What `run` knows about each instance: whether it still runs, its best point, its answer, its history.

    Instances that have stopped are still advanced with the batch, but their answer is taken when they stop, so the
    solver needs to know nothing of stopping. Numbers per instance are rows of tables that double when they are full:
    many small tensors between large ones that come and go would fragment the memory.
    """

    def __init__(self, x0: Tensor, evaluation: Evaluation, seconds: float, divergence_factor: float) -> None:
        values, violation = evaluation
        self.running = torch.ones(len(x0), dtype=torch.bool, device=x0.device)
        self.finite = torch.ones_like(self.running)
        self.status: list[Status | None] = [None] * len(x0)
        self.stopped_at = torch.zeros_like(self.running, dtype=torch.int64)
        self.ceiling = divergence_ceiling(values, divergence_factor)
        self.x, self.latest_values = x0, values
        self.values = values  # the latest ones, and the last ones of instances that have stopped
        self.residuals = torch.full_like(values, torch.nan)
        self.answer, self.answer_values = x0, values  # never written to, so they need not be copies
        self.best, self.best_values = x0, values
        self.dual: Tensor | None = None
        self.answer_dual: Tensor | None = None
        self.violation: Tensor | None = None
        self.answer_violation = torch.zeros_like(values)
        self.row, self.seconds = 0, [seconds]
        self.evaluations: dict[str, Tensor] = {}
        self._tables: dict[str, Tensor] = {}
        self._length = 64  # rows of every table
        self._put("values", values)
        self._put("residuals", self.residuals)
        self._note_violation(violation)

    def _put(self, name: str, numbers: Tensor) -> None:
        """Write numbers `(B,)` to the last row of a table; NaN stands where nothing was written."""
        if name not in self._tables:
            self._tables[name] = self.values.new_full((self._length, len(numbers)), torch.nan)
        if self.row >= self._length:
            more = self.values.new_full((self._length, len(numbers)), torch.nan)
            self._tables = {each: torch.cat([table, more]) for each, table in self._tables.items()}
            self._length *= 2
        self._tables[name][self.row] = numbers

    def note(self, name: str, numbers: Tensor) -> None:
        """Add numbers `(B,)` of that name to the last row of the history."""
        self._put(name, torch.where(self.running, numbers, torch.nan))

    def _note_violation(self, violation: Tensor | None) -> None:
        if violation is not None or self.violation is not None:
            self.violation = torch.zeros_like(self.answer_violation) if violation is None else violation
            self.note("violation", self.violation)

    def record(
        self, problem: Problem, previous: State, state: State, evaluation: Evaluation, seconds: float, steps: int = 1
    ) -> None:
        """Record the state that so many steps led to; its diagnostics are about the points the last one began at."""
        values, violation = evaluation
        change, size = (norm_of(x, "l2") for x in (state.iterate - previous.iterate, previous.iterate))
        for name, numbers in state.diagnostics.items() if steps == 1 else ():
            self.note(name, numbers)
        self.row += 1
        self.residuals = take(self.running, change / size.clamp(min=1), self.residuals)
        self.values, self.latest_values = take(self.running, values, self.values), values
        self._put("values", self.values)
        self._put("residuals", self.residuals)
        self._note_violation(violation)
        self.seconds.append(seconds)
        self.stopped_at += steps * self.running
        for name, counts in state.evaluations.items():
            self.evaluations[name] = self.evaluations.get(name, 0) + torch.where(self.running, counts, 0)
        self.x, self.dual = state.x, state.dual_point
        if violation is not None and problem.domain is not None:
            self.x = take(violation > 0, problem.domain.nearest(state.x), state.x)
        self.finite = torch.isfinite(values) & torch.isfinite(change)  # one entry that is not finite makes it so
        better = self.running & self.finite & (values < self.best_values)
        self.best, self.best_values = take(better, self.x, self.best), take(better, values, self.best_values)

    def stop_failed(self) -> None:
        """End the run of instances that are not finite, or have diverged."""
        self._finish(~self.finite, Status.NOT_FINITE, self.best, self.best_values)
        self._finish(self.values > self.ceiling, Status.DIVERGED, self.best, self.best_values)

    def stop(self, reached: Tensor, status: Status) -> None:
        """End the run of some of the instances `(B,)`, with the points they are at for answer."""
        self._finish(reached, status, self.x, self.values)

    def stop_at(self, which: Tensor, status: Status, x: Tensor, dual: Tensor, values: Tensor) -> None:
        """End the run of some of the instances `(B,)`, with other points for answer."""
        self.dual = dual
        self._finish(which, status, x, values)

    def stop_all(self, status: Status) -> None:
        self.stop(torch.ones_like(self.running), status)

    def _finish(self, which: Tensor, status: Status, x: Tensor, values: Tensor) -> None:
        which = which & self.running
        if not bool(which.any()):
            return
        self.answer, self.answer_values = take(which, x, self.answer), take(which, values, self.answer_values)
        if self.violation is not None:
            self.answer_violation = take(which, self.violation, self.answer_violation)
        if self.dual is not None:
            before = torch.zeros_like(self.dual) if self.answer_dual is None else self.answer_dual
            self.answer_dual = take(which, self.dual, before)
        self.running &= ~which
        for instance in which.nonzero().flatten().tolist():
            self.status[instance] = status

    def result(self, solver: Solver[Any], problem: Problem, x0: Tensor, seconds: float) -> Result:
        """The answers of all instances."""
        counts = {name: torch.full_like(self.stopped_at, count) for name, count in solver.init_cost.items()}
        declared = {name: count * self.stopped_at for name, count in solver.step_cost.items()}
        tables = {name: table[: self.row + 1].clone() for name, table in self._tables.items()}
        return Result(
            x=self.answer.clone() if self.answer is x0 else self.answer,
            status=tuple(status for status in self.status if status is not None),
            seconds=seconds,
            values=self.answer_values,
            iterations=self.stopped_at,
            solver=solver,
            problem=problem,
            start=x0,
            dual=self.answer_dual,
            violation=None if self.violation is None else self.answer_violation,
            counted=add_evaluations(counts, declared, self.evaluations),
            recorded=History(
                values=tables.pop("values"),
                residuals=tables.pop("residuals"),
                seconds=torch.tensor(self.seconds, dtype=torch.float64, device="cpu"),
                diagnostics=tables,
            ),
        )
