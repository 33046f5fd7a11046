"""Signals are answered while compiled solves go on, which leave nothing behind."""

import ctypes
import signal
import threading
import time

import pytest
import torch

import lmd
from lmd import kernels
from lmd.operators import Blur
from lmd.problems import SecondOrderModel, TVDenoising, TVInpainting, TVModel
from lmd.terms import KullbackLeibler, Squares
from lmd.tv import match
from lmd.tv.plans import model_of
from lmd.tv.primal_dual import iterations_for

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")

MANY = 50_000
"""Iterations that take far longer than a test may."""


class StopError(Exception):
    """What the handler raises."""


def raise_stop(number, frame):
    raise StopError


def images(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def denoise(coupled):
    problem = TVModel(Squares(images(1, 3, 400, 400).double()), 0.3, coupled=coupled)
    match(problem, 1e-3).solve(1e-15, MANY, None)


def denoise_a_batch():
    match(TVDenoising(images(8, 1, 400, 400).double(), 0.3), 1e-3).solve(1e-15, MANY, None)


def hard(place, *shape):
    """A batch of constant images, which are solved at once, and one of noise: others soon have nothing to do."""
    found = torch.full(shape, 0.5, dtype=torch.float64)
    found[place] = images(*shape[1:])
    return found


def denoise_unevenly(place):
    match(TVDenoising(hard(place, 5, 1, 400, 400).double(), 3.0), 1e-3).solve(1e-15, 10 * MANY, None)


def inpaint_unevenly(place):
    noisy = hard(place, 5, 1, 400, 400)
    mask = ((noisy == 0.5) | (noisy > 0.9)).double()
    match(TVInpainting(noisy, mask, 3.0), 1e-3).solve(1e-15, 10 * MANY)


def denoise_a_volume():
    model_of(TVDenoising(images(1, 1, 40, 50, 50), 0.3)).solve(1e-15, MANY, None)


def inpaint():
    problem = TVInpainting(images(1, 1, 200, 200), (images(200, 200) > 0.5).float(), 0.3)
    match(problem, 1e-3).solve(1e-15, MANY)


def iterate(problem):
    x = problem.start()
    dual = torch.zeros_like(problem.operator(x))
    iterations_for(problem, x, dual)(x, dual, torch.full((1, MANY, 3), 0.1), False)


LONG = {
    "denoising": lambda: denoise(coupled=False),
    "coupled denoising": lambda: denoise(coupled=True),
    "a batch": denoise_a_batch,
    "a volume": denoise_a_volume,
    "inpainting": inpaint,
    "counts": lambda: iterate(TVModel(KullbackLeibler(10 * images(1, 1, 200, 200)), 0.3)),
    "second order": lambda: iterate(SecondOrderModel(Squares(images(1, 1, 200, 200)), 0.3)),
}


def seconds_to_stop(work, threads, delay):
    """Seconds of the processor that work of so many threads takes to the end, with a signal after `delay` seconds."""
    before, count = signal.getsignal(signal.SIGALRM), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        signal.signal(signal.SIGALRM, raise_stop)
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, delay)
        with pytest.raises(StopError):
            work()
        return time.process_time() - begun
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        torch.set_num_threads(count)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", LONG)
def test_a_signal_is_answered_at_once(name, threads):
    problem = TVDenoising(images(1, 3, 40, 40), 0.3)
    expected = lmd.solve(problem, 1e-4).x
    assert seconds_to_stop(LONG[name], threads, 0.1) < 0.7 * threads
    assert torch.equal(lmd.solve(problem, 1e-4).x, expected)


@pytest.mark.parametrize("work", [denoise_unevenly, inpaint_unevenly])
def test_a_signal_is_answered_by_a_thread_that_waits(work):
    for place in (0, 1, 2, 3, 4):  # the thread that was called works on some of them, and waits for others
        assert seconds_to_stop(lambda place=place: work(place), 2, 0.2) < 1.4


def test_solves_in_other_threads_go_on():
    """Handlers run in the main thread alone, and what they do there is nothing to solves elsewhere."""
    problem, found, seen = TVDenoising(images(1, 1, 200, 200), 0.3), [], []
    expected, before = lmd.solve(problem, 1e-6).x, signal.getsignal(signal.SIGALRM)
    thread = threading.Thread(target=lambda: found.append(lmd.solve(problem, 1e-6).x))
    try:
        signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
        thread.start()
        signal.raise_signal(signal.SIGALRM)
        thread.join()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen and torch.equal(found[0], expected)


def interior():
    """One data set, which one of the threads works on."""
    rows, size, count = 400, 100, 400
    steps, places = torch.tensor([[1.0, 0.9]]).repeat(count, 1), torch.arange(rows)
    start = torch.zeros(1, size, dtype=torch.float64), torch.full((1, 4, rows), 0.5, dtype=torch.float64)
    given, sizes = (images(1, rows, size) - 0.5, places, steps, *start), (1, rows, size, rows, count)
    return lambda: kernels.call("interior", given, (), sizes, threads=torch.get_num_threads())


def convolve(backward):
    x, kernel = images(20, 64, 64, 64), images(64, 64, 9, 9)
    return lambda: kernels._correlate(x, x, 9) if backward else kernels.convolve(x, kernel)


def blur(adjoint):
    x, operator = images(20, 300, 300), Blur(images(51, 51), 300, 300, "replicate")
    return lambda: operator.adjoint(x) if adjoint else operator(x)


CALLS = {
    "learned interior points": interior,
    "a convolution": lambda: convolve(backward=False),
    "its derivative": lambda: convolve(backward=True),
    "a blur": lambda: blur(adjoint=False),
    "its adjoint": lambda: blur(adjoint=True),
}


@pytest.fixture
def looks():
    """What compiled code is told each time it looks for signals, in place of what Python knows: the last, then 0."""
    lmd.solve(TVDenoising(images(1, 1, 4, 4), 0.3), 1e-1)  # which sets the hook
    hook, answers, found = ctypes.c_void_p.in_dll(ctypes.CDLL(kernels.library().__file__), "lmd_interrupted"), [], []
    before = hook.value
    look = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: found.append(1) or (answers.pop() if answers else 0))
    hook.value = ctypes.cast(look, ctypes.c_void_p).value
    yield found, answers
    hook.value = before


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_a_signal_ends_a_call(name, threads, looks):
    call, count = CALLS[name](), torch.get_num_threads()
    looks[1].append(1)
    try:
        torch.set_num_threads(threads)
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        torch.set_num_threads(count)


def test_signals_are_looked_for_while_planes_are_loaded_and_stored(looks):
    """Each time that 2^22 numbers were copied: y and four parts of dual fields to begin with, and these in the end."""
    problem = TVDenoising(images(1, 1, 3000, 3000), 0.3)
    match(problem, 1e-3).solve(1e-9, 1, torch.zeros(1, 1, 2, 3000, 3000))
    assert len(looks[0]) >= 15
