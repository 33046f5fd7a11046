"""How much noise there is in an image, from the image alone: its deviation, its spectrum, and how sure that is.

Blocks of the image are looked at in the basis of JPEG: cosine transforms, and sums and differences of channels.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from lmd.imaging.arrays import Axis, as_batch
from lmd.imaging.noise_network import RINGS, find_noise
from lmd.mirrors.separable import cosines
from lmd.solvers.base import in_full_precision

CPU = torch.device("cpu")
SIDES = {1: 32, 2: 8, 3: 4}  # the side of a block by the axes of space; 8 x 8 is that of JPEG
NUM_BLOCKS = 1024  # about so many blocks are cut from an image; those of small images overlap
HIGH_RINGS = slice(4, None)  # in rings 5, 6 and 7 the smoothest blocks show noise
BLOCKS_PER_GROUP, MAX_GROUPS = 40, 6  # blocks are grouped by brightness, with which the noise of cameras grows
MAX_OF_MEDIAN = 4.0  # the variance of a group counts up to so many times their median
SMOOTHEST = 0.12  # this share of the blocks of a group is taken to show noise alone
INLIERS = 2.3  # blocks up to so many deviations above the smoothest ones are then averaged with them
MAX_EXTREME_SHARE = 0.2  # blocks with a larger share of the darkest or brightest value are cut off: too little noise
MIN_PIXELS = 20 * 64  # smaller pictures have too few blocks for the network: what the smoothest show is noise
EVEN = (0.8, 1.25)  # energies of rings that are so near to their mean are those of white noise
NO_COLOUR = 1e-9  # where colours have less than this share of the energy of brightness, a picture is grey
UNKNOWN = 0.1  # the noise of images in which no two neighbours are kept
MIN_NOISE = 1e-4  # the least noise that a weight is derived from, in multiples of the range of the image


@dataclass(frozen=True)
class NoiseEstimate:
    """The noise of an image, or of each image of a batch, in the array's own numbers."""

    level: Any
    """The standard deviation: a number, or one per image `(B,)`."""

    most: Any
    """What it would be if all that the smoothest parts show were noise; it is hardly more."""

    correlation: Any
    """The deviation of low frequencies over that of high ones: 1 for white noise, more where neighbours share it."""

    @property
    def confidence(self) -> Any:
        """From 0 to 1, `level / most`: near 1 the picture shows noise, near 0 it may as well be fine texture."""
        return self.level / self.most if isinstance(self.most, Tensor) or self.most > 0 else 1.0


