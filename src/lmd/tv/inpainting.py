"""Whole solves of total variation inpainting of images in one compiled call: iterations, gaps, and when to stop."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lmd import kernels
from lmd.solvers.classical.pdhg import RelaxedPDHG
from lmd.tv.solved import Outcome, Solved

FIRST_EVALUATION = 12  # iterations before the first gap evaluation
MIN_PIXELS_FOR_THREADS = 10 * kernels.SMALL
"""Fewer pixels than this are not worth a second thread: planes meet at every gap evaluation."""


METHOD = RelaxedPDHG()


class Inpainting(NamedTuple):
    """s ||Z(x - y)||^2 + b ||Kx|| over low <= x <= high, K the differences of neighbours in images."""

    problem: Any
    noisy: Tensor  # y `(B, C, H, W)`, in the box everywhere
    mask: Tensor  # z `(B, 1, H, W)` or `(B, C, H, W)`
    low: Tensor  # `(B, C, 1, 1)`, as `high` is
    high: Tensor
    bound: float | Tensor  # b, a number or one per image `(B,)`
    scale: float  # s
    norm: float  # ||K||
    isotropic: bool

    @property
    def method(self) -> RelaxedPDHG:
        """The method whose iterations these are, to go on with."""
        return METHOD

    @property
    def is_continued(self) -> bool:
        """Whether solves that float32 holds up continue from their dual points in float64."""
        return False

    def solve(self, tolerance: float, limit: int, dual: Tensor | None = None) -> Solved:
        """Iterations of `RelaxedPDHG` to a relative gap, or up to `limit`, instance by instance, from anew."""
        state = METHOD.init(self.problem, self.problem.start())
        y, x = self.noisy.detach().contiguous(), state.x.detach().resolve_neg().contiguous()
        batch, channels, height, width = y.shape
        held = [each.detach().expand(batch, -1, -1, -1).contiguous() for each in (self.mask, self.low, self.high)]
        bound = torch.as_tensor(self.bound, dtype=torch.float64, device="cpu").detach().expand(batch).contiguous()
        report = torch.zeros(batch, 6, dtype=torch.float64, device="cpu")
        report[:, 0] = state.tau
        found, dual = torch.empty_like(y), y.new_empty(batch, channels, 2, height, width)
        failed = _function()(
            y.data_ptr(), *(each.data_ptr() for each in held), x.data_ptr(), None, bound.data_ptr(), None,
            self.scale, self.norm**2, METHOD.relaxation, tolerance,
            batch, channels, held[0].shape[1], height, width, 0, limit, FIRST_EVALUATION, self.isotropic,
            y.dtype == torch.float64, torch.get_num_threads() if y.numel() >= MIN_PIXELS_FOR_THREADS else 1,
            found.data_ptr(), dual.data_ptr(), report.data_ptr(),
        )  # fmt: skip
        kernels.check_code(failed, "the working rows of a compiled solve")
        return Solved(found, dual, [Outcome(int(row[0]), int(row[1]), *row[2:]) for row in report[:, 1:5].tolist()])


@functools.cache
def _function() -> Callable[..., int]:
    kernels.module()  # which answers signals
    function = getattr(kernels.library(), "lmd_saddle")  # noqa: B009
    pointer, double, count = ctypes.c_void_p, ctypes.c_double, ctypes.c_long
    function.argtypes = (*(pointer,) * 8, *(double,) * 4, *(count,) * 10, ctypes.c_int, *(pointer,) * 3)
    return cast(Callable[..., int], function)
