"""Odd increasing functions of one number, piecewise linear or quadratic, with inverses: gradients of convex splines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_finite, check_interval, check_positive
from lmd.core.config import Configurable
from lmd.errors import InputError


@dataclass(frozen=True)
class Curve:
    r"""phi'(u) = \sum_j s_j (c_j(u) - c_j(0)), with c_j(u) the point of the j-th piece that is nearest to u.

    The pieces are (-inf, k_1], [k_1, k_2], ..., [k_J, inf): phi' is continuous, has slope s_j on the j-th of them, and
    phi'(0) = 0. Its inverse is a curve too, with knots phi'(k_j) and slopes 1 / s_j. `knots` `(..., J)` increase along
    the last dimension, `slopes` `(..., J + 1)` are positive; the others broadcast against an instance of u.
    """

    knots: Tensor
    slopes: Tensor

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        """The slope and the two ends of each piece; None is infinity."""
        ends = [None, *self.knots.unbind(dim=-1), None]
        return zip(self.slopes.unbind(dim=-1), ends[:-1], ends[1:], strict=True)

    def gradient(self, u: Tensor) -> Tensor:
        """phi'(u), same shape as u."""
        origin = torch.zeros_like(u[:1])
        return sum(
            (slope * (_nearest(u, low, high) - _nearest(origin, low, high)) for slope, low, high in self._pieces()),
            torch.zeros_like(u),
        )

    def inverse(self) -> Curve:
        """The curve of the inverse function."""
        knots = [self.gradient(knot[None])[0] for knot in self.knots.unbind(dim=-1)]
        return Curve(torch.stack(knots, dim=-1) if knots else self.knots, 1 / self.slopes)

    def divergence(self, u: Tensor, v: Tensor) -> Tensor:
        r"""phi(u) - phi(v) - phi'(v) (u - v), entry by entry, as a sum of what is never negative.

        A piece [l, h] of slope 1, whose nearest points to u and v are a and c, has the divergence
        (a - c)^2 / 2 + (h - c) max(u - h, 0) + (c - l) max(l - u, 0): nothing cancels where u and v are near.
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


@dataclass(frozen=True)
class SmoothCurve:
    r"""phi'(u) = sign(u) \int_0^{|u|} s, s piecewise linear with values `slopes` at 0 and `knots`, constant beyond.

    phi' is piecewise quadratic and has a continuous derivative, whose least and largest values are among the slopes.
    With H the length of a piece, a and b the slopes at its ends and t how far |u| is into it, it adds
    a t + (b - a) t^2 / 2H, and a value of r into it comes from t = 2r / (a + \sqrt{a^2 + 2 r (b - a) / H}): the inverse
    is in closed form, and nothing cancels. `knots` `(..., J)` are positive and increase, `slopes` `(..., J + 1)` are
    positive. (A rational quadratic has such an inverse too, but its least slope is not at a knot, and its integral
    has logarithms or arcs, by the sign of a discriminant.)
    """

    knots: Tensor
    slopes: Tensor

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The lengths of the pieces from 0 on, and the slopes at both ends."""
        lengths = self.knots.diff(dim=-1, prepend=torch.zeros_like(self.knots[..., :1]))
        ends = self.slopes.unbind(dim=-1)
        return zip(lengths.unbind(dim=-1), ends[:-1], ends[1:], strict=True)

    def gradient(self, u: Tensor) -> Tensor:
        """phi'(u), same shape as u."""
        left, total = u.abs(), torch.zeros_like(u)
        for length, a, b in self._pieces():
            t = torch.minimum(left, length)
            total, left = total + t * (a + (b - a) / (2 * length) * t), left - t
        return torch.copysign(total + self.slopes[..., -1] * left, u)

    def inverse(self) -> InverseCurve:
        """The inverse function."""
        return InverseCurve(self)

    def divergence(self, u: Tensor, v: Tensor) -> Tensor:
        r"""phi(u) - phi(v) - phi'(v) (u - v) = \int_v^u s(z) (u - z) dz, by entry, of parts that are not negative.

        Over a piece with c and e the nearest points to v and u that is
        (e - c) ((s(c) + s(e)) (u - e) / 2 + (2 s(c) + s(e)) (e - c) / 6).
        """
        knots = [torch.zeros_like(self.knots[..., 0]), *self.knots.unbind(dim=-1)]
        slopes, total = self.slopes.unbind(dim=-1), torch.zeros_like(u)
        last = knots[-1], knots[-1] + 1, slopes[-1], slopes[-1]
        for sign in (1, -1):
            x, y = sign * u, sign * v
            for low, high, a, b in (*zip(knots[:-1], knots[1:], slopes[:-1], slopes[1:], strict=True), last):
                end = None if a is b else high
                near, far = _nearest(y, low, end), _nearest(x, low, end)
                at = [a + (b - a) / (high - low) * (point - low) for point in (near, far)]
                past, step = x - far, far - near
                total = total + step * ((at[0] + at[1]) * past / 2 + (2 * at[0] + at[1]) * step / 6)
        return total


