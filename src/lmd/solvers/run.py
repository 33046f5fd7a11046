"""The driver of every solver: iterations, stopping per instance, history, timing, evaluation counts, callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lmd.checks import check_count, check_positive, shape_of
from lmd.errors import CapabilityError, InputError
from lmd.mirrors.base import norm_of
from lmd.problems.base import Problem, as_problem, check_capabilities, check_values
from lmd.problems.composite import relative_gap
from lmd.solvers.base import Solver, State, check_fit
from lmd.solvers.result import History, Result, Status

Callback = Callable[[State, Tensor], object]
"""Called after each iteration with the state and the values `(B,)`; a true answer ends the run."""

DEFAULT_ITERATIONS = 100
MOST_ITERATIONS = 100_000
DIVERGENCE_FACTOR = 1e6

PROGRESS, PATIENCE, LEAST = 0.9, 4, 400
"""An instance stalls whose proven gap has not fallen to this share since iteration k / patience, at k of this or more:
a method that converges at any rate of note does better, so what is left is rounding."""


def run(
    solver: Solver[Any],
    problem: Problem | Callable[[Tensor], Tensor],
    x0: Tensor | None = None,
    iterations: int | None = None,
    *,
    tolerance: float | None = None,
    target_value: float | Tensor | None = None,
    residual_tolerance: float | None = None,
    time_limit: float | None = None,
    divergence_factor: float = DIVERGENCE_FACTOR,
    callbacks: Iterable[Callback] = (),
    record: bool = True,
) -> Result:
    """Run a solver on a batch of problems from the starting points x0 `(B, ...)`, or from the problem's own `start()`.

    `iterations` defaults to what the solver was trained for, or 100; with a `tolerance`, to 100 000. An instance stops
    by itself when its relative duality gap proves it to be within `tolerance` of the minimum (the problem has a dual
    and the solver keeps a dual point, such as FGP and PDHG) or no more can be proven, when its value is at or below
    `target_value` (a number, or one per instance), when its iterates move by at most `residual_tolerance` relative to
    their size, or when its value is not finite or exceeds the starting value by `divergence_factor` times its size (at
    least 1); all stop after `time_limit` seconds. The others go on. Where a value is infinite because a constraint is
    broken, it is that of a point beside it, and the result has the violation. Nothing is recorded for autograd.

    Without `record` only the start and the end are looked at, the history has these two, and nothing stops early: a
    solver that can go through many iterations at once (`LearnedDual`) then takes a fraction of the time.

    >>> import lmd, torch
    >>> result = lmd.run(lmd.solvers.GradientDescent(0.25), lambda x: (x**2).sum(dim=1), torch.ones(2, 3), 20)
    >>> [status.name for status in result.status], bool(result.values.max() < 1e-6)
    (['FINISHED', 'FINISHED'], True)
    """
    if not isinstance(solver, Solver):
        raise InputError("solver", type(solver).__name__, "an lmd.solvers.Solver")
    problem = as_problem(problem)
    if x0 is None:
        check_capabilities(problem, ("start",), "run without x0")
        x0 = problem.start()  # type: ignore[attr-defined]  # what was just checked
    check_fit(solver, problem, x0)
    default = MOST_ITERATIONS if tolerance is not None else solver.horizon or DEFAULT_ITERATIONS
    limit = check_count("iterations", default if iterations is None else iterations)
    callbacks = tuple(callbacks)
    target = _per_instance("target_value", target_value, x0)
    if tolerance is not None:
        check_positive("tolerance", tolerance)
        check_capabilities(problem, ("certified_gap",), "tolerance")
    if residual_tolerance is not None:
        check_positive("residual_tolerance", residual_tolerance)
    if time_limit is not None:
        check_positive("time_limit", time_limit)
    check_positive("divergence_factor", divergence_factor)
    watching = callbacks or not (tolerance is target_value is residual_tolerance is time_limit is None)
    if watching and not record:
        raise InputError("record", "False, with something to stop at or to call", "True, to look at every iteration")

    begun = time.perf_counter()
    with torch.no_grad():
        clock = _Clock(x0.device)
        with clock:
            state = solver.init(problem, x0)
        values, violation = _look(problem, x0, state.known_value)
        check_values(problem, values, x0)
        if not bool(torch.isfinite(values).all()):
            bad = (~torch.isfinite(values)).nonzero().flatten().tolist()
            raise InputError("x0", f"a start where the value of instance {bad} is not finite", "a finite value there")
        tracker = _Tracker(x0, values, divergence_factor)
        tracker.record_start(clock.seconds, violation)
        if tolerance is not None and state.dual_point is None:
            accepted = "one that does, such as FGP or PDHG, to stop at a tolerance"
            raise CapabilityError("solver", f"{type(solver).__name__}, which keeps no dual point", accepted)
        look_at = 1.0
        if target is not None:
            tracker.stop(values <= target, Status.TARGET_REACHED)
        if not record:
            with clock:
                end = solver.advance(problem, state, limit)
            looked = _look(problem, end.x, end.known_value)
            tracker.record(problem, state, replace(end, diagnostics={}), looked, clock.seconds, steps=limit)
            tracker.stop_failed()
        for k in range(1, limit + 1 if record else 1):
            if not bool(tracker.running.any()):
                break
            previous = state
            with clock:
                state = solver.step(problem, previous)
            looked = _look(problem, state.x, state.known_value)
            tracker.record(problem, previous, state, looked, clock.seconds)
            tracker.stop_failed()
            if target is not None:
                tracker.stop(looked[0] <= target, Status.TARGET_REACHED)
            if tolerance is not None and (k >= look_at or k == limit):
                certified = problem.certified_gap(state.x, state.dual_point)  # type: ignore[attr-defined]  # checked above
                tracker.prove(k, certified[0], certified[1], tolerance)
                look_at = 1.1 * k  # a look costs as much as a step: seldom enough, and never more than a tenth late
            if residual_tolerance is not None:
                tracker.stop(tracker.residuals.last <= residual_tolerance, Status.RESIDUAL_REACHED)
            if any([callback(state, looked[0]) for callback in callbacks]):
                tracker.stop_all(Status.STOPPED)
            if time_limit is not None and time.perf_counter() - begun >= time_limit:
                tracker.stop_all(Status.TIME_UP)
        tracker.stop_all(Status.FINISHED)
    return tracker.result(solver, problem, x0, time.perf_counter() - begun)


Look = tuple[Tensor, Tensor | None]
"""Values `(B,)`, and how far points are from where f is finite `(B,)`; None where all of them are there."""


def _look(problem: Problem, x: Tensor, known: Tensor | None) -> Look:
    """The values for the record; where they are not finite, what the problem says of points beside them."""
    values = problem.value(x) if known is None else known
    if not isinstance(values, Tensor) or bool(torch.isfinite(values).all()) or not bool(torch.isfinite(x).all()):
        return values, None
    return problem.relaxed_value(x)


def _per_instance(argument: str, value: float | Tensor | None, x0: Tensor) -> Tensor | None:
    if value is None:
        return None
    try:
        tensor = torch.as_tensor(value, dtype=x0.dtype, device=x0.device)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(argument, repr(value), f"one number, or one per instance ({x0.shape[0]},)") from None
    if tensor.shape not in ((), (x0.shape[0],)):
        raise InputError(argument, f"shape {shape_of(tensor)}", f"one number, or one per instance ({x0.shape[0]},)")
    if bool(tensor.isnan().any()):
        raise InputError(argument, "NaN", "a number")
    return tensor


class _Clock:
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


class _Rows:
    """Numbers per instance `(B,)`, one row per iteration, in one piece of memory that doubles when it is full.

    As many small tensors, each made between large ones that come and go, they would tear the memory to pieces: a run
    of thousands of iterations on large batches would take many times what it needs.
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
        while row >= len(self._data):
            self._data = torch.cat([self._data, torch.full_like(self._data, torch.nan)])
        self._data[row] = numbers
        self._count = max(self._count, row + 1)

    def first(self, rows: int) -> Tensor:
        """A copy of so many rows; NaN where there is nothing."""
        if rows > len(self._data):
            self.put(rows - 1, torch.full_like(self._data[0], torch.nan))
        return self._data[:rows].clone()


