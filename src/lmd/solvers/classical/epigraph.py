"""Composites of squares, slopes, folds and bounds as quadratic programs, with a variable for each fold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.operators.base import LinearOperator
from lmd.terms.base import Pieces, filled
from lmd.terms.quadratic import times


def multiply(A: Tensor | None, x: Tensor) -> Tensor:
    """Ax `(B, m)` for A `(m, n)` or `(B, m, n)`; None is the identity."""
    return x if A is None else times(x, A.mT)


def multiply_adjoint(A: Tensor | None, p: Tensor) -> Tensor:
    """A'p `(B, n)`."""
    return p if A is None else times(p, A)


@dataclass
class Summand:
    """A term of the rows z = Mx `(B, m)`, and the rows of the program that belong to it."""

    matrix: Tensor | None  # M `(m, n)` or `(B, m, n)`; None is the identity
    shape: torch.Size  # that of z in the problem
    scale: float  # what z is multiplied by in the array of all of them

    # `(B, m)`
    curvature: Tensor
    slope: Tensor
    fold: Tensor
    kink: Tensor
    low: Tensor
    high: Tensor

    total: float | None

    bound_rows: slice | None = None
    fold_rows: slice | None = None
    total_row: int | None = None

    @classmethod
    def of(cls, pieces: Pieces, matrix: Tensor | None, z: Tensor, scale: float) -> Summand:
        exact = z.double()
        names = ("curvature", "slope", "fold", "kink", "low", "high")
        spread: dict[str, Any] = {
            name: filled(getattr(pieces, name), exact).double().expand_as(exact).flatten(1) for name in names
        }
        return cls(matrix, z.shape, scale, total=pieces.total, **spread)

    @property
    def has_folds(self) -> bool:
        return bool((self.fold > 0).any())

    def total_matrix(self) -> Tensor:
        """What the sum of z is of x: `(1, n)` or `(B, 1, n)`."""
        return torch.ones_like(self.slope[:1]) if self.matrix is None else self.matrix.sum(dim=-2, keepdim=True)

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient at z `(B, m)` of the squares and slopes."""
        return self.curvature * multiply(self.matrix, x) + self.slope

    def hessian(self) -> Tensor:
        """M'cM `(n, n)`, or one for each instance `(B, n, n)`."""
        c = self.curvature[0] if bool((self.curvature == self.curvature[:1]).all()) else self.curvature
        if self.matrix is None:
            return torch.diag_embed(c)
        return (self.matrix.mT * c[..., None, :]) @ self.matrix

    def dual(self, x: Tensor, y: Tensor) -> Tensor:
        """The subgradient at z `(B, m)` that belongs to the multipliers y of the program."""
        p = self.gradient(x)
        for rows in (self.bound_rows, self.fold_rows):
            p = p if rows is None else p + y[:, rows]
        return p if self.total_row is None else p + y[:, self.total_row, None]

    def fill_multipliers(self, x: Tensor, p: Tensor, y: Tensor) -> None:
        """Write those that p is made of to y, of bounds or else of folds."""
        rows = self.bound_rows or self.fold_rows
        if rows is not None:
            y[:, rows] = p - self.curvature * multiply(self.matrix, x) - self.slope


@dataclass
class Rows:
    """Rows Ax or, of folds, Ax + t with their ends `(B, m)`."""

    matrix: Tensor | None  # `(m, n)` or `(B, m, n)`; None is the identity
    low: Tensor
    high: Tensor
    has_folds: bool = False


