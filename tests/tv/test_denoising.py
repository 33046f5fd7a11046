"""Compiled denoising against the PyTorch lines of `LearnedFGP`, and its certificates against the truth."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lmd
from lmd import kernels
from lmd.errors import InputError
from lmd.problems import TVDenoising, TVModel
from lmd.solvers import FGP, LearnedFGP
from lmd.solvers.learned.primal_dual import PLACES
from lmd.terms import Squares
from lmd.tv import match, schedules
from lmd.tv.plans import Denoising, End
from lmd.tv.schedules import Schedule, table_of

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")

SHAPES = [(1, 1, 1, 1), (2, 1, 1, 7), (1, 2, 7, 1), (2, 3, 5, 9), (1, 3, 33, 17), (1, 1, 131, 67), (3, 1, 40, 48)]
ANYTHING = 1e30
"""A tolerance that every point is within: a solve ends where its gap is first evaluated."""


def images(shape, dtype=torch.float32, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def learned(iterations=11, coarse=False):
    solver = LearnedFGP(iterations, coarse)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        solver.numbers.add_(0.4 * torch.rand(solver.numbers.shape, generator=generator, dtype=torch.float32))
    return solver


def table(*solvers, reach=0.0):
    """What these have learned, as C reads it; `reach` is the logarithm of the gap that the first is taken for."""
    rows = [[reach] * PLACES] * kernels.library().FORMS
    return table_of([Schedule(solver.numbers.detach().double(), solver.coarse, rows) for solver in solvers])


def plan_of(problem):
    plan = match(problem, 1e-3)
    assert isinstance(plan, Denoising)
    return plan


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("coarse", [False, True])
def test_it_does_what_pytorch_does(shape, dtype, isotropic, coarse):
    weight = torch.linspace(0.1, 0.4, shape[0], dtype=dtype)
    problem, solver = TVDenoising(images(shape, dtype), weight, isotropic, halved=True), learned(11, coarse).to(dtype)
    with torch.no_grad():
        expected = solver.advance(problem, solver.init(problem, problem.start()), 11)
    found = plan_of(problem).solve(ANYTHING, 100, None, table=table(solver, reach=-100))
    room = 100 * torch.finfo(dtype).eps
    assert [outcome.iterations for outcome in found.outcomes] == [11] * shape[0]
    assert torch.allclose(found.x, expected.x, rtol=0, atol=room)
    assert torch.allclose(problem.operator.adjoint(found.dual), problem.operator.adjoint(expected.dual), atol=room)


@pytest.mark.parametrize(("threads", "tolerance"), [(2, 0.3), (3, 1e-4), (12, 1e-3)])
@pytest.mark.parametrize("shape", [(1, 3, 96, 96), (1, 1, 230, 97), (7, 1, 64, 64), (1, 1, 720, 31)])
def test_the_answer_does_not_depend_on_the_threads_or_the_batch(shape, threads, tolerance):
    problem = TVDenoising(images(shape), torch.linspace(0.1, 0.4, shape[0]))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = [lmd.solve(problem.select([i]), tolerance) for i in range(shape[0])]
        torch.set_num_threads(threads)
        together = lmd.solve(problem, tolerance)
    finally:
        torch.set_num_threads(before)
    for i, result in enumerate(alone):
        assert torch.equal(result.x[0], together.x[i])
        assert torch.equal(result.dual[0], together.dual[i])
        assert result.iterations[0] == together.iterations[i]


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("level", [0.0, 0.7])
def test_a_constant_image_is_its_own_minimiser_and_that_is_proven(isotropic, level):
    result = lmd.solve(TVDenoising(torch.full((1, 3, 32, 40), level), 0.3, isotropic), tolerance=1e-6)
    assert result.status[0].name == "TOLERANCE_REACHED"
    assert bool(result.certificate.bound == 0) and bool((result.x == result.x[0, 0, 0, 0]).all())


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 19), st.integers(1, 19), st.integers(0, 1000), st.booleans(), st.booleans(),
    st.sampled_from([torch.float32, torch.float64]), st.floats(-3, 3), st.floats(-4, 4),
)  # fmt: skip
def test_a_certificate_is_never_below_the_truth(height, width, seed, isotropic, halved, dtype, log_weight, log_size):
    y = 10**log_size * images((1, 2, height, width), dtype, seed)
    problem = TVDenoising(y, 10 ** (log_weight + log_size), isotropic, halved)
    result = lmd.solve(problem, tolerance=10 ** -(1 + seed % 6), iterations=1 + seed % 300)
    certificate, exact = result.certificate, problem.double()
    best = lmd.solve(exact, tolerance=1e-10, iterations=3000)
    least = exact.value(best.x.double())
    assert bool((certificate.value >= exact.value(result.x.double()) * (1 - 1e-14)).all())
    assert bool((certificate.lower_bound <= least + 1e-14 * least.abs()).all())


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tolerance", [1e-1, 4e-4])
def test_its_gap_is_the_certified_gap(tolerance, isotropic, coupled, dtype):
    y, weight = images((2, 3, 20, 30), dtype), torch.tensor([0.1, 0.4], dtype=dtype)
    problem = TVModel(Squares(y), weight, isotropic=isotropic, coupled=coupled)
    solved = plan_of(problem).solve(tolerance, 1000, None)
    values, gaps = problem.certified_gap(solved.x, solved.dual)
    for outcome, value, gap in zip(solved.outcomes, values.tolist(), gaps.tolist(), strict=True):
        assert outcome.end == End.REACHED
        assert outcome.value == pytest.approx(value, rel=1e-12)
        assert outcome.gap == pytest.approx(gap, rel=1e-9)


@pytest.mark.parametrize("build", kernels.BUILDS.get(torch.backends.cpu.get_cpu_capability(), kernels.PLAIN))
@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("shape", [(1, 3, 96, 96), (2, 2, 19, 33)])
def test_every_build_that_runs_here(build, shape, tolerance, isotropic, monkeypatch):
    problem = TVDenoising(images(shape), 0.2, isotropic)
    usual = lmd.solve(problem, tolerance)
    code = kernels.load(build)
    monkeypatch.setattr(kernels, "library", lambda: code)
    result = lmd.solve(problem, tolerance)
    value, gap = problem.certified_gap(result.x, result.dual)
    assert result.iterations.tolist() == usual.iterations.tolist()
    torch.testing.assert_close(result.x, usual.x, rtol=0, atol=1e-5)
    assert bool((result.certificate.bound >= gap * (1 - 1e-9)).all())
    assert bool((gap <= tolerance * (value - gap)).all())


@pytest.mark.parametrize("isotropic", [False, True])
def test_without_compiled_code_plain_fgp_gives_the_same_proof(isotropic, monkeypatch):
    problem = TVDenoising(images((1, 2, 30, 40), torch.float64), 0.2, isotropic)
    compiled = lmd.solve(problem, 1e-5)
    monkeypatch.setattr(kernels, "library", lambda: None)
    plain = lmd.solve(problem, 1e-5)
    assert isinstance(plain.solver, FGP) and plain.status[0].name == "TOLERANCE_REACHED"
    bound = float((compiled.certificate.bound + plain.certificate.bound).sqrt())
    assert float((plain.x - compiled.x).norm()) <= 2 * bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float32_images_are_solved_beyond_the_rounding_of_their_iterates(dtype):
    problem = TVDenoising(images((1, 3, 48, 48), dtype), 0.3)
    result = lmd.solve(problem, tolerance=1e-6)
    assert result.status[0].name == "TOLERANCE_REACHED"
    assert result.x.dtype == dtype
    assert bool(result.certificate.bound <= 1.01e-6 * result.values)


@pytest.mark.parametrize("iterations", range(1, 60, 7))
def test_it_stops_where_it_is_told_whatever_the_precision(iterations):
    problem = TVDenoising(images((1, 1, 12, 13)), 0.01)
    result = lmd.solve(problem, tolerance=1e-12, iterations=iterations)
    assert int(result.iterations) <= iterations
    _, gap = problem.certified_gap(result.x, result.dual)
    assert float(result.certificate.bound) >= 0.999 * float(gap)


def test_strided_images_are_taken_for_what_they_are():
    y = images((2, 3, 12, 14))
    wide = y.repeat_interleave(2, dim=3)[..., ::2]
    turned = y.to(memory_format=torch.channels_last)
    expected = lmd.solve(TVDenoising(y, 0.2), 1e-4)
    for other in (wide, turned):
        assert torch.equal(lmd.solve(TVDenoising(other, 0.2), 1e-4).x, expected.x)


def test_a_dual_field_of_another_shape_is_refused():
    plan = plan_of(TVDenoising(images((1, 1, 8, 9)), 0.2))
    with pytest.raises(InputError, match=r"dual: .*expected shape \(1, 1, 2, 8, 9\)"):
        plan.solve(1e-3, 5, torch.zeros(1, 1, 2, 9, 8))


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_warm_start_is_evaluated_once_and_taken_where_it_helps(isotropic, dtype):
    problem = TVDenoising(images((1, 3, 96, 96), dtype), 1.0, isotropic)
    before = lmd.solve(problem, 1e-5)
    assert lmd.solve(problem, 1e-3, warm=before).iterations.tolist() == [0]
    near = TVDenoising(problem.noisy + 1e-3 * images((1, 3, 96, 96), dtype, seed=2), 1.0, isotropic)
    warm, cold = lmd.solve(near, 1e-3, warm=before), lmd.solve(near, 1e-3)
    assert warm.status[0].name == "TOLERANCE_REACHED" and int(warm.iterations) <= int(cold.iterations)
    other = TVDenoising(images((1, 3, 96, 96), dtype, seed=1), 0.4, isotropic)
    assert torch.equal(lmd.solve(other, 1e-1, warm=before).x, lmd.solve(other, 1e-1).x)  # of no use


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize(("step", "momentum"), [(0.0, 0.0), (3.0, 1.5), (1.0, -0.9)])
def test_whatever_the_schedule_is_the_tolerance_is_reached_and_proven(isotropic, step, momentum):
    """Schedules that get nowhere, or do not converge, are taken up again only while they lower the gap."""
    solvers = [LearnedFGP(3), LearnedFGP(9)]
    with torch.no_grad():
        for solver in solvers:
            solver.numbers[0], solver.numbers[1] = step, momentum
    problem = TVDenoising(images((2, 1, 40, 33)), torch.tensor([0.3, 0.05]), isotropic)
    solved = plan_of(problem).solve(1e-4, 100_000, None, table=table(*solvers, reach=-5))
    assert [outcome.end for outcome in solved.outcomes] == [End.REACHED] * 2
    value, gap = problem.double().certified_gap(solved.x.double(), solved.dual.double())
    assert bool((gap <= 1.01e-4 * value).all())


def test_a_schedule_that_was_not_enough_is_followed_by_another():
    """Which is faster than FGP from there."""
    smooth = torch.nn.functional.interpolate(images((1, 1, 6, 6)), size=(120, 120), mode="bicubic")
    plan = plan_of(
        TVDenoising(smooth + 0.02 * torch.randn(smooth.shape, generator=torch.Generator().manual_seed(1)), 0.3)
    )
    steps = [schedule for schedule in schedules.denoising() if not schedule.coarse and schedule.iterations >= 21]
    hopeful = Schedule(steps[0].values, False, [[-20.0] * PLACES] * kernels.library().FORMS)
    counts = [
        plan.solve(1e-3, 5000, None, table=table_of(chosen)).outcomes[0].iterations
        for chosen in ([hopeful, *steps[1:]], [hopeful])
    ]
    assert 21 < counts[0] < counts[1]


@pytest.mark.parametrize(("weight", "tolerance", "iterations"), [(1e-3, 1e-6, 16), (1e-3, 1e-2, 4)])
def test_far_beyond_what_was_learned_few_iterations_will_do(weight, tolerance, iterations):
    assert int(lmd.solve(TVDenoising(images((1, 1, 24, 24)), weight), tolerance).iterations) <= iterations


@pytest.mark.parametrize(("isotropic", "weight"), [(False, 1.0), (True, 0.3), (True, 1.0)])
def test_restarts_prove_small_gaps_in_few_iterations(isotropic, weight):
    """Without restarts, or with restarts where momentum helps, several thousand are needed."""
    problem = TVDenoising(images((1, 1, 40, 50), torch.float64), weight, isotropic)
    result = lmd.solve(problem, 1e-9)
    assert result.status[0].name == "TOLERANCE_REACHED" and int(result.iterations) <= 1300


@pytest.mark.parametrize("size", [1.0, 0.4, 1 / 128])
def test_float32_images_are_averaged_by_extreme_weights(size):
    """Rounding misleads the dual iterations in float32; in float64 the solve has to begin afresh."""
    noisy = size * (255 * images((1, 3, 20, 26))).round()
    result = lmd.solve(TVDenoising(noisy, 2.5e7 * size), 1e-3)
    assert result.status[0].name == "TOLERANCE_REACHED"
    torch.testing.assert_close(result.x, noisy.mean(dim=(2, 3), keepdim=True).expand_as(noisy), rtol=1e-6, atol=0)


def steps_and_noise(isotropic, dtype=torch.float32, shape=(1, 2, 45, 70)):
    generator = torch.Generator().manual_seed(0)
    levels = torch.rand(*shape[:2], 5, 5, generator=generator)
    clean = torch.nn.functional.interpolate(levels, size=shape[2:], mode="nearest")
    return TVDenoising((clean + 0.1 * torch.randn(shape, generator=generator)).to(dtype), 0.2, isotropic)


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answers_are_averaged_over_constant_regions_whatever_the_threads(isotropic, dtype, monkeypatch):
    """Neighbours whose dual point is within its bound are equal, and what they have is the mean of x(p)."""
    problem, answers = steps_and_noise(isotropic, dtype, (1, 3, 133, 90)), []
    monkeypatch.setattr(kernels, "SMALL", 0)
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        answers.append(lmd.solve(problem, 2e-5))
    for result in answers:
        assert result.status[0].name == "TOLERANCE_REACHED"
        assert torch.equal(result.x, answers[0].x) and torch.equal(result.dual, answers[0].dual)
    x, own = answers[0].x, problem.f.tilted_minimiser(problem.operator.adjoint(answers[0].dual))
    for plane, before in zip(x[0], own[0], strict=True):
        levels, place, counts = plane.unique(return_inverse=True, return_counts=True)
        assert len(levels) < plane.numel() / (1.2 if isotropic else 3)  # much of it is in regions
        sums = torch.zeros_like(levels).index_add_(0, place.flatten(), before.flatten())
        assert float((sums / counts - levels).abs().max()) < 64 * torch.finfo(dtype).eps
    plain, flat = (problem.certified_gap(point, answers[0].dual)[1] for point in (own, x))
    assert bool(2 * flat < plain)


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("offset", [1e5, -1e7])
def test_regions_are_the_same_far_from_zero(offset, isotropic):
    """Squares of numbers that are far from 0 would hide what a region has of the gap."""
    problem = steps_and_noise(isotropic, torch.float64)
    far = TVDenoising(problem.noisy + offset, problem.weight, isotropic)
    near, moved = lmd.solve(problem, 1e-5), lmd.solve(far, 1e-5)
    assert int(near.iterations) == int(moved.iterations)
    torch.testing.assert_close(moved.x - offset, near.x, rtol=0, atol=1e-12 + 1e-14 * abs(offset))


@pytest.mark.parametrize("isotropic", [False, True])
def test_single_precision_proves_a_millionth(isotropic):
    problem = steps_and_noise(isotropic)
    result = lmd.solve(problem, 1e-6)
    assert result.status[0].name == "TOLERANCE_REACHED" and result.x.dtype == torch.float32
    exact = TVDenoising(problem.noisy.double(), 0.2, isotropic)
    value, gap = exact.certified_gap(result.x.double(), result.dual.double())
    assert bool(gap <= 1.001e-6 * value)
