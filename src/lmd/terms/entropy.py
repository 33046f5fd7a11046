"""Negative entropy, and the Kullback-Leibler divergence of counts from their means."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.core.checks import check_batch, check_fits, check_positive, check_scale, check_zero_one, shape_of
from lmd.errors import InputError
from lmd.terms.base import Scale, Term, filled, rounding_of_sum, size_of, sum_instances
from lmd.terms.wrappers import fill_from_neighbours


class NegativeEntropy(Term):
    r"""h(z) = weight \sum_i z_i log z_i for z >= 0; z `(B, ...)`. h*(p) = weight \sum_i exp(p_i / weight - 1).

    Args:
        weight: A positive number.

    >>> NegativeEntropy().value(torch.tensor([[1.0, 0.5]]))
    tensor([-0.3466])
    """

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = check_positive("weight", weight)

    conjugate_is_finite = True

    def value(self, z: Tensor) -> Tensor:
        return self.weight * sum_instances(torch.special.xlogy(z, z))

    def subgradient(self, z: Tensor) -> Tensor:
        return self.weight * (1 + z.clamp(min=torch.finfo(z.dtype).tiny).log())

    def conjugate(self, p: Tensor) -> Tensor:
        return self.weight * sum_instances((p / self.weight - 1).exp())

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        return (-u / self.weight - 1).exp()

    def nearest(self, z: Tensor) -> Tensor:
        return z.clamp(min=0)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    r"""Return x log(x / y) - x + y >= 0 for each entry, up to rounding; y where x is 0, infinite where only y is 0.

    This formula cancels near x = y. There, y phi(u) is used, u = (x - y) / y, phi(u) = (1 + u) log(1 + u) - u; with
    s = u / (2 + u) and log(1 + u) = 2 artanh s, phi(u) = u s + 2 (1 + u) (s^3/3 + s^5/5 + ...).
    """
    usable = (x > 0) & (y > 0)
    above, base = torch.where(usable, x, 1), torch.where(usable, y, 1)
    u = (above - base) / base
    small = u.clamp(-0.1, 0.1)
    s = small / (2 + small)
    tail = torch.zeros_like(s)
    for order in range(15, 1, -2):
        tail = tail * s.square() + 1 / order
    near = base * (small * s + 2 * (1 + small) * s**3 * tail)
    kind = torch.finfo(x.dtype)
    far = above * (above / base).clamp(kind.tiny, kind.max).log() - above + base
    return torch.where(usable, torch.where(u == small, near, far), torch.where(x > 0, torch.inf, y))


def positive_root(a: Tensor, c: Tensor) -> Tensor:
    """Return the nonnegative root of r^2 - a r - c = 0 for c >= 0, without cancellation."""
    squares = a.square() + 4 * c
    root = torch.where(squares > 0, torch.where(squares > 0, squares, 1).sqrt(), 0)
    below = (root - a).clamp(min=torch.finfo(a.dtype).tiny)
    return torch.where(a > 0, (a + root) / 2, 2 * c / below)


class KullbackLeibler(Term):
    r"""h(z) = \sum_i w_i - y_i log w_i + y_i log y_i - y_i over w = z + background >= 0; counts y >= 0, z `(B, ...)`.

    h is the negative log-likelihood of Poisson counts y with means w, plus a constant that makes its minimum over w 0
    ([Csiszar 1991](https://doi.org/10.1214/aos/1176348385)). The background is a number, per instance `(B,)` or per
    entry, 0 or more. h*(p) = \sum -background p - y log(1 - p) for p < 1, and for p <= 1 where y is 0. With a mask, h
    is a sum over the kept entries, and the p in the domain of h* are 0 at lost entries.

    Args:
        y: `(B, ...)`, counts of 0 or more.
        background: A number of 0 or more, one per instance `(B,)` or one per entry.
        mask: 1 where an entry is kept, 0 where it is lost; it has as many dimensions as y and broadcasts against y.

    >>> term = KullbackLeibler(torch.tensor([[2.0, 0.0]]))
    >>> term.value(torch.tensor([[2.0, 3.0]])), term.prox(torch.tensor([[1.0, 3.0]]), step=1.0)
    (tensor([3.]), tensor([[1.4142, 2.0000]]))
    """

    batched = ("y", "background", "mask")

    def __init__(self, y: Tensor, background: Scale = 0.0, mask: Tensor | None = None) -> None:
        self.y = check_batch("y", y)
        if mask is not None:
            if mask.ndim != y.ndim or any(m not in (1, n) for m, n in zip(mask.shape, y.shape, strict=True)):
                raise InputError("mask", f"shape {shape_of(mask)}", f"one that broadcasts to {shape_of(y)}")
            self.mask = check_zero_one("mask", mask).to(y).expand(len(y), *mask.shape[1:])
        self.background = filled(check_fits("background", background, y), y)
        check_scale("y", y, zero=True)
        check_scale("background", self.background, zero=True)

    @property
    def counted(self) -> Tensor | None:
        return None if self.mask is None else self.mask > 0

    def _kept(self, x: Tensor, lost: Tensor | float) -> Tensor:
        """Return x with the entries outside of the mask replaced by `lost`."""
        return x if self.mask is None else torch.where(self.mask > 0, x, lost)

    def _mean(self, z: Tensor) -> Tensor:
        """Return w at kept entries and y at lost entries, where the divergence is then 0."""
        return self._kept(z + self.background, self.y)

    def value(self, z: Tensor) -> Tensor:
        mean = self._mean(z)
        return torch.where((mean < 0).flatten(1).any(dim=1), torch.inf, sum_instances(divergence(self.y, mean)))

    def subgradient(self, z: Tensor) -> Tensor:
        """Return 1 - y / w, 1 where y is 0, and 0 at lost entries."""
        mean = self._mean(z)
        return self._kept(1 - torch.where(self.y > 0, self.y / torch.where(self.y > 0, mean, 1), 0), 0)

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        by = filled(step, z)
        best = positive_root(z + self.background - by, by * self.y) - self.background
        return self._kept(best, z)

    def conjugate(self, p: Tensor) -> Tensor:
        p, counted = self._kept(p, 0), self.y > 0
        logs = torch.where(counted, self.y * torch.log1p(-torch.where(counted, p, 0)), 0)
        return -sum_instances(self.background * p + logs)

    def project(self, p: Tensor) -> Tensor:
        """Clip p to at most 1, or to 1 - eps where y > 0, as the domain excludes 1 there; set lost entries to 0."""
        edge = torch.where(self.y > 0, 1 - torch.finfo(p.dtype).eps, torch.ones_like(self.y))
        return self._kept(torch.minimum(p, edge), 0)

    def conjugate_prox(self, p: Tensor, step: Scale) -> Tensor:
        """Return 1 - r with the positive root r of r^2 - (1 - p - step background) r - step y = 0.

        For r near 1, 1 - r loses digits; the equivalent p + step background - step y / r is used there.
        """
        by = filled(step, p)
        up, down = by * self.background, by * self.y
        root = positive_root(1 - p - up, down)
        down = down / torch.where(root > 0, root, 1)
        return self._kept(torch.where(p.abs() + up + down < root, p + up - down, 1 - root), 0)

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        """Return y / (1 + u) - background."""
        u, counted = self._kept(u, 0), self.y > 0
        mean = torch.where(counted, self.y / torch.where(counted, 1 + u, 1), 0)
        return mean - self.background

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """Return h(z) + h*(p) - <z, p>, the divergence of y from w (1 - p) for the means w."""
        mean = self._mean(z)
        product = mean * (1 - self._kept(p, 0))
        return torch.where((mean < 0).flatten(1).any(dim=1), torch.inf, sum_instances(divergence(self.y, product)))

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Bound the rounding of each `divergence` d = d(y, m), where m = w (1 - p), by 64 eps (y + m + d).

        d is convex in m: it grows by at most G |change of m|, with G the larger |1 - y / m| at the ends of the range of
        m, and m changes by at most (1 - p + p_error) |change of z| + w |change of p|. Infinite if m can reach 0.
        """
        w, q = self._mean(z), 1 - self._kept(p, 0)
        z_off, p_off = filled(z_error, z), filled(p_error, z)
        ends = (w - z_off).clamp(min=0) * (q - p_off).clamp(min=0), (w + z_off) * (q + p_off)
        slopes = [torch.where(self.y > 0, (1 - self.y / end).abs(), 1) for end in ends]
        most = torch.maximum(*slopes)
        moved = torch.where(z_error > 0, size_of(most * (q + p_off)) * z_error, 0)
        moved = moved + torch.where(p_error > 0, size_of(most * w) * p_error, 0)
        evaluation = 64 * torch.finfo(z.dtype).eps * (sum_instances(self.y + w * q) + residual)
        return evaluation + moved + rounding_of_sum(z, residual)

    def gauge(self, u: Tensor) -> Tensor:
        """Return the largest positive entry, a little enlarged for rounding; infinite if u is not 0 at a lost entry."""
        u = self._kept(u, torch.where(u == 0, u, torch.inf))
        return u.flatten(1).amax(dim=1).clamp(min=0) * (1 + 4 * torch.finfo(u.dtype).eps)

    def with_mask(self, mask: Tensor) -> KullbackLeibler:
        return KullbackLeibler(self.y, self.background, mask)

    def nearest(self, z: Tensor) -> Tensor:
        return self._kept(torch.maximum(z, -self.background), z)

    def fill_unknown(self, z: Tensor) -> Tensor:
        return z if self.mask is None or z.ndim == 2 else fill_from_neighbours(z, self.y, self.mask)
