"""Exact learned mirrors: a convex spline of each coefficient of an orthogonal transform."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_finite, check_interval, check_positive, shape_of
from lmd.core.config import Configurable
from lmd.errors import InputError
from lmd.mirrors.base import Mirror


class Separable(Mirror):
    r"""Psi(x) = \sum_i phi_i((Qx)_i) with Q orthogonal and convex splines phi_i.

    to_dual(x) = Q' phi'(Qx) and to_primal(y) = Q' (phi')^{-1}(Qy), both in closed form. The eigenvalues of the Hessian
    Q' diag(phi''(Qx)) Q are between the least and the largest slope of the curves phi'.

    Coefficients of the same kind share one curve phi', odd and piecewise linear, which is the identity at the start.
    The learned `positions` `(kinds, J)` are its positive knots, in order and at least `gap` apart. The learned `logs`
    `(kinds, J + 1)` are the logarithms of the slopes between knots. Both are mirrored at 0. If J = 0, a curve is a
    line, and its potential a square.

    Args:
        transform: Q.
        knots: J, 0 or more.
        reach: The initial position of the last knot; the other knots are evenly spaced between 0 and `reach`.
        interval: (low, high), positive: the range of slopes, so that curves and their inverses are Lipschitz.

    >>> from lmd.mirrors import Cosine
    >>> mirror = Separable(Cosine(kinds=4), knots=2)
    >>> x = torch.rand(2, 3, 8, 8)
    >>> bool(torch.allclose(mirror.to_primal(mirror.to_dual(x)), x, atol=1e-6))
    True
    """

    def __init__(
        self, transform: Transform, knots: int = 0, reach: float = 1.0, interval: tuple[float, float] = (1e-3, 1e3)
    ) -> None:
        super().__init__()
        self.transform, self.knots = transform, check_count("knots", knots, least=0)
        self.reach = check_positive("reach", reach)
        self.interval = check_interval("interval", interval)
        check_positive("interval", self.interval[0])
        self.gap = 1e-3 * self.reach / (knots + 1)
        kinds = transform.kinds
        self.positions = nn.Parameter(torch.linspace(0, self.reach, knots + 1)[1:].repeat(kinds, 1))
        self.logs = nn.Parameter(torch.zeros(kinds, knots + 1))
        after_loading: Any = self.register_load_state_dict_post_hook
        after_loading(_check_loaded)

    def check_shape(self, argument: str, x: Tensor) -> Tensor:
        return self.transform.check_shape(argument, x)

    def curve(self, like: Tensor) -> Curve:
        """Return phi' of every coefficient of an instance."""
        rows = self.transform.spread(torch.cat([self.positions, self.logs], dim=1), like)
        knots, slopes = rows[..., : self.knots], rows[..., self.knots :].exp()
        return Curve(torch.cat([-knots.flip(-1), knots], dim=-1), torch.cat([slopes[..., 1:].flip(-1), slopes], dim=-1))

    def potential(self, x: Tensor) -> Tensor:
        coefficients = self.transform(self.check("x", x))
        return self.curve(x).divergence(coefficients, torch.zeros_like(coefficients)).flatten(1).sum(dim=1)

    def to_dual(self, x: Tensor) -> Tensor:
        coefficients = self.transform(self.check("x", x))
        return self.transform.inverse(self.curve(x).gradient(coefficients))

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        coefficients = self.transform(self.check_shape("y", y))
        return self.transform.inverse(self.curve(y).inverse().gradient(coefficients))

    def descend(self, x: Tensor, change: Tensor) -> Tensor:
        """Return the step with three transforms instead of four, or with two if the potential is quadratic."""
        self.check("x", x)
        curve, down = self.curve(x), self.transform(change)
        if not self.knots:
            return x - self.transform.inverse(down / curve.slopes[..., 0])
        return self.transform.inverse(curve.inverse().gradient(curve.gradient(self.transform(x)) - down))

    def divergence(self, x: Tensor, y: Tensor) -> Tensor:
        return self.curve(x).divergence(self.transform(x), self.transform(y)).flatten(1).sum(dim=1)

    @property
    def strong_convexity(self) -> Tensor:
        return self.logs.detach().min().exp()

    @property
    def smoothness(self) -> Tensor:
        return self.logs.detach().max().exp()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep the knots in order and apart, and the slopes inside their interval."""
        check_finite("positions", self.positions)
        low, high = check_finite("logs", self.logs).new_tensor(self.interval).log().tolist()
        self.logs.clamp_(low, high)
        if not bool((_steps(self.positions) > 0.999 * self.gap).all()):
            self.positions.copy_(_steps(self.positions.sort(dim=1).values).clamp(min=self.gap).cumsum(dim=1))


def _steps(positions: Tensor) -> Tensor:
    """Return the distance of each knot from the one before, and of the first knot from 0."""
    return positions.diff(dim=1, prepend=torch.zeros_like(positions[:, :1]))


def _check_loaded(mirror: Separable, keys: object) -> None:
    if not bool((_steps(mirror.positions.detach()) > 0).all()):
        raise InputError("positions", "numbers out of order", "positive numbers in increasing order for each kind")
    low, high = mirror.interval
    if not 0.99 * low <= float(mirror.strong_convexity) <= float(mirror.smoothness) <= 1.01 * high:
        raise InputError("logs", "slopes outside their interval", f"logarithms of slopes from {low:g} to {high:g}")


class Transform(nn.Module, Configurable, abc.ABC):
    """An orthogonal map Q of each instance: x `(B, ...)` to coefficients of the same shape, in `kinds` kinds."""

    kinds: int

    @abc.abstractmethod
    def check_shape(self, argument: str, x: Tensor) -> Tensor:
        """Return `x` if the transform fits its shape."""

    @abc.abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return Qx, same shape as x."""

    @abc.abstractmethod
    def inverse(self, coefficients: Tensor) -> Tensor:
        """Return Q'c, same shape as c."""

    @abc.abstractmethod
    def spread(self, rows: Tensor, like: Tensor) -> Tensor:
        """Return a row `(..., J)` for each coefficient of `like[0]`: one of `rows` `(kinds, J)`, or a mean of two."""


