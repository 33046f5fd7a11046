"""Blurs: convolutions of images with a kernel, and kernels to convolve with."""

from __future__ import annotations

import math
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from lmd import kernels
from lmd.core.checks import check_choice, check_count, check_finite, check_floating, check_positive, shape_of
from lmd.errors import InputError
from lmd.operators.base import LinearOperator, check_ending, norm_bound

BORDERS = ("circular", "replicate")

# Relative distance to rank one, per root of the number of entries, up to which a kernel is applied as column and row.
RANK_TOLERANCE = torch.finfo(torch.float64).eps

POINTS_PER_PIXEL = 16  # points of a motion for each pixel of its length


class Blur(LinearOperator):
    r"""(Ax)_{i,j} = \sum_{a,b} k_{a,b} x_{i + c - a, j + d - b}: convolution with a kernel k `(h, w)` about its middle.

    (c, d) = (h // 2, w // 2); x and Ax are `(B, ..., H, W)`. Past its borders, x wraps around ("circular") or repeats
    the pixel at the border ("replicate"). A kernel of rank one is applied as a column and a row; other kernels are
    applied entry by entry, without their zeros.

    Args:
        kernel: k `(h, w)`, at most as large as the images.
        height, width: H and W of the images.
        border: How images continue past their borders: "circular" or "replicate".
    """

    def __init__(self, kernel: Tensor, height: int, width: int, border: str = "circular") -> None:
        if check_finite("kernel", check_floating("kernel", kernel)).ndim != 2 or kernel.numel() == 0:
            raise InputError("kernel", f"shape {shape_of(kernel)}", "a matrix (h, w)")
        if not bool(kernel.any()):
            raise InputError("kernel", "only zeros", "a kernel with an entry that is not 0")
        self.kernel = kernel.detach().cpu().double()
        self.height, self.width = check_count("height", height), check_count("width", width)
        self.border = check_choice("border", border, BORDERS)
        if kernel.shape[0] > height or kernel.shape[1] > width:
            accepted = f"at most the size of the images ({height}, {width})"
            raise InputError("kernel", f"shape {shape_of(kernel)}", accepted)
        left, values, right = torch.linalg.svd(self.kernel)
        if float(values[1:].sum()) <= RANK_TOLERANCE * self.kernel.numel() ** 0.5 * float(values[0]):
            scale = float(values[0]) ** 0.5
            self._passes = [scale * left[:, :1], scale * right[:1]]
        else:
            self._passes = [self.kernel]
        flipped = [each.flip(0, 1) for each in self._passes]
        values = torch.cat([each[each != 0] for each in flipped]).float()
        places = torch.cat([each.nonzero() for each in flipped]).contiguous()
        self._taps = [values, places]  # for compiled code: entries that are not 0; a list is not copied to float64
        self._sizes = [size for each in flipped for size in (*each.shape, int(each.count_nonzero()))]

    @cached_property
    def norm(self) -> float:
        sizes = Blur(self.kernel.abs(), self.height, self.width, self.border)  # ||A|| <= || |A| ||
        return norm_bound(lambda v: sizes._adjoint(sizes._apply(v)), (1, 1, self.height, self.width))

    @property
    def roundings(self) -> float:
        """Entries are sums of at most h w products, a border adds at most h or w, and the norm is the norm of |A|.

        A column and a row make h + w products; the remainder R of the kernel changes Ax by at most
        sum |R| <= (h w)^(1/2) ||R||_F <= h w eps ||k||, and ||k|| is at most the norm.
        """
        return 2.0 * (self.kernel.numel() + sum(self.kernel.shape))

    @cached_property
    def spectrum(self) -> Tensor | None:
        if self.border != "circular":
            return None
        point = torch.zeros(1, 1, self.height, self.width, dtype=torch.float64, device="cpu")
        point[..., 0, 0] = 1
        return torch.fft.rfft2(self._apply(point))[0, 0].abs().square()

    def _apply(self, x: Tensor) -> Tensor:
        return self._blurred("x", x, adjoint=False)

    def _adjoint(self, z: Tensor) -> Tensor:
        return self._blurred("z", z, adjoint=True)

    def _blurred(self, argument: str, x: Tensor, adjoint: bool) -> Tensor:
        images = check_ending(argument, x, (self.height, self.width)).reshape(-1, self.height, self.width)
        # Compiled code cannot read the tensors of `torch.func`, which hold no numbers.
        if kernels.serves(images) and not torch._C._functorch.is_functorch_wrapped_tensor(images):
            images = images.detach().contiguous()
            out, circular = torch.empty_like(images), self.border == "circular"
            sizes = (*images.shape, circular, adjoint, len(self._passes), *self._sizes)
            kernels.call("blur", (images, *self._taps, out), (), sizes, threads=kernels.threads_for(images))
        else:
            out = images
            for taps in reversed(self._passes) if adjoint else self._passes:
                out = self._pass(out, taps, adjoint)
        return out.view(x.shape)

    def _pass(self, images: Tensor, taps: Tensor, adjoint: bool) -> Tensor:
        h, w = taps.shape
        margins = (w - 1 - w // 2, w // 2, h - 1 - h // 2, h // 2)  # left, right, top, bottom: past the borders
        widen = partial(pad, pad=margins, mode=self.border)
        if not adjoint:
            return _correlate(widen(images), taps)
        wide = _correlate(pad(images, (w - 1, w - 1, h - 1, h - 1)), taps.flip(0, 1))
        return torch.func.vjp(widen, images)[1](wide)[0]


def _correlate(x: Tensor, taps: Tensor) -> Tensor:
    """Sum shifted images `(n, H, W)`, weighted by the flipped kernel; `conv2d` takes longer in float64."""
    flipped, height, width = taps.flip(0, 1), x.shape[1] - len(taps) + 1, x.shape[2] - taps.shape[1] + 1
    out = x.new_zeros(len(x), height, width)
    for a, b in flipped.nonzero().tolist():
        out.add_(x[:, a : a + height, b : b + width], alpha=float(flipped[a, b]))
    return out


def gaussian_kernel(width: float, size: int | None = None) -> Tensor:
    """Return a Gaussian kernel of standard deviation `width` on `size` x `size` pixels, with sum 1.

    Args:
        width: The standard deviation in pixels, positive.
        size: The side of the kernel in pixels; None is 3 deviations to either side.

    Returns:
        The kernel `(size, size)`, in float64.
    """
    check_positive("width", width)
    size = 2 * math.ceil(3 * width) + 1 if size is None else check_count("size", size)
    at = torch.arange(size, dtype=torch.float64, device="cpu") - size // 2
    row = torch.exp(-0.5 * (at / width).square())
    row /= row.sum()
    return row[:, None] * row[None, :]


def motion_kernel(length: float, angle: float) -> Tensor:
    """Return the kernel, with sum 1, of a straight motion over `length` pixels at `angle`.

    Evenly spaced points on the line share their weight bilinearly between the four nearest pixels.

    Args:
        length: The length of the motion in pixels, positive.
        angle: The direction of the motion in radians: 0 is rightwards, pi / 2 upwards.

    Returns:
        The kernel, square and with an odd side, in float64.
    """
    if not (isinstance(angle, (int, float)) and math.isfinite(angle)):
        raise InputError("angle", repr(angle), "a finite number of radians")
    reach, points = math.ceil(check_positive("length", length) / 2), POINTS_PER_PIXEL * math.ceil(length)
    along = length * ((torch.arange(points, dtype=torch.float64, device="cpu") + 0.5) / points - 0.5)
    at = torch.arange(-reach, reach + 1, dtype=torch.float64, device="cpu")[:, None]
    rows, columns = ((1 - (at - place * along).abs()).clamp(min=0) for place in (-math.sin(angle), math.cos(angle)))
    return rows @ columns.T / points
