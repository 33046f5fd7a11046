"""Copies of objects that hold tensors: in float64, on another device, or for some of the instances."""

from __future__ import annotations

import copy
import operator
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
P = TypeVar("P", bound="Part")

NUMBERS = {int, float, bool}
"""Tuples whose entries all have these types are not copied."""

Index = int | slice | Tensor
"""A selection of instances: a number (for a batch of one), a slice, a tensor of indices, or a boolean mask `(B,)`."""


class Part:
    """A problem, term or operator; selecting or copying an object also selects or copies the parts that it holds."""

    batched: tuple[str, ...] = ()
    """Names of attributes whose first dimension is the batch, if they are tensors."""

    always_batched: ClassVar[tuple[str, ...]] = ()
    """Names to add to `batched`, even if a subclass redefines `batched`."""

    def select(self: P, index: Index) -> P:
        """Return the part for some of the instances; a number selects a batch of one."""
        names, changed = (*self.batched, *self.always_batched), {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                chosen: Any = take_instances(value, index) if name in names and value.ndim > 0 else value
            elif type(value) is tuple:
                parts = [entry.select(index) if isinstance(entry, Part) else entry for entry in value]
                chosen = value if all(map(operator.is_, parts, value)) else tuple(parts)
            else:
                chosen = value.select(index) if isinstance(value, Part) else value
            if chosen is not value:
                changed[name] = chosen
        if not changed:
            return self
        part = copy.copy(self)
        vars(part).update(changed)
        return part


def take_instances(x: Tensor, index: Index) -> Tensor:
    """Return some of the instances of x `(B, ...)`, still as a batch."""
    return x[[index] if isinstance(index, int) else index]


def to_double(item: T, device: str | None = None) -> T:
    """Return a copy of a `Part` and of the parts that it holds, with floating-point tensors detached and in float64.

    Other tensors keep their dtype. All tensors go to the `device` if it is given. Shared objects are copied once.
    """
    copied: T = _doubled(item, device, {})
    return copied


def _doubled(value: Any, device: str | None, done: dict[int, Any]) -> Any:
    """Return a tensor, a part or a tuple of them in float64; return other values unchanged."""
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Tensor):
        dtype = torch.float64 if value.dtype.is_floating_point else value.dtype
        done[id(value)] = value.detach().to(device or value.device, dtype)
    elif isinstance(value, Part):
        part = done[id(value)] = copy.copy(value)
        for name, held in list(vars(part).items()):
            lower = isinstance(held, Tensor) and held.dtype.is_floating_point and held.dtype != torch.float64
            if lower and isinstance(getattr(type(part), name, None), cached_property):
                del vars(part)[name]  # it is computed again in float64
            elif isinstance(held, (Tensor, Part)) or (type(held) is tuple and not NUMBERS.issuperset(map(type, held))):
                setattr(part, name, _doubled(held, device, done))
    else:
        return tuple([_doubled(entry, device, done) for entry in value]) if type(value) is tuple else value
    return done[id(value)]
