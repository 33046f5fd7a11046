"""The one-layer potential with a quadratic term, whose inverse needs no clipping: the stable form of Figure 5."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import check_positive
from lmd.mirrors.one_layer import OneLayer

NEWTON_STEPS = 60
"""Enough for bisection alone to reach rounding in float64; Newton's steps end the search long before."""


class OneLayerQuadratic(OneLayer):
    r"""Psi(x) = w' g(Ax) + 1/2 \sum_i s_i (Ax)_i^2, with g, w and A of `OneLayer` and learned s > 0.

    to_dual(x)   = A'(alpha w + (1 - alpha) w * sigmoid(t) + s * t),  t = Ax
    to_primal(y) = A^{-1} t,  where t solves s_i t_i + (1 - alpha) w_i sigmoid(t_i) = (A^{-T} y - alpha w)_i

    The plain one-layer potential grows linearly, so its gradient is bounded: a gradient step that is large for its w
    leaves the range of `to_dual`, is clipped, and comes back as a point far away, however good the direction was. That
    is the blow-up at large steps in the paper's Figure 5. With the quadratic term every y has one inverse. The
    equations for t are scalar and increasing, and are solved to rounding: Newton's method, kept inside a bracket that
    every step shrinks. Psi is strongly convex with the constant min(s) sigma_min(A)^2.

    Args:
        dimension: d.
        alpha: In [0, 1), fixed.
        floor: The least size of a pivot of A and entry of w and s, which `constrain_` keeps to.
        curvature: Each s_i to begin with, positive.
        matrix: A `(d, d)` to begin with, invertible; None is the identity.
        weight: w `(d,)` to begin with, positive; None is 1.
    """

    def __init__(
        self,
        dimension: int,
        alpha: float = 0.2,
        floor: float = 1e-2,
        curvature: float = 1.0,
        matrix: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> None:
        super().__init__(dimension, alpha, floor=floor, matrix=matrix, weight=weight)
        self.initial_curvature = check_positive("curvature", curvature)
        self.curvature = nn.Parameter(torch.full_like(self.weight.detach(), curvature))

    def config(self) -> dict[str, Any]:
        return {
            "dimension": self.dimension,
            "alpha": self.alpha,
            "floor": self.floor,
            "curvature": self.initial_curvature,
        }

    def potential(self, x: Tensor) -> Tensor:
        t = self.check("x", x) @ self.matrix.T
        linear = (self.alpha * t + (1 - self.alpha) * functional.softplus(t)) @ self.weight
        return linear + 0.5 * t.square() @ self.curvature

    def to_dual(self, x: Tensor) -> Tensor:
        matrix = self.matrix
        t = self.check("x", x) @ matrix.T
        slope = self.weight * (self.alpha + (1 - self.alpha) * torch.sigmoid(t)) + self.curvature * t
        return slope @ matrix

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        wanted = self._slopes(y) - self.alpha * self.weight
        height = (1 - self.alpha) * self.weight
        with torch.no_grad():
            t = _solve(self.curvature, height, wanted)
        if torch.is_grad_enabled():
            # One more Newton step, recorded: its derivatives are those of the implicit function.
            excess = self.curvature * t + height * torch.sigmoid(t) - wanted
            t = t - excess / _slope(self.curvature, height, t).detach()
        return self._points(t)

    def clipped(self, y: Tensor) -> None:  # type: ignore[override]  # nothing is ever clipped here
        return None

    @property
    def strong_convexity(self) -> Tensor:
        smallest = torch.linalg.svdvals(self.matrix.detach())[-1]
        return self.curvature.detach().min() * smallest.square()

    @property
    def smoothness(self) -> Tensor:
        """max_i (s_i + (1 - alpha)/4 w_i) ||A||^2."""
        norm = torch.linalg.matrix_norm(self.matrix.detach(), ord=2)
        return (self.curvature + (1 - self.alpha) / 4 * self.weight).detach().max() * norm.square()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep s positive, and what `OneLayer` keeps."""
        super().constrain_()
        self.curvature.clamp_(min=self.floor)


def _slope(curvature: Tensor, height: Tensor, t: Tensor) -> Tensor:
    sigmoid = torch.sigmoid(t)
    return curvature + height * sigmoid * (1 - sigmoid)


def _solve(curvature: Tensor, height: Tensor, wanted: Tensor) -> Tensor:
    """t with curvature t + height sigmoid(t) = wanted, entry by entry; the sigmoid is in (0, 1), which brackets t."""
    low, high = (wanted - height) / curvature, wanted / curvature
    t = (wanted - 0.5 * height) / (curvature + 0.25 * height)  # exact for the tangent of the sigmoid at 0
    t = torch.minimum(torch.maximum(t, low), high)
    for _ in range(NEWTON_STEPS):
        excess = curvature * t + height * torch.sigmoid(t) - wanted
        low, high = torch.where(excess < 0, t, low), torch.where(excess > 0, t, high)
        newton = t - excess / _slope(curvature, height, t)
        inside = (newton >= low) & (newton <= high)
        step = torch.where(inside, newton, 0.5 * (low + high))
        if not bool((step != t).any()):
            break
        t = step
    return t
