"""A primal-dual interior-point method for quadratic programs, also with hinge terms, of any condition number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmd.operators.base import LinearOperator
from lmd.solvers.base import DualState, Solver, delegate
from lmd.terms.base import Pieces, filled
from lmd.terms.quadratic import times

MAX_EQUATION_WIDTH = 1e-9  # a row whose bounds are closer than this, relative to their size, is an equation
MAX_SIZE = 2048  # largest number of entries of x for which `lmd.solve` chooses this method
MAX_CHUNK = 1 << 24  # most numbers in the matrix product of one chunk of instances
EQUATION_COMPLIANCE = 1e-8  # regularisation of equations, relative to P + A'wA, so that they may be redundant
BOUNDARY_SHARE = 0.995  # largest share of the way to the boundary that a step may go
MAX_CORRECTED_ITERATIONS = 40  # Mehrotra's steps may cycle, so later steps are plain and shorter
PRECISION = 1e-14  # an instance is solved when the sum of its products is below this share of the value
SPENT_SHARE = 1e-4  # an instance also ends when its products are this share of the limit by `PRECISION`
MIN_STEP = 1e-10  # an instance ends when its step is shorter


def multiply(A: Tensor | None, x: Tensor) -> Tensor:
    """Ax `(B, m)` for A `(m, n)` or `(B, m, n)`; None is the identity."""
    return x if A is None else times(x, A.mT)


def multiply_adjoint(A: Tensor | None, p: Tensor) -> Tensor:
    """A'p `(B, n)`."""
    return p if A is None else times(p, A)


class Summand:
    """A term of z = Mx `(B, m)`, and the places of its rows in the program."""

    def __init__(self, pieces: Pieces, matrix: Tensor | None, z: Tensor, scale: float) -> None:
        def spread(number: Any) -> Tensor:
            return filled(number, exact).double().expand_as(exact).flatten(1)

        exact = z.double()
        self.matrix, self.shape, self.scale = matrix, z.shape, scale  # M (None: identity), factor of z in Kx
        self.curvature, self.slope, self.fold = map(spread, (pieces.curvature, pieces.slope, pieces.fold))
        self.kink, self.low, self.high = map(spread, (pieces.kink, pieces.low, pieces.high))
        self.total = pieces.total
        self.places: list[slice] = []  # rows that have one multiplier for each entry of z
        self.total_place: int | None = None

    def hessian(self) -> Tensor:
        """Return M'cM `(n, n)` with the curvatures c, or `(B, n, n)` if instances differ."""
        c = self.curvature[0] if bool((self.curvature == self.curvature[:1]).all()) else self.curvature
        if self.matrix is None:
            return torch.diag_embed(c)
        return (self.matrix.mT * c[..., None, :]) @ self.matrix

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the squares and slopes at z `(B, m)`."""
        return self.curvature * multiply(self.matrix, x) + self.slope

    def dual(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the subgradient at z `(B, m)` that belongs to the multipliers y of the program."""
        p = self.gradient(x)
        for place in self.places:
            p = p + y[:, place]
        return p if self.total_place is None else p + y[:, self.total_place, None]


