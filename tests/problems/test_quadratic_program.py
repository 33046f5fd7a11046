import math

import pytest
import torch
from scipy.optimize import minimize

import lmd
from lmd.errors import InputError
from lmd.operators import Identity
from lmd.problems import Composite, ControlFamily, QuadraticProgram
from lmd.terms import Quadratic, Simplex

F64 = torch.float64


def random(*shape, seed=0):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def programs(shared=True, scale=1.0, dtype=F64):
    root = random(5, 5, seed=1) if shared else random(3, 5, 5, seed=1)
    P = (scale * (root @ root.mT + 0.1 * torch.eye(5, dtype=F64))).to(dtype)
    return P, (scale * random(3, 5, seed=2)).to(dtype)


def true_minimum(P, q, low, high, A, u):
    """By SciPy's SLSQP, one after the other."""
    found = []
    for i in range(len(q)):
        matrix = (P if P.ndim == 2 else P[i]).numpy()
        limits = (
            [{"type": "ineq", "fun": lambda x: u - A.numpy() @ x, "jac": lambda x: -A.numpy()}] if A is not None else []
        )
        answer = minimize(
            lambda x, i=i, matrix=matrix: 0.5 * x @ matrix @ x + q[i].numpy() @ x,
            torch.zeros(5, dtype=F64).numpy(),
            jac=lambda x, i=i, matrix=matrix: matrix @ x + q[i].numpy(),
            bounds=[(low, high)] * 5,
            constraints=limits,
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        found.append(answer.fun)
    return torch.tensor(found, dtype=F64)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("inequalities", [False, True])
def test_admm_finds_the_minimum_and_proves_it(shared, inequalities):
    P, q = programs(shared)
    A = random(2, 5, seed=3) if inequalities else None
    problem = QuadraticProgram(P, q, -0.4, 0.6, A, u=0.2 if inequalities else math.inf)
    result = lmd.solve(problem, 1e-7, solver=lmd.solvers.ADMM(), iterations=5000)
    truth = true_minimum(P, q, -0.4, 0.6, A, 0.2)
    torch.testing.assert_close(problem.relaxed_value(result.x)[0], truth, rtol=1e-5, atol=1e-6)
    assert float(problem.dual_value(result.dual).sub(truth).max()) <= 1e-7
    assert float(problem.dual_value(result.dual).sub(truth).min()) >= -1e-5


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shared", [True, False])
def test_no_bound_is_below_the_truth(dtype, scale, shared):
    P, q = programs(shared, scale, dtype)
    problem = QuadraticProgram(P, q, -0.4, 0.6)
    exact = problem.double()
    truth = lmd.run(lmd.solvers.ADMM(), exact, exact.start(), 3000, record=False).values
    for away in (0.0, 1e-6, 1e-2, 1.0):
        result = lmd.run(lmd.solvers.ADMM(), problem, problem.start(), 100, record=False)
        x = (result.x + away * random(3, 5, seed=5).to(dtype)).clamp(-0.4, 0.6)
        dual = result.dual + away * scale * random(3, 5, seed=6).to(dtype)
        value, gap = problem.certified_gap(x, dual)
        assert bool((gap >= exact.value(x.double()) - truth).all())
        if away == 0.0:
            assert bool((gap <= 1e-4 * value.abs()).all())


def test_bounds_of_each_entry_and_of_each_instance():
    P, q = programs()
    low, high = -torch.rand(5, dtype=F64), torch.rand(3, 5, dtype=F64)
    problem = QuadraticProgram(P, q, low, high)
    x = lmd.solve(problem, 1e-6, solver=lmd.solvers.ADMM()).x
    assert bool((x >= low).all() and (x <= high).all())
    part = lmd.solve(problem.select(1), 1e-6, solver=lmd.solvers.ADMM()).x
    torch.testing.assert_close(part, x[1:2], rtol=1e-2, atol=1e-3)


def test_bounds_that_do_not_fit_are_refused():
    P, q = programs()
    with pytest.raises(InputError, match="low"):
        QuadraticProgram(P, q, torch.zeros(4, dtype=F64))


def test_control_is_badly_conditioned_and_meets_its_limits():
    problem, x0 = ControlFamily().sample(20, torch.Generator().manual_seed(0))
    values = torch.linalg.eigvalsh(problem.f.quadratic[0].double())
    assert x0.shape == (20, 48) and float(values[-1] / values[0]) > 1000
    x = lmd.solve(problem, 1e-3, solver=lmd.solvers.ADMM()).x
    assert float(x.abs().max()) == 0.5 and 0.02 < float((x.abs() == 0.5).float().mean()) < 0.9


def test_portfolios_are_on_the_simplex():
    generator = torch.Generator().manual_seed(0)
    returns, loads = torch.randn(5, 50, generator=generator), torch.randn(50, 5, generator=generator)
    risk = loads @ loads.mT + torch.diag(0.1 + torch.rand(50, generator=generator))
    start = torch.full_like(returns, 1 / 50)
    problem = Composite(Quadratic(risk, -returns), (Simplex(), Identity()), start=start)
    result = lmd.solve(problem, 1e-3, solver=lmd.solvers.ADMM())
    assert float(result.x.min()) >= 0
    torch.testing.assert_close(result.x.sum(dim=1), torch.ones(5))
    assert bool((result.certificate.bound <= 1e-3 * result.values.abs()).all())