class Epigraph:
    r"""min x'Px / 2 + q'(x, t) over bounds of rows, t >= 0: w max(0, k - z) is wt over t >= 0 and z + t >= k.

    The last rows are t. See `lmd.terms.base.Pieces`.
    """

    def __init__(self, problem: Any, x: Tensor) -> None:
        assert problem.pieces is not None
        (first, others), operator, flat = problem.pieces, problem.operator, x.flatten(1)
        self.behind = [
            Summand.of(pieces, None if K.is_identity else matrix_of(K, x), K(x), scale)
            for pieces, K, scale in zip(others, operator.blocks, operator.scales, strict=True)
        ]
        every = [*([] if first is None else [Summand.of(first, None, x, 1.0)]), *self.behind]
        self.count, self.rows = flat.shape[1], list[Rows]()
        P, q = torch.zeros((), dtype=torch.float64, device=x.device), torch.zeros_like(flat, dtype=torch.float64)
        if problem.quadratic is not None:
            P, q = (each.detach().double() for each in problem.quadratic)
        for each in every:
            P, q = P + each.hessian(), q + multiply_adjoint(each.matrix, each.slope)
            self._add_rows(each)
        if not self.rows:
            self._add(None, torch.full_like(q, -torch.inf), torch.full_like(q, torch.inf))
        weights = torch.cat([each.fold for each in every if each.has_folds] or [q[:, :0]], dim=1)
        self._add(None, torch.zeros_like(weights), torch.full_like(weights, torch.inf))
        self.P, self.q = P, torch.cat([q, weights], dim=1)

    def _add_rows(self, each: Summand) -> None:
        if bool(each.low.isfinite().any() | each.high.isfinite().any()):
            each.bound_rows = self._add(each.matrix, each.low, each.high)
        if each.has_folds:
            low = torch.where(each.fold > 0, each.kink, -torch.inf)
            each.fold_rows = self._add(each.matrix, low, torch.full_like(low, torch.inf), has_folds=True)
        if each.total is not None:
            end = each.low.new_full((len(each.low), 1), each.total)
            each.total_row = self._add(each.total_matrix(), end, end).start

    def _add(self, matrix: Tensor | None, low: Tensor, high: Tensor, has_folds: bool = False) -> slice:
        """More rows with their ends; where they are among all of them."""
        begin = sum(rows.low.shape[1] for rows in self.rows)
        self.rows.append(Rows(matrix, low, high, has_folds))
        return slice(begin, begin + low.shape[1])

    def point(self, x: Tensor) -> Tensor:
        """(x, t) with the least t that x allows `(B, N)`."""
        flat = x.double().flatten(1)
        folds = [(rows.low - multiply(rows.matrix, flat)).clamp(min=0) for rows in self.rows if rows.has_folds]
        return torch.cat([flat, *folds], dim=1)

    def dual(self, v: Tensor, y: Tensor) -> Tensor:
        """The dual point of the problem that belongs to multipliers y `(B, m)`, in its shape."""
        x = v[:, : self.count]
        parts = [each.dual(x, y) / each.scale for each in self.behind]
        return parts[0].reshape(self.behind[0].shape) if len(parts) == 1 else torch.cat(parts, dim=1)

    def multipliers(self, x: Tensor, dual: Tensor) -> Tensor:
        """The multipliers y `(B, m)` that belong to a dual point of the problem."""
        y, x = torch.cat([torch.zeros_like(rows.low) for rows in self.rows], dim=1), x.double().flatten(1)
        sizes = [each.slope.shape[1] for each in self.behind]
        for each, part in zip(self.behind, torch.split(dual.double().flatten(1), sizes, dim=1), strict=True):
            each.fill_multipliers(x, each.scale * part, y)
        return y


def matrix_of(K: LinearOperator, x: Tensor) -> Tensor:
    """K as a matrix `(m, n)`, or one for each instance `(B, m, n)`, in float64."""
    count = x[0].numel()
    unit = torch.eye(count, dtype=x.dtype, device=x.device).reshape(count, *x.shape[1:])
    if K.select(0) is K:
        return K(unit).flatten(1).double().mT
    same = torch.zeros(count, dtype=torch.int64, device=x.device)
    each = [K.select(same + i)(unit).flatten(1).mT for i in range(len(x))]
    return torch.stack(each).double()
