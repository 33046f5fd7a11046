"""Arrays of any layout, dtype and unit as batches of images, and back."""

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

from lmd.core.checks import check_readable
from lmd.core.memory import check_memory
from lmd.errors import InputError, PictureWarning

MAX_ROUNDING = 1e-5  # numbers whose rounding is more than this share of their range are solved for in float64
WHITE = {torch.uint8: 255, torch.uint16: 65535}  # the numbers of pictures of 8 and 16 bits that stand for 1
MAX_EXACT = 2.0**53  # float64 holds all whole numbers up to this one
NUM_COPIES = 8  # arrays of the size of the image in the memory of a solve, at least
COLOURS = (3, 4)  # the numbers of channels of a colour picture; the last of four is alpha


@dataclass(frozen=True)
class Axes:
    """Which axis of an array holds the instances of a batch and which the channels; all others are of space."""

    batch: int | None
    channel: int | None
    has_alpha: bool = False  # whether the last channel says how opaque a pixel is, and is left as it is


Axis = int | str | Axes | None


@dataclass(frozen=True)
class Units:
    """The units of an array: its numbers are white * p, p = centre + unit * z.

    p are the pixels in which weights, results and certificates are given: from 0 to 1 for pictures of bytes, the
    array's own numbers otherwise. z, of about 1, is solved for: single precision has digits for images far from 0.
    """

    centre: float = 0.0
    unit: float = 1.0
    white: float = 1.0

    @classmethod
    def of(cls, low: float, high: float, centred: bool = True, white: float = 1.0) -> Units:
        """Return z = p where pixels from `low` to `high` are moderate, else a unit that is a power of two.

        Images far from 0 are centred, if they may be.

        >>> Units.of(0.0, 1.0), Units.of(1000.0, 1000.5)
        (Units(centre=0.0, unit=1.0, white=1.0), Units(centre=1000.25, unit=0.25, white=1.0))
        """
        most, width = max(abs(low), abs(high)), high / 2 - low / 2
        if width == 0:
            return cls(low if centred else 0.0, 1.0, white)
        centre = low + width if centred and width < most / 16 else 0.0
        size = width if centre else most
        is_moderate = 1e-2 <= size <= 1e2 and not centre
        return cls(centre, 1.0 if is_moderate else 2.0 ** math.floor(math.log2(size)), white)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the solver works in the units of the pixels."""
        return self.centre == 0 and self.unit == 1

    def to_solver(self, pixels: Tensor) -> Tensor:
        """Return z of pixels p."""
        return pixels if self.is_plain else (pixels - self.centre) / self.unit

    def to_pixels(self, z: Tensor) -> Tensor:
        """Return the pixels p of z."""
        return z if self.is_plain else z * self.unit + self.centre


@dataclass(frozen=True)
class Batch:
    """An array as a batch of images `(B, C, *size)`."""

    array: Any  # as it came in
    given: Tensor  # the same as a tensor
    axes: Axes
    units: Units
    images: Tensor  # z of the units, float32 or float64
    is_exact: bool  # whether the images are the pixels, without rounding

    @cached_property
    def exact(self) -> Tensor:
        """The pixels without rounding, computed when they are first asked for."""
        if self.is_exact:
            return self.images
        numbers = move(self.given.to(_exact_dtype(self.given)), self.axes)
        return numbers / self.units.white if self.units.white > 1 else numbers

    def back(self, z: Tensor) -> Any:
        """Return a tensor like `images` as an array of the kind, shape and dtype that came in."""
        given, axis = self.given, self.axes.channel
        if not self.is_exact and not (self.units.is_plain and self.units.white > 1):
            z = self.units.to_pixels(z.to(_exact_dtype(given)))
        numbers = z * self.units.white if self.units.white > 1 else z
        out = _as_dtype(_move_back(numbers, self.axes), given.dtype).to(given.device)
        if self.axes.has_alpha and axis is not None:
            out = torch.cat([out, given.narrow(axis, COLOURS[0], 1)], dim=axis)
        if isinstance(self.array, Tensor):
            return out
        return out.contiguous().numpy().astype(self.array.dtype, copy=False)

    def pixels(self, z: Tensor) -> Tensor:
        """Return the pixels of a tensor like `images`, in float64 where they were not solved for as they are."""
        return z if self.is_exact else self.units.to_pixels(z.double())

    def as_map(self, array: Tensor) -> Tensor | None:
        """Return an array with a number for each pixel as `(B, 1 or C, *size)`.

        With one for each difference there is an axis before the size. None where its shape fits neither.
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
    """Return a numpy array or torch tensor of any dtype and layout as images `(B, C, *size)` of this `dtype`.

    Args:
        argument: The name of the array in messages.
        array: The array or tensor.
        channel_axis: The axis of the channels, None where there is none. "auto": of three axes the last one, if it has
            length 3 or 4, of a torch tensor else the first one, if it has length 1, 3 or 4; of a numpy array of three
            axes else none. Other torch tensors, and arrays of four and more axes, are `(B, C, ...)`, or `(B, H, W, 3)`.
            The last of four channels of a picture is alpha: it is left as it is, and not part of the images.
        dtype: float32 or float64. Whole numbers of 8 and 16 bits without a sign are divided by their largest in this
            dtype; others stay as they are.
        centred: Whether images far from 0 may be moved there.

    >>> as_batch("image", np.zeros((8, 9, 3), np.uint8)).images.shape
    torch.Size([1, 3, 8, 9])
    >>> as_batch("image", np.zeros((8, 9, 10))).images.shape
    torch.Size([1, 1, 8, 9, 10])
    """
    if isinstance(array, (np.ndarray, Tensor)):
        check_memory(argument, f"shape {tuple(array.shape)}", NUM_COPIES * math.prod(array.shape) * dtype.itemsize)
    given = as_tensor(argument, array).detach()
    axes = find_axes(argument, tuple(given.shape), isinstance(array, Tensor), channel_axis)
    white, exact_dtype = float(WHITE.get(given.dtype, 1)), _exact_dtype(given)
    numbers = move(given.to(torch.float32 if white > 1 else exact_dtype), axes)
    low, high = torch.stack(torch.aminmax(numbers)).tolist()  # NaN where a pixel is
    if not (math.isfinite(low) and math.isfinite(high)):
        share = f"{int((~torch.isfinite(numbers)).sum())} of {numbers.numel()} numbers that are not finite"
        accepted = "finite numbers; lmd.inpaint(..., mask=isfinite(image)), or `lmd solve inpaint`, fills pixels in"
        raise InputError(argument, share, accepted)
    low, high = low / white, high / white
    units = Units.of(low, high, centred, white)
    size = max(abs(low - units.centre), abs(high - units.centre))
    if exact_dtype == torch.float64 and torch.finfo(dtype).eps * size > MAX_ROUNDING * (high - low):
        dtype = torch.float64
    if white > 1:  # a quotient of float32 numbers is the rounded pixel
        numbers = numbers.to(dtype if units.is_plain else torch.float64) / white
    pixels = numbers if units.is_plain else units.to_solver(numbers)
    return Batch(array, given, axes, units, pixels.to(dtype).contiguous(), units.is_plain and dtype == exact_dtype)


