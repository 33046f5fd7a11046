"""What a reference method answers with: points, their values, and a proof of how good they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Optimum:
    """Certified answers for a batch, in float64 on the CPU: each infimum f* lies in [`bound`, `value`]."""

    x: Tensor
    """Points `(B, ...)`."""

    value: Tensor
    """f(x) `(B,)`, which no infimum can exceed."""

    bound: Tensor
    """Proven lower bounds on f* `(B,)`."""

    attained: Tensor
    """Which have a minimiser `(B,)`. Where there is none, f* is `bound`, and f falls to it along t x as t grows."""

    @classmethod
    def of(cls, x: Tensor, value: Tensor, bound: Tensor, attained: bool = True) -> Optimum:
        """Answers that are all of one kind."""
        return cls(x, value, bound, torch.full_like(value, attained, dtype=torch.bool))

    @property
    def gap(self) -> Tensor:
        """How far f(x) can be from f* `(B,)`."""
        return self.value - self.bound

    @property
    def infimum(self) -> Tensor:
        """f* `(B,)`, to within `gap` where it is attained, exactly where it is not."""
        return torch.where(self.attained, self.value, self.bound)
