"""The base class of mirrors: a strictly convex potential with its two maps, `to_dual` and `to_primal`."""

from __future__ import annotations

import abc
from typing import ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_choice, check_floating, check_module_kind, check_scale
from lmd.core.config import Configurable
from lmd.errors import InputError
from lmd.terms import Domain
from lmd.terms.base import inner

NORMS = {"l1": 1.0, "l2": 2.0, "linf": float("inf")}
DUAL_NORM = {"l1": "linf", "l2": "l2", "linf": "l1"}  # the dual norm of each norm


def norm_of(x: Tensor, norm: str) -> Tensor:
    """Return the norm of each instance: x `(B, ...)` to `(B,)`."""
    order = NORMS[check_choice("norm", norm, tuple(NORMS))]
    return torch.linalg.vector_norm(x.flatten(1), ord=order, dim=1)


class Mirror(nn.Module, Configurable, abc.ABC):
    r"""A strictly convex potential Psi, its gradient `to_dual`, and the inverse of that gradient, `to_primal`.

    On a closed convex domain X, to_primal(y) is the solution of \min_{x in X} Psi(x) - <y, x>: the point x of X with
    <y - to_dual(x), z - x> <= 0 for every z in X. `lmd.testing.mirrors` tests these properties of any mirror.

    Attributes:
        is_exact: Whether `to_primal` is the inverse up to rounding.
        norm: The norm that `strong_convexity` refers to: "l1", "l2" or "linf".
        domain: The set on which the potential is defined; None is the whole space.
        dimension: d if points are vectors `(B, d)`; None for other shapes.
    """

    is_exact: ClassVar[bool] = True
    norm: ClassVar[str] = "l2"
    domain: Domain | None = None
    dimension: int | None = None

    def check(self, argument: str, x: Tensor) -> Tensor:
        """Return `x` if it has the shape, dtype and device of this mirror and is in its domain."""
        check_module_kind(argument, self.check_shape(argument, x), self, "mirror")
        return x if self.domain is None else self.domain.check(argument, x)

    def check_shape(self, argument: str, y: Tensor) -> Tensor:
        """Return `y` if it has the shape of this mirror's points; override for shapes other than `(B, d)`."""
        return y if self.dimension is None else check_width(argument, y, self.dimension)

    @abc.abstractmethod
    def potential(self, x: Tensor) -> Tensor:
        """Return Psi of each instance: x `(B, ...)` to `(B,)`."""

    @abc.abstractmethod
    def to_dual(self, x: Tensor) -> Tensor:
        """Return the gradient of Psi at x, same shape as x."""

    @abc.abstractmethod
    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        """Return the point of the domain whose gradient is y, same shape as y.

        An exact mirror ignores `tolerance`. Any other refines x until the dual residual
        ||to_dual(x) - y||_2 of each instance is at most `tolerance`.
        """

    def descend(self, x: Tensor, change: Tensor) -> Tensor:
        """Return to_primal(to_dual(x) - change), a step of mirror descent; override if the maps share work."""
        return self.to_primal(self.to_dual(x) - change)

    def divergence(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the Bregman distance B(x, y) = Psi(x) - Psi(y) - <to_dual(y), x - y> of each instance, `(B,)`."""
        return self.potential(x) - self.potential(y) - inner(self.to_dual(y), x - y)

    @property
    @abc.abstractmethod
    def strong_convexity(self) -> Tensor:
        """sigma >= 0 such that B(x, y) >= sigma/2 ||x - y||^2 in the norm `norm`, as a scalar tensor."""

    @property
    def smoothness(self) -> Tensor | None:
        """L such that B(x, y) <= L/2 ||x - y||^2 in the norm `norm`, as a scalar tensor; None if there is none."""
        return None

    def inconsistency(self, x: Tensor, norm: str = "l1", dual: Tensor | None = None) -> Tensor:
        """Return ||to_primal(to_dual(x)) - x|| of each instance `(B,)`, the paper's forward-backward loss.

        `dual` is to_dual(x), if already computed.
        """
        return norm_of(self.to_primal(self.to_dual(x) if dual is None else dual) - x, norm)

    def clipped(self, y: Tensor) -> Tensor | None:
        """Return the number `(B,)` of entries of y that `to_primal` clips to the range of `to_dual`; None if never."""
        return None


def check_width(argument: str, x: Tensor, dimension: int) -> Tensor:
    """Return `x` if it is a batch of vectors of the mirror's dimension."""
    if x.ndim != 2 or x.shape[1] != dimension:
        raise InputError(argument, f"shape {tuple(x.shape)}", f"shape (B, {dimension})")
    return x


def check_positive_vector(argument: str, x: Tensor, dimension: int) -> Tensor:
    """Return `x` if it is a vector `(dimension,)` of finite numbers above zero."""
    check_scale(argument, check_floating(argument, x))
    if x.shape != (dimension,):
        raise InputError(argument, f"shape {tuple(x.shape)}", f"shape ({dimension},)")
    return x
