"""Convert arrays of any layout, dtype and unit to batches of images, and back."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.core.checks import check_memory, check_readable
from lmd.errors import InputError, PictureWarning

MAX_ROUNDING = 1e-5  # a solve is in float64 if rounding to float32 exceeds this share of the range of the numbers
WHITE = {torch.uint8: 255, torch.uint16: 65535}  # the numbers that stand for white, which is the pixel 1.0
MAX_EXACT = 2.0**53  # float64 represents all whole numbers up to this one
NUM_COPIES = 8  # a solve needs memory for at least this number of arrays of the size of the image
COLOURS = (3, 4)  # the possible numbers of channels of a colour picture; the fourth is alpha


@dataclass(frozen=True)
class Axes:
    """The batch axis and the channel axis of an array; all other axes are spatial."""

    batch: int | None
    channel: int | None
    has_alpha: bool = False  # whether the last channel is alpha, which is returned unchanged


Axis = int | str | Axes | None


@dataclass(frozen=True)
class Units:
    """The units of an array: its numbers are centre + unit * z = white * p.

    Weights, results and certificates refer to the pixels p: from 0 to 1 for pictures of bytes, otherwise the numbers of
    the array. The solver works with z, which is about 1, so that float32 suffices for images far from 0.
    """

    centre: float = 0.0
    unit: float = 1.0
    white: float = 1.0

    @classmethod
    def of(cls, low: float, high: float, centred: bool = True, white: float = 1.0) -> Units:
        """Return the units for numbers from `low` to `high`, with a unit that is a power of two.

        The unit is `white` rounded up to a power of two, unless the numbers are much larger or smaller. Images far from
        0 are centred if `centred` is true. Whole numbers of 16 bits have no rounding in float32 in these units.

        >>> Units.of(0.0, 1.0), Units.of(1000.0, 1000.5)
        (Units(centre=0.0, unit=1.0, white=1.0), Units(centre=1000.25, unit=0.25, white=1.0))
        """
        most, width, usual = max(abs(low), abs(high)), high / 2 - low / 2, 2.0 ** math.ceil(math.log2(white))
        if width == 0:
            return cls(low if centred else 0.0, usual, white)
        centre = low + width if centred and width < most / 16 else 0.0
        size = width if centre else most
        is_moderate = 1e-2 <= size / usual <= 1e2 and not centre
        return cls(centre, usual if is_moderate else 2.0 ** math.floor(math.log2(size)), white)

    @cached_property
    def scale(self) -> float:
        """The factor from differences of z to differences of p."""
        return self.unit / self.white

    @cached_property
    def is_plain(self) -> bool:
        """Whether the solver works in the units of the pixels."""
        return self.centre == 0 and self.unit == self.white

    def to_solver(self, pixels: Tensor) -> Tensor:
        """Return z for pixels p."""
        return pixels if self.is_plain else (pixels * self.white - self.centre) / self.unit

    def to_pixels(self, z: Tensor) -> Tensor:
        """Return the pixels p for z."""
        return z if self.is_plain else (z * self.unit + self.centre) / self.white


@dataclass(frozen=True)
class Batch:
    """An array as a batch of images `(B, C, *size)`."""

    array: Any  # the original array
    given: Tensor  # the original array as a tensor
    axes: Axes
    units: Units
    images: Tensor  # z (see `Units`) in float32 or float64
    exact_dtype: torch.dtype  # a dtype that holds the original numbers without rounding
    is_exact: bool  # whether `images` are the original numbers without rounding, up to units

    @cached_property
    def exact(self) -> Tensor:
        """The pixels `(B, C, *size)` without rounding."""
        if self.is_exact and self.units.is_plain:
            return self.images
        numbers = move(self.given.to(self.exact_dtype), self.axes)
        return numbers / self.units.white if self.units.white > 1 else numbers

    def back(self, z: Tensor) -> Any:
        """Convert a tensor like `images` to an array of the kind, shape and dtype of the original array."""
        given, axis, units = self.given, self.axes.channel, self.units
        numbers = z
        if not units.is_plain:
            numbers = (z if self.is_exact else z.to(self.exact_dtype)) * units.unit + units.centre
        numbers = numbers if self.axes.batch is not None else numbers[0]
        moved = numbers[0] if axis is None else numbers.movedim(1 if self.axes.batch is not None else 0, axis)
        out = _as_dtype(moved, given.dtype).to(given.device)
        if self.axes.has_alpha and axis is not None:
            out = torch.cat([out, given.narrow(axis, COLOURS[0], 1)], dim=axis)
        if isinstance(self.array, Tensor):
            return out
        return out.contiguous().numpy().astype(self.array.dtype, copy=False)

    def pixels(self, z: Tensor) -> Tensor:
        """Return the pixels for a tensor like `images`, in float64 unless `images` are the pixels themselves."""
        return z if self.is_exact and self.units.is_plain else self.units.to_pixels(z.double())

    def as_map(self, array: Tensor) -> Tensor | None:
        """Return an array with a number per pixel as `(B, 1 or C, *size)`, or None if the shape does not fit.

        A number per difference gives an additional axis of length `len(size)` before the size.
        """
        shape, size = tuple(self.given.shape), tuple(self.images.shape[2:])
        if tuple(array.shape) == shape:
            return move(array, self.axes)
        if tuple(array.shape) in (size, (len(size), *size)):
            return array[None, None].expand(len(self.images), *(-1,) * (array.ndim + 1))
        if tuple(array.shape) == (len(size), *shape):
            return torch.stack([move(each, self.axes) for each in array], dim=2)
        return None


def as_batch(
    argument: str,
    array: Any,
    channel_axis: Axis = "auto",
    dtype: torch.dtype = torch.float32,
    centred: bool = True,
) -> Batch:
    """Convert a NumPy array or tensor of any dtype and layout to a batch with images `(B, C, *size)`.

    Args:
        argument: The name of the array in messages.
        array: The array or tensor.
        channel_axis: The axis of the channels, or None if there is none. "auto" looks at the shape. Three axes are
            `(H, W, 3 or 4)`; otherwise a tensor is `(C, H, W)` if C is 1, 3 or 4, else `(B, C, N)`, and a NumPy array
            is a volume. Four or five axes are `(B, H, W, 3 or 4)` or `(B, C, ...)`. The last of four channels of a
            single picture is alpha, which is not part of the images.
        dtype: float32 or float64, the dtype of the images. It becomes float64 if rounding to float32 is too coarse.
        centred: Whether images far from 0 may be shifted towards 0.

    >>> as_batch("image", np.zeros((8, 9, 3), np.uint8)).images.shape
    torch.Size([1, 3, 8, 9])
    >>> as_batch("image", np.zeros((8, 9, 10))).images.shape
    torch.Size([1, 1, 8, 9, 10])
    """
    if isinstance(array, (np.ndarray, Tensor)):
        check_memory(argument, f"shape {tuple(array.shape)}", NUM_COPIES * math.prod(array.shape) * dtype.itemsize)
    given = as_tensor(argument, array).detach()
    axes = find_axes(argument, tuple(given.shape), isinstance(array, Tensor), channel_axis)
    white, has_few_digits = float(WHITE.get(given.dtype, 1)), given.dtype.is_floating_point and given.itemsize < 8
    exact_dtype = torch.float32 if has_few_digits else torch.float64
    numbers = move(given.to(torch.float32 if white > 1 else exact_dtype), axes)
    low, high = torch.stack(torch.aminmax(numbers)).tolist()  # NaN if a pixel is NaN
    if not (math.isfinite(low) and math.isfinite(high)):
        share = f"{int((~torch.isfinite(numbers)).sum())} of {numbers.numel()} numbers that are not finite"
        accepted = "finite numbers; lmd.inpaint(..., mask=isfinite(image)), or `lmd solve inpaint`, fills pixels in"
        raise InputError(argument, share, accepted)
    units = Units.of(low, high, centred, white)
    size = max(abs(low - units.centre), abs(high - units.centre))
    if exact_dtype == torch.float64 and torch.finfo(dtype).eps * size > MAX_ROUNDING * (high - low):
        dtype = torch.float64
    images = numbers if units.is_plain else (numbers - units.centre) / units.unit
    is_exact = white > 1 or (units.is_plain and dtype == exact_dtype)
    return Batch(array, given, axes, units, images.to(dtype).contiguous(), exact_dtype, is_exact)


def fill_lost(image: Any, mask: Any, channel_axis: Axis) -> tuple[Any, Tensor]:
    """Return the image with all lost pixels replaced by one number in the range of the kept pixels, and the mask.

    The `mask` has the shape of the image, with or without the channel axis. It is returned as booleans
    `(B, C or 1, *size)`.
    """
    if not isinstance(image, (np.ndarray, Tensor)):
        raise InputError("image", type(image).__name__, "a numpy array or torch tensor of real numbers")
    if isinstance(image, Tensor):
        as_tensor("image", image)
    kept = _as_mask(mask)
    axes = find_axes("image", tuple(image.shape), isinstance(image, Tensor), channel_axis)
    size = [length for axis, length in enumerate(image.shape) if axis not in (axes.batch, axes.channel)]
    if tuple(kept.shape) == tuple(image.shape):
        kept, full = move(kept, axes), kept
    elif list(kept.shape) == size:
        channels = kept if axes.channel is None else kept.unsqueeze(axes.channel - (axes.batch is not None))
        full = channels.expand(image.shape)
        kept = kept[None, None].expand(image.shape[0] if axes.batch is not None else 1, 1, *size)
    else:
        raise InputError("mask", f"shape {tuple(kept.shape)}", f"shape {tuple(image.shape)} or {tuple(size)}")
    if axes.has_alpha and axes.channel is not None:  # alpha is kept unchanged
        full = full.clone()
        full.select(axes.channel, -1).fill_(True)
    numbers = image.detach().double().cpu().numpy() if isinstance(image, Tensor) else image
    where = full.numpy()
    _check_kept(numbers, where)
    kept_numbers = numbers[where] if numbers.dtype.kind in "buif" else np.zeros(1)
    finite = kept_numbers[np.isfinite(kept_numbers)]  # lost pixels get the number in this range nearest to 0
    fill = min(max(0.0, float(finite.min())), float(finite.max())) if finite.size else 0.0
    fill = fill if abs(fill) <= MAX_EXACT else 0.0  # rounding a larger one may exceed the range of the dtype
    if isinstance(image, Tensor):
        return torch.where(full.to(image.device), image, torch.full_like(image, fill)), kept
    return np.where(where, image, np.full_like(image, fill)), kept


def _as_mask(mask: Any) -> Tensor:
    """Return a mask as a boolean tensor that is true at numbers other than 0."""
    try:
        given = mask if isinstance(mask, Tensor) else torch.from_numpy(np.array(mask))
    except (TypeError, ValueError):
        raise InputError("mask", type(mask).__name__, "an array of numbers, not 0 where a pixel is kept") from None
    given = check_readable("mask", given).detach().cpu()
    if given.is_floating_point() and (lost := int(given.isnan().sum())):
        raise InputError("mask", f"{lost} of {given.numel()} numbers that are NaN", "0 for lost pixels, 1 for others")
    return given != 0


def _check_kept(image: np.ndarray, kept: np.ndarray) -> None:
    """Raise if a mask keeps nothing or looks inverted: it keeps few pixels of one value, and lost pixels vary."""
    if not kept.any():
        raise InputError("mask", "0 everywhere", "numbers that are not 0 where a pixel is kept")
    share = float(kept.mean())
    if share < 0.5 and image.dtype.kind in "uif" and _range(image[kept]) <= 0.02 * _range(image[~kept]):
        given = f"one that keeps {100 * share:.2g}% of the pixels, all of one value, while the others vary"
        raise InputError("mask", given, "not 0 where a pixel is kept: is it inverted?")


def _range(numbers: np.ndarray) -> float:
    finite = numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers
    return float(finite.max()) - float(finite.min()) if finite.size else 0.0


def as_tensor(argument: str, array: Any) -> Tensor:
    """Return an array as a tensor; raise if it does not hold readable real numbers."""
    if isinstance(array, Tensor):
        check_readable(argument, array)
        given = array
    elif isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise InputError(argument, "an array with masked entries", f"lmd.inpaint({argument}.data, ~{argument}.mask)")
    elif isinstance(array, np.ndarray) and array.dtype.kind in "buif":
        wide = array.astype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array
        plain = np.ascontiguousarray(wide.astype(wide.dtype.newbyteorder("="), copy=False))
        upright = plain.flags.writeable and min(plain.strides, default=0) >= 0  # axes of length 1 may have stride < 0
        given = torch.from_numpy(plain if upright else plain.copy())
    else:
        kind = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(argument, kind, "a numpy array or torch tensor of real numbers")
    if given.is_complex():
        raise InputError(argument, f"a tensor of {given.dtype}", "a numpy array or torch tensor of real numbers")
    if given.numel() == 0:
        raise InputError(argument, f"shape {tuple(given.shape)}", "at least one pixel")
    if given.requires_grad and torch.is_grad_enabled():
        layers = "for derivatives there are lmd.nn.TVLayer and lmd.solve(..., differentiable=True)"
        raise InputError(argument, "a tensor that requires gradients", f"{argument}.detach(); {layers}")
    if given.dtype in (torch.int64, torch.uint64) and (most := float(given.double().abs().max())) > MAX_EXACT:
        raise InputError(argument, f"whole numbers of {most:.2g}", "at most 2^53, which float64 can tell apart")
    return given


def find_axes(argument: str, shape: tuple[int, ...], torch_tensor: bool, channel_axis: Axis) -> Axes:
    """Return the batch axis and the channel axis as in `as_batch`; `Axes` are returned unchanged."""
    count = len(shape)
    if isinstance(channel_axis, Axes):
        return channel_axis
    batch: int | None = None
    if channel_axis is None or (isinstance(channel_axis, int) and not isinstance(channel_axis, bool)):
        channel = channel_axis
        if channel is not None and not -count <= channel < count:
            raise InputError("channel_axis", channel_axis, f"an axis of an array of shape {shape}, None or 'auto'")
        if not 1 <= count - (channel is not None) <= 3:
            raise InputError(argument, f"shape {shape}", "one, two or three axes beside that of the channels")
        channel = None if channel is None else channel % count
    elif channel_axis != "auto":
        raise InputError("channel_axis", repr(channel_axis), "an axis, None or 'auto'")
    elif 1 <= count <= 2:
        channel = None
    elif count == 3:
        batch, channel = _three_axes(argument, shape, torch_tensor)
    elif count == 4 and shape[-1] in COLOURS and min(shape[1:3]) > COLOURS[-1]:
        batch, channel = 0, 3
    elif not 4 <= count <= 5 or (not torch_tensor and shape[1] > COLOURS[-1]):
        raise InputError(argument, f"shape {shape}", "a signal, image, volume or batch (B, C, ...); see channel_axis")
    else:
        batch, channel = 0, 1
    is_picture = batch is None and channel is not None and count == 3
    return Axes(batch, channel, is_picture and shape[channel or 0] == COLOURS[-1])


def _three_axes(argument: str, shape: tuple[int, ...], torch_tensor: bool) -> tuple[int | None, int | None]:
    """Return the batch axis and the channel axis of an array of three axes; raise if they are ambiguous."""
    last, first = min(shape[:2]) > COLOURS[-1], min(shape[1:]) > COLOURS[-1]
    if shape[2] in COLOURS and (last or not torch_tensor):
        return None, 2
    if torch_tensor and shape[0] in (1, *COLOURS) and first:
        return None, 0
    if not torch_tensor:
        if (shape[0] in (2, *COLOURS) and first) or (shape[2] == 2 and last):
            axis = 0 if first else -1
            accepted = f"channel_axis={axis} for a picture with {shape[axis]} channels, channel_axis=None for a volume"
            raise InputError(argument, f"an array of shape {shape}", accepted)
        return None, None
    if shape[1] > COLOURS[-1]:
        warn(
            f"{argument}: a tensor of shape {shape} is taken for {shape[0]} signals of {shape[1]} channels; pass "
            "channel_axis=None for a volume, (B, 1, H, W) for grey pictures"
        )
    return 0, 1


def warn(message: str) -> None:
    """Issue a warning that points to the line that called `lmd`."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("lmd."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, PictureWarning, stacklevel=level)


def move(x: Tensor, axes: Axes) -> Tensor:
    """Return an array as `(B, C, *size)`, without alpha."""
    x = x[None] if axes.channel is None else x.movedim(axes.channel, 1 if axes.batch is not None else 0)
    x = x if axes.batch is not None else x[None]
    return x[:, : COLOURS[0]] if axes.has_alpha else x


def _as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert numbers to this dtype: round and clamp them for whole numbers, compare with 0.5 for booleans."""
    if dtype.is_floating_point:
        return x.to(dtype)
    if dtype == torch.bool:
        return x >= 0.5
    if dtype in WHITE:
        return x.round().clamp_(0, WHITE[dtype]).to(dtype)
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return x.double().round().clamp(least, math.nextafter(most, 0) if most > 2**53 else most).to(dtype)
