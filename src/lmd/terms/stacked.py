"""Several terms of the parts of one array."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from lmd.core.checks import check_positive, shape_of
from lmd.errors import InputError
from lmd.terms.base import Scale, Term, filled, size_of

Method = Callable[[Term, Tensor, float, Tensor | None], Tensor]
"""A function of a term, its part of an array, its scale and, where given, its part of `out`."""


def split(z: Tensor, shapes: Sequence[tuple[int, ...]], argument: str = "z") -> tuple[Tensor, ...]:
    """The parts of z `(B, n)` as views of it in their shapes `(B, *shapes[j])`."""
    sizes = [math.prod(shape) for shape in shapes]
    if z.ndim != 2 or z.shape[1] != sum(sizes):
        raise InputError(argument, f"shape {shape_of(z)}", f"shape (B, {sum(sizes)})")
    parts = torch.split(z, sizes, dim=1)
    return tuple(part.view(len(z), *shape) for part, shape in zip(parts, shapes, strict=True))


class Stacked(Term):
    r"""h(z) = \sum_j h_j(z_j / scale_j), z_j the parts of z `(B, n)`, each in a shape of its own.

    Parts are flattened instance by instance and joined along dimension 1: part j is `(B, *shapes[j])`, and n is the sum
    of their sizes. This is the array that a stack of operators scale_j K_j makes; the scales, 1 by default, weigh the
    steps of a primal-dual method for the parts, and change neither values nor minima. h*(p) = \sum h_j*(scale_j p_j).

    Args:
        terms: The h_j, at least one.
        shapes: Of z_j of one instance, for each term.
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
        given = (1.0,) * len(self.terms) if scales is None else tuple(scales)
        self.scales = tuple(check_positive("scales", scale) for scale in given)
        if not self.terms or len({len(self.terms), len(self.shapes), len(self.scales)}) != 1:
            counts = f"{len(self.terms)} terms, {len(self.shapes)} shapes, {len(self.scales)} scales"
            raise InputError("terms", counts, "as many of each, and at least one")

    def split(self, z: Tensor) -> tuple[Tensor, ...]:
        """The parts of z `(B, n)` as views of it, `(B, *shapes[j])`."""
        return split(z, self.shapes)

    def _parts(self, *arrays: Tensor) -> Iterator[tuple[Term, float, tuple[Tensor, ...]]]:
        """Yield each term with its scale and its parts of the arrays."""
        return zip(self.terms, self.scales, zip(*(self.split(z) for z in arrays), strict=True), strict=True)

    def _map(self, method: Method, z: Tensor, out: Tensor | None) -> Tensor:
        """An array of the answers of the parts, into `out` where it is given."""
        if out is None:
            answers = [method(term, part, scale, None) for term, scale, (part,) in self._parts(z)]
            return torch.cat([answer.flatten(1) for answer in answers], dim=1)
        for term, scale, (part, place) in self._parts(z, out):
            method(term, part, scale, place)
        return out

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
        """The smallest or largest constant / scale^2, where all parts have one."""
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
        return _total([term.value(_over(part, scale)) for term, scale, (part,) in self._parts(z)])

    def subgradient(self, z: Tensor) -> Tensor:
        return self._map(lambda term, part, scale, _: term.subgradient(_over(part, scale)) / scale, z, None)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """A step for each entry `(B or 1, n)` is taken apart like z."""
        if not isinstance(step, Tensor) or step.ndim < 2:
            return self._map(lambda *part: _scaled_prox(step, *part), z, out)
        steps = iter(self.split(step))
        return self._map(lambda *part: _scaled_prox(next(steps), *part), z, out)

    def conjugate(self, p: Tensor) -> Tensor:
        return _total([term.conjugate(_times(part, scale)) for term, scale, (part,) in self._parts(p)])

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        def method(term: Term, part: Tensor, scale: float, place: Tensor | None) -> Tensor:
            if scale == 1 or term.conjugate_is_finite:
                return term.project(part, place)
            return torch.div(term.project(_times(part, scale)), scale, out=place)

        return self._map(method, p, out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        def method(term: Term, part: Tensor, scale: float, place: Tensor | None) -> Tensor:
            if scale == 1:
                return term.conjugate_prox(part, step, place)
            return torch.div(term.conjugate_prox(_times(part, scale), step * scale**2), scale, out=place)

        return self._map(method, p, out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        def method(term: Term, part: Tensor, scale: float, place: Tensor | None) -> Tensor:
            return torch.mul(term.tilted_minimiser(_times(part, scale)), scale, out=place)

        return self._map(method, u, out)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        return _total([term.residual(_over(a, scale), _times(b, scale)) for term, scale, (a, b) in self._parts(z, p)])

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """The sum of the parts', each with all of the errors and of the residual.

        z_j / scale and scale p_j are right to eps relative to themselves, and exact where the scale is a power of two.
        """
        total = (len(self.terms) + 8) * torch.finfo(z.dtype).eps * residual
        for term, scale, (a, b) in self._parts(z, p):
            eps = 0.0 if math.frexp(scale)[0] == 0.5 else torch.finfo(z.dtype).eps
            a, b = _over(a, scale), _times(b, scale)
            errors = z_error / scale + eps * size_of(a), p_error * scale + eps * size_of(b)
            total = total + term.rounding(a, b, *errors, residual)
        return total

    def gauge(self, u: Tensor) -> Tensor:
        return reduce(torch.maximum, [term.gauge(_times(part, scale)) for term, scale, (part,) in self._parts(u)])

    def violation(self, z: Tensor) -> Tensor:
        parts = [scale * term.violation(_over(part, scale)) for term, scale, (part,) in self._parts(z)]
        return torch.stack(parts, dim=1).norm(dim=1)


def _total(parts: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def _over(part: Tensor, scale: float) -> Tensor:
    """part / scale, and part itself where that is the same."""
    return part if scale == 1 else part / scale


def _times(part: Tensor, scale: float) -> Tensor:
    return part if scale == 1 else part * scale


def _scaled_prox(step: Scale, term: Term, part: Tensor, scale: float, place: Tensor | None) -> Tensor:
    return torch.mul(term.prox(_over(part, scale), step / scale**2), scale, out=place)
