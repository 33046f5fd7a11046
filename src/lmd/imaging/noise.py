"""Estimate the noise of an image from the image alone: its standard deviation, its spectrum, and the confidence.

Blocks of the image are transformed as in JPEG, by cosine transforms and by sums and differences of channels. A small
network tells noise from texture by the energies of the blocks. `benchmarks/fit_noise.py` trains it on the loss in dB of
pictures that are denoised with the weight that Stein's risk chooses for the estimated noise.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import as_file, files
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lmd.imaging.arrays import Axis, as_batch
from lmd.mirrors.separable import cosines
from lmd.solvers.base import in_full_precision

NETWORKS = "noise_network.safetensors"
RINGS = 7  # groups of coefficients; in ring k, the largest frequency along an axis is k/8 of the maximum
QUANTILES = (0.02, 0.05, 0.12, 0.3, 0.5, 0.8)  # quantiles of the energies of all blocks, an input of the network
REFERENCE = 3  # the output of the network is relative to this quantile, which is near the level of the noise
FLOOR = 1e-4  # deviations are measured with an offset of this share of the contrast
MAX_RATIOS = (0.4, 0.5, 0.7, 1.0, 1.2, 1.4, 1.5)  # largest logarithm of deviation over reference, for each ring
MAX_CAUTION = 2.0  # largest absolute value of the logarithm of the caution

CPU = torch.device("cpu")
SIDES = {1: 32, 2: 8, 3: 4}  # the side of a block, by the number of spatial axes; JPEG has blocks of 8 x 8
NUM_BLOCKS = 1024  # the approximate number of blocks of an image; blocks of small images overlap
HIGH_RINGS = slice(4, None)  # the smoothest blocks show only noise in rings 5, 6 and 7
BLOCKS_PER_GROUP, MAX_GROUPS = 40, 6  # blocks are grouped by brightness, because the noise of cameras grows with it
MAX_OF_MEDIAN = 4.0  # the variance of a group is clipped at this multiple of the median of the groups
SMOOTHEST = 0.12  # the share of blocks of a group that are assumed to show only noise
INLIERS = 2.3  # blocks are averaged with the smoothest ones up to this number of deviations above them
MAX_EXTREME_SHARE = 0.2  # blocks with a larger share of the darkest or brightest value are clipped and ignored
MIN_PIXELS = 20 * 64  # smaller pictures have too few blocks for the network; the smoothest blocks decide
EVEN = (0.8, 1.25)  # the noise is white if the energies of all rings over their mean are in this range
TEXTURE_DISCOUNT = 0.3  # the caution is reduced by up to this share if noise may be texture; tuned on BSDS val
NO_COLOUR = 1e-9  # a picture is grey if colours have less than this share of the energy of brightness
UNKNOWN = 0.1  # the noise that is assumed if no two neighbours are kept
MIN_NOISE = 1e-4  # the smallest noise from which a weight is derived, in multiples of the range of the image


@dataclass(frozen=True)
class NoiseEstimate:
    """The noise of an image, or of each image of a batch, in the units of the array."""

    level: Any
    """The standard deviation: a number, or one per image `(B,)`."""

    most: Any
    """The level if everything in the smoothest parts were noise: an approximate upper bound."""

    correlation: Any
    """The deviation of low frequencies over the deviation of high ones: 1 for white, more for correlated noise."""

    @property
    def confidence(self) -> Any:
        """The ratio `level / most` in [0, 1]: near 1 the image has noise, near 0 it may have only fine texture."""
        return self.level / self.most if isinstance(self.most, Tensor) or self.most > 0 else 1.0


@dataclass(frozen=True)
class Noise:
    """The noise of a batch of images `(B, C, *size)` in each channel and ring of frequencies."""

    spectrum: Tensor  # deviations of rings `(B, C, 7)` in the basis of `mix_channels`: the sum, then differences
    lengths: tuple[int, ...]  # the size of a block
    level: Tensor  # the standard deviation of a pixel `(B,)`
    most: Tensor  # the level if everything in the smoothest blocks is noise `(B,)`
    caution: Tensor  # the factor on the divergence term of Stein's risk `(B,)`: more than 1 favours larger weights

    @classmethod
    def white(cls, level: Tensor, images: Tensor) -> Noise:
        """Return white noise of the standard deviations `level` `(B,)`."""
        spectrum = level[:, None, None].expand(-1, images.shape[1], RINGS)
        return cls(spectrum, block_lengths(images), level, level, torch.ones_like(level))

    def with_minimum(self, images: Tensor) -> Noise:
        """Return the noise; replace it by white noise of the smallest usable level if it is below that level."""
        least = at_least(self.level, images)
        is_small = (least > self.level)[:, None, None]
        return replace(self, spectrum=torch.where(is_small, least[:, None, None], self.spectrum), level=least)

    def sample(self, like: Tensor, owner: Tensor, seed: int = 0) -> Tensor:
        """Return noise with this covariance for windows `like` `(N, C, *size)`, cut from the images `owner` `(N,)`.

        Each coefficient of a block is the deviation of its ring times a random sign.
        """
        counts = list(map(math.ceil, map(operator.truediv, like.shape[2:], self.lengths)))
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
    and colour and in seven frequency bands. For signals, volumes and small pictures, the noise is measured on the
    smoothest blocks ([Ponomarenko et al. 2007](https://doi.org/10.1117/12.714640)).

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
    noise, unit = measure(batch.images), batch.units.unit
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
    both, counts = torch.stack([*spectra, *smooth]), images.new_tensor(ring_counts(lengths))
    level, most = ((both.square() * counts).sum(dim=-1) / counts.sum()).mean(dim=1).sqrt().chunk(2)
    return Noise(both[: len(images)], lengths, level, most, torch.stack(cautions))


def _is_only_noise(energies: Tensor, level: Tensor) -> bool:
    """Return whether the image is white noise: whether all frequencies and the means of blocks have equal energy."""
    by_ring = energies[0].mean(dim=0)
    mean = by_ring.mean()
    is_even = (by_ring >= EVEN[0] * mean) & (by_ring <= EVEN[1] * mean)
    return bool(is_even.all() & (level.var(correction=0) <= 2 * mean))


def _separate_noise(blocks: Tensor, energies: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Return the deviations `(C, 7)` of the noise and the caution that the network predicts.

    The network was trained on one and three channels. It measures other numbers of channels one by one.

    Args:
        blocks: Blocks of the channels `(C, blocks, pixels)`.
        energies: Energies of the sum of the channels and of their differences `(C, blocks, 7)`.
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
    spectrum = torch.cat([bright[None], others.expand(count - 1, -1)])
    return spectrum, caution * (1 - TEXTURE_DISCOUNT * _doubt(spectrum, energies[0]))


def _doubt(spectrum: Tensor, energies: Tensor) -> Tensor:
    """Return a number in [0, 1] that says how likely the noise is confused with texture.

    Noise of low frequencies, as in enlarged pictures, looks like texture. The number is 0 if the noise is white or
    if half of the blocks have no more energy than the noise.

    Args:
        spectrum: Deviations of the noise `(C, 7)`.
        energies: Energies of the brightness of each block `(blocks, 7)`.
    """
    counts = spectrum.new_tensor(ring_counts((8, 8)))
    energy, blocks = spectrum.square() * counts, (energies * counts).sum(dim=1)
    high = energy[:, HIGH_RINGS].sum() / counts[HIGH_RINGS].sum()
    white = high * counts.sum() / energy.sum().clamp(min=torch.finfo(energy.dtype).tiny)
    noisy = energy[0].sum() / blocks.median().clamp(min=torch.finfo(energy.dtype).tiny)
    return (1 - white).clamp(0, 1) * (2 - 2 * noisy).clamp(0, 1)


def _smoothest(energies: Tensor, level: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return the deviations `(C, 7)` of white noise, measured on the smoothest blocks; `energies` is `(C, blocks, 7)`.

    Blocks are sorted into groups by brightness. In each group, the estimate averages the blocks with about as little
    energy at high frequencies as the smoothest blocks.
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
    """Return a mask `(B, blocks)` of `blocks` `(B, C, blocks, pixels)` outside clipped regions and flat background."""
    whole = blocks.flatten(1)
    least, most = whole.amin(dim=1)[:, None, None, None], whole.amax(dim=1)[:, None, None, None]
    share = ((blocks <= least) | (blocks >= most)).to(blocks).mean(dim=3).amax(dim=1)
    flat = (blocks.amax(dim=3) == blocks.amin(dim=3)).all(dim=1)
    level = blocks[..., 0].mean(dim=1)
    first = level.gather(1, flat.to(torch.int8).argmax(dim=1, keepdim=True))
    background = flat & (level == first).logical_or(~flat).all(dim=1, keepdim=True)  # all flat blocks have one colour
    some = (share < 1) & ~background
    kept = some & (share < MAX_EXTREME_SHARE)
    enough = kept.sum(dim=1) >= (0.05 * kept.shape[1]) + 8
    return torch.where(enough[:, None], kept, some)


@functools.lru_cache(maxsize=256)
def _chi_square_quantile(share: float, count: float) -> float:
    """Return the quantile of the mean square of `count` normal numbers, by Wilson and Hilferty."""
    spread = 2 / (9 * max(1.0, count))
    return max(1e-2, 1 - spread + NormalDist().inv_cdf(share) * math.sqrt(spread)) ** 3


def at_least(noise: Tensor, images: Tensor) -> Tensor:
    """Return the noise `(B,)` of images, raised to the smallest level from which a weight can be derived."""
    pixels = images.flatten(1)
    spread = pixels.amax(1) - pixels.amin(1)
    return torch.maximum(noise, MIN_NOISE * torch.where(spread > 0, spread, 1))


def rough_noise(images: Tensor, kept: Tensor) -> Tensor:
    """Return the deviation of the noise `(B,)` from the lower quartile of absolute differences of kept neighbours.

    Neighbours are pixels next to each other along the last axis that has more than one pixel.
    """
    axis = max((axis for axis in range(2, images.ndim) if images.shape[axis] > 1), default=None)
    if axis is None:
        return images.new_full((len(images),), UNKNOWN)
    images, kept = images.movedim(axis, -1), kept.movedim(axis, -1)
    both = (kept[..., 1:] * kept[..., :-1]).expand_as(images[..., 1:]) > 0
    apart = (images[..., 1:] - images[..., :-1]).abs().masked_fill(~both, torch.inf).flatten(1).sort(dim=1).values
    count = both.flatten(1).sum(1)
    at = (count // 4).clamp(max=apart.shape[1] - 1)
    found = apart.gather(1, at[:, None])[:, 0] / (0.3186 * 2**0.5)  # the lower quartile of |N(0, 1)|, times sqrt(2)
    return torch.where(torch.isfinite(found), found, UNKNOWN)


def block_lengths(images: Tensor) -> tuple[int, ...]:
    """Return the size of a block of images `(B, C, *size)`."""
    return tuple(map(partial(min, SIDES[images.ndim - 2]), images.shape[2:]))


def cut_blocks(images: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Cut images `(B, C, *size)` into blocks on a regular grid, `(B, C, blocks, pixels)`.

    The distance of blocks is odd, so that they have all shifts relative to the blocks of an earlier JPEG compression.
    """
    pixels = math.prod(images.shape[2:])
    axes = max(1, len(lengths) - images.shape[2:].count(1))
    step = 2 * int((pixels / NUM_BLOCKS) ** (1 / axes) / 2) + 1
    for axis, length in enumerate(lengths, 2):
        images = images.unfold(axis, length, step)
    return images.flatten(2 + len(lengths)).flatten(2, -2)


