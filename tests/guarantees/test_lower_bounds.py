import math

import pytest
import torch

from lmd.guarantees.minima import in_float64, lower_bounds
from lmd.guarantees.reference import is_proven
from lmd.operators import Identity
from lmd.problems import Composite, Problem
from lmd.terms import Box, Simplex, Squares


class Own(Problem):
    """A function of x and of data that each instance has of its own."""

    batched = ("data",)

    def __init__(self, data, function, domain=None, strong=None):
        self.data, self.function, self.domain, self.strong = data, function, domain, strong

    def value(self, x):
        return self.function(x, self.data)

    @property
    def strong_convexity(self):
        return self.strong


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logistic(x, rows):
    return torch.nn.functional.softplus(-(rows @ x[:, :, None])[:, :, 0]).mean(dim=1) + 0.01 * x.square().sum(dim=1)


def distance(x, centre):
    return 1 + (x - centre).square().sum(dim=1)


def bent(x, centre):
    return 1 + ((1 + (x - centre).square()).sqrt() - 1).sum(dim=1) + 0.1 * (x - centre).pow(4).sum(dim=1)


@pytest.mark.parametrize("width", [1e-3, 1e-6])
@pytest.mark.parametrize("function", [distance, bent])
def test_tangents_prove_minima_that_are_known(function, width):
    problem, start = Own(normal(6, 5), function), normal(6, 5, seed=1)
    x, low = lower_bounds(problem, start, None, torch.full((6,), width, dtype=torch.float64))
    assert bool((low <= 1).all()) and bool((problem.value(x) - low <= width).all())


def test_tangents_prove_what_newton_steps_find():
    problem, start = Own(normal(4, 30, 8), logistic), torch.zeros(4, 8, dtype=torch.float64)
    width = 1e-5 * problem.value(start)
    x, low = lower_bounds(problem, start, None, width)
    assert bool((problem.value(x) - low <= width).all()) and bool((low <= problem.value(x)).all())
    float32 = Own(problem.data.float(), logistic)
    assert in_float64(float32, start.float()).value(start).dtype == torch.float64


@pytest.mark.parametrize(
    ("function", "domain", "strong"),
    [(distance, Simplex(), None), (distance, Box(-0.5, 0.5), None), (distance, Box(0.0, torch.inf), 2.0)],
)
def test_a_domain_or_strong_convexity_proves_them(function, domain, strong):
    problem = Own(normal(6, 5), function, domain, strong)
    least = problem.value(domain.nearest(problem.data))
    for noise in (0.0, 1e-3):
        x = domain.nearest(domain.nearest(problem.data) + noise * normal(6, 5, seed=1))
        found, low = lower_bounds(problem, x, None, 1e-3 * least)
        assert torch.equal(found, x) and bool((low <= least).all()) and bool((low > least - 0.1).all())
        assert noise or bool((least - low < 1e-9).all())


@pytest.mark.parametrize("domain", [Box(1e6, 1e6 + 1), Simplex()])
def test_a_domain_proves_no_more_than_rounding_leaves(domain):
    """f(x) = 1e-3 + <g, x - z> with z the corner where g is least, so that <g, x> is 1e9 or more times min f."""
    g = 1e6 * (1 + normal(200, 5).abs() / (1e6 if isinstance(domain, Simplex) else 1))
    corner = domain.tilted_minimiser(g)
    problem = Own(torch.stack([g, corner], dim=1), lambda x, d: 1e-3 + (d[:, 0] * (x - d[:, 1])).sum(dim=1), domain)
    x = domain.nearest(corner + 1e-9 * normal(200, 5, seed=1))
    _, low = lower_bounds(problem, x, None, torch.full((200,), 1e-6, dtype=torch.float64))
    assert bool((low <= 1e-3).all())


def test_strong_convexity_proves_no_more_than_the_rounding_of_the_set_leaves():
    """f(x) = 1e-3 + 1e6 sum (x - z) + ||x - z||^2 / 2 on the simplex, z on it up to rounding."""
    z = Simplex().nearest(normal(200, 5))
    problem = Own(z, lambda x, z: 1e-3 + (1e6 * (x - z) + (x - z).square() / 2).sum(dim=1), Simplex(), 1.0)
    least = torch.tensor([1e-3 + 1e6 * math.fsum([1.0, *(-row).tolist()]) for row in z], dtype=torch.float64)
    _, low = lower_bounds(problem, z, None, torch.full((200,), 1e-6, dtype=torch.float64))
    assert bool((low <= least).all()) and bool((low > least - 1e-7).all())


@pytest.mark.parametrize(
    "function",
    [
        lambda x, c: 1 + (x - c).abs().sum(dim=1),
        lambda x, c: torch.nn.functional.softplus((x * c).sum(dim=1)),
        lambda x, c: 1 + (torch.logspace(-12, 0, 5, dtype=x.dtype) * ((1 + (x - c) ** 2).sqrt() - 1)).sum(dim=1),
    ],
)
def test_where_nothing_can_be_proven_nothing_is(function):
    """A kink, an infimum that is not attained, curvatures of which some are nearly 0: far from the minimum."""
    problem, start = Own(normal(6, 5), function), 30 * normal(6, 5, seed=1)
    _, low = lower_bounds(problem, start, None, torch.full((6,), 1e-5, dtype=torch.float64))
    least = 0 if function(start[:1] * 0, start[:1] * 0) < 1 else 1
    assert bool((low <= least).all())


def test_a_point_outside_proves_nothing():
    y = normal(3, 4)
    problem = Composite(Squares(y), (Simplex(), Identity()), start=y)
    for dual in (None, torch.zeros_like(y)):
        _, low = lower_bounds(problem, y, dual, torch.ones(3, dtype=torch.float64))
        assert bool((low == -torch.inf).all())
    assert not is_proven(problem.select(0), y[:1], y[:1], 1e-6)


def test_a_function_that_needs_float32_is_not_made_float64():
    table = torch.eye(3)
    problem = Own(torch.ones(2, 3), lambda x, data: ((x @ table) * data).square().sum(dim=1))
    assert in_float64(problem, torch.ones(2, 3)) is None