class Rotation(Transform):
    r"""A learned orthogonal map of each block of n numbers in x `(B, m n)`; the identity at the start if r is even.

    Q = H_1 ... H_r with reflections H_i = I - 2 v_i v_i' / v_i'v_i, where the v_i are the rows of `vectors` `(r, n)`.
    Q = I - V' T^{-1} V with an upper triangular T, which has v_i'v_j above the diagonal and half of v_i'v_i on it
    ([Joffrain et al. 2006](https://doi.org/10.1145/1141885.1141886)). n reflections give every orthogonal map; at the
    start they cancel in pairs, except for the last one if r is odd.

    Args:
        size: n.
        reflections: r; None is n, or n - 1 if n is odd.
        seed: The seed of the initial reflections.
    """

    def __init__(self, size: int, reflections: int | None = None, seed: int = 0) -> None:
        super().__init__()
        self.kinds = self.size = check_count("size", size)
        count = 2 * (size // 2) if reflections is None else check_count("reflections", reflections, least=0)
        self.reflections, self.seed = count, seed
        pairs = torch.randn((count + 1) // 2, size, generator=torch.Generator().manual_seed(seed))
        start = nn.functional.normalize(pairs).repeat_interleave(2, dim=0)[:count]
        self.vectors = nn.Parameter(start, requires_grad=count > 0)

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> Rotation:
        """Return the rotation of an orthogonal matrix `(n, n)`, up to the signs of its rows, by Householder's QR."""
        packed, _ = torch.geqrf(matrix.T)
        rotation = cls(len(matrix), len(matrix)).to(matrix)
        identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        with torch.no_grad():
            rotation.vectors.copy_((packed.tril(-1) + identity).T.flip(0))
        return rotation

    @property
    def matrix(self) -> Tensor:
        """Q `(n, n)`."""
        V = nn.functional.normalize(self.vectors)
        inner = V @ V.T
        upper = inner.triu(1) + 0.5 * torch.diag(inner.diagonal())
        identity = torch.eye(self.size, dtype=V.dtype, device=V.device)
        return identity - V.T @ torch.linalg.solve_triangular(upper, V, upper=True)

    def check_shape(self, argument: str, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] % self.size:
            raise InputError(argument, f"shape {shape_of(x)}", f"shape (B, n) with n a multiple of {self.size}")
        return x

    def forward(self, x: Tensor) -> Tensor:
        return (x.reshape(len(x), -1, self.size) @ self.matrix.T).flatten(1)

    def inverse(self, coefficients: Tensor) -> Tensor:
        return (coefficients.reshape(len(coefficients), -1, self.size) @ self.matrix).flatten(1)

    def spread(self, rows: Tensor, like: Tensor) -> Tensor:
        return rows.repeat(like.shape[1] // self.size, 1)

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep the vectors at length 1."""
        self.vectors.copy_(nn.functional.normalize(self.vectors))


@functools.lru_cache(maxsize=32)
@torch.inference_mode(False)
def cosines(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    r"""Return the orthogonal cosine transform `(n, n)`: \sqrt{2/n} cos(pi k (i + 1/2) / n), the first row \sqrt{1/n}.

    Its rows are the eigenvectors of K'K, with K the differences of n entries; the eigenvalues are 2 - 2 cos(pi k / n).
    """
    k = torch.arange(size, dtype=torch.float64, device=device)
    matrix = torch.cos(math.pi / size * k[:, None] * (k[None, :] + 0.5)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.to(dtype)


class Cosine(Transform):
    r"""The cosine transform of whole images `(B, C, H, W)`, of any size.

    The curve of a coefficient depends on its frequency r = \sqrt{(e_k + e_l) / 8} in [0, 1]; e_k and e_l are the
    eigenvalues of K'K down and across (`cosines`). Its parameters are a piecewise linear function of r with one row of
    parameters at each of r = 0, 1 / (kinds - 1), ..., 1. Flips and rotations by 90 degrees do not change r, so a
    separable mirror commutes with them.

    Args:
        kinds: The number of knots of the function of r, at least 2.
    """

    def __init__(self, kinds: int = 10) -> None:
        super().__init__()
        self.kinds = check_count("kinds", kinds, least=2)

    def check_shape(self, argument: str, x: Tensor) -> Tensor:
        if x.ndim != 4 or min(x.shape[2:]) < 1:
            raise InputError(argument, f"shape {shape_of(x)}", "images (B, C, H, W), H and W at least 1")
        return x

    def forward(self, x: Tensor) -> Tensor:
        down, across = (cosines(size, x.dtype, x.device) for size in x.shape[2:])
        return down @ x @ across.T

    def inverse(self, coefficients: Tensor) -> Tensor:
        down, across = (cosines(size, coefficients.dtype, coefficients.device) for size in coefficients.shape[2:])
        return down.T @ coefficients @ across

    def spread(self, rows: Tensor, like: Tensor) -> Tensor:
        place = (self.kinds - 1) * frequencies(like.shape[2], like.shape[3], rows.dtype, rows.device)
        below = place.long().clamp(max=self.kinds - 2)
        return torch.lerp(rows[below], rows[below + 1], (place - below)[..., None])


@functools.lru_cache(maxsize=32)
@torch.inference_mode(False)
def frequencies(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return r of `Cosine` for each coefficient, `(H, W)`."""
    down, across = (
        2 - 2 * torch.cos(math.pi / size * torch.arange(size, dtype=torch.float64, device=device))
        for size in (height, width)
    )
    return ((down[:, None] + across[None, :]) / 8).sqrt().to(dtype)


@dataclass(frozen=True)
class Curve:
    r"""phi'(u) = \sum_j s_j (c_j(u) - c_j(0)), with c_j(u) the point of the j-th piece that is nearest to u.

    The pieces are (-inf, k_1], [k_1, k_2], ..., [k_J, inf): phi' is continuous, has slope s_j on the j-th of them, and
    phi'(0) = 0. Its inverse is a curve too, with knots phi'(k_j) and slopes 1 / s_j. `knots` `(..., J)` increase along
    the last dimension, `slopes` `(..., J + 1)` are positive; their other dimensions broadcast against u[0].
    """

    knots: Tensor
    slopes: Tensor

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        """Yield the slope and the two ends of each piece; None is infinity."""
        ends = [None, *self.knots.unbind(dim=-1), None]
        return zip(self.slopes.unbind(dim=-1), ends[:-1], ends[1:], strict=True)

    def gradient(self, u: Tensor) -> Tensor:
        """Return phi'(u), same shape as u."""
        origin = torch.zeros_like(u[:1])
        return sum(
            (slope * (_nearest(u, low, high) - _nearest(origin, low, high)) for slope, low, high in self._pieces()),
            torch.zeros_like(u),
        )

    def inverse(self) -> Curve:
        """Return the curve of the inverse function."""
        knots = [self.gradient(knot[None])[0] for knot in self.knots.unbind(dim=-1)]
        return Curve(torch.stack(knots, dim=-1) if knots else self.knots, 1 / self.slopes)

    def divergence(self, u: Tensor, v: Tensor) -> Tensor:
        r"""Return phi(u) - phi(v) - phi'(v) (u - v), entry by entry, as a sum of terms that are not negative.

        A piece [l, h] of slope 1, whose nearest points to u and v are a and c, has the divergence
        (a - c)^2 / 2 + (h - c) max(u - h, 0) + (c - l) max(l - u, 0): nothing cancels if u and v are near.
        """
        total = torch.zeros_like(u)
        for slope, low, high in self._pieces():
            nearest = _nearest(v, low, high)
            part = (_nearest(u, low, high) - nearest).square() / 2
            if high is not None:
                part = part + (high - nearest) * (u - high).clamp(min=0)
            if low is not None:
                part = part + (nearest - low) * (low - u).clamp(min=0)
            total = total + slope * part
        return total


def _nearest(u: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    u = u if low is None else torch.maximum(u, low)
    return u if high is None else torch.minimum(u, high)
