"""Compiled solves of total variation models: whole ones with squares, iterations of relaxed PDHG with any misfit."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lmd import kernels
from lmd.kernels.loop import FIRST_LOOK, RESTART, Solved

LEAST = 1e-5
"""Relative gaps below this are left to other code: here dual points are float32 numbers, drawn in by 5e-7."""


class Model(NamedTuple):
    """s ||x - y||^2 + g(Kx), in a box or not: what the compiled loop has to know of a problem."""

    noisy: Tensor
    """y `(B, C, *size)`, one to three axes."""

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
    overwrite: bool = False,
) -> Solved:
    """Iterations of FGP up to `limit` or a relative gap of `tolerance`, the first with `numbers` `(2, B, N)`.

    Where fewer are `learned`, so many of each instance. Instances are solved one after the other,
    and with `overwrite` in the memory of the dual points.
    """
    if model.noisy.ndim == 3:
        wide = None if dual is None else _as_field(dual)
        found = fgp(
            model._replace(**_as_image(model)), limit, tolerance=tolerance, numbers=numbers, learned=learned, dual=wide
        )
        return found._replace(x=found.x[:, :, 0], dual=found.dual[:, :, 1:, 0], ahead=found.ahead[:, :, 1:, 0])
    y = model.noisy.detach().contiguous()
    field = (*y.shape[:2], y.ndim - 2, *y.shape[2:])
    p = y.new_zeros(field) if dual is None else dual.detach().to(y).reshape(field).contiguous()
    p = p if overwrite or dual is None else p.clone()
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
    (sizes, spacing), (limit, tolerance, cold) = _grid(y, model.spacing), until
    each, weights, maps = _bounds(model.bound, n)
    low, high = model.box or (0.0, 0.0)
    table, most = numbers.detach().double().contiguous(), numbers.shape[1]
    step = 2 * model.scale / model.norm**2
    reals = (each, model.scale, step, tolerance, model.delta, low, high, model.norm, model.roundings, *spacing)
    counts = (*sizes, *maps, most, most, limit, FIRST_LOOK, RESTART)
    options = (model.isotropic, model.coupled, model.box is not None, cold)
    _call("lmd_model", (y[n], weights, table), (reals, counts, options), (p, x, report))


class Split(NamedTuple):
    """misfit(x) + g(Kx) in a box: what the compiled iterations of relaxed PDHG have to know of a problem."""

    noisy: Tensor
    """y `(B, C, *size)`, one to three axes."""

    misfit: int
    """An index of `MISFITS`."""

    weight: Tensor
    """Like y: of its entries, or backgrounds of counts."""

    low: Tensor
    """Of each channel `(B, C)`, as `high` is."""

    high: Tensor
    bound: float | Tensor
    """As in `Model`."""

    spacing: tuple[float, ...]
    isotropic: bool
    coupled: bool
    delta: float


MISFITS = ("Squares", "KullbackLeibler", "Absolute")
"""By their names, as C counts them."""


class Relaxed(NamedTuple):
    """What iterations of relaxed PDHG end with."""

    x: Tensor
    p: Tensor

    target: Tensor
    """x~ of the last of them."""

    dual: Tensor
    """p~ of the last of them."""

    sums: tuple[Tensor, Tensor] | None
    """Of x~ and p~ over all of them, where they were asked for."""


def relaxed(model: Split, x: Tensor, p: Tensor, numbers: Tensor, summed: bool = False) -> Relaxed:
    """Steps of `lmd.solvers.RelaxedPDHG`, from x_k and p_k.

    `numbers` `(B, n, 3)`: tau, sigma and relaxation of each of them.
    """
    if x.ndim == 3:
        wide = model._replace(**_as_image(model), weight=model.weight.unsqueeze(2))
        ends = relaxed(wide, x.unsqueeze(2), _as_field(p), numbers, summed)
        sums = None if ends.sums is None else (ends.sums[0][:, :, 0], ends.sums[1][:, :, 1:, 0])
        return Relaxed(ends.x[:, :, 0], ends.p[:, :, 1:, 0], ends.target[:, :, 0], ends.dual[:, :, 1:, 0], sums)
    (sizes, spacing), table = _grid(model.noisy, model.spacing), numbers.detach().double().contiguous()
    planes, field = (each.detach().clone(memory_format=torch.contiguous_format) for each in (x.transpose(1, 2), p))
    target, dual = torch.empty_like(planes), torch.empty_like(field)
    x_sum, p_sum = (torch.zeros_like(each) if summed else None for each in (planes, field))
    options = (model.isotropic, model.coupled, model.misfit)
    for n in range(len(x)):
        each, weights, maps = _bounds(model.bound, n)
        data = (model.noisy[n], model.weight[n], weights, model.low[n], model.high[n], table[n])
        reals, counts = (each, model.delta, *spacing), (*sizes, *maps, numbers.shape[1])
        totals = (None, None) if x_sum is None or p_sum is None else (x_sum[n], p_sum[n])
        _call("lmd_relaxed", data, (reals, counts, options), (planes[n], field[n], target[n], dual[n], *totals))
    sums = None if x_sum is None or p_sum is None else (x_sum.transpose(1, 2), p_sum)
    return Relaxed(planes.transpose(1, 2), field, target.transpose(1, 2), dual, sums)


def _as_image(model: Model | Split) -> dict[str, Any]:
    """What a model of signals is as one of images of one row."""
    bound = model.bound
    wide = bound.unsqueeze(-2) if isinstance(bound, Tensor) and bound.ndim > 1 else bound
    return {"noisy": model.noisy.unsqueeze(2), "bound": wide, "spacing": (1.0, *model.spacing)}


def _as_field(p: Tensor) -> Tensor:
    """The dual field `(B, C, 2, 1, N)` of that image, from `(B, C, 1, N)`."""
    return torch.stack([torch.zeros_like(p), p], dim=2)


def _grid(y: Tensor, spacing: Sequence[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Channels, axes and three lengths, and three spacings, as C has them."""
    size = tuple(y.shape[2:])
    if len(size) == 2:
        return (y.shape[1], 2, size[0], 1, size[1]), (spacing[0], 1.0, spacing[1])
    return (y.shape[1], 3, *size), tuple(spacing)


