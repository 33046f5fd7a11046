"""Closed convex sets as terms: 0 on the set, infinite elsewhere; what problems are minimised over."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from lmd.core.checks import shape_of
from lmd.errors import DomainError
from lmd.terms.base import Scale, Term, written


class Domain(Term):
    """h(z) = 0 on a closed convex set, infinite elsewhere: its prox is the projection, h* the support function."""

    @property
    @abc.abstractmethod
    def about(self) -> str:
        """What a point of the set is, for messages."""

    @abc.abstractmethod
    def nearest(self, z: Tensor) -> Tensor:
        """The nearest point of the set in the Euclidean norm, instance by instance."""

    @abc.abstractmethod
    def beyond(self, z: Tensor) -> Tensor:
        """By how much each instance breaks a constraint `(B,)`, the largest of them; 0 inside."""

    @property
    def smoothness(self) -> Scale | None:
        return 0.0

    def value(self, z: Tensor) -> Tensor:
        return torch.where(self.violation(z) > 0, torch.inf, z.new_zeros(len(z)))

    def subgradient(self, z: Tensor) -> Tensor:
        """0."""
        return torch.zeros_like(z)

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """The nearest point of the set."""
        return written(self.nearest(z), out)

    def check(self, argument: str, x: Tensor) -> Tensor:
        """Return `x` if every instance is inside up to rounding; a NaN is left to whoever looks for NaNs."""
        beyond = self.beyond(x).nan_to_num(nan=0.0)  # a NaN must not hide its neighbours
        if bool((beyond > 1e3 * torch.finfo(x.dtype).eps).any()):
            worst = int(beyond.argmax())
            raise DomainError(argument, f"instance {worst}, which is {float(beyond[worst]):.3g} outside", self.about)
        return x


def same_set(domain: Domain | None, other: Domain | None) -> bool:
    """Whether two domains, None being the whole space, are one set."""
    return domain is other or (type(domain) is type(other) and vars(domain) == vars(other))


def check_rows(argument: str, x: Tensor) -> Tensor:
    """Return `x` if it is a batch of vectors `(B, d)`."""
    if x.ndim != 2:
        raise DomainError(argument, f"shape {shape_of(x)}", "a batch of vectors (B, d)")
    return x
