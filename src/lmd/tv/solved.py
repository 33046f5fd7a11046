"""What a whole solve ends with, instance by instance."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor


class End(IntEnum):
    """Why a solve of one instance ended; the first three as in C."""

    OUT_OF_ITERATIONS = 1
    REACHED = 2
    """The gap is within the tolerance."""

    STUCK = 3
    """The gap did not fall for long: by rounding, or because convergence is slow."""

    ROUNDED = 4
    """Rounding keeps the gap from falling."""

    NOT_FEASIBLE = 5
    """x violates the constraints."""

    SLOW = 6
    """The gap did not fall for long in float32, in which that may be rounding."""


class Outcome(NamedTuple):
    """The end of one instance."""

    iterations: int
    end: int  # a member of `End`
    value: float  # F(x)
    gap: float  # a bound on F(x) - min F, with room for its rounding


class Solved(NamedTuple):
    """The answer of a whole solve."""

    x: Tensor
    dual: Tensor
    outcomes: Sequence[Outcome]

    @property
    def gaps(self) -> Tensor:
        """The bounds on F(x) - min F `(B,)`, in float64."""
        gaps = [outcome.gap for outcome in self.outcomes]
        return torch.tensor(gaps, dtype=torch.float64, device=self.x.device)

    def ended(self, *ends: int) -> Tensor:
        """Which instances ended in one of these ways `(B,)`."""
        found = [outcome.end in ends for outcome in self.outcomes]
        return torch.tensor(found, dtype=torch.bool, device=self.x.device)

    def updated(self, part: Tensor, x: Tensor, dual: Tensor, outcomes: Sequence[Outcome]) -> Solved:
        """The same with other outcomes of the instances in `part` `(B,)`, and their points where the gap is smaller.

        The iterations of both are added up. Where the gap is not smaller, value and gap stay as they are.
        """
        new_x, new_dual, merged = self.x.clone(), self.dual.clone(), list(self.outcomes)
        for n, place in enumerate(part.nonzero().flatten().tolist()):
            old, new = merged[place], outcomes[n]
            better = new.gap < old.gap
            if better:
                new_x[place], new_dual[place] = x[n], dual[n]
            best = new if better else old
            merged[place] = best._replace(iterations=old.iterations + new.iterations, end=new.end)
        return Solved(new_x, new_dual, merged)
