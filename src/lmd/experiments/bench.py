"""`lmd bench`: every solver and every peer on the same instances from the same start, per iteration and per second."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lmd.checks import check_choice, check_count
from lmd.data import image_data, read_images
from lmd.data.images import CROP, TEST_PHOTOGRAPHS, bundled, read_image
from lmd.errors import InputError
from lmd.experiments.bench_methods import CLASSICAL, NOISE, TASKS, Method, Setting, learned_names, methods_for
from lmd.experiments.peers import PEERS, Call, Peer, numpy_errors_as_they_are
from lmd.problems.tv_families import as_float
from lmd.report.rows import Row, row
from lmd.solvers import FGP, PDHG, Solver

GAPS = (1e-1, 1e-2, 1e-3)
DECIBELS = (30, 40, 50)
SHOWN = (5, 10, 20, 50)
"""The iterations whose quality is reported."""

DRAWN = 100
"""How far curves are drawn."""

SINGLES = 5
"""How many instances are timed one by one."""

PATIENCE = 10.0
"""Seconds that all repeats of one run may take: slow ones are repeated less often, and the rows say how often."""

MOST = 300
"""How many iterations a method has to reach the targets."""

LEAST_SIDE, MOST_SIDE = 8, 8192
"""The sides of images that `sizes` may name."""

TEST_SEED, TUNING_SEED = 7_000_000, 8_000_000
SIZES = (32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Target:
    """A quality that a method is timed to."""

    metric: str
    """psnr or relative_gap."""

    level: float

    @property
    def name(self) -> str:
        return f"{self.level:g}db" if self.metric == "psnr" else f"gap_1e{round(math.log10(self.level))}"

    def reached(self, quality: Sequence[float]) -> int | None:
        """The first place in a curve at which the quality is there."""
        sign = 1 if self.metric == "psnr" else -1
        return next((k for k, q in enumerate(quality) if sign * q >= sign * self.level), None)


TARGETS = (*(Target("relative_gap", level) for level in GAPS), *(Target("psnr", level) for level in DECIBELS))


@dataclass(frozen=True)
class Plan:
    """What to run."""

    problems: tuple[str, ...] = tuple(TASKS)
    images: Path | None = None
    count: int = 20
    side: int = CROP
    tuning: int = 4
    """How many other images the methods are tuned on."""

    batches: tuple[int, ...] = (1, 20)
    repeats: int = 7
    most: int = MOST
    noise: tuple[int, ...] | None = None
    methods: tuple[str, ...] | None = None
    sizes: tuple[int, ...] = ()
    seed: int = 0
    preset: str = "full"

    def check(self) -> None:
        """Raise on what cannot be run, before anything is."""
        for name in self.problems:
            check_choice("problem", name, tuple(TASKS))
        for name in self.methods or ():
            check_choice("methods", name, known_methods())
        for noise in self.noise or ():
            if noise not in NOISE:
                raise InputError("noise", repr(noise), f"some of {', '.join(map(str, NOISE))}, in percent")
        for side in self.sizes:
            check_count("sizes", side, least=LEAST_SIDE, most=MOST_SIDE)
        check_count("count", self.count)
        check_count("repeats", self.repeats)

    @classmethod
    def quick(cls, **choices: Any) -> Plan:
        """Seconds: two small images, few repeats."""
        small = {"count": 2, "side": 24, "tuning": 1, "batches": (1, 2), "repeats": 2, "most": 60, "preset": "quick"}
        return cls(**{**small, **choices})


@dataclass(frozen=True)
class Curve:
    """One method's mean relative gap at every iteration, and the seconds it took to get there, for the figures."""

    problem: str
    noise: int
    batch: int
    method: str
    iterations: tuple[int, ...]
    gaps: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass
class Bench:
    """Rows, facts and what was skipped, as a run adds to them."""

    plan: Plan
    say: Callable[[str], None] = lambda text: None
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    seconds: float = 0.0
    """How long all of it took."""


def known_methods() -> tuple[str, ...]:
    """The name of every method and of every peer, installed or not."""
    ours = [name for task in TASKS.values() for name in learned_names(task)]
    return tuple(dict.fromkeys((*CLASSICAL, *ours, *(peer.name for peer in PEERS))))


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
        task = TASKS[problem]
        levels = [noise for noise in task.noise if plan.noise is None or noise in plan.noise]
        if not levels:
            bench.skipped.append(f"{problem}: not at this noise; it has {', '.join(map(str, task.noise))}%")
        for noise in levels:
            _bench_problem(bench, problem, noise, test, tuning)
    if plan.sizes:
        _bench_sizes(bench)
    bench.skipped = list(dict.fromkeys(bench.skipped))
    bench.seconds = time.perf_counter() - begun
    return bench


