"""A primal-dual interior-point method for quadratic programs: what ends at the optimum, whatever the conditioning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from lmd.core.checks import check_positive
from lmd.problems.base import Problem
from lmd.solvers.base import DualState, Solver
from lmd.solvers.classical.epigraph import Epigraph, PiecewiseProblem
from lmd.terms.quadratic import times

MAX_SIZE = 2048
"""Entries of x up to which a matrix of them is factorised for each instance."""

MAX_CHUNK = 1 << 24
"""Numbers of a matrix product for a chunk of instances."""

NARROW = 1e-9
"""Ends of a row that are so close, relative to their size, are one equation."""

GIVE = 1e-8
"""By how much an equation may give way to its multiplier in a step, beside what P + A'wA does: so that it may be there
twice."""

BOUNDARY = 0.995
"""The share of the way to the boundary that a step goes at most."""

USUAL = 40
"""Iterations that are enough but for programs on which Mehrotra's steps lead in circles: from then on, they are without
corrections and no longer than the mean of the products falls."""

SPENT = 1e-4
"""An instance whose products are this share of what is rounding has ended."""

MIN_STEP = 1e-10
"""An instance whose step is shorter has ended."""


class Program(NamedTuple):
    """min x'Px / 2 + q'(x, t) over low <= (Ax + t, t) <= high, t in rows of folds alone, in float64.

    In units in which P has the diagonal 1 and A unit rows.
    """

    P: Tensor
    """`(n, n)` or `(B, n, n)`."""

    q: Tensor
    """`(B, N)`."""

    blocks: tuple[Tensor | None, ...]
    """A, in blocks of rows `(m_j, n)` or `(B, m_j, n)`; None is the identity."""

    folds: tuple[int, ...]
    """How many entries of t are in the rows of each block: all or none."""

    low: Tensor
    high: Tensor
    """`(B, m)`."""

    equal: Tensor
    """Which rows `(B, m)` are equations."""

    places: Tensor
    """Those that are in any instance `(e,)`."""

    equations: Tensor
    """The rows of A there `(B, e, n)`; 0 where an instance has none."""

    x_unit: Tensor
    y_unit: Tensor
    """What (x, t) `(B, N)` and the multipliers `(B, m)` are multiplied by to be those of the problem."""

    @classmethod
    def of(cls, epigraph: Epigraph) -> Self:
        """The same program in these units."""
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
        columns = torch.cat([column, *fold_units], dim=1)
        length = torch.cat([*lengths, *fold_units], dim=1)
        P = (
            column[..., None] * epigraph.P * column[..., None, :]
            if epigraph.P.ndim == 3
            else (column[0, :, None] * epigraph.P * column[0])
        )
        q, low, high = columns * epigraph.q, low / length, high / length
        unit, by = _size_of(P, q, low, high)
        low, high, q, P = low / unit, high / unit, q * (unit / by), _scaled(P, unit.square() / by)
        equal = high - low <= NARROW * torch.maximum(low.abs(), high.abs())
        equal &= low.isfinite() & high.isfinite()
        places = equal.any(dim=0).nonzero().flatten()
        folds = tuple(each.low.shape[1] if each.has_folds else 0 for each in rows)
        none = q.new_zeros(len(q), 0, epigraph.count)
        made = cls(P, q, tuple(blocks), folds, low, high, equal, places, none, unit * columns, by / (unit * length))
        if len(places) == 0:
            return made
        whole = torch.cat([made._dense(A) for A in _alike(blocks, len(q))], dim=-2)
        return made._replace(equations=whole[..., places, :] * equal[:, places, None])

    def _dense(self, A: Tensor | None) -> Tensor:
        return torch.eye(self.P.shape[-1], dtype=self.q.dtype, device=self.q.device) if A is None else A

    def parts(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """x and t."""
        x, t = torch.split(v, [self.P.shape[-1], v.shape[1] - self.P.shape[-1]], dim=1)
        return x, t

    def at_folds(self, t: Tensor) -> list[Tensor]:
        """t in the rows of folds and 0 in the others, block by block."""
        parts = iter(torch.split(t, [count for count in self.folds if count], dim=1))
        sizes = [part.shape[1] for part in self.split(self.low)[:-1]]
        return [next(parts) if count else t.new_zeros(1, size) for count, size in zip(self.folds, sizes, strict=True)]

    def of_folds(self, parts: Sequence[Tensor]) -> Tensor:
        """The rows of folds of blocks, in the order of t."""
        own = [part for part, count in zip(parts, self.folds, strict=True) if count]
        return torch.cat(own, dim=1) if own else self.q[:, self.P.shape[-1] :]

    def images(self, x: Tensor) -> list[Tensor]:
        """Ax, block by block."""
        return [x if A is None else times(x, A.mT) for A in self.blocks]

    def image(self, v: Tensor) -> Tensor:
        """(Ax + t, t) `(B, m)`."""
        x, t = self.parts(v)
        return torch.cat([*map(torch.add, self.images(x), self.at_folds(t)), t], dim=1)

    def pull(self, y: Tensor) -> Tensor:
        """The adjoint of `image` `(B, N)`."""
        *parts, last = self.split(y)
        return torch.cat([self.pull_blocks(parts), last + self.of_folds(parts)], dim=1)

    def pull_blocks(self, parts: Sequence[Tensor]) -> Tensor:
        """A'y `(B, n)` for y in blocks."""
        total = torch.zeros_like(self.q[:, : self.P.shape[-1]])
        for A, part in zip(self.blocks, parts, strict=True):
            total = total + (part if A is None else times(part, A))
        return total

    def split(self, y: Tensor) -> tuple[Tensor, ...]:
        count = self.P.shape[-1]
        sizes = [count if A is None else A.shape[-2] for A in self.blocks]
        return torch.split(y, [*sizes, self.q.shape[1] - count], dim=1)

    def form(self, v: Tensor) -> Tensor:
        """Px, and 0 for t `(B, N)`."""
        x, t = self.parts(v)
        return torch.cat([times(x, self.P), torch.zeros_like(t)], dim=1)

    def gradient(self, v: Tensor, y: Tensor) -> Tensor:
        """Px + q + A'y `(B, N)`."""
        return self.form(v) + self.q + self.pull(y)

    def system(self, weight: Tensor) -> System:
        """That of P + A'wA and the equations, factorised, w the weights `(B, m)` of the rows; t is eliminated."""
        *parts, held = self.split(weight)
        own = self.of_folds(parts)
        both = zip(parts, self.at_folds(own * held / (own + held)), self.folds, strict=True)
        parts = [left if count else w for w, left, count in both]
        count = self.P.shape[-1]
        widest = max((A.shape[-2] for A in self.blocks if A is not None), default=1)
        chunk = max(1, MAX_CHUNK // (count * max(widest, count)))
        matrix = torch.cat([self._matrix(parts, slice(i, i + chunk)) for i in range(0, len(weight), chunk)])
        if len(self.places) == 0:
            return System(self, weight, *_cholesky(matrix))
        reach = (self.equations.square() / matrix.diagonal(dim1=1, dim2=2)[:, None]).sum(dim=2)
        give = torch.where(self.equal[:, self.places], -GIVE * reach, -1.0)
        below = torch.cat([self.equations, torch.diag_embed(give)], dim=2)
        whole = torch.cat([torch.cat([matrix, self.equations.mT], dim=2), below], dim=1)
        factor, pivots, _ = torch.linalg.lu_factor_ex(whole)
        return System(self, weight, factor, pivots)

    def _matrix(self, weights: Sequence[Tensor], index: slice) -> Tensor:
        batch = len(weights[0][index]) if weights else len(self.q[index])
        matrix = (self.P if self.P.ndim == 2 else self.P[index]).expand(batch, *self.P.shape[-2:]).clone()
        for A, w in zip(self.blocks, weights, strict=True):
            if A is None:
                matrix.diagonal(dim1=1, dim2=2).add_(w[index])
            else:
                A = A if A.ndim == 2 else A[index]
                matrix += (A.mT * w[index][:, None]) @ A
        return matrix


class System(NamedTuple):
    """The linear system of a step, factorised."""

    program: Program
    weight: Tensor
    """Of the rows `(B, m)`."""

    factor: Tensor
    """`(B, n, n)` of Cholesky's, or `(B, n + e, n + e)` of Gauss's with equations."""

    pivots: Tensor | None

    def solve(self, right: Tensor, broken: Tensor) -> tuple[Tensor, Tensor]:
        """(x, t) `(B, N)`, and multipliers of the equations `(B, m)`, which are `broken` by so much."""
        program = self.program
        right, t = program.parts(right)
        *parts, held = program.split(self.weight)
        own = program.of_folds(parts)
        x, hold = self._solve(right - program.pull_blocks(program.at_folds(own / (own + held) * t)), broken)
        t = (t - own * program.of_folds(program.images(x))) / (own + held)
        return torch.cat([x, t], dim=1), hold

    def _solve(self, right: Tensor, broken: Tensor) -> tuple[Tensor, Tensor]:
        program, hold = self.program, torch.zeros_like(broken)
        if self.pivots is None:
            return torch.cholesky_solve(right[..., None], self.factor)[..., 0], hold
        whole = torch.cat([right, -broken[:, program.places]], dim=1)
        found = torch.linalg.lu_solve(self.factor, self.pivots, whole[..., None])[..., 0]
        x, change = torch.split(found, [right.shape[1], len(program.places)], dim=1)
        return x, hold.index_copy(1, program.places, change)


@dataclass(frozen=True, kw_only=True)
class QPInteriorState(DualState):
    """A point in float64, slacks to both ends of the rows and multipliers, each `(B, m)` and in units of `program`."""

    epigraph: Epigraph
    program: Program

    point: Tensor
    """x and the variables of folds `(B, N)`."""

    slack: Tensor
    """Distances to the lower and to the upper ends `(2, B, m)`, positive; 1 where there is no end."""

    push: Tensor
    """Their multipliers, positive; 0 where there is no end."""

    hold: Tensor
    """The multipliers of the equations `(B, m)`; 0 of other rows."""

    done: Tensor
    """Which instances `(B,)` are solved to rounding, or get no further, and stay where they are."""

    @property
    def settled(self) -> Tensor | None:
        return self.done


class QPInteriorPoint(Solver[QPInteriorState, PiecewiseProblem]):
    r"""min x'Px / 2 + q'x over l <= Kx <= u by Newton's method on the perturbed optimality conditions.

    With slacks s to the ends, multipliers p of 0 or more, and y the upper minus the lower ones, the conditions are
    Px + q + K'y = 0, slacks that are those of x, and products s p of 0. A step aims at products of sigma mu, mu being
    their mean, by Mehrotra's corrected direction ([Mehrotra 1992](https://doi.org/10.1137/0802028); for quadratic
    programs [Nocedal and Wright 2006](https://doi.org/10.1007/978-0-387-40065-5), section 16.6). Rows with l = u are
    equations, which have a multiplier and no slack. Ten to thirty iterations are usual, whatever the conditioning; each
    factorises a matrix for each instance, of n and as many rows as there are equations. Everything is in float64,
    in units in which P has the diagonal 1 and rows of K the length 1. y is a dual point and certifies x.

    Args:
        precision: The sum of all products, relative to the value, at which an instance is solved; positive.

    >>> import lmd
    >>> problem = lmd.problems.QuadraticProgram(torch.eye(2), torch.tensor([[-3.0, 0.5]]), 0.0, 1.0)
    >>> result = lmd.solve(problem, 1e-6, solver=QPInteriorPoint())
    >>> result.status[0].name, result.x.round(decimals=3)
    ('TOLERANCE_REACHED', tensor([[1., 0.]]))
    """

    def __init__(self, precision: float = 1e-14) -> None:
        super().__init__()
        self.precision = check_positive("precision", precision)

    needs = ("operator", "pieces")

    ends_proven = True

    @property
    def step_cost(self) -> dict[str, int]:
        """Nothing that is an evaluation: a step factorises a matrix."""
        return {}

    def keeps_to_domain(self, problem: Problem) -> bool:
        """The domain of a composite problem is that of its data term, which is finite everywhere."""
        return True

    def init(self, problem: PiecewiseProblem, x0: Tensor) -> QPInteriorState:
        """The minimiser with springs in place of bounds, slacks that are as long as they are missed, equal products."""
        epigraph = Epigraph(problem, x0)
        program = Program.of(epigraph)
        nearest = torch.zeros_like(program.low).clamp(program.low, program.high)
        weight = (~program.equal).to(nearest)
        point, _ = program.system(weight).solve(program.pull(weight * nearest) - program.q, (weight - 1) * nearest)
        return _begun(epigraph, program, point, torch.zeros_like(nearest), x0)

    def resume(self, problem: PiecewiseProblem, x: Tensor, dual: Tensor) -> QPInteriorState:
        epigraph = Epigraph(problem, x)
        program, y = Program.of(epigraph), epigraph.multipliers(x, dual)
        return _begun(epigraph, program, epigraph.point(x) / program.x_unit, y / program.y_unit, x)

    def step(self, problem: PiecewiseProblem, state: QPInteriorState) -> QPInteriorState:
        if bool(state.done.all()):
            return replace(state, iteration=state.iteration + 1)
        following = _Newton(state).advanced()
        stays = state.done | ~following.point.isfinite().all(dim=1) | following.done
        point, hold = (_kept(stays, getattr(state, name), getattr(following, name)) for name in ("point", "hold"))
        slack, push = (_kept(stays, getattr(state, name), getattr(following, name), 1) for name in ("slack", "push"))
        whole = replace(following, point=point, hold=hold, slack=slack, push=push)
        return replace(_answered(whole, state.x), done=stays | _is_solved(whole, self.precision))


class _Newton:
    """One step: the residuals, the factorised matrix, and directions from it."""

    def __init__(self, state: QPInteriorState) -> None:
        self.state, program = state, state.program
        ends, self.image = torch.stack([program.low, program.high]), program.image(state.point)
        self.ended = ends.isfinite() & ~program.equal
        self.sign = torch.tensor([1.0, -1.0], dtype=ends.dtype, device=ends.device)[:, None, None]
        missed = self.sign * (self.image - ends) - state.slack
        self.missed = torch.where(self.ended, missed, 0)
        """By how much slacks are not those of x `(2, B, m)`."""
        self.broken = torch.where(program.equal, self.image - program.low, 0)
        """By how much equations are `(B, m)`."""
        self.gradient = program.gradient(state.point, _multipliers(state))
        self.stiffness = torch.where(self.ended, state.push / state.slack, 0)
        self.system = program.system(self.stiffness.sum(dim=0))
        self.count = self.ended.sum(dim=(0, 2)).clamp(min=1)

    def mean(self, slack: Tensor, push: Tensor) -> Tensor:
        """The mean of all products `(B,)`."""
        return (slack * push).sum(dim=(0, 2)) / self.count

    def direction(self, excess: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Changes of x, slacks, pushes and holds; the `excess` of products `(2, B, m)` is to go."""
        state, program = self.state, self.state.program
        pressed = torch.where(self.ended, excess / state.slack, 0) + self.stiffness * self.missed
        x, hold = self.system.solve(-self.gradient - program.pull((self.sign * pressed).sum(dim=0)), self.broken)
        moved = program.image(x)
        slack = torch.where(self.ended, self.sign * moved + self.missed, 0)
        push = torch.where(self.ended, -excess / state.slack - self.stiffness * slack, 0)
        return x, slack, push, hold

    def length(self, slack: Tensor, push: Tensor) -> Tensor:
        """How far slacks and pushes stay positive along their changes, at most 1 `(B,)`."""
        state = self.state
        far = [
            torch.where(self.ended & (change < 0), -size / change, torch.inf)
            for size, change in ((state.slack, slack), (state.push, push))
        ]
        return torch.minimum(*far).amin(dim=(0, 2)).clamp(max=1)

    def advanced(self) -> QPInteriorState:
        """After Mehrotra's step; `done` is where it is too short to matter."""
        state, products = self.state, self.state.slack * self.state.push
        mean = self.mean(state.slack, state.push)
        _, slack, push, _ = self.direction(products)
        length = self.length(slack, push)[:, None]
        after = self.mean(state.slack + length * slack, state.push + length * push)
        centring = torch.where(mean > 0, (after / mean).clamp(0, 1) ** 3, 0)
        second, is_late = slack * push, state.iteration >= USUAL
        if is_late:
            second, centring = torch.zeros_like(second), centring.clamp(min=0.1)
        x, slack, push, hold = self.direction(
            torch.where(self.ended, products + second - (centring * mean)[:, None], 0)
        )
        reach = self.length(slack, push)
        length = torch.where(reach < 1, BOUNDARY * reach, reach)[:, None]
        if is_late:  # the mean is that of a parabola: not past where it is least
            bend = 2 * self.mean(slack, push).clamp(min=0)
            length = torch.minimum(length, ((1 - centring) * mean / bend).nan_to_num(nan=1.0)[:, None])
        return replace(
            state,
            iteration=state.iteration + 1,
            point=state.point + length * x,
            slack=state.slack + length * slack,
            push=state.push + length * push,
            hold=state.hold + length * hold,
            done=~(length[:, 0] > MIN_STEP),
        )


def _begun(epigraph: Epigraph, program: Program, point: Tensor, y: Tensor, x0: Tensor) -> QPInteriorState:
    """At a point and multipliers: slacks and pushes that are large enough for steps to be long."""
    ends, image = torch.stack([program.low, program.high]), program.image(point)
    ended = ends.isfinite() & ~program.equal
    distance = torch.stack([image - program.low, program.high - image])
    missed = torch.where(ended, -distance, 0).clamp(min=0).amax(dim=(0, 2))
    width = torch.where(ended.all(dim=0), program.high - program.low, torch.inf)
    least = torch.minimum(torch.maximum(missed, missed.new_tensor(1e-2))[:, None], 0.25 * width)
    slack = torch.where(ended, torch.maximum(distance, least), 1.0)
    slope = program.gradient(point, torch.zeros_like(y)).abs().amax(dim=1).clamp(min=1e-2)
    centred = (slope * torch.where(ended, slack, 0).sum(dim=(0, 2)) / ended.sum(dim=(0, 2)).clamp(min=1))[:, None]
    given = torch.stack([-y, y]).clamp(min=0)
    push = torch.where(ended, torch.maximum(given, torch.minimum(centred / slack, 1e3 * slope[:, None])), 0)
    hold = torch.where(program.equal, y, 0)
    done = ~point.isfinite().all(dim=1)
    options: dict[str, Any] = {"epigraph": epigraph, "program": program, "point": point, "done": done}
    state = QPInteriorState(x0, dual=y, slack=slack, push=push, hold=hold, **options)
    return _answered(state, x0)


def _answered(state: QPInteriorState, like: Tensor) -> QPInteriorState:
    """With x and the dual points in the units and the dtype of the problem."""
    program = state.program
    v = state.point * program.x_unit
    dual = state.epigraph.dual(v, _multipliers(state) * program.y_unit)
    x = v[:, : state.epigraph.count].reshape(like.shape)
    return replace(state, x=x.to(like.dtype), dual=dual.to(like.dtype))


def _multipliers(state: QPInteriorState) -> Tensor:
    """y `(B, m)`."""
    return state.push[1] - state.push[0] + state.hold


def _is_solved(state: QPInteriorState, precision: float) -> Tensor:
    """Where products and residuals `(B,)` are rounding beside the parts of the value.

    Or products far less than that: what is then left of residuals is rounding, which steps do not end but spread.
    """
    program, x = state.program, state.point
    form, slope = (x * program.form(x)).sum(dim=1), (x * program.q).abs().sum(dim=1)
    image = program.image(x)
    beyond = torch.maximum(program.low - image, image - program.high).clamp(min=0).amax(dim=1)
    gradient = program.gradient(x, _multipliers(state)).abs().amax(dim=1)
    size = 1 + x.abs().amax(dim=1)
    products, least = (state.slack * state.push).sum(dim=(0, 2)), precision * (form + slope)
    within = (beyond <= 1e-13 * size) & (gradient <= 1e-13 * size)
    return ((products <= least) & within) | (products <= SPENT * least)


def _column_units(epigraph: Epigraph) -> Tensor:
    """What x `(n,)` or `(B, n)` is multiplied by: P gets the diagonal 1, and what it leaves out columns of length 1."""
    matrices = [rows.matrix for rows in epigraph.rows if rows.matrix is not None]
    diagonal = epigraph.P.diagonal(dim1=-2, dim2=-1)
    length = sum((A.square().sum(dim=-2) for A in matrices), start=torch.zeros_like(diagonal))
    size = torch.where(diagonal > 0, diagonal, length)
    return torch.where(size > 0, size, 1).rsqrt()


def _size_of(P: Tensor, q: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The sizes `(B, 1)` of x and of the value: what the slope asks for, or bounds where P is 0 or there is no slope.

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


def _scaled(P: Tensor, by: Tensor) -> Tensor:
    """P, one for each instance only where it has to be."""
    return P if bool((by == 1).all()) else P * by[..., None]


def _cholesky(matrix: Tensor) -> tuple[Tensor, None]:
    """The factors of matrices `(B, n, n)`, with a little more on the diagonal where they need it; NaN if that fails."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    for power in (-15, -12):
        if not bool(failed.any()):
            break
        matrix.diagonal(dim1=1, dim2=2).mul_(1 + 10.0**power).add_(10.0**power)
        factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where((failed > 0)[:, None, None], torch.nan, factor), None


def _alike(blocks: list[Tensor | None], batch: int) -> list[Tensor | None]:
    """Blocks with a matrix for each instance, where one of them has; the identity is made where it is needed."""
    if all(A is None or A.ndim == 2 for A in blocks):
        return blocks
    size = next(A.shape[-1] for A in blocks if A is not None)
    unit = next(torch.eye(size, dtype=A.dtype, device=A.device) for A in blocks if A is not None)
    return [(unit if A is None else A).expand(batch, -1, -1) for A in blocks]


def _kept(which: Tensor, old: Tensor, new: Tensor, dim: int = 0) -> Tensor:
    """`old` for the instances in `which`, `new` for the others."""
    shape = [1] * old.ndim
    shape[dim] = -1
    return torch.where(which.reshape(shape), old, new)
