"""A composite problem with nothing of its own but the abstract methods: what the base class makes of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import lmd
from lmd import operators
from lmd.problems import CompositeProblem, LinearOperator
from lmd.problems.composite import relative_gap
from lmd.solvers import FGP, PDHG
from lmd.terms.base import add_scaled, per_instance


class Matrix(LinearOperator):
    """x `(B, n)` to `(B, m)`."""

    def __init__(self, matrix):
        self.matrix = matrix

    @property
    def norm(self):
        return float(torch.linalg.matrix_norm(self.matrix, 2))

    def _apply(self, x):
        return x @ self.matrix.T

    def _adjoint(self, z):
        return z @ self.matrix


class Ridge(CompositeProblem):
    """f(x) = c/2 ||x - a||^2 + offset, g(z) = 1/2 ||z - b||^2, so g*(p) = 1/2 ||p||^2 + <b, p>: not an indicator."""

    batched = ("a", "b", "c")

    def __init__(self, matrix, a, b, c, offset=0.0):
        self.operator, self.a, self.b, self.c, self.offset = Matrix(matrix), a, b, c, offset

    @property
    def data_strong_convexity(self):
        return self.c

    @property
    def data_smoothness(self):
        return self.c

    def data_value(self, x):
        return self.c / 2 * (x - self.a).square().sum(1) + self.offset

    def data_prox(self, x, step, out=None):
        pull = per_instance(step * self.c, x)
        return torch.lerp(x, self.a, pull / (1 + pull), out=out)

    def tilted_minimiser(self, u, out=None):
        return add_scaled(self.a, -1 / self.c, u, out=out)

    def regulariser_value(self, z):
        return 0.5 * (z - self.b).square().sum(1)

    def project_dual(self, p, out=None):
        return p

    def dual_prox(self, p, step, out=None):
        step = per_instance(step, p)
        return torch.div(p - step * self.b, 1 + step, out=out)

    def regulariser_conjugate(self, p):
        return 0.5 * p.square().sum(1) + (self.b * p).sum(1)

    def minimiser(self):
        M = self.operator.matrix
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
    assert_close(problem.primal_from_dual(p), x)


def test_the_dual_gradient_is_the_gradient_of_the_tilted_minimum():
    problem = ridge()
    p = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (expected,) = torch.autograd.grad(problem.tilted_minimum(problem.operator.adjoint(p)).sum(), p)
    assert_close(problem.dual_gradient(p.detach()), expected)


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
    problem, alone = ridge(), ridge()
    matrices = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    problem.operator = operators.Matrix(matrices)
    x = torch.ones(3, 5, dtype=torch.float64)
    for i in range(3):
        alone.operator = operators.Matrix(matrices[i])
        expected = alone.value(x)[i : i + 1]
        assert_close(problem.value(x)[i : i + 1], expected)
        assert_close(problem.select(i).value(x[i : i + 1]), expected)
    assert problem.operator.A.shape == (3, 4, 5)


def test_a_scale_per_instance():
    x, direction = torch.ones(2, 3), torch.full((2, 3), 2.0)
    expected = torch.tensor([[2.0] * 3, [3.0] * 3])
    assert_close(add_scaled(x, torch.tensor([0.5, 1.0]), direction), expected)
    assert_close(add_scaled(x, torch.tensor([0.5, 1.0]), direction, out=direction), expected)
    assert_close(direction, expected)
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
