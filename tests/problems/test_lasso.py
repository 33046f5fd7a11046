import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Lasso as Reference
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.mirrors import Euclidean
from lmd.problems import Lasso, LassoFamily
from lmd.problems.base import autograd_subgradient
from lmd.solvers import PDHG, ProximalMirrorDescent


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(m=6, d=9, batch=3, seed=0):
    A, b = random(m, d, seed=seed), random(batch, m, seed=seed + 1)
    return Lasso(A, b, 0.3 * (b @ A).abs().amax(1))


def test_value_and_subgradient():
    problem, x = make(), random(3, 9, seed=5)
    expected = [
        0.5 * float((problem.A @ x[i] - problem.b[i]).square().sum()) + float(problem.weight[i] * x[i].abs().sum())
        for i in range(3)
    ]
    assert_close(problem.value(x), torch.tensor(expected, dtype=torch.float64))
    assert_close(problem.subgradient(x), autograd_subgradient(problem.value, x)[1])


@pytest.mark.parametrize("step", [0.4, torch.tensor([0.1, 0.4, 2.0], dtype=torch.float64)])
def test_both_proximal_maps_minimise(step):
    problem, x, p = make(), random(3, 9, seed=5), random(3, 6, seed=6)
    per_row = torch.as_tensor(step, dtype=torch.float64).expand(3)
    best_x, best_p = problem.f.prox(x, step), problem.g.conjugate_prox(p, step)
    for seed in range(30):
        other = best_x + 0.05 * random(3, 9, seed=seed)
        aim = lambda v: problem.f.value(v) + (v - x).square().sum(1) / (2 * per_row)  # noqa: E731
        assert bool((aim(other) > aim(best_x)).all())
        other = best_p + 0.05 * random(3, 6, seed=seed)
        aim = lambda q: problem.g.conjugate(q) + (q - p).square().sum(1) / (2 * per_row)  # noqa: E731
        assert bool((aim(other) > aim(best_p)).all())


def test_proximal_gradient_steps_run_on_it():
    problem = make()
    solver = ProximalMirrorDescent(Euclidean(), 1 / problem.operator.norm**2)
    assert_close(problem.misfit_gradient(x := random(3, 9)), (x @ problem.A.T - problem.b) @ problem.A)
    assert_close(lmd.run(solver, problem, iterations=3000).values, lmd.guarantees.minimum(problem), rtol=1e-6, atol=0)


@given(seed=st.integers(0, 10_000), size=st.floats(0, 3), at=st.sampled_from(["near", "far"]))
def test_the_gap_bounds_the_true_gap_whatever_x_and_p(seed, size, at):
    problem = make(4, 5, 2)
    optimum = lmd.guarantees.optimum(problem)
    minimisers, minimum = optimum.x, optimum.value
    x = (minimisers if at == "near" else 0) + size * random(2, 5, seed=seed)
    p = size * random(2, 4, seed=seed + 1)
    gap = problem.gap(x, p)
    assert_close(gap, problem.value(x) - problem.dual_value(p), rtol=1e-9, atol=1e-9)
    assert bool((gap >= problem.value(x) - minimum * (1 + 1e-8)).all())
    assert bool((problem.dual_value(p) <= minimum).all())
    feasible = problem.feasible_dual(p)
    assert bool((problem.operator.adjoint(feasible).abs().amax(1) <= problem.weight * (1 + 1e-12)).all())


@pytest.mark.parametrize(("m", "d"), [(20, 50), (50, 20)])
def test_the_minimiser_is_scikit_learns(m, d):
    problem = make(m, d)
    found = lmd.guarantees.minimiser(problem)
    for i in range(3):
        reference = Reference(float(problem.weight[i]) / m, fit_intercept=False, tol=1e-10, max_iter=100_000)
        expected = torch.from_numpy(reference.fit(problem.A.numpy(), problem.b[i].numpy()).coef_)
        assert_close(found[i], expected, rtol=1e-4, atol=1e-5)
    optimum = lmd.guarantees.optimum(problem)
    assert bool((optimum.gap <= 1e-6 * optimum.value).all())


def test_pdhg_reaches_a_tolerance():
    problem, _ = LassoFamily(30, 60).sample(4, torch.Generator().manual_seed(0))
    result = lmd.run(PDHG(), problem, tolerance=1e-4)
    assert all(status.name == "TOLERANCE_REACHED" for status in result.status)
    assert_close(result.values, lmd.guarantees.minimum(problem), rtol=2e-4, atol=0)


def test_the_norm_is_the_largest_singular_value():
    operator = make().operator
    assert operator.norm == pytest.approx(float(torch.linalg.svdvals(operator.A)[0]))


def test_the_family_is_sparse_and_repeatable():
    family = LassoFamily(30, 60, nonzeros=5, noise=0.0, share=0.05)
    problem, x0 = family.sample(8, torch.Generator().manual_seed(3))
    again, _ = family.sample(8, torch.Generator().manual_seed(3))
    assert_close(problem.b, again.b, rtol=0, atol=0)
    assert x0.shape == (8, 60) and not bool(x0.any())
    share = problem.weight / (problem.b @ problem.A).abs().amax(1)
    assert_close(share, torch.full_like(share, 0.05))
    assert int((lmd.guarantees.minimiser(problem).abs() > 0.05).sum(1).max()) <= 10


def test_bad_arguments():
    A = torch.eye(3)
    with pytest.raises(InputError, match="b"):
        Lasso(A, torch.ones(2, 4), 1.0)
    with pytest.raises(InputError, match="weight"):
        Lasso(A, torch.ones(2, 3), torch.tensor([1.0, -1.0]))
    with pytest.raises(InputError, match="weight"):
        Lasso(A, torch.ones(2, 3), torch.ones(3))
    with pytest.raises(InputError, match="x0"):
        lmd.run(PDHG(), Lasso(A, torch.ones(2, 3), 1.0), torch.ones(2, 4))
    with pytest.raises(InputError, match="nonzeros"):
        LassoFamily(3, 4, nonzeros=5)