class Program:
    r"""min x'Px / 2 + q'x + w't over low <= Ax + t <= high and t >= 0, with t = 0 in rows with w = 0, in float64.

    A fold w max(0, k - z) becomes wt over t >= 0 and z + t >= k; see `lmd.terms.base.Pieces`. The program is scaled so
    that P has diagonal 1, A has unit rows, and x and the value are near 1. x is `(B, n)`; t and multipliers `(B, m)`.
    """

    P: Tensor  # `(n, n)` or `(B, n, n)`
    q: Tensor  # `(B, n)`
    blocks: list[Tensor | None]  # A, in blocks of rows `(m_j, n)` or `(B, m_j, n)`; None is the identity
    low: Tensor  # `(B, m)`, as are `high` and `fold`, the weights w of folds
    high: Tensor
    fold: Tensor

    def __init__(self, problem: Any, x: Tensor) -> None:
        assert problem.pieces is not None
        (first, others), operator = problem.pieces, problem.operator
        self.behind = [
            Summand(pieces, None if K.is_identity else matrix_of(K, x), K(x), scale)
            for pieces, K, scale in zip(others, operator.blocks, operator.scales, strict=True)
        ]
        every = [*([] if first is None else [Summand(first, None, x, 1.0)]), *self.behind]
        P, q = torch.zeros((), dtype=torch.float64, device=x.device), torch.zeros_like(x.double().flatten(1))
        if problem.f.quadratic is not None:
            P, q = (each.detach().double() for each in problem.f.quadratic)
        rows: list[_Rows] = []
        for each in every:
            P, q = P + each.hessian(), q + multiply_adjoint(each.matrix, each.slope)
            _add_rows(rows, each)
        if not rows:
            rows = [_Rows(None, torch.full_like(q, -torch.inf), torch.full_like(q, torch.inf), torch.zeros_like(q))]
        self._set_in_units(P, q, rows)
        is_equation = self.high - self.low <= MAX_EQUATION_WIDTH * torch.maximum(self.low.abs(), self.high.abs())
        self.is_equation = is_equation & self.low.isfinite() & self.high.isfinite()
        self.is_fold = self.fold > 0
        ends = torch.stack([self.low, self.high]).isfinite() & ~self.is_equation
        self.has_end = torch.cat([ends, self.is_fold[None]])  # whether low, high and t have a slack `(3, B, m)`
        self.count = self.has_end.sum(dim=(0, 2)).clamp(min=1)  # number of slacks, at least 1 `(B,)`
        self.places = self.is_equation.any(dim=0).nonzero().flatten()  # rows that are equations in any instance `(e,)`
        self.equations = self._equations()  # these rows of A `(B, e, n)`; 0 for instances without that equation

    def _set_in_units(self, P: Tensor, q: Tensor, rows: list[_Rows]) -> None:
        low, high, fold = (torch.cat([getattr(each, name) for each in rows], dim=1) for name in ("low", "high", "fold"))
        column = _column_units(P, [each.matrix for each in rows if each.matrix is not None])
        self.blocks, lengths = [], []
        for each in rows:
            A = None if each.matrix is None else each.matrix * column[..., None, :]
            size = column if A is None else torch.linalg.vector_norm(A, dim=-1)
            size = torch.where(size > 0, size, 1)
            self.blocks.append(None if A is None else A / size[..., None])
            lengths.append(size.expand_as(each.low))
        length = torch.cat(lengths, dim=1)
        P = column[..., None] * P * column[..., None, :]
        q, low, high, fold = column * q, low / length, high / length, length * fold
        unit, by = _units(P, q, torch.cat([low, high], dim=1), fold)
        self.low, self.high, by_P = low / unit, high / unit, unit.square() / by
        self.q, self.fold = q * (unit / by), fold * (unit / by)
        self.P = P if bool((by_P == 1).all()) else P * by_P[..., None]  # one per instance only if they differ
        # Factors that turn x and the multipliers into those of the problem
        self.x_unit, self.y_unit = unit * column, by / (unit * length)

    def _equations(self) -> Tensor:
        batch, n = self.q.shape
        if not len(self.places):
            return self.q.new_zeros(batch, 0, n)
        unit = torch.eye(n, dtype=self.q.dtype, device=self.q.device)
        dense = [unit if A is None else A for A in self.blocks]
        if any(A.ndim == 3 for A in dense):
            dense = [A.expand(batch, -1, -1) for A in dense]
        return torch.cat(dense, dim=-2)[..., self.places, :] * self.is_equation[:, self.places, None]

    def image(self, x: Tensor) -> Tensor:
        """Ax `(B, m)`."""
        return torch.cat([multiply(A, x) for A in self.blocks], dim=1)

    def distances(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the distances Ax + t - low, high - (Ax + t) and t to the bounds `(3, B, m)`."""
        rows = self.image(x) + t
        return torch.stack([rows - self.low, self.high - rows, t])

    def split(self, y: Tensor) -> tuple[Tensor, ...]:
        """Split y `(B, m)` into the rows of each block."""
        return torch.split(y, [self.q.shape[1] if A is None else A.shape[-2] for A in self.blocks], dim=1)

    def adjoint(self, y: Tensor) -> Tensor:
        """A'y `(B, n)`."""
        return sum(map(multiply_adjoint, self.blocks, self.split(y)), start=torch.zeros_like(self.q))

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Px + q + A'y `(B, n)`."""
        return times(x, self.P) + self.q + self.adjoint(y)

    def point(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the x of the program for a point of the problem `(B, ...)`, and the least t that x allows."""
        x = x.double().flatten(1) / self.x_unit
        return x, torch.where(self.is_fold, self.low - self.image(x), 0).clamp(min=0)

    def answer(self, x: Tensor, y: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return a point of the problem, with the shape of `like`, and a dual point for x and multipliers y."""
        x, y = x * self.x_unit, y * self.y_unit
        parts = [each.dual(x, y) / each.scale for each in self.behind]
        dual = parts[0].reshape(self.behind[0].shape) if len(parts) == 1 else torch.cat(parts, dim=1)
        return x.reshape(like.shape).to(like.dtype), dual.to(like.dtype)

    def multipliers(self, x: Tensor, dual: Tensor) -> Tensor:
        """Return the multipliers y `(B, m)` that belong to a point and a dual point of the problem."""
        y, x = torch.zeros_like(self.low), x.double().flatten(1)
        sizes = [each.slope.shape[1] for each in self.behind]
        for each, part in zip(self.behind, torch.split(dual.double().flatten(1), sizes, dim=1), strict=True):
            for place in each.places[:1]:
                y[:, place] = each.scale * part - each.gradient(x)
        return y / self.y_unit


@dataclass
class _Rows:
    """Rows Ax + t of the program, with their bounds and the weights of t `(B, m)`."""

    matrix: Tensor | None  # `(m, n)` or `(B, m, n)`; None is the identity
    low: Tensor
    high: Tensor
    fold: Tensor


def _add_rows(rows: list[_Rows], term: Summand) -> None:
    """Add the rows for the bounds, the folds and the sum constraint of a term."""
    begin, infinity = sum(each.low.shape[1] for each in rows), torch.full_like(term.low, torch.inf)
    added = []
    if bool((term.low.isfinite() | term.high.isfinite()).any()):
        added.append(_Rows(term.matrix, term.low, term.high, torch.zeros_like(term.low)))
    if bool((term.fold > 0).any()):
        low = torch.where(term.fold > 0, term.kink, -infinity)
        added.append(_Rows(term.matrix, low, infinity, term.fold))
    width = term.low.shape[1]
    term.places = [slice(begin + j * width, begin + (j + 1) * width) for j in range(len(added))]
    if term.total is not None:
        term.total_place, end = begin + len(added) * width, torch.full_like(term.low[:, :1], term.total)
        ones = torch.ones_like(term.low[:1]) if term.matrix is None else term.matrix.sum(dim=-2, keepdim=True)
        added.append(_Rows(ones, end, end, torch.zeros_like(end)))
    rows += added


def _column_units(P: Tensor, matrices: list[Tensor]) -> Tensor:
    """Return scales of x `(n,)` or `(B, n)`: P gets the diagonal 1; if that is 0, the column of A gets length 1."""
    diagonal = P.diagonal(dim1=-2, dim2=-1)
    length = sum((A.square().sum(dim=-2) for A in matrices), start=torch.zeros_like(diagonal))
    size = torch.where(diagonal > 0, diagonal, length)
    return torch.where(size > 0, size, 1).rsqrt()


def _units(P: Tensor, q: Tensor, ends: Tensor, fold: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sizes `(B, 1)` of x and of the value, from the slope, else from bounds, else 1."""
    is_curved = P.diagonal(dim1=-2, dim2=-1) > 0
    slope = (q * is_curved).abs().amax(dim=1, keepdim=True)
    end = torch.where(ends.isfinite(), ends.abs(), 0).amax(dim=1, keepdim=True)
    size = torch.where(slope > 0, slope, end)
    size = torch.where(size > 0, size, 1)
    every = torch.maximum(q.abs().amax(dim=1, keepdim=True), fold.amax(dim=1, keepdim=True))
    has_curves = is_curved.any(dim=-1, keepdim=True)
    return size, torch.where(has_curves | (every == 0), size.square(), size * every)


def matrix_of(K: LinearOperator, x: Tensor) -> Tensor:
    """Return K as a matrix `(m, n)`, or `(B, m, n)` if instances have different ones, in float64."""
    count = x[0].numel()
    unit = torch.eye(count, dtype=x.dtype, device=x.device).reshape(count, *x.shape[1:])
    if K.select(0) is K:
        return K(unit).flatten(1).double().mT
    same = torch.zeros(count, dtype=torch.int64, device=x.device)
    each = [K.select(same + i)(unit).flatten(1).mT for i in range(len(x))]
    return torch.stack(each).double()


class LinearSystem:
    """The factorised matrix P + A'wA, bordered by the equations; w are the row weights `(B, m)` after eliminating t."""

    def __init__(self, program: Program, weight: Tensor, fold_weight: Tensor) -> None:
        self.program, self.weight, self.both = program, weight, weight + fold_weight
        weight = torch.where(program.is_fold, weight * fold_weight / self.both, weight)
        n, places = program.q.shape[1], program.places
        widest = max((A.shape[-2] for A in program.blocks if A is not None), default=1)
        chunk = max(1, MAX_CHUNK // (n * max(widest, n)))
        matrix = torch.cat([self._matrix(weight, slice(i, i + chunk)) for i in range(0, len(weight), chunk)])
        self.pivots: Tensor | None = None
        if len(places) == 0:
            self.factor = _cholesky(matrix)
            return
        reach = (program.equations.square() / matrix.diagonal(dim1=1, dim2=2)[:, None]).sum(dim=2)
        compliance = torch.where(program.is_equation[:, places], -EQUATION_COMPLIANCE * reach, -1.0)
        below = torch.cat([program.equations, torch.diag_embed(compliance)], dim=2)
        whole = torch.cat([torch.cat([matrix, program.equations.mT], dim=2), below], dim=1)
        self.factor, self.pivots, _ = torch.linalg.lu_factor_ex(whole)

    def _matrix(self, weight: Tensor, index: slice) -> Tensor:
        P = self.program.P
        matrix = (P if P.ndim == 2 else P[index]).expand(len(weight[index]), *P.shape[-2:]).clone()
        for A, w in zip(self.program.blocks, self.program.split(weight[index]), strict=True):
            if A is None:
                matrix.diagonal(dim1=1, dim2=2).add_(w)
            else:
                A = A if A.ndim == 2 else A[index]
                matrix += (A.mT * w[:, None]) @ A
        return matrix

    def solve(self, right: Tensor, fold_right: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x `(B, n)`, t and the multipliers of the equations `(B, m)`; `residual` belongs to the equations."""
        program = self.program
        right = right - program.adjoint(torch.where(program.is_fold, self.weight / self.both * fold_right, 0))
        equality = torch.zeros_like(residual)
        if self.pivots is None:
            x = torch.cholesky_solve(right[..., None], self.factor)[..., 0]
        else:
            whole = torch.cat([right, -residual[:, program.places]], dim=1)
            found = torch.linalg.lu_solve(self.factor, self.pivots, whole[..., None])[..., 0]
            x, equality = found[:, : right.shape[1]], equality.index_copy(1, program.places, found[:, right.shape[1] :])
        t = torch.where(program.is_fold, (fold_right - self.weight * program.image(x)) / self.both, 0)
        return x, t, equality


@dataclass(frozen=True, kw_only=True)
class QPInteriorState(DualState):
    """A point in float64 with the slacks and multipliers of low, high and t `(3, B, m)`, in units of `program`."""

    program: Program
    point: Tensor  # x `(B, n)`
    t: Tensor  # the variables of folds `(B, m)`; 0 in other rows
    slack: Tensor  # positive distances to the bounds; 1 if there is no bound
    multiplier: Tensor  # positive multipliers of the bounds; 0 if there is no bound
    equality: Tensor  # the multipliers of the equations `(B, m)`; 0 in other rows
    done: Tensor  # instances `(B,)` that are solved to rounding or cannot improve; they no longer move

    settled = delegate("done")

    def y(self) -> Tensor:
        """Return the multipliers of rows `(B, m)`: upper bounds plus equations minus lower bounds."""
        return self.multiplier[1] - self.multiplier[0] + self.equality


class QPInteriorPoint(Solver[QPInteriorState]):
    r"""min x'Px / 2 + q'x over l <= Kx <= u by Newton's method on the perturbed optimality conditions.

    Let s be the slacks to the bounds, p >= 0 their multipliers, and y the upper minus the lower multipliers. Optimality
    means Px + q + K'y = 0, s = the distances of Kx to the bounds, and s p = 0. A step aims at s p = sigma mu, mu the
    mean of s p, along Mehrotra's corrected direction ([Mehrotra 1992](https://doi.org/10.1137/0802028); for quadratic
    programs [Nocedal and Wright 2006](https://doi.org/10.1007/978-0-387-40065-5), section 16.6). Rows with l = u are
    equations, which have a multiplier and no slack. Ten to thirty iterations are usual. Each factorises one matrix
    per instance, whose size is n plus the number of equations. All of this is in float64, scaled so that P has the
    diagonal 1 and rows of K have length 1. y is a dual point and certifies x.

    >>> import lmd
    >>> problem = lmd.problems.QuadraticProgram(torch.eye(2), torch.tensor([[-3.0, 0.5]]), 0.0, 1.0)
    >>> result = lmd.solve(problem, 1e-6, solver=QPInteriorPoint())
    >>> result.status[0].name, result.x.round(decimals=3)
    ('TOLERANCE_REACHED', tensor([[1., 0.]]))
    """

    needs = ("operator", "pieces")
    stays_in_domain = True  # the domain of the problem is the domain of f, and f is finite everywhere
    ends_proven = True
    step_cost: ClassVar = {}  # a step factorises a matrix but evaluates nothing

    def init(self, problem: Any, x0: Tensor) -> QPInteriorState:
        """Start at the minimiser with squared penalties in place of bounds, with large slacks and equal products."""
        program = Program(problem, x0)
        nearest = torch.zeros_like(program.low).clamp(program.low, program.high)
        weight = (~program.is_equation).to(nearest)
        right = program.adjoint(weight * nearest) - program.q
        system = LinearSystem(program, weight, program.is_fold.to(nearest))
        x, t, _ = system.solve(right, nearest - program.fold, (weight - 1) * nearest)
        return _begin(program, x, t, torch.zeros_like(nearest), x0)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> QPInteriorState:
        program = Program(problem, x)
        return _begin(program, *program.point(x), program.multipliers(x, dual), x)

    def step(self, problem: Any, state: QPInteriorState) -> QPInteriorState:
        if bool(state.done.all()):
            return replace(state, iteration=state.iteration + 1)
        after = _Newton(state).step()
        stays = state.done | ~after.point.isfinite().all(dim=1) | after.done
        names = ("point", "t", "equality", "slack", "multiplier")
        chosen: Any = {name: torch.where(stays[:, None], getattr(state, name), getattr(after, name)) for name in names}
        whole = _with_answer(replace(after, **chosen), state.x)
        return replace(whole, done=stays | _is_solved(whole))


class _Newton:
    """One step: the residuals, the factorised matrix, and directions from it."""

    def __init__(self, state: QPInteriorState) -> None:
        self.state, program, y = state, state.program, state.y()
        self.has_end, distance = program.has_end, program.distances(state.point, state.t)
        self.missed = torch.where(self.has_end, distance - state.slack, 0)  # errors of the slacks at x
        self.residual = torch.where(program.is_equation, distance[0], 0)  # residual of the equations `(B, m)`
        self.gradient, self.fold_gradient = program.gradient(state.point, y), program.fold + y - state.multiplier[2]
        self.stiffness = torch.where(self.has_end, state.multiplier / state.slack, 0)
        self.system = LinearSystem(program, self.stiffness[0] + self.stiffness[1], self.stiffness[2])

    def mean(self, slack: Tensor, multiplier: Tensor) -> Tensor:
        """Return the mean of all products slack * multiplier `(B,)`."""
        return (slack * multiplier).sum(dim=(0, 2)) / self.state.program.count

    def direction(self, excess: Tensor) -> tuple[Tensor, ...]:
        """Return changes of x, t, slacks and both kinds of multipliers that lower products `(3, B, m)` by `excess`."""
        program = self.state.program
        low, high, fold = torch.where(self.has_end, excess / self.state.slack, 0) + self.stiffness * self.missed
        right, fold_right = -self.gradient - program.adjoint(low - high), -self.fold_gradient - (low - high) - fold
        x, t, equality = self.system.solve(right, fold_right, self.residual)
        rows = program.image(x) + t
        slack = torch.where(self.has_end, torch.stack([rows, -rows, t]) + self.missed, 0)
        multiplier = torch.where(self.has_end, -excess / self.state.slack - self.stiffness * slack, 0)
        return x, t, slack, multiplier, equality

    def length(self, slack: Tensor, multiplier: Tensor) -> Tensor:
        """Return the longest step `(B,)`, at most 1, along which slacks and multipliers stay positive."""
        far = [
            torch.where(self.has_end & (change < 0), -size / change, torch.inf)
            for size, change in ((self.state.slack, slack), (self.state.multiplier, multiplier))
        ]
        return torch.minimum(*far).amin(dim=(0, 2)).clamp(max=1)

    def step(self) -> QPInteriorState:
        """Return the state after Mehrotra's step; `done` marks instances whose step is too short to matter."""
        state, products = self.state, self.state.slack * self.state.multiplier
        mean = self.mean(state.slack, state.multiplier)
        _, _, slack, multiplier, _ = self.direction(products)
        length = self.length(slack, multiplier)[:, None]
        after = self.mean(state.slack + length * slack, state.multiplier + length * multiplier)
        centring = torch.where(mean > 0, (after / mean).clamp(0, 1) ** 3, 0)
        second, is_late = slack * multiplier, state.iteration >= MAX_CORRECTED_ITERATIONS
        if is_late:
            second, centring = torch.zeros_like(second), centring.clamp(min=0.1)
        excess = torch.where(self.has_end, products + second - (centring * mean)[:, None], 0)
        x, t, slack, multiplier, equality = self.direction(excess)
        reach = self.length(slack, multiplier)
        length = torch.where(reach < 1, BOUNDARY_SHARE * reach, reach)[:, None]
        if is_late:  # the mean product is a parabola along the step: do not pass its minimum
            bend = 2 * self.mean(slack, multiplier).clamp(min=0)
            length = torch.minimum(length, ((1 - centring) * mean / bend).nan_to_num(nan=1.0)[:, None])
        return replace(
            state,
            iteration=state.iteration + 1,
            point=state.point + length * x,
            t=state.t + length * t,
            slack=state.slack + length * slack,
            multiplier=state.multiplier + length * multiplier,
            equality=state.equality + length * equality,
            done=~(length[:, 0] > MIN_STEP),
        )


def _begin(program: Program, x: Tensor, t: Tensor, y: Tensor, x0: Tensor) -> QPInteriorState:
    """Return the state at a point and multipliers, with slacks and multipliers raised so that steps can be long."""
    has_end, distance = program.has_end, program.distances(x, t)
    missed = torch.where(has_end, -distance, 0).clamp(min=0).amax(dim=(0, 2))
    width = torch.where(has_end[:2].all(dim=0), program.high - program.low, torch.inf)
    least = torch.minimum(missed.clamp(min=1e-2)[:, None], 0.25 * width)
    slack = torch.where(has_end, torch.maximum(distance, least), 1.0)
    slope = torch.maximum(program.gradient(x, torch.zeros_like(y)).abs().amax(dim=1), program.fold.amax(dim=1))
    slope = slope.clamp(min=1e-2)
    centred = (slope * torch.where(has_end, slack, 0).sum(dim=(0, 2)) / program.count)[:, None]
    given = torch.stack([-y, y, torch.zeros_like(y)]).clamp(min=0)
    multiplier = torch.maximum(given, torch.minimum(centred / slack, 1e3 * slope[:, None]))
    state = QPInteriorState(
        x0,
        dual=y,
        program=program,
        point=x,
        t=t,
        slack=slack,
        multiplier=torch.where(has_end, multiplier, 0),
        equality=torch.where(program.is_equation, y, 0),
        done=~x.isfinite().all(dim=1),
    )
    return _with_answer(state, x0)


def _with_answer(state: QPInteriorState, like: Tensor) -> QPInteriorState:
    """Return the state with x and the dual points in the units and the dtype of the problem."""
    x, dual = state.program.answer(state.point, state.y(), like)
    return replace(state, x=x, dual=dual)


def _is_solved(state: QPInteriorState) -> Tensor:
    """Return which instances `(B,)` have products within rounding of the value and residuals within rounding of x.

    Instances with far smaller products are solved too: their residuals are rounding, which steps do not reduce.
    """
    program, x, t, y = state.program, state.point, state.t, state.y()
    form, slope = (x * times(x, program.P)).sum(dim=1), (x * program.q).abs().sum(dim=1)
    slope = slope + (t * program.fold).abs().sum(dim=1)
    beyond = (-program.distances(x, t)).clamp(min=0).amax(dim=(0, 2))
    fold_gradient = torch.where(program.is_fold, program.fold + y - state.multiplier[2], 0)
    gradient = torch.cat([program.gradient(x, y), fold_gradient], dim=1).abs().amax(dim=1)
    size = 1 + torch.cat([x, t], dim=1).abs().amax(dim=1)
    products, least = (state.slack * state.multiplier).sum(dim=(0, 2)), PRECISION * (form + slope)
    within = (beyond <= 1e-13 * size) & (gradient <= 1e-13 * size)
    return ((products <= least) & within) | (products <= SPENT_SHARE * least)


def _cholesky(matrix: Tensor) -> Tensor:
    """Return Cholesky factors of matrices `(B, n, n)`, with a raised diagonal if needed; NaN if that fails."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    for power in (-15, -12):
        if not bool(failed.any()):
            break
        matrix.diagonal(dim1=1, dim2=2).mul_(1 + 10.0**power).add_(10.0**power)
        factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where((failed > 0)[:, None, None], torch.nan, factor)
