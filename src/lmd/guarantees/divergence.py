"""Upper bounds on the divergence B(x*, x_0) from a start to a minimiser that nobody knows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmd.guarantees.record import ROUNDING
from lmd.mirrors.base import Mirror
from lmd.solvers.certificate import Constant
from lmd.terms import Box, Simplex
from lmd.terms.base import inner

MOST_VERTICES = 512
"""How many evaluations of a potential are worth a bound."""


def divergence_bound(mirror: Mirror, x0: Tensor, radius: Tensor | None) -> Constant | None:
    """A bound on B(x, x0) `(B,)`, over the domain or over ||x - x0|| <= radius `(B,)`; None where there is none.

    B(., x0) is convex, so over a polytope it is highest at a vertex: of the simplex, where that is the domain, or of
    the cross-polytope that contains the ball. Where the potential is smooth, L/2 radius^2 bounds it over the ball.

    Args:
        mirror: The mirror whose divergence B is.
        x0: `(B, ...)`.
        radius: `(B,)`, where it is known how far x can be from x0; None where it is not.
    """
    bounds = []
    if isinstance(mirror.domain, Simplex):
        bounds.append(Constant(_simplex(mirror, x0), "the highest divergence of a vertex of the simplex"))
    smooth = mirror.smoothness
    if isinstance(mirror.domain, Box) and smooth is not None:
        far = torch.maximum(x0 - mirror.domain.low, mirror.domain.high - x0).double().square().flatten(1).sum(dim=1)
        bounds.append(Constant(smooth.double() / 2 * far, "the mirror's smoothness at the farthest corner of the box"))
    if radius is not None:
        if smooth is not None:
            within = smooth.double() / 2 * radius.square()
            bounds.append(Constant(within, "the mirror's smoothness over ||x* - x_0|| <= ||g_0||_* / mu"))
        elif mirror.domain is None and 2 * x0[0].numel() <= MOST_VERTICES:
            within = _cross_polytope(mirror, x0, radius)
            bounds.append(Constant(within, "the vertices around ||x* - x_0|| <= ||g_0||_* / mu"))
    return min(bounds, key=lambda bound: float(bound.value.mean()), default=None)


@torch.no_grad()
def _simplex(mirror: Mirror, x0: Tensor) -> Tensor:
    vertices = torch.eye(x0.shape[1], dtype=x0.dtype, device=x0.device)
    return torch.stack([mirror.divergence(vertex.expand_as(x0), x0).double() for vertex in vertices]).amax(dim=0)


@torch.no_grad()
def _cross_polytope(mirror: Mirror, x0: Tensor, radius: Tensor) -> Tensor:
    """The l1 ball is one; the l2 ball fits into the one that is sqrt(n) times as large, the l-infinity ball into n."""
    n = x0[0].numel()
    reach = radius * {"l1": 1.0, "l2": math.sqrt(n), "linf": float(n)}[mirror.norm]
    highest, slope = torch.zeros_like(reach), mirror.to_dual(x0)
    for unit in torch.eye(n, dtype=x0.dtype, device=x0.device):
        move = reach.to(x0.dtype).reshape(-1, *(1,) * (x0.ndim - 1)) * unit.reshape(x0.shape[1:])
        for vertex in (x0 + move, x0 - move):
            size = mirror.potential(vertex).abs() + mirror.potential(x0).abs() + inner(slope, move).abs()
            rounding = ROUNDING * torch.finfo(x0.dtype).eps * size
            highest = torch.maximum(highest, (mirror.divergence(vertex, x0) + rounding).double())
    return highest
