"""Composite problems f(x) + g(Kx): what primal-dual and dual methods ask for, and the gap that certifies answers."""

from __future__ import annotations

import abc
import functools
from typing import TypeVar

import torch
from torch import Tensor

from lmd.core.batching import Index
from lmd.operators.base import LinearOperator
from lmd.problems.base import Problem, autograd_subgradient
from lmd.terms.base import Scale, per_instance, size_of, sum_instances

C = TypeVar("C", bound="CompositeProblem")


def relative_gap(value: Tensor, gap: Tensor) -> Tensor:
    """A bound on (F(x) - min F) / |min F| for each instance `(B,)`; infinite where the sign of min F is open.

    The minimum lies in [F(x) - gap, F(x)], so |min F| is at least F(x) - gap or -F(x), whichever is positive.
    """
    least = torch.maximum(value - gap, -value).clamp(min=0)
    return torch.where(gap == 0, 0.0, gap / least.abs())  # of a -0.0 the sign would be that of the ratio


class CompositeProblem(Problem):
    r"""F(x) = f(x) + g(Kx) with f and g convex: f is the *data term*, g the *regulariser*, K a linear operator.

    With g*(p) = sup_z <z, p> - g(z), the problem, its saddle form and its dual are

        min_x f(x) + g(Kx) = min_x max_p f(x) + <Kx, p> - g*(p) = max_p m(K'p) - g*(p),   m(u) = min_x f(x) + <u, x>,

    and m(u) = -f*(-u). The *dual point* p has the shape of Kx. For any x and any p in the domain of g*

        gap(x, p) = F(x) - m(K'p) + g*(p)  >=  F(x) - min F  >=  0,

    so the gap certifies x whatever method found x and p.

    A primal-dual method needs `operator`, `data_prox` and `dual_prox`; a dual method needs `operator`, `dual_prox`,
    `tilted_minimiser` and a `data_strong_convexity`. Methods with `out` write their answer there if given; it may be
    one of their arguments.
    """

    operator: LinearOperator

    data_strong_convexity: Scale | None = None
    """A strong convexity constant of f, where there is one: then the dual is smooth."""

    data_smoothness: Scale | None = None
    """A Lipschitz constant of the gradient of f where f is finite, if there is one; it sets the scale of steps."""

    @abc.abstractmethod
    def data_value(self, x: Tensor) -> Tensor:
        """f(x) `(B,)`."""

    @abc.abstractmethod
    def data_prox(self, x: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """argmin_v f(v) + ||v - x||^2 / (2 step), same shape as x."""

    @abc.abstractmethod
    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """argmin_x f(x) + <u, x>, which is the gradient of f* at -u; same shape as u."""

    @abc.abstractmethod
    def regulariser_value(self, z: Tensor) -> Tensor:
        """g(z) `(B,)`."""

    @abc.abstractmethod
    def project_dual(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        """The nearest point of the domain of g*, same shape as p."""

    def dual_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """argmin_q g*(q) + ||q - p||^2 / (2 step): the projection where, as for a norm g, g* is 0 on its domain."""
        return self.project_dual(p, out=out)

    def regulariser_conjugate(self, p: Tensor) -> Tensor:
        """g*(p) `(B,)` for p in the domain of g*; 0 where g is a norm."""
        return p.new_zeros(p.shape[0])

    @property
    def quadratic(self) -> tuple[Tensor, Tensor] | None:
        """P `(n, n)` or `(B, n, n)` and q `(B, n)`, where f(x) is x'Px / 2 + q'x."""
        return None

    def regulariser_prox(self, z: Tensor, step: Scale) -> Tensor:
        """argmin_v g(v) + ||v - z||^2 / (2 step), same shape as z; by Moreau's identity."""
        by = per_instance(step, z)
        return z - by * self.dual_prox(z / by, 1 / step)

    def select(self: C, index: Index) -> C:
        part = super().select(index)
        part.operator = self.operator.select(index)
        return part

    def value(self, x: Tensor) -> Tensor:
        return self.data_value(x) + self.regulariser_value(self.operator(x))

    def f_gradient(self, x: Tensor) -> Tensor:
        """A subgradient of f, same shape as x."""
        return autograd_subgradient(self.data_value, x)[1]

    def _smoothed_dual(self, z: Tensor, width: Scale) -> tuple[Tensor, Scale]:
        """argmax_p <z, p> - g*(p) - w/2 ||p||^2, and w: the width in units of 1 / `data_smoothness`."""
        w = width / (1.0 if self.data_smoothness is None else self.data_smoothness)
        return self.dual_prox(z / per_instance(w, z), 1 / w), w

    def smoothed_gradient(self, x: Tensor, width: Scale) -> tuple[Tensor, Tensor]:
        """The gradient of f(x) + g_w(Kx), g_w(z) = max_p <z, p> - g*(p) - w/2 ||p||^2 (Moreau's envelope), and p.

        g - w/2 max ||p||^2 <= g_w <= g ([Nesterov 2005](https://doi.org/10.1007/s10107-004-0552-5)).
        """
        p, _ = self._smoothed_dual(self.operator(x), width)
        return self.f_gradient(x) + self.operator.adjoint(p), p

    def mixed_gradient(self, x: Tensor, widths: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        z = self.operator(x)
        parts = (self._smoothed_dual(z, width)[0] for width in widths)
        p = functools.reduce(torch.add, map(torch.mul, shares, parts))
        return self.f_gradient(x) + self.operator.adjoint(p), p

    def smoothed_value(self, x: Tensor, width: Scale) -> Tensor:
        z = self.operator(x)
        p, w = self._smoothed_dual(z, width)
        lifted = sum_instances(z * p) - self.regulariser_conjugate(p) - w / 2 * sum_instances(p.square())
        return self.data_value(x) + lifted

    def tilted_minimum(self, u: Tensor) -> Tensor:
        """m(u) = min_x f(x) + <u, x> = -f*(-u), `(B,)`."""
        x = self.tilted_minimiser(u)
        return self.data_value(x) + sum_instances(u * x)

    def primal_from_dual(self, p: Tensor) -> Tensor:
        """The x that minimises the saddle form for this p: argmin_x f(x) + <Kx, p>."""
        return self.tilted_minimiser(self.operator.adjoint(p))

    def dual_value(self, p: Tensor) -> Tensor:
        """m(K'p) - g*(p) `(B,)`, a lower bound on the minimum; p is projected onto the domain of g* first."""
        p = self.project_dual(p)
        return self.tilted_minimum(self.operator.adjoint(p)) - self.regulariser_conjugate(p)

    def dual_gradient(self, p: Tensor) -> Tensor:
        """The gradient of m(K'p), the direction of ascent: K primal_from_dual(p), same shape as p."""
        return self.operator(self.primal_from_dual(p))

    def data_residual(self, x: Tensor, u: Tensor) -> Tensor:
        """f(x) + <u, x> - m(u) >= 0 `(B,)`; 0 where x minimises f(x) + <u, x>."""
        return (self.data_value(x) + sum_instances(u * x) - self.tilted_minimum(u)).clamp(min=0)

    def regulariser_residual(self, z: Tensor, p: Tensor) -> Tensor:
        """g(z) + g*(p) - <z, p> >= 0 `(B,)` for p in the domain of g*; 0 where p is a subgradient of g at z."""
        return (self.regulariser_value(z) + self.regulariser_conjugate(p) - sum_instances(z * p)).clamp(min=0)

    def gap(self, x: Tensor, dual: Tensor) -> Tensor:
        """A bound on F(x) - min F for each instance `(B,)`, from any dual point; it is projected first.

        The sum of the two residuals above, which is the same number as F(x) - dual_value(dual) without the
        cancellation: where a problem adds up its residuals from terms that are never negative, the gap keeps its
        digits down to the square of the rounding of x.
        """
        p = self.project_dual(dual)
        residual = self.data_residual(x, self.operator.adjoint(p))
        return residual + self.regulariser_residual(self.operator(x), p)

    def gap_rounding(self, x: Tensor, p: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        r"""How far the computed value minus the computed `gap` of x and p can be above a true lower bound, `(B,)`.

        Sums of what is never negative are left out: `certified_gap` takes care of them. Here everything that is added
        up is at most as large as the sizes, and every sum has at most as many terms as there are numbers in Kx and x. A
        problem whose residuals do not cancel knows a smaller number.
        """
        z, u = self.operator(x), self.operator.adjoint(p)
        nearest = self.tilted_minimiser(u)
        sizes = self.data_value(x).abs() + self.tilted_minimum(u).abs()
        sizes = sizes + self.regulariser_value(z).abs() + self.regulariser_conjugate(p).abs()
        products = self.operator.norm * (2 * size_of(x) + size_of(nearest)) * size_of(p)
        terms = x[0].numel() + z[0].numel() + 4 * self.operator.roundings
        return torch.finfo(x.dtype).eps * terms * (sizes + products)

    def certified_gap(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """F(x) and a bound on F(x) - min F `(B,)`, both in float64, with room for the rounding of their evaluation.

        Evaluated in float64 where the problem has a `double`, whatever the dtype of x: then the bound is small where
        the gap is, however the run was rounded. Proof: docs/guarantees.md.
        """
        value, gap, room = self.proven_gap(x, dual)
        return value, gap + room

    def proven_gap(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """F(x), the gap as computed and the room for its rounding `(B,)`, in float64."""
        exact = self.double()
        problem = self if exact is None else exact
        if exact is not None:
            x, dual = x.double(), dual.double()
        p = problem.project_dual(dual)
        value, gap = problem.value(x), problem.gap(x, p)
        sums = self.rounding_of_sums(x, p, torch.finfo(x.dtype).eps, value, gap)
        return value.double(), gap.double(), (problem.gap_rounding(x, p, value, gap) + sums).double()

    @staticmethod
    def rounding_of_sums(x: Tensor, p: Tensor, eps: float, value: Tensor, gap: Tensor) -> Tensor:
        """How far sums of as many numbers as x and p have, none of them negative, can be off `(B,)`."""
        return (x[0].numel() + p[0].numel() + 8) * eps * (value.abs() + gap)

    def relative_gap(self, x: Tensor, dual: Tensor) -> Tensor:
        """A bound on (F(x) - min F) / |min F| for each instance `(B,)`, from the certified gap."""
        return relative_gap(*self.certified_gap(x, dual))

    def relaxed_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Where g(Kx) is infinite, it is taken at prox_g(Kx), where it is finite; the distance is the violation."""
        values, violation = super().relaxed_value(x)
        if bool((finite := torch.isfinite(values)).all()):
            return values, violation
        z = self.operator(x)
        away = self.dual_prox(z, 1.0)  # z - prox_g(z), by Moreau's identity
        values = torch.where(finite, values, self.data_value(x) + self.regulariser_value(z - away))
        return values, torch.where(finite, violation, violation + size_of(away))
