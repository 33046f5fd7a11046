"""The compiled loop of fast gradient projection against the PyTorch lines, and its certificates against the truth."""

import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lmd
from lmd import kernels
from lmd.errors import InputError
from lmd.kernels import loop
from lmd.problems import TVDenoising
from lmd.problems.compiled import model_of
from lmd.solvers import FGP, LearnedFGP

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")

SHAPES = [(1, 1, 1, 1), (2, 1, 1, 7), (1, 2, 7, 1), (2, 3, 5, 9), (1, 3, 33, 17), (1, 1, 131, 67), (3, 1, 40, 48)]


def images(shape, dtype=torch.float32, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def learned(iterations=11):
    solver = LearnedFGP(iterations)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        solver.numbers.add_(0.4 * torch.rand(solver.numbers.shape, generator=generator, dtype=torch.float32))
    return solver


def in_pytorch(solver, problem, iterations, monkeypatch):
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(loop, "serves", lambda *tensors: False)
        return solver.advance(problem, solver.init(problem, problem.start()), iterations)


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_does_what_pytorch_does(shape, dtype, isotropic, monkeypatch):
    weight = torch.linspace(0.1, 0.4, shape[0], dtype=dtype)
    problem = TVDenoising(images(shape, dtype), weight, isotropic, halved=True)
    for solver, iterations in (
        (FGP(multiplier=0.9, restart=True), 37),
        (learned().to(dtype), 11),
        (learned().to(dtype), 29),
    ):
        expected = in_pytorch(solver, problem, iterations, monkeypatch)
        with torch.no_grad():
            found = solver.advance(problem, solver.init(problem, problem.start()), iterations)
        room = 100 * torch.finfo(dtype).eps
        assert torch.allclose(found.x, expected.x, rtol=0, atol=room)
        assert torch.allclose(problem.operator.adjoint(found.dual), problem.operator.adjoint(expected.dual), atol=room)


@pytest.mark.parametrize(("threads", "horizon", "tolerance"), [(2, 9, 0.9), (3, 9, 1e-4), (2, 20, 1e-4), (3, 20, 1e-4)])
@pytest.mark.parametrize("shape", [(1, 3, 96, 96), (1, 1, 230, 97), (7, 1, 64, 64)])
def test_the_answer_does_not_depend_on_the_threads_or_the_batch(shape, threads, horizon, tolerance):
    problem = TVDenoising(images(shape), torch.linspace(0.1, 0.4, shape[0]))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = [lmd.solve(problem.select([i]), tolerance, solver=learned(horizon)) for i in range(shape[0])]
        torch.set_num_threads(threads)
        together = lmd.solve(problem, tolerance, solver=learned(horizon))
    finally:
        torch.set_num_threads(before)
    for i, result in enumerate(alone):
        assert torch.equal(result.x[0], together.x[i])
        assert torch.equal(result.dual[0], together.dual[i])
        assert result.iterations[0] == together.iterations[i]


def test_nor_where_coarser_grids_have_too_few_rows_for_all_threads():
    problem, solver, before = TVDenoising(images((1, 1, 720, 31)), 0.3), learned(12), torch.get_num_threads()
    solver.coarse = True
    results = []
    try:
        for threads in (1, 12):
            torch.set_num_threads(threads)
            results.append(lmd.solve(problem, 0.5, solver=solver))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0].dual, results[1].dual)


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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("solver", "tolerance"), [(FGP(restart=True), 4e-4), (learned(9), 0.9), (learned(9), 4e-4)])
def test_its_gap_is_the_certified_gap(solver, tolerance, isotropic, dtype):
    problem = TVDenoising(images((2, 3, 20, 30), dtype), torch.tensor([0.1, 0.4], dtype=dtype), isotropic)
    with torch.no_grad():
        solved = solver.to(dtype).finish(problem, None, tolerance, 1000)
    values, gaps = problem.certified_gap(solved.x, solved.dual)
    if dtype == torch.float64 or tolerance < 5e-4:  # to tolerances from there on looks are brief
        assert list(solved.values) == pytest.approx(values.tolist(), rel=1e-12)
        assert list(solved.gaps) == pytest.approx(gaps.tolist(), rel=1e-9)
        assert list(solved.proven[2]) == [0, 0]
    assert solved.status == [2, 2]


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(1, 1), (2, 15), (30, 16), (17, 17), (40, 48), (33, 90)])
def test_planes_that_lie_abreast_are_the_planes_alone_to_the_bit(size, dtype, isotropic):
    noisy, numbers = images((1, 3, *size), dtype), torch.rand(2, 1, 11, generator=torch.Generator().manual_seed(0))
    problem = TVDenoising(noisy, 0.2, isotropic)
    together = loop.fgp(model_of(problem), loop.Progress(), 20, numbers=numbers, restart=False)
    for c in range(3):
        one = TVDenoising(noisy[:, c : c + 1], 0.2, isotropic)
        alone = loop.fgp(model_of(one), loop.Progress(), 20, numbers=numbers, restart=False)
        for name in ("x", "dual", "ahead"):
            assert torch.equal(getattr(together, name)[:, c : c + 1], getattr(alone, name))


