"""Checks of arguments that all parts of lmd share, so that the same mistake always gives the same message."""

from __future__ import annotations

import difflib
import math
import operator

import torch
from torch import Tensor, nn

from lmd.core import memory
from lmd.errors import InputError

FLOATING_TYPES = (torch.float32, torch.float64)
UNCHECKED = 1 << 26  # bytes; smaller requests of memory are not checked


def shape_of(x: Tensor) -> str:
    """Return the shape as text, such as `(2, 3)`."""
    return str(tuple(x.shape))


def check_floating(argument: str, x: object) -> Tensor:
    """Return `x` if it is a float32 or float64 tensor; fewer bits are too inaccurate for sums over an image."""
    if not isinstance(x, Tensor):
        raise InputError(argument, type(x).__name__, "a torch tensor")
    if x.dtype not in FLOATING_TYPES:
        accepted = "a floating-point tensor of 32 or 64 bits; convert with .float() or .double()"
        raise InputError(argument, x.dtype, accepted)
    return x


def check_readable(argument: str, x: Tensor) -> Tensor:
    """Return `x` if its numbers can be read: it is not on the meta device and not inside `torch.func.vmap`."""
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
    if math.isfinite(float(x.detach().sum())):  # a finite sum has finite entries; one pass, no temporary
        return x
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise InputError(argument, f"{int(bad.sum())} non-finite entries, the first at {first}", "finite numbers")
    return x


def check_batch(argument: str, x: object) -> Tensor:
    """Return `x` if it is a finite floating-point batch `(B, ...)` with at least one entry."""
    if not isinstance(x, Tensor) or x.dtype not in FLOATING_TYPES:
        x = check_floating(argument, x)
    if x.ndim < 2:
        raise InputError(argument, f"shape {shape_of(x)}", f"a batch (B, ...); for one instance use {argument}[None]")
    if x.numel() == 0:
        raise InputError(argument, f"shape {shape_of(x)}", "at least one instance with at least one entry")
    return check_finite(argument, x)


def check_same_kind(argument: str, x: Tensor, other_argument: str, other: Tensor) -> None:
    """Raise unless both tensors have the same dtype and device."""
    if x.dtype != other.dtype:
        raise InputError(argument, x.dtype, f"{other.dtype}, the dtype of {other_argument}")
    if x.device != other.device:
        raise InputError(argument, f"device {x.device}", f"device {other.device}, where {other_argument} is")


def check_module_kind(argument: str, x: Tensor, module: nn.Module, name: str) -> Tensor:
    """Return `x` if it has the dtype and device of a module's parameters; messages call the module `name`."""
    for parameter in module.parameters():
        if (x.dtype, x.device) != (parameter.dtype, parameter.device):
            kind = "double" if x.dtype == torch.float64 else "float"
            way = f"{name}.{kind}()" if x.dtype != parameter.dtype else f"{name}.to('{x.device}')"
            accepted = f"{parameter.dtype} on {parameter.device}, as the {name} is; or convert that with {way}"
            raise InputError(argument, f"{x.dtype} on {x.device}", accepted)
    return x


def check_positive(argument: str, value: float, *, zero: bool = False) -> float:
    """Return `value` if it is a finite positive number, or 0 if `zero` is true."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):
        raise InputError(argument, repr(value), "a number of 0 or more" if zero else "a positive number")
    return float(value)


def check_scale(
    argument: str, scale: float | Tensor, y: Tensor | None = None, name: str = "y", *, zero: bool = False
) -> float | Tensor:
    """Return `scale` if it is a positive number or a tensor of positive numbers; with `zero`, a tensor may contain 0.

    If y is given, a tensor must also pass `check_fits` and have the dtype and device of y (`name` in messages).
    """
    if not isinstance(scale, Tensor):
        return scale if isinstance(scale, float) and 0 < scale < math.inf else check_positive(argument, scale)
    least = float(check_finite(argument, check_floating(argument, scale)).detach().min())
    if least < 0 or (least == 0 and not zero):
        raise InputError(argument, f"{least:g}", "numbers of 0 or more" if zero else "positive numbers")
    if y is not None:
        check_fits(argument, scale, y)
        check_same_kind(argument, scale, name, y)
    return scale


def check_fits(argument: str, scale: float | Tensor, y: Tensor) -> float | Tensor:
    """Return `scale` if it is a number, one per instance `(B,)`, or a batch that broadcasts to the shape of y."""
    if not isinstance(scale, Tensor) or scale.shape in ((), y.shape[:1]):
        return scale
    pairs = zip(scale.shape[1:], y.shape[1:], strict=False)
    if scale.ndim != y.ndim or len(scale) != len(y) or any(n not in (1, m) for n, m in pairs):
        accepted = f"one number, one per instance ({len(y)},), or entries that go with {shape_of(y)}"
        raise InputError(argument, f"shape {shape_of(scale)}", accepted)
    return scale


def check_weights(weight: float | Tensor, y: Tensor, *maps: tuple[int, ...]) -> Tensor:
    """Return positive weights as one number per instance of y `(B,)`, or as a map with one of the shapes `maps`."""
    if not isinstance(weight, Tensor):
        return y.new_full((len(y),), check_positive("weight", weight))
    if weight.shape not in ((), (len(y),), *maps):
        accepted = ", or ".join(["one number", f"one per instance ({len(y)},)", *(f"a map {shape}" for shape in maps)])
        raise InputError("weight", f"shape {shape_of(weight)}", accepted)
    check_same_kind("weight", weight, "the data", y)
    check_scale("weight", weight)
    return weight if weight.ndim > 1 else weight.expand(len(y)).clone()


def check_count(argument: str, value: int, *, least: int = 1, most: int | None = None) -> int:
    """Return `value` if it is a whole number of at least `least` and, if given, at most `most`."""
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
    """Return `value` if it is one of `choices`; otherwise list them and suggest the nearest."""
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        accepted = f"one of {', '.join(choices)}{hint}" if choices else "nothing, as there is nothing to choose from"
        raise InputError(argument, repr(value), accepted)
    return value


def check_zero_one(argument: str, mask: Tensor) -> Tensor:
    """Return `mask` if its entries are 0 and 1, or if it is boolean."""
    if not isinstance(mask, Tensor):
        raise InputError(argument, type(mask).__name__, "a torch tensor")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError(argument, "entries other than 0 and 1", "1 where a pixel is kept and 0 where it is lost")
    return mask


def check_memory(argument: str, given: str, need: int) -> None:
    """Raise if `need` bytes are more than the free memory; `given` describes in the message what needs them."""
    free = memory.available_memory() if need > UNCHECKED else None
    if free is not None and need > free:
        accepted = f"one that fits into the {free / 1e9:.1f} GB that are free"
        raise InputError(argument, f"{given}, which needs about {need / 1e9:.1f} GB of memory", accepted)
