"""Linear operators: maps of each instance with adjoints, bounds on norms and on rounding."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from lmd.core.batching import Index, Part, to_double
from lmd.core.checks import shape_of
from lmd.errors import InputError
from lmd.terms import Term
from lmd.terms.base import size_of

Map = Callable[[Tensor], Tensor]

K = TypeVar("K", bound="LinearOperator")


class _Linear(torch.autograd.Function):
    """A linear map whose derivative is its adjoint, so the fast code below serves training as it serves solving."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, apply: Map, transpose: Map) -> Tensor:
        ctx.maps = transpose, apply
        return apply(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _linear(gradients[0], *ctx.maps), None, None


_recorded: Callable[[Tensor, Map, Map], Tensor] = _Linear.apply


def _linear(x: Tensor, apply: Map, transpose: Map) -> Tensor:
    if torch.is_grad_enabled() and x.requires_grad:
        return _recorded(x, apply, transpose)
    return apply(x)


class LinearOperator(Part, abc.ABC):
    """A linear map K of each instance, with its adjoint: <Kx, z> = <x, K'z>; x `(B, ...)`, z `(B, ...)`.

    An operator is two methods, `_apply` and `_adjoint`, each of which returns a tensor of its own that the caller may
    write to, and a `norm`. They may work in place: derivatives are taken with the adjoint, not through the code. One
    that holds a tensor for each instance has a `select` as well.

    >>> class Doubling(LinearOperator):
    ...     norm, roundings = 2.0, 0.0  # a product with 2 is exact
    ...
    ...     def _apply(self, x):
    ...         return 2 * x
    ...
    ...     _adjoint = _apply
    >>> Doubling()(torch.ones(1, 2)), Doubling().error(torch.ones(1, 2), 2 * torch.ones(1, 2))
    (tensor([[2., 2.]]), tensor([0.]))
    """

    @property
    def spectrum(self) -> Tensor | None:
        """The eigenvalues of K'K `(H, W // 2 + 1)` in the order of `torch.fft.rfft2`, where it is circulant."""
        return None

    @property
    def wrapped_spectrum(self) -> Tensor | None:
        """The eigenvalues of a circulant matrix that is at least K'K and near it; `spectrum` unless known otherwise."""
        return self.spectrum

    scales: tuple[float, ...] = (1.0,)  # the factors of the `blocks`
    mask: Tensor | None = None  # m of 0 and 1 if Kx = m * x
    grid: tuple[int, ...] | None = None  # lengths of the last axes of x if Kx are its differences along each

    @property
    def blocks(self) -> tuple[LinearOperator, ...]:
        """The stacked operators, or this operator itself if it is not stacked."""
        return (self,)

    def split(self, z: Tensor) -> tuple[Tensor, ...]:
        """The parts of z `(B, ...)` that belong to the `blocks`."""
        return (z,)

    def stacked(self, terms: Sequence[Term]) -> Term:
        """The term of Kx that belongs to those of the `blocks`."""
        return terms[0]

    @property
    def roundings(self) -> float:
        """c with ||computed Kx - Kx|| <= c eps norm ||x||, and the same for K'z, eps the rounding of the dtype.

        Where entries are sums of at most n products, n || |K| || / norm will do, |K| having the absolute entries of K
        ([Higham 2002](https://doi.org/10.1137/1.9780898718027), section 3.5); 10 000 is for operators that do not say.
        """
        return 1e4

    @property
    @abc.abstractmethod
    def norm(self) -> float:
        """A bound on the operator norm: ||Kx|| <= norm ||x||; positive."""

    @abc.abstractmethod
    def _apply(self, x: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def _adjoint(self, z: Tensor) -> Tensor: ...

    def __call__(self, x: Tensor) -> Tensor:
        """Kx."""
        return _linear(x, self._apply, self._adjoint)

    def adjoint(self, z: Tensor) -> Tensor:
        """K'z."""
        return _linear(z, self._adjoint, self._apply)

    def error(self, x: Tensor, z: Tensor) -> Tensor:
        """A bound on ||z - Kx|| `(B,)` for z the computed Kx: roundings eps norm ||x||, unless more is known."""
        return self.roundings * torch.finfo(x.dtype).eps * self.norm * size_of(x)

    def adjoint_error(self, z: Tensor) -> Tensor:
        """A bound on ||computed K'z - K'z|| `(B,)`."""
        return self.roundings * torch.finfo(z.dtype).eps * self.norm * size_of(z)

    def magnitude(self, x: Tensor) -> Tensor:
        """A bound on the sum of the sizes of what each entry of Kx is a sum of: in its shape, or `(B,)`."""
        return self.norm * size_of(x)

    is_identity: ClassVar[bool] = False  # whether Kx = x, so that points behind the operator are points before it

    def gram(self, x: Tensor) -> Tensor:
        """K'K for x `(B, ...)` of n entries, as a matrix `(n, n)` or one for each instance `(B, n, n)`."""
        count = x[0].numel()
        rows = torch.eye(count, dtype=x.dtype, device=x.device).reshape(count, *x.shape[1:])
        image = self(rows).flatten(1)
        return image @ image.mT

    def double(self: K) -> K:
        """Return the operator with its tensors in float64, in which proofs are evaluated."""
        return to_double(self)

    def select(self: K, index: Index) -> K:
        """Return the operator for some of the instances; a number selects a batch of one."""
        return self


def check_ending(argument: str, x: Tensor, ending: tuple[int, ...]) -> Tensor:
    """Return `x` if it is a batch `(B, ..., *ending)`."""
    if x.ndim <= len(ending) or x.shape[-len(ending) :] != ending:
        accepted = f"shape (B, ..., {', '.join(map(str, ending))})"
        raise InputError(argument, f"shape {shape_of(x)}", accepted)
    return x


class Identity(LinearOperator):
    """Kx = x, for x of any shape `(B, ...)`."""

    norm, roundings = 1.0, 0.0
    is_identity = True

    def _apply(self, x: Tensor) -> Tensor:
        return x.clone()

    def _adjoint(self, z: Tensor) -> Tensor:
        return z.clone()


POWER_ITERATIONS, LANCZOS_ITERATIONS = 30, 20  # iterations of `norm_bound` and of `norm_estimate`


def norm_bound(gram: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    r"""A bound on ||A|| for a matrix A of entries of 0 or more, from x -> A'Ax on images of this shape.

    Collatz and Wielandt: the largest eigenvalue of a matrix G of entries of 0 or more is at most max_i (Gv)_i / v_i
    for every v > 0. Power iterations bring the bound down to the eigenvalue; whenever they stop, it holds.
    """
    v, least = torch.ones(shape, dtype=torch.float64, device="cpu"), math.inf
    for _ in range(POWER_ITERATIONS):
        image = gram(v)
        least = min(least, float((image / v).max()))
        v = image + 1e-12 * float(image.max()) + torch.finfo(v.dtype).tiny  # positive, as the bound asks for
    return math.sqrt(least * (1 + 1e-12)) if least > 0 else 1.0  # A = 0: any bound serves it


def norm_estimate(gram: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    """The largest eigenvalue of a symmetric matrix without negative ones, from below, by the method of Lanczos.

    The largest eigenvalue of the tridiagonal matrix that a few steps from a random start make
    ([Golub and Van Loan 2013](https://doi.org/10.56021/9781421407944), section 10.1).
    """
    v = torch.rand(shape, dtype=torch.float64, device="cpu", generator=torch.Generator().manual_seed(0))
    before, v, length = torch.zeros_like(v), v / v.norm(), 0.0
    middle, beside = list[float](), list[float]()
    for _ in range(min(LANCZOS_ITERATIONS, v.numel())):
        image = gram(v) - length * before
        middle.append(float((image * v).sum()))
        rest = image - middle[-1] * v
        length = float(rest.norm())
        beside.append(length)
        before, v = v, rest / max(length, torch.finfo(v.dtype).tiny)
    along = torch.tensor(middle, dtype=torch.float64, device="cpu").diag()
    off = torch.tensor(beside[:-1], dtype=torch.float64, device="cpu").diag(1)
    return float(torch.linalg.eigvalsh(along + off + off.mT)[-1])
