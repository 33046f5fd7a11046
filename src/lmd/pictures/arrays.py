"""Arrays as people have them: which axis is what, in which numbers, and the way back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.checks import check_readable
from lmd.data.memory import check_memory
from lmd.errors import InputError

WHITE = {torch.uint8: 255, torch.uint16: 65535}
"""What pictures of whole numbers call 1."""

WIDE, EXACT = (torch.int64, torch.uint64), 2.0**53
"""Whole numbers that float64 may not hold, and up to what it does."""

LARGE, COPIES = 1 << 24, 8
"""Arrays of more numbers are looked at before they are copied: a solve needs as many arrays of their size, at least."""

COLOURS = (3, 4)
"""How many channels the last axis of a colour picture has."""


@dataclass(frozen=True)
class Axes:
    """Which axis of an array holds the instances of a batch and which the channels; all others are of space."""

    batch: int | None
    channel: int | None


Axis = int | str | Axes | None


@dataclass(frozen=True)
class Units:
    """Pixels are centre + unit z, z of about 1: so that single precision has digits for images far from 0."""

    centre: float
    unit: float

    @classmethod
    def of(cls, low: float, high: float, centred: bool = True) -> Units:
        """No change where values from `low` to `high` are moderate, else the middle of them, and a power of two.

        >>> Units.of(0.0, 1.0), Units.of(1000.0, 1000.5)
        (Units(centre=0.0, unit=1.0), Units(centre=1000.25, unit=0.25))
        """
        most, width = max(abs(low), abs(high)), high / 2 - low / 2
        if width == 0:
            return cls(low if centred else 0.0, 1.0)
        centre = low + width if centred and width < most / 16 else 0.0
        size = width if centre else most
        return (
            cls(centre, 1.0) if 1e-2 <= size <= 1e2 and not centre else cls(centre, 2.0 ** math.floor(math.log2(size)))
        )


@dataclass(frozen=True)
class Batch:
    """An array as a batch of images `(B, C, *size)`, and how to give an answer the form that the array had."""

    images: Tensor
    """In `units`, float32 or float64."""

    units: Units
    back: Callable[[Tensor], Any]
    """From a tensor like `images` to an array of the kind, shape and dtype that came in."""

    exact: Tensor
    """The images in the array's own units, bytes as numbers from 0 to 1: `images` itself where nothing was rounded."""

    white: float
    """What the array's own numbers are divided by first: 255 for bytes, 1 for numbers that are as they are."""

    axes: Axes
    """Which of the array's axes are what."""

    def as_map(self, array: Tensor) -> Tensor | None:
        """An array with a number for each pixel as `(B, 1 or C, *size)`, for each difference with an axis before the
        size; None where its shape fits neither."""
        images, size = self.images, tuple(self.images.shape[2:])
        shape = tuple(_move_back(images, self.axes).shape)
        if tuple(array.shape) == shape:
            return move(array, self.axes)
        if tuple(array.shape) in (size, (len(size), *size)):
            return array[None, None].expand(len(images), *(-1,) * (array.ndim + 1))
        if tuple(array.shape) == (len(size), *shape):
            return torch.stack([move(each, self.axes) for each in array], dim=2)
        return None

    def own(self, x: Tensor) -> Tensor:
        """A tensor like `images` in the array's own units, and in float64 if that is not what it was solved in."""
        return x if self.exact is self.images else x.double() * self.units.unit + self.units.centre


def as_batch(
    argument: str,
    array: Any,
    channel_axis: Axis = "auto",
    dtype: torch.dtype = torch.float32,
    centred: bool = True,
) -> Batch:
    """A numpy array or torch tensor of any dtype and layout as images `(B, C, *size)` of this `dtype`.

    `channel_axis` is the axis of the channels, None where there is none. "auto": of a numpy array of three axes the
    last one, if it has length 3 or 4, and else none; torch tensors, and numpy arrays of four and more axes, are
    `(B, C, ...)`. `centred` says that images far from 0 may be moved there. Whole numbers of 8 and 16 bits without a
    sign are divided by their largest; others stay as they are.

    >>> as_batch("image", np.zeros((8, 9, 3), np.uint8)).images.shape
    torch.Size([1, 3, 8, 9])
    >>> as_batch("image", np.zeros((8, 9, 10))).images.shape
    torch.Size([1, 1, 8, 9, 10])
    """
    if isinstance(array, (np.ndarray, Tensor)) and (count := math.prod(array.shape)) > LARGE:
        check_memory(argument, f"shape {tuple(array.shape)}", COPIES * count * dtype.itemsize)
    given = as_tensor(argument, array)
    axes = find_axes(argument, tuple(given.shape), isinstance(array, Tensor), channel_axis)
    white = float(WHITE.get(given.dtype, 1))
    plain = given.detach()
    plain = plain.float() if plain.dtype.is_floating_point and plain.dtype != torch.float64 else plain.double()
    low, high = (float(end) / white for end in torch.aminmax(plain))  # of a tensor with a NaN they are that
    if not (math.isfinite(low) and math.isfinite(high)):
        share = f"{int((~torch.isfinite(plain)).sum())} of {plain.numel()} numbers that are not finite"
        raise InputError(argument, share, "finite numbers; to fill pixels in, lmd.inpaint(..., mask=isfinite(image))")
    exact = move(plain / white if white > 1 else plain, axes)
    units = Units.of(low, high, centred)
    images = ((exact - units.centre) / units.unit if units != Units(0.0, 1.0) else exact).to(dtype).contiguous()
    same = units == Units(0.0, 1.0) and dtype == exact.dtype

    def back(x: Tensor) -> Any:
        values = (x.to(exact.dtype) * units.unit + units.centre) * white if white > 1 or not same else x
        out = _as_dtype(_move_back(values, axes), given.dtype).to(given.device)
        return out if isinstance(array, Tensor) else out.contiguous().numpy().astype(array.dtype, copy=False)

    return Batch(images, units, back, images if same else exact, white, axes)


