"""A primal-dual interior-point method for support vector machines, which converges from any start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from lmd.core.checks import check_positive
from lmd.solvers.base import DualState, Solver
from lmd.terms.quadratic import times

MIN_CENTRALITY = 1e-3  # gamma: every complementarity product is at least this share of the mean product
MAX_INFEASIBILITY = 10.0  # beta: residuals may fall more slowly than the mean product by at most this factor
MIN_DECREASE = 0.01  # the mean product must fall by at least this share times the step length
CENTRING = (1e-6, 0.5)  # the interval of sigma; a direction aims at products of sigma times their mean

# Trial lengths along the corrected and the plain direction before the search gives up
MAX_CORRECTED_TRIALS = 8
MAX_TRIALS = 60

SHORTENING = 0.7
MIN_CORRECTED_STEP = 0.01  # if the corrected direction allows only shorter steps, the plain one is taken
MAX_CHUNK = 1 << 24  # most numbers in the rows of a chunk of instances

# The mean product of a warm start, as a multiple of the mean product of the earlier answer. Answers that are near the
# boundary but far from the minimum then cost few iterations
RESUMED_MEAN = 10.0


class Iterate(NamedTuple):
    """Points `(B, n)` and four positive variables `(B, m)` for m hinges, in float64; or a direction of all of them."""

    point: Tensor
    dual: Tensor  # a
    room: Tensor  # C - a
    slack: Tensor
    surplus: Tensor

    @classmethod
    def around(cls, point: Tensor, margins: Tensor, mean: Tensor, C: float) -> Self:
        """Return the iterate whose products are all `mean` `(B,)`, with slack - surplus = 1 - margins `(B, m)`."""
        mean = mean[:, None]
        lean = C / (2 * mean) * (1 - margins)
        root = 1 + (lean.square() + 1).sqrt()
        dual, room = (C / 2 * (root + side * lean) / root for side in (1, -1))
        return cls(point, dual, room, mean / room, mean / dual)

    def products(self) -> Tensor:
        """The complementarity products `(B, 2 m)`."""
        return torch.cat([self.dual * self.surplus, self.room * self.slack], dim=1)

    def mean_product(self) -> Tensor:
        """Return mu, the mean of the products, `(B,)`."""
        return (self.dual * self.surplus + self.room * self.slack).mean(dim=1) / 2

    def longest(self, by: Iterate) -> Tensor:
        """Return the longest step `(B,)`, at most 1, that keeps all four variables non-negative."""
        steepest = [(-move / now).amax(dim=1) for now, move in zip(self[1:], by[1:], strict=True)]
        return 1 / torch.stack(steepest).amax(dim=0).clamp(min=1)

    def moved(self, length: Tensor, by: Iterate) -> Iterate:
        """Return the iterate after a step; a step of length 0 changes nothing, even if the direction is not finite."""
        far = length[:, None]
        return Iterate(*(now + torch.where(far == 0, 0.0, far * move) for now, move in zip(self, by, strict=True)))


class NewtonSystem:
    """Newton's equations at an iterate, reduced to x: (penalty + rows' diag(weight) rows) dx = right-hand side.

    Args:
        rows: Rows of each instance `(B, m, n)`.
        now: The iterate.
    """

    def __init__(self, rows: Tensor, now: Iterate) -> None:
        self.rows, self.now = rows, now
        penalty = torch.ones_like(now.point[0])
        penalty[-1] = 0  # the bias is not penalised
        self.weight = 1 / (now.slack / now.room + now.surplus / now.dual)
        matrix = (self.weight[:, None] * rows.mT) @ rows + penalty.diag()
        self.factor = torch.linalg.cholesky_ex(matrix).L
        self.stationarity = times(now.dual, rows) - penalty * now.point
        self.infeasibility = 1 - times(now.point, rows.mT) - now.slack + now.surplus

    def direction(self, aim: Tensor | float, before: Iterate | None = None) -> Iterate:
        """Return the Newton direction to products of `aim` `(B, 1)` and residuals of 0.

        If a direction `before` is given, its second-order change of the products is subtracted from `aim`.
        """
        now = self.now
        push_surplus, push_slack = aim - now.dual * now.surplus, aim - now.room * now.slack
        if before is not None:
            push_surplus = push_surplus - before.dual * before.surplus
            push_slack = push_slack - before.room * before.slack
        shift = self.infeasibility - push_slack / now.room + push_surplus / now.dual
        right = times(self.weight * shift, self.rows) + self.stationarity
        dx = torch.cholesky_solve(right.unsqueeze(-1), self.factor).squeeze(-1)
        da = self.weight * (shift - times(dx, self.rows.mT))
        slack, surplus = (push_slack + now.slack * da) / now.room, (push_surplus - now.surplus * da) / now.dual
        return Iterate(dx, da, -da, slack, surplus)

    def corrected_direction(self, factor: Tensor | float = 1.0) -> tuple[Iterate, Tensor]:
        """Return Mehrotra's direction with `factor` times his centring, and the products `(B, 1)` it aims at."""
        now, mu = self.now, self.now.mean_product()
        affine = self.direction(0.0)
        ahead = now.moved(now.longest(affine), affine).mean_product()
        aim = (mu * (factor * (ahead / mu).pow(3)).clamp(*CENTRING))[:, None]
        return self.direction(aim, affine), aim


