"""SciPy and OSQP on the instances of a class, one after the other: what `lmd.learn` is compared with."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lmd.problems.base import offers
from lmd.terms.base import filled
from lmd.training.instances import QUANTILE, Instances, clock

N_PEER_INSTANCES = 20  # instances that a peer solves
Solve = Callable[[Any, torch.Tensor], tuple[np.ndarray[Any, Any], float]]
"""From a batch of one and its start to the answer and the seconds it took."""


def peers(
    instances: Instances,
    target: float,
    say: Callable[[str], object] = lambda line: None,
    seconds: float = math.inf,
) -> list[dict[str, Any]]:
    """Return rows: milliseconds of each peer for one instance, with the loosest tolerance that suffices.

    A peer that fails, or takes more than so many seconds, is left out; `say` is called with the reason.
    """
    problem, able = instances.problem, dict[str, Callable[[float, Instances], Solve]]()
    if problem.domain is None and not offers(problem, ("operator",)):
        able["SciPy L-BFGS-B"] = _scipy
    is_program = offers(problem, ("operator",)) and problem.f.quadratic is not None
    boxed = is_program and problem.operator.is_identity and hasattr(problem.g, "low")
    if boxed and importlib.util.find_spec("osqp") is not None:
        able["OSQP, warm started"] = _osqp
    rows = []
    for name, make in able.items():
        try:
            rows.append(_peer_row(name, instances, target, make, seconds))
        except Exception as error:  # another package may raise anything
            say(f"{name} is left out: {type(error).__name__}, {' '.join(str(error).split()):.120}")
    return rows


def _peer_row(
    name: str, instances: Instances, target: float, make: Callable[[float, Instances], Solve], limit: float
) -> dict[str, Any]:
    part, end = instances.select(slice(0, N_PEER_INSTANCES)), clock() + limit
    row = {"method": name, "learned": False, "one": {}, "milliseconds": {}, "iterations": {}}
    for tolerance in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8):
        solve, answers, seconds = make(tolerance, part), [], []
        for i in range(len(part.x0)):
            x, spent = solve(part.problem.select(i), part.x0[i : i + 1])
            answers.append(torch.as_tensor(x, dtype=part.x0.dtype, device="cpu").reshape(part.x0.shape[1:]))
            seconds.append(spent)
            if clock() > end:
                raise TimeoutError(f"more than {limit:.3g} s for {N_PEER_INSTANCES} instances")
        errors = part.errors(torch.stack(answers)).sort().values
        if float(errors[math.ceil(QUANTILE * len(errors)) - 1]) <= target:
            one = 1e3 * sorted(seconds)[len(seconds) // 2]
            return {**row, "one": {f"{target:g}": one}, "milliseconds": {f"{target:g}": one * len(instances.x0)}}
    return row


def _scipy(tolerance: float, part: Instances) -> Solve:
    from scipy.optimize import minimize

    def solve(problem: Any, x0: torch.Tensor) -> tuple[np.ndarray[Any, Any], float]:
        def both(x: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
            value, gradient = problem.value_and_subgradient(
                torch.as_tensor(x, dtype=x0.dtype, device="cpu").reshape(x0.shape)
            )
            return float(value), gradient.flatten().double().numpy()

        begun = clock()
        found = minimize(both, x0.flatten().double().numpy(), jac=True, method="L-BFGS-B", options={"gtol": tolerance})
        return found.x, clock() - begun

    return solve


def _osqp(tolerance: float, part: Instances) -> Solve:
    import osqp
    from scipy import sparse

    P, q, low, high = _program(part.problem.select(0), part.x0[:1])
    own = part.problem.f.quadratic[0].ndim == 3
    upper = sparse.csc_matrix(np.triu(np.ones_like(P) if own else P))
    if own:
        upper.data = _upper(P)
    solver = osqp.OSQP()
    solver.setup(
        upper,
        q,
        sparse.identity(len(q), format="csc"),
        low,
        high,
        verbose=False,
        eps_abs=tolerance,
        eps_rel=tolerance,
        max_iter=10000,
    )
    last = low, high

    def solve(problem: Any, x0: torch.Tensor) -> tuple[np.ndarray[Any, Any], float]:
        nonlocal last
        P, q, low, high = _program(problem, x0)
        more = {"Px": _upper(P)} if own else {}
        more |= {} if all(map(np.array_equal, last, (low, high))) else {"l": low, "u": high}
        last = low, high
        begun = clock()
        solver.update(q=q, **more)
        found = solver.solve(raise_error=False)
        seconds = clock() - begun
        return np.clip(found.x, low, high), seconds

    return solve


def _program(problem: Any, x: torch.Tensor) -> tuple[np.ndarray[Any, Any], ...]:
    """Return P, q, low and high of one instance; x `(1, n)`."""
    P, q = problem.f.quadratic
    ends = (filled(end, x).expand_as(x)[0] for end in (problem.g.low, problem.g.high))
    return tuple(each.double().numpy() for each in (P[0] if P.ndim == 3 else P, q[0], *ends))


def _upper(P: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the upper triangle, column by column."""
    return P.T[np.tril_indices(len(P))]
