import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import DomainError
from lmd.problems import SimplexFamily
from lmd.solvers import GradientDescent
from lmd.solvers.steps import FixedSteps
from lmd.terms import Box
from lmd.terms.domains import project_simplex


def test_gradient_descent_against_its_closed_form(least_squares):
    """x_k - x* = (I - 2 t W'W)^k (x_0 - x*)."""
    problem, x0 = least_squares
    result = lmd.run(GradientDescent(0.05), problem, x0, iterations=12)
    contraction = torch.eye(2, dtype=torch.float64) - 2 * 0.05 * problem.W.T @ problem.W
    expected = (x0 - problem.minimiser()) @ torch.linalg.matrix_power(contraction, 12) + problem.minimiser()
    assert_close(result.x, expected)
    assert_close(result.values, problem.value(expected))


def test_steps_are_taken_one_by_one(least_squares):
    problem, x0 = least_squares
    x = x0
    for k in range(5):
        x = x - 0.1 / (k + 1) * problem.subgradient(x)
    assert_close(lmd.run(GradientDescent(FixedSteps(0.1, 1.0)), problem, x0, iterations=5).x, x)


@pytest.mark.parametrize("objective", ["kl", "least-squares"])
def test_projected_gradient_on_the_simplex(objective):
    problem, x0 = SimplexFamily(objective, 4).sample(7, torch.Generator().manual_seed(0))
    result = lmd.run(GradientDescent(0.1), problem, x0, iterations=3)
    x = x0
    for _ in range(3):
        x = project_simplex(x - 0.1 * problem.subgradient(x))
    assert_close(result.x, x)
    problem.domain.check("x", result.x)


def test_projected_gradient_finds_the_constrained_minimum():
    class Shifted(lmd.problems.Problem):
        domain = Box(0, 1)

        def value(self, x):
            return (x - torch.tensor([2.0, 0.5, -1.0])).square().sum(dim=1)

    result = lmd.run(GradientDescent(0.25), Shifted(), torch.full((2, 3), 0.5), iterations=60)
    assert_close(result.x, torch.tensor([[1.0, 0.5, 0.0]]).expand(2, 3))


def test_it_needs_a_start_inside_the_domain():
    problem, x0 = SimplexFamily().sample(2, torch.Generator().manual_seed(0))
    with pytest.raises(DomainError, match=r"^x0: got instance 1, which is 1 outside"):
        lmd.run(GradientDescent(0.1), problem, x0 * torch.tensor([[1.0], [2.0]]).double())
