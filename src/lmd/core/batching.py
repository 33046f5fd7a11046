"""Copies of what is made of tensors: in float64, on another device, of some of the instances."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

Index = int | slice | Tensor
"""Selects instances: a number, which selects a batch of one, a slice, places, or true and false for each."""


class Part:
    """An object that is copied along with the one that holds it: a problem, an operator."""


def take_instances(x: Tensor, index: Index) -> Tensor:
    """Return some of the instances of x `(B, ...)`, still as a batch."""
    return x[[index] if isinstance(index, int) else index]


def to_double(item: T, device: str | None = None) -> T:
    """Return a copy of a `Part`, and of those it holds, with every floating-point tensor in float64 and no graph.

    Other tensors keep their dtype; all go to the `device`, where one is given. What is held twice is copied once.
    """
    return _copy(item, device, {})


def _copy(item: T, device: str | None, done: dict[int, Any]) -> T:
    part = copy.copy(item)
    for name, value in list(vars(part).items()):
        if not isinstance(value, (Tensor, Part, tuple)):
            continue
        lower = isinstance(value, Tensor) and value.dtype.is_floating_point and value.dtype != torch.float64
        if lower and isinstance(getattr(type(part), name, None), cached_property):
            del vars(part)[name]  # to be computed again, from more digits
        else:
            setattr(part, name, _doubled(value, device, done))
    return part


def _doubled(value: Any, device: str | None, done: dict[int, Any]) -> Any:
    """Return an attribute, or an entry of a tuple, in float64 where it is made of tensors, else as it is."""
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Tensor):
        dtype = torch.float64 if value.dtype.is_floating_point else value.dtype
        done[id(value)] = value.detach().to(device or value.device, dtype)
    elif isinstance(value, Part):
        done[id(value)] = _copy(value, device, done)
    else:
        return tuple(_doubled(entry, device, done) for entry in value) if type(value) is tuple else value
    return done[id(value)]
