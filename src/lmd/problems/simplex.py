"""Two classes of problems on the probability simplex with known minimisers: section 2 of the paper, Figure 1."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lmd.core.batching import to_double
from lmd.core.checks import check_batch, check_choice, check_count
from lmd.problems.base import Family, Problem
from lmd.terms import Simplex
from lmd.terms.domains import check_rows
from lmd.terms.entropy import divergence


class SimplexProblem(Problem):
    """A distance to a point y of the simplex, minimised over the simplex; the minimiser is y itself.

    Args:
        y: `(B, d)`, points of the simplex.
    """

    batched = ("y",)
    domain = Simplex()

    def __init__(self, y: Tensor) -> None:
        self.y = self.domain.check("y", check_rows("y", check_batch("y", y)))
        self.point_shape = y.shape[1:]

    double = to_double

    def minimiser(self) -> Tensor:
        return self.y


def kl_divergence(x: Tensor, y: Tensor) -> Tensor:
    r"""Return \sum_i x_i log(x_i / y_i) - x_i + y_i `(B,)` for x, y `(B, d)`, which is KL(x || y) on the simplex.

    The sum is evaluated without cancellation near y and is never negative (`lmd.terms.entropy.divergence`).
    Entries of x and y below the smallest normal number are raised to that number.
    """
    tiny = torch.finfo(x.dtype).tiny
    return divergence(x.clamp(min=tiny), y.clamp(min=tiny)).sum(dim=1)


class KLDivergence(SimplexProblem):
    r"""f(x) = KL(x || y) = \sum_i x_i log(x_i / y_i) over the simplex; x, y `(B, d)`.

    `kl_divergence` evaluates f with y_i - x_i added to each term; their sum is 0 on the simplex. Therefore the gradient
    log(x / y) differs from the usual one by the constant 1, which is orthogonal to the simplex.
    """

    def value(self, x: Tensor) -> Tensor:
        return kl_divergence(x, self.y)

    def subgradient(self, x: Tensor) -> Tensor:
        tiny = torch.finfo(x.dtype).tiny
        return x.clamp(min=tiny).log() - self.y.clamp(min=tiny).log()


class SquaredDistance(SimplexProblem):
    """f(x) = ||x - y||^2 over the simplex; x and y, points of the simplex, `(B, d)`."""

    def value(self, x: Tensor) -> Tensor:
        return (x - self.y).square().sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        return 2 * (x - self.y)

    @property
    def smoothness(self) -> Tensor:
        return torch.tensor(2.0, dtype=self.y.dtype, device=self.y.device)

    @property
    def strong_convexity(self) -> Tensor:
        return self.smoothness


def uniform_simplex(batch: int, dimension: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw points `(batch, dimension)` uniformly on the simplex, by normalising exponential variables."""
    exponential = -torch.log1p(-torch.rand(batch, dimension, generator=generator, dtype=dtype, device=generator.device))
    exponential = exponential.clamp(min=torch.finfo(dtype).tiny)
    return exponential / exponential.sum(dim=1, keepdim=True)


class SimplexFamily(Family):
    """Problems with targets y and starting points that are uniform on the simplex of d entries.

    Args:
        objective: "kl", for `KLDivergence`, or "least-squares", for `SquaredDistance`.
        dimension: d, at least 2.
        dtype: The dtype of the problems and the starting points.
    """

    name = "simplex"
    objectives: ClassVar[dict[str, type[SimplexProblem]]] = {"kl": KLDivergence, "least-squares": SquaredDistance}

    def __init__(self, objective: str = "kl", dimension: int = 3, dtype: torch.dtype = torch.float64) -> None:
        self.objective = check_choice("objective", objective, tuple(self.objectives))
        self.dimension = check_count("dimension", dimension, least=2)
        self.dtype = dtype

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        y = uniform_simplex(batch, self.dimension, generator, self.dtype)
        x0 = uniform_simplex(batch, self.dimension, generator, self.dtype)
        return self.objectives[self.objective](y), x0
