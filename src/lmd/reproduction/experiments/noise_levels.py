"""Table 1: how near to the true minimiser denoising comes, at noise levels from 1 to 20%."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmd.cli.common import Table
from lmd.problems import TVDenoising
from lmd.reproduction.experiments.base import Experiment, Session, reached
from lmd.reproduction.experiments.curves import HORIZON
from lmd.reproduction.experiments.imaging import (
    ADAM_STEP,
    BASE_STEP,
    ITERATIONS,
    TAU,
    SteppedSolver,
    generator_for,
    images_for,
    learned_solver,
    psnr,
    ssim,
    trials_for,
)
from lmd.reproduction.report.figures import figure, label_lines, plot_curve
from lmd.reproduction.report.rows import Row, distinct, select
from lmd.reproduction.report.tables import cell
from lmd.reproduction.tasks.denoise import make
from lmd.reproduction.tasks.optima import minimiser
from lmd.reproduction.tasks.unrolled import WEIGHT
from lmd.solvers import run

PERCENT = (1, 2, 5, 10, 15, 20)
METHODS = ("gd", "adam", "fgp", "pdhg", "lmd", "lmd-adaptive")
METRICS = {"psnr": psnr, "ssim": ssim}
SHOWN = (HORIZON, ITERATIONS)
DIVERGED = 10.0
"""An instance has diverged if its value is not finite, or so many times what it started from."""

FAR = 1e6
"""Pixels beyond this, or not finite, count as this far away: an average over images stays a number."""


class NoiseLevelsExperiment(Experiment):
    """PSNR and SSIM to the certified minimiser, best over the step-sizes as in the paper."""

    name = "denoise-noise-levels"
    title = "TV denoising from 1 to 20% noise: PSNR and SSIM to the true minimiser"
    paper = "Table 1"
    solvers = ("denoise-pair-10",)
    imaging = True

    @classmethod
    def headline(cls, rows: Sequence[Row]) -> str:
        ours = [reached(rows, "lmd-adaptive", "psnr", HORIZON, noise=percent) for percent in (1, 5, 20)]
        return (
            f"At ten iterations adaptive LMD is at {ours[0]}, {ours[1]} and {ours[2]} dB at 1, 5 and 20% noise, where "
            "the paper has 33.3, 32.9 and 10.9"
        )

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        return [*super().tables(rows), *noise_tables(rows)]

    def run(self, session: Session) -> None:
        images = images_for(session)
        learned = learned_solver(session, "denoise")
        session.facts.update(
            objective=f"||x - y||^2 + {WEIGHT} TV(x), anisotropic", base_step=BASE_STEP, adam_step=ADAM_STEP
        )
        session.facts.update(pdhg_tau=TAU, diverged=f"not finite, or {DIVERGED:g} times the value of the start")
        for percent in PERCENT:
            problem = make(images, percent / 100, generator_for(session, purpose=percent))
            best = minimiser(problem)
            for name in METHODS:
                tried = [_Tried(problem, best, trial) for trial in trials_for(problem, learned, (name,))]
                _record(session, name, tried, percent)
            session.log("noise level", noise=percent)
        _draw(session)


class _Tried:
    """A method at one step-size: what it reaches at each iteration."""

    def __init__(self, problem: TVDenoising, best: Tensor, trial: SteppedSolver) -> None:
        start = problem.start()
        found = {metric: [measured(start, best)] for metric, measured in METRICS.items()}
        values = [problem.value(start)]

        def look(x: Tensor, value: Tensor) -> None:
            finite = torch.nan_to_num(x, nan=FAR).clamp(-FAR, FAR)
            for metric, measured in METRICS.items():
                found[metric].append(measured(finite, best))
            values.append(value)

        run(
            trial.solver,
            problem,
            start,
            ITERATIONS,
            divergence_factor=1e30,
            callbacks=[lambda state, value: look(state.x, value)],
        )
        self.found = {
            metric: torch.stack(rows + [rows[-1]] * (ITERATIONS + 1 - len(rows))) for metric, rows in found.items()
        }
        """By metric `(K+1, B)`; a run that ended early, as no image was finite any more, keeps its last numbers."""

        last = values[-1]
        self.diverged = ~torch.isfinite(last) | (last > DIVERGED * values[0])

    def mean(self, metric: str) -> Tensor:
        """Over the images `(K+1,)`."""
        return self.found[metric].mean(dim=1)


def _record(session: Session, name: str, tried: Sequence[_Tried], percent: int) -> None:
    """Best over step-sizes (and iterations) of the mean over images; the worst image; the share that diverged."""
    for metric in METRICS:
        means = torch.stack([one.mean(metric) for one in tried])
        session.record(name, "best", metric, float(means[:, 1:].max()), noise=percent)
        for k in SHOWN:
            session.record(name, k, metric, float(means[:, k].max()), noise=percent)
    for k in SHOWN:
        worst = min(float(one.found["psnr"][k].min()) for one in tried)
        session.record(name, k, "psnr_worst", worst, noise=percent)
    diverged = torch.stack([one.diverged for one in tried]).float().mean()
    session.record(name, ITERATIONS, "diverged_share", float(diverged), noise=percent)


def _draw(session: Session) -> None:
    labels = {"psnr": "PSNR to the minimiser, dB", "ssim": "SSIM to the minimiser"}
    with figure(11.5, 7.4) as drawing:
        panels = drawing.subplots(2, 3, sharex=True, sharey="row")
        for line, metric in zip(panels, METRICS, strict=True):
            for axes, k in zip(line, (HORIZON, ITERATIONS, "best"), strict=True):
                for method in METHODS:
                    rows = select(session.rows, method=method, metric=metric, iteration=k)
                    noise, values = [row["noise"] for row in rows], [row["value"] for row in rows]
                    plot_curve(axes, noise, values, method)
                if metric == "psnr":
                    axes.set_title("best of 20 iterations" if k == "best" else f"iteration {k}")
                axes.set_xticks(PERCENT)
            line[0].set_ylabel(labels[metric])
        for axes in panels[1]:
            axes.set_xlabel("noise, %")
        for axes in panels[:, -1]:
            label_lines(axes, apart=0.08)
        caption = (
            f"TV denoising, {session.facts['data']}: PSNR and SSIM to the true minimiser against the noise, mean over "
            "the images, best over the step-sizes."
        )
        session.save_figure("table-1-noise-levels", drawing, caption)


def noise_tables(rows: Sequence[Row]) -> list[Table]:
    """Quality against the noise, where an experiment measured it: for each metric and iteration a line per method."""
    tables = []
    for metric in METRICS:
        measured = [row for row in rows if row["metric"] == metric and "noise" in row and "problem" not in row]
        levels = distinct(measured, "noise")
        for k in distinct(measured, "iteration"):
            here = select(measured, iteration=k)
            lines = tuple(
                (method, *(cell(select(here, method=method, noise=level)) for level in levels))
                for method in distinct(here, "method")
            )
            title = f"{metric.upper()} to the minimiser, {'best iteration' if k == 'best' else f'iteration {k}'}"
            tables.append(Table(title, ("method", *(f"noise {level}%" for level in levels)), lines))
    return tables