@dataclass(frozen=True)
class Noise:
    """The noise of a batch of images `(B, C, *size)` by channels and rings of frequencies."""

    spectrum: Tensor  # deviations of rings `(B, C, 7)`, channels as by `mix_channels`: their sum, then differences
    lengths: tuple[int, ...]  # the size of a block
    smooth: Tensor = field(repr=False)  # the same if all that the smoothest blocks show is noise
    caution: Tensor = field(repr=False)  # how much more than by Stein's formula following the noise should cost `(B,)`

    @classmethod
    def white(cls, level: Tensor, images: Tensor) -> Noise:
        """Return noise of the same deviation `(B,)` at all frequencies."""
        spectrum = level[:, None, None].expand(-1, images.shape[1], RINGS)
        return cls(spectrum, block_lengths(images), spectrum, torch.ones_like(level))

    @cached_property
    def level(self) -> Tensor:
        """The standard deviation of a pixel `(B,)`."""
        return _deviation(self.spectrum, self.lengths)

    @property
    def most(self) -> Tensor:
        """The standard deviation `(B,)` if all that the smoothest blocks show is noise."""
        return _deviation(self.smooth, self.lengths)

    def with_minimum(self, images: Tensor) -> Noise:
        """Return the noise; where it is too small to derive a weight from, white noise of the smallest usable level."""
        least = at_least(self.level, images)
        if bool((least <= self.level).all()):
            return self
        flat = least[:, None, None].expand_as(self.spectrum)
        return replace(self, spectrum=torch.where((least > self.level)[:, None, None], flat, self.spectrum))

    def sample(self, like: Tensor, owner: Tensor, seed: int = 0) -> Tensor:
        """Return noise with this covariance for windows `like` `(N, C, *size)` of the images `owner` `(N,)`.

        Each coefficient of a block is its ring's deviation with a random sign.
        """
        counts = [-(-extent // length) for extent, length in zip(like.shape[2:], self.lengths, strict=True)]
        ring, generator = rings(self.lengths).clamp(min=1) - 1, torch.Generator().manual_seed(seed)
        shape = (len(like), like.shape[1], math.prod(counts), len(ring))
        signs = torch.randint(0, 2, shape, generator=generator, device="cpu")
        each = self.spectrum[owner][..., ring.to(like.device)]
        joined = join_blocks((signs.to(like) * 2 - 1) * each[:, :, None].to(like), counts, self.lengths)
        for axis, extent in enumerate(like.shape[2:], 2):
            joined = joined.narrow(axis, 0, extent)
        return mix_channels(joined, back=True)


@in_full_precision
def estimate_noise(image: Any, *, channel_axis: Axis = "auto") -> NoiseEstimate:
    """Estimate the standard deviation of the noise in an image, signal or volume.

    Blocks of 8 x 8 pixels are transformed as in JPEG. Constant and clipped regions, such as black borders and an
    overexposed sky, and the alpha channel are ignored. A small network, trained on clean photographs and on photographs
    with white, Poisson, correlated and JPEG noise, tells noise from texture by the energies of the blocks in brightness
    and colour and in seven frequency bands. For signals, volumes and small pictures the noise is that of the smoothest
    blocks ([Ponomarenko et al. 2007](https://doi.org/10.1117/12.714640)).

    Args:
        image: A NumPy array or tensor of any dtype and layout, as in `lmd.denoise`.
        channel_axis: The axis of the channels, None if there is none, or "auto".

    Returns:
        The level in the units of the array (0 to 255 for bytes), its confidence, and the correlation of neighbours.

    >>> import numpy as np, lmd
    >>> found = lmd.estimate_noise(100 + 10 * np.random.default_rng(0).normal(size=(128, 128)))
    >>> round(found.level), found.confidence > 0.9
    (10, True)
    """
    batch = as_batch("image", image, channel_axis)
    noise, unit = measure(batch.images), batch.units.unit * batch.units.white
    counts = noise.spectrum.new_tensor(ring_counts(noise.lengths))
    squares = noise.spectrum.square().mean(dim=1) * counts
    low, high = (squares[:, part].sum(1) / counts[part].sum().clamp(min=1) for part in (slice(0, 2), HIGH_RINGS))
    shared = torch.where((low > 0) & (high > 0), low / high.clamp(min=torch.finfo(low.dtype).tiny), 1.0).sqrt()
    parts = (noise.level * unit, torch.maximum(noise.most, noise.level) * unit, shared)
    return NoiseEstimate(*(float(each[0]) if batch.axes.batch is None else each for each in parts))


def measure(images: Tensor) -> Noise:
    """Return the noise of images `(B, C, *size)`; see `estimate_noise`."""
    lengths = block_lengths(images)
    blocks = cut_blocks(images, lengths)
    energies, levels = block_energies(blocks, lengths)
    is_picture = len(lengths) == 2 and min(lengths) == 8 and images[0, 0].numel() >= MIN_PIXELS
    spectra, smooth, cautions = [], [], []
    for plain, energy, level, shown in zip(blocks, energies, levels, blocks_with_noise(blocks), strict=True):
        spectrum = _smoothest(energy[:, shown], level[shown], lengths)
        smooth.append(spectrum)
        caution = torch.ones_like(spectrum[0, 0])
        if is_picture and bool(shown.any()) and not _is_only_noise(energy[:, shown], level[shown]):
            spectrum, caution = _separate_noise(plain[:, shown], energy[:, shown], level[shown])
        spectra.append(spectrum)
        cautions.append(caution)
    return Noise(torch.stack(spectra), lengths, torch.stack(smooth), torch.stack(cautions))


def _is_only_noise(energies: Tensor, level: Tensor) -> bool:
    """Return whether the image is white noise: equal energy at all frequencies, the means of blocks included."""
    by_ring = energies[0].mean(dim=0)
    mean = by_ring.mean()
    is_even = (by_ring >= EVEN[0] * mean) & (by_ring <= EVEN[1] * mean)
    return bool(is_even.all() & (level.var(correction=0) <= 2 * mean))


def _separate_noise(blocks: Tensor, energies: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Return deviations `(C, 7)` of the noise and the caution, by the network.

    It was trained on pictures of one and three channels. With another number, each channel is measured alone.

    Args:
        blocks: `(C, blocks, pixels)`.
        energies: Of the sum of the channels and of their differences `(C, blocks, 7)`.
        level: The mean coefficient of each block `(blocks,)`.
    """
    count = len(energies)
    colours = energies[1:].mean(dim=0) if count > 1 else None
    if colours is not None and not bool(colours.mean() > NO_COLOUR * energies[0].mean()):
        colours = None
    if colours is not None and count != 3:
        energies, levels = block_energies(blocks[:, None], (8, 8))
        alone = [_separate_noise(*each) for each in zip(blocks[:, None], energies, levels, strict=True)]
        spectra, cautions = (torch.stack(each) for each in zip(*alone, strict=True))
        return spectra.square().mean(dim=0).sqrt().expand(count, -1), cautions.mean()
    (bright, differences), caution = find_noise(energies[0], colours, level)
    others = torch.zeros_like(differences) if colours is None else differences
    return torch.cat([bright[None], others.expand(count - 1, -1)]), caution


def _smoothest(energies: Tensor, level: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return deviations `(C, 7)` of white noise, from what the smoothest of blocks `(C, blocks, 7)` show.

    Blocks are sorted into groups by brightness. Of each, the blocks whose energy at high frequencies is about that of
    the smoothest are averaged.
    """
    channels, blocks, _ = energies.shape
    if blocks == 0:
        return energies.new_zeros(channels, RINGS)
    groups = max(1, min(MAX_GROUPS, blocks // BLOCKS_PER_GROUP))
    size = blocks // groups
    counts = energies.new_tensor(ring_counts(lengths))
    part = HIGH_RINGS if bool(counts[HIGH_RINGS].sum() > 0) else slice(None)
    number = float(counts[part].sum())
    high = (energies[..., part] * counts[part]).sum(dim=-1) / number
    grouped = high[:, level.argsort()[: groups * size]].reshape(channels, groups, size)
    at = round(SMOOTHEST * (size - 1))
    smooth = grouped.sort(dim=2).values[:, :, at] / _chi_square_quantile((at + 0.7) / (size + 0.4), number)
    for _ in range(8):
        inlier = (grouped <= (smooth * (1.1 + INLIERS * math.sqrt(2 / number)))[..., None]).to(grouped)
        smooth = torch.where(inlier.any(dim=2), (grouped * inlier).sum(dim=2) / inlier.sum(dim=2).clamp(min=1), smooth)
    middle = smooth.median(dim=1, keepdim=True).values
    variance = torch.minimum(smooth, torch.where(middle > 0, MAX_OF_MEDIAN * middle, torch.inf)).mean(dim=1)
    return variance.sqrt()[:, None].expand(-1, RINGS)


def blocks_with_noise(blocks: Tensor) -> Tensor:
    """Return a mask `(B, blocks)` of the blocks `(B, C, blocks, pixels)` that are neither flat nor clipped."""
    whole = blocks.flatten(1)
    least, most = whole.amin(dim=1)[:, None, None, None], whole.amax(dim=1)[:, None, None, None]
    share = ((blocks <= least) | (blocks >= most)).to(blocks).mean(dim=3).amax(dim=1)
    flat = (blocks.amax(dim=3) == blocks.amin(dim=3)).all(dim=1)
    level = blocks[..., 0].mean(dim=1)
    first = level.gather(1, flat.to(torch.int8).argmax(dim=1, keepdim=True))
    background = flat & (level == first).logical_or(~flat).all(dim=1, keepdim=True)  # flat ones of one colour alone
    some = (share < 1) & ~background
    kept = some & (share < MAX_EXTREME_SHARE)
    enough = kept.sum(dim=1) >= (0.05 * kept.shape[1]) + 8
    return torch.where(enough[:, None], kept, some)


@functools.lru_cache(maxsize=256)
def _chi_square_quantile(share: float, count: float) -> float:
    """Return the quantile of the mean square of `count` normal numbers, by Wilson and Hilferty."""
    spread = 2 / (9 * max(1.0, count))
    return max(1e-2, 1 - spread + NormalDist().inv_cdf(share) * math.sqrt(spread)) ** 3


def _deviation(spectrum: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return the deviation of a pixel `(B,)` from that of rings `(B, C, 7)`."""
    counts = spectrum.new_tensor(ring_counts(lengths))
    return ((spectrum.square() * counts).sum(dim=-1) / counts.sum()).mean(dim=1).sqrt()


def at_least(noise: Tensor, images: Tensor) -> Tensor:
    """Return the noise `(B,)` of images, or the least that a weight can be derived from."""
    pixels = images.flatten(1)
    spread = pixels.amax(1) - pixels.amin(1)
    return torch.maximum(noise, MIN_NOISE * torch.where(spread > 0, spread, 1))


def rough_noise(images: Tensor, kept: Tensor) -> Tensor:
    """Return the deviation of noise `(B,)`: the middle of the small half of differences of neighbours that are kept.

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


def block_lengths(images: Tensor) -> tuple[int, ...]:
    """Return the size of a block of images `(B, C, *size)`."""
    side = SIDES[images.ndim - 2]
    return tuple([min(side, extent) for extent in images.shape[2:]])


def cut_blocks(images: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Cut images `(B, C, *size)` into blocks on a regular grid, `(B, C, blocks, pixels)`.

    Blocks are an odd number of pixels apart, so that they lie in all ways across those of an earlier JPEG file.
    """
    pixels = math.prod(images.shape[2:])
    axes = max(1, len(lengths) - images.shape[2:].count(1))
    step = 2 * int((pixels / NUM_BLOCKS) ** (1 / axes) / 2) + 1
    for axis, length in enumerate(lengths, 2):
        images = images.unfold(axis, length, step)
    return images.flatten(2 + len(lengths)).flatten(2, -2)


def join_blocks(coefficients: Tensor, counts: Sequence[int], lengths: tuple[int, ...]) -> Tensor:
    """Put blocks that lie side by side, `counts` along each axis, together: `(B, C, blocks, pixels)` to images."""
    pixels = coefficients @ block_basis(lengths).to(coefficients)
    pixels = pixels.reshape(*coefficients.shape[:2], *counts, *lengths)
    axes = len(counts)
    order = itertools.chain(*zip(range(2, 2 + axes), range(2 + axes, 2 + 2 * axes), strict=True))
    return pixels.permute(0, 1, *order).reshape(*coefficients.shape[:2], *map(operator.mul, counts, lengths))


@functools.lru_cache(maxsize=64)
def block_basis(lengths: tuple[int, ...]) -> Tensor:
    """Return the transform of a block as a matrix `(pixels, pixels)`."""
    return functools.reduce(torch.kron, [cosines(length, torch.float64, CPU) for length in lengths]).float()


@functools.lru_cache(maxsize=64)
def rings(lengths: tuple[int, ...]) -> Tensor:
    """Return the ring of each coefficient of a block `(pixels,)`, from 1 to 7, and 0 for the mean."""
    eighths = [torch.arange(length, device="cpu") * (RINGS + 1) // length for length in lengths]
    found = functools.reduce(torch.maximum, torch.meshgrid(*eighths, indexing="ij")).flatten().clamp(min=1)
    found[0] = 0
    return found


@functools.lru_cache(maxsize=64)
def ring_counts(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many coefficients of a block are in each of the seven rings; the mean counts with the first."""
    counts = [int((rings(lengths) == ring).sum()) for ring in range(1, RINGS + 1)]
    first = next((ring for ring, count in enumerate(counts) if count), 0)
    return tuple(count + (ring == first) for ring, count in enumerate(counts))


@functools.lru_cache(maxsize=64)
def ring_means(lengths: tuple[int, ...]) -> Tensor:
    """Return the matrix `(pixels, 7)` from the squares of coefficients to their mean in each ring; 0 in empty ones."""
    member = torch.stack([(rings(lengths) == ring).float() for ring in range(1, RINGS + 1)], dim=1)
    return member / member.sum(dim=0).clamp(min=1)


def block_energies(blocks: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the energies and the levels of blocks `(B, C, blocks, pixels)`, channels as by `mix_channels`.

    Energies are mean squares of coefficients by rings `(B, C, blocks, 7)`; levels are the mean coefficients of the sum
    of the channels `(B, blocks)`.
    """
    coefficients = mix_channels(blocks) @ block_basis(lengths).to(blocks).T
    return coefficients.square() @ ring_means(lengths).to(blocks), coefficients[:, 0, :, 0]


def mix_channels(images: Tensor, back: bool = False) -> Tensor:
    """Return the sum of all channels and their differences, orthonormal: of three (1, 1, 1), (1, 0, -1), (1, -2, 1)."""
    if images.shape[1] == 1:
        return images
    matrix = cosines(images.shape[1], torch.float64, CPU).to(images)
    return torch.einsum("ji,bj...->bi..." if back else "ij,bj...->bi...", matrix, images)
