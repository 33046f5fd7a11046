"""The weight of a regulariser from the data: by Stein's unbiased risk, or by pixels that are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lmd.imaging.arrays import warn
from lmd.imaging.noise import Noise, at_least, measure
from lmd.zoo.solve import solve

PATH = (0.17, 0.3, 0.52, 0.9)
"""The weights that are tried, in multiples of twice the noise: what is best for photographs is among them."""

TOLERANCE = 1e-2
"""Risks are flat at their minimum: the solutions they are taken from need not be near."""

MOST = 100
"""Nor are they waited for where they are far away."""

BEHIND_BLUR = (2e-2, 200)
"""Tolerance and most iterations behind blurs, whose solutions are far away: before, they have hardly left the start."""

LATE = (1e-3, 300)
"""The same for absolute distances, whose answers are steps: what is on the way between two is like neither."""

PIXELS, FEWEST, SHARE = 64 * 64, 48 * 48, 1
"""A choice by risk is made on the whole of a small image, or on four windows of so many pixels: what they leave out may
be what matters. One part in so many of the image is the most; the second number of pixels is the least."""

STEPS = (1.5, 1.75, 2.0, 2.0, 2.0)
"""Where the risk is least at an end, two weights are added there, each so many times the one before; then again."""

NOTHING = 1e-5
"""Of the range of the data: weights below this change nothing that can be seen, and none are added."""

CENTRAL = ((0.35, 0.35), (0.35, 0.65), (0.65, 0.35), (0.65, 0.65))
"""Where windows are where they would be flat otherwise, as in black borders."""

PROBES, CAUTION = {1: 4}, {1: 1.1}
"""How many random directions are tried for signals, and how much more what follows the noise costs: fewer leave the
risk of signals, which have few samples, too uncertain, and a weight that is too small costs more than one too large.
By the axes of space; 1 for pictures and volumes."""

PUSH = 0.1
"""How far, in deviations of the noise, data are moved to see how much the solution follows; further, and it follows
too much."""

Model = Callable[[Tensor, Tensor], Any]
"""From data `(B, C, *size)` and weights `(B,)` to the problems."""

Places = tuple[tuple[float, float], ...]


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
    """What they are expected to cost per pixel, `(W, B)`: the mean square of the error, up to a constant; infinite
    where a weight was not tried for an image."""

    at_end: Tensor
    """Whether the best weight is at an end of those that were tried, `(B,)`."""

    def times(self, unit: float) -> Choice:
        """The same in another unit."""
        return replace(
            self, weight=self.weight * unit, noise=self.noise * unit, path=self.path * unit, risk=self.risk * unit**2
        )


def by_risk(
    model: Model,
    data: Tensor,
    noise: Noise | Tensor,
    path: Tensor,
    predict: Callable[[Tensor], Tensor] = lambda x: x,
    share: int = SHARE,
    kernel: Sequence[int] = (),
    least: float | None = None,
    until: tuple[float, int] = (TOLERANCE, MOST),
    steps: Sequence[float] = STEPS,
) -> Choice:
    r"""The weight with the least risk E ||A x(y) - A x||^2 / n that data y = Ax + noise show, A = `predict`.

    Stein's estimate of it, up to a constant, is ||A x(y) - y||^2 / n + 2 tr(S J) / n, S the covariance of the noise and
    J the derivative of y -> A x(y); from one random direction b with that covariance, tr(S J) is about
    <b, A x(y + h b) - A x(y)> / h ([Ramani, Blu and Unser 2008](https://doi.org/10.1109/TIP.2008.2001404)). A tensor of
    `noise` has the deviation of each pixel. The weights of the `path` `(W, B)` are solved for together, on windows of
    one part in `share` of the data, and larger than the `kernel` of A, where it has one. `least` is what the model
    takes no data below: none are moved there. Solves go on `until` a tolerance or so many iterations; the path is
    widened by `steps`.
    """
    probes = PROBES.get(data.ndim - 2, 1)
    caution = CAUTION.get(data.ndim - 2, 1.0) * (
        noise.caution if isinstance(noise, Noise) else data.new_ones(len(data))
    )
    if isinstance(noise, Noise):
        windows, owner = cut(data, share=share, kernel=kernel)
        drawn, level = [noise.sample(windows, owner, seed) for seed in range(probes)], noise.level
    else:
        both, owner = cut(torch.cat([data, noise.expand_as(data)], dim=1), share=share, kernel=kernel)
        windows, sigma = both.chunk(2, dim=1)
        signs = torch.randint(0, 2, (probes, *windows.shape), generator=torch.Generator().manual_seed(0), device="cpu")
        drawn, level = list(sigma * signs.to(windows).mul_(2).sub_(1)), noise.flatten(1).mean(dim=1)
    probe = torch.stack(drawn)
    push, each = PUSH * probe, probe / PUSH
    if least is not None and bool((low := windows - push.abs() < least).any()):
        push = torch.where(low, (windows - least) * probe.sign(), push)
        each = torch.where(low & (push != 0), probe.square() / push, each)
    moved = torch.cat([windows[None], windows + push]).flatten(0, 1)
    pixels = _sum_windows(windows.new_full((1, len(windows)), windows[0].numel()), owner, len(data))

    def risks(weights: Tensor) -> Tensor:
        count = len(weights)
        problem = model(moved.repeat(count, *(1,) * (data.ndim - 1)), weights[:, owner].repeat(1, 1 + probes).flatten())
        x = problem.image(solve(problem, until[0], iterations=until[1]).x)
        x = predict(x).reshape(count, 1 + probes, *windows.shape)
        here, there = x[:, 0], x[:, 1:]
        misfit = (here - windows).square().flatten(2).sum(2)
        follow = ((there - here[:, None]) * each).flatten(3).sum(3).mean(1)
        return _sum_windows(misfit + 2 * caution[owner] * follow, owner, len(data)) / pixels

    return _search(risks, data, level, path, steps)


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
    count = _sum_windows(out.flatten(1).sum(1)[None].to(y), owner, len(data)).clamp(min=1)

    def risks(weights: Tensor) -> Tensor:
        many = (len(weights), *(1,) * (data.ndim - 1))
        problem = model(y.repeat(many), weights[:, owner].flatten(), (kept * ~out).repeat(many))
        x = problem.image(solve(problem, until[0], iterations=until[1]).x).reshape(len(weights), *y.shape)
        return _sum_windows(((x - y) * out).square().flatten(2).sum(2), owner, len(data)) / count

    return _search(risks, data, noise, path, STEPS)


def choose_behind_blur(
    model: Model,
    data: Tensor,
    blur: Callable[[Tensor], Tensor],
    kernel: Sequence[int],
    noise: Tensor | None = None,
) -> Choice:
    """The weight for data behind a `blur`, by risk, on one window in the middle.

    The blur has left no texture at high frequencies: all that is there is noise. The risk of Ax says little about
    small weights, with which x is noise: the path ends at a twentieth of the noise.
    """
    level = at_least(measure(data).most, data) if noise is None else noise
    found = Noise.white(level, data)
    share, steps = data[0, 0].numel(), STEPS[:2]
    return by_risk(model, data, found, near(level), blur, share, kernel, until=BEHIND_BLUR, steps=steps)


def _search(
    risks: Callable[[Tensor], Tensor], data: Tensor, noise: Tensor, path: Tensor, steps: Sequence[float]
) -> Choice:
    """The weight of least risk, from those of the `path` `(W, B)`; it grows while the risk falls at one of its ends."""
    risk = risks(path)
    least = NOTHING * (data.flatten(1).amax(1) - data.flatten(1).amin(1))
    for step in (*steps, None):
        lowest, differ = risk.argmin(dim=0), risk.amax(dim=0) > risk.amin(dim=0)
        top, bottom = lowest == len(path) - 1, (lowest == 0) & differ & (path[0] > least)
        if step is None or not bool((top | bottom).any()):
            break
        factors = path.new_tensor([step, step**2])[:, None]
        if bool(top.any()):
            more = path[-1:] * factors
            path, risk = torch.cat([path, more]), torch.cat([risk, risks(more).where(top, torch.inf)])
        if bool(bottom.any()):
            less = (path[:1] / factors).flip(0)
            path, risk = torch.cat([less, path]), torch.cat([risks(less).where(bottom, torch.inf), risk])
    return Choice(_least(path, risk), noise, path, risk, top | bottom)


def warn_of_end(choice: Choice) -> None:
    """Warn where the risk still falls at an end of the weights that were tried."""
    if bool(choice.at_end.any()):
        at = choice.weight[choice.at_end]
        warn(f"weight: {float(at[0]):.3g}, at the end of those that were tried, fits best; try others beyond it")


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
    places: Places = ((0.2, 0.2), (0.2, 0.8), (0.8, 0.2), (0.8, 0.8)) if seen >= 2 * FEWEST else ((0.5, 0.5),)
    side = round((seen / len(places)) ** (1 / len(size)))
    if (wide := 2 * max(kernel, default=0)) > side:
        side, places = wide, ((0.5, 0.5),)
    windows = _windows(images, places, side)
    if len(places) > 1:
        flat = windows.flatten(1).amax(1) == windows.flatten(1).amin(1)
        some = flat.reshape(len(places), -1).any(dim=0).repeat(len(places))
        windows = torch.where(some.reshape(-1, *(1,) * (images.ndim - 1)), _windows(images, CENTRAL, side), windows)
    return windows, owner.repeat(len(places))


def _windows(images: Tensor, places: Places, side: int) -> Tensor:
    """Windows of a `side` at places from 0 to 1 along the axes, one after the other."""
    windows = []
    for place in places:
        window = images
        for axis, length in enumerate(images.shape[2:]):
            extent = min(side, length)
            window = window.narrow(axis + 2, int(place[axis % 2] * (length - extent)), extent)
        windows.append(window)
    return torch.cat(windows)


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
    tried = [at for at, risk in enumerate(risks) if math.isfinite(risk)] or list(range(len(risks)))
    places, risks = ([each[at] for at in tried] for each in (places, risks))
    lowest = min(range(len(risks)), key=risks.__getitem__)
    at = min(max(lowest, 1), len(risks) - 2)
    (t0, t1, t2), (r0, r1, r2) = places[at - 1 : at + 2], risks[at - 1 : at + 2]
    down, up = (t1 - t0) * (r1 - r2), (t1 - t2) * (r1 - r0)
    bend = down - up
    best = t1 - 0.5 * ((t1 - t0) * down - (t1 - t2) * up) / bend if bend < 0 else places[lowest]
    return min(max(best, places[0]), places[-1])
