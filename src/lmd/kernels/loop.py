"""Whole solves of total variation denoising in one compiled call: iterations, gaps and the decision to stop."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from lmd import kernels
from lmd.checks import shape_of
from lmd.errors import InputError

KINDS = (torch.float32, torch.float64)

RESTART = 8
"""Momentum is looked at after every so many iterations, so that a block of them goes through the memory at once."""

ROUNDED = 5e-5
"""Relative gaps below this are left to float64 numbers, as in loop.c."""

FIRST_LOOK = 8
"""When the gap is first looked at where nothing was learned."""


class Model(NamedTuple):
    """s ||x - y||^2 + b ||Kx||: what the compiled loop has to know of a problem."""

    noisy: Tensor
    """y `(B, C, H, W)`."""

    bound: float | Tensor
    """b, a number or one per image `(B,)`."""

    scale: float
    """s."""

    norm: float
    """||K||."""

    roundings: float
    """What K promises of its rounding."""

    isotropic: bool


class Progress(NamedTuple):
    """Where the loop is, or starts: None is 0."""

    dual: Tensor | None = None
    """p `(B, C, 2, H, W)`."""

    ahead: Tensor | None = None
    """q; None is p."""

    momentum: float | Tensor = 1.0
    """m of FGP, a number or one per image `(B,)`."""

    iteration: int = 0


class Solved(NamedTuple):
    """What the loop gives back."""

    x: Tensor
    dual: Tensor
    ahead: Tensor
    """q, to go on from; p where the solve was to a tolerance that needs no more."""

    momentum: Tensor
    """m of FGP `(B,)`, like all that follows in float64."""

    iterations: Tensor
    status: Tensor
    """1: ran all its iterations, 2: the gap is within the tolerance, 3: it falls no further."""

    values: Tensor
    """F(x); it and the gap are 0 where nobody looked."""

    gaps: Tensor
    """A bound on F(x) - min F, with room for its rounding."""

    first: Tensor | None = None
    """F(y), where it was a by-product."""

    @property
    def reached(self) -> Tensor:
        return self.status == 2

    @property
    def stuck(self) -> Tensor:
        return self.status == 3


def serves(*tensors: Tensor) -> bool:
    """Whether the loop can stand in here: float32 or float64 on the CPU, and nothing is recorded."""
    kind = tensors[0].dtype
    if kind not in KINDS or any(tensor.dtype != kind or tensor.device.type != "cpu" for tensor in tensors):
        return False
    recording = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not recording and kernels.library() is not None


def fgp(
    model: Model,
    start: Progress,
    limit: int,
    *,
    numbers: Tensor | None = None,
    learned: Sequence[int] | None = None,
    tolerance: float | None = None,
    restart: bool = True,
    multiplier: float = 1.0,
) -> Solved:
    """Iterations of FGP up to `limit`, or up to a relative gap of `tolerance`, instance by instance.

    The first N have step-sizes and momenta of their own, `numbers` `(2, B, N)`, in place of FGP's; where fewer are
    `learned`, so many of each instance. See `lmd.solvers.LearnedFGP` for the formulas.
    """
    y = model.noisy.detach().contiguous()
    if y.ndim != 4:
        raise InputError("noisy", f"shape {shape_of(y)}", "images (B, C, H, W)")
    batch, channels, height, width = y.shape
    dual, ahead = _fields(start.dual, y), _fields(start.ahead, y)
    bound = _each(model.bound, batch)
    table = None if numbers is None else numbers.detach().double().transpose(0, 1).contiguous()
    most = 0 if numbers is None else numbers.shape[2]
    counts = (ctypes.c_long * batch)(*(learned or [most] * batch))
    report = torch.ones(batch, 6, dtype=torch.float64, device="cpu")
    report[:, 0] = start.momentum
    new_dual, x = y.new_empty(batch, channels, 2, height, width), torch.empty_like(y)
    kept = tolerance is None or tolerance < ROUNDED
    new_ahead = torch.empty_like(new_dual) if kept else new_dual
    failed = _function()(
        y.data_ptr(), _pointer(dual), _pointer(ahead), bound.data_ptr(), _pointer(table), counts,
        model.scale, multiplier * 2 * model.scale / model.norm**2, -1.0 if tolerance is None else tolerance,
        model.norm, model.roundings,
        batch, channels, height, width, most, start.iteration, limit, FIRST_LOOK,
        model.isotropic, RESTART * restart, y.dtype == torch.float64,
        torch.get_num_threads() if y.numel() >= kernels.SMALL else 1,
        new_dual.data_ptr(), new_ahead.data_ptr() if kept else None, x.data_ptr(), report.data_ptr(),
    )  # fmt: skip
    if failed:
        raise MemoryError("no memory for the working rows of a compiled solve")
    momentum, done, status, values, gaps, _ = report.unbind(dim=1)
    return Solved(x, new_dual, new_ahead, momentum, done, status, values, gaps)


def _fields(p: Tensor | None, y: Tensor) -> Tensor | None:
    """A dual field as C reads it."""
    if p is None:
        return None
    shape = (*y.shape[:2], 2, *y.shape[2:])
    if p.shape != shape or p.dtype != y.dtype or p.device != y.device:
        given = f"shape {shape_of(p)}, {p.dtype} on {p.device}"
        raise InputError("dual", given, f"shape {shape}, {y.dtype} on the CPU, as the images are")
    return p.detach().resolve_neg().contiguous()


def _each(bound: float | Tensor, batch: int) -> Tensor:
    """The bound of each image `(B,)`, in float64."""
    if isinstance(bound, Tensor):
        return bound.detach().double().expand(batch).contiguous()
    return torch.full((batch,), bound, dtype=torch.float64, device="cpu")


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@functools.cache
def _function() -> Callable[..., int]:
    function = getattr(kernels.library(), "lmd_fgp")  # noqa: B009
    pointer, double, count = ctypes.c_void_p, ctypes.c_double, ctypes.c_long
    function.argtypes = (*(pointer,) * 6, *(double,) * 5, *(count,) * 11, ctypes.c_int, *(pointer,) * 4)
    return cast(Callable[..., int], function)
