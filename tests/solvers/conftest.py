"""Problems and mirrors that the solver tests share."""

import collections

import pytest
import torch

from lmd.mirrors import Quadratic
from lmd.problems import LeastSquares, Problem


class Bowls(Problem):
    """f_i(x) = curvature_i / 2 ||x||^2 - wall_i sum log x: NaN beyond the wall, where there is one."""

    batched = ("curvature", "wall")

    def __init__(self, curvature, wall=None):
        self.curvature = torch.as_tensor(curvature, dtype=torch.float64)
        self.wall = torch.zeros_like(self.curvature) if wall is None else torch.as_tensor(wall, dtype=torch.float64)

    def value(self, x):
        logs = torch.where(self.wall[:, None] > 0, x, 1.0).log()
        return 0.5 * self.curvature * x.square().sum(dim=1) - self.wall * logs.sum(dim=1)

    def subgradient(self, x):
        return self.curvature[:, None] * x - self.wall[:, None] / x


class CountingProblem(LeastSquares):
    """Least squares that counts how often it is evaluated."""

    def __init__(self, W, b):
        super().__init__(W, b)
        self.calls = collections.Counter()

    def value(self, x):
        self.calls["value"] += 1
        return super().value(x)

    def subgradient(self, x):
        self.calls["subgradient"] += 1
        return super().subgradient(x)


class CountingMirror(Quadratic):
    """A quadratic mirror that counts how often its maps are evaluated."""

    def __init__(self, dimension, **arguments):
        super().__init__(dimension, **arguments)
        self.calls = collections.Counter()

    def to_dual(self, x):
        self.calls["to_dual"] += 1
        return super().to_dual(x)

    def to_primal(self, y, tolerance=None):
        self.calls["to_primal"] += 1
        return super().to_primal(y, tolerance)


@pytest.fixture
def bowls():
    return Bowls


@pytest.fixture
def counting_problem():
    return CountingProblem(torch.tensor([[2.0, 1.0], [1.0, 2.0]]).double(), torch.ones(3, 2).double())


@pytest.fixture
def counting_mirror():
    return CountingMirror(2).double()


@pytest.fixture
def least_squares():
    """The paper's matrix with 7 right-hand sides, and starting points."""
    generator = torch.Generator().manual_seed(0)
    b = torch.randn(7, 2, dtype=torch.float64, generator=generator)
    x0 = torch.randn(7, 2, dtype=torch.float64, generator=generator)
    return LeastSquares(torch.tensor([[2.0, 1.0], [1.0, 2.0]]).double(), b), x0
