"""Signals are answered while compiled solves go on, which leave nothing behind."""

import signal
import threading
import time

import pytest
import torch

import lmd
from lmd import kernels
from lmd.kernels import loop, saddle, volume
from lmd.problems import SecondOrderModel, TVDenoising, TVInpainting, TVModel
from lmd.problems.compiled import composed_of, iterations_of, masked_of, model_of
from lmd.terms import KullbackLeibler, Squares

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
    problem = TVModel(Squares(images(1, 3, 160, 160)), 0.3, coupled=coupled)
    loop.fgp(model_of(problem), loop.NOTHING, MANY)


def denoise_a_batch():
    loop.fgp(model_of(TVDenoising(images(8, 1, 160, 160), 0.3)), loop.NOTHING, MANY)


def hard(place, *shape):
    """A batch of constant images, which are solved at once, and one of noise: others soon have nothing to do."""
    found = torch.full(shape, 0.5, dtype=torch.float64)
    found[place] = images(*shape[1:])
    return found


def denoise_unevenly(place):
    loop.fgp(model_of(TVDenoising(hard(place, 5, 1, 400, 400), 3.0)), loop.NOTHING, 10 * MANY, tolerance=1e-15)


def inpaint_unevenly(place):
    noisy = hard(place, 5, 1, 400, 400)
    mask = ((noisy == 0.5) | (noisy > 0.9)).double()
    start, numbers, tau = (noisy, None), torch.zeros(0, 3), torch.ones(5)
    model = masked_of(TVInpainting(noisy, mask, 3.0))
    saddle.pdhg(model, start, tau, 10 * MANY, numbers=numbers, relaxation=1.8, tolerance=1e-15)


def denoise_a_volume():
    model = composed_of(TVDenoising(images(1, 1, 40, 50, 50), 0.3), 1e-4)
    volume.fgp(model, MANY, tolerance=-1.0, numbers=torch.zeros(2, 1, 0))


def inpaint():
    problem = TVInpainting(images(1, 1, 200, 200), (images(200, 200) > 0.5).float(), 0.3)
    start, numbers = (problem.start(), None), torch.zeros(0, 3)
    saddle.pdhg(masked_of(problem), start, torch.ones(1), MANY, numbers=numbers, relaxation=1.8)


def iterate(problem):
    x = problem.start()
    dual = torch.zeros_like(problem.operator(x))
    iterations_of(problem, x, dual)(x, dual, torch.full((1, MANY, 3), 0.1), False)


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
