"""The weight of a regulariser from the data: by Stein's unbiased risk, or by pixels that are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.zoo.solve import solve

PATH = (0.17, 0.3, 0.52, 0.9)
"""The weights that are tried, in multiples of twice the noise: what is best for photographs is among them."""

TOLERANCE = 1e-2
"""Risks are flat at their minimum: the solutions they are taken from need not be near."""

MOST = 100
"""Nor are they waited for where they are far away."""

EARLY = (2.1e-2, 60)
"""Tolerance and most iterations behind blurs: what comes later tells one weight from the next no better."""

LATE = (1e-3, 300)
"""The same for absolute distances, whose answers are steps: what is on the way between two is like neither."""

PIXELS, FEWEST, SHARE = 44 * 44, 48 * 48, 4
"""A choice by risk is made on four windows of at most so many pixels, together a fourth of the image, or on one in the
middle where these would be small: on the second number at least, where there are as many."""

PUSH = 0.3
"""How far, in deviations of the noise, data are moved to see how much the solution follows."""

Model = Callable[[Tensor, Tensor], Any]
"""From data `(B, C, *size)` and weights `(B,)` to the problems."""


@dataclass(frozen=True)
class Choice:
    """A weight for each image, and what it was chosen by."""

    weight: Tensor
    """`(B,)`."""

    noise: Tensor
    """The standard deviation that was found, or given, `(B,)`."""

    path: Tensor
    """The weights that were tried `(W, B)`."""

    risk: Tensor
    """What they are expected to cost per pixel, `(W, B)`: the mean square of the error, up to a constant."""

    def times(self, unit: float) -> Choice:
        """The same in another unit."""
        return Choice(self.weight * unit, self.noise * unit, self.path * unit, self.risk * unit**2)


def by_risk(
    model: Model,
    data: Tensor,
    noise: Tensor,
    path: Tensor,
    predict: Callable[[Tensor], Tensor] = lambda x: x,
    share: int = SHARE,
    kernel: Sequence[int] = (),
    least: float | None = None,
    until: tuple[float, int] = (TOLERANCE, MOST),
) -> Choice:
    r"""The weight with the least risk E ||A x(y) - A x||^2 / n that data y = Ax + noise show, A = `predict`.

    Stein's estimate of it, up to a constant, is ||A x(y) - y||^2 / n + 2 noise^2 div / n, with div the divergence of
    y -> A x(y); from one random direction b of signs, div = <b, A x(y + h b) - A x(y)> / h
    ([Ramani, Blu and Unser 2008](https://doi.org/10.1109/TIP.2008.2001404)). `noise` has deviations that broadcast
    against the data: where they are not alike, each derivative counts by its own. The weights of the `path` `(W, B)`
    are solved for together, on windows of one part in `share` of the data, and larger than the `kernel` of A, where it
    has one. `least` is what the model takes no data below: none are moved there. Solves go on `until` a tolerance or
    so many iterations.
    """
    if noise[0].numel() == 1:
        windows, owner = cut(data, share=share, kernel=kernel)
        sigma = noise[owner]
    else:
        both, owner = cut(torch.cat([data, noise.expand_as(data)], dim=1), share=share, kernel=kernel)
        windows, sigma = both.chunk(2, dim=1)
    push, each = PUSH * sigma, sigma / PUSH
    if least is not None and bool((low := windows - push < least).any()):
        push = torch.where(low, windows - least, push)
        each = torch.where(low & (push > 0), sigma.square() / push, each)
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, windows.shape, generator=generator, device="cpu").to(windows).mul_(2).sub_(1)
    moved = torch.cat([windows, windows + push * signs])
    weights = path[:, owner].repeat(1, 2).flatten()
    problem = model(moved.repeat(len(path), *(1,) * (data.ndim - 1)), weights)
    x = problem.image(solve(problem, until[0], iterations=until[1]).x)
    here, there = predict(x).reshape(len(path), 2, *windows.shape).unbind(1)
    misfit = (here - windows).square().flatten(2).sum(2)
    follow = ((there - here) * (signs * each)).flatten(2).sum(2)
    risk = _sum_windows(misfit + 2 * follow, owner, len(data))
    pixels = _sum_windows(torch.full_like(misfit, windows[0].numel()), owner, len(data))
    return Choice(_least(path, risk), noise.flatten(1).mean(dim=1), path, risk / pixels)


def by_leaving_out(
    model: Callable[[Tensor, Tensor, Tensor], Any],
    data: Tensor,
    mask: Tensor,
    noise: Tensor,
    path: Tensor,
    pixels: int = 2 * PIXELS,
    until: tuple[float, int] = (TOLERANCE, MOST),
) -> Choice:
    """The weight of a `path` `(W, B)` of which a tenth of the kept pixels, left out, are best predicted by the others.

    `model` takes the `mask` `(B, C, *size)` beside data and weights; windows are of so many `pixels`,
    and solves go on `until` a tolerance or so many iterations.
    """
    windows, owner = cut(torch.cat([data, mask.expand_as(data)], dim=1), pixels, share=1)
    y, kept = windows.chunk(2, dim=1)
    if bool((kept.flatten(2).sum(2) == 0).any()):  # a window in a hole says nothing
        y, kept, owner = data, mask.expand_as(data), torch.arange(len(data), device=data.device)
    generator = torch.Generator().manual_seed(0)
    out = (torch.rand(y.shape, generator=generator, dtype=y.dtype, device="cpu").to(y) < 0.1) & (kept > 0)
    out &= kept.flatten(2).sum(2).reshape(*y.shape[:2], *(1,) * (y.ndim - 2)) > 10  # some must stay
    many = (len(path), *(1,) * (data.ndim - 1))
    problem = model(y.repeat(many), path[:, owner].flatten(), (kept * ~out).repeat(many))
    x = problem.image(solve(problem, until[0], iterations=until[1]).x).reshape(len(path), *y.shape)
    risk = _sum_windows(((x - y) * out).square().flatten(2).sum(2), owner, len(data))
    count = _sum_windows(out.flatten(1).sum(1).to(risk).expand(len(path), -1), owner, len(data))
    return Choice(_least(path, risk), noise, path, risk / count.clamp(min=1))


def near(noise: Tensor) -> Tensor:
    """The weights that are tried for squares and a noise `(B,)`: `(W, B)`."""
    return 2 * torch.outer(noise.new_tensor(PATH), noise)


def cut(images: Tensor, pixels: int = PIXELS, share: int = SHARE, kernel: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Windows of images `(B, C, *size)`, two along each of two axes or one, and which image each is of.

    They have at most one part in `share` of the image, unless that is less than a `kernel` takes: one in the middle is
    twice as wide as it, then, or the whole image.
    """
    size, owner = images.shape[2:], torch.arange(len(images), device=images.device)
    seen = max(FEWEST, min(4 * pixels, size.numel() // share))
    if size.numel() <= seen:
        return images, owner
    places = ((0.2, 0.2), (0.2, 0.8), (0.8, 0.2), (0.8, 0.8)) if seen >= 2 * FEWEST else ((0.5, 0.5),)
    side = round((seen / len(places)) ** (1 / len(size)))
    if (wide := 2 * max(kernel, default=0)) > side:
        side, places = wide, ((0.5, 0.5),)
    windows = []
    for place in places:
        window = images
        for axis, length in enumerate(size):
            extent = min(side, length)
            window = window.narrow(axis + 2, int(place[axis % 2] * (length - extent)), extent)
        windows.append(window)
    return torch.cat(windows), owner.repeat(len(places))


def _sum_windows(each: Tensor, owner: Tensor, images: int) -> Tensor:
    """From `(W, windows)` to `(W, B)`."""
    return each.new_zeros(len(each), images).index_add_(1, owner, each)


def _least(path: Tensor, risk: Tensor) -> Tensor:
    """Where the parabola through the three lowest neighbours, over the logarithm of the weight, is least: `(B,)`.

    Of numbers, not of tensors: of one image, which is the usual case, it takes a fifth of the time.
    """
    columns = zip(path.double().log().T.tolist(), risk.double().T.tolist(), strict=True)
    return path.new_tensor([math.exp(_vertex(places, risks)) for places, risks in columns])


def _vertex(places: Sequence[float], risks: Sequence[float]) -> float:
    """Of one image, among the `places`; that of the least risk where the parabola has no minimum."""
    lowest = min(range(len(risks)), key=risks.__getitem__)
    at = min(max(lowest, 1), len(risks) - 2)
    (t0, t1, t2), (r0, r1, r2) = places[at - 1 : at + 2], risks[at - 1 : at + 2]
    down, up = (t1 - t0) * (r1 - r2), (t1 - t2) * (r1 - r0)
    bend = down - up
    best = t1 - 0.5 * ((t1 - t0) * down - (t1 - t2) * up) / bend if bend < 0 else places[lowest]
    return min(max(best, places[0]), places[-1])