@dataclass(frozen=True, kw_only=True)
class InteriorState(DualState):
    """The iterate of each instance and its residual; `dual` is a."""

    inner: Iterate
    residual: Tensor  # `(B,)`: the initial mu times the remaining share of the stationarity residual
    done: Tensor  # instances `(B,)` that are solved to rounding and no longer move


class InteriorPoint(Solver[InteriorState]):
    r"""Newton's method on the perturbed optimality conditions of an SVM, with a perturbation that falls to 0.

    With labels y_i, features phi_i, rows y_i (phi_i, 1) and x = (w, b), the SVM is the quadratic program

        min 1/2 ||w||^2 + C \sum slack   over  rows x + slack - surplus = 1, slack >= 0, surplus >= 0,

    with a dual point a in [0, C]^m. x and a are optimal if (w, 0) = rows'a and all products a * surplus and
    (C - a) * slack are 0. A step aims at products of sigma mu, where mu is their mean. An instance first tries
    Mehrotra's corrected direction. It accepts a step that stays in a neighbourhood: products are at least gamma mu,
    residuals fall no more slowly than mu up to a factor, and mu falls in proportion to the step. If all such steps are
    tiny, it takes the plain direction, for which an acceptable step always exists. So mu falls to 0, and f(x) to the
    minimum: Zhang 1994, "On the convergence of a class of infeasible interior-point methods for the horizontal linear
    complementarity problem"; Wright 1997, chapter 6. Ten to twenty iterations are usual; each one factorises a matrix
    of size n per instance.

    Args:
        precision: An instance is solved if the sum of its products is at most this share of the value; 0 or more.
    """

    needs = ("rows", "subset", "C", "in_chunks")
    step_cost: ClassVar = {}  # counted in the state, because solved instances cost nothing

    def __init__(self, precision: float = 1e-9) -> None:
        super().__init__()
        self.precision = check_positive("precision", precision, zero=True)

    def init(self, problem: Any, x0: Tensor) -> InteriorState:
        """Start at x0, with equal products."""
        margins = _margins(problem, x0)
        mean = problem.C / 2 * (1 - margins).abs().mean(dim=1).clamp(min=1)
        return _begin(x0, Iterate.around(x0.detach().double(), margins, mean, problem.C), mean)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> InteriorState:
        """Start at x and `dual` with equal products: `RESUMED_MEAN` times the mean product at x and `dual`."""
        C, shortfall, dual = problem.C, 1 - _margins(problem, x), dual.detach().double().clamp(0, problem.C)
        over, under = (side.clamp(min=0) for side in (shortfall, -shortfall))
        mean = RESUMED_MEAN * (dual * under + (C - dual) * over).mean(dim=1, keepdim=True) / 2
        mean = mean.clamp(min=torch.finfo(mean.dtype).eps * C)
        tiny = (mean / C).sqrt()
        least, most = mean / (under + tiny), C - mean / (over + tiny)
        dual = torch.where(least < most, torch.minimum(torch.maximum(dual, least), most), C / 2)
        inner = Iterate(x.detach().double(), dual, C - dual, mean / (C - dual), mean / dual)
        return _begin(x, inner, mean[:, 0])

    @torch.no_grad()
    def step(self, problem: Any, state: InteriorState) -> InteriorState:
        """Take one step; an instance is done if it is solved or finds no acceptable step."""
        after, residual, done = Iterate(*map(torch.clone, state.inner)), state.residual.clone(), state.done.clone()
        active = (~done).nonzero().flatten()
        for index in torch.split(active, max(1, MAX_CHUNK // problem.rows[0].numel())) if len(active) else ():
            rows, now = problem.rows[problem.subset[index]].double(), Iterate(*(each[index] for each in state.inner))
            length, by = _step(NewtonSystem(rows, now), residual[index])
            now = now.moved(length, by)
            for whole, part in zip(after, now, strict=True):
                whole[index] = part
            residual[index] *= 1 - length
            hinges = (1 - times(now.point, rows.mT)).clamp(min=0).sum(dim=1)
            value = 0.5 * now.point[:, :-1].square().sum(dim=1) + problem.C * hinges
            left = now.products().sum(dim=1)
            done[index] = (length == 0) | ~(left > self.precision * value)
        return InteriorState(
            after.point.to(state.x),
            state.iteration + 1,
            evaluations={"factorisation": (~state.done).long()},
            dual=after.dual,
            inner=after,
            residual=residual,
            done=done,
        )


def _margins(problem: Any, x: Tensor) -> Tensor:
    """Return the margins `(B, m)` in float64."""
    margins: Tensor = problem.in_chunks(lambda k, part: (part @ problem.rows[k].double().T,), x.detach().double())[0]
    return margins


def _begin(x: Tensor, inner: Iterate, mean: Tensor) -> InteriorState:
    done = torch.zeros_like(mean, dtype=torch.bool)
    return InteriorState(x, dual=inner.dual, inner=inner, residual=mean, done=done)


def _step(system: NewtonSystem, residual: Tensor) -> tuple[Tensor, Iterate]:
    """Return the length of a step `(b,)` and its direction, corrected if possible, else plain."""
    direction, aim = system.corrected_direction()
    length = _accepted(system.now, direction, residual, MAX_CORRECTED_TRIALS)
    stuck = length < MIN_CORRECTED_STEP
    if bool(stuck.any()):
        plain = system.direction(aim)
        direction = Iterate(*(torch.where(stuck[:, None], *pair) for pair in zip(plain, direction, strict=True)))
        length = torch.where(stuck, _accepted(system.now, plain, residual, MAX_TRIALS), length)
    return length, direction


def _accepted(now: Iterate, direction: Iterate, residual: Tensor, trials: int) -> Tensor:
    """Return the first of ever shorter step lengths `(b,)` that stays in the neighbourhood, or 0 if none does."""
    length, mu = 0.995 * now.longest(direction), now.mean_product()
    found = torch.zeros_like(length)
    for _ in range(trials):
        trial = now.moved(length, direction)
        mean = trial.mean_product()
        good = (trial.products().amin(dim=1) >= MIN_CENTRALITY * mean) & (mean <= (1 - MIN_DECREASE * length) * mu)
        good &= (1 - length) * residual <= MAX_INFEASIBILITY * mean
        found = torch.where((found == 0) & good, length, found)
        if bool((found > 0).all()):
            break
        length = SHORTENING * length
    return found
