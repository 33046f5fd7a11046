"""How models of one to three axes are handed to compiled code: grids, maps of weights, and the call itself."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from lmd import kernels

MIN_PIXELS_FOR_THREADS = 10 * kernels.SMALL
"""Fewer pixels than this are not worth a second thread: all of them meet twice in each iteration."""

Numbers = tuple[Sequence[float], Sequence[int], Sequence[int]]
"""Real numbers, sizes and options, in the order in which C has them."""


def as_row(weights: float | Tensor) -> float | Tensor:
    """Weights of signals as those of images of one row."""
    return weights.unsqueeze(-2) if isinstance(weights, Tensor) and weights.ndim > 1 else weights


def as_row_field(p: Tensor) -> Tensor:
    """The dual field `(B, C, 2, 1, N)` of images of one row, from that of signals `(B, C, 1, N)`."""
    return torch.stack([torch.zeros_like(p), p], dim=2)


def grid_of(y: Tensor, spacing: Sequence[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Channels, axes and three lengths, and three spacings, as C has them."""
    size = tuple(y.shape[2:])
    if len(size) == 2:
        return (y.shape[1], 2, size[0], 1, size[1]), (spacing[0], 1.0, spacing[1])
    return (y.shape[1], 3, *size), tuple(spacing)


def weight_of(bound: float | Tensor, n: int) -> tuple[float, Tensor | None, tuple[int, ...]]:
    """The weight of instance n or 1, its map if there is one, and how many channels and axes that has."""
    if isinstance(bound, Tensor) and bound.ndim > 1:
        return 1.0, bound[n].detach(), tuple(bound.shape[1:3])
    return float(bound[n]) if isinstance(bound, Tensor) else bound, None, (0, 0)


def call(name: str, inputs: Sequence[Tensor | None], numbers: Numbers, outputs: Sequence[Tensor | None]) -> None:
    """Call a function of C, which writes to the outputs, contiguous tensors; the first input says how much work it is.

    Raises what a signal handler raised meanwhile, and MemoryError.
    """
    held = [None if each is None else each.contiguous() for each in inputs]
    reals, sizes, options = numbers
    tables = (
        (ctypes.c_double * len(reals))(*reals),
        (ctypes.c_long * len(sizes))(*sizes),
        (ctypes.c_int * len(options))(*options),
    )
    first = held[0]
    threads = torch.get_num_threads() if first is not None and first.numel() >= MIN_PIXELS_FOR_THREADS else 1
    given, made = ([None if each is None else each.data_ptr() for each in side] for side in (held, outputs))
    code = _function(name, len(held) + len(tables), len(made))(*given, *tables, threads, *made)
    kernels.check_code(code, "the dual field of a compiled solve")


@functools.cache
def _function(name: str, inputs: int, outputs: int) -> Callable[..., int]:
    kernels.module()  # which answers signals
    function = getattr(kernels.library(), name)
    pointer = ctypes.c_void_p
    function.argtypes = (*(pointer,) * inputs, ctypes.c_int, *(pointer,) * outputs)
    return cast(Callable[..., int], function)