def _exact_dtype(given: Tensor) -> torch.dtype:
    """Return the dtype that holds pixels without rounding: float32 for floats of fewer digits."""
    return torch.float32 if given.dtype.is_floating_point and given.dtype != torch.float64 else torch.float64


def fill_lost(image: Any, mask: Any, channel_axis: Axis) -> tuple[Any, Tensor]:
    """Replace lost pixels, which may hold anything, by one number in the range of the kept ones.

    The `mask`, of the shape of the image, with or without the axis of channels, comes back as booleans
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
    if axes.has_alpha and axes.channel is not None:  # which stays as it is
        full = full.clone()
        full.select(axes.channel, -1).fill_(True)
    numbers = image.detach().double().cpu().numpy() if isinstance(image, Tensor) else image
    where = full.numpy()
    _check_kept(numbers, where)
    fill = _nearest_to_zero(numbers[where])
    if isinstance(image, Tensor):
        return torch.where(full.to(image.device), image, torch.full_like(image, fill)), kept
    return np.where(where, image, np.full_like(image, fill)), kept


def _as_mask(mask: Any) -> Tensor:
    """Return where a mask is not 0."""
    try:
        given = mask if isinstance(mask, Tensor) else torch.from_numpy(np.array(mask))
    except (TypeError, ValueError):
        raise InputError("mask", type(mask).__name__, "an array of numbers, not 0 where a pixel is kept") from None
    given = check_readable("mask", given).detach().cpu()
    if given.is_floating_point() and (lost := int(given.isnan().sum())):
        raise InputError("mask", f"{lost} of {given.numel()} numbers that are NaN", "0 for lost pixels, 1 for others")
    return given != 0


def _nearest_to_zero(kept: np.ndarray) -> float:
    """Return 0, or the end of the range of the kept pixels next to it, so that lost pixels do not change the range."""
    numbers = kept[np.isfinite(kept)] if kept.dtype.kind in "buif" else kept[:0]
    found = min(max(0.0, float(numbers.min())), float(numbers.max())) if numbers.size else 0.0
    return found if abs(found) <= MAX_EXACT else 0.0  # larger ones may be rounded to what their dtype does not hold


def _check_kept(image: np.ndarray, kept: np.ndarray) -> None:
    """Raise where a mask keeps nothing, or looks inverted: few pixels, all of one colour, while the lost ones vary."""
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
    """Return an array of real numbers that can be read as a tensor."""
    if isinstance(array, Tensor):
        check_readable(argument, array)
        given = array
    elif isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise InputError(argument, "an array with masked entries", f"lmd.inpaint({argument}.data, ~{argument}.mask)")
    elif isinstance(array, np.ndarray) and array.dtype.kind in "buif":
        wide = array.astype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array
        plain = np.ascontiguousarray(wide.astype(wide.dtype.newbyteorder("="), copy=False))
        upright = plain.flags.writeable and min(plain.strides, default=0) >= 0  # an axis of one entry may go backwards
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
    """Return which axes are what, see `as_batch`; `Axes` are returned as they are."""
    count = len(shape)
    if isinstance(channel_axis, Axes):
        return channel_axis
    if channel_axis is None or (isinstance(channel_axis, int) and not isinstance(channel_axis, bool)):
        if channel_axis is not None and not -count <= channel_axis < count:
            raise InputError("channel_axis", channel_axis, f"an axis of an array of shape {shape}, None or 'auto'")
        space = count - (channel_axis is not None)
        if not 1 <= space <= 3:
            raise InputError(argument, f"shape {shape}", "one, two or three axes beside that of the channels")
        return Axes(None, None) if channel_axis is None else _picture(shape, channel_axis % count)
    if channel_axis != "auto":
        raise InputError("channel_axis", repr(channel_axis), "an axis, None or 'auto'")
    if count <= 2 and count > 0:
        return Axes(None, None)
    if count == 3:
        return _three_axes(argument, shape, torch_tensor)
    if count == 4 and shape[-1] in COLOURS and min(shape[1:3]) > COLOURS[-1]:
        return Axes(0, 3)
    if not 4 <= count <= 5 or (not torch_tensor and shape[1] > COLOURS[-1]):
        raise InputError(argument, f"shape {shape}", "a signal, image, volume or batch (B, C, ...); see channel_axis")
    return Axes(0, 1)


def _three_axes(argument: str, shape: tuple[int, ...], torch_tensor: bool) -> Axes:
    """Return those of an array of three axes, where one reading makes sense."""
    last, first = min(shape[:2]) > COLOURS[-1], min(shape[1:]) > COLOURS[-1]
    if shape[2] in COLOURS and (last or not torch_tensor):
        return _picture(shape, 2)
    if torch_tensor and shape[0] in (1, *COLOURS) and first:
        return _picture(shape, 0)
    if not torch_tensor:
        if (shape[0] in (2, *COLOURS) and first) or (shape[2] == 2 and last):
            axis = 0 if first else -1
            accepted = f"channel_axis={axis} for a picture with {shape[axis]} channels, channel_axis=None for a volume"
            raise InputError(argument, f"an array of shape {shape}", accepted)
        return Axes(None, None)
    if shape[1] > COLOURS[-1]:
        warn(
            f"{argument}: a tensor of shape {shape} is taken for {shape[0]} signals of {shape[1]} channels; pass "
            "channel_axis=None for a volume, (B, 1, H, W) for grey pictures"
        )
    return Axes(0, 1)


def _picture(shape: tuple[int, ...], channel: int) -> Axes:
    """Return the axes of one picture; the last of its four channels is alpha."""
    return Axes(None, channel, len(shape) == 3 and shape[channel] == COLOURS[-1])


def warn(message: str) -> None:
    """Warn at the line that called `lmd`."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("lmd."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, PictureWarning, stacklevel=level)


def move(x: Tensor, axes: Axes) -> Tensor:
    """Return an array as `(B, C, *size)`, without alpha."""
    x = x[None] if axes.channel is None else x.movedim(axes.channel, 1 if axes.batch is not None else 0)
    x = x if axes.batch is not None else x[None]
    return x[:, : COLOURS[0]] if axes.has_alpha else x


def _move_back(x: Tensor, axes: Axes) -> Tensor:
    x = x if axes.batch is not None else x[0]
    return x[0] if axes.channel is None else x.movedim(1 if axes.batch is not None else 0, axes.channel)


def _as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers of this dtype: whole ones by rounding, within their range; the nearer one of booleans."""
    if dtype.is_floating_point:
        return x.to(dtype)
    if dtype == torch.bool:
        return x >= 0.5
    if dtype in WHITE:
        return x.round().clamp_(0, WHITE[dtype]).to(dtype)
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return x.double().round().clamp(least, math.nextafter(most, 0) if most > 2**53 else most).to(dtype)
