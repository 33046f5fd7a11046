import math

import torch
from torch.testing import assert_close

import lmd
from lmd.problems import SimplexFamily
from lmd.problems.simplex import SquaredDistance
from lmd.solvers import GradientDescent, Nesterov
from lmd.terms.domains import project_simplex


def test_against_the_recursion_written_out(least_squares):
    problem, x0 = least_squares
    x, y, m = x0, x0, 1.0
    for _ in range(8):
        new = y - 0.05 * problem.subgradient(y)
        m_next = (1 + math.sqrt(1 + 4 * m * m)) / 2
        x, y, m = new, new + (m - 1) / m_next * (new - x), m_next
    assert_close(lmd.run(Nesterov(0.05), problem, x0, iterations=8).x, x)


def test_the_rate_of_the_theorem(least_squares):
    """f(x_k) - f* <= 2 L ||x_0 - x*||^2 / (k + 1)^2 with steps of 1/L."""
    problem, x0 = least_squares
    L = float(problem.smoothness)
    values = lmd.run(Nesterov(1 / L), problem, x0, iterations=40).history.values[1:]
    k = torch.arange(1, 41, dtype=torch.float64)[:, None]
    bound = 2 * L * (x0 - problem.minimiser()).square().sum(dim=1) / (k + 1).square()
    assert bool((values - problem.minimum() <= bound).all())


def test_every_point_is_projected_onto_the_simplex():
    """The targets are vertices, which momentum overshoots."""
    _, x0 = SimplexFamily(dimension=4).sample(4, torch.Generator().manual_seed(0))
    problem, solver = SquaredDistance(torch.eye(4, dtype=torch.float64)), Nesterov(0.1)
    x, y, m, outside = x0, x0, 1.0, 0.0
    state = solver.init(problem, x0)
    for _ in range(10):
        new = project_simplex(y - 0.1 * problem.subgradient(y))
        m_next = (1 + math.sqrt(1 + 4 * m * m)) / 2
        ahead = new + (m - 1) / m_next * (new - x)
        outside = max(outside, float(problem.domain.violation(ahead).max()))
        x, y, m = new, project_simplex(ahead), m_next
        state = solver.step(problem, state)
        assert_close(state.x, x)
        assert_close(state.extrapolated, y)
    assert outside > 0.01, "the test should see momentum leave the simplex"


def test_beats_gradient_descent():
    problem, x0 = SimplexFamily("least-squares", 4).sample(7, torch.Generator().manual_seed(0))
    fast, slow = (lmd.run(solver, problem, x0, iterations=10) for solver in (Nesterov(0.02), GradientDescent(0.02)))
    assert bool((fast.values < slow.values).all())
