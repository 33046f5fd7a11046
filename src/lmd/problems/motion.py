"""How far a picture has moved since the one before, and dual fields that move along with it."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

WINDOW, LEAST = 64, 8
"""The side, in pixels, of the middle that is looked at, and the shortest that is; motions of a quarter are found."""

ALIKE = 0.1
"""Frames are alike where the differences of neighbours in what is left between them are this share of their own."""


def followed(field: Tensor, before: Tensor, now: Tensor) -> Tensor | None:
    """A field `(..., H, W)` that belongs to a frame `(C, H, W)`, moved to where the picture is now.

    None where the frames are not alike, as those with noise of their own are: judged by their middles.
    """
    one, other = middle(before), middle(now)
    rows, columns = by = motion(one[None], other[None])
    inner = other[max(rows, 0) : other.shape[0] + min(rows, 0), max(columns, 0) : other.shape[1] + min(columns, 0)]
    there = one[max(-rows, 0) : one.shape[0] + min(-rows, 0), max(-columns, 0) : one.shape[1] + min(-columns, 0)]
    return moved(field, by) if bool(_steps(inner - there) <= ALIKE * _steps(inner)) else None


def motion(before: Tensor, now: Tensor) -> tuple[int, int]:
    """Rows and columns by which `before` `(C, H, W)` has moved to be `now`; (0, 0) where none is found.

    By phase correlation of their middles: a motion turns the phase of each Fourier coefficient by as much as its
    frequency says, so that the quotients of coefficients, each divided by its size, are those of a point at the place
    that a pixel moved to ([Reddy and Chatterji 1996](https://doi.org/10.1109/83.506761), section II).

    >>> picture = torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> motion(picture, picture.roll((2, -3), dims=(1, 2)))
    (2, -3)
    """
    one, other = (middle(each) for each in (before, now))
    height, width = other.shape
    if min(height, width) < LEAST:
        return 0, 0
    fade = _fade(height, width).to(now)
    first, second = torch.fft.rfft2(torch.stack([one - one.mean(), other - other.mean()]) * fade)
    turned = first.conj() * second
    sizes = turned.abs()
    likely = torch.fft.irfft2(turned / sizes.clamp(min=1e-6 * float(sizes.max()) + 1e-30), s=(height, width))
    row, column = divmod(int(likely.argmax()), width)
    row, column = row - height * (2 * row > height), column - width * (2 * column > width)
    return (row, column) if max(abs(row) / height, abs(column) / width) <= 0.25 else (0, 0)


def moved(field: Tensor, by: tuple[int, int]) -> Tensor:
    """A field `(..., H, W)` moved by so many rows and columns; 0 where nothing was."""
    if by == (0, 0):
        return field
    found, (rows, columns) = field.roll(by, dims=(-2, -1)), by
    found[..., slice(0, rows) if rows >= 0 else slice(rows, None), :] = 0
    found[..., slice(0, columns) if columns >= 0 else slice(columns, None)] = 0
    return found


def middle(frame: Tensor) -> Tensor:
    """The middle of a frame `(C, H, W)`, its channels added up."""
    height, width = (min(WINDOW, length) for length in frame.shape[1:])
    top, left = ((length - own) // 2 for length, own in zip(frame.shape[1:], (height, width), strict=True))
    return frame[:, top : top + height, left : left + width].sum(dim=0)


def _steps(frame: Tensor) -> Tensor:
    """The sum of absolute differences of neighbours."""
    return frame.diff(dim=0).abs().sum() + frame.diff(dim=1).abs().sum()


@functools.lru_cache(maxsize=4)
@torch.inference_mode(False)
def _fade(height: int, width: int) -> Tensor:
    """Towards 0 at the borders, where what moves in was not there before."""
    return torch.hann_window(height)[:, None] * torch.hann_window(width)
