"""Parallel-beam projections: what a tomograph measures."""

from __future__ import annotations

import math
import warnings
from functools import cached_property

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.operators.base import LinearOperator, check_ending, norm_bound


class ParallelBeam(LinearOperator):
    r"""Line integrals of images `(B, ..., H, W)` at angles 0, pi/n, 2 pi/n, ...: `(B, ..., n, detectors)`, scaled.

    The image is a grid of unit pixels centred at the origin. At angle a, the pixel (i, j) with height
    v = (H - 1)/2 - i and breadth h = j - (W - 1)/2 is projected to h cos a + v sin a; its value is shared between the
    two nearest detectors. Detectors are one pixel apart and cover the diagonal. All values are divided by sqrt(n), so
    that each column of A has sum sqrt(n). A is a sparse matrix, its adjoint the transpose.

    Args:
        height, width: H and W of the images.
        angles: n, the number of projections, evenly spaced over half a turn.
    """

    def __init__(self, height: int, width: int, angles: int = 30) -> None:
        self.height, self.width = check_count("height", height), check_count("width", width)
        self.angles = check_count("angles", angles)
        self.detectors = 2 * math.ceil(math.hypot(height - 1, width - 1) / 2) + 3
        self._matrices: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    @cached_property
    def norm(self) -> float:
        return norm_bound(lambda v: self._adjoint(self._apply(v)), (1, 1, self.height, self.width))

    @property
    def roundings(self) -> float:
        """A >= 0; a detector sees a strip of at most 4 (H + W) pixels, and a pixel reaches 2 detectors per angle."""
        return 4.0 * (self.height + self.width) + 2.0 * self.angles

    def _apply(self, x: Tensor) -> Tensor:
        check_ending("x", x, (self.height, self.width))
        return self._times(0, x).view(*x.shape[:-2], self.angles, self.detectors)

    def _adjoint(self, z: Tensor) -> Tensor:
        check_ending("z", z, (self.angles, self.detectors))
        return self._times(1, z).view(*z.shape[:-2], self.height, self.width)

    def _times(self, which: int, x: Tensor) -> Tensor:
        """Multiply each image by A (`which` 0) or each sinogram by A' (1), `(images, ...)`."""
        key = (x.dtype, x.device)
        if key not in self._matrices:
            rows, columns, values = self._entries()
            shape = (self.angles * self.detectors, self.height * self.width)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch calls its compressed sparse matrices a beta
                both = (rows, columns, values, shape), (columns, rows, values, shape[::-1])
                A, transpose = (_compressed(*entries).to(x.device, x.dtype) for entries in both)
                self._matrices[key] = A, transpose
        return (self._matrices[key][which] @ x.reshape(-1, x.shape[-2] * x.shape[-1]).T).T.contiguous()

    def _entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the row, column and value of each entry of A."""
        angle = torch.arange(self.angles, dtype=torch.float64, device="cpu")[:, None, None] * (math.pi / self.angles)
        v = (self.height - 1) / 2 - torch.arange(self.height, dtype=torch.float64, device="cpu")[:, None]
        h = torch.arange(self.width, dtype=torch.float64, device="cpu")[None, :] - (self.width - 1) / 2
        seen = (h * torch.cos(angle) + v * torch.sin(angle)).flatten(1) + (self.detectors - 1) / 2
        first = seen.floor()
        share = seen - first
        row = first.long() + self.detectors * torch.arange(self.angles, device="cpu")[:, None]
        column = torch.arange(self.height * self.width, device="cpu").expand_as(row)
        values = torch.stack([1 - share, share]) / math.sqrt(self.angles)
        return torch.stack([row, row + 1]).flatten(), torch.stack([column, column]).flatten(), values.flatten()


def _compressed(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the sparse matrix of these entries, stored by rows."""
    matrix = torch.sparse_coo_tensor(torch.stack([rows, columns]), values, shape).to_sparse_csr()
    starts, places = matrix.crow_indices().int(), matrix.col_indices().int()
    return torch.sparse_csr_tensor(starts, places, matrix.values(), shape, check_invariants=True)
