"""Closed convex sets as terms: boxes and the probability simplex."""

from __future__ import annotations

import abc
import math

import torch
from torch import Tensor

from lmd.core.checks import shape_of
from lmd.errors import DomainError, InputError
from lmd.terms.base import (
    Pieces,
    Scale,
    Term,
    clip,
    filled,
    per_instance,
    rounding_of_sum,
    size_of,
    sum_instances,
)


class Domain(Term):
    """h(z) = 0 on a closed convex set, infinite elsewhere: its prox is the projection, h* the support function."""

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """Description of the points of the set, for messages."""

    @abc.abstractmethod
    def nearest(self, z: Tensor) -> Tensor:
        """Return the nearest point of the set in the Euclidean norm, instance by instance."""

    def max_violation(self, z: Tensor) -> Tensor:
        """Return the largest violation of a constraint by each instance, `(B,)`; 0 inside."""
        return (z - self.nearest(z)).abs().flatten(1).amax(dim=1)

    smoothness: Scale | None = 0.0

    def value(self, z: Tensor) -> Tensor:
        return torch.where(self.violation(z) > 0, torch.inf, z.new_zeros(len(z)))

    def subgradient(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        return self.nearest(z)

    def check(self, argument: str, x: Tensor) -> Tensor:
        """Return `x` if every instance is inside up to rounding; NaNs pass, as they are reported elsewhere."""
        beyond = self.max_violation(x).nan_to_num(nan=0.0)  # a NaN must not hide another instance
        if bool((beyond > 1e3 * torch.finfo(x.dtype).eps).any()):
            worst = int(beyond.argmax())
            raise DomainError(
                argument, f"instance {worst}, which is {float(beyond[worst]):.3g} outside", self.description
            )
        return x


def same_set(domain: Domain | None, other: Domain | None) -> bool:
    """Return whether two domains are the same set; None is the whole space."""
    return domain is other or (type(domain) is type(other) and vars(domain) == vars(other))


def check_rows(argument: str, x: Tensor) -> Tensor:
    """Return `x` if it is a batch of vectors `(B, d)`."""
    if x.ndim != 2:
        raise DomainError(argument, f"shape {shape_of(x)}", "a batch of vectors (B, d)")
    return x


BOX_TOLERANCE = torch.finfo(torch.float32).eps
"""Relative distance to an end up to which a point counts as inside: float32 stores 0.1 as 0.1000000015."""


class Box(Domain):
    r"""h(z) = 0 where low <= z <= high, infinite elsewhere; z `(B, ...)`.

    Ends are numbers, one per instance `(B,)` or one per entry; they may be infinite: `Box(0.0, math.inf)` is z >= 0.
    Points within float32 rounding count as inside. h*(p) = \sum max(low p, high p), which is finite everywhere if the
    ends are finite; its domain is p <= 0 where `high` is infinite, and p >= 0 where `low` is infinite.

    Args:
        low: The lower end: a number, one per instance `(B,)` or one per entry; may be -infinity.
        high: The upper end, a number or tensor as for `low`; may be infinity.

    >>> term = Box(0.0, 1.0)
    >>> term.prox(torch.tensor([[2.0, 0.5]]), step=1.0), term.conjugate(torch.tensor([[2.0, -3.0]]))
    (tensor([[1.0000, 0.5000]]), tensor([2.]))
    """

    batched = ("low", "high")

    def __init__(self, low: Scale = 0.0, high: Scale = 1.0) -> None:
        ordered = high >= low
        if not (bool(ordered.all()) if isinstance(ordered, Tensor) else ordered):
            raise InputError("low, high", "ends in the wrong order, or not numbers", "low <= high")
        self.low, self.high = low, high

    @property
    def conjugate_is_finite(self) -> bool:
        ends = (self.low, self.high)
        return all(bool(torch.isfinite(e).all()) if isinstance(e, Tensor) else math.isfinite(e) for e in ends)

    @property
    def conjugate_is_cone(self) -> bool:
        return not self.conjugate_is_finite

    @property
    def description(self) -> str:
        ends = (f"{end:g}" if isinstance(end, (int, float)) else "ends of its own" for end in (self.low, self.high))
        return f"entries between {' and '.join(ends)}"

    def _ends(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return filled(self.low, z), filled(self.high, z)

    def pieces(self, z: Tensor) -> Pieces:
        return Pieces(low=self.low, high=self.high)

    def _outside(self, z: Tensor) -> Tensor:
        """Return the distance of each entry to the box; distances within rounding count as 0."""
        low, high = self._ends(z)
        past = torch.maximum(low - z, z - high).clamp(min=0)
        met = BOX_TOLERANCE * torch.where(z > high, high, low).abs()
        return torch.where(past > met, past, 0)

    def nearest(self, z: Tensor) -> Tensor:
        return clip(z, per_instance(self.low, z), per_instance(self.high, z))

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor:
        """Return where z is at an end and p points out of the box."""
        low, high = self._ends(z)
        v = z + per_instance(step, z) * p
        return (v < low) | (v > high)

    def _end(self, p: Tensor) -> Tensor:
        """Return argmax_z <z, p> over the box: the end that p points to, or the point nearest to 0 where p is 0."""
        low, high = self._ends(p)
        nearest = clip(torch.zeros_like(p), low, high)
        return torch.where(p > 0, high, torch.where(p < 0, low, nearest))

    def conjugate(self, p: Tensor) -> Tensor:
        return sum_instances(p * self._end(p))

    def project(self, p: Tensor) -> Tensor:
        if self.conjugate_is_finite:
            return p
        low, high = self._ends(p)
        least = torch.where(torch.isfinite(low), -torch.inf, torch.zeros_like(low))
        most = torch.where(torch.isfinite(high), torch.inf, torch.zeros_like(high))
        return clip(p, least, most)

    def conjugate_prox(self, p: Tensor, step: Scale) -> Tensor:
        """Return p minus its projection onto step times the box: exactly 0 if p is inside."""
        by = per_instance(step, p)
        ends = ((end, end.isfinite()) for end in self._ends(p))  # infinite ends have no derivative in the step
        low, high = (torch.where(finite, by * torch.where(finite, end, 0), end) for end, finite in ends)
        return p - clip(p, low, high)

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        return self._end(-u)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """Return sum p (end - z) >= 0, end = high where p > 0, low where p < 0; infinite outside the box."""
        products = torch.where(p != 0, p * (self._end(p) - z), 0).clamp(min=0)
        return torch.where(self.violation(z) > 0, torch.inf, sum_instances(products))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Bound the rounding; the distance of z from the box and the rounding of its ends are errors of z.

        end - z has a relative error of eps. A change d of z changes the residual by -<p, d>. The derivative in p is a
        point of the box minus z, so each entry is r-Lipschitz in p with r = max(|z - low|, |z - high|). Both changes
        together add at most z_error p_error. Infinite ends do not count for r, as no p of the domain points to them.
        """
        away = [torch.where(end.isfinite(), (z - end).abs(), 0) for end in self._ends(z)]
        reach = size_of(torch.maximum(*away))
        numbers = [end for end in (self.low, self.high) if not isinstance(end, Tensor) and math.isfinite(end)]
        stored = max((abs(float(z.new_full((), end)) - end) for end in numbers), default=0.0)
        z_error = z_error + size_of(z - self.nearest(z)) + stored * z[0].numel() ** 0.5
        evaluation = 8 * torch.finfo(z.dtype).eps * residual
        moved = z_error * (size_of(p) + p_error) + torch.where(p_error > 0, reach * p_error, 0)
        return evaluation + moved + rounding_of_sum(z, residual)

    def gauge(self, u: Tensor) -> Tensor:
        """Return 0, or infinity if u points to an infinite end."""
        return torch.where(torch.isfinite(self._end(u)).flatten(1).all(dim=1), u.new_zeros(len(u)), torch.inf)

    def violation(self, z: Tensor) -> Tensor:
        return size_of(self._outside(z))


class Zero(Box):
    """h(z) = 0; z `(B, ...)`. h*(p) = 0 on its domain {0}; `conjugate` and `residual` ignore the rounding of p.

    >>> Zero().prox(torch.tensor([[2.0]]), step=1.0), Zero().gauge(torch.tensor([[2.0], [0.0]]))
    (tensor([[2.]]), tensor([inf, 0.]))
    """

    def __init__(self) -> None:
        super().__init__(-math.inf, math.inf)

    def conjugate(self, p: Tensor) -> Tensor:
        return p.new_zeros(len(p))

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        return z.new_zeros(len(z))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Return 0: the true p is 0, and so is its product with any z."""
        return z.new_zeros(len(z))


SIMPLEX_TOLERANCE = 1e3 * torch.finfo(torch.float32).eps
"""Violation up to which points count as inside: the rounding of float32, also for points evaluated in float64."""


def project_simplex(x: Tensor) -> Tensor:
    """Project each row of `x` `(..., d)` onto the simplex {x >= 0, sum x = 1} in the Euclidean norm, by sorting.

    [Held, Wolfe, Crowder 1974](https://doi.org/10.1007/BF01580223): x -> max(x - tau, 0), where tau makes the result
    sum to one. Each row is first shifted to have maximum 0, so that tau is in [-1, 0). Without the shift, the sum of a
    row far from the simplex would be off by the rounding of x.

    Args:
        x: `(..., d)`.
    """
    x = x - x.detach().amax(dim=-1, keepdim=True)
    ordered = x.sort(dim=-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    threshold = (ordered.cumsum(dim=-1) - 1) / count
    support = (ordered > threshold).sum(dim=-1, keepdim=True).clamp(min=1)
    return (x - threshold.gather(-1, support - 1)).clamp(min=0)


def _below_top(z: Tensor) -> Tensor:
    """Return max z - z >= 0 along the last dimension, same shape as z; constants added to a row cancel."""
    return z.amax(dim=-1, keepdim=True) - z


class Simplex(Domain):
    r"""h(z) = 0 where each row of z `(B, ..., d)` is in the simplex {z >= 0, sum z = 1}, infinite elsewhere.

    h*(p) is the sum of the largest entries of the rows, finite everywhere.

    >>> Simplex().prox(torch.tensor([[2.0, 0.5]]), step=1.0)
    tensor([[1., 0.]])
    """

    conjugate_is_finite = True

    description = "a point of the simplex (entries of 0 or more that sum to 1)"

    def max_violation(self, z: Tensor) -> Tensor:
        below, sums = (-z).clamp(min=0), (z.sum(dim=-1, keepdim=True) - 1).abs()
        return torch.cat([below, sums], dim=-1).flatten(1).amax(dim=1)

    def check(self, argument: str, x: Tensor) -> Tensor:
        return super().check(argument, check_rows(argument, x))

    def pieces(self, z: Tensor) -> Pieces | None:
        return Pieces(low=0.0, total=1.0) if z.ndim == 2 else None

    def conjugate(self, p: Tensor) -> Tensor:
        return sum_instances(p.amax(dim=-1, keepdim=True))

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        """Return the corner of the simplex at the smallest entry of u."""
        return torch.zeros_like(u).scatter(-1, u.argmin(dim=-1, keepdim=True), 1.0)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """Return sum z_i (max p - p_i); infinite outside the simplex."""
        return torch.where(self.violation(z) > 0, torch.inf, sum_instances(z.clamp(min=0) * _below_top(p)))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Bound the rounding; each product z_i (max p - p_i) has a relative error of 8 eps.

        A change e of z changes the sum by <e, max p - p>. A change e of p changes each row by at most 2 ||e||, as
        ||z|| <= 1 and the maximum changes by at most ||e||. Together they add at most (1 + sqrt d) z_error p_error.
        The distance of the stored z from the simplex counts as an error of z. It also costs ||p|| times this distance,
        as the change of z need not sum to 0.
        """
        eps, rows = torch.finfo(z.dtype).eps, z[0].numel() / z.shape[-1]
        away = size_of(z - project_simplex(z))
        z_error = z_error + away + 8 * eps * size_of(z)
        moved = z_error * (size_of(_below_top(p)) + (1 + z.shape[-1] ** 0.5) * p_error) + 2 * rows**0.5 * p_error
        return 8 * eps * residual + moved + away * size_of(p) + rounding_of_sum(z, residual)

    def nearest(self, z: Tensor) -> Tensor:
        return project_simplex(z)

    def violation(self, z: Tensor) -> Tensor:
        """Return the largest violation of a constraint; 0 if it is within the rounding of float32."""
        off = self.max_violation(z)
        return torch.where(off > SIMPLEX_TOLERANCE, off, 0)
