"""Two classes of problems on the probability simplex whose minimiser is known: section 2 of the paper, Figure 1."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.checks import check_batch, check_choice, check_count
from lmd.problems.base import Family, Problem
from lmd.problems.domains import Simplex, check_rows


class SimplexProblem(Problem):
    """A distance to a point y of the simplex, minimised over the simplex; the minimiser is y `(B, d)` itself."""

    batched = ("y",)
    domain = Simplex()

    def __init__(self, y: Tensor) -> None:
        self.y = self.domain.check("y", check_rows("y", check_batch("y", y)))

    def minimiser(self) -> Tensor:
        return self.y


class KLDivergence(SimplexProblem):
    r"""f(x) = KL(x || y) = \sum_i x_i log(x_i / y_i) over the simplex; x, y `(B, d)`.

    Evaluated as \sum_i y_i ((1 + u_i) log(1 + u_i) - u_i), u = (x - y) / y: the same number on the simplex, as both x
    and y sum to one, with terms that are never negative. The sum of the textbook form cancels and bottoms out at the
    rounding of 1; this one is accurate far below it. Its gradient log(x / y) differs from the textbook's by the
    constant 1, which is orthogonal to the simplex.
    """

    def value(self, x: Tensor) -> Tensor:
        tiny = torch.finfo(x.dtype).tiny
        y = self.y.clamp(min=tiny)
        u = ((x - y) / y).clamp(min=-1)
        # Where x = 0 the term is y; xlogy gives 0 log 0 = 0, log1p keeps the digits of a small u.
        product = torch.where(u > -0.5, (1 + u) * torch.log1p(u.clamp(min=-0.5)), torch.special.xlogy(1 + u, 1 + u))
        return (y * (product - u)).sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        tiny = torch.finfo(x.dtype).tiny
        return x.clamp(min=tiny).log() - self.y.clamp(min=tiny).log()


class SquaredDistance(SimplexProblem):
    """f(x) = ||x - y||^2 over the simplex; x, y `(B, d)`."""

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
    """`(batch, dimension)` points uniform on the simplex: normalised exponential variables."""
    exponential = -torch.log1p(-torch.rand(batch, dimension, generator=generator, dtype=dtype, device=generator.device))
    exponential = exponential.clamp(min=torch.finfo(dtype).tiny)
    return exponential / exponential.sum(dim=1, keepdim=True)


class SimplexFamily(Family):
    """Targets y and starting points, both uniform on the simplex of dimension d."""

    name = "simplex"
    objectives = {"kl": KLDivergence, "least-squares": SquaredDistance}

    def __init__(self, objective: str = "kl", dimension: int = 3, dtype: torch.dtype = torch.float64) -> None:
        self.objective = check_choice("objective", objective, tuple(self.objectives))
        self.dimension = check_count("dimension", dimension, least=2)
        self.dtype = dtype

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        y = uniform_simplex(batch, self.dimension, generator, self.dtype)
        x0 = uniform_simplex(batch, self.dimension, generator, self.dtype)
        return self.objectives[self.objective](y), x0
