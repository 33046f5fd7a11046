"""How much noise there is in an image, from the image alone."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d


class NoiseReading(NamedTuple):
    """A quantile over small blocks of the root mean squares of differences, and its power in the estimate."""

    order: int
    """Of the differences along every axis."""

    share: float
    level: float
    """Of white noise of deviation 1, from a million blocks."""

    power: float


READINGS = {
    1: (64, (NoiseReading(2, 0.1, 0.839, 1.0),)),
    2: (8, (NoiseReading(1, 0.5, 0.987, -0.7), NoiseReading(4, 0.1, 0.733, 0.9), NoiseReading(4, 0.5, 0.963, 0.8))),
    3: (4, (NoiseReading(2, 0.1, 0.757, 1.0),)),
}
"""By the axes of space: the side of a block, and what is read, by order. The powers add up to 1; those of pictures are
fitted to photographs of the training set of BSDS with noise of 1 to 20%."""

UNKNOWN = 0.1
"""The noise of images in which no two neighbours are kept."""

TRUSTED = 0.75
"""What differences of colours show is not believed below this share of what colours show."""

MOST = 2.0
"""Nor is an estimate above so many times what differences of the first order show, as noise shows in all of them."""


def estimate_noise(images: Tensor) -> Tensor:
    r"""The standard deviation of white noise in each image `(B, C, *size)`: `(B,)`.

    Differences of a high order leave the deviation of white noise as it is, once they are divided by the root of the
    sum of the squares of their coefficients, and little of a smooth image. Of small blocks those with edges and texture
    have the largest root mean squares r, so that low quantiles are read. Where all is texture, it shows in what
    differences of the first order have more: the estimate is r_4^0.9 m_4^0.8 / m_1^0.7, r the tenth percentile and m
    the median, each over that of noise alone.

    Texture has much the same brightness in all channels, and noise has not: of three channels, differences are looked
    at, (1, 0, -1) and (1, -2, 1); and one alone, for pictures whose colours were smoothed by JPEG.

    After [Immerkaer 1996](https://doi.org/10.1006/cviu.1996.0060), with blocks in place of one sum.

    >>> y = torch.randn(1, 1, 128, 128, generator=torch.Generator().manual_seed(0))
    >>> bool((estimate_noise(0.1 * y) - 0.1).abs() < 0.005)
    True
    """
    if images.ndim != 4 or images.shape[1] != 3:
        return _read(images, (slice(None),))[0]
    red, green, blue = images.unbind(1)
    three = torch.stack([(red - blue) / 2**0.5, (red + blue - 2 * green) / 6**0.5, green], dim=1)
    apart, alone = _read(three, (slice(2), slice(2, 3)))
    return torch.maximum(apart, TRUSTED * alone)


def _read(images: Tensor, groups: tuple[slice, ...]) -> list[Tensor]:
    """The estimates `(B,)` of groups of channels."""
    side, readings = READINGS[images.ndim - 2]
    axes = [axis for axis in range(2, images.ndim) if images.shape[axis] > readings[-1].order]
    found, most, done = [images.new_ones(len(images)) for _ in groups], [images.new_tensor(torch.inf)] * len(groups), 0
    for order, reads in itertools.groupby(readings, lambda reading: reading.order):
        for axis in axes * (order - done):
            images = images.narrow(axis, 1, images.shape[axis] - 1) - images.narrow(axis, 0, images.shape[axis] - 1)
        done, norm = order, math.comb(2 * order, order) ** (len(axes) / 2)
        squares = _blocks(images, side)
        blocks = [squares[:, group].flatten(1) for group in groups]
        for _, share, level, power in reads:
            read = [each.kthvalue(1 + round(share * (each.shape[1] - 1)), dim=1).values.sqrt() for each in blocks]
            seen = [(each / (level * norm)).clamp(min=1e-12) for each in read]
            found = [part * each**power for part, each in zip(found, seen, strict=True)]
            most = [MOST * each for each in seen] if power < 0 else most
    return [torch.minimum(*pair) for pair in zip(found, most, strict=True)]


def _blocks(images: Tensor, side: int) -> Tensor:
    """The mean square of each block `(B, C, ...)`."""
    images, lengths = images.square(), [min(side, length) for length in images.shape[2:]]
    if len(lengths) == 2:
        return avg_pool2d(images, lengths)
    for axis, length in enumerate(lengths, 2):
        images = images.unfold(axis, length, length).mean(dim=-1)
    return images


def at_least(noise: Tensor, images: Tensor) -> Tensor:
    """Noise that a weight can be made of, in images that have none."""
    spread = images.flatten(1).amax(1) - images.flatten(1).amin(1)
    return torch.maximum(noise, 1e-4 * torch.where(spread > 0, spread, 1))


def rough_noise(images: Tensor, kept: Tensor) -> Tensor:
    """The deviation of noise `(B,)` from differences of neighbours that are both kept: the middle of the small half.

    Neighbours are those along the last axis on which there are any.
    """
    axis = max((axis for axis in range(2, images.ndim) if images.shape[axis] > 1), default=None)
    if axis is None:
        return images.new_full((len(images),), UNKNOWN)
    images, kept = images.movedim(axis, -1), kept.movedim(axis, -1)
    both = (kept[..., 1:] * kept[..., :-1]).expand_as(images[..., 1:]) > 0
    apart = (images[..., 1:] - images[..., :-1]).abs().masked_fill(~both, torch.inf).flatten(1).sort(dim=1).values
    count = both.flatten(1).sum(1)
    at = (count // 4).clamp(max=apart.shape[1] - 1)
    found = apart.gather(1, at[:, None])[:, 0] / (0.3186 * 2**0.5)  # the quarter of absolute normal numbers
    return torch.where(torch.isfinite(found), found, UNKNOWN)
