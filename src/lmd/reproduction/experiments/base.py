"""Experiments: a name, three sizes, rows of numbers and figures, which are written completely or not at all."""

from __future__ import annotations

import abc
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import lmd
from lmd.cli.common import Table
from lmd.core.checks import check_choice, check_count
from lmd.core.files import staged, write_json
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.reproduction import recipes
from lmd.reproduction.figures import figure, label_lines, plot_curve
from lmd.reproduction.tables import LARGER, Row, best, curve, distinct, method_tables, number, row, select
from lmd.solvers import MirrorDescent, Result, Solver, run

PRESETS = ("quick", "standard", "paper")
MAX_SEED = 2**32 - 1  # the largest seed that every library with random numbers takes
TUNED = ("multiplier", "seed")  # what methods are tuned over: a table shows the best of them, as the paper does
MULTIPLIERS = (0.25, 0.5, 1.0, 2.0, 4.0)  # the step-size multipliers of the paper's figures


@dataclass
class Session:
    """One run of an experiment: its options, and methods that record rows and figures."""

    name: str
    preset: str
    seed: int
    folder: Path
    retrain: bool = False
    progress: bool = False
    images: Path | None = None  # a folder or file of images to take in place of the test images
    rows: list[Row] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)
    # other facts for the reader, such as the name of the data
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def repeats(self) -> int:
        """Number of runs of which the median time is taken."""
        return 2 if self.preset == "quick" else 5

    def log(self, event: str, **data: Any) -> None:
        """Add a line to run.log.jsonl."""
        entry = {"time": round(time.time(), 3), "event": event, **data}
        with open(self.folder / "run.log.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def record(self, method: str, iteration: int | str, metric: str, value: float, **settings: Any) -> None:
        """Add one row."""
        self.rows.append(row(method, iteration, metric, value, **settings))

    def record_run(self, method: str, result: Result, iterations: int, metric: str = "loss", **settings: Any) -> None:
        """Add the rows of a run for iterations 0 to `iterations`: mean and quantiles of the values, and seconds.

        An instance that diverged keeps the last value it had, also when it was the last one running and the run ended
        before `iterations`; `diverged_share` says how many did.
        """
        history = result.history
        values = history.values.double()
        quantiles = torch.nanquantile(values, values.new_tensor([0.1, 0.9]), dim=1)
        curves = {
            metric: values.mean(dim=1),
            f"{metric}_q10": quantiles[0],
            f"{metric}_q90": quantiles[1],
            "seconds": history.seconds,
        }
        self.record_curves(method, iterations, {name: found.tolist() for name, found in curves.items()}, **settings)
        failed = sum(status.failed for status in result.status)
        self.record(method, iterations, "diverged_share", failed / len(result.status), **settings)
        self.log("run", method=method, failed=failed, instances=len(result.status), **settings)

    def record_curves(
        self, method: str, iterations: int, curves: Mapping[str, Sequence[float]], **settings: Any
    ) -> None:
        """Add the rows of curves by metric for iterations 0 to `iterations`; shorter curves keep their last value."""
        for metric, found in curves.items():
            for k in range(iterations + 1):
                self.record(method, k, metric, float(found[min(k, len(found) - 1)]), **settings)

    def learned(self, name: str, label: str = "lmd", preset: str | None = None) -> MirrorDescent:
        """Return a learned solver, loaded or trained now, and record its origin as a fact."""
        chosen = self.preset if preset is None else preset
        solver: Any = recipes.obtain(name, chosen, retrain=self.retrain, progress=self.progress)
        self.facts[f"{label} comes from"] = recipes.origin(name, chosen, retrain=self.retrain)
        return solver

    def save_figure(self, name: str, drawing: Any, caption: str) -> None:
        """Write a figure to figures/NAME.png."""
        folder = self.folder / "figures"
        folder.mkdir(exist_ok=True)
        drawing.savefig(folder / f"{name}.png", metadata={"Software": None})
        self.figures.append({"file": f"figures/{name}.png", "caption": caption})

    def save_frames(self, name: str, frames: Mapping[str, Tensor], caption: str) -> None:
        """Write pictures `(3, H, W)` of one size in [0, 1] to figures/NAME.png, one under the other.

        On the page, a slider compares two pictures, or plays more of them like a film.
        """
        from matplotlib.image import imsave

        folder = self.folder / "figures"
        folder.mkdir(exist_ok=True)
        sheet = torch.cat([frame.movedim(0, -1) for frame in frames.values()]).clamp(0, 1).mul(255).round().byte()
        imsave(folder / f"{name}.png", sheet.numpy(), metadata={"Software": ""})
        self.figures.append({"file": f"figures/{name}.png", "caption": caption, "frames": list(frames)})


class Experiment(abc.ABC):
    """One figure or table of the paper, or one claim of our own."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]  # which figures or tables it reproduces
    solvers: ClassVar[tuple[str, ...]] = ()  # the trained solvers it uses, by their names in the zoo
    imaging: ClassVar[bool] = False  # whether it has test images, which `images` may replace

    @abc.abstractmethod
    def run(self, session: Session) -> None:
        """Measure, and give rows and figures to the session."""

    @classmethod
    def headline(cls, rows: Sequence[Row]) -> str:
        """Return the main result in one sentence with numbers, or an empty string."""
        return ""

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        """Return the tables for the page: by default the loss of every method."""
        return method_tables(rows, "loss", TUNED)


def reached(rows: Sequence[Row], method: str, metric: str, iteration: int | str, **settings: Any) -> str:
    """Return the value of `metric` of a method at an iteration as text, the best over its step sizes."""
    found = best(select(rows, method=method, metric=metric, iteration=iteration, **settings), largest=metric in LARGER)
    return number(None if found is None else found["value"])


def measure(
    solver: Solver[Any],
    problem: Problem,
    x0: Tensor,
    iterations: int,
    repeats: int,
    watch: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Result, list[float]]:
    """Run a solver; return the result, and `watch(x)` of each iterate including the start.

    After a warm-up, the time of each iteration is measured as the median over `repeats` runs.
    """
    run(solver, problem, x0, iterations=min(3, iterations))
    seen = [] if watch is None else [float(watch(x0))]
    look = [] if watch is None else [lambda state, _: seen.append(float(watch(state.x)))]
    results = [run(solver, problem, x0, iterations, callbacks=look)]
    results += [run(solver, problem, x0, iterations) for _ in range(repeats - 1)]
    times = torch.stack(
        [result.history.seconds.diff(prepend=result.history.seconds.new_zeros(1)) for result in results]
    )
    seconds = times.median(dim=0).values.cumsum(dim=0)
    first = results[0]
    history = replace(first.history, seconds=seconds)
    return replace(first, recorded=history), seen


def versions() -> dict[str, str]:
    """Return the versions of the packages that the numbers depend on."""
    import numpy

    return {
        "lmd": lmd.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def reproduce(
    experiment: Experiment,
    out: str | Path,
    preset: str = "quick",
    seed: int = 0,
    *,
    retrain: bool = False,
    progress: bool = False,
    images: str | Path | None = None,
) -> Path:
    """Run an experiment and write OUT/NAME/metrics.json, figures/*.png and run.log.jsonl; returns OUT/NAME.

    `images` is a folder of images or an `.npz` to take in place of the test images, in an experiment that has some.
    Files are written to a hidden folder beside OUT/NAME and moved there at the end, so a run that fails does not
    change earlier results.
    """
    check_choice("preset", preset, PRESETS)
    check_count("seed", seed, least=0, most=MAX_SEED)
    if images is not None and not experiment.imaging:
        raise InputError("images", str(images), f"none with {experiment.name}, which has no test images")
    final = Path(out) / experiment.name
    with staged("out", final) as staging:
        brought = None if images is None else Path(images)
        session = Session(experiment.name, preset, seed, staging, retrain=retrain, progress=progress, images=brought)
        begun = time.perf_counter()
        session.log("start", preset=preset, seed=seed)
        torch.manual_seed(seed)
        experiment.run(session)
        session.log("end", rows=len(session.rows), seconds=round(time.perf_counter() - begun, 3))
        metrics = {
            "experiment": experiment.name,
            "title": experiment.title,
            "paper": experiment.paper,
            "preset": preset,
            "seed": seed,
            "seconds": round(time.perf_counter() - begun, 3),
            "versions": versions(),
            "facts": session.facts,
            "figures": session.figures,
            "rows": session.rows,
        }
        write_json(staging / "metrics.json", metrics)
    return final


HORIZON = 10  # where the trained iterations end: N of the paper


def best_multiplier(rows: Sequence[Row], method: str, metric: str = "loss", iteration: int = HORIZON) -> float | None:
    """The multiplier that is best at an iteration; None for a method that has none."""
    found = best(select(rows, method=method, metric=metric, iteration=iteration), largest=metric in LARGER)
    return None if found is None else found.get("multiplier")


def plot_methods(
    panels: Sequence[Any],
    rows: Sequence[Row],
    metric: str,
    methods: Sequence[str],
    tuned: Sequence[str] = (),
    first: int = 1,
) -> list[list[float]]:
    """Plot curves by iteration in `panels[0]` and by milliseconds, from iteration `first` on, in `panels[1]`.

    The best multiplier of a method is drawn in full, the others faintly or, if `tuned`, not at all. Returns all values.
    """
    drawn = []
    for method in methods:
        own = select(rows, method=method)
        chosen = best_multiplier(own, method, metric)
        others = [] if method in tuned else [m for m in distinct(own, "multiplier") if m != chosen]
        for multiplier in (*others, chosen):
            here = own if multiplier is None else select(own, multiplier=multiplier)
            iterations, values = curve(here, metric)
            milliseconds = [1e3 * value for value in curve(here, "seconds")[1]][-len(values) :]
            plot_curve(panels[0], iterations, values, method, faint=multiplier != chosen)
            plot_curve(panels[1], milliseconds[first:], values[first:], method, faint=multiplier != chosen)
            drawn.append(values)
    return drawn


def draw_comparison(
    session: Session,
    name: str,
    metrics: Mapping[str, str],
    methods: Sequence[str],
    caption: str,
    *,
    finish: Callable[[Any, str], None],
    what: str = "instances",
    tuned: Sequence[str] = (),
) -> None:
    """Plot each metric against iterations (top) and time (bottom); `finish(axes, metric)` sets the scales."""
    with figure(5.2 * len(metrics), 7.6) as drawing:
        panels = drawing.subplots(2, len(metrics), squeeze=False)
        for column, (metric, label) in enumerate(metrics.items()):
            plot_methods(panels[:, column], session.rows, metric, methods, tuned)
            panels[0, column].axvline(HORIZON, color="0.6", linewidth=1.0, zorder=0)
            panels[0, column].set_xlabel("iteration")
            panels[1, column].set(xlabel=f"ms, all {what} together", xscale="log")
            for axes in panels[:, column]:
                axes.set_ylabel(label)
                finish(axes, metric)
                label_lines(axes)
        session.save_figure(name, drawing, caption)
