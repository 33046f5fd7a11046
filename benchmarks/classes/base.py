"""What a class gives for its instances: a problem of lmd, data for other solvers, and minima that are proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import clarabel
import numpy as np
import torch
from scipy import sparse

from lmd.problems import Problem

Array = np.ndarray[Any, Any]

MAX_ERROR = 1e-9  # of a reference minimum, relative to it

MAX_NEWTON_STEPS = 50

SIZES = ("small", "medium", "large")


@dataclass(frozen=True, kw_only=True)
class Program:
    """min z'Pz / 2 + q'z + r over low <= z <= high, l <= Az <= u, and h - Gz in a product of cones."""

    P: Array
    q: Array
    r: float = 0.0
    A: Array | None = None
    l: Array | None = None
    u: Array | None = None
    low: Array | float = -np.inf
    high: Array | float = np.inf
    G: Array | None = None
    h: Array | None = None
    cones: tuple[Any, ...] = ()  # of Clarabel, for the rows of G

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Return low and high of each entry."""
        return np.full(len(self.q), self.low), np.full(len(self.q), self.high)

    @property
    def rows(self) -> tuple[Array, Array, Array]:
        """Return A, l and u, without rows where there are none."""
        if self.A is None:
            return np.zeros((0, len(self.q))), np.zeros(0), np.zeros(0)
        return self.A, self.l, self.u

    @cached_property
    def stacked(self) -> tuple[Array, Array, Array]:
        """Return the rows with those of the bounds below them: matrix, lower and upper ends."""
        (A, l, u), (low, high) = self.rows, self.bounds
        some = np.isfinite(low) | np.isfinite(high)
        return np.vstack([A, np.eye(len(self.q))[some]]), np.append(l, low[some]), np.append(u, high[some])

    def value(self, z: Array) -> float:
        """Return the objective at any point."""
        return float(0.5 * z @ (self.P @ z) + self.q @ z + self.r)


