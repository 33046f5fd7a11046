"""Whole solves of total variation inpainting in one compiled call: iterations, gaps and the decision to stop."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from lmd import kernels
from lmd.kernels.loop import REPORT, Solved

FIRST_LOOK = 12
"""When the gap is first looked at where nothing was learned."""


SMALL = 10 * kernels.SMALL
"""Fewer pixels than this are not worth a second thread: planes meet at every look."""


class Masked(NamedTuple):
    """s ||Z(x - y)||^2 + b ||Kx|| over low <= x <= high: what the compiled loop has to know of a problem."""

    noisy: Tensor
    """y `(B, C, H, W)`, in the box everywhere."""

    mask: Tensor
    """Z `(B, 1, H, W)` or `(B, C, H, W)`."""

    low: Tensor
    """`(B, C, 1, 1)`, as `high` is."""

    high: Tensor
    bound: float | Tensor
    """b, a number or one per image `(B,)`."""

    scale: float
    """s."""

    norm: float
    """||K||."""

    isotropic: bool


def pdhg(
    model: Masked,
    start: tuple[Tensor, Tensor | None],
    tau: Tensor,
    limit: int,
    *,
    numbers: Tensor,
    relaxation: float,
    tolerance: float | None = None,
) -> Solved:
    """Iterations of `lmd.solvers.RelaxedPDHG` up to `limit`, or up to a relative gap of `tolerance`, each by itself.

    From x and p, where None is 0; `numbers` `(N, 3)` are the factors of tau `(B,)` and of tau sigma, and the
    relaxation of the first N; the others have `relaxation`. What is reported begins with tau.
    """
    y = model.noisy.detach().contiguous()
    batch, channels, height, width = y.shape
    held = [each.detach().expand(batch, -1, -1, -1).contiguous() for each in (model.mask, model.low, model.high)]
    x, dual = (None if each is None else each.detach().resolve_neg().contiguous() for each in start)
    bound = torch.as_tensor(model.bound, dtype=torch.float64, device="cpu").detach().expand(batch).contiguous()
    table, report = (
        numbers.detach().double().contiguous(),
        torch.zeros(batch, REPORT, dtype=torch.float64, device="cpu"),
    )
    report[:, 0] = tau
    found, new_dual = torch.empty_like(y), y.new_empty(batch, channels, 2, height, width)
    pointers = [None if each is None else each.data_ptr() for each in (y, *held, x, dual, bound, table)]
    failed = _function()(
        *pointers, model.scale, model.norm**2, relaxation, -1.0 if tolerance is None else tolerance,
        batch, channels, held[0].shape[1], height, width, len(table), limit, FIRST_LOOK, model.isotropic,
        y.dtype == torch.float64, torch.get_num_threads() if y.numel() >= SMALL else 1,
        found.data_ptr(), new_dual.data_ptr(), report.data_ptr(),
    )  # fmt: skip
    kernels.check_code(failed, "the working rows of a compiled solve")
    return Solved(found, new_dual, new_dual, report.flatten().tolist())


@functools.cache
def _function() -> Callable[..., int]:
    kernels.module()  # which answers signals
    function = getattr(kernels.library(), "lmd_saddle")  # noqa: B009
    pointer, double, count = ctypes.c_void_p, ctypes.c_double, ctypes.c_long
    function.argtypes = (*(pointer,) * 8, *(double,) * 4, *(count,) * 10, ctypes.c_int, *(pointer,) * 3)
    return cast(Callable[..., int], function)
