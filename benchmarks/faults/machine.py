"""Interrupts and clocks."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from faults import Trials, case, forked

ANSWER = 0.5
"""Seconds in which an interrupt is answered: of each thread on the processor, as other programs may run."""

PATIENCE = 8.0
"""Seconds on the clock, whatever else runs."""


def long_work() -> dict[str, Callable[[], Any]]:
    """Work of ten seconds or more, one for each compiled loop."""
    import torch

    import lmd
    from faults.work import numbers, svm
    from lmd.operators import Blur, gaussian_kernel
    from lmd.problems import TVDeblurring, TVDenoising, TVInpainting

    large, mask, never = numbers(1, 3, 1500, 1500), numbers(1500, 1500, seed=1) > 0.99, 1e-9
    volume, margins, few = numbers(1, 1, 100, 160, 160), svm(6000, 600), svm(6000, 50)
    sets, blur = svm(400, 50, 4000), Blur(numbers(151, 151), 1500, 1500)
    solver = lmd.solvers.LearnedMirrorDescent(lmd.mirrors.Quadratic(2).double(), iterations=10).double()
    interior = lmd.zoo.load("svm-interior-10")
    return {
        "denoising": lambda: lmd.solve(TVDenoising(large, 2.0), never),
        "denoising, float64": lambda: lmd.solve(TVDenoising(large[:, :1].double(), 2.0), 1e-13),
        "denoising, isotropic": lambda: lmd.solve(TVDenoising(large, 2.0, isotropic=True), never),
        "denoising, a batch": lambda: lmd.solve(TVDenoising(large.reshape(9, 3, 500, 500), 2.0), never),
        "denoising, coupled": lambda: lmd.denoise(large, weight=2.0, coupled=True, tolerance=never),
        "FGP": lambda: lmd.solvers.FGP().advance(*begun(lmd.solvers.FGP(), TVDenoising(large, 2.0)), 100_000),
        "learned": lambda: [lmd.run(lmd.zoo.load("denoise-20"), TVDenoising(large, 2.0), large, 20) for _ in range(20)],
        "second order": lambda: lmd.denoise(large[:, 0], weight=1.0, order=2, tolerance=never),
        "second order, coupled": lambda: lmd.denoise(large, weight=1.0, order=2, coupled=True, tolerance=never),
        "volume": lambda: lmd.solve(TVDenoising(volume, 2.0), never),
        "volume, second order": lambda: lmd.denoise(volume[0], weight=1.0, order=2, tolerance=never),
        "counts": lambda: lmd.denoise(large[0, 0] * 100, weight=1.0, data="poisson", tolerance=never),
        "impulses": lambda: lmd.denoise(large[0, 0], weight=1.0, data="absolute", tolerance=never),
        "Huber": lambda: lmd.denoise(large[0, 0], weight=1.0, huber=0.1, tolerance=never),
        "inpainting": lambda: lmd.solve(TVInpainting(large, mask, 1.0), never),
        "PDHG": lambda: lmd.solvers.PDHG().advance(*begun(lmd.solvers.PDHG(), TVInpainting(large, mask, 1.0)), 100_000),
        "deblurring": lambda: lmd.solve(TVDeblurring(large, gaussian_kernel(3.0), 0.1), never),
        "choice of the weight": lambda: [lmd.denoise(numbers(3000, 3000)) for _ in range(99)],
        "video": lambda: list(lmd.denoise_video([large[0, 0]] * 40, weight=2.0, tolerance=never)),
        "SVM": lambda: lmd.solve(margins, 1e-12, x0=torch.zeros(1, 601)),
        "SVM, learned": lambda: [lmd.run(interior, few, torch.zeros(1, 51), 10) for _ in range(10_000)],
        "SVM, learned, a batch": lambda: [lmd.run(interior, sets, torch.zeros(4000, 51), 10) for _ in range(9)],
        "blur": lambda: blur(large.expand(20, -1, -1, -1)),
        "learn": lambda: lmd.learn(lmd.problems.ControlFamily(), minutes=5),
        "train": lambda: lmd.train(
            solver, lmd.problems.LeastSquaresFamily(), updates=10**6, batch=512, progress=False, validate_every=0
        ),
    }


def begun(solver: Any, problem: Any) -> tuple[Any, Any]:
    """A problem and the state that a solver starts from."""
    return problem, solver.init(problem, problem.start())


@case("interrupts", seconds=600)
def interrupts(trials: Trials) -> None:
    """SIGINT ends every long loop within half a second, with KeyboardInterrupt."""
    kinds = long_work()
    if trials.quick:
        kinds = {name: kinds[name] for name in ("denoising", "volume")}
    _interrupt_each(trials, kinds, 1)


TWO_THREADS = ("denoising", "denoising, a batch", "volume", "second order", "counts", "inpainting", "deblurring")


@case("interrupts of two threads", threads=2)
def interrupts_of_two_threads(trials: Trials) -> None:
    """The same of solves that threads share, and of batches in which the calling thread may only wait."""
    import torch

    import lmd
    from faults.work import numbers

    kinds = long_work()
    kinds = {name: kinds[name] for name in TWO_THREADS}
    for place in range(5):
        own = torch.zeros(5, 1, 500, 500, dtype=torch.float64)
        own[place] = numbers(1, 500, 500)
        problem = lmd.problems.TVDenoising(own, 2.0)
        kinds[f"denoising, all but {place} are zero"] = lambda problem=problem: lmd.solve(problem, 1e-15)
    _interrupt_each(trials, kinds, 2)


def _interrupt_each(trials: Trials, kinds: dict[str, Callable[[], Any]], threads: int) -> None:
    draw = random.Random(0)
    for name, work in kinds.items():
        for _ in range(trials.few(3, 1)):
            if not trials.check(*_interrupted(name, work, draw.uniform(0.5, 2.0), threads)):
                break


def _interrupted(name: str, work: Callable[[], Any], delay: float, threads: int) -> tuple[bool, str]:
    """Whether a fork that works ends soon after it was interrupted, and how it did."""
    read, write = os.pipe()

    def run() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have background jobs ignore it
        os.write(write, b"1")
        try:
            work()
        except KeyboardInterrupt:
            print(time.process_time(), flush=True)
            os._exit(0)
        os._exit(9)

    seconds: list[float] = []

    def interrupt(child: int) -> None:
        os.read(read, 1)
        time.sleep(delay)
        used = _processor_seconds(child)
        os.kill(child, signal.SIGINT)
        seconds.extend((used, time.monotonic()))

    ended = forked(run, 2 * PATIENCE, interrupt)
    os.close(read), os.close(write)
    if ended.code == 9:
        return False, f"{name}: it was over before the interrupt, so nothing was tried"
    if ended.code != 0:
        return False, f"{name}: {ended}"
    processor, clock = float(ended.out) - seconds[0], time.monotonic() - seconds[1]
    return (
        processor <= threads * ANSWER and clock <= PATIENCE,
        f"{name}: after {processor:.2f} s ({clock:.1f} on the clock)",
    )


def _processor_seconds(process: int) -> float:
    """Seconds of the processor that a process has used."""
    with open(f"/proc/{process}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@case("clocks")
def clocks(trials: Trials) -> None:
    """A clock that is set back and forth while things run changes nothing."""
    from pathlib import Path

    import torch

    import lmd
    from faults import runs, work

    kinds = work.small()
    right = {name: solve() for name, solve in kinds.items()}
    real, draw = time.time, random.Random(0)

    def jump() -> float:
        return real() + draw.choice((-1e9, -3600.0, 0.0, 3600.0, 1e9))

    time.time = jump
    for name, solve in kinds.items():
        trials.check(work.same(solve(), right[name]), f"{name}: another answer")
    runs.make_small()
    for back in (-1e9, 1e9):
        folder = Path(f"run{back:+g}")
        found = work.trained(8, out=folder, checkpoint_every=2)
        for path in folder.rglob("*"):
            os.utime(path, (real() + back, real() + back))
        trials.check(work.same(work.trained(8, out=folder, resume=True, checkpoint_every=2), found), "a run goes on")
        solver = lmd.learn(runs.family(), minutes=0.05, out=Path(f"learn{back:+g}"))
        trials.check(solver.card["winner"] in solver.card["tried"], "a class is learned")
        again = lmd.learn(runs.family(), minutes=0.05, out=Path(f"learn{back:+g}"), resume=True)
        pairs = zip(solver.state_dict().values(), again.state_dict().values(), strict=True)
        trials.check(all(torch.equal(a, b) for a, b in pairs), "learned again, it is another solver")
        cache = lmd.guarantees.OptimumCache(Path(f"cache{back:+g}"), limit=10**6)
        problem = lmd.problems.TVDenoising(work.numbers(1, 1, 8, 8), 0.1)
        for _ in range(2):
            found = lmd.guarantees.optimum(problem, cache=cache).x
            trials.check(work.same(found, lmd.guarantees.optimum(problem).x), "an optimum in the cache")
    time.time = real