@dataclass(frozen=True)
class Reference:
    """A minimiser x, its value, a lower bound on the minimum, and multipliers of the rows that constrain it."""

    x: Array
    value: float
    lower: float
    multipliers: Array | None = None
    violation: float = 0.0  # of a row, relative to the size of the rows

    @property
    def error(self) -> float:
        """Return the largest error of the value, relative to it, or of a row."""
        return max(abs(self.value - self.lower) / max(abs(self.value), 1e-300), self.violation)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A batch of instances of a class.

    Args:
        build: Makes the lmd problem from tensors; None where the package cannot express the class.
        reason: Why it cannot.
        programs: One per instance, as conic solvers take it; x is the first entries of z. Objects or functions.
        shape: Of one x.
        objective: f_i(x), where programs have variables besides x; None where they have none.
        hard: With an objective, how many of the programs' first rows constrain x itself.
        solve: The reference of an instance, where Clarabel's is not taken; needs the objective.
        kind: Which special solvers there are for it (peers.py).
        arrays: Data of each instance for these.
        point: Random points to compare values at; None draws standard normal ones.
    """

    build: Callable[[], Problem] | None = None
    reason: str = ""
    programs: Sequence[Program] = ()
    shape: tuple[int, ...]
    objective: Callable[[int, Array], float] | None = None
    hard: int = 0
    solve: Callable[[int], Reference] | None = None
    kind: str = ""
    arrays: Sequence[Mapping[str, Any]] = ()
    point: Callable[[np.random.Generator], Array] | None = None
    known: dict[int, Reference] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return max(len(self.programs), len(self.arrays))

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def reference(self, i: int) -> Reference:
        """Return the minimum of an instance; raise where it is not proven to `MAX_ERROR`."""
        if i not in self.known:
            found = self._by_clarabel(i) if self.solve is None else self.solve(i)
            if not found.error <= MAX_ERROR:
                raise ArithmeticError(f"the reference of instance {i} is proven to {found.error:.1e} alone")
            self.known[i] = found
        return self.known[i]

    def _by_clarabel(self, i: int) -> Reference:
        found = solve_program(self.programs[i])
        if self.objective is None:
            return found
        x, y = found.x[: self.size], found.multipliers[: self.hard]
        return Reference(x, self.objective(i, x) + self._penalty(i, x, y), found.lower, y, self._violation(i, x))

    def value(self, i: int, x: Array) -> float:
        """Return f_i(x), whether x fulfils the constraints or not."""
        x = x.ravel()
        return self.programs[i].value(x) if self.objective is None else self.objective(i, x)

    def error(self, i: int, x: Array) -> float:
        """Return f_i(x) - min f_i, with violations of constraints counted by their multipliers, an exact penalty."""
        if not np.isfinite(x).all():
            return np.inf
        known = self.reference(i)
        rise = self.value(i, x) - known.value
        if known.multipliers is None:
            return rise
        return rise + self._penalty(i, x.ravel(), known.multipliers)

    def _rows(self, i: int) -> tuple[Array, Array, Array]:
        """Return the rows that constrain x itself."""
        A, l, u = self.programs[i].stacked
        return (A, l, u) if self.objective is None else (A[: self.hard, : self.size], l[: self.hard], u[: self.hard])

    def _penalty(self, i: int, x: Array, multipliers: Array) -> float:
        """Return what violations are worth, by multipliers."""
        return float(np.abs(multipliers) @ beyond(*self._rows(i), x)) * (1 + 1e-6)

    def _violation(self, i: int, x: Array) -> float:
        return relative_violation(*self._rows(i), x)

    def relative_error(self, i: int, x: Array) -> float:
        """Return the true relative gap of x."""
        return self.error(i, x) / max(abs(self.reference(i).value), 1e-300)


def beyond(A: Array, l: Array, u: Array, x: Array) -> Array:
    """Return the violations of l <= Ax <= u."""
    z = A @ x
    return np.maximum(np.maximum(l - z, z - u), 0)


def relative_violation(A: Array, l: Array, u: Array, x: Array) -> float:
    """Return the largest violation, relative to the size of Ax."""
    return float(beyond(A, l, u, x).max(initial=0) / (1 + np.abs(A @ x).max(initial=0)))


def solve_program(program: Program) -> Reference:
    """Return the minimiser by Clarabel, refined on its active set where that proves more; x has all entries of z."""
    found = []
    for tolerance in (1e-12, 1e-10, 1e-9):
        x, y, of_cones = _clarabel(program, tolerance)
        found.append(_prove(program, x, y, of_cones))
        if program.G is None and found[-1].error > MAX_ERROR / 2:
            found += _refinements(program, x, y)
        if min(each.error for each in found) < MAX_ERROR / 2:
            break
    return min(found, key=lambda each: each.error)


def _refinements(program: Program, x: Array, y: Array) -> list[Reference]:
    """Return solutions of the equations of active sets, each set read from the solution before."""
    (A, l, u), found = program.stacked, []
    for _ in range(8):
        z = A @ x
        above, below = (l == u) | (y + z - u > 0), (l < u) & (y + z - l < 0)
        active = above | below
        n, m = len(x), int(active.sum())
        system = np.block([[program.P, A[active].T], [A[active], np.zeros((m, m))]])
        right = np.append(-program.q, np.where(above, u, l)[active])
        solution = np.linalg.lstsq(system, right, rcond=1e-14)[0]
        x, y = solution[:n], np.zeros(len(l))
        y[active] = solution[n:]
        found.append(_prove(program, x, y, np.zeros(0)))
    return found


def _clarabel(program: Program, tolerance: float) -> tuple[Array, Array, Array]:
    """Return x, and multipliers of the stacked rows and of the cones."""
    _, l, u = program.stacked
    solution = clarabel_solver(*clarabel_data(program), tolerance).solve()
    equal, upper, lower = clarabel_rows(l, u)
    counts = np.cumsum([equal.sum(), upper.sum(), lower.sum()])
    parts, y = np.split(np.array(solution.z), counts), np.zeros(len(l))
    y[equal] += parts[0]
    y[upper] += parts[1]
    y[lower] -= parts[2]
    return np.array(solution.x), y, parts[3]


def clarabel_rows(l: Array, u: Array) -> tuple[Array, Array, Array]:
    """Return which rows are equations, have an upper and have a lower end."""
    equal = l == u
    return equal, np.isfinite(u) & ~equal, np.isfinite(l) & ~equal


def clarabel_data(program: Program) -> tuple[Any, ...]:
    """Return P, q, the matrix, the right-hand side and the cones of a program, as Clarabel takes them."""
    (A, l, u), n = program.stacked, len(program.q)
    equal, upper, lower = clarabel_rows(l, u)
    G = np.zeros((0, n)) if program.G is None else program.G
    h = np.zeros(0) if program.h is None else program.h
    matrix = sparse.csc_matrix(np.vstack([A[equal], A[upper], -A[lower], G]))
    right = np.concatenate([u[equal], u[upper], -l[lower], h])
    sizes = int(equal.sum()), int(upper.sum() + lower.sum())
    kinds = zip((clarabel.ZeroConeT, clarabel.NonnegativeConeT), sizes, strict=True)
    cones = [cone(size) for cone, size in kinds if size]
    return sparse.csc_matrix(np.triu(program.P)), program.q, matrix, right, [*cones, *program.cones]


def clarabel_solver(P: Any, q: Array, A: Any, b: Array, cones: list[Any], tolerance: float) -> Any:
    """Return Clarabel, set up for a program."""
    options = clarabel.DefaultSettings()
    options.verbose, options.max_threads = False, 1
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = tolerance
    return clarabel.DefaultSolver(P, q, A, b, cones, options)


def _prove(program: Program, x: Array, y: Array, of_cones: Array) -> Reference:
    """Return x with a lower bound on the minimum from multipliers, whatever made them.

    With d = Px + q + A'y + G'z and z in the dual cone,
    f(x*) >= f(x) - |d|'|x* - x| - (sup_{l <= v <= u} y'v - y'Ax) - z'(h - Gx);
    |x* - x| is taken to be at most 1 + 2 max |x| in each entry.
    """
    A, l, u = program.stacked
    y = np.where(np.isfinite(u), y, np.minimum(y, 0))
    y = np.where(np.isfinite(l), y, np.maximum(y, 0))
    ends = np.where(y > 0, u, np.where(y < 0, l, 0))
    d, slack = program.P @ x + program.q + A.T @ y, y @ (ends - A @ x)
    if program.G is not None:
        d, slack = d + program.G.T @ of_cones, slack + of_cones @ (program.h - program.G @ x)
    radius, value = 1 + 2 * np.abs(x).max(), program.value(x)
    lower = value - np.abs(d).sum() * radius - max(slack, 0)
    upper = value + float(np.abs(y) @ beyond(A, l, u, x)) * (1 + 1e-6)
    return Reference(x, upper, lower, y, relative_violation(A, l, u, x))


def tensor(*arrays: Any) -> Any:
    """Return float64 tensors, or one of one array."""
    made = tuple(torch.as_tensor(np.ascontiguousarray(each), dtype=torch.float64) for each in arrays)
    return made[0] if len(made) == 1 else made


def generator_of(seed: int) -> np.random.Generator:
    """Return a generator for the data that all instances of a class share."""
    return np.random.default_rng(seed)


def minimise_sparse(function: Callable[[torch.Tensor], torch.Tensor], x0: Array, weight: float) -> Reference:
    """Return the minimiser of f(x) + weight ||x||_1 by Newton's method on the entries of x0 that are not 0.

    With the gradient g of f at x, the minimum is at least f(x) - g'x - sum max(|g| - weight, 0) |x*|; entries of x* are
    taken to be at most 1 + 2 max |x|.
    """
    x = torch.as_tensor(x0, dtype=torch.float64)
    g = _gradient(function, x)
    free = x.abs() * weight > (weight - g.abs()) * x.abs().max()
    x, signs = torch.where(free, x, 0), x.sign()
    for _ in range(MAX_NEWTON_STEPS):
        residual = (_gradient(function, x) + weight * signs)[free]
        H = torch.autograd.functional.hessian(function, x)[free][:, free]
        step = torch.linalg.lstsq(H, -residual[:, None], driver="gelsd").solution[:, 0]
        x[free] = x[free] + step
        if float(step.abs().max()) <= 1e-14 * float(x.abs().max()):
            break
    g, value = _gradient(function, x), float(function(x))
    beyond_weight = float((g.abs() - weight).clamp(min=0).sum()) * (1 + 2 * float(x.abs().max()))
    return Reference(x.numpy(), value + weight * float(x.abs().sum()), value - float(g @ x) - beyond_weight)


def minimise_smooth(function: Callable[[torch.Tensor], torch.Tensor], x0: Array, convexity: float) -> Reference:
    """Return the minimiser of a strongly convex function by Newton's method.

    With the gradient g there, f(x) - min f <= ||g||^2 / 2 convexity.
    """
    x = torch.as_tensor(x0, dtype=torch.float64)
    for _ in range(MAX_NEWTON_STEPS):
        g, H, value = _gradient(function, x), torch.autograd.functional.hessian(function, x), function(x)
        step, t = torch.linalg.lstsq(H, -g[:, None], driver="gelsd").solution[:, 0], 1.0
        while t > 1e-6 and function(x + t * step) > value + 0.1 * t * float(g @ step):
            t /= 2
        x = x + (t if t > 1e-6 else 1) * step
        if -float(g @ step) <= 1e-15 * abs(float(value)):
            break
    value, error = float(function(x)), float(_gradient(function, x).square().sum()) / (2 * convexity)
    return Reference(x.numpy(), value, value - error)


def _gradient(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    point = x.detach().requires_grad_()
    return torch.autograd.grad(function(point), point)[0]
