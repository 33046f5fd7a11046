"""Whole solves of total variation denoising of images in one compiled call: iterations, gaps, and when to stop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from lmd import kernels
from lmd.core.checks import shape_of
from lmd.errors import InputError
from lmd.solvers.classical.fgp import FGP
from lmd.tv import schedules
from lmd.tv.solved import Solved, outcomes_of

MAX_COUPLED_CHANNELS = 8
"""Channels that compiled code couples, at most: MAX_COUPLED of loop.c."""

EXTRAPOLATED_BELOW = 5e-5
"""Solves to tolerances below this keep the extrapolated dual point too, to go on from in float64: as in loop.c."""

FIRST_EVALUATION, RESTART_EVERY = 8, 8
"""Iterations before the first gap evaluation without a schedule, and between two looks at the momentum."""


METHOD = FGP(restart=True)


class Denoising(NamedTuple):
    """s ||x - y||^2 + b ||Kx||, K the differences of neighbours in images."""

    noisy: Tensor
    """y `(B, C, H, W)`."""

    bound: float | Tensor
    """b, a number or one per image `(B,)`."""

    scale: float
    """s."""

    norm: float
    """||K||."""

    roundings: float
    """Roundings per entry of Kx and K'p."""

    isotropic: bool
    coupled: bool
    """One length for all channels."""

    @property
    def is_refined(self) -> bool:
        """Solves in float32 go on in float64 where rounding hides what is left of the gap."""
        return True

    @property
    def method(self) -> FGP:
        """The method whose iterations these are, to go on with."""
        return METHOD

    def solve(
        self, tolerance: float, limit: int, dual: Tensor | None, *, table: schedules.Table | None = None
    ) -> Solved:
        """Solve to a relative gap, or up to `limit` iterations, instance by instance.

        A dual point is evaluated once, and is the start where it beats a start from nothing. `table` has the schedules
        to choose from; None is all that ship.
        """
        y = self.noisy.detach().contiguous()
        batch, channels, height, width = y.shape
        bound = self.bound.detach().tolist() if isinstance(self.bound, Tensor) else self.bound
        field = (batch, channels, 2, height, width)
        p, x = y.new_empty(field), torch.empty_like(y)
        q = torch.empty_like(p) if tolerance < EXTRAPOLATED_BELOW else None
        start = None if dual is None else _checked(dual, y, field)
        report = _function()(
            y.data_ptr(), None if start is None else start.data_ptr(), None, None, bound, None,
            (table or schedules.table()).address, self.scale, 2 * self.scale / self.norm**2, tolerance,
            self.norm, self.roundings, batch, channels, height, width, 0, 0, limit, FIRST_EVALUATION,
            self.isotropic, self.coupled, RESTART_EVERY, y.dtype == torch.float64,
            torch.get_num_threads() if y.numel() >= kernels.SMALL else 1,
            p.data_ptr(), None if q is None else q.data_ptr(), x.data_ptr(), 1.0,
        )  # fmt: skip
        return Solved(x, p, outcomes_of(report))


def _checked(p: Tensor, y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A dual field as C reads it."""
    if p.shape != shape or p.dtype != y.dtype or p.device != y.device:
        given = f"shape {shape_of(p)}, {p.dtype} on {p.device}"
        raise InputError("dual", given, f"shape {shape}, {y.dtype} on the CPU, as the images are")
    return p.detach().resolve_neg().contiguous()


@functools.cache
def _function() -> Callable[..., tuple[float, ...]]:
    return cast(Callable[..., tuple[float, ...]], kernels.module().fgp)
