"""How much noise there is in an image, from the image alone."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCKS = {1: (64, 0.839), 2: (8, 0.792), 3: (4, 0.757)}
"""By the axes of space: the side of a block, and the tenth percentile of the root mean square of a filtered block of
white noise of deviation 1, from a million blocks."""

SHARE = 0.1


def estimate_noise(images: Tensor) -> Tensor:
    r"""The standard deviation of white noise in each image `(B, C, *size)`: `(B,)`.

    Second differences along every axis, divided by \sqrt 6 each, leave the deviation of white noise as it is and little
    of a smooth image. Of the root mean squares of small blocks the tenth percentile is taken: blocks with edges and
    texture are the others. That of noise alone is known, and divided by. A photograph that is texture all over has
    too much noise found in it, by a tenth at noise of 2%.

    After [Immerkaer 1996](https://doi.org/10.1006/cviu.1996.0060), with blocks in place of one sum.

    >>> y = torch.randn(1, 1, 128, 128, generator=torch.Generator().manual_seed(0))
    >>> bool((estimate_noise(0.1 * y) - 0.1).abs() < 0.005)
    True
    """
    side, share = BLOCKS[images.ndim - 2]
    for axis in range(2, images.ndim):
        count = images.shape[axis] - 2
        if count < 1:  # no second difference along so short an axis
            continue
        ends = images.narrow(axis, 0, count) + images.narrow(axis, 2, count)
        images = (ends - 2 * images.narrow(axis, 1, count)) / 6**0.5
    for axis in range(2, images.ndim):
        images = images.unfold(axis, min(side, images.shape[axis]), side)
    axes = (images.ndim - 2) // 2
    found = images.flatten(-axes).double().square().mean(dim=-1).sqrt().flatten(1)
    return torch.quantile(found[:, : 1 << 23], SHARE, dim=1).to(images.dtype) / share


def at_least(noise: Tensor, images: Tensor) -> Tensor:
    """Noise that a weight can be made of, in images that have none."""
    spread = images.flatten(1).amax(1) - images.flatten(1).amin(1)
    return torch.maximum(noise, 1e-4 * torch.where(spread > 0, spread, 1))


def rough_noise(images: Tensor, kept: Tensor) -> Tensor:
    """The deviation of noise `(B,)` from differences of neighbours that are both kept: the middle of the small half."""
    both = (kept[..., 1:] * kept[..., :-1]).expand_as(images[..., 1:]) > 0
    apart = (images[..., 1:] - images[..., :-1]).abs().masked_fill(~both, torch.inf).flatten(1).sort(dim=1).values
    count = both.flatten(1).sum(1)
    at = (count // 4).clamp(max=apart.shape[1] - 1)
    found = apart.gather(1, at[:, None])[:, 0] / (0.3186 * 2**0.5)  # the quarter of absolute normal numbers
    return torch.where(torch.isfinite(found), found, 0.1)
