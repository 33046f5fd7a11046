"""Checks of tensor arguments, shared by every room, so that one mistake has one message."""

from __future__ import annotations

import difflib
import math
import operator

import torch
from torch import Tensor, nn

from lmd.errors import InputError

FLOATING_TYPES = (torch.float32, torch.float64)


def shape_of(x: Tensor) -> str:
    """Return the shape as people write it: `(2, 3)`."""
    return str(tuple(x.shape))


def check_floating(argument: str, x: object) -> Tensor:
    """Return `x` if it is a floating-point tensor of 32 or 64 bits: fewer are too few for sums over an image."""
    if not isinstance(x, Tensor):
        raise InputError(argument, type(x).__name__, "a torch tensor")
    if x.dtype not in FLOATING_TYPES:
        accepted = "a floating-point tensor of 32 or 64 bits; convert with .float() or .double()"
        raise InputError(argument, x.dtype, accepted)
    return x


def check_readable(argument: str, x: Tensor) -> Tensor:
    """Return `x` if it holds numbers that can be read: it is on no meta device, and `torch.func` hides none of them."""
    if x.is_meta and not torch.compiler.is_compiling():
        raise InputError(argument, "a tensor on the meta device", "one that holds numbers")
    if torch._C._functorch.is_batchedtensor(x):
        accepted = "a batch (B, ...), of which each instance is solved, in place of vmap"
        raise InputError(argument, "a tensor inside torch.func.vmap", accepted)
    return x


def check_finite(argument: str, x: Tensor) -> Tensor:
    """Return `x` if every entry is finite; otherwise say how many are not and where the first one is."""
    if x.is_meta or torch._C._functorch.is_batchedtensor(x):
        check_readable(argument, x)
    if math.isfinite(float(x.detach().sum())):  # then all are: one pass, nothing is stored
        return x
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise InputError(argument, f"{int(bad.sum())} non-finite entries, the first at {first}", "finite numbers")
    return x


def check_batch(argument: str, x: object) -> Tensor:
    """Return `x` if it is a finite floating-point batch `(B, ...)` with B > 0."""
    if not isinstance(x, Tensor) or x.dtype not in FLOATING_TYPES:
        x = check_floating(argument, x)
    if x.ndim < 2:
        raise InputError(argument, f"shape {shape_of(x)}", f"a batch (B, ...); for one instance use {argument}[None]")
    if x.numel() == 0:
        raise InputError(argument, f"shape {shape_of(x)}", "at least one instance with at least one entry")
    return check_finite(argument, x)


def check_same_kind(argument: str, x: Tensor, other_argument: str, other: Tensor) -> None:
    """Raise unless both tensors have one dtype and live on one device."""
    if x.dtype != other.dtype:
        raise InputError(argument, x.dtype, f"{other.dtype}, the dtype of {other_argument}")
    if x.device != other.device:
        raise InputError(argument, f"device {x.device}", f"device {other.device}, where {other_argument} is")


def check_module_kind(argument: str, x: Tensor, module: nn.Module, name: str) -> Tensor:
    """Return `x` if it has the dtype of a module's parameters and is on their device; `name` is what to call it."""
    for parameter in module.parameters():
        if (x.dtype, x.device) != (parameter.dtype, parameter.device):
            kind = "double" if x.dtype == torch.float64 else "float"
            way = f"{name}.{kind}()" if x.dtype != parameter.dtype else f"{name}.to('{x.device}')"
            accepted = f"{parameter.dtype} on {parameter.device}, as the {name} is; or convert that with {way}"
            raise InputError(argument, f"{x.dtype} on {x.device}", accepted)
    return x


def check_positive(argument: str, value: float, *, zero: bool = False) -> float:
    """Return `value` if it is a finite number above zero (or zero, where `zero` allows it)."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):
        raise InputError(argument, repr(value), "a number of 0 or more" if zero else "a positive number")
    return float(value)


def check_count(argument: str, value: int, *, least: int = 1, most: int | None = None) -> int:
    """Return `value` if it is a whole number of at least `least` and, where that is given, at most `most`."""
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least or (most is not None and count > most):
        accepted = f"a whole number of {least} or more" if most is None else f"a whole number from {least} to {most}"
        raise InputError(argument, repr(value), accepted)
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


def check_zero_one(argument: str, mask: Tensor) -> Tensor:
    """Return `mask` if its entries are 0 and 1 or, with bool for dtype, false and true."""
    if not isinstance(mask, Tensor):
        raise InputError(argument, type(mask).__name__, "a torch tensor")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError(argument, "entries other than 0 and 1", "1 where a pixel is kept and 0 where it is lost")
    return mask
