import math

import pytest
import torch

import lmd
from lmd.problems import LeastSquares, PenalisedProblem, Problem
from lmd.solvers import ProximalGradient
from lmd.terms import L1, Box, Simplex
from lmd.terms.domains import project_simplex

F64 = torch.float64
Y = torch.tensor([[2.0, 0.3, -1.0], [0.2, 0.2, 0.9]], dtype=F64)


class Distance(Problem):
    """unit sum l_i (x_i - y_i)^2, of which nothing but the value is known."""

    def __init__(self, domain, unit=1.0, curvatures=(1.0, 1.0, 1.0)):
        self.domain, self.unit, self.curvatures = domain, unit, torch.tensor(curvatures, dtype=F64)

    def value(self, x):
        return self.unit * (1 + (self.curvatures * (x - Y[: len(x)]).square()).sum(dim=1))


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("domain", [Simplex(), Box(0.0, 1.0), Box(0.0, math.inf)])
def test_values_alone_are_enough_in_any_units(domain, unit):
    x0 = torch.full((2, 3), 1 / 3, dtype=F64)
    result = lmd.run(ProximalGradient(), Distance(domain, unit), x0, 60)
    nearest = project_simplex(Y) if isinstance(domain, Simplex) else domain.nearest(Y)
    torch.testing.assert_close(result.x, nearest, rtol=1e-6, atol=1e-6)


def test_restarts_adapt_to_strong_convexity():
    problem = Distance(Box(0.0, 1.0), curvatures=(1.0, 1e-2, 1e-4))
    result = lmd.run(ProximalGradient(), problem, torch.full((2, 3), 0.5, dtype=F64), 600)
    torch.testing.assert_close(result.values, problem.value(Y.clamp(0, 1)), rtol=1e-12, atol=0)


def test_it_stays_where_nothing_is_lower_and_says_so():
    solver, problem = ProximalGradient(), Distance(Simplex())
    state = solver.init(problem, torch.full((2, 3), 1 / 3, dtype=F64))
    for _ in range(200):
        state = solver.step(problem, state)
    assert bool(state.settled.all()) and torch.equal(solver.step(problem, state).x, state.x)


def test_a_penalty_is_handled_by_its_prox():
    W, b = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=F64), torch.ones(3, 8, dtype=F64)
    problem = PenalisedProblem(LeastSquares(W, b), L1(3.0))
    result = lmd.solve(problem, 1e-8, x0=torch.zeros(3, 4, dtype=F64))
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}
    by_dual = lmd.solve(lmd.problems.Lasso(W, b, 1.5), 1e-9)
    torch.testing.assert_close(result.values, 2 * by_dual.values, rtol=1e-6, atol=1e-6)
