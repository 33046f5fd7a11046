"""Closed convex sets that problems are minimised over: each can project and say how far outside a point is."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from lmd.checks import check_interval, shape_of
from lmd.errors import DomainError
from lmd.terms.simplex import project_simplex


class Domain(abc.ABC):
    """A closed convex set."""

    name: str

    @abc.abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """The nearest point of the set in the Euclidean norm, instance by instance."""

    @abc.abstractmethod
    def violation(self, x: Tensor) -> Tensor:
        """How far each instance is outside `(B,)`; 0 inside."""

    def check(self, argument: str, x: Tensor) -> Tensor:
        """Return `x` if every instance is inside up to rounding; a NaN is left to whoever looks for NaNs."""
        violation = self.violation(x).nan_to_num(nan=0.0)  # a NaN must not hide its neighbours
        if bool((violation > 1e3 * torch.finfo(x.dtype).eps).any()):
            worst = int(violation.argmax())
            raise DomainError(argument, f"instance {worst}, which is {float(violation[worst]):.3g} outside", self.name)
        return x


class Simplex(Domain):
    """{x : x >= 0, sum x = 1}, along the last dimension of x `(B, d)`."""

    name = "a point of the simplex (entries of 0 or more that sum to 1)"

    def project(self, x: Tensor) -> Tensor:
        return project_simplex(x)

    def check(self, argument: str, x: Tensor) -> Tensor:
        return super().check(argument, check_rows(argument, x))

    def violation(self, x: Tensor) -> Tensor:
        below = (-x).amax(dim=-1)
        off_sum = (x.sum(dim=-1) - 1).abs()
        return torch.maximum(below, off_sum)


class Box(Domain):
    """{x : low <= x <= high}, entry by entry."""

    def __init__(self, low: float = 0.0, high: float = 1.0) -> None:
        self.low, self.high = check_interval("box", (low, high))
        self.name = f"entries between {self.low:g} and {self.high:g}"

    def project(self, x: Tensor) -> Tensor:
        return x.clamp(self.low, self.high)

    def violation(self, x: Tensor) -> Tensor:
        outside = torch.maximum(self.low - x, x - self.high).clamp(min=0)
        return outside.flatten(1).amax(dim=1)


def same_set(domain: Domain | None, other: Domain | None) -> bool:
    """Whether two domains, None being the whole space, are one set."""
    return domain is other or (type(domain) is type(other) and vars(domain) == vars(other))


def check_rows(argument: str, x: Tensor) -> Tensor:
    """Return `x` if it is a batch of vectors `(B, d)`."""
    if x.ndim != 2:
        raise DomainError(argument, f"shape {shape_of(x)}", "a batch of vectors (B, d)")
    return x
