"""Odd increasing piecewise linear functions of one number, with their inverses: gradients of convex splines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmd.checks import check_count, check_finite, check_interval, check_positive
from lmd.config import Configurable
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


def _nearest(u: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    u = u if low is None else torch.maximum(u, low)
    return u if high is None else torch.minimum(u, high)


class Splines(nn.Module, Configurable):
    """An odd `Curve` for each of `kinds` kinds of coefficients, with learned knots and slopes; the identity to begin.

    `knots` `(kinds, J)` are the positive ones, in order and at least `gap` apart, and `logs` `(kinds, J + 1)` the
    logarithms of the slopes between them; both are mirrored at 0. With J = 0 a curve is a line, its potential a square.
    Slopes stay inside `interval`, so that the curves and their inverses are defined everywhere and Lipschitz. A
    quadratic is added to the potential by adding to the slopes.
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

    def curve(self, rows: Tensor) -> Curve:
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


def _ordered(knots: Tensor, gap: float) -> bool:
    steps = knots.diff(dim=1, prepend=torch.zeros_like(knots[:, :1]))
    return bool((steps >= gap * 0.999).all())


def _check_loaded(splines: Splines, keys: object) -> None:
    if not _ordered(splines.knots.detach(), 0.0) or not bool((splines.knots > 0).all()):
        raise InputError("knots", "numbers out of order", "positive numbers in increasing order for each kind")
    low, high = splines.interval
    if not 0.99 * low <= float(splines.least_slope) <= float(splines.largest_slope) <= 1.01 * high:
        raise InputError("logs", "slopes outside their interval", f"logarithms of slopes from {low:g} to {high:g}")
