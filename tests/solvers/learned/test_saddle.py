"""Learned steps on the saddle form: never outside, never without a gap, convergent past the horizon."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lmd
from lmd.operators import ParallelBeam, gaussian_kernel
from lmd.problems import TVDeblurring, TVInpainting, TVTomography
from lmd.problems.image_families import random_masks
from lmd.problems.tv import TVModel
from lmd.solvers import PDHG, LearnedSaddle


def problem_of(seed: int = 0, weight: float = 0.3, scale: float = 1.0, **options: object) -> TVInpainting:
    generator = torch.Generator().manual_seed(seed)
    noisy = scale * torch.rand(2, 3, 16, 20, generator=generator)
    mask = random_masks(2, 16, 20, 0.8, generator)
    return TVInpainting(noisy, mask, weight, **options)  # type: ignore[arg-type]


def broken(solver: LearnedSaddle, seed: int, size: float) -> LearnedSaddle:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in solver.parameters():
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
    return solver


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 100.0), st.booleans())
def test_whatever_was_learned_points_stay_inside_and_gaps_hold(seed: int, size: float, isotropic: bool) -> None:
    problem = problem_of(seed, isotropic=isotropic)
    result = lmd.run(broken(LearnedSaddle(5, 3, 3), seed, size), problem, iterations=5)
    assert result.dual is not None
    torch.testing.assert_close(problem.f.nearest(result.x), result.x)
    torch.testing.assert_close(problem.g.project(result.dual), result.dual)
    gap, true = problem.gap(result.x, result.dual), problem.value(result.x) - lmd.guarantees.minimum(problem)
    assert bool((gap >= true - 1e-4 * lmd.guarantees.minimum(problem)).all())


def test_a_broken_solver_still_reaches_a_tolerance() -> None:
    problem = problem_of()
    result = lmd.run(broken(LearnedSaddle(5, 3, 3), 0, 10.0), problem, tolerance=1e-3)
    assert result.dual is not None
    assert bool((problem.relative_gap(result.x, result.dual) <= 1e-3).all())


def test_past_the_horizon_it_is_pdhg_from_the_last_points() -> None:
    problem, solver = problem_of(), LearnedSaddle(3, 3, 3)
    with torch.no_grad():
        state = solver.init(problem, problem.start())
        for _ in range(3):
            state = solver.step(problem, state)
        classical = solver.tail
        assert isinstance(classical, PDHG)
        same = classical.init(problem, state.x)
        same = type(same)(state.x, dual=state.dual, ahead=state.x, tau=same.tau / 8, least=0.0)
        for _ in range(5):
            state, same = solver.step(problem, state), classical.step(problem, same)
    assert torch.equal(state.x, same.x)


def test_the_weight_and_the_form_are_units_only() -> None:
    solver = broken(LearnedSaddle(4, 5, 3), 1, 0.05)
    x = lmd.run(solver, problem_of(), iterations=4).x
    torch.testing.assert_close(lmd.run(solver, problem_of(weight=0.6, scale=2.0), iterations=4).x, 2 * x)
    torch.testing.assert_close(lmd.run(solver, problem_of(halved=True), iterations=4).x, x)


def test_what_lost_pixels_hold_does_not_matter_after_the_fill() -> None:
    problem = problem_of()
    other = TVInpainting(torch.where(problem.mask > 0, problem.noisy, 0.123), problem.mask, 0.3)
    solver = LearnedSaddle(4, 5, 3)
    one = lmd.run(solver, problem, iterations=4).x
    torch.testing.assert_close(lmd.run(solver, other, iterations=4).x, one)


@pytest.mark.parametrize("size", [(1, 1), (5, 40)])
def test_filling_leaves_kept_pixels_and_takes_means_of_their_values(size: tuple[int, int]) -> None:
    mask = torch.ones(1, 1, *size)
    if mask.numel() > 1:
        mask[..., 2, 3] = 0
    problem = TVInpainting(torch.full((1, 2, *size), 0.25), mask)
    torch.testing.assert_close(
        problem.fill_unknown(torch.zeros(1, 2, *size) + mask), torch.where(mask > 0, mask, 0.25).expand(1, 2, *size)
    )


def reconstruction(name: str) -> TVModel:
    images = torch.rand(2, 1, 12, 16, generator=torch.Generator().manual_seed(0))
    if name == "deblurring":
        return TVDeblurring(images, gaussian_kernel(1.0, 5))
    return TVTomography(ParallelBeam(12, 16, 8)(images), (12, 16))


@pytest.mark.parametrize("name", ["deblurring", "tomography"])
def test_measured_images_stay_in_their_box_and_reach_a_tolerance(name: str) -> None:
    problem = reconstruction(name)
    solver = broken(LearnedSaddle(4, 3, 3, masked=False, settle=1.0), 0, 1.0)
    early = lmd.run(solver, problem, problem.start(), iterations=4)
    assert float(early.x.min()) >= 0 and float(early.x.max()) <= 1
    late = lmd.run(solver, problem, problem.start(), tolerance=1e-3)
    assert late.dual is not None
    assert bool((problem.relative_gap(late.x, late.dual) <= 1e-3).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_that_does_not_look_at_the_mask_serves_inpainting_too(dtype: torch.dtype) -> None:
    noisy = torch.rand(1, 1, 12, 12, dtype=dtype, generator=torch.Generator().manual_seed(0))
    problem = TVInpainting(noisy, random_masks(1, 12, 12, 0.7, torch.Generator().manual_seed(1)))
    result = lmd.run(LearnedSaddle(4, 3, 3, masked=False).to(dtype), problem, iterations=4)
    assert bool((result.values < problem.value(noisy)).all())


@pytest.mark.parametrize(("dtype", "way"), [(torch.float32, "float"), (torch.float64, "double")])
def test_a_solver_of_another_dtype_says_how_to_convert_it(dtype: torch.dtype, way: str) -> None:
    other = torch.float64 if dtype == torch.float32 else torch.float32
    problem = problem_of()
    if dtype == torch.float64:
        problem = problem.double()  # type: ignore[assignment]
    with pytest.raises(
        lmd.InputError, match=rf"\Ax0: got {dtype} on cpu, expected {other} on cpu.* solver\.{way}\(\)\Z"
    ):
        lmd.run(LearnedSaddle(2).to(other), problem)


def test_kernels_of_one_side_can_be_trained_alone() -> None:
    for side, frozen in (("primal_kernels", "dual_kernels"), ("dual_kernels", "primal_kernels")):
        solver, problem = LearnedSaddle(3, 3, 3), problem_of()
        getattr(solver, frozen).requires_grad_(False)
        state = solver.advance(problem, solver.init(problem, problem.start()), 3)
        problem.value(state.x).sum().backward()
        assert bool((getattr(solver, side).grad != 0).any())
