import pytest
import torch

import lmd
from lmd import kernels
from lmd.errors import InputError
from lmd.problems import SVM
from lmd.solvers import LearnedInteriorPoint
from lmd.solvers.classical.interior_point import InteriorPoint


def machines(sets=3, starts=1, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(sets, 60, 5, dtype=torch.float64, generator=generator)
    noise = 0.2 * torch.randn(sets, 60, dtype=torch.float64, generator=generator)
    labels = torch.where(features.sum(dim=2) + noise > 2.5, 1, -1)
    return SVM(features.to(dtype), labels, starts=starts)


def learned(dtype=torch.float32):
    solver = LearnedInteriorPoint(6, 8).to(dtype)
    with torch.no_grad():
        solver.guess.copy_(torch.tensor([2.0, 2.0, 2.0, 2.0, 2.0, -5.0]))
        solver.centring.add_(torch.linspace(-0.2, 0.2, 8))
    return solver


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels here")
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 8])
def test_the_compiled_iterations_are_those_of_pytorch(count):
    problem, solver = machines(), learned()
    with torch.no_grad():
        state = begun = solver.init(problem, torch.zeros(3, 6))
        for _ in range(count):
            state = solver.learned_step(problem, state)
        together = solver.advance(problem, begun, count)
    torch.testing.assert_close(together.x, state.x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(together.dual, state.dual, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together.inner.surplus.sum(dim=1), state.inner.surplus.sum(dim=1), rtol=1e-4, atol=1e-6)


def test_it_ends_at_the_optimum_with_a_proof_wherever_it_is_told_to_start():
    problem = machines(dtype=torch.float64)
    x0 = 100 * torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    result = lmd.run(learned(torch.float64), problem, x0, 40)
    best = lmd.run(InteriorPoint(), problem, torch.zeros_like(x0), 60)
    torch.testing.assert_close(result.values, best.values, rtol=1e-7, atol=1e-7)
    assert bool((result.certificate.bound < 1e-5 * result.values).all())
    assert bool((result.certificate.bound >= 0).all())


def test_instances_on_one_data_set_have_one_answer():
    problem = machines(sets=2, starts=2)
    result = lmd.run(learned(), problem, torch.randn(4, 6, generator=torch.Generator().manual_seed(2)), 12)
    assert torch.equal(result.x[0], result.x[1]) and not torch.equal(result.x[1], result.x[2])
    alone = lmd.run(learned(), problem.select(slice(3, 4)), torch.zeros(1, 6), 12)
    torch.testing.assert_close(alone.x, result.x[3:], rtol=1e-4, atol=1e-4)


def test_it_learns():
    problem, solver = machines(), learned()
    state = solver.init(problem, torch.zeros(3, 6))
    for _ in range(6):
        state = solver.step(problem, state)
    problem.value(state.x).sum().backward()
    assert all(bool(torch.isfinite(each.grad).all()) for each in solver.parameters())
    assert float(solver.log_mean.grad.abs()) > 0 and float(solver.guess.grad.abs().max()) > 0


def test_an_interior_point_method_goes_on_from_an_earlier_answer():
    problem = machines(dtype=torch.float64)
    whole = lmd.run(InteriorPoint(), problem, torch.zeros(3, 6, dtype=torch.float64), 12)
    solver = InteriorPoint()
    state = solver.resume(problem, whole.x, whole.dual)
    assert bool((problem.dual_value(state.dual) >= (1 - 1e-3) * whole.values).all())
    for _ in range(3):
        state = solver.step(problem, state)
    best = lmd.run(InteriorPoint(), problem, whole.x, 60).values
    assert bool((problem.value(state.x) - best <= 1e-6 * best).all())


def test_bad_input_is_refused_in_one_line():
    with pytest.raises(InputError, match="51 entries"):
        learned().init(machines(), torch.zeros(3, 51))
