"""Models of denoising by their keywords, and weights from the data: by Stein's risk, or by pixels that are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd import tv
from lmd.core.checks import check_choice, check_positive
from lmd.errors import InputError
from lmd.imaging.arrays import Units, warn
from lmd.imaging.noise import Noise, at_least, measure
from lmd.problems import SecondOrderModel, TVDenoising, TVModel
from lmd.terms import Absolute, KullbackLeibler, Squares, Term
from lmd.terms.base import Scale
from lmd.tv.denoising import Denoising
from lmd.zoo.solve import solve

Effort = tuple[float, int]
"""A tolerance, and the largest number of iterations."""

NOISE_MULTIPLES = (0.17, 0.3, 0.52, 0.9)  # weights to try, over twice the noise: the best for photographs is among them
ROUGH_EFFORT: Effort = (1e-2, 100)  # for risks, which are flat at their minimum
BLUR_EFFORT: Effort = (2e-2, 200)  # behind blurs: with fewer iterations, solutions have hardly left the start
ABSOLUTE_EFFORT: Effort = (1e-3, 300)  # solutions are steps: a point between two of them is like neither
NUM_PIXELS = 64 * 64  # the pixels of each of the four windows of a large image
MIN_PIXELS = 48 * 48  # the fewest pixels that a weight behind a blur is chosen on
WIDENING = (1.5, 1.75, 2.0, 2.0, 2.0)  # where the risk is least at an end, two weights are added, so many times apart
MIN_WEIGHT = 1e-5  # no smaller weights are added, as they change nothing; in multiples of the range of the data
PLACES = ((0.2, 0.2), (0.2, 0.8), (0.8, 0.2), (0.8, 0.8))  # where windows lie, from 0 to 1 along the axes
CENTRAL_PLACES = ((0.35, 0.35), (0.35, 0.65), (0.65, 0.35), (0.65, 0.65))  # for windows that are flat, as black borders
PUSH = 0.1  # how far data are moved to see how much the solution follows, in deviations of the noise
NUM_PROBES, CAUTION = {1: 4}, {1: 1.1}
"""Random directions and the price of following the noise for signals; 1 for pictures and volumes. Signals have few
samples: one direction leaves their risk uncertain, and a weight too small costs more than one too large."""

Model = Callable[[Tensor, Tensor], Any]
"""From data `(B, C, *size)` and weights `(B,)` to the problems."""

Places = tuple[tuple[float, float], ...]


class Misfit(NamedTuple):
    """How data y `(B, C, *size)` are held to."""

    term: Callable[[Tensor, Scale], Term]  # from y and weights of its entries, where it takes them
    degree: int  # of the misfit in the unit of y: the weight is in units to the power of degree - 1
    path: tuple[float, ...]  # the weights that "auto" tries, in multiples of what `DenoisingModel.choose` says


MISFITS: Mapping[str, Misfit] = {
    "squares": Misfit(lambda y, kept: Squares(y, 1.0, kept), 2, NOISE_MULTIPLES),
    "poisson": Misfit(lambda y, kept: KullbackLeibler(y), 1, (0.12, 0.22, 0.4, 0.72, 1.3)),
    "absolute": Misfit(lambda y, kept: Absolute(y, kept), 1, (0.38, 0.5, 0.66, 0.88, 1.2)),
}
"""By name: ||x - y||^2, the likelihood of Poisson counts, and the sum of |x - y|."""


@dataclass(frozen=True)
class Choice:
    """A weight for each image, and what it was chosen by.

    Args:
        weight: `(B,)`.
        noise: The standard deviation that was estimated, or given, `(B,)`.
        path: The weights that were tried `(W, B)`.
        risk: What they are expected to cost per pixel, `(W, B)`: the mean square of the error, up to a constant;
            infinite where a weight was not tried for an image.
        at_end: Whether the best weight is at an end of those that were tried, `(B,)`.
        seconds: How long choosing took.
    """

    weight: Tensor
    noise: Tensor
    path: Tensor
    risk: Tensor
    at_end: Tensor
    seconds: float = 0.0

    def times(self, unit: float, seconds: float) -> Choice:
        """Return the same in another unit."""
        weight, noise, path, risk = self.weight * unit, self.noise * unit, self.path * unit, self.risk * unit**2
        return Choice(weight, noise, path, risk, self.at_end, seconds)


@dataclass(frozen=True)
class DenoisingModel:
    """A model by the keywords of `lmd.denoise`."""

    data: str = "squares"
    order: int = 1
    isotropic: bool = False
    coupled: bool = False
    huber: float = 0.0
    spacing: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_choice("data", self.data, tuple(MISFITS))
        if self.order not in (1, 2) or isinstance(self.order, bool):
            raise InputError("order", repr(self.order), "1, or 2 for total generalised variation")
        if check_positive("huber", self.huber, zero=True) and self.order == 2:
            raise InputError("huber", f"{self.huber:g} with order=2", "0: the second order has no staircases to avoid")

    def __str__(self) -> str:
        """Return the keywords that differ from their defaults, for a person."""
        words = [
            f"data {self.data}" if self.data != "squares" else "",
            f"order {self.order}" if self.order != 1 else "",
            "isotropic" if self.isotropic else "anisotropic",
            "coupled" if self.coupled else "",
            f"huber {self.huber:g}" if self.huber > 0 else "",
        ]
        return ", ".join(filter(None, words))

    def problem(self, y: Tensor, weight: Tensor, unit: float = 1.0, kept: Scale = 1.0) -> Any:
        """Return the problems of data y `(B, C, *size)` and weights `(B,)`, or a map, both in multiples of `unit`.

        An entry is lost where `kept` is 0.
        """
        is_plain = self.order == 1 and not self.coupled and self.huber == 0 and weight.ndim <= 1
        if self.data == "squares" and is_plain and not isinstance(kept, Tensor):
            return TVDenoising(y, weight, self.isotropic, spacing=self.spacing)
        term, degree, _ = MISFITS[self.data]
        weight = weight * unit ** (2 - degree)
        form: dict[str, Any] = {"isotropic": self.isotropic, "coupled": self.coupled, "spacing": self.spacing}
        if self.order == 2:
            return SecondOrderModel(term(y, kept), weight, **form)
        return TVModel(term(y, kept), weight, huber=self.huber / unit, **form)

    def choose(self, y: Tensor, noise: Tensor | None = None, units: Units | None = None) -> Choice:
        """Return the weights that the data y show to be best, in multiples of the unit of the `units`.

        Squares: by Stein's risk, near twice the `noise` `(B,)`, which is estimated where it is not given. Counts: by
        the same risk with the counts themselves for their variances, which is unbiased up to the second derivatives of
        the solution ([Luisier, Blu and Unser 2010](https://doi.org/10.1109/TIP.2010.2073477)), near the inverse root
        of their mean. Absolute distances: by pixels that are left out, from where impulses of two pixels go,
        which depends on how many neighbours a pixel has. The second order takes the weight of the first.
        """
        if self.order == 2:
            return replace(self, order=1).choose(y, noise, units)
        units = units or Units()
        unit, path = units.unit, y.new_tensor(MISFITS[self.data].path)

        model = partial(self.problem, unit=unit)
        if self.data == "squares":
            known = measure(y).with_minimum(y) if noise is None else Noise.white(noise, y)
            return choose_by_risk(model, y, known, 2 * torch.outer(path, known.level))
        if noise is not None:
            raise InputError("noise", f"a number with data={self.data!r}", "none: only squares go by a deviation")
        if self.data == "poisson":
            counts = unit * units.white
            mean = (counts * y.flatten(1).mean(dim=1)).clamp(min=1e-3)
            path = torch.outer(path, mean.rsqrt()) / unit
            return choose_by_risk(model, y, (y / counts).sqrt(), path, least=0.0)
        alone = (1.4 if self.isotropic else 1.0) * 2 / (y.ndim - 2)
        path, level = alone / unit * torch.outer(path, y.new_ones(len(y))), at_least(measure(y).level, y)
        return choose_by_holdout(model, y, torch.ones_like(y), level, path, 4 * NUM_PIXELS, ABSOLUTE_EFFORT)


def choose_by_risk(
    model: Model,
    data: Tensor,
    noise: Noise | Tensor,
    path: Tensor,
    predict: Callable[[Tensor], Tensor] | None = None,
    kernel: Sequence[int] = (),
    least: float | None = None,
    effort: Effort = ROUGH_EFFORT,
    widening: Sequence[float] = WIDENING,
) -> Choice:
    r"""Return the weights with the least risk E ||A x(y) - A x||^2 / n for data y = Ax + noise.

    Stein's estimate of it, up to a constant, is ||A x(y) - y||^2 / n + 2 tr(S J) / n, S the covariance of the noise and
    J the derivative of y -> A x(y); from one random direction b with that covariance, tr(S J) is about
    <b, A x(y + h b) - A x(y)> / h ([Ramani, Blu and Unser 2008](https://doi.org/10.1109/TIP.2008.2001404)).

    Args:
        model: From data and weights to problems.
        data: y `(B, C, *size)`.
        noise: By frequencies, or the deviation of each pixel.
        path: The weights to try `(W, B)`, which are solved for together.
        predict: A; None is the identity.
        kernel: The size of the kernel of A, where it has one: see `cut`.
        least: The smallest number that the model takes; no data are moved below it.
        effort: Of each solve.
        widening: The factors by which the path grows.
    """
    count, axes = len(data), data.ndim - 2
    probes, caution = NUM_PROBES.get(axes, 1), data.new_full((count,), CAUTION.get(axes, 1.0))
    if isinstance(noise, Noise):
        windows, owner = cut(data, kernel=kernel)
        probe = torch.stack([noise.sample(windows, owner, seed) for seed in range(probes)])
        level, caution = noise.level, caution * noise.caution
    else:
        both, owner = cut(torch.cat([data, noise.expand_as(data)], dim=1), kernel=kernel)
        windows, sigma = both.chunk(2, dim=1)
        signs = torch.randint(0, 2, (probes, *windows.shape), generator=torch.Generator().manual_seed(0), device="cpu")
        probe, level = sigma * signs.to(windows).mul_(2).sub_(1), noise.flatten(1).mean(dim=1)
    push, each = PUSH * probe, probe / PUSH
    if least is not None and bool((low := windows - push.abs() < least).any()):
        push = torch.where(low, (windows - least) * probe.sign(), push)
        each = torch.where(low & (push != 0), probe.square() / push, each)
    moved = torch.cat([windows[None], windows + push]).flatten(0, 1)
    rough = partial(_solve_roughly, model, effort, [])

    def risks(weights: Tensor) -> Tensor:
        again = (len(weights), *(1,) * (axes + 1))
        x = rough(moved.repeat(again), weights[:, owner].repeat(1, 1 + probes).flatten())
        x = (x if predict is None else predict(x)).reshape(len(weights), 1 + probes, *windows.shape)
        here, there = x[:, 0], x[:, 1:]
        misfit = (here - windows).square().flatten(2).sum(2)
        follow = ((there - here[:, None]) * each).flatten(3).sum(3).mean(1)
        total = weights.new_zeros(weights.shape).index_add_(1, owner, misfit + 2 * caution[owner] * follow)
        return total / (windows[0].numel() * len(windows) // count)

    return _search(risks, data, level, path, widening)


def choose_by_holdout(
    model: Callable[..., Any],
    data: Tensor,
    mask: Tensor,
    noise: Tensor,
    path: Tensor,
    pixels: int = 2 * NUM_PIXELS,
    effort: Effort = ROUGH_EFFORT,
) -> Choice:
    """Return the weights of a `path` `(W, B)` that best predict a random tenth of the kept pixels from the rest.

    `model` takes parts of the `mask` `(B, C, *size)` as `kept` beside data and weights; windows have so many `pixels`.
    """
    windows, owner = cut(torch.cat([data, mask.expand_as(data)], dim=1), pixels)
    y, kept = windows.chunk(2, dim=1)
    if bool((kept.flatten(2).sum(2) == 0).any()):  # a window in a hole says nothing
        y, kept, owner = data, mask.expand_as(data), torch.arange(len(data), device=data.device)
    generator = torch.Generator().manual_seed(0)
    out = (torch.rand(y.shape, generator=generator, dtype=y.dtype, device="cpu").to(y) < 0.1) & (kept > 0)
    out &= kept.flatten(2).sum(2).reshape(*y.shape[:2], *(1,) * (y.ndim - 2)) > 10  # some must stay
    counts = noise.new_zeros(noise.shape).index_add_(0, owner, out.flatten(1).sum(1).to(y)).clamp(min=1)

    def risks(weights: Tensor) -> Tensor:
        again = (len(weights), *(1,) * (data.ndim - 1))
        problem = model(y.repeat(again), weights[:, owner].flatten(), kept=(kept * ~out).repeat(again))
        x = problem.image(solve(problem, effort[0], iterations=effort[1]).x).reshape(len(weights), *y.shape)
        errors = ((x - y) * out).square().flatten(2).sum(2)
        return weights.new_zeros(weights.shape).index_add_(1, owner, errors) / counts

    return _search(risks, data, noise, path, WIDENING)


def choose_behind_blur(
    model: Model,
    data: Tensor,
    blur: Callable[[Tensor], Tensor],
    kernel: Sequence[int],
    noise: Tensor | None = None,
) -> Choice:
    """Return the weights for data behind a `blur`, by risk, on one window in the middle.

    The blur has left no texture at high frequencies: all that is there is noise. The risk of Ax says little about
    small weights, with which x is noise: the path ends at a twentieth of the noise.
    """
    level = at_least(measure(data).most, data) if noise is None else noise
    white, path = Noise.white(level, data), weights_near(level)
    return choose_by_risk(model, data, white, path, blur, kernel, effort=BLUR_EFFORT, widening=WIDENING[:2])


def _solve_roughly(model: Model, effort: Effort, plans: list[Denoising], data: Tensor, weights: Tensor) -> Tensor:
    """Return the images for data `(N, C, *size)` and weights `(N,)`; the `plans` keep one that compiled code has."""
    if plans:
        return plans[0]._replace(noisy=data, bound=weights).solve(*effort, None).x
    problem = model(data, weights)
    if isinstance(plan := tv.match(problem, effort[0]), Denoising):
        plans.append(plan)
        return plan.solve(*effort, None).x
    x: Tensor = problem.image(solve(problem, effort[0], iterations=effort[1]).x)
    return x


def _search(
    risks: Callable[[Tensor], Tensor], data: Tensor, noise: Tensor, path: Tensor, widening: Sequence[float]
) -> Choice:
    """Return the weights of least risk; the `path` `(W, B)` grows while the risk falls at one of its ends."""
    risk = risks(path)
    least = MIN_WEIGHT * (data.flatten(1).amax(1) - data.flatten(1).amin(1))
    for step in (*widening, None):
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
    columns = zip(path.double().log().T.tolist(), risk.double().T.tolist(), strict=True)
    weight = path.new_tensor([math.exp(_vertex(logarithms, column)) for logarithms, column in columns])
    return Choice(weight, noise, path, risk, top | bottom)


def _vertex(places: Sequence[float], risks: Sequence[float]) -> float:
    """Return the minimum of the parabola through the three lowest neighbours; the lowest where it has none."""
    pairs = list(zip(places, risks, strict=True))
    places, risks = zip(*([pair for pair in pairs if math.isfinite(pair[1])] or pairs), strict=True)
    lowest = risks.index(min(risks))
    at = min(max(lowest, 1), len(risks) - 2)
    (t0, t1, t2), (r0, r1, r2) = places[at - 1 : at + 2], risks[at - 1 : at + 2]
    down, up = (t1 - t0) * (r1 - r2), (t1 - t2) * (r1 - r0)
    bend = down - up
    best = t1 - 0.5 * ((t1 - t0) * down - (t1 - t2) * up) / bend if bend < 0 else places[lowest]
    return min(max(best, places[0]), places[-1])


def warn_if_at_end(choice: Choice) -> None:
    """Warn where the risk still falls at an end of the weights that were tried."""
    if bool(choice.at_end.any()):
        at = choice.weight[choice.at_end]
        warn(f"weight: {float(at[0]):.3g}, at the end of those that were tried, fits best; try others beyond it")


def weights_near(noise: Tensor) -> Tensor:
    """Return the weights to try for squares and a noise `(B,)`: `(W, B)`."""
    return 2 * torch.outer(noise.new_tensor(NOISE_MULTIPLES), noise)


def cut(images: Tensor, pixels: int = NUM_PIXELS, kernel: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Return windows of images `(B, C, *size)` and the index of the image of each: small images whole.

    There are four windows of so many `pixels`, or, for a blur, one in the middle that is twice as wide as its `kernel`.
    """
    size, owner = images.shape[2:], torch.arange(len(images), device=images.device)
    seen = MIN_PIXELS if kernel else 4 * pixels
    if size.numel() <= seen:
        return images, owner
    places: Places = ((0.5, 0.5),) if kernel else PLACES
    side = max(round((seen / len(places)) ** (1 / len(size))), 2 * max(kernel, default=0))
    windows = _windows(images, places, side)
    if len(places) > 1:
        flat = windows.flatten(1).amax(1) == windows.flatten(1).amin(1)
        some = flat.reshape(len(places), -1).any(dim=0).repeat(len(places))
        central = _windows(images, CENTRAL_PLACES, side)
        windows = torch.where(some.reshape(-1, *(1,) * (images.ndim - 1)), central, windows)
    return windows, owner.repeat(len(places))


def _windows(images: Tensor, places: Places, side: int) -> Tensor:
    """Return windows of a `side` at places from 0 to 1 along the axes, one after the other."""
    windows = []
    for place in places:
        window = images
        for axis, length in enumerate(images.shape[2:]):
            extent = min(side, length)
            window = window.narrow(axis + 2, int(place[axis % 2] * (length - extent)), extent)
        windows.append(window)
    return torch.cat(windows)
