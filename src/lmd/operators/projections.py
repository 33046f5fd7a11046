"""Parallel-beam projections: what a tomograph measures."""

from __future__ import annotations

import math
import warnings
from functools import cached_property

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.operators.base import LinearOperator, check_ending, norm_bound, norm_estimate

NORM_MARGIN = 1.02  # factor from the estimate of a norm to what is used as its bound


class ParallelBeam(LinearOperator):
    r"""Line integrals of images `(B, ..., H, W)` at angles 0, pi/n, 2 pi/n, ...: `(B, ..., n, detectors)`, scaled.

    The image is a square grid of unit pixels about the origin. The pixel at (i, j), that is at height
    v = (H - 1)/2 - i and breadth h = j - (W - 1)/2, is seen at angle a by the detector at h cos a + v sin a; its value
    is shared between the two nearest of the detectors, which are a pixel apart and wide enough for the diagonal. All
    is divided by sqrt(n), so that each column of A has sum sqrt(n).  A is a sparse matrix, its adjoint the transpose.

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
        return norm_bound(self._gram, (1, 1, self.height, self.width))

    @cached_property
    def wrapped_spectrum(self) -> Tensor:
        """c / (|f| + 1/n), n the longer side: at frequency f, in turns per pixel, A'A is about 1/|f|.

        The image of a point under A'A falls as one over the distance, and so does its spectrum
        ([Natterer 2001](https://doi.org/10.1137/1.9780898719284), section II.1). c is an estimate with a margin.
        """
        down, right = (torch.fft.fftfreq(n, dtype=torch.float64, device="cpu") for n in (self.height, self.width))
        far = torch.hypot(down[:, None], right[: self.width // 2 + 1]) + 1 / max(self.height, self.width)
        size = (self.height, self.width)

        def scaled(v: Tensor) -> Tensor:
            seen = self._gram(torch.fft.irfft2(far.sqrt() * torch.fft.rfft2(v), s=size))
            return torch.fft.irfft2(far.sqrt() * torch.fft.rfft2(seen), s=size)

        return NORM_MARGIN * norm_estimate(scaled, (1, 1, *size)) / far

    def _gram(self, x: Tensor) -> Tensor:
        return self._adjoint(self._apply(x))

    @property
    def roundings(self) -> float:
        """A has no negative entries; a strip two pixels wide has at most 4 (H + W) pixels, and a pixel 2 detectors."""
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
            self._matrices[key] = self._matrices_of(x.dtype, x.device)
        return (self._matrices[key][which] @ x.reshape(-1, x.shape[-2] * x.shape[-1]).T).T.contiguous()

    def _matrices_of(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        rows, columns, values = self._entries()
        shape = (self.angles * self.detectors, self.height * self.width)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch calls its compressed sparse matrices a beta
            return (
                _compressed(rows, columns, values, shape).to(device, dtype),
                _compressed(columns, rows, values, shape[::-1]).to(device, dtype),
            )

    def _entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row, column and value of each entry of A."""
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
    """The sparse matrix of these entries, row by row."""
    order = torch.argsort(rows * shape[1] + columns)
    starts = torch.zeros(shape[0] + 1, dtype=torch.int64, device="cpu")
    starts[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
    return torch.sparse_csr_tensor(
        starts.int(), columns[order].int(), values[order], tuple(shape), check_invariants=True
    )