@pytest.mark.parametrize("build", kernels.BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("_tv",)))
@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("shape", [(1, 3, 96, 96), (2, 2, 19, 33)])
def test_every_build_that_runs_here(build, shape, tolerance, isotropic, monkeypatch):
    problem = TVDenoising(images(shape), 0.2, isotropic)
    usual = lmd.solve(problem, tolerance)
    monkeypatch.setattr(loop, "_function", lambda: importlib.import_module(f"lmd.kernels.{build}").fgp)
    result = lmd.solve(problem, tolerance)
    value, gap = problem.certified_gap(result.x, result.dual)
    assert result.iterations.tolist() == usual.iterations.tolist()
    torch.testing.assert_close(result.x, usual.x, rtol=0, atol=1e-5)
    assert bool((result.certificate.bound >= gap * (1 - 1e-9)).all())
    assert bool((gap <= tolerance * (value - gap)).all())


def test_what_python_calls_directly_says_what_is_wrong():
    given = [None] * 4 + [0.1] + [None] * 2 + [1.0] * 5 + [1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1] + [None] * 3 + [1.0]
    with pytest.raises(TypeError, match="29 arguments, not 0"):
        kernels.module().fgp()
    for place, wrong, kind in (
        (4, [0.1, 0.2], ValueError),
        (28, "no", ValueError),
        (28, 3, TypeError),
        (0, "y", TypeError),
    ):
        with pytest.raises(kind):
            kernels.module().fgp(*given[:place], wrong, *given[place + 1 :])


def looked_at(problem, numbers, tolerance=1e-3):
    """A solve whose looks are brief, and what an exact look finds: F(x) and its gap."""
    with torch.no_grad():
        solved = learned(numbers).finish(problem, None, tolerance, 1000)
    return solved, *problem.certified_gap(solved.x, solved.dual)


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("shape", [(1, 3, 96, 96), (2, 1, 33, 47), (1, 1, 1, 700), (1, 2, 300, 1), (1, 1, 40, 1337)])
@pytest.mark.parametrize("numbers", [3, 20])
def test_a_brief_look_says_no_less_than_an_exact_one_and_little_more(shape, isotropic, numbers):
    problem = TVDenoising(images(shape), 0.2, isotropic)
    solved, values, gaps = looked_at(problem, numbers=numbers, tolerance=2e-3)
    assert solved.status == [2] * shape[0]
    for told, room, gap, value, true in zip(
        solved.values, solved.proven[2], solved.gaps, values.tolist(), gaps.tolist(), strict=True
    ):
        assert abs(told - value) < room < 1e-5 * value  # and not 0: it was brief
        assert true < gap < true + 2e-5 * value


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("numbers", [3, 20])
@pytest.mark.parametrize(("offset", "size"), [(1e6, 1.0), (0.0, 1e-17)])
def test_where_a_brief_look_could_hide_too_much_an_exact_one_follows(offset, size, numbers, isotropic):
    problem = TVDenoising(offset + size * images((2, 2, 20, 30)), 0.1 * size, isotropic)
    solved, values, gaps = looked_at(problem, numbers=numbers, tolerance=1e-2)
    assert list(solved.proven[2]) == [0, 0]
    assert list(solved.values) == pytest.approx(values.tolist(), rel=1e-12)
    assert list(solved.gaps) == pytest.approx(gaps.tolist(), rel=1e-9, abs=1e-14 * min(solved.values))


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
    model = model_of(TVDenoising(images((1, 1, 8, 9)), 0.2))
    with pytest.raises(InputError, match=r"dual: .*expected shape \(1, 1, 2, 8, 9\)"):
        loop.fgp(model, loop.Progress(torch.zeros(1, 1, 2, 9, 8)), 5)


def test_derivatives_are_those_of_the_steps():
    for isotropic in (False, True):
        problem = TVDenoising(images((2, 3, 9, 11)), torch.tensor([0.05, 0.3]), isotropic)
        solver, grads = learned(7), []
        state = solver.init(problem, problem.start())
        for _ in range(7):
            state = solver.learned_step(problem, state)
        for last in (state, solver.unrolled(problem, problem.start())):
            problem.gap(last.x, last.dual).log().sum().backward()
            grads.append(solver.numbers.grad)
            solver.numbers.grad = None
        assert float((grads[0] - grads[1]).abs().max()) < 1e-3 * float(grads[0].abs().max())
        assert math.isfinite(float(grads[1].sum()))


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 33, 47), (1, 1, 96, 64), (1, 2, 15, 40)])
def test_coarser_grids_are_those_of_pytorch(shape, isotropic, monkeypatch):
    solver = LearnedFGP(7, coarse=True).double()
    solver.load_state_dict(learned(7).double().state_dict())
    y = images(shape, torch.float64)
    problem = TVDenoising(y, torch.linspace(0.2, 0.4, shape[0], dtype=torch.float64), isotropic)
    with torch.no_grad():
        found = solver.finish(problem, None, 1e30, 100)  # stops where it first looks
    expected = in_pytorch(solver, problem, 7, monkeypatch)
    assert found.iterations == [7] * shape[0]
    assert torch.allclose(found.x, expected.x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("isotropic", [False, True])
def test_without_an_iteration_nothing_has_changed(isotropic):
    y = torch.rand(2, 1, 9, 13, generator=torch.Generator().manual_seed(0))
    model = model_of(TVDenoising(y, 0.3, isotropic))
    for _ in range(3):  # whatever was in the memory before
        found = loop.fgp(model, loop.Progress(), 0)
        assert torch.equal(found.x, y) and not found.dual.any() and not found.ahead.any()
        loop.fgp(model, loop.Progress(), 20)
