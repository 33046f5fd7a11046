"""A composite of quadratic terms, whose minimisers are known: gaps, relative gaps, solvers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import lmd
from lmd.operators import Matrix
from lmd.problems import Composite
from lmd.problems.duality import relative_gap
from lmd.solvers import FGP, PDHG
from lmd.terms import Quadratic, Squares
from lmd.terms.base import add_scaled


class Ridge(Composite):
    """f(x) = c/2 ||x - a||^2 + offset, g(z) = 1/2 ||z - b||^2, so g*(p) = 1/2 ||p||^2 + <b, p>: not an indicator."""

    def __init__(self, matrix, a, b, c, offset=0.0):
        self.matrix, self.a, self.b, self.c = matrix, a, b, c
        identity = torch.eye(a.shape[1], dtype=a.dtype)
        f = Quadratic(c[:, None, None] * identity, -c[:, None] * a, offset + c / 2 * a.square().sum(1))
        super().__init__(f, (Squares(b, 0.5), Matrix(matrix)), start=torch.zeros_like(a))

    def minimiser(self):
        M = self.matrix
        left = self.c[:, None, None] * torch.eye(M.shape[1], dtype=M.dtype) + M.T @ M
        return torch.linalg.solve(left, self.c[:, None] * self.a + self.b @ M)


def ridge(seed=0, batch=3, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    matrix, a, b = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 5), (batch, 5), (batch, 4))
    )
    c = 0.5 + torch.rand(batch, generator=generator, dtype=torch.float64)
    return Ridge(matrix, a, b, c, offset)


@given(st.integers(0, 1000), st.floats(0, 10))
def test_the_gap_is_the_primal_minus_the_dual_value_and_bounds_the_true_gap(seed, size):
    problem = ridge(seed % 7)
    generator = torch.Generator().manual_seed(seed)
    x = problem.minimiser() + size * torch.randn(3, 5, generator=generator, dtype=torch.float64)
    p = size * torch.randn(3, 4, generator=generator, dtype=torch.float64)
    gap = problem.gap(x, p)
    assert_close(gap, problem.value(x) - problem.dual_value(p))
    assert bool((gap >= problem.value(x) - problem.minimum() - 1e-12 * problem.value(x)).all())


def test_the_gap_vanishes_at_the_saddle_point():
    problem = ridge()
    x = problem.minimiser()
    p = problem.operator(x) - problem.b
    assert_close(problem.gap(x, p), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
    assert_close(problem.dual_value(p), problem.minimum())
    assert_close(problem.f.tilted_minimiser(problem.operator.adjoint(p)), x)


@pytest.mark.parametrize(("offset", "kind"), [(0.0, "positive"), (-1000.0, "negative")])
def test_the_relative_gap_bounds_the_relative_distance_to_a_minimum_of_either_sign(offset, kind):
    problem = ridge(offset=offset)
    minimum = problem.minimum()
    assert bool((minimum > 0).all()) == (kind == "positive")
    x = problem.minimiser() + 0.1
    p = problem.operator(x) - problem.b
    distance = (problem.value(x) - minimum) / minimum.abs()
    relative = problem.relative_gap(x, p)
    assert bool((relative >= distance).all()) and bool((relative < 20 * distance).all())


def test_the_relative_gap_is_infinite_where_the_sign_of_the_minimum_is_open_and_0_where_there_is_no_gap():
    problem = ridge(offset=-1.0)
    x = torch.full((3, 5), 10.0, dtype=torch.float64)
    assert bool(problem.relative_gap(x, torch.full((3, 4), 10.0, dtype=torch.float64)).isinf().all())
    flat = Ridge(torch.zeros(4, 5), torch.zeros(1, 5), torch.zeros(1, 4), torch.ones(1))
    assert_close(flat.relative_gap(torch.zeros(1, 5), torch.zeros(1, 4)), torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("solver", [FGP(), FGP(restart=True), PDHG(), PDHG(accelerated=False)], ids=str)
def test_solvers_take_a_strong_convexity_and_a_conjugate_per_instance(solver):
    problem = ridge()
    x0 = torch.zeros(3, 5, dtype=torch.float64)
    result = lmd.run(solver, problem, x0, tolerance=1e-6, iterations=3000)
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}
    distance = (result.x - problem.minimiser()).square().sum(1)
    assert bool((distance <= 2e-6 * problem.minimum() / problem.c).all())  # by strong convexity
    for i in range(3):
        alone = lmd.run(solver, problem.select(i), x0[:1], tolerance=1e-6, iterations=3000)
        assert_close(alone.x[0], result.x[i], rtol=1e-10, atol=1e-10)
        assert int(alone.iterations) == int(result.iterations[i])


def test_a_matrix_for_each_instance_is_selected_with_it():
    generator = torch.Generator().manual_seed(9)
    matrices, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 4, 5), (3, 4)))
    x = torch.ones(3, 5, dtype=torch.float64)
    problem = Composite(Squares(x, 0.5), (Squares(b, 0.5), Matrix(matrices)), start=x)
    for i in range(3):
        alone = Composite(Squares(x, 0.5), (Squares(b, 0.5), Matrix(matrices[i])), start=x)
        expected = alone.value(x)[i : i + 1]
        assert_close(problem.value(x)[i : i + 1], expected)
        assert_close(problem.select(i).value(x[i : i + 1]), expected)


def test_a_scale_per_instance():
    x, direction = torch.ones(2, 3), torch.full((2, 3), 2.0)
    expected = torch.tensor([[2.0] * 3, [3.0] * 3])
    assert_close(add_scaled(x, torch.tensor([0.5, 1.0]), direction), expected)
    assert_close(add_scaled(x, 0.5, x), torch.full((2, 3), 1.5))


def test_a_mixture_of_smoothings_is_the_mean_of_their_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    noisy, x = (torch.rand(2, 1, 8, 9, dtype=torch.float64, generator=generator) for _ in range(2))
    problem, widths, shares = (
        lmd.problems.TVDenoising(noisy, 0.3),
        noisy.new_tensor([0.1, 0.5]),
        noisy.new_tensor([0.3, 0.7]),
    )
    own = problem.mixed_gradient(x, widths, shares)
    general = lmd.problems.Problem.mixed_gradient(problem, x, widths, shares)
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in zip(own, general, strict=True))


def test_a_value_of_zero_with_a_gap_is_not_proven():
    value, gap = torch.tensor([0.0, -0.0, 0.0], dtype=torch.float64), torch.tensor([1e-9, 1e-9, 0.0]).double()
    assert relative_gap(value, gap).tolist() == [float("inf"), float("inf"), 0.0]
