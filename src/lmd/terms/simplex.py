"""The probability simplex as a constraint, and the largest entry: conjugates of each other."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.terms.base import Pieces, Scale, Term, per_instance, rounding_of_sum, size_of, sum_instances, written
from lmd.terms.domain import Domain, check_rows

STORED = 1e3 * torch.finfo(torch.float32).eps
"""How far entries and sums that a run in float32 stored may be off, also when they are looked at in float64."""


def project_simplex(x: Tensor) -> Tensor:
    """Euclidean projection of each row of `x` `(..., d)` onto the simplex {x >= 0, sum x = 1}, by sorting.

    [Held, Wolfe, Crowder 1974](https://doi.org/10.1007/BF01580223): x -> max(x - tau, 0), where tau makes the result
    sum to one. Each row is first moved to have its maximum at 0, where tau is in [-1, 0): far from the simplex the sum
    would otherwise be off by the rounding of x.

    Args:
        x: `(..., d)`.
    """
    x = x - x.detach().amax(dim=-1, keepdim=True)
    ordered = x.sort(dim=-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    threshold = (ordered.cumsum(dim=-1) - 1) / count
    support = (ordered > threshold).sum(dim=-1, keepdim=True).clamp(min=1)
    return (x - threshold.gather(-1, support - 1)).clamp(min=0)


def below_top(z: Tensor) -> Tensor:
    """max z - z along the last dimension, same shape as z: 0 or more, whatever is added to a row."""
    return z.amax(dim=-1, keepdim=True) - z


def outside(z: Tensor) -> Tensor:
    """How far each instance is outside the simplex `(B,)`; 0 inside up to what float32 stores."""
    off = _off(z).amax(dim=1)
    return torch.where(off > STORED, off, 0)


def _off(z: Tensor) -> Tensor:
    """How far each entry is below 0, and the sum of each row from 1."""
    off_sum = (z.sum(dim=-1, keepdim=True) - 1).abs()
    return torch.cat([(-z).clamp(min=0), off_sum], dim=-1).flatten(1)


def products_rounding(z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
    """Of sum z_i (max p - p_i) for z in the simplex: each product is right to 8 eps relative to itself.

    Moving z by d changes it by <d, max p - p>; moving p by d at most by 2 ||d|| a row,
    as z has length 1 at most and the maximum moves by ||d|| at most; both together by (1 + root d) z_error p_error
    more. The distance of the stored z from the simplex counts as an error of z, and costs that times ||p|| besides: the
    move need not sum to 0.
    """
    eps, rows = torch.finfo(z.dtype).eps, z[0].numel() / z.shape[-1]
    away = size_of(z - project_simplex(z))
    z_error = z_error + away + 8 * eps * size_of(z)
    moved = z_error * (size_of(below_top(p)) + (1 + z.shape[-1] ** 0.5) * p_error) + 2 * rows**0.5 * p_error
    return 8 * eps * residual + moved + away * size_of(p) + rounding_of_sum(z, residual)


class Simplex(Domain):
    r"""h(z) = 0 where each row of z `(B, ..., d)` is in the simplex {z >= 0, sum z = 1}, infinite elsewhere.

    h*(p) = \sum of the largest entry of each row, finite everywhere.

    >>> Simplex().prox(torch.tensor([[2.0, 0.5]]), step=1.0)
    tensor([[1., 0.]])
    """

    @property
    def conjugate_is_finite(self) -> bool:
        return True

    @property
    def about(self) -> str:
        return "a point of the simplex (entries of 0 or more that sum to 1)"

    def beyond(self, z: Tensor) -> Tensor:
        return _off(z).amax(dim=1)

    def check(self, argument: str, x: Tensor) -> Tensor:
        return super().check(argument, check_rows(argument, x))

    def pieces(self, z: Tensor) -> Pieces | None:
        return Pieces(low=0.0, total=1.0) if z.ndim == 2 else None

    def conjugate(self, p: Tensor) -> Tensor:
        return sum_instances(p.amax(dim=-1, keepdim=True))

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """The corner where u is smallest."""
        corner = torch.zeros_like(u).scatter(-1, u.argmin(dim=-1, keepdim=True), 1.0)
        return written(corner, out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """sum z_i (max p - p_i); infinite outside the simplex."""
        return torch.where(outside(z) > 0, torch.inf, sum_instances(z.clamp(min=0) * below_top(p)))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """See `products_rounding`."""
        return products_rounding(z, p, z_error, p_error, residual)

    def nearest(self, z: Tensor) -> Tensor:
        return project_simplex(z)

    def violation(self, z: Tensor) -> Tensor:
        return outside(z)


class Max(Term):
    r"""h(z) = \sum of the largest entry of each row of z `(B, ..., d)`; h* is 0 on its domain, the simplex of each row.

    The simplex does not have 0 in it: a dual point cannot be made feasible by a factor, so there is no `gauge`.

    >>> Max().value(torch.tensor([[2.0, 0.5]]))
    tensor([2.])
    """

    def value(self, z: Tensor) -> Tensor:
        return sum_instances(z.amax(dim=-1, keepdim=True))

    def subgradient(self, z: Tensor) -> Tensor:
        """1 at the first of the largest entries."""
        return torch.zeros_like(z).scatter(-1, z.argmax(dim=-1, keepdim=True), 1.0)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """z - step projection of z / step, by Moreau's identity."""
        by = per_instance(step, z)
        return torch.sub(z, by * project_simplex(z / by), out=out)

    def conjugate(self, p: Tensor) -> Tensor:
        return p.new_zeros(len(p))

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        return written(project_simplex(p), out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """The projection."""
        return self.project(p, out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """0."""
        return written(torch.zeros_like(u), out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """sum p_i (max z - z_i)."""
        return sum_instances(p.clamp(min=0) * below_top(z))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """See `products_rounding`, with z and p exchanged."""
        return products_rounding(p, z, p_error, z_error, residual)

    def best_multiple(self, p: Tensor, most: Scale) -> Tensor:
        raise self._lacks("best_multiple")
