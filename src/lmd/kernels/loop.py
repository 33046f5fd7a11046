"""Whole solves of total variation denoising in one compiled call: iterations, gaps and the decision to stop."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lmd import kernels
from lmd.core.checks import shape_of
from lmd.errors import InputError

KINDS = (torch.float32, torch.float64)

RESTART = 8
"""Momentum is looked at after every so many iterations, so that a block of them goes through the memory at once."""

ROUNDED = 5e-5
"""On the way to relative gaps below this a solve may go on in float64 numbers, from q: as in loop.c."""

MOST_COUPLED = 8
"""So many channels are coupled in compiled solves, at most: ABREAST of loop.c."""

REPORT = 6
"""How many numbers a solve reports of an instance, as in loop.c."""

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
    coupled: bool = False
    """One length for all channels, of which there are 2 to `MOST_COUPLED`."""


class Progress(NamedTuple):
    """Where the loop is, or starts: None is 0."""

    dual: Tensor | None = None
    """p `(B, C, 2, H, W)`."""

    ahead: Tensor | None = None
    """q; None is p."""

    momentum: float | Tensor | Sequence[float] = 1.0
    """m of FGP, a number or one per image `(B,)`."""

    iteration: int = 0


NOTHING = Progress()
"""Where a solve from p = 0 starts."""


class _Schedules(ctypes.Structure):
    """As in loop.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("numbers", "reach", "horizons", "coarse")),
        *((name, ctypes.c_long) for name in ("count", "nodes")),
        *((name, ctypes.c_double) for name in ("lowest", "ratio")),
    )


class Schedules:
    """Learned step-sizes and momenta to choose from: `numbers`, one `(2, J, N)` each, the cheapest first.

    They are for roughnesses `lowest` and so on, each `ratio` times the one before. `reach` has the logarithms of the
    relative gaps that each gets to at these and halfway between `(count, 4, 2J - 1)`, in the anisotropic and in the
    isotropic form, and in both with coupled channels; `coarse` says which begin on coarser grids.
    """

    def __init__(
        self,
        numbers: Sequence[Tensor],
        reach: Sequence[Sequence[Sequence[float]]],
        coarse: Sequence[bool],
        grid: tuple[float, float],
    ) -> None:
        like: Any = {"dtype": torch.float64, "device": "cpu"}
        self.numbers = torch.cat([each.detach().to(**like).flatten() for each in numbers])
        self.reach = torch.tensor(reach, **like)
        self.horizons = torch.tensor([each.shape[2] for each in numbers], dtype=torch.int64, device="cpu")
        self.coarse = torch.tensor(coarse, dtype=torch.int64, device="cpu")
        arrays = (self.numbers, self.reach, self.horizons, self.coarse)
        self.table = _Schedules(*(each.data_ptr() for each in arrays), len(reach), numbers[0].shape[1], *grid)
        """As C reads them, while these live, where `address` is."""
        self.address = ctypes.addressof(self.table)


class Solved(NamedTuple):
    """What the loop gives back."""

    x: Tensor
    dual: Tensor
    ahead: Tensor
    """q, to go on from; p where the solve was to a tolerance that needs no more."""

    numbers: Sequence[float]
    """REPORT of them for each instance, one instance after the other: m of FGP; the iterations; the status (1: ran all
    of them, 2: the gap is within the tolerance, 3: it falls no further); F(x); a bound on F(x) - min F, with room for
    its rounding; how far F(x) may be above what is told. The last three are 0 without a tolerance."""

    @property
    def momentum(self) -> Sequence[float]:
        return self.numbers[::REPORT]

    @property
    def iterations(self) -> list[int]:
        return list(map(int, self.numbers[1::REPORT]))

    @property
    def status(self) -> list[int]:
        return list(map(int, self.numbers[2::REPORT]))

    @property
    def values(self) -> Sequence[float]:
        return self.numbers[3::REPORT]

    @property
    def gaps(self) -> Sequence[float]:
        return self.numbers[4::REPORT]

    @property
    def proven(self) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
        """Values, gaps, and the room of the values."""
        numbers = self.numbers
        return numbers[3::REPORT], numbers[4::REPORT], numbers[5::REPORT]


