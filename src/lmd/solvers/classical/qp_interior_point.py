"""A primal-dual interior-point method for quadratic programs, whatever their conditioning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from lmd.core.checks import check_positive
from lmd.solvers.base import DualState, Solver
from lmd.solvers.classical.epigraph import Epigraph, multiply, multiply_adjoint
from lmd.terms.quadratic import times

MAX_SIZE = 2048  # entries of x up to which a matrix of them is factorised for each instance
MAX_CHUNK = 1 << 24  # numbers of a matrix product for a chunk of instances
MAX_EQUATION_WIDTH = 1e-9  # ends of a row that are so close, relative to their size, are one equation
EQUATION_COMPLIANCE = 1e-8  # of an equation in a step, relative to P + A'wA, so that it may be there twice
BOUNDARY_SHARE = 0.995  # the share of the way to the boundary that a step goes at most
MAX_CORRECTED_ITERATIONS = 40  # Mehrotra's steps may lead in circles: later ones are plain and shorter
SPENT_SHARE = 1e-4  # an instance whose products are this share of what is rounding has ended
MIN_STEP = 1e-10  # an instance whose step is shorter has ended


class Program(NamedTuple):
    """min x'Px / 2 + q'(x, t) over low <= (Ax + t, t) <= high, t in rows of folds alone, in float64.

    In units in which P has the diagonal 1 and A unit rows.
    """

    P: Tensor  # `(n, n)` or `(B, n, n)`
    q: Tensor  # `(B, N)`
    blocks: tuple[Tensor | None, ...]  # A, in blocks of rows `(m_j, n)` or `(B, m_j, n)`; None is the identity
    folds: tuple[int, ...]  # how many entries of t are in the rows of each block: all or none
    low: Tensor  # `(B, m)`, as is `high`
    high: Tensor
    is_equation: Tensor  # `(B, m)`
    places: Tensor  # the rows that are equations in any instance `(e,)`
    equations: Tensor  # the rows of A there `(B, e, n)`; 0 where an instance has none

    # What (x, t) `(B, N)` and the multipliers `(B, m)` are multiplied by to be those of the problem
    x_unit: Tensor
    y_unit: Tensor

    @classmethod
    def of(cls, epigraph: Epigraph) -> Self:
        """The program of an epigraph in these units."""
        rows = epigraph.rows[:-1]
        low, high = (torch.cat([getattr(each, end) for each in epigraph.rows], dim=1) for end in ("low", "high"))
        column = _column_units(epigraph)
        blocks, lengths, fold_units = [], [], []
        for each in rows:
            A = None if each.matrix is None else each.matrix * column[..., None, :]
            size = column if A is None else torch.linalg.vector_norm(A, dim=-1)
            size = torch.where(size > 0, size, 1).expand(len(low), size.shape[-1])
            blocks.append(None if A is None else A / (size[0] if A.ndim == 2 else size)[..., None])
            lengths.append(size)
            fold_units += [size] if each.has_folds else []
        column = column.expand(len(low), epigraph.count)
        columns, length = torch.cat([column, *fold_units], dim=1), torch.cat([*lengths, *fold_units], dim=1)
        own = column if epigraph.P.ndim == 3 else column[0]
        P = own[..., None] * epigraph.P * own[..., None, :]
        q, low, high = columns * epigraph.q, low / length, high / length
        unit, by = _units(P, q, low, high)
        low, high, q, by_P = low / unit, high / unit, q * (unit / by), unit.square() / by
        P = P if bool((by_P == 1).all()) else P * by_P[..., None]  # one for each instance only where it has to be
        is_equation = high - low <= MAX_EQUATION_WIDTH * torch.maximum(low.abs(), high.abs())
        is_equation &= low.isfinite() & high.isfinite()
        places = is_equation.any(dim=0).nonzero().flatten()
        equations = q.new_zeros(len(q), 0, epigraph.count)
        if len(places):
            whole = torch.cat(_dense_blocks(blocks, len(q), P), dim=-2)
            equations = whole[..., places, :] * is_equation[:, places, None]
        folds = tuple(each.low.shape[1] if each.has_folds else 0 for each in rows)
        units = unit * columns, by / (unit * length)
        return cls(P, q, tuple(blocks), folds, low, high, is_equation, places, equations, *units)

    @property
    def size(self) -> int:
        """n, the entries of x."""
        return self.P.shape[-1]

    def parts(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """x and t."""
        return v[:, : self.size], v[:, self.size :]

    def split(self, y: Tensor) -> tuple[Tensor, ...]:
        """The rows of each block, and those of t."""
        sizes = [self.size if A is None else A.shape[-2] for A in self.blocks]
        return torch.split(y, [*sizes, self.q.shape[1] - self.size], dim=1)

    def at_folds(self, t: Tensor) -> list[Tensor]:
        """t in the rows of folds and 0 in the others, block by block."""
        parts = iter(torch.split(t, [count for count in self.folds if count], dim=1))
        sizes = [part.shape[1] for part in self.split(self.low)[:-1]]
        return [next(parts) if count else t.new_zeros(1, size) for count, size in zip(self.folds, sizes, strict=True)]

    def of_folds(self, parts: Sequence[Tensor]) -> Tensor:
        """The rows of folds of blocks, in the order of t."""
        own = [part for part, count in zip(parts, self.folds, strict=True) if count]
        return torch.cat(own, dim=1) if own else self.q[:, self.size :]

    def image(self, v: Tensor) -> Tensor:
        """(Ax + t, t) `(B, m)`."""
        x, t = self.parts(v)
        return torch.cat([*map(torch.add, [multiply(A, x) for A in self.blocks], self.at_folds(t)), t], dim=1)

    def adjoint(self, y: Tensor) -> Tensor:
        """The adjoint of `image` `(B, N)`."""
        *parts, last = self.split(y)
        return torch.cat([self.adjoint_of_blocks(parts), last + self.of_folds(parts)], dim=1)

    def adjoint_of_blocks(self, parts: Sequence[Tensor]) -> Tensor:
        """A'y `(B, n)` for y in blocks."""
        total = torch.zeros_like(self.q[:, : self.size])
        for A, part in zip(self.blocks, parts, strict=True):
            total = total + multiply_adjoint(A, part)
        return total

    def form(self, v: Tensor) -> Tensor:
        """Px, and 0 for t `(B, N)`."""
        x, t = self.parts(v)
        return torch.cat([times(x, self.P), torch.zeros_like(t)], dim=1)

    def gradient(self, v: Tensor, y: Tensor) -> Tensor:
        """Px + q + A'y `(B, N)`."""
        return self.form(v) + self.q + self.adjoint(y)


