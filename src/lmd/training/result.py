"""What a training run hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmd.solvers.base import Solver


@dataclass(frozen=True)
class TrainingResult:
    """The trained solver and how the training went."""

    solver: Solver[Any]
    steps: int
