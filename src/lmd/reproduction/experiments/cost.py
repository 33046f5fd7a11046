"""Table 3: seconds and peak memory of training and solving, against the number of iterations N."""

from __future__ import annotations

import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from lmd.cli.common import Table
from lmd.core.memory import available_memory
from lmd.errors import FileError, LmdError
from lmd.mirrors import ConvPair
from lmd.problems import TVInpaintingFamily
from lmd.reproduction.experiments.base import Experiment, Session
from lmd.reproduction.experiments.imaging import images_for, middles
from lmd.reproduction.figures import figure, plain_log
from lmd.reproduction.tables import Row, best, curve, distinct, number, select
from lmd.solvers import LearnedMirrorDescent
from lmd.training.loss import UnrolledLoss
from lmd.training.settings import TrainingSettings

T = TypeVar("T")

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
PRELOADED = ["lmd.training.train", "lmd.reproduction.datasets.images", "torch._dynamo"]  # imports that take seconds


def peak_memory(work: Callable[[], object]) -> dict[str, float]:
    """Return megabytes: `peak`, the maximum of this process while `work` ran, and `work`, the part that it added.

    Linux can reset the peak. Where that is impossible, imports and set-up may hide a small piece of work; where the
    platform has no such number, both are NaN.
    """
    with suppress(OSError):
        CLEAR_REFS.write_text("5")
    resident = _megabytes("VmRSS")
    before = _peak() if math.isnan(resident) else resident
    work()
    peak = _peak()
    return {"peak": peak, "work": peak - before}


def fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """Return `function(*arguments)`, computed in a new process.

    If the process ends without an answer, for example because memory runs out, an `LmdError` is raised. As always with
    Python's processes, a script that calls this must guard its main part with `if __name__ == "__main__":`.
    """
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            given = f"{getattr(function, '__name__', function)}{arguments}"
            raise LmdError(f"the process of {given} ended without an answer") from None


def _peak() -> float:
    peak = _megabytes("VmHWM")
    if not math.isnan(peak):
        return peak
    try:
        import resource
    except ImportError:  # Windows
        return math.nan
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10


def _megabytes(name: str) -> float:
    """Return a memory figure of this process from Linux; NaN elsewhere."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), math.nan)


ITERATIONS = (2, 5, 10, 20, 50)
WORK = ("solve", "train", "train-recompute")
RESERVE = 0.8  # the share of the available memory that a measurement may be expected to take


@dataclass(frozen=True)
class Size:
    """How large the networks and the batch are."""

    filters: int
    backward_filters: int
    side: int  # pixels along each side of an image
    batch: int
    repeats: int


SIZES = {"quick": Size(4, 4, 16, 2, 1), "standard": Size(60, 75, 96, 1, 2), "paper": Size(60, 75, 96, 25, 3)}
"""`standard` has the paper's networks and image size, with a batch of one image; `paper` also has its batch size."""


COSTS = {  # the columns of the table: a method and a metric each
    "update, s": ("lmd", "train_seconds"),
    "recomputing, s": ("lmd-recompute", "train_seconds"),
    "solve, s": ("lmd", "solve_seconds"),
    "update, GB": ("lmd", "train_gigabytes"),
    "recomputing, GB": ("lmd-recompute", "train_gigabytes"),
    "solve, GB": ("lmd", "solve_gigabytes"),
}


class CostExperiment(Experiment):
    """One training update and one solve of the paper's inpainting, each in a new process."""

    name = "cost"
    title = "Seconds and peak memory of training and solving against the number of iterations"
    paper = "Table 3"
    imaging = True

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        return [*super().tables(rows), *cost_table(rows)]

    def run(self, session: Session) -> None:
        size = SIZES[session.preset]
        session.facts.update(
            networks=f"the published ones with {size.filters} and {size.backward_filters} filters",
            batch=f"{size.batch} of 3 x {size.side} x {size.side} pixels",
            threads=torch.get_num_threads(),
        )
        images = _images(session, size)
        for work in WORK:
            measured: dict[int, float] = {}
            for iterations in ITERATIONS:
                expected = expected_peak(measured, iterations)
                found = _measure(session, work, iterations, size, images, expected)
                if math.isfinite(found["peak"]):
                    measured[iterations] = found["peak"]
                method = "lmd-recompute" if work == "train-recompute" else "lmd"
                what = work.split("-")[0]
                session.record(method, iterations, f"{what}_seconds", found["seconds"], batch=size.batch)
                session.record(method, iterations, f"{what}_gigabytes", found["peak"] / 1024, batch=size.batch)
                session.record(method, iterations, f"{what}_work_gigabytes", found["work"] / 1024, batch=size.batch)
        draw(session)


def _images(session: Session, size: Size) -> np.ndarray:
    """Return the middles of a batch of test images; images are repeated if there are too few."""
    images = images_for(session)
    if min(images.shape[2:]) < size.side:
        given = f"images of {images.shape[2]} x {images.shape[3]} pixels"
        raise FileError("images", given, f"images of at least {size.side} x {size.side}")
    middle = middles(images, size.side)
    return middle[torch.arange(size.batch) % len(middle)].numpy()


