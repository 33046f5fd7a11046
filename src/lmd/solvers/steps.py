"""Step sizes per iteration: fixed, scheduled or learned. `steps(k)` is the step of iteration k = 0, 1, 2, ..."""

from __future__ import annotations

import abc

import torch
from torch import Tensor, nn

from lmd.core.checks import check_choice, check_count, check_finite, check_interval, check_positive
from lmd.core.config import Configurable
from lmd.errors import InputError

Step = float | Tensor

EXTENSIONS = ("last", "mean", "min", "max", "decay")


class Steps(nn.Module, Configurable, abc.ABC):
    """A rule for the step size t_k of iteration k."""

    @abc.abstractmethod
    def forward(self, k: int) -> Step:
        """Return t_k for k = 0, 1, 2, ..."""


class FixedSteps(Steps):
    """t_k = size / (k + 1)^power: power 1/2 for non-smooth problems, 1 for strongly convex ones.

    Args:
        size: t_0, positive.
        power: The rate at which steps fall; 0 is constant steps.
    """

    def __init__(self, size: float, power: float = 0.0) -> None:
        super().__init__()
        self.size = check_positive("size", size)
        self.power = check_positive("power", power, zero=True)

    def forward(self, k: int) -> Step:
        return float(self.size / (k + 1) ** self.power)


class LearnedSteps(Steps):
    """One learned step per iteration, clipped to `interval`, and a rule for the iterations after the trained ones.

    After N iterations the step is the `last`, `mean`, `min` or `max` of the learned steps t_1, ..., t_N. With `decay`
    it is c / k^power in iteration k = N + 1, N + 2, ..., where c is the mean of j^power t_j over j = 1, ..., N.

    `min` is safe, because training may find single steps that are too long to be repeated. With an exact mirror, or in
    `LazyMirrorDescent`, `decay` with power 1/2 is safe too and converges for problems that are not smooth.

    Args:
        iterations: N.
        initial: Value of each step before training, inside the interval.
        interval: The interval (low, high) to which steps are clipped.
        extension: The rule for steps past N: "last", "mean", "min", "max" or "decay".
        power: The exponent of "decay", positive.
    """

    def __init__(
        self,
        iterations: int,
        initial: float = 0.01,
        interval: tuple[float, float] = (1e-3, 1e-1),
        extension: str = "min",
        power: float = 1.0,
    ) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations)
        self.interval = check_interval("interval", interval)
        if self.interval[0] < 0:
            raise InputError("interval", self.interval, "two numbers (low, high) with 0 <= low < high")
        self.initial = check_positive("initial", initial)
        if not self.interval[0] <= initial <= self.interval[1]:
            raise InputError("initial", initial, f"a step inside the interval {self.interval}")
        self.extension = check_choice("extension", extension, EXTENSIONS)
        self.power = check_positive("power", power)
        self.sizes = nn.Parameter(torch.full((iterations,), float(initial)))

    def forward(self, k: int) -> Step:
        if k < self.iterations:
            return self.sizes[k]
        if self.extension == "decay":
            index = torch.arange(1, self.iterations + 1, dtype=self.sizes.dtype, device=self.sizes.device)
            scale = (index**self.power * self.sizes).mean()
            return scale / float(k + 1) ** self.power
        return self.sizes[-1] if self.extension == "last" else getattr(self.sizes, self.extension)()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clip the learned steps to the interval."""
        check_finite("learned steps", self.sizes)
        self.sizes.clamp_(*self.interval)


def as_steps(steps: Steps | float) -> Steps:
    """Return a rule unchanged, and for a number the rule of this constant step."""
    if isinstance(steps, Steps):
        return steps
    if isinstance(steps, (int, float)) and not isinstance(steps, bool):
        return FixedSteps(check_positive("steps", steps))
    raise InputError("steps", type(steps).__name__, "a positive number or an lmd.solvers.Steps")
