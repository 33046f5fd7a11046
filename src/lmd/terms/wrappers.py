"""Terms built from other terms: shifted by data, restricted to a box, or stacked over the parts of one array."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from lmd import kernels
from lmd.core.checks import check_batch, check_positive, shape_of
from lmd.errors import InputError
from lmd.terms.base import Pieces, Scale, Term, clip, filled, inner, per_instance, size_of, sum_instances
from lmd.terms.domains import Box


def of_part(name: str) -> Any:
    """Return a property that forwards to an attribute or method of an inner term, such as "term.prox"."""
    return property(attrgetter(name))


class Wrapper(Term):
    """A term built from another, `term`; it has the same constants unless a subclass overrides them."""

    term: Term
    conjugate_is_finite = of_part("term.conjugate_is_finite")
    strong_convexity = of_part("term.strong_convexity")
    smoothness = of_part("term.smoothness")
    zero_is_exact = of_part("term.zero_is_exact")


class Shifted(Wrapper):
    """h(z) = g(z - y) for a term g; z, y `(B, ...)`. h*(p) = g*(p) + <p, y>.

    Args:
        term: g, any term.
        y: The shift `(B, ...)`.

    >>> from lmd.terms import Huber
    >>> Shifted(Huber(1.0, delta=0.5), torch.tensor([[3.0]])).value(torch.tensor([[5.0]]))
    tensor([1.7500])
    """

    batched = ("y",)
    project, gauge = of_part("term.project"), of_part("term.gauge")

    def __init__(self, term: Term, y: Tensor) -> None:
        self.term, self.y = term, check_batch("y", y)

    def value(self, z: Tensor) -> Tensor:
        return self.term.value(z - self.y)

    def subgradient(self, z: Tensor) -> Tensor:
        return self.term.subgradient(z - self.y)

    def pieces(self, z: Tensor) -> Pieces | None:
        found = self.term.pieces(z)
        if found is None or found.total is not None:
            return None
        slope = per_instance(found.slope, z) - per_instance(found.curvature, z) * self.y
        kink, low, high = (per_instance(place, z) + self.y for place in (found.kink, found.low, found.high))
        return found._replace(slope=slope, kink=kink, low=low, high=high)

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        return self.term.prox(z - self.y, step) + self.y

    def conjugate(self, p: Tensor) -> Tensor:
        return self.term.conjugate(p) + inner(p, self.y)

    def conjugate_prox(self, p: Tensor, step: Scale) -> Tensor:
        return self.term.conjugate_prox(p - per_instance(step, p) * self.y, step)

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        return self.term.tilted_minimiser(u) + self.y

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        return self.term.residual(z - self.y, p)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Return the rounding of g at z - y, whose error is z_error plus eps ||z - y||."""
        away = z - self.y
        z_error = z_error + torch.finfo(z.dtype).eps * size_of(away)
        return self.term.rounding(away, p, z_error, p_error, residual)

    def violation(self, z: Tensor) -> Tensor:
        return self.term.violation(z - self.y)


