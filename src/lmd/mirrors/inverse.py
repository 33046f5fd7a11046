"""The inverse of the gradient of a potential to any accuracy, by Newton's method from an approximate inverse."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmd.mirrors.base import norm_of
from lmd.mirrors.potentials import PotentialNetwork
from lmd.terms.base import inner

# The path of beta along which a leaky potential is approached by smooth ones.
FIRST_SHARPNESS, SHARPENING, LAST_SHARPNESS = 10.0, 10.0, 1e10
MAX_CG_ITERATIONS, MAX_TRIALS = 50, 30  # of one Newton iteration


@dataclass(frozen=True)
class Refinement:
    """The result of `refine`, instance by instance."""

    x: Tensor  # the points `(B, ...)` of the smallest residual
    residual: Tensor  # ||gradient(x) - y||_2, `(B,)`
    iterations: Tensor  # Newton iterations taken, `(B,)`
    converged: Tensor  # whether the residual is at most the tolerance, `(B,)`


@torch.no_grad()
def refine(
    potential: PotentialNetwork, y: Tensor, start: Tensor, tolerance: float = 1e-6, iterations: int = 100
) -> Refinement:
    r"""Solve gradient(x) = y by minimising the strongly convex Psi(x) - <y, x>, instance by instance, from `start`.

    With sigma the strong convexity of Psi, the solution is within residual / sigma of x. No graph leads from x to y.

    Newton's method with conjugate gradients and a line search, at most `iterations` for each instance. A smooth
    potential has a solution for every y. The gradient of a leaky potential jumps at kinks; there the kinks are rounded
    off with `Activation(beta)`, and beta grows by factors of ten until the rounding does not change the solution. A y
    inside a jump is the gradient at no x: it ends unconverged, near the kink that minimises Psi(x) - <y, x>. Where
    arbitrary y have to be inverted, choose a smooth potential.
    """
    return _Refiner(potential, y.detach(), start.detach(), tolerance).run(iterations)


class _Refiner:
    """The state of `refine` over the whole batch; each iteration advances the open instances."""

    def __init__(self, potential: PotentialNetwork, y: Tensor, start: Tensor, tolerance: float) -> None:
        self.potential, self.y, self.tolerance = potential, y, tolerance
        self.x, self.best = start.clone(), start.clone()
        self.residual = norm_of(potential.gradient(start) - y, "l2")
        self.open = torch.isfinite(self.residual) & (self.residual > tolerance)
        self.taken = torch.zeros_like(self.residual, dtype=torch.int64)
        self.goal = torch.zeros_like(self.residual)  # the residual at which beta is increased; 0 before it is known
        self.beta = None if potential.is_smooth else torch.full_like(self.residual, FIRST_SHARPNESS)

    def run(self, iterations: int) -> Refinement:
        while bool(self.open.any()):
            index = self.open.nonzero().flatten()
            self._advance(index)
            self.taken[index] += 1
            spent = index[self.open[index] & (self.taken[index] >= iterations)]
            if len(spent):
                self._measure(spent)
                self.open[spent] = False
        return Refinement(self.best, self.residual, self.taken, self.residual <= self.tolerance)

    def _advance(self, index: Tensor) -> None:
        beta = None if self.beta is None else self.beta[index]
        objective = _Objective(self.potential, self.x[index], self.y[index], beta)
        self.goal[index] = torch.where(self.goal[index] == 0, self._first_goal(objective), self.goal[index])
        x, norms, stuck = objective.search(objective.newton_direction())
        self.x[index] = x
        served = (norms <= self.goal[index]) | stuck
        if bool(served.any()):
            self._measure(index[served])
            rest = index[served & self.open[index]]
            self.goal[rest] = 0
            if self.beta is None:
                self.open[index[stuck]] = False
            else:
                self.open[rest] = self.beta[rest] < LAST_SHARPNESS
                self.beta[rest] *= SHARPENING

    def _first_goal(self, objective: _Objective) -> Tensor:
        """Return a tenth of the residual at the start if a sharper problem follows, or the tolerance."""
        last = torch.full_like(objective.norms, self.tolerance / 2)
        if objective.beta is None:
            return last
        return torch.where(objective.beta < LAST_SHARPNESS, (0.1 * objective.norms).clamp(min=last), last)

    def _measure(self, index: Tensor) -> None:
        """Keep the points whose gradient is closest to y so far; close the instances that are close enough."""
        residual = norm_of(self.potential.gradient(self.x[index]) - self.y[index], "l2")
        better = residual < self.residual[index]
        self.best[index[better]] = self.x[index[better]]
        self.residual[index[better]] = residual[better]
        self.open[index] &= ~(self.residual[index] <= self.tolerance)


class _Objective:
    """Psi(x) - <y, x> around x, with its kinks rounded off where beta is given; all for a part of the batch."""

    def __init__(self, potential: PotentialNetwork, x: Tensor, y: Tensor, beta: Tensor | None) -> None:
        self.potential, self.y, self.beta = potential, y, beta
        with torch.enable_grad():
            self.x = x.requires_grad_()
            value, self.gradient = potential.value_and_gradient(self.x, beta)
        self.value = value.detach() - inner(x.detach(), y)
        self.slope = self.gradient.detach() - y
        self.norms = norm_of(self.slope, "l2")

    def hessian_times(self, v: Tensor) -> Tensor:
        """Return H v: as H is symmetric, by one backward pass through the gradient."""
        (product,) = torch.autograd.grad(self.gradient, self.x, v, retain_graph=True)
        return product

    def newton_direction(self) -> Tensor:
        """Solve H d = -slope by conjugate gradients, to a tenth or better as the slope vanishes."""
        direction, rest = torch.zeros_like(self.slope), -self.slope
        along, square = rest, self.norms.square()
        goal = square * torch.clamp(self.norms, max=0.01)
        running = square > 0
        for _ in range(MAX_CG_ITERATIONS):
            if not bool(running.any()):
                break
            product = self.hessian_times(along)
            step = _column(torch.where(running, square / inner(along, product), 0), rest)
            direction = direction + step * along
            rest = rest - step * product
            previous, square = square, inner(rest, rest)
            running = running & (square > goal)
            along = rest + _column(torch.where(running, square / previous, 0), rest) * along
        return direction

    def search(self, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a point along the direction that is low enough, its residual, and where there was none.

        Low enough is Armijo's condition or, where the values agree to rounding, a smaller slope.
        """
        x, norms = self.x.detach(), self.norms
        fall = inner(self.slope, direction)
        rounding = 1e3 * torch.finfo(x.dtype).eps * (1 + self.value.abs())
        step = torch.ones_like(fall)
        open_ = torch.ones_like(fall, dtype=torch.bool)
        for _ in range(MAX_TRIALS):
            trial = self.x.detach() + _column(step, x) * direction
            value, gradient = self.potential.value_and_gradient(trial, self.beta)
            value = value - inner(trial, self.y)
            slope = inner(gradient - self.y, direction)
            lower = value <= self.value + 1e-4 * step * fall
            flatter = (value <= self.value + rounding) & (slope.abs() <= 0.9 * fall.abs())
            good = open_ & (lower | flatter)
            x = torch.where(_column(good, x), trial, x)
            norms = torch.where(good, norm_of(gradient - self.y, "l2"), norms)
            open_ = open_ & ~good
            if not bool(open_.any()):
                break
            # Where the slope, a growing function of the step, would cross zero if it grew evenly.
            step = torch.where(open_, step * (fall / (fall - slope)).clamp(0.1, 0.5), step)
        return x, norms, open_


def _column(numbers: Tensor, like: Tensor) -> Tensor:
    """Return one number per instance in the shape `(B, 1, ...)`."""
    return numbers.reshape(-1, *(1,) * (like.ndim - 1))
