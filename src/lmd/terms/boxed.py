"""A term that is a sum over entries, kept to a box: its conjugate is finite everywhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmd.errors import InputError
from lmd.terms.base import Scale, Term, clip, filled, per_instance, size_of, sum_instances, written


class Boxed(Term):
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

    @property
    def name(self) -> str:
        numbers = not isinstance(self.low, Tensor) and not isinstance(self.high, Tensor)
        return f"boxed {self.term.name if numbers or self.term.name != 'squares' else 'Squares'}"

    @property
    def y(self) -> Tensor:
        """The data of the term."""
        term: Any = self.term
        y: Tensor = term.y
        return y

    @property
    def conjugate_is_finite(self) -> bool:
        return True

    @property
    def strong_convexity(self) -> Scale | None:
        return self.term.strong_convexity

    @property
    def smoothness(self) -> Scale | None:
        return self.term.smoothness

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

    def guess(self, z: Tensor) -> Tensor:
        return self.term.guess(z)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """The nearest point of the box to the prox of g: entries do not know of each other."""
        return written(self.nearest(self.term.prox(z, step)), out)

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor:
        """Those of g, and where its prox is past an end."""
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

    @property
    def zero_is_exact(self) -> bool:
        return self.term.zero_is_exact

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        return written(self._best(-u)[0], out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        e, q = self._best(p)
        return self.term.residual(z, q) + sum_instances(((p - q) * (e - z)).clamp(min=0))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """That of g at (z, q), and of the products.

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
