"""A term of which some entries are lost, and a guess of what they are."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from lmd import kernels
from lmd.core.checks import check_zero_one, shape_of
from lmd.errors import InputError
from lmd.terms.base import Scale, Term, written

TAPS = (1.0, 2.0, 3.0, 2.0, 1.0)
"""The weights, along each axis, of the entries around a lost one that its guess is the mean of."""


class Masked(Term):
    r"""h(z) = \sum_i g_i(z_i) over the entries that are kept, for a term g that is a sum over entries; z `(B, ...)`.

    g has a minimiser and its minimum is 0, as that of a misfit is: lost entries are put there, and count for nothing.
    h*(p) is that of g, over p that are 0 where an entry is lost.

    Args:
        term: g, a sum over entries about data y `(B, ...)`, such as `KullbackLeibler(y)`.
        mask: 1 where an entry is kept, 0 where it is lost: as many dimensions as y, and broadcasts against it.

    >>> from lmd.terms import KullbackLeibler
    >>> term = Masked(KullbackLeibler(torch.tensor([[2.0, 5.0]])), torch.tensor([[1.0, 0.0]]))
    >>> term.value(torch.tensor([[2.0, 9.0]])), term.prox(torch.tensor([[1.0, 9.0]]), step=1.0)
    (tensor([0.]), tensor([[1.4142, 9.0000]]))
    """

    batched = ("weight",)

    def __init__(self, term: Term, mask: Tensor) -> None:
        about: Any = term
        y: Tensor = about.y
        if mask.ndim != y.ndim or any(m not in (1, n) for m, n in zip(mask.shape, y.shape, strict=True)):
            raise InputError("mask", f"shape {shape_of(mask)}", f"one that broadcasts to {shape_of(y)}")
        self.term, self.weight = term, check_zero_one("mask", mask).to(y).expand(len(y), *mask.shape[1:])

    @property
    def name(self) -> str:
        return f"kept {self.term.name}"

    @property
    def y(self) -> Tensor:
        """The data of the term."""
        term: Any = self.term
        y: Tensor = term.y
        return y

    @property
    def mask(self) -> Tensor:
        return self.weight

    @property
    def smoothness(self) -> Scale | None:
        return self.term.smoothness

    def _at_rest(self, z: Tensor) -> Tensor:
        """z with its lost entries at the minimiser of g."""
        return torch.where(self.weight > 0, z, self.term.tilted_minimiser(torch.zeros_like(z)))

    def _free(self, p: Tensor) -> Tensor:
        """p, and 0 where an entry is lost."""
        return torch.where(self.weight > 0, p, 0)

    def value(self, z: Tensor) -> Tensor:
        return self.term.value(self._at_rest(z))

    def subgradient(self, z: Tensor) -> Tensor:
        return self._free(self.term.subgradient(self._at_rest(z)))

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return written(torch.where(self.weight > 0, self.term.prox(z, step), z), out)

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor | None:
        own = self.term.kinks(self._at_rest(z), self._free(p), step)
        return None if own is None else own & (self.weight > 0)

    def conjugate(self, p: Tensor) -> Tensor:
        return self.term.conjugate(self._free(p))

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        return written(self._free(self.term.project(p)), out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return written(self._free(self.term.conjugate_prox(p, step)), out)

    @property
    def zero_is_exact(self) -> bool:
        return self.term.zero_is_exact

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        return self.term.tilted_minimiser(self._free(u), out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        return self.term.residual(self._at_rest(z), self._free(p))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """That of g: an entry at rest adds nothing to the residual, and to its rounding no less than nothing."""
        return self.term.rounding(self._at_rest(z), self._free(p), z_error, p_error, residual)

    def gauge(self, u: Tensor) -> Tensor:
        """That of g, or infinite where u is not 0 at an entry that is lost."""
        lost = ((self.weight == 0) & (u != 0)).flatten(1).any(dim=1)
        return torch.where(lost, torch.inf, self.term.gauge(self._free(u)))

    def violation(self, z: Tensor) -> Tensor:
        return self.term.violation(self._at_rest(z))

    def guess(self, z: Tensor) -> Tensor:
        return around(z, self.y, self.weight) if z.ndim > 2 else z


def around(z: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """z `(B, C, *size)` with its lost entries replaced by a weighted mean of the kept y around, 5 along each axis.

    Entries without any around them stay.
    """
    taps, axes = torch.tensor(TAPS, dtype=z.dtype, device=z.device), z.ndim - 2
    kernel = reduce(lambda one, other: one[..., None] * other, [taps] * axes)[None, None]
    total, share = (kernels.convolve(item.flatten(0, 1)[:, None], kernel).view_as(item) for item in (mask * y, mask))
    fill = ((mask == 0) & (share > 0)).to(z.dtype)
    return z * (1 - fill) + total * (fill / share.clamp(min=1))  # `where` does not broadcast fast
