"""Coarser grids: total variation denoising on squares of 2 x 2 pixels, or cubes, and its dual fields on finer ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, avg_pool3d

SMALLEST = 16
"""Images with a shorter side are not made coarser."""


def averaged(y: Tensor) -> Tensor | None:
    """Means over squares of 2 x 2 pixels, or those of them that there are; None where y `(B, C, H, W)` is too small.

    Among images that are constant on such squares, s ||x - y||^2 + b TV(x) is 4 (s ||x - m||^2 + b/2 TV(x)) and a
    constant, for the means m and one pixel for each square: anisotropic TV counts a difference between two squares
    twice, on both of their edges. In volumes cubes have 8 voxels and 4 edges to the next, so that it is b/2 as well.
    """
    pool = {4: avg_pool2d, 5: avg_pool3d}.get(y.ndim)
    return None if pool is None or min(y.shape[2:]) < SMALLEST else pool(y, 2, ceil_mode=True)


def spread(p: Tensor, *size: int) -> Tensor:
    """The dual field `(B, C, axes, *size)` of the finer grid that begins where p of the coarser one is.

    x = y - K'p / 2s then has the means that the coarser solution has: across the edges between two squares flows 2p,
    along both of the edges, and inside of a square the mean of what flows in and out. Bounded by 2b where p is by b.
    """
    fields = p.new_empty(*p.shape[:3], *size)
    for along, flow in enumerate(p.unbind(dim=2), 2):
        for axis, length in enumerate(size, 2):
            fine = _between(flow, axis) if axis == along else flow.repeat_interleave(2, dim=axis)
            flow = fine.narrow(axis, 0, length)
        fields[:, :, along - 2] = flow
        fields.select(2, along - 2).narrow(along, size[along - 2] - 1, 1).zero_()  # across the border
    return fields


def _between(flow: Tensor, axis: int) -> Tensor:
    """2 p_i at the end of square i, and the mean of that and of the square before in its middle."""
    before = torch.cat([torch.zeros_like(flow.narrow(axis, 0, 1)), flow.narrow(axis, 0, flow.shape[axis] - 1)], axis)
    return torch.stack([before + flow, 2 * flow], axis + 1).flatten(axis, axis + 1)
