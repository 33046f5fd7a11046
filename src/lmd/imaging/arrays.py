"""Arrays as people have them: which axis is what, in which numbers, and the way back."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.core.checks import check_readable
from lmd.core.memory import check_memory
from lmd.errors import InputError, PictureWarning

MAX_LOSS = 1e-5
"""Numbers whose rounding is more than this share of their range are solved for in float64."""

WHITE = {torch.uint8: 255, torch.uint16: 65535}
"""What pictures of whole numbers call 1."""

WIDE, EXACT = (torch.int64, torch.uint64), 2.0**53
"""Whole numbers that float64 may not hold, and up to what it does."""

LARGE, COPIES = 1 << 24, 8
"""Arrays of more numbers are looked at before they are copied: a solve needs as many arrays of their size, at least."""

COLOURS = (3, 4)
"""How many channels a colour picture has; of four the last is alpha."""


@dataclass(frozen=True)
class Axes:
    """Which axis of an array holds the instances of a batch and which the channels; all others are of space."""

    batch: int | None
    channel: int | None
    has_alpha: bool = False
    """Whether the last channel says how opaque a pixel is, and is left as it is."""


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
        alpha = images[:, :1] if self.axes.has_alpha else images[:, :0]
        shape = tuple(_move_back(torch.cat([images, alpha], dim=1), self.axes).shape)
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

    `channel_axis` is the axis of the channels, None where there is none. "auto": of three axes the last one, if it has
    length 3 or 4, of a torch tensor else the first one, if it has length 1, 3 or 4; of a numpy array of three axes else
    none. Other torch tensors, and arrays of four and more axes, are `(B, C, ...)`, or `(B, H, W, 3)`. The last of four
    channels of a picture is alpha: it is left as it is, and not part of the images. `centred` says that images far
    from 0 may be moved there. Whole numbers of 8 and 16 bits without a sign are divided by their largest; others stay
    as they are.

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
    alpha = given.detach().select(axes.channel or 0, -1) if axes.has_alpha else None
    plain = given.detach() if alpha is None else given.detach().narrow(axes.channel or 0, 0, COLOURS[0])
    plain = plain.float() if plain.dtype.is_floating_point and plain.dtype != torch.float64 else plain.double()
    low, high = (float(end) / white for end in torch.aminmax(plain))  # of a tensor with a NaN they are that
    if not (math.isfinite(low) and math.isfinite(high)):
        share = f"{int((~torch.isfinite(plain)).sum())} of {plain.numel()} numbers that are not finite"
        raise InputError(argument, share, "finite numbers; to fill pixels in, lmd.inpaint(..., mask=isfinite(image))")
    exact = move(plain / white if white > 1 else plain, replace(axes, has_alpha=False))
    units = Units.of(low, high, centred)
    size = max(abs(low - units.centre), abs(high - units.centre))
    if exact.dtype == torch.float64 and torch.finfo(dtype).eps * size > MAX_LOSS * (high - low):
        dtype = torch.float64
    images = ((exact - units.centre) / units.unit if units != Units(0.0, 1.0) else exact).to(dtype).contiguous()
    same = units == Units(0.0, 1.0) and dtype == exact.dtype

    def back(x: Tensor) -> Any:
        values = (x.to(exact.dtype) * units.unit + units.centre) * white if white > 1 or not same else x
        out = _as_dtype(_move_back(values, axes), given.dtype).to(given.device)
        if alpha is not None and axes.channel is not None:
            out = torch.cat([out, alpha.unsqueeze(axes.channel)], dim=axes.channel)
        return out if isinstance(array, Tensor) else out.contiguous().numpy().astype(array.dtype, copy=False)

    return Batch(images, units, back, images if same else exact, white, axes)


def nearest_to_zero(kept: np.ndarray) -> float:
    """What lost pixels are set to, so that the range stays that of the kept ones: 0, or the end of it next to 0."""
    numbers = kept[np.isfinite(kept)] if kept.dtype.kind in "buif" else kept[:0]
    found = min(max(0.0, float(numbers.min())), float(numbers.max())) if numbers.size else 0.0
    return found if abs(found) <= EXACT else 0.0  # what is more may have been rounded to what its dtype does not hold


def check_kept(image: np.ndarray, kept: np.ndarray) -> None:
    """Raise where a mask keeps nothing, or looks inverted: few pixels, all of one colour, while the lost ones vary."""
    if not kept.any():
        raise InputError("mask", "0 everywhere", "numbers that are not 0 where a pixel is kept")
    share = float(kept.mean())
    if share < 0.5 and image.dtype.kind in "uif":
        ends = [_range(image[part]) for part in (kept, ~kept)]
        if ends[0] <= 0.02 * ends[1]:
            given = f"one that keeps {100 * share:.2g}% of the pixels, all of one value, while the others vary"
            raise InputError("mask", given, "not 0 where a pixel is kept: is it inverted?")


def _range(numbers: np.ndarray) -> float:
    finite = numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers
    return float(finite.max()) - float(finite.min()) if finite.size else 0.0


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
    """Those of an array of three axes, where one reading makes sense."""
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
    """One picture; the last of its four channels is alpha."""
    return Axes(None, channel, len(shape) == 3 and shape[channel] == COLOURS[-1])


def warn(message: str) -> None:
    """Warn at the line that called `lmd`."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("lmd."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, PictureWarning, stacklevel=level)


def move(x: Tensor, axes: Axes) -> Tensor:
    """To `(B, C, *size)`, without alpha."""
    x = x[None] if axes.channel is None else x.movedim(axes.channel, 1 if axes.batch is not None else 0)
    x = x if axes.batch is not None else x[None]
    return x[:, : COLOURS[0]] if axes.has_alpha else x


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
