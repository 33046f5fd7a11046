"""Means over the last iterations: of what, and what they are worth."""

import pytest
import torch

import lmd
from lmd.errors import InputError
from lmd.operators import Differences
from lmd.problems import Composite, SecondOrderModel, TVModel
from lmd.solvers import GradientDescent, RelaxedPDHG
from lmd.solvers.base import DualState
from lmd.solvers.wrappers import WINDOW_ENDS, Averaged, sum_steps
from lmd.terms import L1, Absolute, KullbackLeibler
from lmd.tv import PrimalDual


def problem(count=2, misfit=Absolute, shape=(3, 24, 20), **form):
    y = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0)).clamp(0.05, 1)
    y[..., 0, 0], y[..., 0, 1] = 0.0, 1.0  # so that the range of the data is the box
    return TVModel(misfit(y), torch.linspace(0.4, 0.8, count), box=(0.0, 1.0), **form)


def learned(iterations):
    solver = RelaxedPDHG(iterations)
    with torch.no_grad():
        solver.numbers.add_(0.1 * torch.rand(solver.numbers.shape, generator=torch.Generator().manual_seed(1)))
    return solver


@pytest.mark.parametrize("horizon", [0, 5])
@pytest.mark.parametrize("done", [1, 7, 8, 9, 11, 12, 13, 18, 40])
def test_it_answers_with_the_mean_over_the_last_two_windows(horizon, done):
    inner, one = learned(horizon), problem()
    with torch.no_grad():
        state, points = inner.init(one, one.start()), []
        for _ in range(done):
            state = inner.step(one, state)
            points.append((state.x, state.dual))
        ended = [end for end in (0, 0, *WINDOW_ENDS) if end <= done]
        last = points[ended[-2] :]
        outer = Averaged(inner)
        found = outer.advance(one, outer.init(one, one.start()), done)
    assert found.iteration == done and len(last) >= 0.32 * done
    for mean, each in zip((found.x, found.dual), zip(*last, strict=True), strict=True):
        torch.testing.assert_close(mean, torch.stack(each).mean(dim=0), rtol=0, atol=2e-5)


def test_what_goes_on_from_elsewhere_has_means_of_its_own_iterations_alone():
    inner, one = learned(40), problem()
    with torch.no_grad():
        begun = inner.advance(one, inner.init(one, one.start()), 40)
        state, points = inner.resume(one, begun.x, begun.dual), []
        for _ in range(5):
            state = inner.step(one, state)
            points.append(state.x)
        outer = Averaged(inner)
        found = outer.advance(one, outer.resume(one, begun.x, begun.dual), 5)
    torch.testing.assert_close(found.x, torch.stack(points).mean(dim=0), rtol=0, atol=2e-5)


