"""Certificates of runs: `certify` tries every theorem that applies and keeps the best bound of each instance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec

import torch
from torch import Tensor

from lmd import solvers
from lmd.guarantees.record import Record
from lmd.guarantees.theorems import (
    Number,
    accelerated_certificate,
    duality_certificate,
    regret_certificate,
    relative_certificate,
    subgradient_certificate,
)
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State
from lmd.solvers.result import Certificate, Result

P = ParamSpec("P")


def certify(
    run: Result | Record,
    *,
    divergence: Number | None = None,
    relative_smoothness: Number | None = None,
    relative_strong_convexity: Number | None = None,
) -> Certificate:
    """Return a certificate for the answer of a run: the best bound of all theorems that apply, for each instance.

    Constants that you do not pass are taken from the problem and the mirror, or bounded. `result.certificate` is
    `certify(result)`.

    Args:
        run: The result of a run, or its record.
        divergence: B(x*, x_0), or a bound on it: a number, or one per instance `(B,)`.
        relative_smoothness: L of f relative to the potential (section 3.1 of the paper), likewise.
        relative_strong_convexity: mu of f relative to the potential, likewise.

    >>> import lmd
    >>> problem, x0 = lmd.problems.LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
    >>> solver = lmd.solvers.MirrorDescent(lmd.mirrors.Euclidean(), 1 / 18)
    >>> result = lmd.run(solver, problem, x0, iterations=20)
    >>> bool((result.certificate.bound >= result.values - problem.minimum()).all())
    True
    >>> bool((result.certificate.bound < 0.1 * problem.value(x0)).all())
    True
    """
    record = run if isinstance(run, Record) else Record.of(run)
    parts = (
        duality_certificate(record),
        subgradient_certificate(record),
        regret_certificate(record, divergence),
        accelerated_certificate(record, divergence),
        relative_certificate(record, relative_smoothness, relative_strong_convexity, divergence),
    )
    return best_of(parts)


def best_of(parts: Sequence[Certificate]) -> Certificate:
    """Return the best bound of one or more certificates of one answer, instance by instance."""
    lower = torch.stack([part.lower_bound for part in parts]).amax(dim=0)
    used = [part for part in parts if bool((part.proven & (part.lower_bound == lower)).any())]
    if len(used) == 1:
        return replace(used[0], lower_bound=lower)
    theorem = "the best of " + " and ".join(part.theorem for part in used or parts)
    norms = {part.norm for part in used or parts}
    return Certificate(parts[0].value, lower, theorem, " or ".join(sorted(norms)), parts=tuple(used or parts))


def _with_certificate(run: Callable[P, Result]) -> Callable[P, Result]:
    @functools.wraps(run)
    def certified(*arguments: P.args, **options: P.kwargs) -> Result:
        return replace(run(*arguments, **options), certifier=certify)

    return certified


run = _with_certificate(solvers.run)  # `lmd.run`: `lmd.solvers.run`, with a result that can certify itself


class Watch:
    """A callback for `lmd.run` that records a solve, so that it can be certified while it runs.

    Args:
        solver: The solver that runs.
        problem: What it runs on.
        x0: `(B, ...)`, where it starts.
    """

    def __init__(self, solver: Solver[Any], problem: Problem, x0: Tensor) -> None:
        self.solver, self.problem, self.start = solver, problem, x0
        with torch.no_grad():
            self.values = [problem.value(x0)]
        self.rows: list[Mapping[str, Tensor]] = []
        self.state: State | None = None

    def __call__(self, state: State, values: Tensor) -> bool:
        self.state = state
        self.values.append(values)
        self.rows.append(state.diagnostics)
        return False

    def certificate(self) -> Certificate:
        """Return the certificate of the points reached so far."""
        unknown = torch.full_like(self.values[0], torch.nan)
        names = {name for row in self.rows for name in row}
        diagnostics = {
            name: torch.stack([*(row.get(name, unknown).to(unknown) for row in self.rows), unknown]).double()
            for name in names
        }
        state = self.state or self.solver.init(self.problem, self.start)
        reported, values = self.values[-1].double(), torch.stack(self.values).double()
        parts = (self.solver, self.problem, self.start, state.x, reported, values, diagnostics, state.dual_point)
        return certify(Record(*parts))
