"""Forks, spawned processes and threads."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import threading
from typing import Any

from faults import Trials, case, forked

THREADS = 16


@case("fork", seconds=600, threads=2)
def fork(trials: Trials) -> None:
    """What was solved with two threads is solved in a fork, in a fork of that, and in forks of several threads."""
    import torch

    from faults import work

    assert torch.get_num_threads() == 2
    kinds = work.large()
    if trials.quick:
        kinds = {name: kinds[name] for name in ("denoising", "volume", "matrix product")}
    right = {name: solve() for name, solve in kinds.items()}

    def again(name: str) -> None:
        assert torch.get_num_threads() == 2, "the fork has fewer threads"
        assert work.same(kinds[name](), right[name]), "another answer"

    for name in kinds:
        ended = forked(lambda name=name: again(name))
        trials.check(ended.code == 0, f"{name}: {ended}")
        twice = forked(lambda name=name: os._exit(max(0, forked(lambda: again(name), 30).code)))
        trials.check(twice.code == 0, f"{name}, in a fork of a fork: {twice}")
        trials.check(work.same(kinds[name](), right[name]), f"{name}: another answer where it was forked")
    answers: list[Any] = []
    workers = [threading.Thread(target=lambda: answers.append(forked(lambda: again("denoising")))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for ended in answers:
        trials.check(ended.code == 0, f"forked by a thread: {ended}")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for name, found in zip(kinds, pool.map(_answer, kinds), strict=True):
            trials.check(work.same(found, right[name]), f"{name}: another answer in a pool")


def _answer(name: str) -> Any:
    from faults import work

    return work.large()[name]().numpy()


@case("spawn", seconds=600, threads=2)
def spawn(trials: Trials) -> None:
    """A spawned process takes problems and solvers, gives the same answers, and sends errors home."""
    from faults import work

    names = ["denoising", "volume"] if trials.quick else list(work.large())
    with multiprocessing.get_context("spawn").Pool(1 if trials.quick else 2) as pool:
        right = {name: work.large()[name]() for name in names}
        for name, found in zip(names, pool.map(_answer, names), strict=True):
            trials.check(work.same(found, right[name]), f"{name}: another answer")
        import lmd

        problem = lmd.problems.TVDenoising(work.numbers(1, 1, 16, 16), 0.1)
        for solver in (None, lmd.solvers.FGP(), lmd.zoo.load("denoise-10")):
            found = pool.apply(_solve, (problem, solver))
            trials.check(work.same(found, _solve(problem, solver)), f"{solver} and its problem: another answer")
        try:
            pool.apply(_solve, (problem, "nothing"))
            trials.check(False, "no error came home")
        except lmd.LmdError as error:
            trials.check("\n" not in str(error), error)


def _solve(problem: Any, solver: Any) -> Any:
    import lmd

    return lmd.solve(problem, 1e-3, solver=solver).x.numpy()


@case("threads", seconds=600)
def threads(trials: Trials) -> None:
    """Sixteen threads on one solver and on many give the answers of one thread."""
    import torch

    import lmd
    from faults import work

    noisy = [work.numbers(1, 1, 32, 40, seed=seed) for seed in range(trials.few(64, 16))]
    kernel, mask = lmd.operators.gaussian_kernel(1.0), work.numbers(32, 40, seed=7) > 0.4
    makes = {
        "default": (lambda y: lmd.problems.TVDenoising(y, 0.2), lambda: None),
        "FGP": (lambda y: lmd.problems.TVDenoising(y, 0.2), lmd.solvers.FGP),
        "PDHG": (lambda y: lmd.problems.TVInpainting(y, mask, 0.2), lmd.solvers.PDHG),
        "learned": (lambda y: lmd.problems.TVDenoising(y, 0.2), lambda: lmd.zoo.load("denoise-10")),
        "deblurring": (lambda y: lmd.problems.TVDeblurring(y, kernel, 0.05), lambda: None),
        "inpainting": (lambda y: lmd.problems.TVInpainting(y, mask, 0.2), lambda: None),
    }
    for name, (make, solver_of) in makes.items():
        one = solver_of()
        problems = [make(y) for y in noisy]
        serial = [lmd.solve(problem, 1e-2, solver=one) for problem in problems]
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            shared = list(pool.map(lambda problem, one=one: lmd.solve(problem, 1e-2, solver=one), problems))
            many = list(pool.map(lambda problem, of=solver_of: lmd.solve(problem, 1e-2, solver=of()), problems))
            bounds = list(pool.map(lambda result: result.certificate.bound, shared))
        for number, result in enumerate(serial):
            fine = work.same(shared[number].x, result.x) and torch.equal(bounds[number], result.certificate.bound)
            trials.check(fine, f"{name}, one solver, instance {number}: another answer")
            trials.check(work.same(many[number].x, result.x), f"{name}, own solvers, instance {number}: another answer")
    kinds = {name: solve for name, solve in work.small().items() if not trials.quick or name.startswith("denoise")}
    right = {name: solve() for name, solve in kinds.items()}
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for _ in range(trials.few(4, 1)):
            for name, found in zip(kinds, pool.map(lambda name: kinds[name](), kinds), strict=True):
                trials.check(work.same(found, right[name]), f"{name}: another answer beside others")
