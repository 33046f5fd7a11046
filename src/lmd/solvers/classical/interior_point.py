"""A primal-dual interior-point method for support vector machines, which converges from any start."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.solvers.base import DualState, Solver
from lmd.terms.quadratic import times

MIN_CENTRALITY = 1e-3  # gamma: no complementarity product may be smaller than this share of their mean
MAX_INFEASIBILITY = 10.0  # beta: how many times slower than the mean product the residuals may fall
MIN_DECREASE = 0.01  # the share of a step's length by which the mean product has to fall at least
CENTRING = (1e-6, 0.5)  # the interval of sigma, the share of the mean product that a direction aims at

# How often a step of the corrected and of the plain direction is shortened before it is given up
MAX_CORRECTED_TRIALS = 8
MAX_TRIALS = 60

SHORTENING = 0.7
# The least length of a step of the corrected direction; shorter ones are left to the plain one
MIN_CORRECTED_STEP = 0.01

# Mean products to go on with, in those of an earlier answer: one that is too near the boundary for how far it is from
# the minimum then costs few iterations
RESUMED_MEAN = 10.0


@dataclass(frozen=True, kw_only=True)
class InteriorState(DualState):
    """Points in float64, and all that is positive around them, each `(B, m)` for m hinges: the `dual` points a too."""

    point: Tensor  # x in float64 `(B, n)`
    slack: Tensor
    surplus: Tensor
    residual: Tensor  # by how much the stationarity residual has fallen `(B,)`: the product of 1 - t over all steps
    first: Tensor  # the mean of the complementarity products at the start `(B,)`
    done: Tensor  # which instances `(B,)` are solved to rounding, and stay where they are


class InteriorPoint(Solver[InteriorState]):
    r"""Newton's method on the perturbed optimality conditions of an SVM, each iteration nearer to the true ones.

    As a quadratic program, with rows y_i (phi_i, 1) and x = (w, b), the problem is

        min 1/2 ||w||^2 + C \sum slack   over  rows x + slack - surplus = 1, slack >= 0, surplus >= 0,

    with a dual point a in [0, C]^m. Its optimality conditions are (w, 0) = rows'a and that all products a * surplus and
    (C - a) * slack are 0; a step aims at products of sigma mu, mu being their mean. An instance first tries Mehrotra's
    corrected direction, and takes a step if it stays in the neighbourhood: products of at least gamma mu, residuals
    that fall no slower than mu up to a factor, and a mu that falls in proportion to the step. Otherwise it takes the
    plain direction, for which there always is such a step. So mu falls to 0, and f(x) to the minimum: Zhang 1994,
    "On the convergence of a class of infeasible interior-point methods for the horizontal linear complementarity
    problem"; Wright 1997, chapter 6. Ten to twenty iterations are usual, each of which factorises a matrix of size n
    per instance.

    Args:
        precision: The sum of the products over the value at which an instance is solved, 0 or more.
    """

    needs = ("rows", "subset", "C")
    step_cost: ClassVar = {}  # counted in the state: an instance that is solved costs nothing

    def __init__(self, precision: float = 1e-9) -> None:
        super().__init__()
        self.precision = check_positive("precision", precision, zero=True)

    def init(self, problem: Any, x0: Tensor) -> InteriorState:
        """At x0 with the a that suits it: products that are equal up to a factor of 2."""
        point, shortfall = x0.detach().double(), _shortfall(problem, x0)
        margin = shortfall.abs().mean(dim=1, keepdim=True).clamp(min=1)
        slack = shortfall.clamp(min=0) + margin
        surplus = slack - shortfall
        product = problem.C * slack * surplus / (slack + surplus)  # of a and surplus, and of C - a and slack
        return _begin(x0, point, product / surplus, slack, surplus, product.mean(dim=1))

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> InteriorState:
        """With slack and surplus of which all products are equal: `RESUMED_MEAN` times the mean of x and `dual`."""
        shortfall, dual = _shortfall(problem, x), dual.detach().double().clamp(0, problem.C)
        over, under = (side.clamp(min=0) for side in (shortfall, -shortfall))
        mean = RESUMED_MEAN * (dual * under + (problem.C - dual) * over).mean(dim=1, keepdim=True) / 2
        mean = mean.clamp(min=torch.finfo(mean.dtype).eps * problem.C)
        tiny = (mean / problem.C).sqrt()
        least, most = mean / (under + tiny), problem.C - mean / (over + tiny)
        dual = torch.where(least < most, torch.minimum(torch.maximum(dual, least), most), problem.C / 2)
        return _begin(x, x.detach().double(), dual, mean / (problem.C - dual), mean / dual, mean[:, 0])

    @torch.no_grad()
    def step(self, problem: Any, state: InteriorState) -> InteriorState:
        counted = {"factorisation": (~state.done).long()}
        if bool(state.done.all()):
            return replace(state, iteration=state.iteration + 1, evaluations=counted)
        after = {name: getattr(state, name).clone() for name in STATE_FIELDS}
        for data_set, index in _groups(problem):
            index = index[~state.done[index]]
            if len(index):
                before = {name: getattr(state, name)[index] for name in STATE_FIELDS}
                moved = _Iterate(problem.rows[data_set].double(), problem.C, **before).next(self.precision)
                for name in STATE_FIELDS:
                    after[name][index] = getattr(moved, name)
        return InteriorState(after["point"].to(state.x), state.iteration + 1, evaluations=counted, **after)


def _shortfall(problem: Any, x: Tensor) -> Tensor:
    """1 - rows x `(B, m)`, in float64."""
    point = x.detach().double()
    shortfall = torch.empty(len(x), problem.rows.shape[1], dtype=torch.float64, device=x.device)
    for data_set, index in _groups(problem):
        shortfall[index] = 1 - point[index] @ problem.rows[data_set].double().T
    return shortfall


def _begin(x: Tensor, point: Tensor, dual: Tensor, slack: Tensor, surplus: Tensor, mean: Tensor) -> InteriorState:
    one = torch.ones_like(mean)
    done = torch.zeros_like(one, dtype=torch.bool)
    return InteriorState(x, dual=dual, point=point, slack=slack, surplus=surplus, residual=one, first=mean, done=done)


def _groups(problem: Any) -> list[tuple[int, Tensor]]:
    """The data sets, each with the places of its instances in the batch."""
    return [(int(k), (problem.subset == k).nonzero().flatten()) for k in torch.unique(problem.subset)]


class Direction(NamedTuple):
    """What a step of length 1 would add to a point and to what is positive around it."""

    point: Tensor
    dual: Tensor
    slack: Tensor
    surplus: Tensor


class NewtonSystem:
    """Newton's equations at an iterate, reduced to x: (penalty + rows' diag(weight) rows) dx = right-hand side.

    Args:
        rows: `(m, n)`, or those of each point `(B, m, n)`.
        now: Has `point` `(B, n)`, and `dual`, `room` (C - dual), `slack` and `surplus`, each `(B, m)`.
    """

    def __init__(self, rows: Tensor, now: Any) -> None:
        self.rows, self.now = rows, now
        penalty = torch.ones_like(now.point[0])
        penalty[-1] = 0  # the bias is not penalised
        self.weight = 1 / (now.slack / now.room + now.surplus / now.dual)
        matrix = (self.weight[:, None] * rows.mT) @ rows + penalty.diag()
        self.factor = torch.linalg.cholesky_ex(matrix).L
        self.stationarity = times(now.dual, rows) - penalty * now.point
        self.infeasibility = 1 - times(now.point, rows.mT) - now.slack + now.surplus

    def direction(self, push_surplus: Tensor, push_slack: Tensor) -> Direction:
        """What changes a * surplus and (C - a) * slack by the given, and both residuals to 0, to first order."""
        now = self.now
        shift = self.infeasibility - push_slack / now.room + push_surplus / now.dual
        right = times(self.weight * shift, self.rows) + self.stationarity
        dx = torch.cholesky_solve(right.unsqueeze(-1), self.factor).squeeze(-1)
        da = self.weight * (shift - times(dx, self.rows.mT))
        return Direction(dx, da, (push_slack + now.slack * da) / now.room, (push_surplus - now.surplus * da) / now.dual)


@dataclass(frozen=True)
class _Iterate:
    """The fields of a state for b instances on one data set, whose rows are `(m, n)`."""

    rows: Tensor
    C: float
    point: Tensor
    dual: Tensor
    slack: Tensor
    surplus: Tensor
    residual: Tensor
    first: Tensor
    done: Tensor

    @property
    def room(self) -> Tensor:
        return self.C - self.dual

    def mean_product(self) -> Tensor:
        """mu `(b,)`."""
        return ((self.dual * self.surplus).sum(dim=1) + (self.room * self.slack).sum(dim=1)) / (2 * self.dual.shape[1])

    def next(self, precision: float) -> _Iterate:
        """One iteration; an instance that finds no step, or has nothing left to gain, is done."""
        system, mu = NewtonSystem(self.rows, self), self.mean_product()
        affine = system.direction(-self.dual * self.surplus, -self.room * self.slack)
        ahead = self.moved(self.longest(affine), affine).mean_product()
        aim = (mu * (ahead / mu).pow(3).clamp(*CENTRING))[:, None]
        plain = (aim - self.dual * self.surplus, aim - self.room * self.slack)
        corrected = system.direction(plain[0] - affine.dual * affine.surplus, plain[1] + affine.dual * affine.slack)
        length = self.accepted(corrected, MAX_CORRECTED_TRIALS)
        direction, stuck = corrected, length < MIN_CORRECTED_STEP
        if bool(stuck.any()):
            other = system.direction(*plain)
            direction = Direction(*(torch.where(stuck[:, None], *pair) for pair in zip(other, corrected, strict=True)))
            length = torch.where(stuck, self.accepted(other, MAX_TRIALS), length)
        after = self.moved(length, direction)
        left = 2 * self.dual.shape[1] * after.mean_product()
        return replace(after, done=self.done | (length == 0) | ~(left > precision * after.value()))

    def value(self) -> Tensor:
        """f(x) `(b,)`."""
        hinges = (1 - self.point @ self.rows.T).clamp(min=0).sum(dim=1)
        return 0.5 * self.point[:, :-1].square().sum(dim=1) + self.C * hinges

    def longest(self, direction: Direction) -> Tensor:
        """The longest step, at most 1, that keeps all positive `(b,)`."""
        pairs = [(self.dual, direction.dual), (self.room, -direction.dual)]
        pairs += [(self.slack, direction.slack), (self.surplus, direction.surplus)]
        steepest = torch.stack([(-move / now).amax(dim=1) for now, move in pairs]).amax(dim=0)
        return 1 / steepest.clamp(min=1)

    def accepted(self, direction: Direction, trials: int) -> Tensor:
        """The first of ever shorter steps that stays in the neighbourhood `(b,)`; 0 where none does."""
        length = 0.995 * self.longest(direction)
        found = torch.zeros_like(length)
        mu = self.mean_product()
        for _ in range(trials):
            trial = self.moved(length, direction)
            mean = trial.mean_product()
            products = torch.cat([trial.dual * trial.surplus, trial.room * trial.slack], dim=1)
            good = (products.amin(dim=1) >= MIN_CENTRALITY * mean) & (mean <= (1 - MIN_DECREASE * length) * mu)
            good &= trial.residual * self.first <= MAX_INFEASIBILITY * mean
            found = torch.where((found == 0) & good, length, found)
            if bool((found > 0).all()):
                break
            length = SHORTENING * length
        return found

    def moved(self, length: Tensor, direction: Direction) -> _Iterate:
        """Instances whose step has length 0 stay where they are, even where there is no direction to go in."""
        far, moves = length[:, None], direction._asdict().items()
        stepped = {name: getattr(self, name) + torch.where(far == 0, 0.0, far * move) for name, move in moves}
        return replace(self, residual=self.residual * (1 - length), **stepped)


# What a state and an `_Iterate` have in common
STATE_FIELDS = tuple(field.name for field in fields(_Iterate) if field.name not in ("rows", "C"))
