"""Learned schedules: step sizes and momenta of the first iterations, and which one to take for a tolerance.

schedules.safetensors holds them by name, with the command, the seed and the data that made each in its metadata
(benchmarks/schedules.py writes it):

- `denoise-steps-N` and `denoise-scales-N` `(2, J, N)`: step sizes and momenta of `LearnedFGP` for J roughnesses, from
  p = 0 and from coarser grids; `NAME.reach` `(4, PLACES)` is the relative gap that is proven after them.
- `models-KIND-N` `(N, 3)`: the numbers of `RelaxedPDHG`.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd.core.files import read_tensors
from lmd.solvers.learned.dual import LOWEST, NODES, PLACES, RATIO, between

FILE = Path(__file__).with_name("schedules.safetensors")

MARGINS = {False: 0.9, True: 0.8}
"""Share of the tolerance that a schedule's reach has to be within, by whether it begins on coarser grids: one that
misses costs a gap evaluation and more iterations. Those from coarser grids vary more from image to image."""

COUPLED_MARGIN = 0.6
"""The same share, besides, for coupled channels: their gaps fall faster, so that a longer schedule costs little."""

COARSE_COST, COARSE_SETUP = 1.38, 4
"""Cost of an iteration with coarser grids, and of setting these up, in iterations."""

LONG_BELOW = 0.02  # tolerances below this take the longer schedule of primal-dual iterations, where there are two


@dataclass(frozen=True)
class Schedule:
    """Step sizes and momenta of FGP, and how far they get."""

    values: Tensor  # `(2, J, N)`, for J roughnesses in geometric progression
    coarse: bool  # whether it begins on coarser grids
    log_reach: Sequence[Sequence[float]]
    """Logarithms of the tolerances that it is taken for, by form and roughness `(4, PLACES)`:
    anisotropic, isotropic, and both with coupled channels."""

    @property
    def iterations(self) -> int:
        """N."""
        return int(self.values.shape[2])

    @property
    def cost(self) -> float:
        """In iterations."""
        return COARSE_SETUP + COARSE_COST * self.iterations if self.coarse else self.iterations

    def at(self, roughness: float) -> Tensor:
        """Step sizes and momenta `(2, N)` for one roughness."""
        below, share = between(roughness)
        return torch.lerp(self.values[:, below], self.values[:, below + 1], share)


@functools.cache
def _tensors() -> dict[str, Tensor]:
    return read_tensors(FILE)


@functools.cache
def denoising() -> tuple[Schedule, ...]:
    """The schedules of FGP, the cheapest first."""
    found = [_schedule(name) for name in _tensors() if name.startswith("denoise-") and not name.endswith(".reach")]
    return tuple(sorted(found, key=lambda schedule: schedule.cost))


def _schedule(name: str) -> Schedule:
    coarse = name.startswith("denoise-scales-")
    reach = _tensors()[f"{name}.reach"].double()
    margins = torch.full((len(reach), 1), MARGINS[coarse], dtype=torch.float64, device="cpu")
    margins[len(reach) // 2 :] *= COUPLED_MARGIN
    return Schedule(_tensors()[name].double(), coarse, (reach / margins).log().tolist())


def choose(roughness: float, tolerance: float, isotropic: bool, *, coarse: bool) -> Schedule:
    """The cheapest schedule that reaches a tolerance, or the longest; `coarse` says whether coarser grids are there."""
    below, share = between(roughness, PLACES)
    usable = [schedule for schedule in denoising() if coarse or not schedule.coarse]
    for schedule in usable:
        reach = schedule.log_reach[isotropic]
        if reach[below] + share * (reach[below + 1] - reach[below]) <= math.log(tolerance):
            return schedule
    return usable[-1]


def primal_dual(kind: str, tolerance: float) -> Tensor:
    """The numbers `(N, 3)` of relaxed PDHG for a kind of model: "saddle", "second", "counts" or "absolute"."""
    lengths = sorted(int(name.rpartition("-")[2]) for name in _tensors() if name.startswith(f"models-{kind}-"))
    return _tensors()[f"models-{kind}-{lengths[-1] if tolerance < LONG_BELOW else lengths[0]}"]


class _Struct(ctypes.Structure):
    """`Schedules` of loop.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("numbers", "reach", "horizons", "coarse")),
        *((name, ctypes.c_long) for name in ("count", "nodes")),
        *((name, ctypes.c_double) for name in ("lowest", "ratio")),
    )


class Table:
    """Schedules as C reads them, at `address`, while this object lives."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        cpu: Any = {"device": "cpu"}
        self._arrays = (
            torch.cat([schedule.values.flatten() for schedule in schedules]),
            torch.tensor([schedule.log_reach for schedule in schedules], dtype=torch.float64, **cpu),
            torch.tensor([schedule.iterations for schedule in schedules], dtype=torch.int64, **cpu),
            torch.tensor([schedule.coarse for schedule in schedules], dtype=torch.int64, **cpu),
        )
        pointers = (array.data_ptr() for array in self._arrays)
        self._struct = _Struct(*pointers, len(schedules), NODES, LOWEST, RATIO)
        self.address = ctypes.addressof(self._struct)


@functools.cache
def table() -> Table:
    """All schedules of FGP."""
    return Table(denoising())
