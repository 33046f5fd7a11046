"""Learned steps of PDHG: PDHG before training, feasible whatever was learned, convergent past the horizon."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lmd
from lmd.problems import Composite, LassoFamily, TVDenoising
from lmd.solvers import PDHG, LearnedPDHG


def problems(seed: int = 0) -> list[Composite]:
    generator = torch.Generator().manual_seed(seed)
    lasso, _ = LassoFamily(20, 40, nonzeros=4).sample(3, generator)
    images = torch.rand(2, 1, 12, 10, generator=generator)
    return [lasso, TVDenoising(images, 0.2), TVDenoising(images, 0.2, isotropic=True)]


def broken(seed: int, size: float) -> LearnedPDHG:
    solver = LearnedPDHG(5)
    with torch.no_grad():
        solver.numbers.copy_(size * torch.randn(solver.numbers.shape, generator=torch.Generator().manual_seed(seed)))
    return solver


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("tau", [None, 0.1])
def test_before_training_it_is_pdhg(which: int, tau: float | None) -> None:
    problem = problems()[which]
    ours, theirs = (
        lmd.run(solver, problem, iterations=12) for solver in (LearnedPDHG(8, tau), PDHG(tau, accelerated=False))
    )
    torch.testing.assert_close(ours.history.values[:9], theirs.history.values[:9])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 3.0), st.integers(1, 2))
def test_whatever_was_learned_the_dual_point_is_feasible_and_gaps_hold(seed: int, size: float, which: int) -> None:
    problem = problems(seed)[which]
    result = lmd.run(broken(seed, size), problem, iterations=5)
    assert result.dual is not None
    torch.testing.assert_close(problem.g.project(result.dual), result.dual)
    minimum = lmd.guarantees.minimum(problem)
    assert minimum is not None
    assert bool((problem.gap(result.x, result.dual) >= problem.value(result.x) - minimum - 1e-4 * minimum).all())


@pytest.mark.parametrize("which", range(3))
def test_a_broken_solver_still_reaches_a_tolerance(which: int) -> None:
    problem = problems()[which]
    result = lmd.run(broken(0, 1.0), problem, tolerance=1e-3)
    assert result.dual is not None
    assert bool((problem.relative_gap(result.x, result.dual) <= 1e-3).all())


def test_everything_it_learns_has_a_derivative() -> None:
    problem, solver = problems()[0], LearnedPDHG(3)
    state = solver.init(problem, problem.start())  # type: ignore[attr-defined]
    for _ in range(3):
        state = solver.step(problem, state)
    problem.value(state.x).sum().backward()
    gradient = solver.numbers.grad
    assert gradient is not None
    assert bool((gradient[1:, :] != 0).all()) and bool((gradient[0, :2] != 0).all())


def test_it_keeps_its_numbers(tmp_path) -> None:
    solver = broken(1, 0.3)
    lmd.solvers.save(solver, tmp_path / "solver")
    again = lmd.zoo.load(tmp_path / "solver", bare=True)
    assert isinstance(again, LearnedPDHG)
    torch.testing.assert_close(again.numbers, solver.numbers)