def _images(plan: Plan, bench: Bench) -> tuple[Tensor, Tensor]:
    """Test images, brought or bundled, and tuning images, which are bundled photographs of the train fold."""
    low = (CROP - min(plan.side, CROP)) // 2
    side = min(plan.side, CROP)
    if plan.images is None:
        data = image_data("auto")
        name, chosen = data.name, data.test_images[: plan.count, :, low : low + side, low : low + side]
    else:
        brought = read_images(plan.images)
        name, chosen = brought.name, brought.crops(side)[: plan.count]
    tuning = image_data("photographs").train_images[: plan.tuning, :, low : low + side, low : low + side]
    bench.facts["images"] = f"{len(chosen)} of {side} x {side} from {name}"
    bench.facts["tuned on"] = f"{len(tuning)} other images, photographs of the train fold"
    return as_float(chosen, torch.float32), as_float(tuning, torch.float32)


@dataclass(frozen=True)
class KnownInstances:
    """Instances whose answers are known: a problem with certified minimisers and minima."""

    problem: Any
    x0: Tensor
    minimiser: Tensor
    minimum: Tensor

    @classmethod
    def of(cls, problem: Any) -> KnownInstances:
        optima = problem.optima()
        minimiser = torch.stack([found.x for found in optima]).to(problem.start())
        minimum = torch.tensor([found.value for found in optima], dtype=torch.float64)
        return cls(problem, problem.start(), minimiser, minimum)

    def __len__(self) -> int:
        return len(self.minimum)

    def part(self, index: slice) -> KnownInstances:
        return KnownInstances(self.problem.select(index), self.x0[index], self.minimiser[index], self.minimum[index])

    def quality(self, problem: Any, x: Tensor, dual: Tensor | None) -> dict[str, Tensor]:
        """psnr to the minimiser, (f - f*) / f*, and the certified relative gap where there is a dual point: `(B,)`."""
        peak = 1.0 if x.ndim == 4 else float(self.minimiser.abs().max())
        error = (x - self.minimiser).square().flatten(1).mean(dim=1).double()
        found = {
            "psnr": (10 * torch.log10(peak**2 / error.clamp(min=1e-30))).clamp(max=200),
            "relative_gap": (problem.value(x).double() - self.minimum) / self.minimum,
        }
        if dual is not None:
            found["certified_gap"] = problem.relative_gap(x, dual).double()
        return found


def _bench_problem(bench: Bench, name: str, noise: int, test: Tensor, tuning: Tensor) -> None:
    plan, task = bench.plan, TASKS[name]
    bench.say(f"{name}, noise {noise}%: certified minimisers")
    seed = 1000 * plan.seed + noise
    instances = KnownInstances.of(task.make(test, noise / 100, torch.Generator().manual_seed(TEST_SEED + seed)))
    trial = KnownInstances.of(task.make(tuning, noise / 100, torch.Generator().manual_seed(TUNING_SEED + seed)))
    settings = {"problem": name, "noise": noise}
    if instances.problem.domain is not None:
        bench.skipped.append(f"adam and lbfgs on {name}: they cannot keep x in its box")
    runs: list[_Run] = []
    for method in methods_for(name, instances.problem, plan.most):
        if plan.methods is None or method.name in plan.methods:
            bench.say(f"{name}, noise {noise}%: {method.name}")
            runs.append(_SolverRun(method, instances, trial, plan))
    for peer in PEERS:
        if name in peer.problems and (plan.methods is None or peer.name in plan.methods):
            if peer.installed:
                bench.say(f"{name}, noise {noise}%: {peer.name}")
                runs.append(_PeerRun(peer, instances, plan))
            else:
                bench.skipped.append(f"{peer.name}: not installed; {peer.hint}")
    if not runs:
        bench.skipped.append(f"{name}: none of the methods is for it")
        return
    for run in runs:
        run.record_quality(bench, settings)
    for batch in plan.batches:
        bench.say(f"{name}, noise {noise}%: timing, batch {batch}")
        _time(bench, runs, instances, batch, settings)


