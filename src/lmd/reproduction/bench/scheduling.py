"""The order of a bench: problem by problem, first what every method reaches, then how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lmd.problems.base import offers
from lmd.problems.image_families import as_float
from lmd.reproduction.bench.measuring import SOLVE, KnownInstances, MeasuredPeer, MeasuredSolve, MeasuredSolver, targets
from lmd.reproduction.bench.plan import PROVEN, TEST_SEED, TUNING_SEED, Bench, Plan, contests, methods_for
from lmd.reproduction.bench.timing import Timed, TimedPeer, TimedProof, TimedSolve, TimedSolver, time_all
from lmd.reproduction.datasets import image_data, read_images
from lmd.reproduction.datasets.images import CROP, TEST_PHOTOGRAPHS, bundled, read_image
from lmd.reproduction.experiments.imaging import images_to_test, middles
from lmd.reproduction.tasks.methods import DUAL


def run_bench(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Bench:
    """Run the plan; `say` is told what is being done."""
    plan.check()
    begun = time.perf_counter()
    bench = Bench(plan, say)
    sets, tuning = _images(plan, bench)
    # A row must not name a batch that there are not enough images for.
    most = max(len(images) for _, images in sets)
    bench.plan = replace(plan, batches=tuple(dict.fromkeys(min(batch, most) for batch in plan.batches)))
    bench.facts["threads"] = torch.get_num_threads()
    reason = f"- where a gap is not reached in {plan.most} iterations and {plan.limit:g} s"
    bench.facts["times"] = f"milliseconds of the whole call / of all processors; {reason}"
    for problem, noise in _levels(bench):
        for settings, images in sets:
            if settings and not contests()[problem].sized:
                bench.skipped.append(f"{problem}: it has no images, and one size alone")
            else:
                _bench_problem(bench, {"problem": problem, "noise": noise, **settings}, images, tuning)
    bench.skipped = list(dict.fromkeys(bench.skipped))
    bench.seconds = time.perf_counter() - begun
    return bench


def _levels(bench: Bench) -> Iterator[tuple[str, int]]:
    """The problems, each at its noise levels that are wanted."""
    for problem in bench.plan.problems:
        own = contests()[problem].noise
        levels = [noise for noise in own if bench.plan.noise is None or noise in bench.plan.noise]
        if not levels:
            bench.skipped.append(f"{problem}: not at this noise; it has {', '.join(map(str, own))}%")
        yield from ((problem, noise) for noise in levels)


def _images(plan: Plan, bench: Bench) -> tuple[list[tuple[dict[str, int], Tensor]], Tensor]:
    """Test images, brought or bundled, or one of them by size; and tuning images, photographs of the train fold."""
    side = min(plan.side, CROP)
    tuning = as_float(middles(image_data("photographs").train_images[: plan.tuning], side), torch.float32)
    bench.facts["tuned on"] = f"{len(tuning)} other images, photographs of the train fold"
    if plan.sizes:
        bench.facts["images"] = "one photograph, by size"
        photograph = as_float(_largest_image(plan), torch.float32)[None]
        scaled = (interpolate(photograph, (n, n), mode="bicubic", antialias=True).clamp(0, 1) for n in plan.sizes)
        return [({"size": n}, image) for n, image in zip(plan.sizes, scaled, strict=True)], tuning
    name, chosen = images_to_test(plan.images, plan.count, side)
    bench.facts["images"] = f"{len(chosen)} of {chosen.shape[2]} x {chosen.shape[3]} from {name}"
    return [({}, chosen)], tuning


def _largest_image(plan: Plan) -> Tensor:
    if plan.images is not None:
        return max(read_images(plan.images).images, key=lambda image: image.numel())
    return read_image(bundled(*TEST_PHOTOGRAPHS[0]))


def _bench_problem(bench: Bench, settings: dict[str, Any], test: Tensor, tuning: Tensor) -> None:
    plan, name, noise = bench.plan, settings["problem"], settings["noise"]
    contest, words = contests()[name], ", ".join(f"{key} {value}" for key, value in settings.items())
    bench.say(f"{words}: certified minimisers")
    seed = 1000 * plan.seed + noise
    kept, smallest = contest.kept and not plan.sizes, min(plan.gaps)
    problems = [
        contest.make(images, noise / 100, torch.Generator().manual_seed(first + seed))
        for images, first in ((test, TEST_SEED), (tuning, TUNING_SEED))
    ]
    instances, trial = (KnownInstances.of(problem, kept, smallest) for problem in problems)
    if (short := float(instances.proven.max())) > smallest:
        bench.skipped.append(f"{name}, gaps below {short:.0e}: its minima are not known better")
    if instances.problem.domain is not None:
        bench.skipped.append(f"adam and lbfgs on {name}: they cannot keep x in its box")
    runs = _runs(bench, name, words, instances, trial)
    if not runs:
        bench.skipped.append(f"{name}: none of the methods is for it")
        return
    for measured in dict.fromkeys(run.measured for run in runs):
        bench.rows += measured.rows(plan.batches, settings)
    for batch in plan.batches:
        bench.say(f"{words}: timing, batch {batch}")
        rows, curves = time_all(runs, targets(plan.gaps), len(instances), batch, plan.repeats, settings)
        bench.rows += rows
        bench.curves += curves


def _runs(bench: Bench, name: str, words: str, instances: KnownInstances, trial: KnownInstances) -> list[Timed]:
    """Every method and every peer that is for the problem and wanted, measured and ready to be timed."""
    plan, wanted = bench.plan, targets(bench.plan.gaps)
    found: list[Timed] = []
    if plan.wants(SOLVE):
        found.append(TimedSolve(MeasuredSolve(instances, wanted)))
    for method in methods_for(name, instances.problem, plan.most):
        kinds: list[Callable[[MeasuredSolver], Timed]] = [TimedSolver] if plan.wants(method.name) else []
        if method.name in DUAL and offers(instances.problem, ("certified_gap",)) and plan.wants(method.name + PROVEN):
            kinds.append(TimedProof)
        if kinds:
            bench.say(f"{words}: {method.name}")
            measured = MeasuredSolver(method, instances, trial, wanted, plan.limit)
            found += [kind(measured) for kind in kinds]
    for peer in (peer for peer in contests()[name].peers if plan.wants(peer.name)):
        if peer.installed:
            bench.say(f"{words}: {peer.name}")
            found.append(TimedPeer(MeasuredPeer(peer, instances, wanted, plan.most, plan.limit)))
        else:
            bench.skipped.append(f"{peer.package}: not installed; {peer.hint}")
    return found
