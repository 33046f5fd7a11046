"""A picture or a volume as a file holds it, and what a file says of it before it is decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Picture:
    """An image or a volume as a file holds it, upright."""

    colours: np.ndarray  # `(1 or 3, H, W)`, grey or RGB, or `(1 or 3, D, H, W)`; uint8, uint16 or floating-point
    alpha: np.ndarray | None = None  # how opaque each pixel is `(H, W)`, in the same type
    profile: bytes | None = None  # the ICC colour profile
    exif: bytes | None = None  # what the camera noted, without the orientation, which has been followed

    @property
    def size(self) -> tuple[int, ...]:
        """Height and width, of a volume depth before them."""
        return self.colours.shape[1:]

    @property
    def most(self) -> int:
        """The number that stands for white: 255 or 65535, and 1 where numbers are floating-point."""
        return 1 if self.colours.dtype.kind == "f" else int(np.iinfo(self.colours.dtype).max)

    @property
    def bits(self) -> int:
        """8 or 16; more where numbers are floating-point."""
        return 8 * self.colours.dtype.itemsize

    @property
    def mode(self) -> str:
        """`grey` or `RGB`, with an A where there is transparency."""
        return ("grey" if len(self.colours) == 1 else "RGB") + ("" if self.alpha is None else "A")

    def samples(self) -> np.ndarray:
        """All channels as files have them: `(*size)`, or `(*size, channels)` with alpha last."""
        parts = [*self.colours] if self.alpha is None else [*self.colours, self.alpha]
        return np.stack(parts, axis=-1) if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class Header:
    """What a file says about its image before it is decoded."""

    size: tuple[int, ...]  # height and width, of a volume depth before them
    channels: int  # with alpha
    bits: int
    floating: bool = False

    @property
    def deep(self) -> bool:
        """Whether only some formats hold it: a volume, or floating-point numbers."""
        return self.floating or len(self.size) > 2

    @property
    def bytes(self) -> int:
        return math.prod(self.size) * self.channels * self.bits // 8

    def __str__(self) -> str:
        return spoken(self.size)


def spoken(size: tuple[int, ...]) -> str:
    """Width first, as people say it.

    >>> spoken((480, 640))
    '640 x 480 pixels'
    """
    return " x ".join(map(str, reversed(size))) + " pixels"


def eight_bits(samples: np.ndarray) -> np.ndarray:
    """The nearest bytes: 65535 becomes 255."""
    if samples.dtype == np.uint8:
        return samples
    return ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)
