"""Checks of tensor arguments, shared by every room, so that one mistake has one message."""

from __future__ import annotations

import difflib
import math
import operator

import torch
from torch import Tensor

from lmd.errors import InputError


def shape_of(x: Tensor) -> str:
    """The shape as people write it: `(2, 3)`."""
    return str(tuple(x.shape))


def check_floating(argument: str, x: object) -> Tensor:
    """Return `x` if it is a floating-point tensor."""
    if not isinstance(x, Tensor):
        raise InputError(argument, type(x).__name__, "a torch tensor")
    if not x.dtype.is_floating_point:
        raise InputError(argument, x.dtype, "a floating-point tensor; convert with .float() or .double()")
    return x


def check_finite(argument: str, x: Tensor) -> Tensor:
    """Return `x` if every entry is finite; otherwise say how many are not and where the first one is."""
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise InputError(argument, f"{int(bad.sum())} non-finite entries, the first at {first}", "finite numbers")
    return x


def check_batch(argument: str, x: object) -> Tensor:
    """Return `x` if it is a finite floating-point batch `(B, ...)` with B > 0."""
    tensor = check_floating(argument, x)
    if tensor.ndim < 2:
        raise InputError(
            argument, f"shape {shape_of(tensor)}", f"a batch (B, ...); for one instance use {argument}[None]"
        )
    if tensor.numel() == 0:
        raise InputError(argument, f"shape {shape_of(tensor)}", "at least one instance with at least one entry")
    return check_finite(argument, tensor)


def check_same_kind(argument: str, x: Tensor, other_argument: str, other: Tensor) -> None:
    """Raise unless both tensors have one dtype and live on one device."""
    if x.dtype != other.dtype:
        raise InputError(argument, x.dtype, f"{other.dtype}, the dtype of {other_argument}")
    if x.device != other.device:
        raise InputError(argument, f"device {x.device}", f"device {other.device}, where {other_argument} is")


def check_positive(argument: str, value: float, *, zero: bool = False) -> float:
    """Return `value` if it is a finite number above zero (or zero, where `zero` allows it)."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):
        raise InputError(argument, repr(value), "a number of 0 or more" if zero else "a positive number")
    return float(value)


def check_count(argument: str, value: int, *, least: int = 1) -> int:
    """Return `value` if it is a whole number of at least `least`."""
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise InputError(argument, repr(value), f"a whole number of {least} or more")
    return count


def check_interval(argument: str, interval: tuple[float, float]) -> tuple[float, float]:
    """Return `interval` if it is two finite numbers `low < high`."""
    try:
        low, high = (float(end) for end in interval)
    except (TypeError, ValueError):
        raise InputError(argument, repr(interval), "two numbers (low, high)") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(argument, repr(interval), "two finite numbers (low, high) with low < high")
    return low, high


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`; otherwise list them, the nearest first."""
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        accepted = f"one of {', '.join(choices)}{hint}" if choices else "nothing, as there is nothing to choose from"
        raise InputError(argument, repr(value), accepted)
    return value
