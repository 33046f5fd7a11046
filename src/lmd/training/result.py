"""What a training run hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmd.solvers.base import Solver
from lmd.training.log import LogLine


@dataclass(frozen=True)
class Validation:
    """What the unrolled loss is made of on the held-out batch, after some number of updates."""

    updates: int
    value: float
    inconsistency: float

    def loss(self, consistency_weight: float) -> float:
        """The loss at a weight s of the inconsistency."""
        return self.value + consistency_weight * self.inconsistency


@dataclass(frozen=True)
class TrainingResult:
    """The trained solver and how the training went."""

    solver: Solver[Any]
    """The solver that was passed in, with the best weights on validation; the last ones where there was none."""

    updates: int
    """Updates done, over all the sessions of the run."""

    skipped: int
    """Batches that were left out because their loss or gradient was not finite."""

    seconds: float
    """Time spent, over all the sessions of the run."""

    final_validation: Validation | None
    """On the held-out batch, after the last update; None where nobody looked."""

    best_validation: Validation | None
    """That of the weights which the solver has now; None where nobody looked."""

    improved: bool | None
    """Whether the solver became better on the held-out batch than it was; None where nobody looked."""

    records: tuple[LogLine, ...]
    """The log, one record per line of it."""

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """The numbers of updates after which an entry of the log was recorded, and its values there."""
        rows = [(record["updates"], record[name]) for record in self.records if record.get(name) is not None]
        return [done for done, _ in rows], [value for _, value in rows]
