"""What measures an image: blurs and parallel-beam projections, with exact adjoints and certified bounds on norms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from lmd.checks import check_choice, check_count, check_finite, check_floating, shape_of
from lmd.errors import InputError
from lmd.problems.operators import FiniteDifferences, LinearOperator

BORDERS = ("circular", "replicated")
NORM_ITERATIONS = 30


def norm_bound(gram: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    r"""A bound on ||A|| for a matrix A of entries of 0 or more, from x -> A'Ax on images of this shape.

    Collatz and Wielandt: the largest eigenvalue of a matrix G of entries of 0 or more is at most max_i (Gv)_i / v_i
    for every v > 0. Power iterations bring the bound down to the eigenvalue; whenever they stop, it holds.
    """
    v, least = torch.ones(shape, dtype=torch.float64), math.inf
    for _ in range(NORM_ITERATIONS):
        image = gram(v)
        least = min(least, float((image / v).max()))
        v = image + 1e-12 * float(image.max()) + torch.finfo(v.dtype).tiny  # positive, as the bound asks for
    return math.sqrt(least * (1 + 1e-12)) if least > 0 else 1.0  # A = 0: any bound serves it


class Blur(LinearOperator):
    r"""(Ax)_{i,j} = \sum_{a,b} k_{a,b} x_{i + c - a, j + d - b}: convolution with a kernel k `(h, w)` about its middle.

    (c, d) = (h // 2, w // 2) and x, `(B, C, H, W)` like Ax, goes on past its borders: around ("circular"), or with the
    pixel at the border ("replicated"). A kernel of rank one is applied as a column and a row, others entry by entry,
    those that are 0 left out.
    """

    def __init__(self, kernel: Tensor, height: int, width: int, border: str = "circular") -> None:
        self.kernel = check_kernel(kernel)
        self.height, self.width = check_count("height", height), check_count("width", width)
        self.border = check_choice("border", border, BORDERS)
        if kernel.shape[0] > height or kernel.shape[1] > width:
            raise InputError(
                "kernel", f"shape {shape_of(kernel)}", f"at most the size of the images ({height}, {width})"
            )
        left, values, right = torch.linalg.svd(self.kernel)
        if float(values[1:].sum()) <= 1e-12 * float(values[0]):
            scale = float(values[0]) ** 0.5
            self._passes = [scale * left[:, :1], scale * right[:1]]
        else:
            self._passes = [self.kernel]

    @cached_property
    def norm(self) -> float:
        sizes = Blur(self.kernel.abs(), self.height, self.width, self.border)  # |A| entry by entry has no smaller norm
        return norm_bound(lambda v: sizes._adjoint(sizes._apply(v)), (1, 1, self.height, self.width))

    @property
    def roundings(self) -> float:
        """The norm is that of |A|; a border adds up at most h or w pixels more."""
        return 2.0 * (self.kernel.numel() + sum(self.kernel.shape))

    def _apply(self, x: Tensor) -> Tensor:
        for taps in self._passes:
            x = self._correlate(self._extend(x, taps), taps)
        return x

    def _adjoint(self, z: Tensor) -> Tensor:
        for taps in reversed(self._passes):
            z = self._fold(self._spread(z, taps), taps)
        return z

    def _margins(self, taps: Tensor) -> tuple[int, int, int, int]:
        """Left, right, top, bottom: how far a kernel reaches past the borders."""
        h, w = taps.shape
        return w - 1 - w // 2, w // 2, h - 1 - h // 2, h // 2

    def _extend(self, x: Tensor, taps: Tensor) -> Tensor:
        return pad(x, self._margins(taps), mode="circular" if self.border == "circular" else "replicate")

    def _correlate(self, x: Tensor, taps: Tensor) -> Tensor:
        out = x.new_zeros(*x.shape[:2], self.height, self.width)
        for (a, b), weight in _entries(taps):
            out.add_(x[..., a : a + self.height, b : b + self.width], alpha=weight)
        return out

    def _spread(self, z: Tensor, taps: Tensor) -> Tensor:
        """The adjoint of `_correlate`."""
        out = z.new_zeros(*z.shape[:2], self.height + taps.shape[0] - 1, self.width + taps.shape[1] - 1)
        for (a, b), weight in _entries(taps):
            out[..., a : a + self.height, b : b + self.width].add_(z, alpha=weight)
        return out

    def _fold(self, z: Tensor, taps: Tensor) -> Tensor:
        """The adjoint of `_extend`: what lies past a border is added to the pixels it was copied from."""
        left, right, top, bottom = self._margins(taps)
        for axis, before, after, length in ((2, top, bottom, self.height), (3, left, right, self.width)):
            inside = z.narrow(axis, before, length)
            first, last = z.narrow(axis, 0, before), z.narrow(axis, before + length, after)
            if self.border == "circular":
                inside.narrow(axis, length - before, before).add_(first)
                inside.narrow(axis, 0, after).add_(last)
            else:
                inside.narrow(axis, 0, 1).add_(first.sum(dim=axis, keepdim=True))
                inside.narrow(axis, length - 1, 1).add_(last.sum(dim=axis, keepdim=True))
            z = inside
        return z.contiguous()


def _entries(taps: Tensor) -> list[tuple[tuple[int, int], float]]:
    """Where the flipped kernel is not 0, and what it is there."""
    rows, columns = taps.shape
    flipped = taps.flip(0, 1).tolist()
    return [((a, b), flipped[a][b]) for a in range(rows) for b in range(columns) if flipped[a][b] != 0]


def gaussian_kernel(width: float, size: int | None = None) -> Tensor:
    """A Gaussian of deviation `width` in pixels on `size` x `size` pixels (up to 3 deviations by default), sum 1."""
    if not (isinstance(width, (int, float)) and math.isfinite(width) and width > 0):
        raise InputError("width", width, "a positive number of pixels")
    size = 2 * math.ceil(3 * width) + 1 if size is None else check_count("size", size)
    at = torch.arange(size, dtype=torch.float64) - size // 2
    row = torch.exp(-0.5 * (at / width).square())
    row /= row.sum()
    return row[:, None] * row[None, :]


def check_kernel(kernel: Tensor) -> Tensor:
    """The kernel in float64 on the CPU, if it is a finite matrix that is not 0."""
    if check_finite("kernel", check_floating("kernel", kernel)).ndim != 2 or kernel.numel() == 0:
        raise InputError("kernel", f"shape {shape_of(kernel)}", "a matrix (h, w)")
    if not bool(kernel.any()):
        raise InputError("kernel", "zeros alone", "a kernel with an entry that is not 0")
    return kernel.detach().cpu().double()


class ParallelBeam(LinearOperator):
    r"""Line integrals of images `(B, C, H, W)` at angles 0, pi/n, 2 pi/n, ...: `(B, C, n, detectors)`, scaled.

    The image is a square grid of unit pixels about the origin. The pixel at (i, j), that is at height
    v = (H - 1)/2 - i and breadth h = j - (W - 1)/2, is seen at angle a by the detector at h cos a + v sin a; its value
    is shared between the two nearest of the detectors, which are a pixel apart and wide enough for the diagonal. All
    is divided by sqrt(n), so that each column of A has sum sqrt(n).  A is a sparse matrix, its adjoint the transpose.
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
        """A has no negative entries; a strip two pixels wide has at most 4 (H + W) pixels, and a pixel 2 detectors."""
        return 4.0 * (self.height + self.width) + 2.0 * self.angles

    def _apply(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[2:] != (self.height, self.width):
            raise InputError("x", f"shape {shape_of(x)}", f"shape (B, C, {self.height}, {self.width})")
        return self._times(0, x).reshape(*x.shape[:2], self.angles, self.detectors)

    def _adjoint(self, z: Tensor) -> Tensor:
        if z.ndim != 4 or z.shape[2:] != (self.angles, self.detectors):
            raise InputError("z", f"shape {shape_of(z)}", f"shape (B, C, {self.angles}, {self.detectors})")
        return self._times(1, z).reshape(*z.shape[:2], self.height, self.width)

    def _times(self, which: int, x: Tensor) -> Tensor:
        """Each image or sinogram times A (0) or A' (1), `(B C, ...)`."""
        key = (x.dtype, x.device)
        if key not in self._matrices:
            self._matrices[key] = self._matrices_of(x.dtype, x.device)
        return (self._matrices[key][which] @ x.reshape(x.shape[0] * x.shape[1], -1).T).T.contiguous()

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
        angle = torch.arange(self.angles, dtype=torch.float64)[:, None, None] * (math.pi / self.angles)
        v = (self.height - 1) / 2 - torch.arange(self.height, dtype=torch.float64)[:, None]
        h = torch.arange(self.width, dtype=torch.float64)[None, :] - (self.width - 1) / 2
        seen = (h * torch.cos(angle) + v * torch.sin(angle)).flatten(1) + (self.detectors - 1) / 2
        first = seen.floor()
        share = seen - first
        row = first.long() + self.detectors * torch.arange(self.angles)[:, None]
        column = torch.arange(self.height * self.width).expand_as(row)
        values = torch.stack([1 - share, share]) / math.sqrt(self.angles)
        return torch.stack([row, row + 1]).flatten(), torch.stack([column, column]).flatten(), values.flatten()


def _compressed(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The sparse matrix of these entries, row by row."""
    order = torch.argsort(rows * shape[1] + columns)
    starts = torch.zeros(shape[0] + 1, dtype=torch.int64)
    starts[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
    return torch.sparse_csr_tensor(
        starts.int(), columns[order].int(), values[order], tuple(shape), check_invariants=True
    )


class Stacked(LinearOperator):
    """x `(B, C, H, W)` to (Kx, scale Ax), K the differences and A the measurement, in one array `(B, C, n)`.

    `split` gives the two parts as views `(B, C, 2, H, W)` and `(B, C, ...)`, `join` puts them together.
    """

    def __init__(
        self, differences: FiniteDifferences, forward: LinearOperator, measured: torch.Size, scale: float
    ) -> None:
        self.differences, self.forward, self.scale = differences, forward, scale
        self.measured = tuple(measured)
        self._cut = 2 * differences.height * differences.width

    @cached_property
    def norm(self) -> float:
        return math.hypot(self.differences.norm, self.scale * self.forward.norm)

    @property
    def roundings(self) -> float:
        return self.differences.roundings + self.forward.roundings + 2.0

    def split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The differences `(B, C, 2, H, W)` and the measurements of z `(B, C, n)`, as views of it."""
        size = (self.differences.height, self.differences.width)
        return z[..., : self._cut].view(*z.shape[:2], 2, *size), z[..., self._cut :].view(*z.shape[:2], *self.measured)

    def join(self, differences: Tensor, measurements: Tensor) -> Tensor:
        """Both in one array `(B, C, n)`."""
        return torch.cat([differences.flatten(2), measurements.flatten(2)], dim=2)

    def _apply(self, x: Tensor) -> Tensor:
        self.differences.check("x", x)
        z = x.new_empty(*x.shape[:2], self._cut + math.prod(self.measured))
        differences, measurements = self.split(z)
        self.differences.write(x, differences)
        torch.mul(self.forward(x), self.scale, out=measurements)
        return z

    def _adjoint(self, z: Tensor) -> Tensor:
        differences, measurements = self.split(z)
        x = self.differences.adjoint(differences)
        return x.add_(self.forward.adjoint(measurements), alpha=self.scale)
