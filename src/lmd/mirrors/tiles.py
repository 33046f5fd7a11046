"""Maps of large images, tile by tile: the same answer in a fraction of the memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TILE = 256
"""The side of a tile. Images of no more than four tiles are taken whole."""


def in_tiles(map_: Callable[[Tensor], Tensor], x: Tensor, reach: int, border: str) -> Tensor:
    """map_(x) for images x `(B, C, H, W)`, where a pixel of the answer depends on the `reach` pixels around it alone.

    Each tile goes through the map with a margin of `reach` pixels, which are then cut off: what the map makes of the
    tile's own border does not get further than that, so the answer has no seams. Beyond the border of the image lies
    what `border` says: the other side, where it is `circular`, or what the map itself puts there.
    """
    height, width = x.shape[2:]
    if height * width <= 4 * TILE**2:
        return map_(x)
    answer = torch.empty_like(x)
    for top in range(0, height, TILE):
        rows, above = _window(top, height, reach, border, x.device)
        strip = x.index_select(2, rows)
        for left in range(0, width, TILE):
            columns, before = _window(left, width, reach, border, x.device)
            place = answer[:, :, top : top + TILE, left : left + TILE]
            tile = map_(strip.index_select(3, columns))
            place.copy_(tile[:, :, above : above + place.shape[2], before : before + place.shape[3]])
    return answer


def _window(first: int, size: int, reach: int, border: str, device: torch.device) -> tuple[Tensor, int]:
    """Which of `size` rows or columns the tile from `first` on needs, and where among them the tile begins."""
    start, stop = first - reach, min(first + TILE, size) + reach
    if stop - start >= size:
        return torch.arange(size, device=device), first
    if border == "circular":
        return torch.arange(start, stop, device=device) % size, reach
    start = max(start, 0)
    return torch.arange(start, min(stop, size), device=device), first - start
