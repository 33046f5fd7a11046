"""The optimum of one soft-margin SVM, certified by its dual: an interior-point method in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmd.errors import LmdError
from lmd.problems.optimum import Optimum

TOLERANCE = 1e-10
"""The duality gap, relative to the value, at which the search ends."""

CERTIFIED = 1e-6
"""The one that still counts as solved, where rounding keeps the search from getting further."""

ITERATIONS = 100
"""When to give up; 15 to 30 are usual."""


def solve_svm(rows: Tensor, C: float) -> Optimum:
    r"""min_x 1/2 ||w||^2 + C \sum_i max(0, 1 - rows_i x), x = (w, b), for rows y_i (phi_i, 1) `(m, d + 1)` in float64.

    Mehrotra's predictor-corrector method on primal and dual together. As a quadratic program the problem is

        min 1/2 ||w||^2 + C \sum slack   over  rows x + slack - surplus = 1, slack >= 0, surplus >= 0,
        max \sum a - 1/2 ||\sum_i a_i y_i phi_i||^2   over  0 <= a <= C, \sum_i a_i y_i = 0,

    and an iteration factorises one matrix of size d + 1.
    """
    point = _Point.start(rows, C)
    best = certified(rows, C, point.x, point.a)
    for _ in range(ITERATIONS):
        if best.gap <= TOLERANCE * best.value:
            return best
        point = point.next()
        if not bool(torch.isfinite(point.x).all()):
            break
        found = certified(rows, C, point.x, point.a)
        best = found if found.gap < best.gap else best
    if best.gap <= CERTIFIED * best.value:
        return best
    raise LmdError(f"SVM: no certified optimum, the duality gap stays at {best.gap:.1e}; scale the features or C")


def certified(rows: Tensor, C: float, x: Tensor, a: Tensor) -> Optimum:
    """The weights of `x` with the best bias for them, and the lower bound that the dual point nearest `a` proves."""
    labels = rows[:, -1]
    # Feasible: inside the box, and as much weight on one class as on the other.
    a = a.clamp(0, C)
    first, second = a[labels > 0].sum(), a[labels < 0].sum()
    a = a * torch.where(labels > 0, (second / first).clamp(max=1), (first / second).clamp(max=1))
    bound = a.sum() - 0.5 * (a @ rows[:, :-1]).square().sum()
    # As a function of b the slope starts at minus the number of positive labels and rises by 1 at each kink.
    kinks = (labels - labels * (rows[:, :-1] @ x[:-1])).sort().values
    x = torch.cat([x[:-1], kinks[int((labels > 0).sum()) - 1].reshape(1)])
    value = 0.5 * x[:-1].square().sum() + C * (1 - rows @ x).clamp(min=0).sum()
    return Optimum(x, float(value), float(bound))


@dataclass(frozen=True)
class _Point:
    """An interior point: all of slack, surplus, a and C - a are positive."""

    rows: Tensor
    C: float
    x: Tensor
    a: Tensor
    slack: Tensor
    surplus: Tensor

    @classmethod
    def start(cls, rows: Tensor, C: float) -> _Point:
        middle = torch.full_like(rows[:, 0], C / 2)
        return cls(rows, C, torch.zeros_like(rows[0]), middle, torch.full_like(middle, 2), torch.ones_like(middle))

    def next(self) -> _Point:
        """A predictor step to see how far the complementarity products can fall, then the step itself."""
        system = _System.of(self)
        room, count = self.C - self.a, len(self.a)
        _, da, dslack, dsurplus = system.direction(-self.a * self.surplus, -room * self.slack)
        trial = self.moved(self.longest(da, dslack, dsurplus), self.x, da, dslack, dsurplus)
        centre = (trial.products() / self.products()) ** 3 * self.products() / (2 * count)
        dx, da, dslack, dsurplus = system.direction(
            centre - self.a * self.surplus - da * dsurplus, centre - room * self.slack + da * dslack
        )
        return self.moved(0.995 * self.longest(da, dslack, dsurplus), dx, da, dslack, dsurplus)

    def moved(self, length: float, dx: Tensor, da: Tensor, dslack: Tensor, dsurplus: Tensor) -> _Point:
        slack, surplus = self.slack + length * dslack, self.surplus + length * dsurplus
        return _Point(self.rows, self.C, self.x + length * dx, self.a + length * da, slack, surplus)

    def products(self) -> Tensor:
        """The sum of the complementarity products, 0 at the optimum."""
        return self.a @ self.surplus + (self.C - self.a) @ self.slack

    def longest(self, da: Tensor, dslack: Tensor, dsurplus: Tensor) -> float:
        """The longest step, at most 1, to the boundary."""
        moves = ((self.a, da), (self.C - self.a, -da), (self.slack, dslack), (self.surplus, dsurplus))
        return min([1.0, *(float((-now / move)[move < 0].min()) for now, move in moves if bool((move < 0).any()))])


@dataclass(frozen=True)
class _System:
    """Newton's equations at a point, reduced to x: (penalty + rows' diag(weight) rows) dx = right-hand side."""

    point: _Point
    weight: Tensor
    factor: Tensor
    stationarity: Tensor
    infeasibility: Tensor

    @classmethod
    def of(cls, point: _Point) -> _System:
        rows, a = point.rows, point.a
        penalty = torch.ones_like(point.x)
        penalty[-1] = 0  # the bias is not penalised
        weight = 1 / (point.slack / (point.C - a) + point.surplus / a)
        factor = torch.linalg.cholesky_ex(torch.diag(penalty) + rows.T @ (weight[:, None] * rows)).L
        infeasibility = 1 - rows @ point.x - point.slack + point.surplus
        return cls(point, weight, factor, rows.T @ a - penalty * point.x, infeasibility)

    def direction(self, push_surplus: Tensor, push_slack: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(dx, da, dslack, dsurplus) that change a * surplus and (C - a) * slack by the given, to first order."""
        point, room = self.point, self.point.C - self.point.a
        residual = self.infeasibility - push_slack / room + push_surplus / point.a
        right = point.rows.T @ (self.weight * residual) + self.stationarity
        dx = torch.cholesky_solve(right[:, None], self.factor)[:, 0]
        da = self.weight * (residual - point.rows @ dx)
        return dx, da, (push_slack + point.slack * da) / room, (push_surplus - point.surplus * da) / point.a