def nearest_to_zero(kept: np.ndarray) -> float:
    """What lost pixels are set to, so that the range stays that of the kept ones: 0, or the end of it next to 0."""
    numbers = kept[np.isfinite(kept)] if kept.dtype.kind in "buif" else kept[:0]
    found = min(max(0.0, float(numbers.min())), float(numbers.max())) if numbers.size else 0.0
    return found if abs(found) <= EXACT else 0.0  # what is more may have been rounded to what its dtype does not hold


def as_tensor(argument: str, array: Any) -> Tensor:
    """An array of real numbers that can be read, as a tensor."""
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
        accepted = (
            f"{argument}.detach(); for derivatives there are lmd.nn.TVLayer and lmd.solve(..., differentiable=True)"
        )
        raise InputError(argument, "a tensor that requires gradients", accepted)
    if given.dtype in WIDE and float(given.double().abs().max()) > EXACT:
        raise InputError(
            argument,
            f"whole numbers of {float(given.double().abs().max()):.2g}",
            "at most 2^53, which float64 can tell apart",
        )
    return given


def find_axes(argument: str, shape: tuple[int, ...], torch_tensor: bool, channel_axis: Axis) -> Axes:
    """Which axes are what; see `as_batch`. What is known already is left as it is."""
    count = len(shape)
    if isinstance(channel_axis, Axes):
        return channel_axis
    if channel_axis is None or (isinstance(channel_axis, int) and not isinstance(channel_axis, bool)):
        if channel_axis is not None and not -count <= channel_axis < count:
            raise InputError("channel_axis", channel_axis, f"an axis of an array of shape {shape}, None or 'auto'")
        space = count - (channel_axis is not None)
        if not 1 <= space <= 3:
            raise InputError(argument, f"shape {shape}", "one, two or three axes beside that of the channels")
        return Axes(None, None if channel_axis is None else channel_axis % count)
    if channel_axis != "auto":
        raise InputError("channel_axis", repr(channel_axis), "an axis, None or 'auto'")
    if count <= 2 and count > 0:
        return Axes(None, None)
    if count == 3 and not torch_tensor:
        return Axes(None, 2 if shape[2] in COLOURS else None)
    if count == 3 and shape[0] in (1, *COLOURS) and min(shape[1:]) > COLOURS[-1]:
        advice = "one image (C, H, W) with channel_axis=0, or a batch with all axes, (B, C, H, W) or (B, C, N)"
        raise InputError(argument, f"a tensor of shape {shape}", advice)
    if not 3 <= count <= 5 or (not torch_tensor and shape[1] > COLOURS[-1]):
        raise InputError(argument, f"shape {shape}", "a signal, image, volume or batch (B, C, ...); see channel_axis")
    return Axes(0, 1)


def move(x: Tensor, axes: Axes) -> Tensor:
    """To `(B, C, *size)`."""
    x = x[None] if axes.channel is None else x.movedim(axes.channel, 1 if axes.batch is not None else 0)
    return x if axes.batch is not None else x[None]


def _move_back(x: Tensor, axes: Axes) -> Tensor:
    x = x if axes.batch is not None else x[0]
    return x[0] if axes.channel is None else x.movedim(1 if axes.batch is not None else 0, axes.channel)


def _as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers by rounding, within their range; of booleans the nearer one."""
    if dtype.is_floating_point:
        return x.to(dtype)
    if dtype == torch.bool:
        return x >= 0.5
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return x.double().round().clamp(least, math.nextafter(most, 0) if most > 2**53 else most).to(dtype)
