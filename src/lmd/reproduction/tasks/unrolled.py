"""What the recipes of learned solvers on dual and saddle forms share: the ones that `lmd.solve` uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lmd.problems import Family
from lmd.reproduction.tasks.sources import Images
from lmd.solvers import Solver
from lmd.training.solved import SolvedFamily

WEIGHT = 0.3
"""The weight of the total variation, as in the paper, for images in [0, 1]."""

PHOTOGRAPHS = Images()
CROPS = {"quick": 24, "standard": 48, "paper": 64}
POOLS = {"quick": 60, "standard": 1000, "paper": 4000}
"""Instances that are drawn and solved before training begins."""

WEAK = (
    "Only the last trained iterate is good, not those before it: to stop early, take the solver of fewer iterations. "
)


def solved(
    family: Family,
    preset: str,
    solver: Solver[Any],
    share: int = 1,
    iterations: int = 1000,
    finish: Callable[[Any, Tensor], Tensor] | None = None,
) -> Family:
    """The family with solutions, in a pool that is this many times smaller than the usual one."""
    iterations = 300 if preset == "quick" else iterations
    return SolvedFamily(family, POOLS[preset] // share, solver, iterations=iterations, finish=finish)


def training(objective: str, learning_rate: float, updates: int = 2000, batch: int = 6) -> dict[str, dict[str, Any]]:
    """Arguments of `lmd.train` by preset; many iterations are sensitive to their kernels and want a smaller rate."""
    shared: dict[str, Any] = {
        "objective": objective,
        "value_weights": "last",
        "learning_rate": learning_rate,
        "schedule": "cosine",
        "clip_gradient": 5.0,
    }
    larger = {"updates": updates, "batch": batch, "warmup": 50, "validation_batch": 50, "checkpoint_every": 200}
    return {
        "quick": {**shared, "updates": 60, "batch": 4, "warmup": 5},
        "standard": {**shared, **larger},
        "paper": {**shared, "updates": 10_000, "batch": 16, "warmup": 50, "validation_batch": 100},
    }
