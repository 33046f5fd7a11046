"""Quadratic programs and families of them: control, and programs written in CVXPY."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.core.checks import check_batch, check_count, check_positive, shape_of
from lmd.core.extras import require
from lmd.errors import CapabilityError, InputError
from lmd.operators import Identity
from lmd.operators.matrix import Matrix
from lmd.problems.base import Family, Problem, flatten_data
from lmd.problems.composite import Composite, Pair
from lmd.terms import Box, Quadratic

Bound = float | Tensor
"""A number, one per entry `(n,)`, or one per instance and entry `(B, n)`; infinite for no bound."""


class QuadraticProgram(Composite):
    r"""min x'Px / 2 + q'x + r over low <= x <= high and l <= Ax <= u; x, q `(B, n)`.

    Bounds may be infinite. Any dual point (p for the box, y for the inequalities) gives a lower bound on the minimum:
    r - (q + p + A'y)'P^{-1}(q + p + A'y) / 2, minus the largest <x, p> + <z, y> for low <= x <= high, l <= z <= u
    ([Boyd and Vandenberghe 2004](https://web.stanford.edu/~boyd/cvxbook/), section 5.2).

    Args:
        P: `(n, n)` or `(B, n, n)`, symmetric and positive definite.
        q: `(B, n)`.
        low, high: Bounds of x: a number, `(n,)` or `(B, n)`.
        A: `(m, n)` or `(B, m, n)`; None if there are no inequalities.
        l, u: Bounds of Ax: a number, `(m,)` or `(B, m)`.
        r: A constant added to all values: a number, or one per instance `(B,)`. Relative tolerances depend on it.

    >>> import lmd
    >>> problem = QuadraticProgram(torch.eye(2), torch.tensor([[-3.0, 0.5]]), low=0.0, high=1.0)
    >>> result = lmd.solve(problem, tolerance=1e-6)
    >>> result.x.round(decimals=3), bool(result.certificate.bound < 1e-5)
    (tensor([[1., 0.]]), True)
    """

    def __init__(
        self,
        P: Tensor,
        q: Tensor,
        low: Bound = -math.inf,
        high: Bound = math.inf,
        A: Tensor | None = None,
        l: Bound = -math.inf,  # noqa: E741  (what the literature calls it)
        u: Bound = math.inf,
        r: float | Tensor = 0.0,
    ) -> None:
        q, given = check_batch("q", q), (low, high, l, u)
        low, high = (_entries(name, bound, q, q.shape[1]) for name, bound in (("low", low), ("high", high)))
        behind: list[Pair] = []
        if A is None or bool((low > -math.inf).any() or (high < math.inf).any()):
            behind.append((Box(low, high), Identity()))
        if A is not None:
            ends = (_entries(name, bound, q, A.shape[-2]) for name, bound in (("l", l), ("u", u)))
            behind.append((Box(*ends), Matrix(A)))
        self.bounds_vary = any(isinstance(bound, Tensor) and bound.ndim == 2 for bound in given)
        start = torch.minimum(torch.maximum(torch.zeros_like(q), low), high)
        super().__init__(Quadratic(P, q, r), *behind, start=start)

    def data_vector(self) -> Tensor:
        """Return the data of each instance `(B, k)`: q, and bounds if they differ, with 0 for infinite bounds."""
        if not self.bounds_vary:
            return flatten_data(self.f.data(), type(self).__name__)
        data = super().data_vector()
        return torch.where(data.isfinite(), data, 0)


def _entries(name: str, bound: Bound, q: Tensor, size: int) -> Tensor:
    """Return a bound for each entry of each instance `(B, size)`, as a view."""
    given = torch.as_tensor(bound, dtype=q.dtype, device=q.device)
    if given.shape not in ((), (size,), (len(q), size)):
        raise InputError(name, f"shape {shape_of(given)}", f"a number, ({size},) or ({len(q)}, {size})")
    return given.expand(len(q), size)


class ControlFamily(Family):
    r"""Receding-horizon control: the best inputs over the next steps, for random states; [Rawlings, Mayne and Diehl
    2017](https://sites.engineering.ucsb.edu/~jbraw/mpc/), section 2.

    s_{t+1} = F s_t + G v_t for `horizon` steps, with inputs v_t between -limit and limit and cost
    \sum (s'Qs + v'Rv) / 2. Eliminating the states gives a box-constrained program in the inputs, with the same P for
    all and q linear in s_0. F `(states, states)` and G are drawn once; F is slightly unstable, P badly conditioned.

    Args:
        states: Number of entries of a state.
        inputs: Number of entries of an input.
        horizon: Number of time steps; a problem has horizon * inputs variables.
        limit: The largest size of an entry of an input, positive.
        effort: R is `effort` times the identity; Q is the identity.
        seed: The seed of F and G.
    """

    name = "control"

    def __init__(
        self,
        states: int = 4,
        inputs: int = 2,
        horizon: int = 24,
        limit: float = 0.5,
        effort: float = 1e-2,
        seed: int = 0,
    ) -> None:
        check_count("states", states), check_count("inputs", inputs), check_count("horizon", horizon)
        self.limit = check_positive("limit", limit)
        generator = torch.Generator().manual_seed(seed)
        F, G = (
            torch.randn(states, n, generator=generator, dtype=torch.float64, device="cpu") for n in (states, inputs)
        )
        F = 1.05 * F / torch.linalg.eigvals(F).abs().max()
        powers = [torch.eye(states, dtype=F.dtype, device="cpu")]
        for _ in range(horizon):
            powers.append(F @ powers[-1])
        later = [power @ G for power in powers[:horizon]]  # the effect of an input after 1, 2, ... steps
        moved = [[later[t - s] if s <= t else 0 * G for s in range(horizon)] for t in range(horizon)]
        response = torch.cat([torch.cat(row, dim=1) for row in moved])
        free = torch.cat(powers[1:])
        P = response.mT @ response + effort * torch.eye(horizon * inputs, dtype=F.dtype, device="cpu")
        self.P, self.from_state = ((P + P.mT) / 2).float(), (free.mT @ response).float()

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        device = generator.device
        state = torch.randn(batch, len(self.from_state), generator=generator, device=device, dtype=torch.float32)
        q = state @ self.from_state.to(device)
        problem = QuadraticProgram(self.P.to(device), q, -self.limit, self.limit)
        return problem, problem.start()


Draw = Callable[[int, torch.Generator], Tensor]
"""A function from a number of instances B and a generator to values `(B, *shape)` of a parameter."""

MATRIX_TOLERANCE = 1e-9  # differences of matrices and vectors, relative to their size, that count as rounding
MAX_CONDITION = 1e4  # the largest condition number of N for which entries of x are the coordinates z


class ReducedProgram(QuadraticProgram):
    """A quadratic program in the coordinates z of x = particular + N z, the points that satisfy all equations."""

    batched = ("points", "particular", "parameters")
    particular: Tensor
    parameters: Tensor  # the values of all parameters, flattened `(B, total)`

    def data_vector(self) -> Tensor:
        return self.parameters


class CVXPYFamily(Family):
    """A family of quadratic programs from a CVXPY problem with parameters; see `from_cvxpy`."""

    name = "cvxpy"

    def __init__(self, problem: Any, parameters: Mapping[str, Draw], dtype: torch.dtype) -> None:
        self.draws, self.dtype, self._problem = dict(parameters), dtype, problem
        self._sizes = {each.name(): int(np.prod(each.shape, dtype=int)) for each in problem.parameters()}
        P, A, F, vectors = self._affine()
        self.shift, self.slope = vectors
        self.null, self.solve = _coordinates(A, (F != 0)[(F != 0).sum(axis=1) == 1].any(axis=0))
        self.P, self.F = self.null.T @ P @ self.null, F
        rows = F @ self.null
        rows[np.abs(rows) <= MATRIX_TOLERANCE * np.abs(rows).max(axis=1, initial=0, keepdims=True)] = 0
        self.single = (rows != 0).sum(axis=1) == 1
        self.rows, self.ends = rows[~self.single], rows[self.single]
        self.full, self.lengths = P, (len(P), len(A), len(F))
        if np.linalg.eigvalsh(self.P)[0] <= 1e-9 * np.trace(self.P):
            accepted = (
                "one with a single minimiser: -b <= x, x <= b for abs(x) <= b, or a little of sum_squares(x) more"
            )
            raise InputError("problem", "a program that is not strictly convex subject to its equations", accepted)

    def _affine(self) -> tuple[Any, Any, Any, tuple[Any, Any]]:
        """Return P, A, F, and (shift, slope): q, b, G and the constant, joined, are shift + parameters @ slope."""
        count = sum(self._sizes.values()) + 3
        values = self._values(count, torch.Generator().manual_seed(0))
        data = [self._data(row) for row in values]
        for name, first, *others in zip(("P", "A", "F"), *(each[:3] for each in data), strict=True):
            room = MATRIX_TOLERANCE * (1 + np.abs(first).max(initial=0))
            if any(np.abs(other - first).max(initial=0) > room for other in others):
                accepted = "parameters that change only linear terms and right-hand sides"
                raise InputError("parameters", f"some that change the matrix {name} of the program", accepted)
        wanted, known = np.stack([each[3] for each in data]), np.column_stack([np.ones(count), values])
        found = np.linalg.lstsq(known, wanted, rcond=None)[0]
        if np.abs(known @ found - wanted).max() > 1e-6 * (1 + np.abs(wanted).max()):
            raise InputError("parameters", "some on which the program does not depend linearly", "linear dependence")
        return *data[0][:3], (found[0], found[1:])

    def _values(self, batch: int, generator: torch.Generator) -> Any:
        """Return the values of all parameters `(B, total)`, flattened and joined."""
        drawn = {name: self.draws[name](batch, generator) for name in self._sizes}
        for name, value in drawn.items():
            if value.reshape(len(value), -1).shape != (batch, self._sizes[name]):
                given = f"{tuple(value.shape)} for {name}"
                raise InputError("parameters", given, f"{batch} values of {self._sizes[name]} numbers")
        return np.concatenate([value.reshape(batch, -1).double().numpy() for value in drawn.values()], axis=1)

    def _data(self, row: Any) -> tuple[Any, Any, Any, Any]:
        """Return P, A of the equations, F of the inequalities, and q, b, G and the constant joined, of one instance."""
        begin = 0
        for parameter in self._problem.parameters():
            size = self._sizes[parameter.name()]
            parameter.value = row[begin : begin + size].reshape(parameter.shape)
            begin += size
        data, _, inverse = self._problem.get_problem_data("OSQP")
        self.columns = data["param_prob"].var_id_to_col
        if data["lower_bounds"] is not None or data["upper_bounds"] is not None:
            raise InputError("problem", "variables with `bounds`", "the bounds as constraints")
        matrices = (data[name].toarray() for name in ("P", "A", "F"))
        return *matrices, np.concatenate([data["q"], data["b"], data["G"], [inverse[-1]["offset"]]])

    def sample(self, batch: int, generator: torch.Generator) -> tuple[ReducedProgram, Tensor]:
        values = self._values(batch, generator)
        joined = self.shift + values @ self.slope
        q, b, G, constant = np.split(joined, np.cumsum(self.lengths), axis=1)
        particular = b @ self.solve.T
        constant = constant[:, 0] + ((q + particular @ self.full / 2) * particular).sum(axis=1)
        linear, room = (q + particular @ self.full) @ self.null, G - particular @ self.F.T
        low, high = self._box(room[:, self.single])
        rows = {"A": self._tensor(self.rows), "u": self._tensor(room[:, ~self.single])} if len(self.rows) else {}
        rows["r"] = self._tensor(constant)
        problem = ReducedProgram(self._tensor(self.P), self._tensor(linear), low, high, **rows)
        problem.particular, problem.parameters = self._tensor(particular), self._tensor(values)
        return problem, problem.start()

    def _box(self, room: Any) -> tuple[Tensor, Tensor]:
        """Return the bounds of each entry `(B, n)` that follow from inequalities with a single entry."""
        low, high = (np.full((len(room), len(self.P)), end) for end in (-np.inf, np.inf))
        for row, end in zip(self.ends, room.T, strict=True):
            (j,) = row.nonzero()[0]
            bounds, nearer = (high, np.minimum) if row[j] > 0 else (low, np.maximum)
            bounds[:, j] = nearer(bounds[:, j], end / row[j])
        return self._tensor(low), self._tensor(high)

    def _tensor(self, array: Any) -> Tensor:
        return torch.as_tensor(array, dtype=self.dtype, device="cpu")

    def unpack(self, problem: ReducedProgram, z: Tensor) -> dict[str, Tensor]:
        """Return the variables by name, `(B, *shape)`, at points z `(B, n)` of a problem of this family."""
        null = torch.as_tensor(self.null, dtype=torch.float64, device=z.device)
        x = problem.particular.double() + z.double() @ null.T
        found = {}
        for variable in self._problem.variables():
            begin = self.columns[variable.id]
            flat = x[:, begin : begin + variable.size].reshape(len(x), *reversed(variable.shape))
            found[variable.name()] = flat.permute(0, *range(flat.ndim - 1, 0, -1))
        return found


def _coordinates(A: Any, bounded: Any) -> tuple[Any, Any]:
    """Return N and S: the solutions of Ax = b are S b + N z, where z are entries of x, if possible `bounded` ones.

    The other entries are linear in z. If N is badly conditioned, z are coordinates in an orthonormal basis instead.
    """
    from scipy.linalg import qr  # CVXPY needs it too

    _, spread, turned = np.linalg.svd(A, full_matrices=True)
    scale = max(1.0, *spread) if len(spread) else 1.0
    rank = int((spread > 1e-10 * scale).sum())
    if rank == 0:
        return np.eye(A.shape[1]), np.zeros(A.T.shape)
    following, left = np.empty(0, dtype=int), A.astype(float)
    for preferred in filter(len, (np.flatnonzero(~bounded), np.flatnonzero(bounded))):
        q, r, order = qr(left[:, preferred], pivoting=True)  # each step takes the longest remaining column
        count = min(int((np.abs(np.diag(r)) > 1e-8 * scale).sum()), rank - len(following))
        following = np.append(following, preferred[order[:count]])
        left = left - q[:, :count] @ (q[:, :count].T @ left)
    free = np.setdiff1d(np.arange(A.shape[1]), following)
    null, solve, inverse = np.zeros((A.shape[1], len(free))), np.zeros(A.T.shape), np.linalg.pinv(A[:, following])
    null[free, np.arange(len(free))], null[following], solve[following] = 1, -inverse @ A[:, free], inverse
    return (null, solve) if np.linalg.cond(null) < MAX_CONDITION else (turned[rank:].T, np.linalg.pinv(A))


def from_cvxpy(problem: Any, parameters: Mapping[Any, Draw], dtype: torch.dtype = torch.float32) -> CVXPYFamily:
    """Return a family to learn a solver for, from a CVXPY problem with parameters.

    `problem` is a quadratic program with a single minimiser, disciplined in its parameters in the sense of CVXPY
    ([Agrawal et al. 2019](https://arxiv.org/abs/1910.12430)). Only linear terms and right-hand sides may depend on the
    parameters. Equations are eliminated: a sample is a `QuadraticProgram` in the coordinates that they leave free. Its
    values are those of the CVXPY objective, negated if that is maximised; `unpack` returns the variables.

        s = cvxpy.Parameter(4, name="s")
        family = from_cvxpy(problem, {s: lambda batch, generator: torch.randn(batch, 4, generator=generator)})
        solver = lmd.learn(family, minutes=2)

    Args:
        problem: A `cvxpy.Problem`.
        parameters: A dict from each parameter, or its name, to a function (B, generator) that draws `(B, *shape)`.
        dtype: The dtype of the problems and the starting points.

    Returns:
        The family, whose samples are problems of type `QuadraticProgram`.
    """
    require("cvxpy")
    if not all(hasattr(problem, name) for name in ("is_qp", "is_dpp", "get_problem_data", "parameters")):
        raise CapabilityError("problem", type(problem).__name__, "a cvxpy.Problem")
    if not (problem.is_qp() and problem.is_dpp()) or problem.is_mixed_integer():
        accepted = "a quadratic program in which products of parameters do not occur (is_qp and is_dpp)"
        raise InputError("problem", "a problem of another kind", accepted)
    given = {key if isinstance(key, str) else key.name(): draw for key, draw in parameters.items()}
    names = {each.name() for each in problem.parameters()}
    if set(given) != names or not names:
        accepted = f"a function for each of {', '.join(sorted(names)) or 'its parameters, of which it has none'}"
        raise InputError("parameters", ", ".join(sorted(given)) or "none", accepted)
    for variable in problem.variables():
        if any(value for value in variable.attributes.values()):
            raise InputError("problem", f"the variable {variable.name()} with attributes", "constraints in their place")
    return CVXPYFamily(problem, given, dtype)
