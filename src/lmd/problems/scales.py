"""Coarser grids: total variation denoising on squares of 2 x 2 pixels, and its dual fields on the finer grid."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

SMALLEST = 16
"""Images with a shorter side are not made coarser."""


def averaged(y: Tensor) -> Tensor | None:
    """Means over squares of 2 x 2 pixels, or those of them that there are; None where y `(B, C, H, W)` is too small.

    Among images that are constant on such squares, s ||x - y||^2 + b TV(x) is 4 (s ||x - m||^2 + b/2 TV(x)) and a
    constant, for the means m and one pixel for each square: anisotropic TV counts a difference between two squares
    twice, on both of their edges.
    """
    return None if min(y.shape[2:]) < SMALLEST else avg_pool2d(y, 2, ceil_mode=True)


def spread(p: Tensor, height: int, width: int) -> Tensor:
    """The dual field `(B, C, 2, H, W)` of the finer grid that begins where p of the coarser one is.

    x = y - K'p / 2s then has the means that the coarser solution has: across the edges between two squares flows 2p,
    along both of the edges, and inside of a square the mean of what flows in and out. Bounded by 2b where p is by b.
    """
    down, right = p.unbind(dim=2)
    rows, columns = _between(down, 2)[:, :, :height], _between(right, 3)[..., :width]
    fine = torch.stack([_doubled(rows, 3)[..., :width], _doubled(columns, 2)[:, :, :height]], dim=2)
    fine[:, :, 0, -1], fine[:, :, 1, :, -1] = 0, 0  # across the border
    return fine


def _between(flow: Tensor, axis: int) -> Tensor:
    """2 p_i at the end of square i, and the mean of that and of the square before in its middle."""
    before = torch.cat([torch.zeros_like(flow.narrow(axis, 0, 1)), flow.narrow(axis, 0, flow.shape[axis] - 1)], axis)
    return torch.stack([before + flow, 2 * flow], axis + 1).flatten(axis, axis + 1)


def _doubled(flow: Tensor, axis: int) -> Tensor:
    return flow.repeat_interleave(2, dim=axis)