@dataclass
class _Job:
    """A run that is timed: it gives the seconds until each of its marks."""

    run: Callable[[], list[float]]
    at: dict[Target, tuple[int, int]] = field(default_factory=dict)
    """For each target that it reaches, which mark that is, and at which iteration."""

    marks: tuple[int, ...] = ()
    gaps: tuple[float, ...] = ()
    """Iterations and mean relative gaps at the marks, where they are to be drawn."""

    samples: list[list[float]] = field(default_factory=list)
    repeats: int = 1

    def median(self, mark: int) -> float:
        return statistics.median(times[mark] for times in self.samples)


class _Run:
    """A method on the test instances: what it reached at which iteration, and how to time it."""

    name: str

    def record_quality(self, bench: Bench, settings: dict[str, Any]) -> None:
        raise NotImplementedError

    def jobs(self, part: slice) -> list[_Job]:
        """What to time on some of the instances: a target counts as reached where their mean reaches it."""
        raise NotImplementedError


class _SolverRun(_Run):
    """A method of ours. It is tuned on other instances, anew for each number that is reported."""

    def __init__(self, method: Method, instances: KnownInstances, trial: KnownInstances, plan: Plan) -> None:
        self.name, self.method, self.instances, self.plan = method.name, method, instances, plan
        self._curves: dict[int, dict[str, Tensor]] = {}
        several = len(method.settings) > 1
        self._tuning = [_quality_curve(setting, trial, method.most) for setting in method.settings] if several else []

    def curve(self, which: int) -> dict[str, Tensor]:
        """Quality `(K + 1, B)` of a setting on the test instances, by metric."""
        if which not in self._curves:
            self._curves[which] = _quality_curve(self.method.settings[which], self.instances, self.method.most)
        return self._curves[which]

    def best_at(self, metric: str, k: int) -> int:
        """The setting that is best at iteration k (-1: the last) on the tuning instances."""
        if not self._tuning:
            return 0
        sign = -1 if metric == "psnr" else 1
        scores = [sign * float(curve[metric][k].mean()) for curve in self._tuning]
        return min(range(len(scores)), key=lambda i: scores[i] if math.isfinite(scores[i]) else math.inf)

    def best_to(self, target: Target) -> int:
        """The setting that reaches a target first on the tuning instances, or else comes nearest."""
        if not self._tuning:
            return 0
        at = [target.reached(curve[target.metric].mean(dim=1).tolist()) for curve in self._tuning]
        soonest = [k for k in at if k is not None]
        return at.index(min(soonest)) if soonest else self.best_at(target.metric, -1)

    def record_quality(self, bench: Bench, settings: dict[str, Any]) -> None:
        for k in (k for k in SHOWN if k <= self.method.most):
            for metric in ("psnr", "relative_gap", "certified_gap"):
                which = self.best_at("psnr" if metric == "psnr" else "relative_gap", k)
                if metric in (curve := self.curve(which)):
                    value = float(curve[metric][k].mean())
                    tuned = _described(self.method.settings[which]) if self._tuning else {}
                    for batch in self.plan.batches:
                        bench.rows.append(row(self.name, k, metric, value, batch=batch, **settings, **tuned))

    def jobs(self, part: slice) -> list[_Job]:
        chosen = self.instances.part(part)
        drawn = self.best_at("relative_gap", min(20, self.method.most))
        at: dict[int, dict[Target, tuple[int, int]]] = {drawn: {}}
        for target in TARGETS:
            which = self.best_to(target)
            k = target.reached(self.curve(which)[target.metric][:, part].mean(dim=1).tolist())
            if k is not None:
                at.setdefault(which, {})[target] = (k, k)
        found = []
        for which, reached in at.items():
            if self._goes_at_once(which):  # then each target has a run of its own, as for the peers
                found += [
                    _Job(self._timed_whole(which, chosen, k), {target: (0, k)}) for target, (k, _) in reached.items()
                ]
                reached = {}
            last = max([k for k, _ in reached.values()], default=0)
            gaps: tuple[float, ...] = ()
            if which == drawn:
                last = max(last, min(DRAWN, self.method.most))
                gaps = tuple(self.curve(which)["relative_gap"][: last + 1, part].mean(dim=1).tolist())
            if reached or gaps:
                found.append(_Job(self._timed(which, chosen, last), reached, tuple(range(len(gaps))), gaps))
        return found

    def _goes_at_once(self, which: int) -> bool:
        """Whether a setting's solver has a faster way through many iterations than one by one."""
        return type(self.method.settings[which].solver).advance is not Solver.advance

    def _timed_whole(self, which: int, chosen: KnownInstances, iterations: int) -> Callable[[], list[float]]:
        setting = self.method.settings[which]
        return _whole(setting.solver, setting.adapt(chosen.problem), chosen.x0, iterations)

    def _timed(self, which: int, chosen: KnownInstances, last: int) -> Callable[[], list[float]]:
        setting = self.method.settings[which]
        problem = setting.adapt(chosen.problem)
        return lambda: _step_times(setting, problem, chosen.x0, last)