class Boxed(Wrapper):
    r"""h(z) = \sum_i g_i(z_i) over low <= z <= high, for a term g that is a sum over entries; z `(B, ...)`.

    The ends are finite: numbers, per instance `(B,)` or entries that broadcast, such as one per channel `(B, C, 1, 1)`.
    Let q be p clipped between the slopes of g at `low` and `high`, and e the end that p - q points to. Then

        h*(p) = g*(q) + \sum (p - q) e,    h(z) + h*(p) - <z, p> = residual of g at (z, q) + \sum (p - q) (e - z),

    and all summands of the residual are >= 0. Duality gaps are finite for every p. *Outside the box* `value` returns
    g(z), and `violation` the distance to the box.

    Args:
        term: g, a sum over entries.
        low, high: The ends, finite: numbers, one per instance `(B,)` or entries that broadcast.

    >>> from lmd.terms import Absolute
    >>> term = Boxed(Absolute(torch.tensor([[0.2, 0.5]])), 0.0, 1.0)
    >>> term.conjugate(torch.tensor([[3.0, 0.5]])), term.tilted_minimiser(torch.tensor([[-3.0, -0.5]]))
    (tensor([2.4500]), tensor([[1.0000, 0.5000]]))
    """

    conjugate_is_finite = True
    low, high, nearest = of_part("box.low"), of_part("box.high"), of_part("box.nearest")
    value, subgradient, steepness = of_part("term.value"), of_part("term.subgradient"), of_part("term.steepness")
    fill_unknown = of_part("term.fill_unknown")

    def __init__(self, term: Term, low: Scale, high: Scale) -> None:
        self.term, self.box = term, Box(low, high)
        if not self.box.conjugate_is_finite:
            raise InputError("low, high", "ends that are not finite", "finite low <= high")

    @property
    def y(self) -> Any:
        """The data of g; None if g has none."""
        return getattr(self.term, "y", None)

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        """Clip the prox of g to the box, which is exact because g is a sum over entries."""
        return self.nearest(self.term.prox(z, step))

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor | None:
        """Return where g is at a kink or the prox of g is outside the box."""
        free, own = self.term.prox(z + per_instance(step, z) * p, step), self.term.kinks(z, p, step)
        past = free != self.nearest(free)
        return past if own is None else past | own

    def _split(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return q of the class docstring, and p - q."""
        low, high = (filled(end, p).expand_as(p) for end in (self.low, self.high))
        q = clip(p, self.term.subgradient(low), self.term.subgradient(high))
        return q, p - q

    def conjugate(self, p: Tensor) -> Tensor:
        q, past = self._split(p)
        return self.term.conjugate(q) + self.box.conjugate(past)

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        q, past = self._split(-u)
        return torch.where(past == 0, self.nearest(self.term.tilted_minimiser(-q)), self.box.tilted_minimiser(-past))

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        q, past = self._split(p)
        products = past * (self.box.tilted_minimiser(-past) - z)
        return (self.term.residual(z, q) + sum_instances(products)).clamp(min=0)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Sum the roundings of g at (z, q) and of the box at (z, p - q); an inexact q only enlarges the residual.

        The rounding of the box covers p_error: the derivative of h* is a point of the box, as for the box without g.
        """
        q, past = self._split(p)
        own = self.term.rounding(z, q, z_error, torch.zeros_like(p_error), residual)
        return own + self.box.rounding(z, past, z_error, p_error, residual)


def fill_from_neighbours(z: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Return z `(B, C, *size)` with lost entries replaced by weighted means of kept y within 2 entries along each axis.

    A lost entry stays as it is if there is no kept entry within this distance.
    """
    taps, axes = torch.tensor([1, 2, 3, 2, 1], dtype=z.dtype, device=z.device), z.ndim - 2
    kernel = reduce(lambda one, other: one[..., None] * other, [taps] * axes)[None, None]
    total, share = (kernels.convolve(item.flatten(0, 1)[:, None], kernel).view_as(item) for item in (mask * y, mask))
    fill = ((mask == 0) & (share > 0)).to(z.dtype)
    return z * (1 - fill) + total * (fill / share.clamp(min=1))  # faster than a `where` that broadcasts


def split(z: Tensor, shapes: Sequence[tuple[int, ...]]) -> tuple[Tensor, ...]:
    """Split z `(B, n)` into views of shapes `(B, *shapes[j])`."""
    sizes = [math.prod(shape) for shape in shapes]
    if z.ndim != 2 or z.shape[1] != sum(sizes):
        raise InputError("z", f"shape {shape_of(z)}", f"shape (B, {sum(sizes)})")
    parts = torch.split(z, sizes, dim=1)
    return tuple(part.view(len(z), *shape) for part, shape in zip(parts, shapes, strict=True))


def join(parts: Iterable[Tensor]) -> Tensor:
    """Flatten the parts `(B, *shapes[j])` and concatenate them to one array `(B, n)`."""
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def check_scales(scales: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Return `count` positive scales, one for each part; None stands for scales of 1."""
    given = (1.0,) * count if scales is None else tuple(check_positive("scales", scale) for scale in scales)
    if len(given) != count:
        raise InputError("scales", f"{len(given)} of them", f"{count}, one for each part")
    return given


class Stacked(Term):
    r"""h(z) = \sum_j h_j(z_j / scale_j), where the parts z_j of z `(B, n)` may differ in shape.

    Parts are flattened instance by instance and joined along dimension 1: part j is `(B, *shapes[j])`, and n is the sum
    of their sizes. The stacked scale_j K_j map to such arrays. The scales, 1 by default, change the steps of a
    primal-dual method for each part, but neither values nor minima. h*(p) = \sum h_j*(scale_j p_j).

    Args:
        terms: The h_j, at least one.
        shapes: For each term, the shape of z_j without the batch dimension.
        scales: A positive number for each term; None is 1.

    >>> from lmd.terms import L1, Squares
    >>> term = Stacked((L1(2.0), Squares(torch.ones(1, 3))), shapes=((2,), (3,)))
    >>> term.value(torch.tensor([[1.0, -1.0, 1.0, 2.0, 3.0]]))
    tensor([9.])
    """

    def __init__(
        self, terms: Sequence[Term], shapes: Sequence[tuple[int, ...]], scales: Sequence[float] | None = None
    ) -> None:
        self.terms, self.shapes = tuple(terms), tuple(tuple(shape) for shape in shapes)
        self.scales = check_scales(scales, len(self.terms))

    def split(self, z: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of z `(B, n)` as views `(B, *shapes[j])`."""
        return split(z, self.shapes)

    def _primal(self, z: Tensor) -> Iterator[tuple[Term, float, Tensor]]:
        """Yield each term with its scale and z_j / scale_j."""
        for term, scale, part in zip(self.terms, self.scales, self.split(z), strict=True):
            yield term, scale, _over(part, scale)

    def _dual(self, p: Tensor) -> Iterator[tuple[Term, float, Tensor]]:
        """Yield each term with its scale and scale_j p_j."""
        for term, scale, part in zip(self.terms, self.scales, self.split(p), strict=True):
            yield term, scale, _times(part, scale)

    def _pairs(self, z: Tensor, p: Tensor) -> Iterator[tuple[Term, float, Tensor, Tensor]]:
        """Yield each term with its scale, z_j / scale_j and scale_j p_j."""
        for (term, scale, a), (_, _, b) in zip(self._primal(z), self._dual(p), strict=True):
            yield term, scale, a, b

    @property
    def conjugate_is_finite(self) -> bool:
        return all(term.conjugate_is_finite for term in self.terms)

    @property
    def strong_convexity(self) -> Scale | None:
        return self._constant([term.strong_convexity for term in self.terms], smallest=True)

    @property
    def smoothness(self) -> Scale | None:
        return self._constant([term.smoothness for term in self.terms], smallest=False)

    def _constant(self, constants: Sequence[Scale | None], smallest: bool) -> Scale | None:
        """Return the smallest or largest constant / scale^2; None unless all parts have a constant."""
        present = [c / s**2 for c, s in zip(constants, self.scales, strict=True) if c is not None]
        if len(present) < len(self.terms):
            return None
        tensors = [c for c in present if isinstance(c, Tensor)]
        if not tensors:
            numbers = [float(c) for c in present]
            return min(numbers) if smallest else max(numbers)
        each = torch.stack([filled(c, tensors[0]).expand_as(tensors[0]) for c in present])
        return each.amin(dim=0) if smallest else each.amax(dim=0)

    def value(self, z: Tensor) -> Tensor:
        return reduce(torch.add, (term.value(a) for term, _, a in self._primal(z)))

    def subgradient(self, z: Tensor) -> Tensor:
        return join(_over(term.subgradient(a), scale) for term, scale, a in self._primal(z))

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        """Apply the prox of each part; a step for each entry `(B or 1, n)` is split like z."""
        each = self.split(step) if isinstance(step, Tensor) and step.ndim > 1 else [step] * len(self.terms)
        parts = zip(self._primal(z), each, strict=True)
        return join(_times(term.prox(a, t / scale**2), scale) for (term, scale, a), t in parts)

    def conjugate(self, p: Tensor) -> Tensor:
        return reduce(torch.add, (term.conjugate(b) for term, _, b in self._dual(p)))

    def project(self, p: Tensor) -> Tensor:
        if self.conjugate_is_finite:
            return p
        return join(_over(term.project(b), scale) for term, scale, b in self._dual(p))

    def conjugate_prox(self, p: Tensor, step: Scale) -> Tensor:
        return join(_over(term.conjugate_prox(b, step * scale**2), scale) for term, scale, b in self._dual(p))

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        return join(_times(term.tilted_minimiser(b), scale) for term, scale, b in self._dual(u))

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        return reduce(torch.add, (term.residual(a, b) for term, _, a, b in self._pairs(z, p)))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Sum the roundings of the parts, each for the errors and the residual of the whole array.

        z_j / scale and scale p_j have a relative error of eps, or no error if the scale is a power of two.
        """
        total = (len(self.terms) + 8) * torch.finfo(z.dtype).eps * residual
        for term, scale, a, b in self._pairs(z, p):
            eps = 0.0 if math.frexp(scale)[0] == 0.5 else torch.finfo(z.dtype).eps
            errors = z_error / scale + eps * size_of(a), p_error * scale + eps * size_of(b)
            total = total + term.rounding(a, b, *errors, residual)
        return total

    def gauge(self, u: Tensor) -> Tensor:
        return reduce(torch.maximum, [term.gauge(b) for term, _, b in self._dual(u)])

    def violation(self, z: Tensor) -> Tensor:
        parts = [scale * term.violation(a) for term, scale, a in self._primal(z)]
        return torch.stack(parts, dim=1).norm(dim=1)


def _over(part: Tensor, scale: float) -> Tensor:
    """Return part / scale, or the part itself if the scale is 1."""
    return part if scale == 1 else part / scale


def _times(part: Tensor, scale: float) -> Tensor:
    return part if scale == 1 else part * scale
