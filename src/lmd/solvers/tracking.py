"""What a run keeps of each instance: whether it still runs, its best point, its answer, its history."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from lmd.mirrors.base import norm_of
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State
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


class Rows:
    """Numbers per instance `(B,)`, one row per iteration, in one piece of memory that doubles when it is full.

    Many small tensors between large ones that come and go would fragment the memory.
    """

    def __init__(self, like: Tensor) -> None:
        self._data = like.new_full((64, *like.shape), torch.nan)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def last(self) -> Tensor:
        return self._data[self._count - 1]

    def put(self, row: int, numbers: Tensor) -> None:
        """Write several rows `(n, B)`, the first of them at `row`."""
        end = row + len(numbers)
        while end > len(self._data):
            self._data = torch.cat([self._data, torch.full_like(self._data, torch.nan)])
        self._data[row:end] = numbers
        self._count = max(self._count, end)

    def first(self, rows: int) -> Tensor:
        """A copy of so many rows; NaN where there is nothing."""
        if rows > len(self._data):
            self.put(rows - 1, torch.full_like(self._data[:1], torch.nan))
        return self._data[:rows].clone()


DIVERGENCE_FACTOR = 1e6


def divergence_ceiling(values: Tensor, factor: float = DIVERGENCE_FACTOR) -> Tensor:
    """Return the values `(B,)` above which an instance has diverged, from those at the start."""
    return values + factor * values.abs().clamp(min=1)


class Tracker:
    """What `run` knows about each instance: whether it still runs, its best point, its answer, its history.

    Instances that have stopped are still advanced with the batch, but their answer is taken when they stop, so the
    solver needs to know nothing of stopping.
    """

    def __init__(self, x0: Tensor, evaluation: Evaluation, seconds: float, divergence_factor: float) -> None:
        values, violation = evaluation
        self.running = torch.ones(x0.shape[0], dtype=torch.bool, device=x0.device)
        self.all_running = True
        self.status: list[Status | None] = [None] * x0.shape[0]
        self.stopped_at = torch.zeros(x0.shape[0], dtype=torch.int64, device=x0.device)
        self.ceiling = divergence_ceiling(values, divergence_factor)
        self.answer, self.answer_values = x0, values  # never written to, so they need not be copies
        self.best, self.best_values = x0, values
        self.dual: Tensor | None = None
        self.answer_dual: Tensor | None = None
        self.values, self.residuals, self.seconds = Rows(values), Rows(values), [seconds]
        self.values.put(0, values[None])
        self.residuals.put(0, torch.full_like(values[None], torch.nan))
        self.diagnostics: dict[str, Rows] = {}
        self.evaluations: dict[str, Tensor] = {}
        self.finite = torch.ones_like(self.running)
        self.x, self.latest_values = x0, values
        self.violation: Tensor | None = None
        self.answer_violation = torch.zeros_like(values)
        self._note_violation(0, violation)

    def _note_violation(self, row: int, violation: Tensor | None) -> None:
        if violation is not None or self.violation is not None:
            self.violation = torch.zeros_like(self.answer_violation) if violation is None else violation
            self.note("violation", row, self.violation)

    def record(
        self, problem: Problem, previous: State, state: State, evaluation: Evaluation, seconds: float, steps: int = 1
    ) -> None:
        """Record the state that so many steps led to."""
        values, violation = evaluation
        row, change = len(self.values), norm_of(state.iterate - previous.iterate, "l2")
        residuals = change / norm_of(previous.iterate, "l2").clamp(min=1)
        self._append(state, values[None], residuals[None], [seconds], steps)
        for name, numbers in state.diagnostics.items():
            self.note(name, row - 1, numbers)
        self._note_violation(row, violation)
        if violation is not None and problem.domain is not None:
            self.x = take(violation > 0, problem.domain.nearest(state.x), state.x)
        self.finite = torch.isfinite(values) & torch.isfinite(change)  # one entry that is not finite makes it so
        self._improve(self.finite & (values < self.best_values), self.x, values)

    def _append(self, state: State, values: Tensor, residuals: Tensor, seconds: list[float], steps: int) -> None:
        row = len(self.values)
        for rows, numbers in ((self.values, values), (self.residuals, residuals)):
            rows.put(row, numbers if self.all_running else torch.where(self.running, numbers, rows.last))
        self.seconds += seconds
        self.stopped_at += steps * self.running
        for name, counts in state.evaluations.items():
            self.evaluations[name] = self.evaluations.get(name, 0) + torch.where(self.running, counts, 0)
        self.x, self.dual, self.latest_values = state.x, state.dual_point, values[-1]

    def _improve(self, better: Tensor, x: Tensor, values: Tensor) -> None:
        better = self.running & better
        self.best, self.best_values = take(better, x, self.best), take(better, values, self.best_values)

    def note(self, name: str, row: int, numbers: Tensor) -> None:
        """Add numbers `(B,)` of that name to a row of the history."""
        if name not in self.diagnostics:
            self.diagnostics[name] = Rows(self.values.last)
        numbers = numbers if self.all_running else torch.where(self.running, numbers, torch.nan)
        self.diagnostics[name].put(row, numbers[None])

    def stop_failed(self) -> None:
        """End the run of instances that are not finite, or have diverged."""
        broken = ~self.finite & self.running
        diverged = (self.values.last > self.ceiling) & self.running & ~broken
        for failed, status in ((broken, Status.NOT_FINITE), (diverged, Status.DIVERGED)):
            self._finish(failed, status, self.best, self.best_values)

    def stop(self, reached: Tensor, status: Status) -> None:
        """End the run of some of the instances `(B,)`, with the points they are at for answer."""
        self._finish(reached & self.running, status, self.x, self.values.last)

    def stop_at(self, which: Tensor, status: Status, x: Tensor, dual: Tensor, values: Tensor) -> None:
        """End the run of some of the instances `(B,)`, with other points for answer."""
        self.dual = dual
        self._finish(which & self.running, status, x, values)

    def stop_all(self, status: Status) -> None:
        self.stop(torch.ones_like(self.running), status)

    def _finish(self, which: Tensor, status: Status, x: Tensor, values: Tensor) -> None:
        if not bool(which.any()):
            return
        self.answer = take(which, x, self.answer)
        self.answer_values = take(which, values, self.answer_values)
        if self.violation is not None:
            self.answer_violation = take(which, self.violation, self.answer_violation)
        if self.dual is not None:
            before = torch.zeros_like(self.dual) if self.answer_dual is None else self.answer_dual
            self.answer_dual = take(which, self.dual, before)
        self.running &= ~which
        self.all_running = False
        for instance in which.nonzero().flatten().tolist():
            self.status[instance] = status

    def result(self, solver: Solver[Any], problem: Problem, x0: Tensor, seconds: float) -> Result:
        """The answers of all instances."""
        rows = len(self.values)
        counts = {name: torch.full_like(self.stopped_at, count) for name, count in solver.init_cost.items()}
        declared = {name: count * self.stopped_at for name, count in solver.step_cost.items()}
        for name, count in (*declared.items(), *self.evaluations.items()):
            counts[name] = counts.get(name, torch.zeros_like(self.stopped_at)) + count
        history = History(
            values=self.values.first(rows),
            residuals=self.residuals.first(rows),
            seconds=torch.tensor(self.seconds, dtype=torch.float64),
            diagnostics={name: numbers.first(rows) for name, numbers in self.diagnostics.items()},
        )
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
            counted=counts,
            recorded=history,
        )
