"""Exact learned mirrors: a convex spline of each coefficient of an orthogonal transform, and such on a domain."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.mirrors.splines import Curve, SmoothCurve, Splines
from lmd.mirrors.transforms import Rotation, Transform
from lmd.terms import Box, Simplex


class Separable(Mirror):
    r"""Psi(x) = \sum_i phi_i((Qx)_i) with Q orthogonal and convex splines phi_i.

    to_dual(x) = Q' phi'(Qx) and to_primal(y) = Q' (phi')^{-1}(Qy), both in closed form. Its Hessian
    Q' diag(phi''(Qx)) Q has its eigenvalues between the least and the largest slope of the curves.

    Args:
        transform: Q.
        curves: The phi_i, one for each kind of coefficient that the transform has.

    >>> from lmd.mirrors import Cosine
    >>> mirror = Separable(Cosine(kinds=4), Splines(4, knots=2))
    >>> x = torch.rand(2, 3, 8, 8)
    >>> bool(torch.allclose(mirror.to_primal(mirror.to_dual(x)), x, atol=1e-6))
    True
    """

    def __init__(self, transform: Transform, curves: Splines) -> None:
        super().__init__()
        if transform.kinds != curves.kinds:
            raise InputError("curves", f"{curves.kinds} kinds", f"{transform.kinds}, as the transform has")
        self.transform, self.curves = transform, curves

    def config(self) -> dict[str, Any]:
        return {"transform": self.transform, "curves": self.curves}

    def check(self, argument: str, x: Tensor) -> Tensor:
        return super().check(argument, self.transform.check(argument, x))

    def curve(self, like: Tensor) -> Curve | SmoothCurve:
        """phi' of every coefficient of an instance."""
        return self.curves.curve(self.transform.spread(self.curves.rows(), like))

    def potential(self, x: Tensor) -> Tensor:
        coefficients = self.transform(self.check("x", x))
        return self.curve(x).divergence(coefficients, torch.zeros_like(coefficients)).flatten(1).sum(dim=1)

    def to_dual(self, x: Tensor) -> Tensor:
        coefficients = self.transform(self.check("x", x))
        return self.transform.inverse(self.curve(x).gradient(coefficients))

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        coefficients = self.transform(self.transform.check("y", y))
        return self.transform.inverse(self.curve(y).inverse().gradient(coefficients))

    def descend(self, x: Tensor, change: Tensor) -> Tensor:
        """Three transforms in place of four, or two where the potential is quadratic."""
        self.check("x", x)
        curve, down = self.curve(x), self.transform(change)
        if not self.curves.count:
            return x - self.transform.inverse(down / curve.slopes[..., 0])
        return self.transform.inverse(curve.inverse().gradient(curve.gradient(self.transform(x)) - down))

    def divergence(self, x: Tensor, y: Tensor) -> Tensor:
        return self.curve(x).divergence(self.transform(x), self.transform(y)).flatten(1).sum(dim=1)

    @property
    def strong_convexity(self) -> Tensor:
        return self.curves.least_slope

    @property
    def smoothness(self) -> Tensor:
        return self.curves.largest_slope


class _Coordinatewise(Separable):
    """A spline of each entry of x `(B, d)`."""

    def __init__(self, dimension: int, knots: int = 2, reach: float = 1.0) -> None:
        self.dimension = check_count("dimension", dimension)
        super().__init__(Rotation(dimension, 0), Splines(dimension, knots, reach))

    def config(self) -> dict[str, Any]:
        return {"dimension": self.dimension, "knots": self.curves.count, "reach": self.curves.reach}

    def check(self, argument: str, x: Tensor) -> Tensor:
        if x.shape[1:] != (self.dimension,):
            raise InputError(argument, f"shape {tuple(x.shape)}", f"shape (B, {self.dimension})")
        return super().check(argument, x)

    descend = Mirror.descend  # to_primal ends in a projection


class SplineBox(_Coordinatewise):
    r"""Psi(x) = \sum_i phi_i(x_i) on {low <= x <= high}: to_primal(y) = (phi')^{-1}(y), clipped, x `(B, d)`.

    Clipping is the Bregman projection, as the divergence is a sum over the entries.

    Args:
        dimension: d.
        low, high: The ends of the box.
        knots: Positive knots of each phi_i, 0 or more.
        reach: The last knot to begin with.
    """

    def __init__(self, dimension: int, low: float = 0.0, high: float = 1.0, knots: int = 2, reach: float = 1.0) -> None:
        super().__init__(dimension, knots, reach)
        self.domain: Box = Box(low, high)

    def config(self) -> dict[str, Any]:
        return {**super().config(), "low": self.domain.low, "high": self.domain.high}

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        return self.domain.nearest(super().to_primal(y))


class SplineSimplex(_Coordinatewise):
    r"""Psi(x) = \sum_i phi_i(x_i) on the simplex: to_primal(y) = max((phi')^{-1}(y - nu), 0), with nu for a sum of 1.

    The sum is a decreasing, piecewise linear function of nu, with kinks at y_i - phi_i'(k) for k = 0 and every knot:
    bisection among the sorted kinks finds the piece that nu is on, and a line through its ends gives nu.

    Args:
        dimension: d.
        knots: Positive knots of each phi_i, 0 or more.
        reach: The last knot to begin with.
    """

    domain = Simplex()

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        y = self.transform.check("y", y)
        y = y - y.detach().amax(dim=1, keepdim=True)
        curve = self.curve(y)
        inverse = curve.inverse()
        at_knots = (curve.gradient(knot.expand_as(y)) for knot in curve.knots.unbind(dim=-1))
        marks = [torch.zeros_like(y), curve.gradient(torch.ones_like(y)), *at_knots]
        kinks = torch.cat([y - mark for mark in marks], dim=1).sort(dim=1).values

        def total(nu: Tensor) -> Tensor:
            return inverse.gradient(y - nu).clamp(min=0).sum(dim=1, keepdim=True)

        first = torch.zeros_like(kinks[:, :1], dtype=torch.long)  # the sum at the first kink is at least 1
        last = torch.full_like(first, kinks.shape[1] - 1)
        with torch.no_grad():
            for _ in range(math.ceil(math.log2(kinks.shape[1]))):
                middle = (first + last) // 2
                above = total(kinks.gather(1, middle)) >= 1
                first, last = torch.where(above, middle, first), torch.where(above, last, middle)
        low, high = kinks.gather(1, first), kinks.gather(1, first + 1)
        share = (total(low) - 1) / (total(low) - total(high))
        x = inverse.gradient(y - (low + share * (high - low))).clamp(min=0)
        return x / x.sum(dim=1, keepdim=True)
