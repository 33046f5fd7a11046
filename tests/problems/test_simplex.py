import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from lmd.errors import DomainError, InputError
from lmd.problems import SimplexFamily
from lmd.problems.simplex import KLDivergence, SquaredDistance, kl_divergence, uniform_simplex

positive = st.lists(st.floats(1e-9, 1.0), min_size=2, max_size=6)


def on_simplex(weights):
    x = torch.tensor([weights], dtype=torch.float64)
    return x / x.sum(dim=1, keepdim=True)


def exact_kl(x, y):
    """The sum of x log(x / y) - x + y in 60 digits."""
    with localcontext() as context:
        context.prec = 60
        pairs = [(Decimal(a), Decimal(b)) for a, b in zip(x[0].tolist(), y[0].tolist(), strict=True)]
        return float(sum((a * (a / b).ln() if a else 0) - a + b for a, b in pairs))


class TestKLDivergence:
    @given(positive, st.randoms(use_true_random=False))
    def test_is_never_negative_and_matches_the_textbook(self, weights, random):
        x, y = on_simplex(weights), on_simplex(random.sample(weights, len(weights)))
        value = KLDivergence(y).value(x)
        assert value >= 0
        assert_close(value, (x * (x / y).log()).sum(dim=1), rtol=1e-9, atol=1e-14)

    @given(positive, st.floats(-15, -0.01), st.integers(0, 10_000))
    def test_is_right_to_rounding_however_near_the_minimiser(self, weights, exponent, seed):
        y = on_simplex(weights)
        noise = 2 * torch.rand(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1
        x = y * (1 + 10**exponent * noise)
        assert_close(kl_divergence(x, y).item(), exact_kl(x, y), rtol=1e-13, atol=0)

    @pytest.mark.parametrize("sign", [-1, 1])
    def test_is_right_to_rounding_where_the_formula_changes(self, sign):
        y = torch.tensor([[0.5]], dtype=torch.float64)
        for ratio in (0.0999, 0.1, 0.1001, 0.9):
            x = y * (1 + sign * ratio)
            assert_close(kl_divergence(x, y).item(), exact_kl(x, y), rtol=1e-13, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_zero_at_the_minimiser(self, dtype):
        problem, _ = SimplexFamily("kl", dimension=6, dtype=dtype).sample(7, torch.Generator().manual_seed(0))
        assert torch.equal(problem.value(problem.minimiser()), torch.zeros(7, dtype=dtype))
        assert torch.equal(problem.subgradient(problem.minimiser()), torch.zeros(7, 6, dtype=dtype))

    @pytest.mark.parametrize("small", [1e-300, 1e-307, 0.0])
    def test_extreme_coordinates(self, small):
        x = torch.tensor([[small, 1.0], [1.0, small], [0.5, 0.5]], dtype=torch.float64)
        y = torch.tensor([[1.0, small], [1.0, small], [1.0, small]], dtype=torch.float64)
        counted = math.log(max(small, torch.finfo(torch.float64).tiny))
        values = KLDivergence(y).value(x)
        assert_close(values, torch.tensor([-counted, 0.0, math.log(0.5) - counted / 2], dtype=torch.float64))
        assert bool(torch.isfinite(KLDivergence(y).subgradient(x)).all())

    def test_derivative_by_autograd_is_finite_on_the_boundary(self):
        x = torch.tensor([[0.0, 0.25, 0.75]], dtype=torch.float64, requires_grad=True)
        problem = KLDivergence(torch.tensor([[0.25, 0.0, 0.75]], dtype=torch.float64))
        (gradient,) = torch.autograd.grad(problem.value(x).sum(), x)
        assert bool(torch.isfinite(gradient).all())


def test_squared_distance():
    problem = SquaredDistance(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert_close(problem.value(x), torch.tensor([0.5, 0.0]))
    assert_close(problem.subgradient(x), torch.tensor([[1.0, -1.0], [0.0, 0.0]]))


@pytest.mark.parametrize("kind", [KLDivergence, SquaredDistance])
class TestBadTargets:
    def test_outside(self, kind):
        with pytest.raises(
            DomainError, match=r"^y: got instance 1, which is 1 outside, expected a point of the simplex"
        ):
            kind(torch.tensor([[0.5, 0.5], [1.0, 1.0]]))

    def test_not_finite(self, kind):
        with pytest.raises(InputError, match=r"^y: got 1 non-finite entries"):
            kind(torch.tensor([[0.5, math.nan]]))

    @pytest.mark.parametrize("shape", [(3,), (1, 2, 3)])
    def test_shape(self, kind, shape):
        with pytest.raises(InputError, match=r"^y: got shape"):
            kind(torch.full(shape, 1 / 3))


class TestUniformSimplex:
    def test_is_uniform(self):
        """Each coordinate has mean 1/d and exceeds 1/2 with probability 2^(1-d): 20000 points, five deviations."""
        x = uniform_simplex(20_000, 3, torch.Generator().manual_seed(0), torch.float64)
        assert_close(x.sum(dim=1), torch.ones(20_000, dtype=torch.float64))
        deviation = math.sqrt(1 / 18 / 20_000)
        assert_close(x.mean(dim=0), torch.full((3,), 1 / 3, dtype=torch.float64), rtol=0, atol=5 * deviation)
        beyond = (x > 0.5).double().mean(dim=0)
        assert_close(beyond, torch.full((3,), 0.25, dtype=torch.float64), rtol=0, atol=5 * math.sqrt(0.1875 / 20_000))

    def test_stays_inside_in_float32(self):
        x = uniform_simplex(20_000, 2, torch.Generator().manual_seed(0), torch.float32)
        assert x.dtype == torch.float32 and bool((x > 0).all())


class TestSimplexFamily:
    @pytest.mark.parametrize(("objective", "kind"), [("kl", KLDivergence), ("least-squares", SquaredDistance)])
    def test_sample(self, objective, kind):
        problem, x0 = SimplexFamily(objective, 5, torch.float32).sample(4, torch.Generator().manual_seed(0))
        assert type(problem) is kind and problem.batch_size == 4
        assert (x0.shape, x0.dtype, problem.y.dtype) == ((4, 5), torch.float32, torch.float32)
        problem.domain.check("x0", problem.check_start(x0))
        assert not torch.equal(x0, problem.y)

    def test_bad_arguments(self):
        with pytest.raises(InputError, match=r"^objective: got 'KL', expected one of kl, least-squares"):
            SimplexFamily("KL")
        with pytest.raises(InputError, match=r"^dimension: got 1, expected a whole number of 2 or more"):
            SimplexFamily("kl", 1)