def _bounds(bound: float | Tensor, n: int) -> tuple[float, Tensor | None, tuple[int, ...]]:
    """The bound of instance n or 1, its map if there is one, and how many channels and axes that has."""
    if isinstance(bound, Tensor) and bound.ndim > 1:
        return 1.0, bound[n].detach(), tuple(bound.shape[1:3])
    return float(bound[n]) if isinstance(bound, Tensor) else bound, None, (0, 0)


def _call(
    name: str,
    inputs: Sequence[Tensor | None],
    numbers: tuple[Sequence[float], Sequence[int], Sequence[int]],
    outputs: Sequence[Tensor | None],
) -> None:
    """Outputs are written to, and lie row by row; the first input says how much work it is."""
    held = [None if each is None else each.contiguous() for each in inputs]
    reals, sizes, options = numbers
    tables = (
        (ctypes.c_double * len(reals))(*reals),
        (ctypes.c_long * len(sizes))(*sizes),
        (ctypes.c_int * len(options))(*options),
    )
    first = held[0]
    threads = torch.get_num_threads() if first is not None and first.numel() >= kernels.SMALL else 1
    given, made = ([None if each is None else each.data_ptr() for each in side] for side in (held, outputs))
    if _function(name, len(held) + len(tables), len(made))(*given, *tables, threads, *made):
        raise MemoryError("no memory for the dual field of a compiled solve")


@functools.cache
def _function(name: str, inputs: int, outputs: int) -> Callable[..., int]:
    function = getattr(kernels.library(), name)
    pointer = ctypes.c_void_p
    function.argtypes = (*(pointer,) * inputs, ctypes.c_int, *(pointer,) * outputs)
    return cast(Callable[..., int], function)
