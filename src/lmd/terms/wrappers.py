"""Terms made of a term: of the difference from data, in a box, of some of the entries."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from lmd import kernels
from lmd.core.checks import check_batch
from lmd.errors import CapabilityError, InputError
from lmd.terms.base import Pieces, Scale, Term, clip, filled, inner, per_instance, size_of, sum_instances, write_to


def data_of(term: Term) -> Tensor:
    """Return the data y `(B, ...)` that a term is about."""
    y = getattr(term, "y", None)
    if not isinstance(y, Tensor):
        accepted = "a term about data: Squares(y), Absolute(y), KullbackLeibler(y)"
        raise CapabilityError("misfit", f"{type(term).__name__}, which has no y", accepted)
    return y


class Wrapper(Term):
    """A term made of another, `term`, whose constants it has unless it says otherwise."""

    term: Term

    @property
    def conjugate_is_finite(self) -> bool:
        return self.term.conjugate_is_finite

    @property
    def strong_convexity(self) -> Scale | None:
        return self.term.strong_convexity

    @property
    def smoothness(self) -> Scale | None:
        return self.term.smoothness

    @property
    def zero_is_exact(self) -> bool:
        return self.term.zero_is_exact


class Shifted(Wrapper):
    """h(z) = g(z - y) for a term g; z, y `(B, ...)`. h*(p) = g*(p) + <p, y>.

    Args:
        term: g, any term.
        y: `(B, ...)`, what is subtracted from z.

    >>> from lmd.terms import Huber
    >>> Shifted(Huber(1.0, delta=0.5), torch.tensor([[3.0]])).value(torch.tensor([[5.0]]))
    tensor([1.7500])
    """

    batched = ("y",)

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

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return torch.add(self.term.prox(z - self.y, step), self.y, out=out)

    def conjugate(self, p: Tensor) -> Tensor:
        return self.term.conjugate(p) + inner(p, self.y)

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        return self.term.project(p, out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return self.term.conjugate_prox(p - per_instance(step, p) * self.y, step, out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.add(self.term.tilted_minimiser(u), self.y, out=out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        return self.term.residual(z - self.y, p)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """The rounding of g, where z - y is off by z_error and by eps relative to itself."""
        away = z - self.y
        z_error = z_error + torch.finfo(z.dtype).eps * size_of(away)
        return self.term.rounding(away, p, z_error, p_error, residual)

    def gauge(self, u: Tensor) -> Tensor:
        return self.term.gauge(u)

    def violation(self, z: Tensor) -> Tensor:
        return self.term.violation(z - self.y)


class Boxed(Wrapper):
    r"""h(z) = \sum_i g_i(z_i) over low <= z <= high, for a term g that is a sum over entries; z `(B, ...)`.

    The ends are finite: numbers, per instance `(B,)` or entries that broadcast, such as one per channel `(B, C, 1, 1)`.
    With e = argmax <z, p> - g(z) over the box and q a subgradient of g at e, q = p inside the box,

        h*(p) = <p, e> - g(e),    h(z) + h*(p) - <z, p> = residual of g at (z, q) + \sum (p - q) (e - z),

    all of 0 or more. So a duality gap is finite whatever p is. *Outside the box* `value` is that of g, and `violation`
    the distance to the box.

    Args:
        term: g, a sum over entries.
        low, high: The ends, finite: numbers, one per instance `(B,)` or entries that broadcast.

    >>> from lmd.terms import Absolute
    >>> term = Boxed(Absolute(torch.tensor([[0.2, 0.5]])), 0.0, 1.0)
    >>> term.conjugate(torch.tensor([[3.0, 0.5]])), term.tilted_minimiser(torch.tensor([[-3.0, -0.5]]))
    (tensor([2.4500]), tensor([[1.0000, 0.5000]]))
    """

    batched = ("low", "high")

    def __init__(self, term: Term, low: Scale, high: Scale) -> None:
        ends = [end if isinstance(end, Tensor) else torch.tensor(end, dtype=torch.float64) for end in (low, high)]
        if not bool((ends[0] <= ends[1]).all()) or not all(bool(torch.isfinite(end).all()) for end in ends):
            raise InputError("low, high", "ends that are not finite or in the wrong order", "finite low <= high")
        self.term, self.low, self.high = term, low, high

    conjugate_is_finite = True

    @property
    def y(self) -> Tensor:
        """The data of the term."""
        return data_of(self.term)

    def _ends(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return filled(self.low, z), filled(self.high, z)

    def value(self, z: Tensor) -> Tensor:
        return self.term.value(z)

    def subgradient(self, z: Tensor) -> Tensor:
        return self.term.subgradient(z)

    def steepness(self, z: Tensor) -> Scale:
        return self.term.steepness(z)

    def nearest(self, z: Tensor) -> Tensor:
        return clip(z, per_instance(self.low, z), per_instance(self.high, z))

    def fill_unknown(self, z: Tensor) -> Tensor:
        return self.term.fill_unknown(z)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """The nearest point of the box to the prox of g: entries do not know of each other."""
        return clip(self.term.prox(z, step, out), per_instance(self.low, z), per_instance(self.high, z), out)

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor | None:
        """The kinks of g, and where its prox is past an end."""
        low, high = self._ends(z)
        free, own = self.term.prox(z + per_instance(step, z) * p, step), self.term.kinks(z, p, step)
        past = (free < low) | (free > high)
        return past if own is None else past | own

    def _best(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """e and q."""
        low, high = self._ends(p)
        inner = self.term.project(p)
        free = self.term.tilted_minimiser(-inner)
        free = torch.where(p > inner, torch.inf, torch.where(p < inner, -torch.inf, free))
        end, inside = clip(free, low, high), (free >= low) & (free <= high)
        return end, torch.where(inside, p, self.term.subgradient(end))

    def conjugate(self, p: Tensor) -> Tensor:
        """h*(p) = <p, e> - g(e), as g*(q) + <p - q, e>: what is subtracted is small."""
        e, q = self._best(p)
        return self.term.conjugate(q) + sum_instances((p - q) * e)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        return write_to(self._best(-u)[0], out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        e, q = self._best(p)
        return self.term.residual(z, q) + sum_instances(((p - q) * (e - z)).clamp(min=0))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """The rounding of g at (z, q), and of the products.

        h* is Lipschitz in p, with a point of the box for its derivative: moving p by d changes the residual by at most
        r |d|, r = max(|z - low|, |z - high|), entry by entry. Moving z by d adds <q - p, d> to what it does to g. A q
        that is off makes the residual larger; an e that is off by a few eps makes it smaller by |p - q| times that.
        """
        (low, high), eps = self._ends(z), torch.finfo(z.dtype).eps
        e, q = self._best(p)
        none = torch.zeros_like(p_error)
        own = self.term.rounding(z, q, z_error, none, residual)
        reach = torch.maximum((z - low).abs(), (z - high).abs())
        products = 32 * eps * sum_instances((p - q).abs() * (e.abs() + z.abs() + reach))
        moved = size_of(p - q) * z_error + (size_of(reach) + z_error) * p_error
        return own + products + moved + (z[0].numel() + 8) * eps * residual

    def gauge(self, u: Tensor) -> Tensor:
        return u.new_zeros(len(u))

    def violation(self, z: Tensor) -> Tensor:
        return size_of(z - self.nearest(z))


TAPS = (1.0, 2.0, 3.0, 2.0, 1.0)
"""The weights, along each axis, of the entries around a lost one that its guess is the mean of."""


def fill_from_neighbours(z: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """z `(B, C, *size)` with its lost entries replaced by a weighted mean of the kept y around, 5 along each axis.

    Entries without any around them stay.
    """
    taps, axes = torch.tensor(TAPS, dtype=z.dtype, device=z.device), z.ndim - 2
    kernel = reduce(lambda one, other: one[..., None] * other, [taps] * axes)[None, None]
    total, share = (kernels.convolve(item.flatten(0, 1)[:, None], kernel).view_as(item) for item in (mask * y, mask))
    fill = ((mask == 0) & (share > 0)).to(z.dtype)
    return z * (1 - fill) + total * (fill / share.clamp(min=1))  # `where` does not broadcast fast
