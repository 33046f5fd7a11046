"""Packages of the field on the same instances, one after the other: SciPy, and OSQP where it is installed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lmd.learning.instances import Instances
from lmd.learning.measure import QUANTILE, clock
from lmd.problems.base import offers

TRIED = 20
"""Instances that a peer solves."""

Solve = Callable[[Any, torch.Tensor], tuple[np.ndarray[Any, Any], float]]
"""One instance as a batch of one and its start, to the answer and the seconds it took."""


def peers(instances: Instances, target: float) -> list[dict[str, Any]]:
    """Rows of the card: milliseconds for one instance, with the loosest of its tolerances that meets the target."""
    problem, rows = instances.problem, []
    if problem.domain is None and not offers(problem, ("operator",)):
        rows.append(_row("SciPy L-BFGS-B", instances, target, _scipy))
    boxed = offers(problem, ("quadratic",)) and problem.operator.is_identity and hasattr(problem.g, "low")
    if boxed and importlib.util.find_spec("osqp") is not None:
        rows.append(_row("OSQP, warm started", instances, target, _osqp))
    return rows


def _row(name: str, instances: Instances, target: float, make: Callable[[float, Instances], Solve]) -> dict[str, Any]:
    part = instances.select(slice(0, TRIED))
    row = {"method": name, "learned": False, "one": {}, "milliseconds": {}, "iterations": {}}
    for tolerance in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8):
        solve, answers, seconds = make(tolerance, part), [], []
        for i in range(len(part.x0)):
            x, spent = solve(part.problem.select(i), part.x0[i : i + 1])
            answers.append(torch.as_tensor(x, dtype=part.x0.dtype).reshape(part.x0.shape[1:]))
            seconds.append(spent)
        errors = part.errors(torch.stack(answers)).sort().values
        if float(errors[math.ceil(QUANTILE * len(errors)) - 1]) <= target:
            one = 1e3 * sorted(seconds)[len(seconds) // 2]
            return {**row, "one": {f"{target:g}": one}, "milliseconds": {f"{target:g}": one * len(instances.x0)}}
    return row


def _scipy(tolerance: float, part: Instances) -> Solve:
    from scipy.optimize import minimize

    def solve(problem: Any, x0: torch.Tensor) -> tuple[np.ndarray[Any, Any], float]:
        def both(x: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
            value, gradient = problem.value_and_subgradient(torch.as_tensor(x, dtype=x0.dtype).reshape(x0.shape))
            return float(value), gradient.flatten().double().numpy()

        begun = clock()
        found = minimize(both, x0.flatten().double().numpy(), jac=True, method="L-BFGS-B", options={"gtol": tolerance})
        return found.x, clock() - begun

    return solve


def _osqp(tolerance: float, part: Instances) -> Solve:
    import osqp
    from scipy import sparse

    P, q = (each.double().numpy() for each in part.problem.select(0).quadratic)
    low, high = (end[0].double().numpy() for end in (part.problem.g.low, part.problem.g.high))
    solver = osqp.OSQP()
    solver.setup(
        sparse.triu(sparse.csc_matrix(P), format="csc"),
        q[0],
        sparse.identity(len(P), format="csc"),
        low,
        high,
        verbose=False,
        eps_abs=tolerance,
        eps_rel=tolerance,
        max_iter=10000,
    )

    def solve(problem: Any, x0: torch.Tensor) -> tuple[np.ndarray[Any, Any], float]:
        q = problem.quadratic[1][0].double().numpy()
        begun = clock()
        solver.update(q=q)
        found = solver.solve(raise_error=False)
        seconds = clock() - begun
        return np.clip(found.x, low, high), seconds

    return solve
