"""A primal-dual interior-point method for quadratic programs: what ends at the optimum, whatever the conditioning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from typing_extensions import Self

from lmd.checks import check_positive
from lmd.operators.base import LinearOperator
from lmd.problems.base import Problem
from lmd.solvers.base import DualState, Solver
from lmd.terms.quadratic import times

MAX_SIZE = 2048
"""Entries of x up to which a matrix of them is factorised for each instance."""

MAX_CHUNK = 1 << 24
"""Numbers of a matrix product for a chunk of instances."""

NARROW = 1e-9
"""Ends of a row that are so close, relative to their size, are one equation."""

STIFFNESS = 1e7
"""What an equation counts for in the matrix of a step, beside 1 for P: its multiplier makes up for the rest."""

BOUNDARY = 0.995
"""The share of the way to the boundary that a step goes at most."""

MIN_STEP = 1e-10
"""An instance whose step is shorter has ended."""


class BoundedQuadratic(Protocol):
    """What the method needs of a problem: a quadratic form f, and bounds of Kx."""

    @property
    def operator(self) -> LinearOperator: ...

    @property
    def quadratic(self) -> tuple[Tensor, Tensor] | None: ...

    @property
    def bounds(self) -> tuple[Tensor, Tensor] | None: ...


class Program(NamedTuple):
    """min x'Px / 2 + q'x over low <= Ax <= high in float64, in units in which P has the diagonal 1 and A unit rows."""

    P: Tensor
    """`(n, n)` or `(B, n, n)`."""

    q: Tensor
    """`(B, n)`."""

    blocks: tuple[Tensor | None, ...]
    """A, in blocks of rows `(m_j, n)` or `(B, m_j, n)`; None is the identity."""

    low: Tensor
    high: Tensor
    """`(B, m)`."""

    equal: Tensor
    """Which rows `(B, m)` are equations."""

    x_unit: Tensor
    y_unit: Tensor
    """What x `(B, n)` and the dual points `(B, m)` are multiplied by to be those of the problem."""

    @classmethod
    def of(cls, problem: BoundedQuadratic, x: Tensor) -> Self:
        """The program of a problem at points x `(B, n)`; x has the shape, not the value, of its points."""
        assert problem.quadratic is not None and problem.bounds is not None
        (P, q), (low, high) = problem.quadratic, problem.bounds
        P, q, low, high = (each.detach().double() for each in (P, q, low, high))
        column = P.diagonal(dim1=-2, dim2=-1).rsqrt()
        P, q = column[..., None] * P * column[..., None, :], column * q
        blocks, lengths = [], []
        for K, scale in zip(problem.operator.blocks, problem.operator.scales, strict=True):
            rows = None if K.is_identity else scale * _matrix(K, x) * column[..., None, :]
            size = scale * column if rows is None else torch.linalg.vector_norm(rows, dim=-1)
            size = torch.where(size > 0, size, 1)
            blocks.append(None if rows is None else rows / size[..., None])
            lengths.append(size.expand(len(q), size.shape[-1]))
        length = torch.cat(lengths, dim=1)
        low, high = low / length, high / length
        unit = _size_of(q, low, high)
        low, high, q = low / unit, high / unit, q / unit
        equal = high - low <= NARROW * torch.maximum(low.abs(), high.abs())
        equal &= low.isfinite() & high.isfinite()
        return cls(P, q, tuple(blocks), low, high, equal, unit * column, unit / length)

    def image(self, x: Tensor) -> Tensor:
        """Ax `(B, m)`."""
        return torch.cat([x if A is None else times(x, A.mT) for A in self.blocks], dim=1)

    def pull(self, y: Tensor) -> Tensor:
        """A'y `(B, n)`."""
        pairs = zip(self.blocks, self._split(y), strict=True)
        return torch.stack([part if A is None else times(part, A) for A, part in pairs]).sum(dim=0)

    def _split(self, y: Tensor) -> tuple[Tensor, ...]:
        sizes = [self.q.shape[1] if A is None else A.shape[-2] for A in self.blocks]
        return torch.split(y, sizes, dim=1)

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Px + q + A'y `(B, n)`."""
        return times(x, self.P) + self.q + self.pull(y)

    def factor(self, weight: Tensor) -> Tensor:
        """The Cholesky factors of P + A'wA `(B, n, n)`, w the weights `(B, m)` of the rows; NaN where there is none."""
        widest = max((A.shape[-2] for A in self.blocks if A is not None), default=1)
        chunk = max(1, MAX_CHUNK // (self.q.shape[1] * max(widest, self.q.shape[1])))
        parts = [self._factor(weight, slice(i, i + chunk)) for i in range(0, len(weight), chunk)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _factor(self, weight: Tensor, index: slice) -> Tensor:
        matrix = (self.P if self.P.ndim == 2 else self.P[index]).expand(len(weight[index]), *self.P.shape[-2:]).clone()
        for A, w in zip(self.blocks, self._split(weight[index]), strict=True):
            if A is None:
                matrix.diagonal(dim1=1, dim2=2).add_(w)
            else:
                A = A if A.ndim == 2 else A[index]
                matrix += (A.mT * w[:, None]) @ A
        factor, failed = torch.linalg.cholesky_ex(matrix)
        for power in (-15, -12):
            if not bool(failed.any()):
                break
            matrix.diagonal(dim1=1, dim2=2).mul_(1 + 10.0**power)
            factor, failed = torch.linalg.cholesky_ex(matrix)
        return torch.where((failed > 0)[:, None, None], torch.nan, factor)


@dataclass(frozen=True, kw_only=True)
class QPInteriorState(DualState):
    """A point in float64, slacks to both ends of the rows and multipliers, each `(B, m)` and in units of `program`."""

    program: Program

    point: Tensor
    """x `(B, n)`."""

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


class QPInteriorPoint(Solver[QPInteriorState, BoundedQuadratic]):
    r"""min x'Px / 2 + q'x over l <= Kx <= u by Newton's method on the perturbed optimality conditions.

    With slacks s to the ends, multipliers p of 0 or more, and y the upper minus the lower ones, the conditions are
    Px + q + K'y = 0, slacks that are those of x, and products s p of 0. A step aims at products of sigma mu, mu being
    their mean, by Mehrotra's corrected direction ([Mehrotra 1992](https://doi.org/10.1137/0802028); for quadratic
    programs [Nocedal and Wright 2006](https://doi.org/10.1007/978-0-387-40065-5), section 16.6). Rows with l = u are
    equations: they count for much in the matrix, and their multipliers make up for the rest. Ten to thirty iterations
    are usual, whatever the conditioning; each factorises a matrix `(n, n)` for each instance. Everything is in float64,
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

    def config(self) -> dict[str, Any]:
        return {"precision": self.precision}

    @property
    def needs(self) -> tuple[str, ...]:
        return ("operator", "quadratic", "bounds")

    @property
    def ends_proven(self) -> bool:
        return True

    @property
    def step_cost(self) -> dict[str, int]:
        """Nothing that is an evaluation: a step factorises a matrix."""
        return {}

    def keeps_to_domain(self, problem: Problem) -> bool:
        """The domain of a composite problem is that of its data term, which is finite everywhere."""
        return True

    def init(self, problem: BoundedQuadratic, x0: Tensor) -> QPInteriorState:
        """The minimiser with springs in place of bounds, slacks that are as long as they are missed, equal products."""
        program = Program.of(problem, x0)
        nearest = torch.zeros_like(program.low).clamp(program.low, program.high)
        factor = program.factor(torch.ones_like(nearest))
        point = _solve(factor, program.pull(nearest) - program.q)
        return _begun(program, point, torch.zeros_like(nearest), x0)

    def resume(self, problem: BoundedQuadratic, x: Tensor, dual: Tensor) -> QPInteriorState:
        program = Program.of(problem, x)
        return _begun(program, x.double() / program.x_unit, dual.double() / program.y_unit, x)

    def step(self, problem: BoundedQuadratic, state: QPInteriorState) -> QPInteriorState:
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
        self.factor = program.factor(self.stiffness.sum(dim=0) + STIFFNESS * program.equal)
        self.count = self.ended.sum(dim=(0, 2)).clamp(min=1)

    def mean(self, slack: Tensor, push: Tensor) -> Tensor:
        """The mean of all products `(B,)`."""
        return (slack * push).sum(dim=(0, 2)) / self.count

    def direction(self, excess: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Changes of x, slacks, pushes and holds; the `excess` of products `(2, B, m)` is to go."""
        state, program = self.state, self.state.program
        pressed = torch.where(self.ended, excess / state.slack, 0) + self.stiffness * self.missed
        right = self.gradient + program.pull((self.sign * pressed).sum(dim=0) + STIFFNESS * self.broken)
        x = _solve(self.factor, -right)
        moved = program.image(x)
        slack = torch.where(self.ended, self.sign * moved + self.missed, 0)
        push = torch.where(self.ended, -excess / state.slack - self.stiffness * slack, 0)
        return x, slack, push, STIFFNESS * (torch.where(program.equal, moved, 0) + self.broken)

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
        x, slack, push, hold = self.direction(
            torch.where(self.ended, products + slack * push - (centring * mean)[:, None], 0)
        )
        reach = self.length(slack, push)
        length = torch.where(reach < 1, BOUNDARY * reach, reach)[:, None]
        return replace(
            state,
            iteration=state.iteration + 1,
            point=state.point + length * x,
            slack=state.slack + length * slack,
            push=state.push + length * push,
            hold=state.hold + length * hold,
            done=~(length[:, 0] > MIN_STEP),
        )


def _begun(program: Program, point: Tensor, dual: Tensor, x0: Tensor) -> QPInteriorState:
    """At a point and multipliers: slacks and pushes that are large enough for steps to be long."""
    ends, image = torch.stack([program.low, program.high]), program.image(point)
    ended = ends.isfinite() & ~program.equal
    distance = torch.stack([image - program.low, program.high - image])
    missed = torch.where(ended, -distance, 0).clamp(min=0).amax(dim=(0, 2))
    width = torch.where(ended.all(dim=0), program.high - program.low, torch.inf)
    least = torch.minimum(torch.maximum(missed, missed.new_tensor(1e-2))[:, None], 0.25 * width)
    slack = torch.where(ended, torch.maximum(distance, least), 1.0)
    slope = program.gradient(point, torch.zeros_like(dual)).abs().amax(dim=1).clamp(min=1e-2)
    centred = (slope * torch.where(ended, slack, 0).sum(dim=(0, 2)) / ended.sum(dim=(0, 2)).clamp(min=1))[:, None]
    given = torch.stack([-dual, dual]).clamp(min=0)
    push = torch.where(ended, torch.maximum(given, torch.minimum(centred / slack, 1e3 * slope[:, None])), 0)
    hold = torch.where(program.equal, dual, 0)
    done = ~point.isfinite().all(dim=1)
    state = QPInteriorState(x0, dual=dual, program=program, point=point, slack=slack, push=push, hold=hold, done=done)
    return _answered(state, x0)


def _answered(state: QPInteriorState, like: Tensor) -> QPInteriorState:
    """With x and the dual points in the units and the dtype of the problem."""
    program = state.program
    x, dual = state.point * program.x_unit, _multipliers(state) * program.y_unit
    return replace(state, x=x.to(like.dtype), dual=dual.to(like.dtype))


def _multipliers(state: QPInteriorState) -> Tensor:
    """y `(B, m)`."""
    return state.push[1] - state.push[0] + state.hold


def _is_solved(state: QPInteriorState, precision: float) -> Tensor:
    """Where products and residuals `(B,)` are rounding beside the parts of the value."""
    program, x = state.program, state.point
    form, slope = (x * times(x, program.P)).sum(dim=1), (x * program.q).abs().sum(dim=1)
    image = program.image(x)
    beyond = torch.maximum(program.low - image, image - program.high).clamp(min=0).amax(dim=1)
    gradient = program.gradient(x, _multipliers(state)).abs().amax(dim=1)
    size = 1 + x.abs().amax(dim=1)
    small = (state.slack * state.push).sum(dim=(0, 2)) <= precision * (form + slope)
    return small & (beyond <= 1e-13 * size) & (gradient <= 1e-13 * size)


def _matrix(K: LinearOperator, x: Tensor) -> Tensor:
    """K as a matrix `(m, n)`, or one for each instance `(B, m, n)`, in float64."""
    count = x[0].numel()
    unit = torch.eye(count, dtype=x.dtype, device=x.device).reshape(count, *x.shape[1:])
    if K.select(0) is K:
        return K(unit).flatten(1).double().mT
    each = [
        K.select(torch.full((count,), i, dtype=torch.int64, device=x.device))(unit).flatten(1).mT for i in range(len(x))
    ]
    return torch.stack(each).double()


def _size_of(q: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The size of x that the slope asks for, or bounds where there is none; 1 where all is 0 `(B, 1)`."""
    slope = q.abs().amax(dim=1, keepdim=True)
    ends = torch.cat([low, high], dim=1).abs()
    ends = torch.where(ends.isfinite(), ends, 0).amax(dim=1, keepdim=True)
    size = torch.where(slope > 0, slope, ends)
    return torch.where(size > 0, size, 1)


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    return torch.cholesky_solve(right[..., None], factor)[..., 0]


def _kept(which: Tensor, old: Tensor, new: Tensor, dim: int = 0) -> Tensor:
    """`old` for the instances in `which`, `new` for the others."""
    shape = [1] * old.ndim
    shape[dim] = -1
    return torch.where(which.reshape(shape), old, new)
