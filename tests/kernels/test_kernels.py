"""Compiled steps give PyTorch's numbers to rounding, derivatives included, whatever the size."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import conv2d

from lmd import kernels
from lmd.problems import TVDenoising, TVInpainting, random_masks
from lmd.problems.tv import TVProblem
from lmd.solvers import LearnedDual, LearnedSaddle, Solver
from lmd.terms.base import per_instance

compiled = pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_compiler_means_compiled_kernels() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler on this machine")
    assert kernels.library() is not None


@compiled
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 6), st.integers(1, 5), st.sampled_from([1, 3, 5, 9]), st.integers(1, 70),
    st.integers(1, 70), st.integers(0, 1000),
)  # fmt: skip
def test_convolution_and_its_derivatives(
    images: int, fields: int, outputs: int, size: int, height: int, width: int, seed: int
) -> None:
    x = torch.randn(images, fields, height, width, generator=generator(seed), requires_grad=True)
    kernel = torch.randn(outputs, fields, size, size, generator=generator(seed + 1), requires_grad=True)
    weight = torch.randn(images, outputs, height, width, generator=generator(seed + 2))
    ours = kernels.convolve(x, kernel)
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, kernel)]
    theirs = conv2d(*exact, padding=size // 2)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    found = torch.autograd.grad(ours, (x, kernel), weight)
    expected = torch.autograd.grad(theirs, exact, weight.double())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4 * max(1.0, float(b.abs().max())))


def rough(solver: Solver, seed: int) -> Solver:
    """A solver with kernels that have no symmetry to hide behind."""
    with torch.no_grad():
        for parameter in solver.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator(seed))
    return solver


def iterate(solver: Solver, problem: TVDenoising | TVInpainting, steps: int = 4) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        state = solver.init(problem, problem.start())
        for _ in range(steps):
            state = solver.step(problem, state)
    return state.x, state.dual


def both_ways(solver: Solver, problem: TVDenoising | TVInpainting, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = iterate(solver, problem)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "library", lambda: None)
        slow = iterate(solver, problem)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


SIZES = [(1, 1), (1, 9), (9, 1), (32, 32), (33, 31), (70, 65), (26, 300)]


@compiled
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("weight", [0.3, torch.tensor([0.1, 0.5])])
def test_dual_step(size: tuple[int, int], weight: float | Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = torch.rand(2, 3, *size, generator=generator(0))
    for halved in (False, True):
        problem = TVDenoising(noisy, weight, halved=halved)
        for kernel in (3, 5, 7):
            both_ways(rough(LearnedDual(4, kernel), 1), problem, monkeypatch)


@compiled
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("masks", [0, 1, 2])
def test_smoothed_gradients(size: tuple[int, int], masks: int) -> None:
    """Those of several widths and of one, with a mask for all channels, for each, and without."""
    noisy, x = (torch.rand(3, 2, *size, generator=generator(seed)) for seed in (0, 1))
    weight, widths, shares = torch.tensor([0.1, 0.3, 0.5]), torch.tensor([0.2, 0.9]), torch.tensor([0.7, 0.3])
    mask = (torch.rand(3, max(masks, 1), *size, generator=generator(2)) < 0.7).float()
    mask[:, :, 0, 0] = 1
    problem = TVInpainting(noisy, mask, weight) if masks else TVDenoising(noisy, weight, halved=True)
    exact = problem.double()
    several = problem.mixed_gradient(x, widths, shares), exact.mixed_gradient(x.double(), widths.double(), shares)
    alone = problem.smoothed_gradient(x, widths[0]), exact.smoothed_gradient(x.double(), 0.2)
    for found, expected in (*zip(*several, strict=True), *zip(*alone, strict=True)):
        torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-6)


@compiled
@pytest.mark.parametrize("build", kernels.BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("_tv",)))
def test_every_build_that_runs_here(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = kernels.load(build)
    assert found is not None
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "library", lambda: found)
        both_ways(rough(LearnedDual(4, kernel=3), 1), TVDenoising(torch.rand(2, 3, 50, 61)), monkeypatch)
        mask = random_masks(2, 50, 61, 0.7, generator(1))
        both_ways(rough(LearnedSaddle(3), 1), TVInpainting(torch.rand(2, 3, 50, 61), mask), monkeypatch)


@compiled
@pytest.mark.parametrize("images", [1, 8])  # few planes are shared by the threads, of many each thread takes its own
@pytest.mark.parametrize("kind", ["dual", "saddle"])
def test_many_steps_at_once_are_the_steps_one_by_one_to_the_bit(images: int, kind: str) -> None:
    noisy = torch.rand(images, 1, 40, 50, generator=generator(0))
    mask = random_masks(images, 40, 50, 0.7, generator(1))
    problem: TVProblem = TVDenoising(noisy) if kind == "dual" else TVInpainting(mask * noisy, mask)
    solver: Solver = rough(LearnedDual(6, kernel=3) if kind == "dual" else LearnedSaddle(6, 3, 5), 1)
    with torch.no_grad():
        start = solver.init(problem, problem.start())
        for begin, count in ((0, 1), (0, 2), (0, 6), (1, 4), (2, 3), (3, 1), (0, 9), (4, 6)):
            begun = solver.advance(problem, start, begin)
            whole, single = solver.advance(problem, begun, count), begun
            for _ in range(count):
                single = solver.step(problem, single)
            assert whole.iteration == single.iteration == begin + count
            for name in ("x", "dual", "previous", "moved", "dual_moved"):
                one, other = getattr(whole, name, None), getattr(single, name, None)
                assert one is other is None or torch.equal(one, other)


@compiled
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("halved", [False, True])
def test_values_and_gaps(size: tuple[int, int], halved: bool) -> None:
    """Of points and dual points that have nothing to do with each other, p partly outside its bounds."""
    noisy, x = (torch.rand(3, 2, *size, generator=generator(seed)) for seed in (0, 1))
    p = 0.5 * torch.randn(3, 2, 2, *size, generator=generator(2))
    problem = TVDenoising(noisy, torch.tensor([0.1, 0.3, 0.5]), halved=halved)
    exact = problem.double()
    torch.testing.assert_close(problem.value(x).double(), exact.value(x.double()), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(problem.gap(x, p).double(), exact.gap(x.double(), p.double()), rtol=1e-6, atol=1e-7)


@compiled
@pytest.mark.parametrize("build", kernels.BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("_tv",)))
def test_a_gap_is_never_negative_not_even_by_rounding(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """b |Kx| - <Kx, p> is 0 where p is b times the signs of Kx: each term has to be."""
    monkeypatch.setattr(kernels, "library", lambda: kernels.load(build))
    x = torch.rand(3, 2, 15, 17, generator=generator(0))
    for bound in (0.1, 0.3, torch.tensor([0.7, 0.2, 0.9])):
        problem = TVDenoising(x, bound)
        signs = problem.operator(x).sign() * per_instance(problem.bound, problem.operator(x))
        assert kernels.tv_sums(x, signs, None, problem.bound)[1].tolist() == [0, 0, 0]


@compiled
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_saddle_step(size: tuple[int, int], channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = torch.rand(2, 3, *size, generator=generator(0))
    mask = random_masks(2, *size, 0.7, generator(1)).repeat(1, channels, 1, 1)
    problem = TVInpainting(noisy, mask, torch.tensor([0.1, 0.5]))
    both_ways(rough(LearnedSaddle(4, kernel=5, primal_kernel=3), 1), problem, monkeypatch)


@compiled
def test_an_image_alone_and_in_a_batch_are_the_same_to_the_bit() -> None:
    noisy = torch.rand(3, 3, 40, 50, generator=generator(0))
    solver = rough(LearnedDual(4, kernel=5), 1)
    together = iterate(solver, TVDenoising(noisy))[0]
    alone = iterate(solver, TVDenoising(noisy[1:2]))[0]
    assert torch.equal(together[1:2], alone)


@compiled
def test_a_nan_stays_a_nan() -> None:
    noisy = torch.rand(1, 1, 40, 40, generator=generator(0))
    problem = TVDenoising(noisy)
    noisy[0, 0, 20, 20] = torch.nan
    assert bool(iterate(LearnedDual(4), problem)[0].isnan().any())


@compiled
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_the_answer(threads: int) -> None:
    noisy = torch.rand(4, 3, 96, 96, generator=generator(0))
    solver, before = rough(LearnedDual(3), 1), torch.get_num_threads()
    expected = iterate(solver, TVDenoising(noisy), 3)[0]
    try:
        torch.set_num_threads(threads)
        assert torch.equal(iterate(solver, TVDenoising(noisy), 3)[0], expected)
    finally:
        torch.set_num_threads(before)