def test_gradients_go_through_the_means():
    inner, one = learned(12), problem(shape=(1, 8, 8))
    outer = Averaged(inner)
    found = outer.advance(one, outer.init(one, one.start()), 12)
    one.value(found.x).sum().backward()
    gradient = inner.numbers.grad
    with torch.no_grad():
        ends = []
        for by in (1e-3, -1e-3):
            inner.numbers[4, 0] += by
            ends.append(one.value(outer.advance(one, outer.init(one, one.start()), 12).x).sum())
            inner.numbers[4, 0] -= by
    torch.testing.assert_close(gradient[4, 0], (ends[0] - ends[1]) / 2e-3, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("misfit", [Absolute, KullbackLeibler])
@pytest.mark.parametrize("shape", [(2, 31), (1, 9, 14), (2, 5, 6, 7)])
@pytest.mark.parametrize("isotropic", [False, True])
def test_compiled_sums_are_those_of_the_steps(misfit, shape, isotropic, monkeypatch):
    one, solver = (
        problem(misfit=misfit, shape=shape, isotropic=isotropic),
        Averaged(PrimalDual(learned(2).numbers.detach())),
    )
    with torch.no_grad():
        found = solver.advance(one, solver.init(one, one.start()), 30)
        monkeypatch.setattr("lmd.tv.primal_dual.iterations_for", lambda *_: None)
        expected = solver.advance(one, solver.init(one, one.start()), 30)
    torch.testing.assert_close(found.x, expected.x, rtol=0, atol=2e-5)
    torch.testing.assert_close(found.dual, expected.dual, rtol=0, atol=2e-5)


def test_it_takes_less_than_half_of_the_iterations_for_absolute_distances():
    one = problem(shape=(1, 48, 48))
    few, many = (lmd.solve(one, 1e-3, solver=solver) for solver in (Averaged(RelaxedPDHG()), RelaxedPDHG()))
    assert {status.name for status in few.status} == {"TOLERANCE_REACHED"}
    assert bool((2 * few.iterations < many.iterations).all())


def test_what_it_answers_is_in_the_domain_and_certified():
    one = problem(shape=(1, 20, 20))
    result = lmd.solve(one, 1e-3, solver=Averaged(RelaxedPDHG()))
    assert bool((result.x >= 0).all()) and bool((result.x <= 1).all())
    least = lmd.solve(one.double(), 1e-7, iterations=20_000).values
    assert bool((result.certificate.lower_bound <= least).all())


def test_it_goes_on_from_an_earlier_answer():
    one, solver = problem(shape=(1, 20, 20)), Averaged(RelaxedPDHG())
    first = lmd.solve(one, 1e-2, solver=solver)
    assert bool((lmd.solve(one, 1e-2, solver=solver, warm=first).iterations <= first.iterations).all())


def test_a_solver_without_dual_points_is_refused():
    y = torch.rand(1, 9, generator=torch.Generator().manual_seed(0))
    one = Composite(Absolute(y), (L1(0.5), Differences((9,))), start=y)
    with pytest.raises(InputError, match="dual point"):
        Averaged(GradientDescent(0.1)).init(one, y)


class Still(GradientDescent):
    """Stays where it is."""

    def step(self, problem, state):
        return state


def test_means_of_points_that_are_far_from_0_are_exact():
    x = 1e12 + torch.rand(1, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, sums = sum_steps(Still(0.1), None, DualState(x, dual=-x), 3000)
    assert sums.iterations == 3000
    for mean, point in ((sums.x / 3000, x), (sums.dual / 3000, -x)):
        torch.testing.assert_close(mean, point, rtol=3e-16, atol=0)


def sharp():
    y = torch.rand(2, 1, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return SecondOrderModel(Absolute(800 + y), 90.0)


def test_restarts_take_fewer_iterations(monkeypatch):
    options = {"solver": Averaged(RelaxedPDHG()), "iterations": 2000}
    assert {status.name for status in lmd.solve(sharp(), 1e-6, **options).status} == {"TOLERANCE_REACHED"}
    monkeypatch.setattr(Averaged, "restart_from", lambda *_: None)
    assert {status.name for status in lmd.solve(sharp(), 1e-6, **options).status} == {"FINISHED"}


def test_a_restart_is_from_the_means_with_the_steps_there_are():
    one, solver, first = sharp(), Averaged(RelaxedPDHG()), torch.tensor([True, False])
    state = solver.advance(one, solver.init(one, one.start()), 200)
    again = solver.restart_from(one, state, one.start(), first, ~first & first)
    assert torch.equal(again.inner.relaxed[0], state.x[0]) and torch.equal(again.inner.relaxed_dual[0], state.dual[0])
    assert torch.equal(again.inner.tau, state.inner.tau) and again.iteration == 200
    back, begun = solver.restart_from(one, state, one.start(), first, first), solver.init(one, one.start())
    assert torch.equal(back.inner.relaxed[0], one.start()[0]) and not bool(back.inner.relaxed_dual[0].any())
    assert back.inner.tau[0] == begun.inner.tau[0]
    after = solver.advance(one, state, 30)
    for other in (again, back):
        assert torch.equal(solver.advance(one, other, 30).x[1], after.x[1])  # which did not restart


def test_what_restarted_has_means_of_the_iterations_since():
    one, solver, every = sharp(), Averaged(RelaxedPDHG()), torch.tensor([True, True])
    state = solver.advance(one, solver.init(one, one.start()), 200)
    state = solver.restart_from(one, state, one.start(), every, ~every)
    inner, points = state.inner, []
    for _ in range(5):
        inner = solver.solver.step(one, inner)
        points.append(inner.x)
    torch.testing.assert_close(solver.advance(one, state, 5).x, torch.stack(points).mean(dim=0), rtol=1e-12, atol=0)
