"""Linear operators: maps of each instance with adjoints, bounds on norms and on rounding."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmd.core.batching import Part, to_double
from lmd.core.checks import shape_of
from lmd.errors import InputError
from lmd.terms import Term
from lmd.terms.base import inner, per_instance, size_of

Map = Callable[[Tensor], Tensor]


class _Linear(torch.autograd.Function):
    """A linear map whose derivative is its adjoint, so that the code of operators works in training too."""

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

    A subclass defines `norm` and two methods, `_apply` and `_adjoint`, which return new tensors that callers may write
    to. Both may use in-place operations, because derivatives are computed with the adjoint, not by autograd. `batched`
    names the attributes that are tensors with data of each instance.

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
        """The eigenvalues `(H, W // 2 + 1)` of a circulant K'K in the order of `torch.fft.rfft2`; None for other K."""
        return None

    @property
    def wrapped_spectrum(self) -> Tensor | None:
        """The eigenvalues of a circulant matrix that is at least K'K and near K'K; None if none is known."""
        return None

    scales: tuple[float, ...] = (1.0,)  # the factors of the `blocks`
    mask: Tensor | None = None  # m of 0 and 1 if Kx = m * x
    grid: tuple[int, ...] | None = None  # lengths of the last axes of x if K takes differences along them

    @property
    def blocks(self) -> tuple[LinearOperator, ...]:
        """The stacked operators, or this operator itself if it is not stacked."""
        return (self,)

    def split(self, z: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of z `(B, ...)` that belong to the `blocks`."""
        return (z,)

    def stacked(self, terms: Sequence[Term]) -> Term:
        """Return the term of Kx that combines the terms of the `blocks`."""
        return terms[0]

    @property
    def roundings(self) -> float:
        """A number c with ||computed Kx - Kx|| <= c eps norm ||x||, and likewise for K'z, with eps of the dtype.

        If entries are sums of at most n products, c = n || |K| || / norm holds with the absolute entries |K| of K
        ([Higham 2002](https://doi.org/10.1137/1.9780898718027), section 3.5). 10 000 is a cautious default.
        """
        return 1e4

    @property
    @abc.abstractmethod
    def norm(self) -> float:
        """A bound on the operator norm: ||Kx|| <= norm ||x||; positive."""

    @abc.abstractmethod
    def _apply(self, x: Tensor, /) -> Tensor: ...

    @abc.abstractmethod
    def _adjoint(self, z: Tensor, /) -> Tensor: ...

    def __call__(self, x: Tensor) -> Tensor:
        """Return Kx."""
        return _linear(x, self._apply, self._adjoint)

    def adjoint(self, z: Tensor) -> Tensor:
        """Return K'z."""
        return _linear(z, self._adjoint, self._apply)

    def error(self, x: Tensor, z: Tensor) -> Tensor:
        """Bound ||z - Kx|| `(B,)` for the computed z: roundings eps norm ||x|| by default."""
        return self.roundings * torch.finfo(x.dtype).eps * self.norm * size_of(x)

    def adjoint_error(self, z: Tensor) -> Tensor:
        """Bound ||computed K'z - K'z||, `(B,)`."""
        return self.roundings * torch.finfo(z.dtype).eps * self.norm * size_of(z)

    def magnitude(self, x: Tensor) -> Tensor:
        """Bound sum_j |K_ij x_j| for each entry i of Kx: in the shape of Kx, or `(B,)`."""
        return self.norm * size_of(x)

    is_identity: ClassVar[bool] = False  # whether Kx = x

    def gram(self, x: Tensor) -> Tensor:
        """Return K'K as a matrix `(n, n)`, or `(B, n, n)` if instances differ; n is the number of entries of x[0]."""
        count = x[0].numel()
        rows = torch.eye(count, dtype=x.dtype, device=x.device).reshape(count, *x.shape[1:])
        image = self(rows).flatten(1)
        return image @ image.mT

    double = to_double  # certificates are evaluated in float64


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

    _adjoint = _apply


POWER_ITERATIONS, LANCZOS_ITERATIONS = 30, 20  # iterations of `norm_bound` and of `norm_estimate`
NORM_MARGIN = 1.05  # factor on the result of Lanczos, which may be a few percent below the norm


def norm_bound(gram: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    r"""Bound ||A|| for a matrix A with entries of 0 or more, given the map x -> A'Ax on images of this shape.

    Collatz and Wielandt: the largest eigenvalue of a matrix G with entries of 0 or more is at most max_i (Gv)_i / v_i
    for every v > 0. Power iterations tighten this bound; it holds after any number of iterations.
    """
    v, least = torch.ones(shape, dtype=torch.float64, device="cpu"), math.inf
    for _ in range(POWER_ITERATIONS):
        image = gram(v)
        least = min(least, float((image / v).max()))
        v = image + 1e-12 * float(image.max()) + torch.finfo(v.dtype).tiny  # the bound requires v > 0
    return math.sqrt(least * (1 + 1e-12)) if least > 0 else 1.0  # A = 0: any positive bound holds


def norm_estimate(gram: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    """Return a positive estimate of ||A|| by the Lanczos method, with a margin, given the map x -> A'Ax.

    ||A||^2 is about the largest eigenvalue of the tridiagonal matrix after a few steps from a random start
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
    squared = float(torch.linalg.eigvalsh(along + off + off.mT)[-1])
    return NORM_MARGIN * max(squared, 0.0) ** 0.5 or 1.0


def conjugate_gradients(multiply: Map, right: Tensor, tolerance: float | Tensor, iterations: int) -> Tensor:
    """Return the solution q of multiply(q) = right `(B, ...)` for a symmetric map without negative eigenvalues.

    Each instance stops once the norm of its residual is at most `tolerance`, a number or `(B,)`, times ||right||.
    """
    q, residual, direction = torch.zeros_like(right), right, right
    square, enough = inner(right, right), tolerance * size_of(right)
    for _ in range(iterations):
        going = square.sqrt() > enough
        if not bool(going.any()):
            break
        image = multiply(direction)
        along = inner(direction, image)
        step = per_instance(torch.where(going & (along > 0), square / torch.where(along > 0, along, 1), 0), q)
        q, residual = q + step * direction, residual - step * image
        before, square = square, inner(residual, residual)
        direction = residual + per_instance(square / torch.where(before > 0, before, 1), q) * direction
    return q