def serves(*tensors: Tensor) -> bool:
    """Whether the loop can stand in here: float32 or float64 on the CPU, and nothing is recorded."""
    kind, recording = tensors[0].dtype, torch.is_grad_enabled()
    for tensor in tensors:
        if tensor.dtype != kind or not tensor.is_cpu or (recording and tensor.requires_grad):
            return False
    return kind in KINDS and kernels.library() is not None


def fgp(
    model: Model,
    start: Progress,
    limit: int,
    *,
    numbers: Tensor | None = None,
    schedules: Schedules | None = None,
    before: Tensor | None = None,
    tolerance: float | None = None,
    restart: bool = True,
    multiplier: float = 1.0,
) -> Solved:
    """Iterations of FGP up to `limit`, or up to a relative gap of `tolerance`, instance by instance.

    The first N have step-sizes and momenta of their own, `numbers` `(2, B, N)`, in place of FGP's; or, on the way to a
    tolerance, those of the schedule that gets there. A dual point beside `schedules` is where to start if that is
    better than nothing, moved along with the picture since it was `before` `(B, C, H, W)`. See
    `lmd.solvers.LearnedFGP` for the formulas.
    """
    y = model.noisy.contiguous()
    shape = y.shape
    if len(shape) != 4:
        raise InputError("noisy", f"shape {shape_of(y)}", "images (B, C, H, W)")
    batch, channels, height, width = shape
    dual, ahead = _fields(start.dual, y), _fields(start.ahead, y)
    frame = None if before is None else before.detach().to(y).contiguous()
    if frame is not None and frame.shape != shape:
        raise InputError("before", f"shape {shape_of(frame)}", f"shape {shape_of(y)}, as the images have")
    first = FIRST_LOOK if numbers is None else max(FIRST_LOOK, numbers.shape[2])
    table = None if numbers is None else numbers.detach().double().transpose(0, 1).contiguous()
    new_dual, x = y.new_empty(batch, channels, 2, height, width), torch.empty_like(y)
    kept = tolerance is None or tolerance < ROUNDED
    new_ahead = torch.empty_like(new_dual) if kept else new_dual
    report = _function()(
        y.data_ptr(), _pointer(dual), _pointer(ahead), _pointer(frame), _each(model.bound, batch), _pointer(table),
        None if schedules is None else schedules.address,
        model.scale, multiplier * 2 * model.scale / model.norm**2, -1.0 if tolerance is None else tolerance,
        model.norm, model.roundings,
        batch, channels, height, width, 0 if numbers is None else numbers.shape[2], start.iteration, limit, first,
        model.isotropic, model.coupled, RESTART * restart, y.dtype == torch.float64,
        torch.get_num_threads() if batch * channels * height * width >= kernels.SMALL else 1,
        new_dual.data_ptr(), new_ahead.data_ptr() if kept else None, x.data_ptr(), _each(start.momentum, batch),
    )  # fmt: skip
    return Solved(x, new_dual, new_ahead, report)


def _fields(p: Tensor | None, y: Tensor) -> Tensor | None:
    """A dual field as C reads it."""
    if p is None:
        return None
    shape = (*y.shape[:2], 2, *y.shape[2:])
    if p.shape != shape or p.dtype != y.dtype or p.device != y.device:
        given = f"shape {shape_of(p)}, {p.dtype} on {p.device}"
        raise InputError("dual", given, f"shape {shape}, {y.dtype} on the CPU, as the images are")
    return p.detach().resolve_neg().contiguous()


def _each(each: float | Tensor | Sequence[float], batch: int) -> float | Sequence[float]:
    """A number, or one per image `(B,)`, as C takes them."""
    if isinstance(each, Tensor):
        numbers: list[float] = each.detach().expand(batch).tolist()
        return numbers
    return each


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@functools.cache
def _function() -> Callable[..., tuple[float, ...]]:
    return cast(Callable[..., tuple[float, ...]], kernels.module().fgp)