def join_blocks(coefficients: Tensor, counts: Sequence[int], lengths: tuple[int, ...]) -> Tensor:
    """Join the coefficients of adjacent blocks `(B, C, blocks, pixels)`, `counts` along each axis, to images."""
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
    """Return the ring of each coefficient of a block `(pixels,)`: 0 for the mean, 1 to 7 for the others."""
    eighths = [torch.arange(length, device="cpu") * (RINGS + 1) // length for length in lengths]
    found = functools.reduce(torch.maximum, torch.meshgrid(*eighths, indexing="ij")).flatten().clamp(min=1)
    found[0] = 0
    return found


@functools.lru_cache(maxsize=64)
def ring_counts(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of coefficients of a block in each of the seven rings; the first one includes the mean."""
    counts = [int((rings(lengths) == ring).sum()) for ring in range(1, RINGS + 1)]
    first = next((ring for ring, count in enumerate(counts) if count), 0)
    return tuple(count + (ring == first) for ring, count in enumerate(counts))


@functools.lru_cache(maxsize=64)
def ring_means(lengths: tuple[int, ...]) -> Tensor:
    """Return the matrix `(pixels, 7)` that maps squares of coefficients to means over rings; empty rings have 0."""
    member = torch.stack([(rings(lengths) == ring).float() for ring in range(1, RINGS + 1)], dim=1)
    return member / member.sum(dim=0).clamp(min=1)


def block_energies(blocks: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the energies and the levels of blocks `(B, C, blocks, pixels)`, in the basis of `mix_channels`.

    Energies are the mean squares of the coefficients in each ring `(B, C, blocks, 7)`. Levels are the coefficients of
    the mean of each block, for the sum of the channels `(B, blocks)`.
    """
    coefficients = mix_channels(blocks) @ block_basis(lengths).to(blocks).T
    return coefficients.square() @ ring_means(lengths).to(blocks), coefficients[:, 0, :, 0]


def mix_channels(images: Tensor, back: bool = False) -> Tensor:
    """Transform channels orthonormally to their sum and differences; rows for 3: (1, 1, 1), (1, 0, -1), (1, -2, 1)."""
    if images.shape[1] == 1:
        return images
    matrix = cosines(images.shape[1], torch.float64, CPU).to(images)
    return torch.einsum("ji,bj...->bi..." if back else "ij,bj...->bi...", matrix, images)


class Features(NamedTuple):
    """The inputs of the network for an image; `blocks` and `whole` do not depend on the units of the image."""

    blocks: Tensor  # `(blocks, 15)`: logarithms of deviations of brightness and colours in each ring, and brightness
    whole: Tensor  # `(86,)`: quantiles of the first 14, the contrast, and whether there are colours
    reference: Tensor  # `(14,)`: logarithms of deviations, to which the outputs are relative


def features(brightness: Tensor, colours: Tensor | None, level: Tensor) -> Features:
    """Return the features of an image from the energies of its blocks.

    Args:
        brightness: Mean squares of coefficients of the sum of the channels `(blocks, 7)`.
        colours: Mean squares for the differences of channels `(blocks, 7)`, or None for grey images.
        level: The mean coefficient of each block `(blocks,)`.
    """
    low, high = torch.quantile(level, 0.02), torch.quantile(level, 0.98)
    contrast = ((high - low) / 8).clamp(min=1e-12)
    both = torch.cat([brightness, torch.zeros_like(brightness) if colours is None else colours], dim=1)
    logs = 0.5 * (both + (FLOOR * contrast).square()).log()
    ranked = logs.sort(dim=0).values
    quantiles = ranked[(ranked.new_tensor(QUANTILES, dtype=torch.float64) * (len(logs) - 1)).round().long()]
    reference = quantiles[REFERENCE]
    middle = reference[2:RINGS].mean()
    seen = logs.new_ones(2 * RINGS)
    seen[RINGS:] = float(colours is not None)
    least, most = torch.aminmax(level)
    place = (level - least) / (most - least).clamp(min=1e-12) - 0.5
    blocks = torch.cat([((logs - middle) / 2).clamp(-4, 4) * seen, place[:, None]], dim=1)
    relative = ((quantiles - middle) / 2).clamp(-4, 4) * seen
    whole = torch.cat([relative.flatten(), ((middle - contrast.log()) / 4)[None], seen[-1:]])
    return Features(blocks, whole, reference)


class NoiseNetwork(nn.Module):
    """A network that predicts the deviation of the noise in each ring; attention pools any number of blocks."""

    HEADS, WIDTH, LAST = 4, 64, 64

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(2 * RINGS + 1, self.WIDTH)
        self.whole = nn.Linear(2 * RINGS * len(QUANTILES) + 2, self.WIDTH)
        self.second = nn.Linear(self.WIDTH, self.WIDTH + self.HEADS)
        self.third = nn.Linear((self.HEADS + 1) * self.WIDTH, self.LAST)
        self.last = nn.Linear(self.LAST, 2 * RINGS + 1)

    def forward(self, blocks: Tensor, whole: Tensor, shown: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the logarithms of deviation / reference `(B, 14)`, brightness first, and of the caution `(B,)`.

        Args:
            blocks: `Features.blocks` of each image `(B, blocks, 15)`.
            whole: `Features.whole` of each image `(B, 86)`.
            shown: A mask of the blocks to use `(B, blocks)`; None uses all.
        """
        common = self.whole(whole)
        hidden = self.second(torch.relu(self.block(blocks) + common[:, None]))
        scores, values = hidden[..., : self.HEADS], torch.relu(hidden[..., self.HEADS :])
        if shown is not None:
            scores = scores.masked_fill(~shown[..., None], -math.inf)
        pooled = torch.einsum("bnh,bnw->bhw", torch.softmax(scores, dim=1), values).flatten(1)
        found: Tensor = self.last(torch.relu(self.third(torch.cat([pooled, torch.relu(common)], dim=1))))
        ratios = torch.minimum(found[:, :-1], found.new_tensor(2 * MAX_RATIOS))
        return ratios, found[:, -1].clamp(-MAX_CAUTION, MAX_CAUTION)


@functools.cache
def trained_networks() -> nn.ModuleList:
    """Return the shipped networks, an ensemble whose outputs are averaged."""
    with torch.device("cpu"), as_file(files("lmd.imaging") / NETWORKS) as path:
        weights = load_file(path)
        networks = nn.ModuleList(NoiseNetwork() for _ in {name.split(".")[0] for name in weights}).float()
        networks.load_state_dict(weights)
    return networks.requires_grad_(False)


def find_noise(brightness: Tensor, colours: Tensor | None, level: Tensor) -> tuple[Tensor, Tensor]:
    """Return the deviations of the noise in brightness and colours, for each ring `(2, 7)`, and the caution.

    The arguments are those of `features`. The caution is a factor on the divergence term of Stein's risk: the risk is
    exact only on average, but the weight is chosen from one picture.
    """
    seen = features(brightness.float().cpu(), None if colours is None else colours.float().cpu(), level.float().cpu())
    networks, ratio, caution = trained_networks(), seen.reference.new_zeros(2 * RINGS), seen.reference.new_zeros(())
    for network in networks:
        ratios, cautions = network(seen.blocks[None], seen.whole[None])
        ratio, caution = ratio + ratios[0] / len(networks), caution + cautions[0] / len(networks)
    return (seen.reference + ratio).exp().reshape(2, RINGS).to(brightness), caution.exp().to(brightness)
