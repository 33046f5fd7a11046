"""The order of a bench: problem by problem, first what every method reaches, then how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lmd.data import image_data
from lmd.data.images import CROP
from lmd.experiments.bench.measuring import SOLVE, KnownInstances, MeasuredPeer, MeasuredSolve, MeasuredSolver
from lmd.experiments.bench.plan import TEST_SEED, TUNING_SEED, Bench, Plan, contests, methods_for
from lmd.experiments.bench.sizes import bench_sizes
from lmd.experiments.bench.timing import Timed, TimedPeer, TimedSolve, TimedSolver, time_all
from lmd.experiments.imaging import images_to_test, middles
from lmd.problems.tv_families import as_float


def run_bench(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Bench:
    """Run the plan; `say` is told what is being done."""
    plan.check()
    begun = time.perf_counter()
    bench = Bench(plan, say)
    test, tuning = _images(plan, bench)
    # A row must not name a batch that there are not enough images for.
    plan = replace(plan, batches=tuple(dict.fromkeys(min(batch, len(test)) for batch in plan.batches)))
    bench.plan = plan
    bench.facts["threads"] = torch.get_num_threads()
    bench.facts["times"] = f"ms (at iteration); - where the target is not reached in {plan.most} iterations"
    for problem in plan.problems:
        own = contests()[problem].noise
        levels = [noise for noise in own if plan.noise is None or noise in plan.noise]
        if not levels:
            bench.skipped.append(f"{problem}: not at this noise; it has {', '.join(map(str, own))}%")
        for noise in levels:
            _bench_problem(bench, problem, noise, test, tuning)
    if plan.sizes:
        bench_sizes(bench)
    bench.skipped = list(dict.fromkeys(bench.skipped))
    bench.seconds = time.perf_counter() - begun
    return bench


def _images(plan: Plan, bench: Bench) -> tuple[Tensor, Tensor]:
    """Test images, brought or bundled, and tuning images, which are bundled photographs of the train fold."""
    side = min(plan.side, CROP)
    name, chosen = images_to_test(plan.images, plan.count, side)
    tuning = as_float(middles(image_data("photographs").train_images[: plan.tuning], side), torch.float32)
    bench.facts["images"] = f"{len(chosen)} of {chosen.shape[2]} x {chosen.shape[3]} from {name}"
    bench.facts["tuned on"] = f"{len(tuning)} other images, photographs of the train fold"
    return chosen, tuning


def _bench_problem(bench: Bench, name: str, noise: int, test: Tensor, tuning: Tensor) -> None:
    plan, make = bench.plan, contests()[name].make
    bench.say(f"{name}, noise {noise}%: certified minimisers")
    seed = 1000 * plan.seed + noise
    instances = KnownInstances.of(make(test, noise / 100, torch.Generator().manual_seed(TEST_SEED + seed)))
    trial = KnownInstances.of(make(tuning, noise / 100, torch.Generator().manual_seed(TUNING_SEED + seed)))
    if instances.problem.domain is not None:
        bench.skipped.append(f"adam and lbfgs on {name}: they cannot keep x in its box")
    runs = _runs(bench, name, noise, instances, trial)
    if not runs:
        bench.skipped.append(f"{name}: none of the methods is for it")
        return
    settings = {"problem": name, "noise": noise}
    for run in runs:
        bench.rows += run.measured.rows(plan.batches, settings)
    for batch in plan.batches:
        bench.say(f"{name}, noise {noise}%: timing, batch {batch}")
        rows, curves = time_all(runs, len(instances), batch, plan.repeats, settings)
        bench.rows += rows
        bench.curves += curves


def _runs(bench: Bench, name: str, noise: int, instances: KnownInstances, trial: KnownInstances) -> list[Timed]:
    """Every method and every peer that is for the problem and wanted, measured and ready to be timed."""
    plan = bench.plan
    found: list[Timed] = []
    for method in methods_for(name, instances.problem, plan.most):
        if plan.wants(method.name):
            bench.say(f"{name}, noise {noise}%: {method.name}")
            found.append(TimedSolver(MeasuredSolver(method, instances, trial)))
    if plan.wants(SOLVE):
        found.append(TimedSolve(MeasuredSolve(instances)))
    for peer in (peer for peer in contests()[name].peers if plan.wants(peer.name)):
        if peer.installed:
            bench.say(f"{name}, noise {noise}%: {peer.name}")
            found.append(TimedPeer(MeasuredPeer(peer, instances, plan.most)))
        else:
            bench.skipped.append(f"{peer.name}: not installed; {peer.hint}")
    return found
