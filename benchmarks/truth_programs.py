"""Quadratic programs, families, programs of CVXPY, composites and functions of one's own for benchmarks/truth.py.

Every default that `lmd.solve` chooses, in units of x and of the value from 1e-12 to 1e12 in float64, and in those that
float32 can hold. Minima are Clarabel's in units of 1, or closed forms. Where a solver's x is outside the constraints by
rounding, its value counts with what the violation is worth: multipliers times distance, an exact penalty, so that the
true minimum is never above it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from own_classes import PortfolioFamily
from torch import Tensor
from truth import TOLERANCE, Attempt, DomainInstance, Instance, Kind, choose, uniform

import lmd
from lmd.operators import Identity
from lmd.operators.matrix import Matrix
from lmd.problems import Composite, Problem, QuadraticProgram
from lmd.problems.duality import project_onto_domains
from lmd.terms import L1, Absolute, Box, Hinge, Quadratic, Simplex, Squares, Zero
from lmd.terms.domains import project_simplex

BATCH = 6


def bounds_of(program: Any) -> tuple[Tensor, Tensor]:
    """The ends of x, where there are any, and of Ax `(B, m)`."""
    low, high = (torch.cat([getattr(term, end) for term in program.regularisers], dim=1) for end in ("low", "high"))
    return low, high


class Penalised(Problem):
    """A program whose violations count, f(x) + sum |y| distance, y multipliers of the minimiser: in long doubles."""

    def __init__(self, program: Any, multipliers: Tensor) -> None:
        self.program, self.multipliers = program, multipliers

    def value(self, x: Tensor) -> Tensor:
        z, (low, high) = self.program.operator(x), bounds_of(self.program)
        beyond = torch.maximum(low - z, z - high).clamp(min=0)
        P, q, long = self.program.f.P.numpy(), self.program.f.q.numpy(), x.numpy().astype(np.longdouble)
        form = np.einsum("bi,bij,bj->b", long, np.broadcast_to(P, (len(long), *P.shape[-2:])), long)
        value = form / 2 + (q * long).sum(axis=1) + np.asarray(self.program.f.r)
        return torch.from_numpy(value.astype(np.float64)) + (beyond * self.multipliers.abs()).sum(dim=1) * (1 + 1e-9)


class CompositeInstance(DomainInstance):
    """An instance with domains behind identities."""

    def nearest(self, x: Tensor) -> Tensor:
        x = x.double()
        for _ in range(50):
            x = project_onto_domains(self.exact, x)  # type: ignore[arg-type]
        return x


class ProgramInstance(Instance):
    """An instance of a program, of which results tell f(x) alone."""

    def told(self, x: Tensor) -> Tensor:
        return self.exact.program.f.value(x.double())  # type: ignore[attr-defined]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def units(generator: torch.Generator, dtype: torch.dtype) -> tuple[float, float]:
    """Of x and of the value: powers of 2, so that nothing is rounded."""
    far = (40, 40) if dtype == torch.float64 else (12, 20)
    if uniform(generator, 0, 1) < 0.3:
        return 1.0, 1.0
    return 2.0 ** round(uniform(generator, -far[0], far[0])), 2.0 ** round(uniform(generator, -far[1], far[1]))


def definite(generator: torch.Generator, n: int, *batch: int, most: float = 8) -> Tensor:
    """Symmetric matrices with condition numbers of up to 10^most."""
    turned = torch.linalg.qr(normal(generator, *batch, n, n))[0]
    spectrum = 10 ** (-uniform(generator, 0, most) * torch.linspace(0, 1, n, dtype=torch.float64))
    P = (turned * spectrum) @ turned.mT
    return (P + P.mT) / 2


def by_clarabel(P: Tensor, q: Tensor, A: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The minimiser of one program `(n,)`, and the multipliers of its rows `(m,)`."""
    import clarabel
    from scipy import sparse

    options = clarabel.DefaultSettings()
    options.verbose, options.tol_gap_abs, options.tol_gap_rel, options.tol_feas = False, 1e-12, 1e-12, 1e-12
    equal = (low == high).numpy()
    above, below = np.isfinite(high.numpy()) & ~equal, np.isfinite(low.numpy()) & ~equal
    rows, ends = A.numpy(), (low.numpy(), high.numpy())
    stacked = np.concatenate([rows[equal], rows[above], -rows[below]])
    right = np.concatenate([ends[1][equal], ends[1][above], -ends[0][below]])
    cones = [clarabel.ZeroConeT(int(equal.sum())), clarabel.NonnegativeConeT(int(above.sum() + below.sum()))]
    form = sparse.csc_matrix(np.triu(P.numpy()))
    found = clarabel.DefaultSolver(form, q.numpy(), sparse.csc_matrix(stacked), right, cones, options).solve()
    y, counts = np.zeros(len(rows)), np.cumsum([equal.sum(), above.sum()])
    first, second, third = np.split(np.array(found.z), counts)
    y[equal] += first
    y[above] += second
    y[below] -= third
    return torch.tensor(found.x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)


