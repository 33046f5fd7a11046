"""The interior-point method: at the optimum of any SVM within a few tens of iterations, from any start."""

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError
from lmd.problems import SVM, SVMFamily
from lmd.solvers.classical import interior_point
from lmd.solvers.classical.interior_point import InteriorPoint

F64 = torch.float64


def instances(batch=6, subsets=2, apart=1.0, dtype=F64, C=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (150,), generator=generator)
    features = torch.randn(150, 5, dtype=dtype, generator=generator) + apart * labels[:, None]
    return SVMFamily(features, labels, (0, 1), 80, C=C, subsets=subsets).sample(batch, generator)


@pytest.mark.parametrize("apart", [0.0, 1.0, 10.0], ids=["mixed", "overlapping", "separable"])
@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4], ids=["zero", "near", "far"])
def test_ends_at_the_certified_minimum(apart, C, scale):
    problem, x0 = instances(apart=apart, C=C)
    result = lmd.run(InteriorPoint(), problem, scale * x0, 60)
    assert result.ok
    assert_close(result.values, lmd.guarantees.minimum(problem), rtol=1e-6, atol=0)
    assert bool((result.certificate.bound >= result.values - lmd.guarantees.minimum(problem)).all())
    assert bool((result.certificate.bound <= 1e-5 * result.values).all())
    assert result.certificate.theorem.startswith("weak duality")


def test_stays_in_the_neighbourhood_and_the_mean_product_falls():
    problem, x0 = instances()
    solver = InteriorPoint()
    state = solver.init(problem, 100 * x0)

    def products(state):
        return torch.cat([state.dual * state.inner.surplus, (problem.C - state.dual) * state.inner.slack], dim=1)

    def stationarity(state):
        rows = problem.rows[problem.subset]
        weights = torch.cat([state.inner.point[:, :-1], torch.zeros_like(state.inner.point[:, :1])], dim=1)
        return (weights - (state.dual.unsqueeze(1) @ rows).squeeze(1)).norm(dim=1)

    first, residual = products(state).mean(dim=1), stationarity(state)
    assert bool((products(state).amin(dim=1) >= 0.5 * first).all())
    for _ in range(12):
        after = solver.step(problem, state)
        found, before = products(after), products(state).mean(dim=1)
        mean = found.mean(dim=1)
        assert bool((found.amin(dim=1) >= interior_point.MIN_CENTRALITY * mean * (1 - 1e-9)).all())
        assert bool(((mean < before) | state.done).all())
        assert bool((stationarity(after) <= residual * (10 * mean / first + 1e-9)).all())
        state = after
    assert bool((state.dual > 0).all() and (state.dual < problem.C).all())


def test_the_plain_direction_alone_arrives_too(monkeypatch):
    monkeypatch.setattr(interior_point, "MAX_CORRECTED_TRIALS", 0)
    problem, x0 = instances()
    result = lmd.run(InteriorPoint(), problem, x0, 80)
    assert_close(result.values, lmd.guarantees.minimum(problem), rtol=1e-6, atol=0)


def test_an_instance_of_a_batch_is_the_instance_alone():
    problem, x0 = instances()
    together = lmd.run(InteriorPoint(), problem, x0, 12)
    for i in (0, 4):
        alone = lmd.run(InteriorPoint(), problem.select(i), x0[i : i + 1], 12)
        assert_close(alone.x, together.x[i : i + 1])


def test_what_is_solved_costs_nothing_and_stays():
    problem, x0 = instances()
    short, long = (lmd.run(InteriorPoint(), problem, x0, n) for n in (50, 90))
    assert torch.equal(short.x, long.x)
    assert torch.equal(short.evaluations["factorisation"], long.evaluations["factorisation"])
    assert bool((long.evaluations["factorisation"] < 40).all())


def test_states_are_left_alone():
    problem, x0 = instances()
    solver = InteriorPoint()
    state = solver.step(problem, solver.init(problem, x0))
    kept = state.dual.clone()
    one, other = solver.step(problem, state), solver.step(problem, state)
    assert torch.equal(one.x, other.x) and torch.equal(state.dual, kept) and not torch.equal(one.dual, kept)


def test_float32_stays_float32():
    problem, x0 = instances(dtype=torch.float32)
    result = lmd.run(InteriorPoint(), problem, x0, 30)
    assert result.x.dtype == torch.float32
    assert bool((result.certificate.bound >= result.values.double() - lmd.guarantees.minimum(problem).double()).all())
    assert_close(result.values, lmd.guarantees.minimum(problem), rtol=1e-5, atol=0)


def test_needs_an_svm():
    with pytest.raises(CapabilityError, match="which has no rows"):
        lmd.run(InteriorPoint(), lambda x: x.square().sum(dim=1), torch.ones(1, 2))


def test_any_dual_point_bounds_the_minimum():
    problem, _ = instances()
    generator = torch.Generator().manual_seed(3)
    for dual in (torch.randn(6, 80, dtype=F64, generator=generator), torch.zeros(6, 80, dtype=F64)):
        assert bool((problem.dual_value(dual) <= lmd.guarantees.minimum(problem)).all())
    two = SVM(torch.eye(2, dtype=F64), torch.tensor([1, -1]))
    # The first is cut to C = 1 and then scaled to the second: 2 a - 1/2 (a^2 + a^2) at a = 1/4.
    found = two.dual_value(torch.tensor([[5.0, 0.25]], dtype=F64))
    assert_close(found, torch.tensor([0.5 - 0.0625], dtype=F64))


def test_a_system_that_cannot_be_solved_ends_an_instance_where_it_is():
    """Features of a million that are all but one another's multiples: rounding makes the matrix indefinite."""
    features = 1e6 * torch.linspace(0, 1, 20 * 50).reshape(20, 50)
    problem = SVM(features, 2 * (torch.arange(20) % 2) - 1, starts=3)
    result = lmd.run(InteriorPoint(), problem, torch.randn(3, 51, generator=torch.Generator().manual_seed(0)), 20)
    assert result.ok and bool(torch.isfinite(result.x).all())
