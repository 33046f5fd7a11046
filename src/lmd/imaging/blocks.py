"""Blocks of an image in the basis of JPEG: cosine transforms, rings of frequencies, sums and differences of colours."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

SIDES = {1: 32, 2: 8, 3: 4}
"""The side of a block by the axes of space: 8 x 8 is that of JPEG."""

RINGS = 7
"""Coefficients are sorted by their highest frequency, in eighths of the highest that there is: 1 to 7."""

NUM_BLOCKS = 1024
"""About so many blocks are cut from an image; those of small images overlap."""


def block_lengths(images: Tensor) -> tuple[int, ...]:
    """Return the size of a block of images `(B, C, *size)`."""
    side = SIDES[images.ndim - 2]
    return tuple(min(side, extent) for extent in images.shape[2:])


def cut_blocks(images: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Cut images `(B, C, *size)` into blocks on a regular grid, `(B, C, blocks, pixels)`.

    Blocks are an odd number of pixels apart, so that they lie in all ways across those of an earlier JPEG file.
    """
    pixels = math.prod(images.shape[2:])
    axes = max(1, sum(extent > 1 for extent in images.shape[2:]))
    step = 2 * int((pixels / NUM_BLOCKS) ** (1 / axes) / 2) + 1
    for axis, length in enumerate(lengths, 2):
        images = images.unfold(axis, length, step)
    return images.flatten(2 + len(lengths)).flatten(2, -2)


def join_blocks(coefficients: Tensor, counts: Sequence[int], lengths: tuple[int, ...]) -> Tensor:
    """Put blocks that lie side by side, `counts` along each axis, together: `(B, C, blocks, pixels)` to images."""
    pixels = coefficients @ block_basis(lengths).to(coefficients)
    pixels = pixels.reshape(*coefficients.shape[:2], *counts, *lengths)
    axes = len(counts)
    order = itertools.chain((0, 1), *((2 + axis, 2 + axes + axis) for axis in range(axes)))
    size = (count * length for count, length in zip(counts, lengths, strict=True))
    return pixels.permute(*order).reshape(*coefficients.shape[:2], *size)


@functools.lru_cache(maxsize=64)
def cosines(length: int) -> Tensor:
    """Return the orthonormal discrete cosine transform as a matrix."""
    k = torch.arange(length, dtype=torch.float64, device="cpu")
    matrix = torch.cos(math.pi * (2 * k + 1) * k[:, None] / (2 * length)) * math.sqrt(2 / length)
    matrix[0] /= math.sqrt(2)
    return matrix


@functools.lru_cache(maxsize=64)
def block_basis(lengths: tuple[int, ...]) -> Tensor:
    """Return the transform of a block as a matrix `(pixels, pixels)`."""
    return functools.reduce(torch.kron, [cosines(length) for length in lengths]).float()


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
    matrix = cosines(images.shape[1]).to(images)
    return torch.einsum("ji,bj...->bi..." if back else "ij,bj...->bi...", matrix, images)
