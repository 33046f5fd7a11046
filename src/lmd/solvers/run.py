"""`run`, which iterates any solver: stopping per instance, history, timing, evaluation counts and callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from lmd.core.checks import check_count, check_positive
from lmd.errors import InputError
from lmd.problems.base import Problem, as_problem, check_capabilities, check_values
from lmd.solvers.base import Solver, State, check_fit, in_full_precision
from lmd.solvers.result import DIVERGENCE_FACTOR, Evaluation, Result, Status, Tracker
from lmd.solvers.stopping import StoppingRule, Target, Tolerance

# Called after each iteration with the state and the values `(B,)`; a true answer ends the run
Callback = Callable[[State, Tensor], object]

DEFAULT_ITERATIONS = 100
MAX_ITERATIONS = 100_000


@in_full_precision
@torch.no_grad()
def run(
    solver: Solver[Any],
    problem: Problem | Callable[[Tensor], Tensor],
    x0: Tensor | None = None,
    iterations: int | None = None,
    *,
    tolerance: float | None = None,
    target_value: float | Tensor | None = None,
    divergence_factor: float = DIVERGENCE_FACTOR,
    callbacks: Iterable[Callback] = (),
    stop: Iterable[StoppingRule] = (),
    record: bool = True,
) -> Result:
    """Run a solver on a batch of problems from the starting points x0 `(B, ...)`, or from the problem's own `start()`.

    Each instance stops on its own while the others continue. If a value is infinite because a constraint is violated,
    the value at a nearby feasible point is reported, together with the violation. Gradients are not recorded.

    Args:
        solver: Any solver.
        problem: A problem, or a convex function from points `(B, ...)` to values `(B,)`.
        x0: Starting points `(B, ...)`; None is the problem's own start.
        iterations: The maximum number of iterations. The default is 100 000 with a `tolerance`; otherwise it is the
            number that the solver was trained for, or 100.
        tolerance: An instance stops at this proven relative duality gap, or if the gap cannot fall any more. Requires a
            problem with a dual and a solver that keeps a dual point, such as FGP or PDHG.
        target_value: An instance stops at this value: a number, or one per instance `(B,)`.
        divergence_factor: An instance has diverged if its value rises by more than this multiple of max(1, |v|), where
            v is its first value.
        callbacks: Functions of the state and the values `(B,)`, called after each iteration; True ends the run.
        stop: Further rules, from `lmd.solvers.stopping` or your own; a rule can be used for one run only.
        record: Record every iteration; if False only the start and the end are evaluated, and nothing stops early.

    Returns:
        The points, values, history and status of each instance. `lmd.run` adds a certificate.

    >>> import lmd, torch
    >>> result = lmd.run(lmd.solvers.GradientDescent(0.25), lambda x: (x**2).sum(dim=1), torch.ones(2, 3), 20)
    >>> [status.name for status in result.status], bool(result.values.max() < 1e-6)
    (['FINISHED', 'FINISHED'], True)
    """
    problem = as_problem(problem)
    if x0 is None:
        check_capabilities(problem, ("start",), "run without x0")
        x0 = cast(Any, problem).start()
    check_fit(solver, problem, x0)
    default = MAX_ITERATIONS if tolerance is not None else solver.horizon or DEFAULT_ITERATIONS
    limit = check_count("iterations", default if iterations is None else iterations)
    check_positive("divergence_factor", divergence_factor)
    given: Any = {Target: target_value, Tolerance: tolerance}
    rules = [*(kind(value) for kind, value in given.items() if value is not None), *stop]
    callbacks = tuple(callbacks)
    if (rules or callbacks) and not record:
        raise InputError("record", "False, with something to stop at or to call", "True, to record every iteration")
    return _run(solver, problem, x0, limit, rules, callbacks, divergence_factor, 1 if record else limit)


def _run(
    solver: Solver[Any],
    problem: Problem,
    x0: Tensor,
    limit: int,
    rules: Sequence[StoppingRule],
    callbacks: Sequence[Callback],
    divergence_factor: float,
    stride: int,
) -> Result:
    """Return the result of at most `limit` iterations, recorded after each `stride` of them."""
    begun = now(x0.device)
    state = solver.init(problem, x0)
    seconds = now(x0.device) - begun
    values, violation = evaluate(problem, x0, state.known_value)
    check_values(problem, values, x0)
    if not bool(torch.isfinite(values).all()):
        bad = (~torch.isfinite(values)).nonzero().flatten().tolist()
        raise InputError("x0", f"a start where the value of instance {bad} is not finite", "a finite value there")
    tracker = Tracker(x0, (values, violation), seconds, divergence_factor)
    for rule in rules:
        rule.begin(problem, state, tracker, type(solver).__name__)
    done = 0
    while done < limit and bool(tracker.running.any()):
        done += stride
        started = now(x0.device)
        state = solver.step(problem, state) if stride == 1 else solver.advance(problem, state, stride)
        seconds += now(x0.device) - started
        values, violation = evaluate(problem, state.x, state.known_value)
        tracker.record(problem, state, (values, violation), seconds, stride)
        for rule in rules:
            rule.check(problem, state, tracker, done == limit)
        if any([callback(state, values) for callback in callbacks]):
            tracker.stop(tracker.running, Status.STOPPED)
    if tracker.violation is not None and problem.domain is None:
        tracker.stop(tracker.violation > 0, Status.NOT_FEASIBLE)
    tracker.stop(tracker.running, Status.FINISHED)
    return tracker.result(solver, problem, x0, now(x0.device) - begun)


def evaluate(problem: Problem, x: Tensor, known: Tensor | None) -> Evaluation:
    """Return values `(B,)`; if some are not finite, return relaxed values and violations of the constraints instead."""
    values = problem.value(x) if known is None else known
    if not isinstance(values, Tensor) or bool(torch.isfinite(values).all()) or not bool(torch.isfinite(x).all()):
        return values, None
    return problem.relaxed_value(x)


def now(device: torch.device) -> float:
    """Return the time in seconds, after waiting for a CUDA device to finish its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
