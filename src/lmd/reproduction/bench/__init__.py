"""`lmd bench`: compare solvers with those of other packages (peers) on the same instances, per iteration and second.

measuring    quality of iterates against certified answers, untimed, and tuning on other instances
timing       seconds to a quality, interleaved and repeated
report       tables, JSON and figures
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lmd import zoo
from lmd.core.checks import check_choice, check_count, check_positive
from lmd.errors import InputError
from lmd.problems.base import offers
from lmd.problems.image_families import as_float
from lmd.reproduction import tasks
from lmd.reproduction.bench import measuring, timing
from lmd.reproduction.datasets import image_data, read_images
from lmd.reproduction.datasets.images import CROP, TEST_PHOTOGRAPHS, bundled, read_image
from lmd.reproduction.experiments.imaging import images_to_test, middles
from lmd.reproduction.tables import Row
from lmd.reproduction.tasks.task import Contest

MAX_ITERATIONS = 1000  # the maximum number of iterations of each method
MAX_SECONDS = 20.0  # limit for measuring the quality of a method; a slower call of a peer is its last
MIN_SIDE, MAX_SIDE = 8, 8192  # the smallest and the largest side in `sizes`
MIN_GAP = 1e-7  # the smallest gap in `gaps`; minima are not known more accurately
TEST_SEED, TUNING_SEED = 7_000_000, 8_000_000


def contests() -> dict[str, Contest]:
    """Return the contests of all tasks, by the name of the task or of its models."""
    found: dict[str, Contest] = {}
    for task in tasks.every():
        found.update({} if task.contest is None else {task.name: task.contest}, **task.models)
    return found


@dataclass(frozen=True)
class Plan:
    """The tasks, methods, noise levels, sizes and targets of a benchmark run."""

    problems: tuple[str, ...] = field(default_factory=lambda: tuple(contests()))
    images: Path | None = None
    count: int = 20
    side: int = CROP
    tuning: int = 4  # the number of other images on which methods are tuned
    batches: tuple[int, ...] = (1, 20)
    repeats: int = 7
    most: int = MAX_ITERATIONS
    gaps: tuple[float, ...] = measuring.GAPS  # the relative gaps to which methods are timed
    limit: float = MAX_SECONDS
    noise: tuple[int, ...] | None = None
    methods: tuple[str, ...] | None = None
    sizes: tuple[int, ...] = ()  # solve one photograph at these sides instead of the test images
    seed: int = 0
    preset: str = "full"

    def check(self) -> None:
        """Check the plan before anything runs."""
        for name in self.problems:
            check_choice("problem", name, tuple(contests()))
        for name in self.methods or ():
            check_choice("methods", name, known_methods())
        levels = sorted({level for contest in contests().values() for level in contest.noise})
        for noise in self.noise or ():
            if noise not in levels:
                raise InputError("noise", repr(noise), f"some of {', '.join(map(str, levels))}, in percent")
        for side in self.sizes:
            check_count("sizes", side, least=MIN_SIDE, most=MAX_SIDE)
        for gap in self.gaps:
            if not MIN_GAP <= gap <= 1:
                raise InputError("gaps", f"{gap:g}", f"numbers from {MIN_GAP:g} to 1")
        check_positive("limit", self.limit)
        check_count("count", self.count)
        check_count("repeats", self.repeats)

    def wants(self, method: str) -> bool:
        """Return whether to run a method. Runs at several sizes leave out subgradient methods."""
        if self.methods is not None:
            return method in self.methods
        return not self.sizes or not method.startswith(("gd", "nesterov", "adam", "lbfgs", "lmd-"))

    @classmethod
    def quick(cls, **choices: Any) -> Plan:
        """Return a plan that takes seconds for each task, minutes for all: two small images, few repeats."""
        small = {"count": 2, "side": 24, "tuning": 1, "batches": (1, 2), "repeats": 2, "most": 60, "limit": 2.0}
        return cls(**{**small, "gaps": measuring.GAPS[:3], "preset": "quick", **choices})


@dataclass
class Bench:
    """The rows and facts that a run has collected, and the methods that it skipped."""

    plan: Plan
    say: Callable[[str], None] = lambda text: None
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    curves: list[timing.TimedCurve] = field(default_factory=list)
    seconds: float = 0.0  # the duration of the run


def learned_names(contest: str) -> list[str]:
    """Return `lmd-` and the zoo name of each shipped solver of a task, except those that only `lmd.solve` uses."""
    task = next(task for task in tasks.every() if contest in (task.name, *task.models))
    return [f"lmd-{name}" for name, recipe in task.solvers.items() if name in zoo.names() and not recipe.rung]


def known_methods() -> tuple[str, ...]:
    """Return the names of all methods and peers, installed or not."""
    ours = [name for task in contests() for name in learned_names(task)]
    theirs = [peer.name for contest in contests().values() for peer in contest.peers]
    return tuple(
        dict.fromkeys(
            (*measuring.CLASSICAL, *(name + timing.PROVEN for name in measuring.DUAL), measuring.SOLVE, *ours, *theirs)
        )
    )


def methods_for(name: str, problem: Any, most: int) -> list[measuring.Method]:
    """Return the methods of lmd for a problem: classical ones with grids of settings, and the shipped learned ones.

    Learned solvers that do not continue with a convergent method (`ends_proven`) run at most 50 iterations. Models have
    no learned solvers here: their schedules are part of `lmd.solve`.
    """
    contest, learned = contests()[name], learned_names(name)
    if name not in tasks.names():
        learned = []
    found = measuring.classical_methods(problem, contest.steps, contest.tau, most)
    for each in learned:
        solver = zoo.load(each.removeprefix("lmd-"), bare=True)
        found.append(
            measuring.Method(each, (measuring.Setting(solver),), most if solver.ends_proven else min(most, 50))
        )
    return found


def run_bench(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Bench:
    """Run the plan; `say` is called with progress messages."""
    plan.check()
    begun = time.perf_counter()
    bench = Bench(plan, say)
    sets, tuning = _images(plan, bench)
    # A batch must not be larger than the number of images.
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
    """Yield the problems with their noise levels."""
    for problem in bench.plan.problems:
        own = contests()[problem].noise
        levels = [noise for noise in own if bench.plan.noise is None or noise in bench.plan.noise]
        if not levels:
            bench.skipped.append(f"{problem}: not at this noise; it has {', '.join(map(str, own))}%")
        yield from ((problem, noise) for noise in levels)


def _images(plan: Plan, bench: Bench) -> tuple[list[tuple[dict[str, int], Tensor]], Tensor]:
    """Return the test images (with `sizes`, one image at each size) with their settings, and photographs for tuning."""
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
    instances, trial = (measuring.KnownInstances.of(problem, kept, smallest) for problem in problems)
    if (short := float(instances.proven.max())) > smallest:
        bench.skipped.append(f"{name}, gaps below {short:.0e}: its minima are not known better")
    if instances.problem.domain is not None:
        bench.skipped.append(f"adam and lbfgs on {name}: they cannot keep x in its box")
    runs = _runs(bench, name, words, instances, trial)
    if not runs:
        bench.skipped.append(f"{name}: none of the methods is for it")
        return
    for measured in dict.fromkeys(run.measured for run in runs if run.measured is not None):
        bench.rows += measured.rows(plan.batches, settings)
    for batch in plan.batches:
        bench.say(f"{words}: timing, batch {batch}")
        rows, curves = timing.time_all(
            runs, measuring.targets(plan.gaps), len(instances), batch, plan.repeats, settings
        )
        bench.rows += rows
        bench.curves += curves


def _runs(
    bench: Bench, name: str, words: str, instances: measuring.KnownInstances, trial: measuring.KnownInstances
) -> list[timing.Timed]:
    """Measure every selected method and peer, and return them ready for timing."""
    plan, wanted = bench.plan, measuring.targets(bench.plan.gaps)
    found: list[timing.Timed] = []
    if plan.wants(measuring.SOLVE):
        found.append(timing.Timed(measuring.SOLVE, partial(timing.solve_jobs, instances, wanted)))
    for method in methods_for(name, instances.problem, plan.most):
        kinds = {method.name: timing.solver_jobs} if plan.wants(method.name) else {}
        if (
            method.name in measuring.DUAL
            and offers(instances.problem, ("certified_gap",))
            and plan.wants(method.name + timing.PROVEN)
        ):
            kinds[method.name + timing.PROVEN] = timing.proof_jobs
        if kinds:
            bench.say(f"{words}: {method.name}")
            measured = measuring.MeasuredSolver(method, instances, trial, wanted, plan.limit)
            found += [timing.Timed(kind, partial(jobs, measured), measured) for kind, jobs in kinds.items()]
    for peer in (peer for peer in contests()[name].peers if plan.wants(peer.name)):
        if peer.installed:
            bench.say(f"{words}: {peer.name}")
            called = measuring.MeasuredPeer(peer, instances, wanted, plan.most, plan.limit)
            found.append(timing.Timed(peer.name, partial(timing.peer_jobs, called), called))
        else:
            bench.skipped.append(f"{peer.package}: not installed; {peer.hint}")
    return found