class _PeerRun(_Run):
    """A peer, called whole for each number of iterations."""

    def __init__(self, peer: Peer, instances: KnownInstances, plan: Plan) -> None:
        self.name, self.peer, self.instances, self.plan = peer.name, peer, instances, plan
        self.counts = tuple(k for k in peer.counts if k <= plan.most)
        call = peer.prepare(instances.problem)
        with numpy_errors_as_they_are():
            answers = [peer.finish(instances.problem, call(k)) for k in self.counts]
        found = [instances.quality(instances.problem, x, None) for x in answers]
        self.quality = {metric: torch.stack([each[metric] for each in found]) for metric in found[0]}

    def record_quality(self, bench: Bench, settings: dict[str, Any]) -> None:
        for place, k in enumerate(self.counts):
            for metric, curve in self.quality.items():
                if k in SHOWN:
                    for batch in self.plan.batches:
                        bench.rows.append(
                            row(self.name, k, metric, float(curve[place].mean()), batch=batch, **settings)
                        )

    def jobs(self, part: slice) -> list[_Job]:
        call = self.peer.prepare(self.instances.part(part).problem)
        gaps = self.quality["relative_gap"][:, part].mean(dim=1).tolist()
        found = [_Job(self._timed(call, k), {}, (k,), (gap,)) for k, gap in zip(self.counts, gaps, strict=True)]
        for target in TARGETS:
            place = target.reached(self.quality[target.metric][:, part].mean(dim=1).tolist())
            if place is not None:
                found[place].at[target] = (0, self.counts[place])
        return found

    def _timed(self, call: Call, iterations: int) -> Callable[[], list[float]]:
        def run() -> list[float]:
            begun = time.perf_counter()
            with numpy_errors_as_they_are():
                call(iterations)
            return [time.perf_counter() - begun]

        return run


def _described(setting: Setting) -> dict[str, Any]:
    """A setting in one flat word, for the row."""
    config = {key: value for key, value in setting.solver.config().items() if isinstance(value, (int, float))}
    if "steps" in setting.solver.config():
        config["steps"] = float(setting.solver.config()["steps"](0))
    if setting.balance != 1.0:
        config["balance"] = setting.balance
    return {"setting": ", ".join(f"{key} {value:g}" for key, value in config.items())}


def _quality_curve(setting: Setting, instances: KnownInstances, most: int) -> dict[str, Tensor]:
    """Quality `(K + 1, B)` of every iterate, untimed, until all targets are reached."""
    problem = setting.adapt(instances.problem)
    found: list[dict[str, Tensor]] = []
    with torch.inference_mode():
        state = setting.solver.init(problem, instances.x0)
        for k in range(most + 1):
            state = setting.solver.step(problem, state) if k else state
            dual = getattr(state, "dual", None) if k in SHOWN else None
            found.append(instances.quality(problem, state.x, dual))
            if k >= DRAWN and all(target.reached([float(found[-1][target.metric].mean())]) == 0 for target in TARGETS):
                break
    curves = {metric: torch.stack([each[metric] for each in found]) for metric in ("psnr", "relative_gap")}
    worst = {"psnr": 0.0, "relative_gap": math.inf}  # what diverged reaches nothing
    curves = {metric: curve.nan_to_num(nan=worst[metric]) for metric, curve in curves.items()}
    if "certified_gap" in found[min(SHOWN[0], most)]:
        unknown = torch.full((len(instances),), math.nan, dtype=torch.float64)
        curves["certified_gap"] = torch.stack([each.get("certified_gap", unknown) for each in found])
    return curves


def _step_times(setting: Setting, problem: Any, x0: Tensor, most: int) -> list[float]:
    """Seconds until x_0, ..., x_most: the plain loop, nothing else inside."""
    times = []
    with torch.inference_mode():
        begun = time.perf_counter()
        state = setting.solver.init(problem, x0)
        times.append(time.perf_counter() - begun)
        for _ in range(most):
            state = setting.solver.step(problem, state)
            times.append(time.perf_counter() - begun)
    return times


