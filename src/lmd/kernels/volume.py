"""Whole solves of total variation models with squares in one compiled call: volumes, maps of weights, Huber, boxes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from lmd import kernels
from lmd.kernels.loop import FIRST_LOOK, RESTART, Solved

LEAST = 1e-5
"""Relative gaps below this are left to other code: here dual points are float32 numbers, drawn in by 5e-7."""


class Model(NamedTuple):
    """s ||x - y||^2 + g(Kx), in a box or not: what the compiled loop has to know of a problem."""

    noisy: Tensor
    """y `(B, C, *size)`, two or three axes."""

    bound: float | Tensor
    """Weights: a number, one per instance `(B,)`, or a map `(B, 1 or C, 1 or axes, *size)`."""

    scale: float
    """s."""

    spacing: tuple[float, ...]
    norm: float
    roundings: float
    isotropic: bool
    coupled: bool
    delta: float
    """Of Huber's function; 0 for lengths."""

    box: tuple[float, float] | None


def fgp(
    model: Model,
    limit: int,
    *,
    tolerance: float,
    numbers: Tensor,
    learned: Sequence[int] | None = None,
    dual: Tensor | None = None,
) -> Solved:
    """Iterations of FGP up to `limit` or a relative gap of `tolerance`, the first with `numbers` `(2, B, N)`.

    Where fewer are `learned`, so many of each instance. Instances are solved one after the other.
    """
    y = model.noisy.detach().contiguous()
    field = (*y.shape[:2], y.ndim - 2, *y.shape[2:])
    p = y.new_zeros(field) if dual is None else dual.detach().to(y).reshape(field).clone()
    x, report = torch.empty_like(y), torch.zeros(len(y), 5, dtype=torch.float64, device="cpu")
    for n in range(len(y)):
        own = numbers[:, n, : None if learned is None else learned[n]]
        _solve(model, n, y, own, (limit, tolerance, dual is None), p[n], x[n], report[n])
    return Solved(x, p, p, [number for row in report.tolist() for number in (1.0, *row[:4])])


def _solve(
    model: Model,
    n: int,
    y: Tensor,
    numbers: Tensor,
    until: tuple[int, float, bool],
    p: Tensor,
    x: Tensor,
    report: Tensor,
) -> None:
    """Instance n up to iterations, a tolerance, from p = 0 or not; p, x and the report are written to."""
    channels, axes, size = y.shape[1], y.ndim - 2, tuple(y.shape[2:])
    inner, spacing, (limit, tolerance, cold) = size, model.spacing, until
    if axes == 2:
        inner, spacing = (size[0], 1, size[1]), (spacing[0], 1.0, spacing[1])
    bound = model.bound
    weights = bound[n].detach().contiguous() if isinstance(bound, Tensor) and bound.ndim > 1 else None
    each = 1.0 if weights is not None else float(bound[n]) if isinstance(bound, Tensor) else bound
    maps = (0, 0) if weights is None else tuple(weights.shape[:2])
    low, high = model.box or (0.0, 0.0)
    table, most = numbers.detach().double().contiguous(), numbers.shape[1]
    step = 2 * model.scale / model.norm**2
    reals = (each, model.scale, step, tolerance, model.delta, low, high, model.norm, model.roundings, *spacing)
    sizes = (channels, axes, *inner, *maps, most, most, limit, FIRST_LOOK, RESTART)
    options = (model.isotropic, model.coupled, model.box is not None, cold)
    failed = _function()(
        y[n].data_ptr(),
        None if weights is None else weights.data_ptr(),
        table.data_ptr(),
        (ctypes.c_double * len(reals))(*reals),
        (ctypes.c_long * len(sizes))(*sizes),
        (ctypes.c_int * len(options))(*map(int, options)),
        torch.get_num_threads() if y[n].numel() >= kernels.SMALL else 1,
        p.data_ptr(),
        x.data_ptr(),
        report.data_ptr(),
    )
    if failed:
        raise MemoryError("no memory for the dual field of a compiled solve")


@functools.cache
def _function() -> Callable[..., int]:
    function = getattr(kernels.library(), "lmd_model")  # noqa: B009
    pointer = ctypes.c_void_p
    function.argtypes = (*(pointer,) * 6, ctypes.c_int, *(pointer,) * 3)
    return cast(Callable[..., int], function)
