"""How far a picture has moved since the one before, and dual fields that move along with it.

Compiled solves do the same for themselves (`find_motion` in kernels/loop.h).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import avg_pool2d

WINDOW, LEAST = 128, 8
"""The side, in pixels, of the middle that is looked at, and the shortest that is; motions of a quarter are found."""

SMALLEST, TRIED = 16, 6
"""The shortest side of the smallest windows, and how many motions of these are tried on larger ones."""

ALIKE = 0.1
"""Frames are alike where the differences of neighbours in what is left between them are this share of their own."""


def followed(field: Tensor, before: Tensor, now: Tensor) -> Tensor | None:
    """A field `(..., H, W)` that belongs to a frame `(C, H, W)`, moved to where the picture is now.

    None where the frames are not alike, as those with noise of their own are: judged by their middles.
    """
    one, other, by = middle(before), middle(now), motion(before, now)
    inner, there = _inner(other, (0, 0), 1), _inner(one, by, 1)
    return moved(field, by) if bool(_steps(inner - there) <= ALIKE * _steps(inner)) else None


def motion(before: Tensor, now: Tensor) -> tuple[int, int]:
    """Rows and columns by which `before` `(C, H, W)` has moved to be `now`; (0, 0) where they are equal, or too small.

    The one with the least sum of absolute differences between the inner half of the middle of one frame and as large a
    part of that of the other. It is looked for on means over 2 x 2 pixels first, and there likewise, and the best few
    of them are tried with all pixels: block matching by hierarchy
    ([Bierling 1988](https://doi.org/10.1117/12.969046)).

    >>> import torch
    >>> picture = torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> motion(picture, picture.roll((2, -3), dims=(1, 2)))
    (2, -3)
    """
    one, other = middle(before), middle(now)
    if min(one.shape) < LEAST or float(_apart(one, other, (0, 0))) == 0:
        return 0, 0
    return _motions(one, other)[0]


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


def _motions(before: Tensor, now: Tensor) -> list[tuple[int, int]]:
    """The best few, the best first."""
    height, width = now.shape
    if min(height, width) // 2 < SMALLEST:
        near = range(-(max(height, width) // 4), max(height, width) // 4 + 1)
        tried = {(row, column) for row in near for column in near}
    else:
        found = _motions(*(avg_pool2d(each[None], 2)[0] for each in (before, now)))
        near = range(-1, 2)
        tried = {(2 * row + lower, 2 * column + further) for row, column in found for lower in near for further in near}
    within = [by for by in {(0, 0), *tried} if 4 * abs(by[0]) <= height - 4 and 4 * abs(by[1]) <= width - 4]
    scores = {by: float(_apart(before, now, by)) for by in within}
    return sorted(within, key=lambda by: (scores[by], abs(by[0]) + abs(by[1]), by))[:TRIED]  # of equals the shortest


def _apart(before: Tensor, now: Tensor, by: tuple[int, int]) -> Tensor:
    return (_inner(now, (0, 0)) - _inner(before, by)).abs().sum()


def _inner(window: Tensor, by: tuple[int, int], more: int = 0) -> Tensor:
    """What is in the inner half of a window `(h, w)` once it has moved, and `more` rows and columns after it."""
    (height, width), (rows, columns) = window.shape, by
    top, left = height // 4, width // 4
    return window[top - rows : height - top - rows + more, left - columns : width - left - columns + more]


def _steps(frame: Tensor) -> Tensor:
    """The sum of absolute differences of neighbours."""
    return frame.diff(dim=0).abs().sum() + frame.diff(dim=1).abs().sum()
