"""Learned schedules: step sizes and momenta of the first iterations, and the choice of one for a tolerance.

benchmarks/schedules.py writes schedules.safetensors. The file holds the schedules by name; its metadata gives the
command, the seed and the training data of each:

- `denoise-steps-N` and `denoise-scales-N` `(2, J, N)`: step sizes and momenta of `LearnedFGP` for J roughnesses, from
  p = 0 and from coarser grids; `NAME.reach` `(4, PLACES)` is the relative gap that is proven after N iterations.
- `models-KIND-N` `(N, 3)`: a_k, c_k and r_k of `PrimalDual`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.core.files import read_tensors
from lmd.solvers.learned.primal_dual import PLACES, between

FILE = Path(__file__).with_name("schedules.safetensors")

MARGINS = {False: 0.9, True: 0.8}
"""Share of the tolerance that a schedule must reach, without (False) and with (True) coarser grids. A schedule that
misses the tolerance costs a gap evaluation and more iterations. Results from coarser grids vary more between images."""

COUPLED_MARGIN = 0.6
"""Further factor for coupled channels: their gaps fall faster, so that a longer schedule costs little."""

COARSE_COST, COARSE_SETUP = 1.38, 4
"""Cost of an iteration with coarser grids, and cost of building these grids, in iterations on the full grid."""

LONG_BELOW = 0.02  # tolerances below this take the longer of two primal-dual schedules


@dataclass(frozen=True)
class Schedule:
    """Step sizes and momenta of FGP, and the gaps that they reach."""

    values: Tensor  # `(2, J, N)`, for J roughnesses in geometric progression
    coarse: bool  # whether it begins on coarser grids
    log_reach: Sequence[Sequence[float]]
    """Logarithm of the least tolerance for which this schedule is chosen, by form and roughness `(4, PLACES)`;
    the forms are anisotropic, isotropic, and both with coupled channels."""

    @property
    def iterations(self) -> int:
        """N, the number of iterations."""
        return int(self.values.shape[2])

    @property
    def cost(self) -> float:
        """The cost of the schedule, in units of an iteration on the full grid."""
        return COARSE_SETUP + COARSE_COST * self.iterations if self.coarse else self.iterations

    def at(self, roughness: float) -> Tensor:
        """Return step sizes and momenta `(2, N)` for one roughness."""
        below, share = between(roughness)
        return torch.lerp(self.values[:, below], self.values[:, below + 1], share)


@functools.cache
def _tensors() -> dict[str, Tensor]:
    return read_tensors(FILE)


@functools.cache
def denoising() -> tuple[Schedule, ...]:
    """Return the schedules of FGP, the cheapest first."""
    found = [_schedule(name) for name in _tensors() if name.startswith("denoise-") and not name.endswith(".reach")]
    return tuple(sorted(found, key=lambda schedule: schedule.cost))


def _schedule(name: str) -> Schedule:
    coarse = name.startswith("denoise-scales-")
    reach = _tensors()[f"{name}.reach"].double()
    margins = torch.full((len(reach), 1), MARGINS[coarse], dtype=torch.float64, device="cpu")
    margins[len(reach) // 2 :] *= COUPLED_MARGIN
    return Schedule(_tensors()[name].double(), coarse, (reach / margins).log().tolist())


def choose(roughness: float, tolerance: float, isotropic: bool, *, coarse: bool) -> Schedule:
    """Return the cheapest schedule that reaches a tolerance, or the costliest; `coarse` allows coarser grids."""
    below, share = between(roughness, PLACES)
    usable = [schedule for schedule in denoising() if coarse or not schedule.coarse]
    for schedule in usable:
        reach = schedule.log_reach[isotropic]
        if reach[below] + share * (reach[below + 1] - reach[below]) <= math.log(tolerance):
            return schedule
    return usable[-1]


def primal_dual(kind: str, tolerance: float) -> Tensor:
    """Return a_k, c_k, r_k `(N, 3)` of relaxed PDHG for a kind: "saddle", "second", "counts" or "absolute"."""
    lengths = sorted(int(name.rpartition("-")[2]) for name in _tensors() if name.startswith(f"models-{kind}-"))
    return _tensors()[f"models-{kind}-{lengths[-1] if tolerance < LONG_BELOW else lengths[0]}"]


class Table(NamedTuple):
    """Tensors of n schedules, in the layout of C."""

    numbers: Tensor  # step sizes and momenta: `(2, J, N)` of each schedule, flattened and joined
    reach: Tensor  # logarithms of tolerances `(n, 4, PLACES)`
    horizons: Tensor  # numbers of iterations N `(n,)`
    coarse: Tensor  # whether schedules begin on coarser grids `(n,)`


def table_of(schedules: Sequence[Schedule]) -> Table:
    """Return the tensors of these schedules in the layout of C."""
    whole: Any = {"dtype": torch.int64, "device": "cpu"}
    return Table(
        torch.cat([schedule.values.flatten() for schedule in schedules]),
        torch.tensor([schedule.log_reach for schedule in schedules], dtype=torch.float64, device="cpu"),
        torch.tensor([schedule.iterations for schedule in schedules], **whole),
        torch.tensor([schedule.coarse for schedule in schedules], **whole),
    )


@functools.cache
def table() -> Table:
    """Return all schedules of FGP."""
    return table_of(denoising())
