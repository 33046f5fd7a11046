"""Models of denoising, and the choice of weights from the data: by Stein's risk, or by predicting held-out pixels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd import tv
from lmd.core.checks import check_choice, check_positive
from lmd.errors import InputError
from lmd.imaging.arrays import Units
from lmd.imaging.noise import Noise, at_least, measure
from lmd.operators.differences import Differences
from lmd.problems import SecondOrderModel, TVDenoising, TVModel
from lmd.terms import Absolute, KullbackLeibler, Squares, Term
from lmd.terms.base import Scale
from lmd.zoo.solve import solve

Effort = tuple[float, int]
"""A tolerance, and the largest number of iterations."""

NOISE_MULTIPLES = (0.17, 0.3, 0.52, 0.9)  # weights to try, relative to twice the noise; tuned on photographs
ROUGH_EFFORT: Effort = (1e-2, 100)  # for risks; rough solutions suffice because a risk is flat at its minimum
BLUR_EFFORT: Effort = (2e-2, 200)  # for blurred data; with fewer iterations, solutions are still near the start
ABSOLUTE_EFFORT: Effort = (1e-3, 300)  # solutions jump as the weight changes, so rough ones are not representative
NUM_PIXELS = 64 * 64  # the number of pixels of each of the four windows of a large image
MIN_PIXELS = 48 * 48  # the minimum number of pixels to choose the weight for blurred data
WIDENING = (1.5, 1.75, 2.0, 2.0, 2.0)  # if the risk is least at an end of the path, two weights at this ratio are added
MIN_WEIGHT = 1e-5  # smaller weights change nothing, so none are added; in multiples of the range of the data
PLACES = ((0.2, 0.2), (0.2, 0.8), (0.8, 0.2), (0.8, 0.8))  # positions of windows, from 0 to 1 along the axes
CENTRAL_PLACES = ((0.35, 0.35), (0.35, 0.65), (0.65, 0.35), (0.65, 0.65))  # used if one is flat, as in black borders
PUSH = 0.1  # the finite-difference step for the divergence in Stein's risk, in deviations of the noise
NUM_PROBES, CAUTION = {1: 4}, {1: 1.1}
"""The number of random directions and the factor on the divergence term, for signals; both are 1 for pictures and
volumes. Signals have few samples: their risk is uncertain, and a weight too small costs more than one too large."""

Model = Callable[[Tensor, Tensor], Any]
"""A function of data `(B, C, *size)` and weights `(B,)` that returns the problems."""

Answer = Callable[[Tensor, Tensor], Tensor]
"""A function of data `(B, C, *size)` and weights `(B,)` that returns images, or their image under an operator."""

Places = tuple[tuple[float, float], ...]


class Misfit(NamedTuple):
    """The misfit to data y `(B, C, *size)`."""

    term: Callable[[Tensor, Scale], Term]  # builds the term from y and the weights of its entries (ignored by poisson)
    degree: int  # misfit(t x, t y) = t^degree misfit(x, y); the weight has the unit of y to the power degree - 1
    path: tuple[float, ...]  # the weights that "auto" tries, relative to the scale in `DenoisingModel.choose`


MISFITS: Mapping[str, Misfit] = {
    "squares": Misfit(lambda y, kept: Squares(y, 1.0, kept), 2, NOISE_MULTIPLES),
    "poisson": Misfit(lambda y, kept: KullbackLeibler(y), 1, (0.12, 0.22, 0.4, 0.72, 1.3)),
    "absolute": Misfit(lambda y, kept: Absolute(y, kept), 1, (0.38, 0.5, 0.66, 0.88, 1.2)),
}
"""The misfits by name: ||x - y||^2, the Kullback-Leibler divergence for Poisson counts, and the sum of |x - y|."""


@dataclass(frozen=True)
class Choice:
    """The chosen weight of each image, and the risks that decided it.

    Args:
        weight: The chosen weights `(B,)`.
        noise: The standard deviation of the noise `(B,)`, estimated or given.
        path: The weights that were tried `(W, B)`.
        risk: The estimated mean square error per pixel of each weight `(W, B)`, up to a constant; infinite if a weight
            was not tried for an image.
        at_end: Whether the best weight is the smallest or the largest weight that was tried `(B,)`.
        seconds: The time that the choice took.
    """

    weight: Tensor
    noise: Tensor
    path: Tensor
    risk: Tensor
    at_end: Tensor
    seconds: float = 0.0

    def times(self, unit: float) -> Choice:
        """Return the choice in another unit: multiply weights and noise by `unit`, risks by `unit`^2."""
        return Choice(self.weight * unit, self.noise * unit, self.path * unit, self.risk * unit**2, self.at_end)


@dataclass(frozen=True)
class DenoisingModel:
    """A model of denoising, defined by keywords of `lmd.denoise`."""

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
        """Return the keywords that differ from their defaults, in words."""
        words = [
            f"data {self.data}" if self.data != "squares" else "",
            f"order {self.order}" if self.order != 1 else "",
            "isotropic" if self.isotropic else "anisotropic",
            "coupled" if self.coupled else "",
            f"huber {self.huber:g}" if self.huber > 0 else "",
        ]
        return ", ".join(filter(None, words))

    def problem(self, y: Tensor, weight: Tensor, unit: float = 1.0, kept: Scale = 1.0) -> Any:
        """Return the problems for data y `(B, C, *size)` and weights `(B,)` or a map, both in multiples of `unit`.

        Entries of y at zeros of `kept` are ignored.
        """
        is_coarsened = self.coupled and y.ndim > 4  # coupled volumes use `TVModel`, without coarser grids
        if self.is_plain and not is_coarsened and weight.ndim <= 1 and not isinstance(kept, Tensor):
            return TVDenoising(y, weight, self.isotropic, spacing=self.spacing, coupled=self.coupled)
        term, degree, _ = MISFITS[self.data]
        weight = weight * unit ** (2 - degree)
        form: dict[str, Any] = {"isotropic": self.isotropic, "coupled": self.coupled, "spacing": self.spacing}
        if self.order == 2:
            return SecondOrderModel(term(y, kept), weight, **form)
        return TVModel(term(y, kept), weight, huber=self.huber / unit, **form)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the model is that of `TVDenoising`."""
        return self.data == "squares" and self.order == 1 and self.huber == 0

    def rough_solver(self, y: Tensor, unit: float = 1.0) -> Answer:
        """Return a function of data (of the size of y) and weights that returns rough answers."""
        if self.is_plain:
            K = Differences(y.shape[2:], self.spacing)
            plan = tv.plan_denoising(y, 1.0, K, self.isotropic, self.coupled)
            if plan is not None:
                return lambda data, weights: replace(plan, noisy=data, bound=weights).solve(*ROUGH_EFFORT, None).x
        return partial(solve_roughly, partial(self.problem, unit=unit), ROUGH_EFFORT)

    def choose(self, y: Tensor, noise: Tensor | None = None, units: Units | None = None) -> Choice:
        """Return the weights that suit the data y best, in multiples of `units.scale`; order 2 uses those of order 1.

        For squares, minimise Stein's risk over weights near twice the `noise` `(B,)`; None estimates the noise. For
        counts, use the same risk with counts as variances and weights near the inverse root of the mean count; it is
        unbiased up to second derivatives ([Luisier, Blu and Unser 2010](https://doi.org/10.1109/TIP.2010.2073477)). For
        absolute distances, predict held-out pixels, with weights near the one at which impulses of two pixels vanish.
        """
        if self.order == 2:
            return replace(self, order=1).choose(y, noise, units)
        units = units or Units()
        unit, path = units.scale, y.new_tensor(MISFITS[self.data].path)
        if self.data == "squares":
            known = measure(y).with_minimum(y) if noise is None else Noise.white(noise, y)
            windows, owner = cut(y)
            path = 2 * torch.outer(path, known.level)
            return choose_by_risk(self.rough_solver(windows, unit), y, windows, owner, known, path)
        if noise is not None:
            raise InputError("noise", f"a number with data={self.data!r}", "none: only squares go by a deviation")
        if self.data == "poisson":
            counts = units.unit
            windows, owner = cut(y)
            mean = (counts * y.flatten(1).mean(dim=1)).clamp(min=1e-3)
            known = Noise.white((y / counts).sqrt().flatten(1).mean(dim=1), y)
            path, each = torch.outer(path, mean.rsqrt()) / unit, (windows / counts).sqrt()
            return choose_by_risk(self.rough_solver(windows, unit), y, windows, owner, known, path, each, least=0.0)
        alone = (1.4 if self.isotropic else 1.0) * 2 / (y.ndim - 2)
        path, level = alone / unit * torch.outer(path, y.new_ones(len(y))), at_least(measure(y).level, y)
        model, ones = partial(self.problem, unit=unit), torch.ones_like(y)
        return choose_by_holdout(model, y, ones, level, path, 4 * NUM_PIXELS, ABSOLUTE_EFFORT)


