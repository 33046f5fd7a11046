"""Compiled convolutions give PyTorch's numbers to rounding, derivatives included, whatever the size."""

import shutil
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import conv2d

import lmd
from lmd import kernels
from lmd.problems import TVDenoising, TVInpainting

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


@compiled
@pytest.mark.parametrize("build", kernels.BUILDS.get(torch.backends.cpu.get_cpu_capability(), kernels.PLAIN))
@pytest.mark.parametrize("size", [(1, 1), (9, 1), (33, 31), (26, 300)])
def test_every_build_that_runs_here_convolves(
    build: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, kernel = torch.randn(2, 3, *size, generator=generator(0)), torch.randn(3, 3, 5, 5, generator=generator(1))
    code = kernels.load(build)
    monkeypatch.setattr(kernels, "library", lambda: code)
    torch.testing.assert_close(kernels.convolve(x, kernel), conv2d(x, kernel, padding=2), rtol=1e-5, atol=1e-5)


@compiled
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_does_not_matter(threads: int) -> None:
    x, kernel = torch.randn(1, 4, 200, 180, generator=generator(0)), torch.randn(2, 4, 3, 3, generator=generator(1))
    expected, before = kernels.convolve(x, kernel), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert torch.equal(kernels.convolve(x, kernel), expected)
    finally:
        torch.set_num_threads(before)


def newest_thread() -> int:
    """The number that the system gives to a new thread: one more for each thread that has been started."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(threading.get_native_id()))
    thread.start()
    thread.join()
    return found[0]


@compiled
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not number threads one after the other")
@pytest.mark.parametrize("is_masked", [False, True], ids=["denoising", "inpainting"])
def test_solves_do_not_start_threads_anew(is_masked: bool) -> None:
    images = torch.rand(1, 3, 270, 270, generator=torch.Generator().manual_seed(0))
    problem = TVInpainting(images, torch.ones(1, 1, 270, 270), 0.3) if is_masked else TVDenoising(images, 0.3)
    before, started = torch.get_num_threads(), list[int]()
    torch.set_num_threads(2)
    try:
        for _ in range(5):
            lmd.solve(problem, tolerance=0.1)
            first = newest_thread()
            for _ in range(40):
                lmd.solve(problem, tolerance=0.1)
            started.append(newest_thread() - first)
    finally:
        torch.set_num_threads(before)
    assert min(started) < 20  # a few by other programs