def _whole(solver: Solver[Any], problem: Any, x0: Tensor, iterations: int) -> Callable[[], list[float]]:
    """A run to be timed from start to end: seconds until x_iterations."""

    def run() -> list[float]:
        with torch.inference_mode():
            begun = time.perf_counter()
            solver.advance(problem, solver.init(problem, x0), iterations)
            return [time.perf_counter() - begun]

    return run


def _time(bench: Bench, runs: Sequence[_Run], instances: KnownInstances, batch: int, settings: dict[str, Any]) -> None:
    """Time every run to every target it reaches, interleaved, after a warm-up; add the rows.

    With batch 1 up to `SINGLES` instances are solved one by one, and the median over them is reported.
    """
    parts = [slice(0, min(batch, len(instances)))]
    if batch == 1:
        parts = [slice(i, i + 1) for i in range(min(SINGLES, len(instances)))]
    jobs = [[run.jobs(part) for part in parts] for run in runs]
    everything = [job for run in jobs for part in run for job in part]
    for job in everything:
        job.repeats = max(1, min(bench.plan.repeats, int(PATIENCE / job.run()[-1])))  # this is the warm-up
    for repeat in range(bench.plan.repeats):
        for job in everything:
            if repeat < job.repeats:
                job.samples.append(job.run())
    for run, found in zip(runs, jobs, strict=True):
        for target in TARGETS:
            bench.rows.append(_time_row(run.name, target, found, batch=batch, **settings))
        drawn = [job for job in found[0] if job.marks]
        bench.curves.append(
            Curve(
                **settings,
                batch=batch,
                method=run.name,
                iterations=tuple(k for job in drawn for k in job.marks),
                gaps=tuple(gap for job in drawn for gap in job.gaps),
                seconds=tuple(job.median(mark) for job in drawn for mark in range(len(job.marks))),
            )
        )


def _time_row(name: str, target: Target, found: Sequence[Sequence[_Job]], **settings: Any) -> Row:
    """The median over instances of the median over repeats, or null where some instance does not reach the target."""
    metric = f"seconds_to_{target.name}"
    reached = [job for part in found for job in part if target in job.at]
    if len(reached) < len(found):
        return row(name, "not reached", metric, math.nan, **settings)
    every = [times[job.at[target][0]] for job in reached for times in job.samples]
    value = statistics.median(job.median(job.at[target][0]) for job in reached)
    iteration = round(statistics.median(job.at[target][1] for job in reached))
    spread = {"low": min(every), "high": max(every), "repeats": len(reached[0].samples)}
    return row(name, iteration, metric, value, **settings, **spread)


def _bench_sizes(bench: Bench) -> None:
    """Denoising at 5% of one photograph at many sizes: the gap at iteration 10 and the seconds per pixel.

    f* is not certified here but bounded from below, by the dual of FGP after 200 iterations, so gaps are a little too
    large for every method alike.
    """
    plan = bench.plan
    whole = as_float(_largest_image(plan), torch.float32)
    for side in plan.sizes:
        bench.say(f"size {side}")
        image = interpolate(whole[None], size=(side, side), mode="bicubic", antialias=True).clamp(0, 1)
        problem = TASKS["denoise"].make(image, 0.05, torch.Generator().manual_seed(TEST_SEED + side))
        with torch.inference_mode():
            reference = FGP(restart=True)
            state = reference.init(problem, problem.start())
            for _ in range(200):
                state = reference.step(problem, state)
            least = problem.dual_value(state.dual).double()
        settings = {"problem": "denoise", "noise": 5, "batch": 1, "size": side}
        learned = [method for method in methods_for("denoise", problem, 10) if method.name.startswith("lmd-tv")]
        for method in [Method("pdhg", (Setting(PDHG(0.2)),), 10), *learned]:
            if plan.methods is not None and method.name not in plan.methods:
                continue
            (setting,) = method.settings
            timed = _whole(setting.solver, problem, problem.start(), 10)
            timed()
            seconds = [timed()[-1] for _ in range(min(plan.repeats, 3))]
            with torch.inference_mode():
                state = setting.solver.advance(problem, setting.solver.init(problem, problem.start()), 10)
                gap = float(((problem.value(state.x).double() - least) / least).mean())
            bench.rows.append(row(method.name, 10, "relative_gap_bound", gap, **settings))
            per_pixel = statistics.median(seconds) / 10 / side**2
            bench.rows.append(row(method.name, 10, "seconds_per_pixel", per_pixel, **settings))


def _largest_image(plan: Plan) -> Tensor:
    if plan.images is not None:
        return max(read_images(plan.images).images, key=lambda image: image.numel())
    return read_image(bundled(*TEST_PHOTOGRAPHS[0]))