def choose_by_risk(
    answer: Answer,
    data: Tensor,
    windows: Tensor,
    owner: Tensor,
    noise: Noise,
    path: Tensor,
    deviations: Tensor | None = None,
    least: float | None = None,
    widening: Sequence[float] = WIDENING,
) -> Choice:
    r"""Return the weights with the least risk E ||A x(y) - A x||^2 / n for data y = Ax + noise with n entries.

    Stein's estimate of the risk, up to a constant, is ||A x(y) - y||^2 / n + 2 tr(S J) / n, with the covariance S of
    the noise and the derivative J of y -> A x(y). A random direction b with covariance S estimates tr(S J) by
    <b, A x(y + h b) - A x(y)> / h, h small ([Ramani, Blu and Unser 2008](https://doi.org/10.1109/TIP.2008.2001404)).

    Args:
        answer: The function from windows y and weights to A x(y).
        data: The data `(B, C, *size)`.
        windows, owner: Windows of the data, and the index of the image of each window, from `cut`.
        noise: The noise of the data.
        path: The weights to try `(W, B)`, solved as one batch.
        deviations: The standard deviation of the noise at each pixel of the windows; None uses `noise`.
        least: The smallest number that the model accepts; perturbed data stay above it.
        widening: The factors by which the path grows.
    """
    count, axes = len(data), data.ndim - 2
    probes, caution = NUM_PROBES.get(axes, 1), CAUTION.get(axes, 1.0) * noise.caution
    if deviations is None:
        probe = torch.stack(list(map(partial(noise.sample, windows, owner), range(probes))))
    else:
        signs = torch.randint(0, 2, (probes, *windows.shape), generator=torch.Generator().manual_seed(0), device="cpu")
        probe = deviations * signs.to(windows).mul_(2).sub_(1)
    push, each = PUSH * probe, probe / PUSH
    if least is not None and bool((low := windows - push.abs() < least).any()):
        push = torch.where(low, (windows - least) * probe.sign(), push)
        each = torch.where(low & (push != 0), probe.square() / push, each)
    moved = torch.cat([windows[None], windows + push]).flatten(0, 1)

    def risks(weights: Tensor) -> Tensor:
        again = (len(weights), *(1,) * (axes + 1))
        x = answer(moved.repeat(again), weights[:, owner].repeat(1, 1 + probes).flatten())
        x = x.reshape(len(weights), 1 + probes, *windows.shape)
        here, there = x[:, 0], x[:, 1:]
        misfit = (here - windows).square().flatten(2).sum(2)
        follow = ((there - here[:, None]) * each).flatten(3).sum(3).mean(1)
        total = weights.new_zeros(weights.shape).index_add_(1, owner, misfit + 2 * caution[owner] * follow)
        return total / (windows[0].numel() * len(windows) // count)

    return _search(risks, data, noise.level, path, widening)


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

    `model` takes data, weights and a part of the `mask` `(B, C, *size)` as `kept`. Each window has `pixels` pixels.
    """
    windows, owner = cut(torch.cat([data, mask.expand_as(data)], dim=1), pixels)
    y, kept = windows.chunk(2, dim=1)
    if bool((kept.flatten(2).sum(2) == 0).any()):  # a window without known pixels is useless
        y, kept, owner = data, mask.expand_as(data), torch.arange(len(data), device=data.device)
    generator = torch.Generator().manual_seed(0)
    out = (torch.rand(y.shape, generator=generator, dtype=y.dtype, device="cpu").to(y) < 0.1) & (kept > 0)
    out &= kept.flatten(2).sum(2).reshape(*y.shape[:2], *(1,) * (y.ndim - 2)) > 10  # channels with few pixels keep them
    counts = noise.new_zeros(noise.shape).index_add_(0, owner, out.flatten(1).sum(1).to(y)).clamp(min=1)

    def risks(weights: Tensor) -> Tensor:
        again = (len(weights), *(1,) * (data.ndim - 1))
        parts = (y.repeat(again), weights[:, owner].flatten())
        x = solve_roughly(model, effort, *parts, kept=(kept * ~out).repeat(again)).reshape(len(weights), *y.shape)
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
    """Return the weights of least risk for data blurred by `blur`, from one window in the middle.

    The blur leaves no texture at high frequencies, so everything there is noise. The path ends at a twentieth of the
    noise, because the risk of the blurred answer hardly changes for small weights, but the answer is then mostly noise.
    """
    level = at_least(measure(data).most, data) if noise is None else noise
    windows, owner = cut(data, kernel=kernel)
    white, path = Noise.white(level, data), weights_near(level)

    def answer(data: Tensor, weights: Tensor) -> Tensor:
        return blur(solve_roughly(model, BLUR_EFFORT, data, weights))

    return choose_by_risk(answer, data, windows, owner, white, path, widening=WIDENING[:2])


def solve_roughly(model: Callable[..., Any], effort: Effort, data: Tensor, weights: Tensor, **options: Any) -> Tensor:
    """Return rough solutions, as images, for data `(N, C, *size)` and weights `(N,)`."""
    problem = model(data, weights, **options)
    x: Tensor = problem.image(solve(problem, effort[0], iterations=effort[1]).x)
    return x


def _search(
    risks: Callable[[Tensor], Tensor], data: Tensor, noise: Tensor, path: Tensor, widening: Sequence[float]
) -> Choice:
    """Return the weights of least risk; extend the `path` `(W, B)` while the risk is least at one of its ends."""
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
    weight = _vertices(path.double().log(), risk.double()).exp().to(path)
    return Choice(weight, noise, path, risk, top | bottom)


def _vertices(places: Tensor, risks: Tensor) -> Tensor:
    """Return minima `(B,)` of parabolas through the lowest risk and its neighbours, or the lowest place if concave."""
    known = torch.isfinite(risks) | ~torch.isfinite(risks).any(dim=0)
    first = known.to(torch.int8).argmax(dim=0)
    last = first + known.sum(dim=0) - 1
    lowest = risks.where(known, torch.inf).argmin(dim=0)
    around = (
        torch.minimum(torch.maximum(lowest, first + 1), last - 1) + torch.arange(-1, 2, device=lowest.device)[:, None]
    )
    (t0, t1, t2), (r0, r1, r2) = places.gather(0, around), risks.gather(0, around)
    down, up = (t1 - t0) * (r1 - r2), (t1 - t2) * (r1 - r0)
    vertex = t1 - 0.5 * ((t1 - t0) * down - (t1 - t2) * up) / (down - up)
    ends = places.gather(0, torch.stack([first, last, lowest]))
    return torch.where(down < up, vertex.clamp(ends[0], ends[1]), ends[2])


def weights_near(noise: Tensor) -> Tensor:
    """Return the weights `(W, B)` to try for squares and noise of standard deviation `noise` `(B,)`."""
    return 2 * torch.outer(noise.new_tensor(NOISE_MULTIPLES), noise)


def cut(images: Tensor, pixels: int = NUM_PIXELS, kernel: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Return windows of images `(B, C, *size)` and the index of the image of each window; small images stay whole.

    There are four windows of `pixels` pixels; given a `kernel` size, one in the middle, at least twice as wide as it.
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
    """Return windows with this `side` at positions from 0 to 1 along the axes, concatenated as a batch."""
    windows = []
    for place in places:
        window = images
        for axis, length in enumerate(images.shape[2:]):
            extent = min(side, length)
            window = window.narrow(axis + 2, int(place[axis % 2] * (length - extent)), extent)
        windows.append(window)
    return torch.cat(windows)