@dataclass(frozen=True)
class InverseCurve:
    """The inverse of a `SmoothCurve`."""

    curve: SmoothCurve

    def gradient(self, y: Tensor) -> Tensor:
        """The u with phi'(u) = y, same shape as y."""
        left, total = y.abs(), torch.zeros_like(y)
        for length, a, b in self.curve._pieces():
            r = torch.minimum(left, length * (a + b) / 2)
            root = (a.square() + 2 * r * (b - a) / length).clamp(min=torch.finfo(y.dtype).tiny).sqrt()
            total, left = total + torch.minimum(2 * r / (a + root), length), left - r
        return torch.copysign(total + left / self.curve.slopes[..., -1], y)


def _nearest(u: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    u = u if low is None else torch.maximum(u, low)
    return u if high is None else torch.minimum(u, high)


class Splines(nn.Module, Configurable):
    """An odd `Curve` for each of `kinds` kinds of coefficients, with learned knots and slopes; the identity to begin.

    `knots` `(kinds, J)` are the positive ones, in order and at least `gap` apart, and `logs` `(kinds, J + 1)` the
    logarithms of the slopes between them; both are mirrored at 0. With J = 0 a curve is a line, its potential a square.
    Slopes stay inside `interval`, so that the curves and their inverses are defined everywhere and Lipschitz. A
    quadratic is added to the potential by adding to the slopes.

    Args:
        kinds: Kinds of coefficients, each with a curve of its own.
        knots: J, 0 or more.
        reach: The last knot to begin with; the others lie evenly between it and 0.
        interval: (low, high), positive, what slopes stay inside.
    """

    def __init__(
        self, kinds: int, knots: int = 0, reach: float = 1.0, interval: tuple[float, float] = (1e-3, 1e3)
    ) -> None:
        super().__init__()
        self.kinds, self.count = check_count("kinds", kinds), check_count("knots", knots, least=0)
        self.reach = check_positive("reach", reach)
        self.interval = check_interval("interval", interval)
        check_positive("interval", self.interval[0])
        self.gap = 1e-3 * self.reach / (knots + 1)
        self.knots = nn.Parameter(torch.linspace(0, self.reach, knots + 1)[1:].repeat(kinds, 1))
        self.logs = nn.Parameter(torch.zeros(kinds, knots + 1))
        after_loading: Any = self.register_load_state_dict_post_hook
        after_loading(_check_loaded)

    def config(self) -> dict[str, Any]:
        return {"kinds": self.kinds, "knots": self.count, "reach": self.reach, "interval": list(self.interval)}

    def rows(self) -> Tensor:
        """Positive knots and logarithms of slopes side by side, `(kinds, 2 J + 1)`."""
        return torch.cat([self.knots, self.logs], dim=1)

    def curve(self, rows: Tensor) -> Curve | SmoothCurve:
        """The curve of rows `(..., 2 J + 1)`, such as a mixture of rows of several kinds."""
        knots, slopes = rows[..., : self.count], rows[..., self.count :].exp()
        whole = torch.cat([-knots.flip(-1), knots], dim=-1)
        return Curve(whole, torch.cat([slopes[..., 1:].flip(-1), slopes], dim=-1))

    @property
    def least_slope(self) -> Tensor:
        return self.logs.detach().min().exp()

    @property
    def largest_slope(self) -> Tensor:
        return self.logs.detach().max().exp()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep the knots in order and apart, and the slopes inside their interval."""
        check_finite("knots", self.knots)
        low, high = check_finite("slopes", self.logs).new_tensor(self.interval).log().tolist()
        self.logs.clamp_(low, high)
        if not _ordered(self.knots, self.gap):
            steps = self.knots.sort(dim=1).values.diff(dim=1, prepend=torch.zeros_like(self.knots[:, :1]))
            self.knots.copy_(steps.clamp(min=self.gap).cumsum(dim=1))


class SmoothSplines(Splines):
    """The same with a `SmoothCurve` for each kind: J knots and the logarithms of the slopes at 0 and at each of them.

    Their potentials have a continuous second derivative, between the least and the largest of these slopes.

    Args:
        kinds: Kinds of coefficients, each with a curve of its own.
        knots: J, 1 or more.
        reach: The last knot to begin with; the others lie evenly between it and 0.
        interval: (low, high), positive, what slopes stay inside.
    """

    def __init__(
        self, kinds: int, knots: int = 2, reach: float = 1.0, interval: tuple[float, float] = (1e-3, 1e3)
    ) -> None:
        check_count("knots", knots)
        super().__init__(kinds, knots, reach, interval)

    def curve(self, rows: Tensor) -> SmoothCurve:
        return SmoothCurve(rows[..., : self.count], rows[..., self.count :].exp())


def _ordered(knots: Tensor, gap: float) -> bool:
    steps = knots.diff(dim=1, prepend=torch.zeros_like(knots[:, :1]))
    return bool((steps >= gap * 0.999).all())


def _check_loaded(splines: Splines, keys: object) -> None:
    if not _ordered(splines.knots.detach(), 0.0) or not bool((splines.knots > 0).all()):
        raise InputError("knots", "numbers out of order", "positive numbers in increasing order for each kind")
    low, high = splines.interval
    if not 0.99 * low <= float(splines.least_slope) <= float(splines.largest_slope) <= 1.01 * high:
        raise InputError("logs", "slopes outside their interval", f"logarithms of slopes from {low:g} to {high:g}")