def program_instance(problem: Any, x_unit: float, unit: float) -> Instance:
    """A quadratic program with its minimum, found in units of 1."""
    exact = problem.double()
    (P, q), (low, high) = exact.f.quadratic, bounds_of(exact)
    identity = torch.eye(q.shape[1], dtype=torch.float64)
    found = []
    for i in range(len(q)):
        A = exact.operator.select(torch.full((len(identity),), i))(identity).mT
        form = (P if P.ndim == 2 else P[i]) * x_unit**2 / unit
        found.append(by_clarabel(form, q[i] * x_unit / unit, A, low[i] / x_unit, high[i] / x_unit))
    points, multipliers = (torch.stack(each) for each in zip(*found, strict=True))
    judged = Penalised(exact, multipliers * unit / x_unit)
    return ProgramInstance(problem, problem.start(), judged, torch.zeros((), dtype=torch.float64), (points * x_unit,))


def program(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    n, m = choose(generator, ((1, 0), (1, 1), (2, 1), (5, 3), (12, 8), (12, 30), (30, 10)))
    each = (BATCH,) if uniform(generator, 0, 1) < 0.3 else ()
    P = definite(generator, n, *each, most=8 if dtype == torch.float64 else 3)
    q = normal(generator, BATCH, n) * 10 ** uniform(generator, -3, 3)
    inside = normal(generator, BATCH, n)
    x_unit, unit = units(generator, dtype)
    options: dict[str, Any] = {}
    if m == 0 or uniform(generator, 0, 1) < 0.6:
        room = torch.rand(2, BATCH, n, dtype=torch.float64, generator=generator)
        low, high = inside - room[0], inside + room[1] * 10 ** uniform(generator, -3, 1)
        options["low"] = torch.where(room[0] < 0.2, -math.inf, low) * x_unit
        options["high"] = torch.where(room[1] < 0.2, math.inf, high) * x_unit
    if m > 0:
        A = normal(generator, *each, m, n) * 10 ** (uniform(generator, 0, 2) * normal(generator, m, 1))
        if uniform(generator, 0, 1) < 0.2:
            A[..., -1, :] = A[..., 0, :]  # twice the same row
        rows = A.expand(BATCH, m, n)
        zero = uniform(generator, 0, 1) < 0.3  # cones: all ends are 0
        z = (rows @ inside[:, :, None])[:, :, 0]
        if zero:
            A = -z.sign()[:, :, None] * A if each else -z[0].sign()[:, None] * A
        room = torch.rand(2, BATCH, m, dtype=torch.float64, generator=generator)
        high = torch.zeros_like(z) if zero else z + room[0] * 10 ** uniform(generator, -6, 1)
        low = torch.where(room[1] < 0.5, -math.inf, z - 3 * room[1])
        if zero:
            low = torch.full_like(z, -math.inf)
            options.pop("low", None), options.pop("high", None)
        elif m < n and uniform(generator, 0, 1) < 0.4:  # equations
            low[:, : m // 2 + 1] = high[:, : m // 2 + 1] = z[:, : m // 2 + 1]
        options |= {"A": A, "l": low * x_unit, "u": high * x_unit}
    options = {name: value.to(dtype) for name, value in options.items()}
    P, q = P * (unit / x_unit**2), q * (unit / x_unit)
    return program_instance(QuadraticProgram(P.to(dtype), q.to(dtype), **options), x_unit, unit)


@functools.cache
def cvxpy_families() -> tuple[Any, ...]:
    """Programs of CVXPY with parameters: a portfolio, control with states, a ridged lasso, a ridged SVM, a fit."""
    import cvxpy

    generator = torch.Generator().manual_seed(0)
    draw = lambda size: lambda batch, generator: torch.randn(batch, size, generator=generator)  # noqa: E731
    found = []
    x, r = cvxpy.Variable(8), cvxpy.Parameter(8, name="r")
    C = definite(generator, 8).numpy()
    capped = [cvxpy.sum(x) == 1, x >= 0, x <= 0.4]
    found.append((cvxpy.Problem(cvxpy.Minimize(cvxpy.quad_form(x, cvxpy.psd_wrap(C)) - r @ x), capped), {r: draw(8)}))
    s, v, first = cvxpy.Variable((6, 2)), cvxpy.Variable((5, 1)), cvxpy.Parameter(2, name="first")
    F, G = np.array([[1.0, 0.2], [0.0, 1.0]]), np.array([[0.0], [0.2]])
    moves = [s[t + 1] == F @ s[t] + G @ v[t] for t in range(5)]
    cost = cvxpy.sum_squares(s) + 0.1 * cvxpy.sum_squares(v)
    found.append((cvxpy.Problem(cvxpy.Minimize(cost), [s[0] == first, *moves, v <= 1, v >= -1]), {first: draw(2)}))
    A, b = normal(generator, 10, 6).numpy(), cvxpy.Parameter(10, name="b")
    w, t = cvxpy.Variable(6), cvxpy.Variable(6)
    ridge = 1e-3 * (cvxpy.sum_squares(w) + cvxpy.sum_squares(t))
    lasso = cvxpy.sum_squares(A @ w - b) + cvxpy.sum(t) + ridge
    found.append((cvxpy.Problem(cvxpy.Minimize(lasso), [w <= t, -t <= w]), {b: draw(10)}))
    y, slack = cvxpy.Variable(6), cvxpy.Variable(10)
    hinge = cvxpy.sum_squares(y) / 2 + cvxpy.sum(slack) + 1e-3 * cvxpy.sum_squares(slack)
    found.append((cvxpy.Problem(cvxpy.Minimize(hinge), [slack >= 1 - A @ y - 0.1 * b, slack >= 0]), {b: draw(10)}))
    return tuple(found)


@functools.cache
def cvxpy_family(place: int, dtype: torch.dtype) -> Any:
    problem, draws = cvxpy_families()[place]
    return lmd.problems.from_cvxpy(problem, draws, dtype)


def cvxpy_program(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    family = cvxpy_family(choose(generator, range(len(cvxpy_families()))), dtype)
    return program_instance(family.sample(BATCH, generator)[0], 1.0, 1.0)


@functools.cache
def families(dtype: torch.dtype) -> tuple[Any, ...]:
    """The exported families that need no pictures, small."""
    generator = torch.Generator().manual_seed(0)
    features = normal(generator, 60, 4).to(dtype)
    labels = (features[:, 0] + 0.5 * features[:, 1] > 0).long()
    return (
        lmd.problems.ControlFamily(horizon=6),
        lmd.problems.ControlFamily(effort=1e-4, limit=0.05),
        PortfolioFamily(assets=12),
        lmd.problems.LassoFamily(20, 30, dtype=dtype),
        lmd.problems.LeastSquaresFamily(dtype=dtype),
        lmd.problems.LeastSquaresFamily(normal(generator, 9, 4), dtype=dtype),
        lmd.problems.SimplexFamily("kl", 5, dtype),
        lmd.problems.SimplexFamily("least-squares", 5, dtype),
        lmd.problems.SVMFamily(features, labels, (0, 1), subset=30),
        lmd.problems.LinearClassifierFamily(features, labels, 2, subset=30, ridge=1e-2),
    )


def family(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    problem, x0 = choose(generator, families(dtype)).sample(BATCH, generator)
    exact = problem.double()
    assert exact is not None
    start = x0.double() if problem.domain is None else problem.domain.nearest(x0.double())
    best = lmd.solve(exact, 1e-10, x0=start, iterations=20_000).x
    judged = CompositeInstance if isinstance(exact, Composite) else DomainInstance
    best = judged(problem, x0, exact, torch.zeros((), dtype=torch.float64)).nearest(best)
    return judged(problem, x0, exact, torch.zeros((), dtype=torch.float64), (best,))


def composite(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    """Terms behind matrices and identities; x in its unit, values in that of squares."""
    n, m = choose(generator, ((1, 1), (3, 5), (8, 6), (10, 30)))
    x_unit, scale = units(generator, dtype)[0], 2.0 ** round(uniform(generator, -6, 6))
    A = scale * normal(generator, m, n)
    truth = torch.where(torch.rand(BATCH, n, dtype=torch.float64, generator=generator) < 0.5, 0, 1.0).double()
    b, y = truth @ A.T + 0.1 * scale * normal(generator, BATCH, m), normal(generator, BATCH, n)
    to = lambda array: (x_unit * array).to(dtype)  # noqa: E731
    weight = float(x_unit * (b @ A).abs().amax() * 10 ** uniform(generator, -3, 0))
    zeros, even = to(torch.zeros_like(y)), torch.full_like(y, 1 / n).to(dtype)
    fit, near = (Squares(to(b), 0.5), Matrix(A.to(dtype))), (Squares(to(y), 0.5), Identity())
    flat = (Squares((b @ A).to(dtype), 0.5), Identity())
    kinds: dict[str, Any] = {
        "elastic net": lambda: Composite(L1(weight), fit, (Squares(zeros, 0.5), Identity()), start=zeros),
        "no f": lambda: Composite(Zero(), fit, near, start=zeros),
        "lasso in a box": lambda: Composite(Box(0.0, x_unit), fit, (L1(weight), Identity()), start=zeros),
        "simplex": lambda: Composite(
            Squares(y.to(dtype)), (Simplex(), Identity()), (Box(0.0, 1.0 if n == 1 else 0.9), Identity()), start=even
        ),
        "simplex as f": lambda: Composite(Simplex(), flat, start=even),
        "hinge": lambda: Composite(Squares(y.to(dtype), 0.5), (Hinge(scale), Matrix(A.to(dtype))), start=even),
        "sparse hinge": lambda: Composite(L1(0.1 * scale), (Hinge(0.7), Matrix(A.to(dtype))), start=even),
        "portfolio": lambda: Composite(
            Quadratic(definite(generator, n, most=3).to(dtype), y.to(dtype)), (Simplex(), Identity()), start=even
        ),
    }
    if m >= n:
        kinds["non-negative"] = lambda: Composite(Box(0.0, math.inf), fit, start=zeros)
        kinds["absolute"] = lambda: Composite(
            L1(weight / x_unit), (Absolute(to(b)), Matrix(A.to(dtype))), near, start=zeros
        )
    problem = choose(generator, tuple(kinds.values()))()
    exact, none = problem.double(), torch.zeros((), dtype=torch.float64)
    best = CompositeInstance(problem, problem.start(), exact, none).nearest(lmd.solve(exact, 1e-9).x)
    return CompositeInstance(problem, problem.start(), exact, none, (best,))


class Own(Problem):
    """unit (c + sum l_i (x_i - y_i)^2) of x over its unit: values alone, over a domain, or with a strong convexity."""

    batched = ("y",)

    def __init__(self, y: Tensor, curvatures: Tensor, offset: float, unit: float, domain: Any, is_strong: bool) -> None:
        self.y, self.curvatures, self.offset, self.unit = y, curvatures, offset, unit
        self.domain, self.is_strong = domain, is_strong

    def value(self, x: Tensor) -> Tensor:
        return self.unit * (self.offset + (self.curvatures * (x - self.y).square()).sum(dim=1))

    def double(self) -> Own:
        return lmd.core.batching.to_double(self)

    @property
    def strong_convexity(self) -> Tensor | None:
        return 2 * self.unit * self.curvatures.min() if self.is_strong else None


def own(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    n, unit = choose(generator, (1, 2, 9)), units(generator, dtype)[1]
    domain = choose(generator, (None, Simplex(), Box(0.0, 1.0), Box(0.0, math.inf)))
    y = normal(generator, BATCH, n) + 0.3
    x0 = torch.full((BATCH, n), 1 / n, dtype=torch.float64)
    even = isinstance(domain, Simplex)
    spread = 0 if even else uniform(generator, 0, 3 if dtype == torch.float64 else 1)
    curvatures = 10 ** (-spread * torch.linspace(0, 1, n, dtype=torch.float64))
    is_strong = not isinstance(domain, Simplex) and (domain is None or not domain.conjugate_is_finite)
    best = y if domain is None else project_simplex(y) if even else domain.nearest(y)
    problem = Own(y.to(dtype), curvatures.to(dtype), 1.0, unit, domain, is_strong)
    exact = problem.double()
    return DomainInstance(problem, x0.to(dtype), exact, torch.zeros((), dtype=torch.float64), (best,))


def by_solve(generator: torch.Generator, instance: Instance) -> dict[str, Any]:
    """The default, to a tolerance other than the usual one, which may be too small."""
    tolerance = max(10 ** uniform(generator, -9, -2), 1e-2 * TOLERANCE if instance.x0.dtype == torch.float32 else 0)
    result = lmd.solve(instance.problem, tolerance, x0=instance.x0)
    return {type(result.solver).__name__: lambda _: Attempt(result, tolerance)}


KINDS = {
    "program": Kind(program, by_solve, None),
    "program of CVXPY": Kind(cvxpy_program, by_solve, None),
    "family": Kind(family, by_solve, None),
    "composite": Kind(composite, by_solve, None),
    "function of one's own": Kind(own, by_solve, None),
}
SHARES = {"program": 40, "program of CVXPY": 40, "family": 20, "composite": 50, "function of one's own": 60}