class LinearSystem:
    """P + A'wA and the equations, factorised, w the weights `(B, m)` of the rows; t is eliminated."""

    def __init__(self, program: Program, weight: Tensor) -> None:
        self.program = program
        *parts, self.held = program.split(weight)
        self.own = program.of_folds(parts)  # the weights of the rows of folds, and of their t
        both = zip(parts, program.at_folds(self.own * self.held / (self.own + self.held)), program.folds, strict=True)
        parts = [left if count else w for w, left, count in both]
        widest = max((A.shape[-2] for A in program.blocks if A is not None), default=1)
        chunk = max(1, MAX_CHUNK // (program.size * max(widest, program.size)))
        matrix = torch.cat([self._matrix(parts, slice(i, i + chunk)) for i in range(0, len(weight), chunk)])
        self.pivots: Tensor | None = None
        if len(program.places) == 0:
            self.factor = _cholesky(matrix)
            return
        equations, places = program.equations, program.places
        reach = (equations.square() / matrix.diagonal(dim1=1, dim2=2)[:, None]).sum(dim=2)
        compliance = torch.where(program.is_equation[:, places], -EQUATION_COMPLIANCE * reach, -1.0)
        below = torch.cat([equations, torch.diag_embed(compliance)], dim=2)
        whole = torch.cat([torch.cat([matrix, equations.mT], dim=2), below], dim=1)
        self.factor, self.pivots, _ = torch.linalg.lu_factor_ex(whole)

    def _matrix(self, weights: Sequence[Tensor], index: slice) -> Tensor:
        P = self.program.P
        batch = len(weights[0][index]) if weights else len(self.program.q[index])
        matrix = (P if P.ndim == 2 else P[index]).expand(batch, *P.shape[-2:]).clone()
        for A, w in zip(self.program.blocks, weights, strict=True):
            if A is None:
                matrix.diagonal(dim1=1, dim2=2).add_(w[index])
            else:
                A = A if A.ndim == 2 else A[index]
                matrix += (A.mT * w[index][:, None]) @ A
        return matrix

    def solve(self, right: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(x, t) `(B, N)`, and multipliers of the equations `(B, m)`, whose residuals are given `(B, m)`."""
        program, own, both = self.program, self.own, self.own + self.held
        right, t = program.parts(right)
        right = right - program.adjoint_of_blocks(program.at_folds(own / both * t))
        equality = torch.zeros_like(residual)
        if self.pivots is None:
            x = torch.cholesky_solve(right[..., None], self.factor)[..., 0]
        else:
            whole = torch.cat([right, -residual[:, program.places]], dim=1)
            found = torch.linalg.lu_solve(self.factor, self.pivots, whole[..., None])[..., 0]
            x, equality = found[:, : program.size], equality.index_copy(1, program.places, found[:, program.size :])
        t = (t - own * program.of_folds([multiply(A, x) for A in program.blocks])) / both
        return torch.cat([x, t], dim=1), equality


@dataclass(frozen=True, kw_only=True)
class QPInteriorState(DualState):
    """A point in float64, slacks to both ends of the rows and multipliers, each `(B, m)` and in units of `program`."""

    epigraph: Epigraph
    program: Program
    point: Tensor  # x and the variables of folds `(B, N)`
    slack: Tensor  # distances to the lower and to the upper ends `(2, B, m)`, positive; 1 where there is no end
    multiplier: Tensor  # those of the ends `(2, B, m)`, positive; 0 where there is no end
    equality: Tensor  # the multipliers of the equations `(B, m)`; 0 of other rows
    done: Tensor  # which instances `(B,)` are solved to rounding, or get no further, and stay where they are

    @property
    def settled(self) -> Tensor | None:
        return self.done

    def y(self) -> Tensor:
        """The multipliers of the rows `(B, m)`: those of upper ends and equations minus those of lower ends."""
        return self.multiplier[1] - self.multiplier[0] + self.equality


class QPInteriorPoint(Solver[QPInteriorState]):
    r"""min x'Px / 2 + q'x over l <= Kx <= u by Newton's method on the perturbed optimality conditions.

    With slacks s to the ends, multipliers p of 0 or more, and y the upper minus the lower ones, the conditions are
    Px + q + K'y = 0, slacks that are those of x, and products s p of 0. A step aims at products of sigma mu, mu being
    their mean, by Mehrotra's corrected direction ([Mehrotra 1992](https://doi.org/10.1137/0802028); for quadratic
    programs [Nocedal and Wright 2006](https://doi.org/10.1007/978-0-387-40065-5), section 16.6). Rows with l = u are
    equations, which have a multiplier and no slack. Ten to thirty iterations are usual; each factorises a matrix for
    each instance, of n and as many rows as there are equations. Everything is in float64, in units in which P has the
    diagonal 1 and rows of K the length 1. y is a dual point and certifies x.

    Args:
        precision: The sum of all products, relative to the value, at which an instance is solved; positive.

    >>> import lmd
    >>> problem = lmd.problems.QuadraticProgram(torch.eye(2), torch.tensor([[-3.0, 0.5]]), 0.0, 1.0)
    >>> result = lmd.solve(problem, 1e-6, solver=QPInteriorPoint())
    >>> result.status[0].name, result.x.round(decimals=3)
    ('TOLERANCE_REACHED', tensor([[1., 0.]]))
    """

    needs = ("operator", "pieces")
    stays_in_domain = True  # the domain of a composite problem is that of its data term, which is finite everywhere
    ends_proven = True
    step_cost: ClassVar = {}  # nothing that is an evaluation: a step factorises a matrix

    def __init__(self, precision: float = 1e-14) -> None:
        super().__init__()
        self.precision = check_positive("precision", precision)

    def init(self, problem: Any, x0: Tensor) -> QPInteriorState:
        """The minimiser with springs in place of bounds, slacks that are as long as they are missed, equal products."""
        epigraph = Epigraph(problem, x0)
        program = Program.of(epigraph)
        nearest = torch.zeros_like(program.low).clamp(program.low, program.high)
        weight = (~program.is_equation).to(nearest)
        right = program.adjoint(weight * nearest) - program.q
        point, _ = LinearSystem(program, weight).solve(right, (weight - 1) * nearest)
        return _begin(epigraph, program, point, torch.zeros_like(nearest), x0)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> QPInteriorState:
        epigraph = Epigraph(problem, x)
        program, y = Program.of(epigraph), epigraph.multipliers(x, dual)
        return _begin(epigraph, program, epigraph.point(x) / program.x_unit, y / program.y_unit, x)

    def step(self, problem: Any, state: QPInteriorState) -> QPInteriorState:
        if bool(state.done.all()):
            return replace(state, iteration=state.iteration + 1)
        after = _Newton(state).step()
        stays = state.done | ~after.point.isfinite().all(dim=1) | after.done
        names = ("point", "equality", "slack", "multiplier")
        chosen: Any = {name: torch.where(stays[:, None], getattr(state, name), getattr(after, name)) for name in names}
        whole = replace(after, **chosen)
        return replace(_with_answer(whole, state.x), done=stays | _is_solved(whole, self.precision))


class _Newton:
    """One step: the residuals, the factorised matrix, and directions from it."""

    def __init__(self, state: QPInteriorState) -> None:
        self.state, program = state, state.program
        ends, image = torch.stack([program.low, program.high]), program.image(state.point)
        self.has_end = ends.isfinite() & ~program.is_equation
        self.sign = torch.tensor([1.0, -1.0], dtype=ends.dtype, device=ends.device)[:, None, None]
        # By how much slacks are not those of x `(2, B, m)`
        self.missed = torch.where(self.has_end, self.sign * (image - ends) - state.slack, 0)
        self.residual = torch.where(program.is_equation, image - program.low, 0)  # that of equations `(B, m)`
        self.gradient = program.gradient(state.point, state.y())
        self.stiffness = torch.where(self.has_end, state.multiplier / state.slack, 0)
        self.system = LinearSystem(program, self.stiffness.sum(dim=0))
        self.count = self.has_end.sum(dim=(0, 2)).clamp(min=1)

    def mean(self, slack: Tensor, multiplier: Tensor) -> Tensor:
        """The mean of all products `(B,)`."""
        return (slack * multiplier).sum(dim=(0, 2)) / self.count

    def direction(self, excess: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Changes of x, slacks, multipliers and those of equations that reduce products `(2, B, m)` by `excess`."""
        state, program = self.state, self.state.program
        pressed = torch.where(self.has_end, excess / state.slack, 0) + self.stiffness * self.missed
        right = -self.gradient - program.adjoint((self.sign * pressed).sum(dim=0))
        x, equality = self.system.solve(right, self.residual)
        slack = torch.where(self.has_end, self.sign * program.image(x) + self.missed, 0)
        multiplier = torch.where(self.has_end, -excess / state.slack - self.stiffness * slack, 0)
        return x, slack, multiplier, equality

    def length(self, slack: Tensor, multiplier: Tensor) -> Tensor:
        """How far slacks and multipliers stay positive along their changes, at most 1 `(B,)`."""
        far = [
            torch.where(self.has_end & (change < 0), -size / change, torch.inf)
            for size, change in ((self.state.slack, slack), (self.state.multiplier, multiplier))
        ]
        return torch.minimum(*far).amin(dim=(0, 2)).clamp(max=1)

    def step(self) -> QPInteriorState:
        """The state after Mehrotra's step; `done` is where it is too short to matter."""
        state, products = self.state, self.state.slack * self.state.multiplier
        mean = self.mean(state.slack, state.multiplier)
        _, slack, multiplier, _ = self.direction(products)
        length = self.length(slack, multiplier)[:, None]
        after = self.mean(state.slack + length * slack, state.multiplier + length * multiplier)
        centring = torch.where(mean > 0, (after / mean).clamp(0, 1) ** 3, 0)
        second, is_late = slack * multiplier, state.iteration >= MAX_CORRECTED_ITERATIONS
        if is_late:
            second, centring = torch.zeros_like(second), centring.clamp(min=0.1)
        excess = torch.where(self.has_end, products + second - (centring * mean)[:, None], 0)
        x, slack, multiplier, equality = self.direction(excess)
        reach = self.length(slack, multiplier)
        length = torch.where(reach < 1, BOUNDARY_SHARE * reach, reach)[:, None]
        if is_late:  # the mean is that of a parabola: not past where it is least
            bend = 2 * self.mean(slack, multiplier).clamp(min=0)
            length = torch.minimum(length, ((1 - centring) * mean / bend).nan_to_num(nan=1.0)[:, None])
        return replace(
            state,
            iteration=state.iteration + 1,
            point=state.point + length * x,
            slack=state.slack + length * slack,
            multiplier=state.multiplier + length * multiplier,
            equality=state.equality + length * equality,
            done=~(length[:, 0] > MIN_STEP),
        )


def _begin(epigraph: Epigraph, program: Program, point: Tensor, y: Tensor, x0: Tensor) -> QPInteriorState:
    """At a point and multipliers: slacks and multipliers that are large enough for steps to be long."""
    image = program.image(point)
    has_end = torch.stack([program.low, program.high]).isfinite() & ~program.is_equation
    distance = torch.stack([image - program.low, program.high - image])
    missed = torch.where(has_end, -distance, 0).clamp(min=0).amax(dim=(0, 2))
    width = torch.where(has_end.all(dim=0), program.high - program.low, torch.inf)
    least = torch.minimum(torch.maximum(missed, missed.new_tensor(1e-2))[:, None], 0.25 * width)
    slack = torch.where(has_end, torch.maximum(distance, least), 1.0)
    slope = program.gradient(point, torch.zeros_like(y)).abs().amax(dim=1).clamp(min=1e-2)
    centred = (slope * torch.where(has_end, slack, 0).sum(dim=(0, 2)) / has_end.sum(dim=(0, 2)).clamp(min=1))[:, None]
    given = torch.stack([-y, y]).clamp(min=0)
    multiplier = torch.maximum(given, torch.minimum(centred / slack, 1e3 * slope[:, None]))
    state = QPInteriorState(
        x0,
        dual=y,
        epigraph=epigraph,
        program=program,
        point=point,
        slack=slack,
        multiplier=torch.where(has_end, multiplier, 0),
        equality=torch.where(program.is_equation, y, 0),
        done=~point.isfinite().all(dim=1),
    )
    return _with_answer(state, x0)


def _with_answer(state: QPInteriorState, like: Tensor) -> QPInteriorState:
    """The state with x and the dual points in the units and the dtype of the problem."""
    v = state.point * state.program.x_unit
    dual = state.epigraph.dual(v, state.y() * state.program.y_unit)
    x = v[:, : state.epigraph.count].reshape(like.shape)
    return replace(state, x=x.to(like.dtype), dual=dual.to(like.dtype))


def _is_solved(state: QPInteriorState, precision: float) -> Tensor:
    """Where products and residuals `(B,)` are rounding relative to the parts of the value.

    Or products far less than that: what is then left of residuals is rounding, which steps do not reduce.
    """
    program, x = state.program, state.point
    form, slope = (x * program.form(x)).sum(dim=1), (x * program.q).abs().sum(dim=1)
    image = program.image(x)
    beyond = torch.maximum(program.low - image, image - program.high).clamp(min=0).amax(dim=1)
    gradient = program.gradient(x, state.y()).abs().amax(dim=1)
    size = 1 + x.abs().amax(dim=1)
    products, least = (state.slack * state.multiplier).sum(dim=(0, 2)), precision * (form + slope)
    within = (beyond <= 1e-13 * size) & (gradient <= 1e-13 * size)
    return ((products <= least) & within) | (products <= SPENT_SHARE * least)


def _column_units(epigraph: Epigraph) -> Tensor:
    """What x `(n,)` or `(B, n)` is multiplied by: P gets the diagonal 1, and what it leaves out columns of length 1."""
    matrices = [rows.matrix for rows in epigraph.rows if rows.matrix is not None]
    diagonal = epigraph.P.diagonal(dim1=-2, dim2=-1)
    length = sum((A.square().sum(dim=-2) for A in matrices), start=torch.zeros_like(diagonal))
    size = torch.where(diagonal > 0, diagonal, length)
    return torch.where(size > 0, size, 1).rsqrt()


def _units(P: Tensor, q: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The sizes `(B, 1)` of x and of the value, from the slope, or from bounds where P is 0 or there is no slope.

    1 where all is 0.
    """
    is_curved = P.diagonal(dim1=-2, dim2=-1) > 0
    slope = (q[:, : P.shape[-1]] * is_curved).abs().amax(dim=1, keepdim=True)
    ends = torch.cat([low, high], dim=1).abs()
    ends = torch.where(ends.isfinite(), ends, 0).amax(dim=1, keepdim=True)
    size = torch.where(slope > 0, slope, ends)
    size = torch.where(size > 0, size, 1)
    every = q.abs().amax(dim=1, keepdim=True)
    has_curves = is_curved.any(dim=-1, keepdim=True)
    return size, torch.where(has_curves | (every == 0), size.square(), size * every)


def _cholesky(matrix: Tensor) -> Tensor:
    """The factors of matrices `(B, n, n)`, with a little more on the diagonal where they need it; NaN if that fails."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    for power in (-15, -12):
        if not bool(failed.any()):
            break
        matrix.diagonal(dim1=1, dim2=2).mul_(1 + 10.0**power).add_(10.0**power)
        factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where((failed > 0)[:, None, None], torch.nan, factor)


def _dense_blocks(blocks: Sequence[Tensor | None], batch: int, like: Tensor) -> list[Tensor]:
    """Blocks as matrices, the identity too, one for each instance where one of them has."""
    unit = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    dense = [unit if A is None else A for A in blocks]
    return [A.expand(batch, -1, -1) for A in dense] if any(A.ndim == 3 for A in dense) else dense