class _Tracker:
    """What `run` knows about each instance: whether it still runs, its best point, its answer, its history.

    Instances that have stopped are still advanced with the batch, but their answer is taken when they stop, so the
    solver needs to know nothing of stopping.
    """

    def __init__(self, x0: Tensor, values: Tensor, divergence_factor: float) -> None:
        self.running = torch.ones(x0.shape[0], dtype=torch.bool, device=x0.device)
        self.all_running = True
        self.status: list[Status | None] = [None] * x0.shape[0]
        self.stopped_at = torch.zeros(x0.shape[0], dtype=torch.int64, device=x0.device)
        self.ceiling = values + divergence_factor * values.abs().clamp(min=1)
        self.answer, self.answer_values = x0, values  # never written to, so they need not be copies
        self.best, self.best_values = x0, values
        self.dual: Tensor | None = None
        self.answer_dual: Tensor | None = None
        self.values, self.residuals, self.seconds = _Rows(values), _Rows(values), list[float]()
        self.values.put(0, values)
        self.residuals.put(0, torch.full_like(values, torch.nan))
        self.diagnostics: dict[str, _Rows] = {}
        self.evaluations: dict[str, Tensor] = {}
        self.finite = torch.ones_like(self.running)
        self.x = x0
        self.violation: Tensor | None = None
        self.answer_violation = torch.zeros_like(values)
        self.proven = _Proven(values)

    def record_start(self, seconds: float, violation: Tensor | None) -> None:
        self.seconds.append(seconds)
        self._note_violation(0, violation)

    def _note_violation(self, row: int, violation: Tensor | None) -> None:
        if violation is not None or self.violation is not None:
            self.violation = torch.zeros_like(self.answer_violation) if violation is None else violation
            self.note("violation", row, self.violation)

    def record(
        self, problem: Problem, previous: State, state: State, looked: Look, seconds: float, steps: int = 1
    ) -> None:
        values, violation = looked
        change = norm_of(state.iterate - previous.iterate, "l2")
        moved = change / norm_of(previous.iterate, "l2").clamp(min=1)
        row = len(self.values)
        for rows, numbers in ((self.values, values), (self.residuals, moved)):
            rows.put(row, numbers if self.all_running else torch.where(self.running, numbers, rows.last))
        self.seconds.append(seconds)
        self.stopped_at += steps * self.running
        for name, numbers in state.diagnostics.items():
            self.note(name, row - 1, numbers)
        for name, counts in state.evaluations.items():
            self.evaluations[name] = self.evaluations.get(name, 0) + torch.where(self.running, counts, 0)
        self._note_violation(row, violation)
        self.x = state.x
        if violation is not None and problem.domain is not None:
            self.x = _take(violation > 0, problem.domain.project(state.x), state.x)
        self.dual = state.dual_point
        self.finite = torch.isfinite(values) & torch.isfinite(change)  # one entry that is not finite makes it so
        better = self.running & self.finite & (values < self.best_values)
        self.best = _take(better, self.x, self.best)
        self.best_values = _take(better, values, self.best_values)

    def note(self, name: str, row: int, numbers: Tensor) -> None:
        if name not in self.diagnostics:
            self.diagnostics[name] = _Rows(self.values.last)
        self.diagnostics[name].put(row, numbers if self.all_running else torch.where(self.running, numbers, torch.nan))

    def prove(self, k: int, values: Tensor, gaps: Tensor, tolerance: float) -> None:
        """Take note of what is proven at iteration k, and stop what is within the tolerance or gets no further."""
        reported = self.values.last.double()
        gaps = gaps + (reported - values).clamp(min=0)  # of the reported values, which may be rounded upwards
        relative = relative_gap(torch.fmax(values, reported), gaps)
        self.note("relative_gap", k, relative)
        self.stop(relative <= tolerance, Status.TOLERANCE_REACHED)
        stalled = self.proven.update(k, gaps, self.x, self.dual, self.values.last) & self.running
        if bool(stalled.any()):
            self.dual = self.proven.dual
            self._finish(stalled, Status.STALLED, self.proven.x, self.proven.values)

    def stop_failed(self) -> None:
        broken = ~self.finite & self.running
        diverged = (self.values.last > self.ceiling) & self.running & ~broken
        for failed, status in ((broken, Status.NOT_FINITE), (diverged, Status.DIVERGED)):
            self._finish(failed, status, self.best, self.best_values)

    def stop(self, reached: Tensor, status: Status) -> None:
        self._finish(reached & self.running, status, self.x, self.values.last)

    def stop_all(self, status: Status) -> None:
        self.stop(torch.ones_like(self.running), status)

    def _finish(self, which: Tensor, status: Status, x: Tensor, values: Tensor) -> None:
        if not bool(which.any()):
            return
        self.answer = _take(which, x, self.answer)
        self.answer_values = _take(which, values, self.answer_values)
        if self.violation is not None:
            self.answer_violation = _take(which, self.violation, self.answer_violation)
        if self.dual is not None:
            before = torch.zeros_like(self.dual) if self.answer_dual is None else self.answer_dual
            self.answer_dual = _take(which, self.dual, before)
        self.running &= ~which
        self.all_running = False
        for instance in which.nonzero().flatten().tolist():
            self.status[instance] = status

    def result(self, solver: Solver[Any], problem: Problem, x0: Tensor, seconds: float) -> Result:
        rows = len(self.values)
        diagnostics = {name: numbers.first(rows) for name, numbers in self.diagnostics.items()}
        counts = {name: torch.full_like(self.stopped_at, count) for name, count in solver.init_cost.items()}
        declared = {name: count * self.stopped_at for name, count in solver.step_cost.items()}
        for name, count in (*declared.items(), *self.evaluations.items()):
            counts[name] = counts.get(name, torch.zeros_like(self.stopped_at)) + count
        history = History(
            values=self.values.first(rows),
            residuals=self.residuals.first(rows),
            seconds=torch.tensor(self.seconds, dtype=torch.float64),
            diagnostics=diagnostics,
        )
        return Result(
            x=self.answer.clone() if self.answer is x0 else self.answer,
            values=self.answer_values,
            status=tuple(status for status in self.status if status is not None),
            iterations=self.stopped_at,
            evaluations=counts,
            seconds=seconds,
            history=history,
            solver=solver,
            problem=problem,
            start=x0,
            dual=self.answer_dual,
            violation=None if self.violation is None else self.answer_violation,
        )


