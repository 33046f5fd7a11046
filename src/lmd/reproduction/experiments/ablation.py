"""Figure 14: what the trained iterations, the consistency and the mirror each do for learned mirror descent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmd.mirrors import Euclidean
from lmd.mirrors.pairs import Pair
from lmd.problems import TVInpainting
from lmd.reproduction import recipes
from lmd.reproduction.experiments.base import Experiment, Session, measure
from lmd.reproduction.experiments.curves import HORIZON
from lmd.reproduction.experiments.imaging import ITERATIONS, images_for
from lmd.reproduction.experiments.inpaint import inpainting_problem
from lmd.reproduction.report.figures import figure, label_lines, plain_log, plot_curve
from lmd.reproduction.report.rows import curve, select
from lmd.reproduction.tasks import Recipe
from lmd.reproduction.tasks.optima import minimum
from lmd.reproduction.tasks.pairs import PUBLISHED
from lmd.solvers import CorrectedMirrorDescent, LearnedMirrorDescent, LearnedSteps, MirrorDescent
from lmd.training.train import train

METHODS = ("lmd-adaptive", "lmd-two-iterations", "lmd-no-consistency", "lgd", "lmd-corrected")

_SMALL: dict[str, Any] = {
    "batch": 4,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup": 8,
    "clip_gradient": 100.0,
    "validation_batch": 32,
}

SETTINGS: dict[str, dict[str, Any]] = {
    "quick": {**_SMALL, "updates": 45},
    "standard": {**_SMALL, "updates": 300},
    "paper": PUBLISHED["paper"],
}
"""Arguments of `lmd.train`, the same for every method: the paper's loss, with s = 1 at the start."""


class AblationExperiment(Experiment):
    """Inpainting with adaptive LMD and with one thing of it changed at a time."""

    name = "ablation"
    title = "What makes learned mirror descent work: one thing changed at a time, on inpainting"
    paper = "Figure 14"
    imaging = True

    def run(self, session: Session) -> None:
        problem = inpainting_problem(session, images_for(session))
        session.facts["mean minimum"] = float(minimum(problem).mean())
        for method in METHODS:
            _record(session, method, _trained(session, method), problem)
        draw(session)


def inpainting_recipe(preset: str) -> Recipe:
    """The networks and the training images: the published ones, or those of the solver that a CPU can train."""
    return recipes.recipe("inpaint-published-10" if preset == "paper" else "inpaint-pair-10")


def inpainting_pair(preset: str, seed: int) -> Pair:
    """The learned pair before its training."""
    solver: Any = inpainting_recipe(preset).solver(seed)
    pair: Pair = solver.mirror
    return pair


def adaptive(mirror: Pair, iterations: int = HORIZON) -> LearnedMirrorDescent:
    """The paper's adaptive LMD, whose last step goes on for ever."""
    return LearnedMirrorDescent(mirror, iterations, extension="last")


def untrained(method: str, preset: str, seed: int) -> MirrorDescent:
    """The solver of a method; learned gradient descent has the steps of the others over the mirror's scale."""
    mirror = inpainting_pair(preset, seed)
    if method == "lgd":
        options: dict[str, Any] = {
            "initial_step": 0.01 / mirror.scale,
            "interval": (1e-3 / mirror.scale, 1e-1 / mirror.scale),
        }
        return LearnedMirrorDescent(Euclidean(), HORIZON, extension="last", **options)
    if method == "lmd-corrected":
        return CorrectedMirrorDescent(mirror, LearnedSteps(HORIZON, extension="last"))
    return adaptive(mirror, 2 if method == "lmd-two-iterations" else HORIZON)


def _trained(session: Session, method: str) -> MirrorDescent:
    """The solver of a method, trained as all the others but for what it changes."""
    solver = untrained(method, session.preset, session.seed)
    family = inpainting_recipe(session.preset).family(session.preset)
    settings = SETTINGS[session.preset] | ({"consistency_weight": 0.0} if method == "lmd-no-consistency" else {})
    result = train(solver, family, seed=session.seed, progress=session.progress, **settings)
    with torch.no_grad():
        steps = [round(float(solver.steps(k)), 4) for k in range(solver.horizon or HORIZON)]
    session.facts[f"{method} learned steps"] = steps
    session.log("trained", method=method, seconds=round(result.seconds, 1), skipped=result.skipped)
    return solver


def _record(session: Session, method: str, solver: MirrorDescent, problem: TVInpainting) -> None:
    """Loss, gap and inconsistency of each iterate; an exact mirror has no inconsistency."""

    @torch.no_grad()
    def watch(x: Tensor) -> Tensor:
        return solver.mirror.inconsistency(x).mean()

    least = minimum(problem)
    result, inconsistency = measure(solver, problem, problem.start(), ITERATIONS, session.repeats, watch)
    session.record_run(method, result, ITERATIONS)
    curves = {"relative_gap": ((result.history.values - least) / least).mean(dim=1).tolist()}
    if not solver.mirror.is_exact:
        curves["inconsistency"] = inconsistency
    session.record_curves(method, ITERATIONS, curves)


def draw(session: Session) -> None:
    """Inconsistency (left) and loss (right) against iterations."""
    with figure(12.5, 4.8) as drawing:
        left, right = drawing.subplots(1, 2)
        for method in METHODS:
            rows = select(session.rows, method=method)
            plot_curve(left, *curve(rows, "inconsistency"), method)
            plot_curve(right, *curve(rows, "loss"), method)
        for axes, label in ((left, "mean inconsistency, $L^1$"), (right, "mean loss")):
            axes.axvline(HORIZON, color="0.6", linewidth=1.0, zorder=0)
            axes.set(xlabel="iteration", ylabel=label)
            axes.set_xticks(range(0, ITERATIONS + 1, 5))
            plain_log(axes)
        least, start = session.facts["mean minimum"], curve(select(session.rows, method="lgd"), "loss")[1][0]
        right.axhline(least, color="0.3", linewidth=1.0, linestyle=(0, (2, 2)))
        right.annotate("minimum", (0, least), xytext=(0, 3), textcoords="offset points", fontsize=10.5, color="0.3")
        right.set_ylim(least / 1.2, 1.5 * start)
        for axes in (left, right):
            label_lines(axes)
        session.save_figure(
            "figure-14-ablation",
            drawing,
            f"Inpainting, {session.facts['data']}, with the paper's adaptive LMD (trained for N = 10) and one thing "
            "changed at a time: N = 2; no consistency (s = 0); identity maps, which is gradient descent with learned "
            "steps (lgd) and has no inconsistency; and LMD corrected for the drift of its learned inverse. The grey "
            "line ends the ten trained iterations; beyond it the last step goes on.",
        )
