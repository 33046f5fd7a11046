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


SMALL = 10 * kernels.SMALL
"""Fewer pixels than this are not worth a second thread: all of them meet twice in each iteration."""


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
    return Solved(x, p, p, [number for row in report.tolist() for number in (1.0, *row[:4], 0.0)])


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


MISFITS = ("Squares", "KullbackLeibler", "Absolute", "slopes")
"""By their names, as C counts them; the last is <slope, x>."""

LOST = -1.0
"""The count that stands for none."""


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
    steps = Steps(model, x, p, summed)
    steps.go(numbers)
    return steps.ends()


class Behind(NamedTuple):
    """A misfit behind an operator of its own: what the compiled steps of its dual point have to know."""

    operator: Any
    """A: with its `adjoint`."""

    scale: float
    """What A is multiplied by in the stack of all operators."""

    misfit: int
    """An index of `MISFITS`."""

    y: Tensor
    weight: Tensor
    """Like y, as in `Split`."""


def beside(
    model: Split, behind: Behind, x: Tensor, p: Tensor, q: Tensor, numbers: Tensor, summed: bool
) -> tuple[Relaxed, Relaxed]:
    """The same where a misfit stands behind an operator of its own, and q is its part of the dual point.

    Both parts are told of like two models; the second has nothing of x. A is applied as it is, all else is compiled.
    """
    steps, scale = Steps(model, x, p, summed), behind.scale
    own = (scale * q.detach()).contiguous()
    answer, over, total = torch.empty_like(own), torch.empty_like(own), torch.zeros_like(own)
    y, weight, misfits = behind.y.expand_as(own), behind.weight.expand_as(own), [behind.misfit]
    for k, rows in enumerate(numbers.detach().double().transpose(0, 1).tolist()):
        z = (
            behind.operator(steps.x).to(own).expand_as(own).contiguous()
        )  # an operator of the user's may answer otherwise
        for n, (_, sigma, relaxation) in enumerate(rows):
            tables = ((scale**2 * sigma, relaxation), (own[n].numel(),), misfits)
            ends = (own[n], answer[n], over[n], total[n])
            _call("lmd_beside", (z[n], y[n], weight[n]), tables, ends)
        steps.go(numbers[:, k : k + 1], behind.operator.adjoint(over).to(x).expand_as(x))
    sums = (steps.x, total / scale) if summed else None
    return steps.ends(), Relaxed(steps.x, own / scale, steps.x, answer / scale, sums)


class Steps:
    """Iterations of relaxed PDHG of images and volumes in memory of their own: where they stand.

    Args:
        model: What they are about.
        x: x_k `(B, C, *size)`, two or three axes.
        p: p_k `(B, C, axes, *size)`.
        summed: Whether to add up what they end with.
    """

    def __init__(self, model: Split, x: Tensor, p: Tensor, summed: bool) -> None:
        self.model = model
        self._x, self._p = (
            each.detach().clone(memory_format=torch.contiguous_format) for each in (x.transpose(1, 2), p)
        )
        self._target, self._dual = torch.empty_like(self._x), torch.empty_like(self._p)
        self._sums = (torch.zeros_like(self._x), torch.zeros_like(self._p)) if summed else None
        self._maps = [_bounds(model.bound, n) for n in range(len(x))]

    @property
    def x(self) -> Tensor:
        """x_k as it is now."""
        return self._x.transpose(1, 2)

    def go(self, numbers: Tensor, slope: Tensor | None = None) -> None:
        """Iterations with numbers `(B, n, 3)`; a slope, like x, where the misfit is <slope, x>."""
        model, table = self.model, numbers.detach().double().contiguous()
        (sizes, spacing), y = _grid(model.noisy, model.spacing), model.noisy if slope is None else slope.detach()
        options = (model.isotropic, model.coupled, model.misfit)
        for n, (bound, weights, maps) in enumerate(self._maps):
            data = (y[n], model.weight[n], weights, model.low[n], model.high[n], table[n])
            reals, counts = (bound, model.delta, *spacing), (*sizes, *maps, numbers.shape[1])
            totals = (None, None) if self._sums is None else (self._sums[0][n], self._sums[1][n])
            ends = (self._x[n], self._p[n], self._target[n], self._dual[n], *totals)
            _call("lmd_relaxed", data, (reals, counts, options), ends)

    def ends(self) -> Relaxed:
        """Where they ended; there has to be one."""
        sums = None if self._sums is None else (self._sums[0].transpose(1, 2), self._sums[1])
        return Relaxed(self.x, self._p, self._target.transpose(1, 2), self._dual, sums)


class SecondOrder(NamedTuple):
    """misfit(x) + b ||Dx - w|| + c ||Ew|| in a box, of images: what compiled iterations have to know of a problem."""

    noisy: Tensor
    """y `(B, C, H, W)`."""

    misfit: int
    """An index of `MISFITS`."""

    weight: Tensor
    """Like y, as in `Split`."""

    low: Tensor
    """Of each channel `(B, C)`, as `high` is."""

    high: Tensor
    bounds: Tensor
    """b and c of each instance `(B, 2)`."""

    spacing: tuple[float, ...]
    isotropic: bool
    coupled: bool


def second(model: SecondOrder, x: Tensor, p: Tensor, numbers: Tensor, summed: bool = False) -> Relaxed:
    """Steps of `lmd.solvers.RelaxedPDHG` for X and its dual points as `SecondOrderModel` has them `(B, n)`."""
    ends = [each.detach().clone(memory_format=torch.contiguous_format) for each in (x, p)]
    last = [torch.empty_like(each) for each in ends]
    sums = (torch.zeros_like(x), torch.zeros_like(p)) if summed else None
    table, options = numbers.detach().double().contiguous(), (model.isotropic, model.coupled, model.misfit)
    for n, bounds in enumerate(model.bounds.tolist()):
        data = (model.noisy[n], model.weight[n], model.low[n], model.high[n], table[n])
        sizes = (*model.noisy.shape[1:], numbers.shape[1])
        outputs = [*ends, *last, *((None, None) if sums is None else sums)]
        own = [None if each is None else each[n] for each in outputs]
        _call("lmd_second", data, ((*bounds, *model.spacing), sizes, options), own)
    return Relaxed(ends[0], ends[1], last[0], last[1], sums)


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
    threads = torch.get_num_threads() if first is not None and first.numel() >= SMALL else 1
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