def _measure(
    session: Session, work: str, iterations: int, size: Size, images: np.ndarray, expected: float
) -> dict[str, float]:
    """Seconds and megabytes of one piece of work in a fresh process; NaN where it would not fit into memory."""
    nothing = {"seconds": math.nan, "peak": math.nan, "work": math.nan}
    there = available_memory()
    if there is not None and expected * 2**20 > RESERVE * there:
        session.log("left out", case=work, iterations=iterations, expected_megabytes=round(expected))
        return nothing
    try:
        found = fresh_process(measure_case, work, iterations, size, images, torch.get_num_threads())
    except LmdError as error:
        session.log("failed", case=work, iterations=iterations, reason=str(error))
        return nothing
    session.log("measured", case=work, iterations=iterations, **found)
    return found


def expected_peak(measured: dict[int, float], iterations: int) -> float:
    """Extrapolate the peak linearly from the last two measurements; return 0 if there are fewer than two."""
    if len(measured) < 2:
        return 0.0
    (n1, p1), (n2, p2) = list(measured.items())[-2:]
    return p2 + (p2 - p1) / (n2 - n1) * (iterations - n2)


def job(work: str, iterations: int, size: Size, images: np.ndarray) -> Callable[[], object]:
    """A piece of work, ready to be called: a solve of N iterations, or a training update that unrolls N iterations.

    Cost does not depend on the weights, so the networks are untrained.
    """
    family = TVInpaintingFamily(torch.from_numpy(images), crop=size.side)
    problem, x0 = family.sample(size.batch, torch.Generator().manual_seed(0))
    mirror = ConvPair.published(filters=size.filters, backward_filters=size.backward_filters)
    solver = LearnedMirrorDescent(mirror, iterations)
    if work == "solve":

        def solve() -> None:
            with torch.no_grad():
                state = solver.init(problem, x0)
                for _ in range(iterations):
                    state = solver.step(problem, state)

        return solve
    loss = UnrolledLoss(solver, TrainingSettings(consistency_at="start", recompute=work == "train-recompute"))
    optimiser = torch.optim.Adam(solver.parameters(), lr=1e-5, betas=(0.9, 0.99))

    def train() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss(problem, x0, consistency_weight=1.0).loss.backward()
        optimiser.step()

    return train


def measure_case(work: str, iterations: int, size: Size, images: np.ndarray, threads: int) -> dict[str, float]:
    """Return the memory of a first call, which is also the warm-up, and the median seconds of further calls."""
    torch.set_num_threads(threads)
    function = job(work, iterations, size, images)
    memory = peak_memory(function)
    times = []
    for _ in range(size.repeats):
        begun = time.perf_counter()
        function()
        times.append(time.perf_counter() - begun)
    return {"seconds": statistics.median(times), **memory}


LABELS = {
    ("lmd", "train"): ("training update, everything stored", "#d62728", "-"),
    ("lmd-recompute", "train"): ("training update, iterations recomputed", "#ff7f0e", "-"),
    ("lmd", "solve"): ("solve", "#1f77b4", "-"),
}


def draw(session: Session) -> None:
    """Seconds and peak memory against N."""
    with figure(10.0, 4.4) as drawing:
        panels = drawing.subplots(1, 2)
        for (method, work), (label, colour, style) in LABELS.items():
            rows = select(session.rows, method=method)
            for axes, unit in zip(panels, ("seconds", "work_gigabytes"), strict=True):
                axes.plot(*curve(rows, f"{work}_{unit}"), color=colour, linestyle=style, marker="o", label=label)
        for axes, label in zip(panels, ("seconds per batch", "peak memory of the work, GB"), strict=True):
            axes.set(xscale="log", xlabel="iterations $N$", ylabel=label)
            plain_log(axes)
            axes.set_xticks(ITERATIONS, [str(n) for n in ITERATIONS])
            axes.set_xticks([], minor=True)
        handles, labels = panels[0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        session.save_figure(
            "table-3-cost",
            drawing,
            f"Cost of one batch ({session.facts['batch']}) against the number of iterations N. Left: seconds. Right: "
            "what the work adds to the peak memory of a fresh process. Recomputing each iteration in the backward pass "
            "takes more time, and memory for the iterates alone.",
        )


def cost_table(rows: Sequence[Row]) -> list[Table]:
    """Seconds and peak memory of a batch against the number of iterations, where an experiment measured them."""
    measured = [row for row in rows if (row["method"], row["metric"]) in COSTS.values()]
    if not measured:
        return []
    lines = []
    for iterations in distinct(measured, "iteration"):
        here = select(measured, iteration=iterations)
        found = [best(select(here, method=method, metric=metric)) for method, metric in COSTS.values()]
        lines.append((str(iterations), *("not measured" if row is None else number(row["value"]) for row in found)))
    return [Table("Cost of a batch; memory is the peak of a process", ("N", *COSTS), tuple(lines))]
