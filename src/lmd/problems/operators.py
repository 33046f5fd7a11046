"""Linear operators K with their adjoints and a bound on their norm: what composite problems f(x) + g(Kx) stand on."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmd.checks import check_count, shape_of
from lmd.errors import InputError

Map = Callable[[Tensor], Tensor]


class _Linear(torch.autograd.Function):
    """A linear map whose derivative is its adjoint, so the fast code below serves training as it serves solving."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, apply: Map, transpose: Map) -> Tensor:
        ctx.maps = transpose, apply
        return apply(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _linear(gradients[0], *ctx.maps), None, None


def _linear(x: Tensor, apply: Map, transpose: Map) -> Tensor:
    if torch.is_grad_enabled() and x.requires_grad:
        return _Linear.apply(x, apply, transpose)  # type: ignore[no-untyped-call]
    return apply(x)


class LinearOperator(abc.ABC):
    """A linear map K of each instance, with its adjoint: <Kx, z> = <x, K'z>.

    An operator is two methods, `_apply` and `_adjoint`, each of which returns a tensor of its own that the caller may
    write to, and a `norm`. They may work in place: derivatives are taken with the adjoint, not through the code.
    """

    @property
    def roundings(self) -> float:
        """c with ||computed Kx - Kx|| <= c eps norm ||x||, and the same for K'z, eps the rounding of the dtype.

        Where entries are sums of at most n products, n || |K| || / norm will do, |K| having the absolute entries of K;
        10 000 is for operators that do not say.
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


class Identity(LinearOperator):
    """Kx = x."""

    norm = roundings = 1.0

    def _apply(self, x: Tensor) -> Tensor:
        return x.clone()

    def _adjoint(self, z: Tensor) -> Tensor:
        return z.clone()


class Mask(LinearOperator):
    """Kx = mask * x, entry by entry, with a mask of 0 and 1 that broadcasts against x."""

    norm = roundings = 1.0

    def __init__(self, mask: Tensor) -> None:
        self.mask = check_zero_one("mask", mask)

    def _apply(self, x: Tensor) -> Tensor:
        return self.mask * x

    def _adjoint(self, z: Tensor) -> Tensor:
        return self.mask * z


def check_zero_one(argument: str, mask: Tensor) -> Tensor:
    """Return `mask` if its entries are 0 and 1 or, with bool for dtype, false and true."""
    if not isinstance(mask, Tensor):
        raise InputError(argument, type(mask).__name__, "a torch tensor")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError(argument, "entries other than 0 and 1", "1 where a pixel is kept and 0 where it is lost")
    return mask


class FiniteDifferences(LinearOperator):
    r"""Forward differences of images along both axes: x `(B, C, H, W)` to z `(B, C, 2, H, W)`.

    z[:, :, 0, i, j] = x[:, :, i+1, j] - x[:, :, i, j], z[:, :, 1, i, j] = x[:, :, i, j+1] - x[:, :, i, j], and 0 where
    the next pixel would be outside: nothing wraps around. The adjoint does not look at those entries.

    K'K is the Laplacian with reflecting borders, which the cosine transform diagonalises with eigenvalues
    4 sin^2(pi i / 2H) + 4 sin^2(pi j / 2W). The largest is ||K||^2 < 8; `solve` inverts a I + b K'K with them.
    """

    roundings = 16.0  # a pixel of K'z is a sum of four, and || |K| || is at most the root of 8

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = check_count("height", height), check_count("width", width)

    @property
    def norm(self) -> float:
        squared = sum(4 * math.sin(math.pi * (n - 1) / (2 * n)) ** 2 for n in (self.height, self.width))
        return math.sqrt(max(squared, 1.0))  # a single pixel has no differences: any bound serves it

    def check(self, argument: str, x: Tensor) -> Tensor:
        """Return `x` if it is a batch of images of this size."""
        if x.ndim != 4 or x.shape[2:] != (self.height, self.width):
            raise InputError(argument, f"shape {shape_of(x)}", f"shape (B, C, {self.height}, {self.width})")
        return x

    def _apply(self, x: Tensor) -> Tensor:
        self.check("x", x)
        return self.write(x, x.new_empty(*x.shape[:2], 2, *x.shape[2:]))

    def write(self, x: Tensor, z: Tensor) -> Tensor:
        """Write Kx to z `(B, C, 2, H, W)`, which may be part of a larger array, and return z."""
        down, right = z[:, :, 0], z[:, :, 1]
        torch.sub(x[..., 1:, :], x[..., :-1, :], out=down[..., :-1, :])
        torch.sub(x[..., :, 1:], x[..., :, :-1], out=right[..., :, :-1])
        down[..., -1, :] = 0
        right[..., :, -1] = 0
        return z

    def _adjoint(self, z: Tensor) -> Tensor:
        if z.ndim != 5 or z.shape[2:] != (2, self.height, self.width):
            raise InputError("z", f"shape {shape_of(z)}", f"shape (B, C, 2, {self.height}, {self.width})")
        x = z.new_empty(*z.shape[:2], self.height, self.width)
        down, right = z[:, :, 0, :-1], z[:, :, 1, :, :-1]
        if self.height == 1:
            x.zero_()
        else:
            torch.neg(down[..., 0, :], out=x[..., 0, :])
            torch.sub(down[..., :-1, :], down[..., 1:, :], out=x[..., 1:-1, :])
            x[..., -1, :] = down[..., -1, :]
        x[..., :, 1:] += right
        x[..., :, :-1] -= right
        return x

    def solve(self, x: Tensor, identity: float, gram: float) -> Tensor:
        """(identity I + gram K'K)^{-1} x by the cosine transform, on the CPU."""
        from scipy import fft

        values = identity + gram * self.eigenvalues().to(x.dtype)
        spectrum = torch.from_numpy(fft.dctn(x.numpy(), axes=(-2, -1), norm="ortho")).div_(values)
        return torch.from_numpy(fft.idctn(spectrum.numpy(), axes=(-2, -1), norm="ortho", overwrite_x=True))

    def eigenvalues(self) -> Tensor:
        """Those of K'K in the basis of the cosine transform `(H, W)`, float64."""
        rows, columns = (
            4 * torch.sin(torch.arange(n, dtype=torch.float64) * (math.pi / (2 * n))).square()
            for n in (self.height, self.width)
        )
        return rows[:, None] + columns[None, :]