class _Proven:
    """The points of each instance whose proven gap was the smallest so far, and when it last fell by a share."""

    def __init__(self, values: Tensor) -> None:
        self.gaps = torch.full_like(values, torch.inf, dtype=torch.float64)
        self.marks, self.marked_at = self.gaps, torch.zeros_like(self.gaps)
        self.x = self.dual = self.values = values

    def update(self, k: int, gaps: Tensor, x: Tensor, dual: Tensor | None, values: Tensor) -> Tensor:
        """Which instances `(B,)` have stalled."""
        better = gaps < self.gaps
        if dual is not None and bool(better.any()):
            first = self.x.shape != x.shape
            self.x = x if first else _take(better, x, self.x)
            self.dual = dual if first else _take(better, dual, self.dual)
            self.values = values if first else _take(better, values, self.values)
            self.gaps = _take(better, gaps, self.gaps)
        fallen = gaps < PROGRESS * self.marks
        self.marks = torch.where(fallen, gaps, self.marks)
        self.marked_at = torch.where(fallen, float(k), self.marked_at)
        return (k >= PATIENCE * self.marked_at) if k >= LEAST else torch.zeros_like(fallen)


def _take(which: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`new` for the instances in `which` `(B,)` and `old` for the others; no copy where it is all of one."""
    if bool(which.all()):
        return new
    return torch.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old) if bool(which.any()) else old
