"""Learned steps on the dual: feasible whatever was learned, classical before training, convergent past the horizon."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.problems import TVDenoising, TVDenoisingFamily, TVInpainting
from lmd.problems.image_families import random_masks
from lmd.solvers import FGP, LearnedDual
from lmd.solvers.saving import load, save


def problem_of(seed: int = 0, **options: object) -> TVDenoising:
    noisy = torch.rand(2, 3, 16, 20, generator=torch.Generator().manual_seed(seed))
    return TVDenoising(noisy, **options)  # type: ignore[arg-type]


def broken(solver: LearnedDual, seed: int, size: float) -> LearnedDual:
    with torch.no_grad():
        solver.kernels.copy_(size * torch.randn(solver.kernels.shape, generator=torch.Generator().manual_seed(seed)))
    return solver


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 100.0), st.booleans())
def test_whatever_was_learned_dual_points_are_feasible_and_gaps_hold(seed: int, size: float, isotropic: bool) -> None:
    problem = problem_of(seed, isotropic=isotropic)
    result = lmd.run(broken(LearnedDual(5, 3), seed, size), problem, iterations=5)
    assert result.dual is not None
    torch.testing.assert_close(problem.g.project(result.dual), result.dual)
    gap, true = problem.gap(result.x, result.dual), problem.value(result.x) - lmd.guarantees.minimum(problem)
    assert bool((gap >= true - 1e-4 * lmd.guarantees.minimum(problem)).all())


def test_a_broken_solver_still_reaches_a_tolerance() -> None:
    problem = problem_of()
    result = lmd.run(broken(LearnedDual(5, 3), 0, 10.0), problem, tolerance=1e-4)
    assert result.dual is not None
    assert bool((problem.relative_gap(result.x, result.dual) <= 1e-4).all())
    torch.testing.assert_close(result.x, lmd.guarantees.minimiser(problem), atol=5e-3, rtol=0)


def test_past_the_horizon_it_is_fgp_from_the_last_dual_point() -> None:
    problem = problem_of()
    solver = LearnedDual(3, 3)
    with torch.no_grad():
        state = solver.init(problem, problem.start())
        for _ in range(3):
            state = solver.step(problem, state)
        classical = FGP(restart=True)
        same = classical.init(problem, state.x)
        adjoint = problem.operator.adjoint(state.dual)
        same = type(same)(
            state.x, dual=state.dual, adjoint=adjoint, ahead=state.dual, ahead_adjoint=adjoint, momentum=same.momentum
        )
        for _ in range(5):
            state, same = solver.step(problem, state), classical.step(problem, same)
    assert torch.equal(state.x, same.x)
    assert state.iteration == 8


def test_the_weight_and_the_form_are_units_only() -> None:
    noisy = torch.rand(1, 3, 16, 20, generator=torch.Generator().manual_seed(0)).double()
    solver = broken(LearnedDual(4, 5), 1, 0.05).double()
    x = lmd.run(solver, TVDenoising(noisy, 0.3), iterations=4).x
    torch.testing.assert_close(lmd.run(solver, TVDenoising(2 * noisy, 0.6), iterations=4).x, 2 * x)
    torch.testing.assert_close(lmd.run(solver, TVDenoising(noisy, 0.3, halved=True), iterations=4).x, x)


def test_training_brings_it_closer_than_it_began(tmp_path: object) -> None:
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    from lmd.reproduction.tasks.common import SolvedFamily

    family = SolvedFamily(TVDenoisingFamily(images, crop=16), 20, FGP(restart=True), iterations=200)
    solver = LearnedDual(3, 3)
    options = {"objective": "distance", "value_weights": "last", "learning_rate": 1e-2}
    result = lmd.train(solver, family, updates=40, batch=4, progress=False, **options)
    _, values = result.curve("validation_value")
    assert min(values) < values[0] - 1.0  # a decibel
    save(solver, str(tmp_path))
    assert torch.equal(load(str(tmp_path)).kernels, solver.kernels)


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="kernel: got 4"):
        LearnedDual(10, kernel=4)
    noisy = torch.rand(1, 1, 8, 8)
    inpainting = TVInpainting(noisy, random_masks(1, 8, 8, 0.8, torch.Generator().manual_seed(0)))
    with pytest.raises(CapabilityError, match=r"f\.strong_convexity"):
        lmd.run(LearnedDual(2), inpainting, noisy)


@pytest.mark.parametrize(("dtype", "way"), [(torch.float32, "float"), (torch.float64, "double")])
def test_a_solver_of_another_dtype_says_how_to_convert_it(dtype: torch.dtype, way: str) -> None:
    other = torch.float64 if dtype == torch.float32 else torch.float32
    problem = problem_of()
    if dtype == torch.float64:
        problem = problem.double()  # type: ignore[assignment]
    with pytest.raises(
        lmd.InputError, match=rf"\Ax0: got {dtype} on cpu, expected {other} on cpu.* solver\.{way}\(\)\Z"
    ):
        lmd.run(LearnedDual(2).to(other), problem)
