"""What a reference solver answers with: a point, its value, and a proof of how good it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Optimum:
    """A certified answer, in float64: the infimum f* of the function lies in [`bound`, `value`]."""

    x: Tensor
    """A point whose value is `value`, in the shape of one instance."""

    value: float
    """f(x), which no infimum can exceed."""

    bound: float
    """A proven lower bound on f*."""

    attained: bool = True
    """Whether there is a minimiser. Where there is none, f* is `bound`, and f falls to it along t x as t grows."""

    @property
    def gap(self) -> float:
        """How far f(x) can be from f*."""
        return self.value - self.bound

    @property
    def infimum(self) -> float:
        """f*, to within `gap` where it is attained, exactly where it is not."""
        return self.value if self.attained else self.bound
