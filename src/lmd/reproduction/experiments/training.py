"""Figures 12 to 14: consistency while LMD is trained, and an ablation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmd.mirrors import Euclidean
from lmd.mirrors.pairs import Pair
from lmd.problems import Family, Problem, TVInpainting
from lmd.reproduction import recipes
from lmd.reproduction.experiments.base import HORIZON, Experiment, Session, measure
from lmd.reproduction.experiments.imaging import ITERATIONS, images_for, inpainting_problem, middles
from lmd.reproduction.experiments.linear_models import TEST_SEED
from lmd.reproduction.figures import COLOURS, figure, label_lines, plain_log, plot_curve
from lmd.reproduction.tables import curve, select
from lmd.reproduction.tasks import Recipe
from lmd.reproduction.tasks.common import PUBLISHED
from lmd.reproduction.tasks.task import HeldOut, minimum
from lmd.reproduction.tasks.vectors import SVM_DIGITS
from lmd.solvers import CorrectedMirrorDescent, LearnedMirrorDescent, LearnedSteps, MirrorDescent, Solver
from lmd.training.folder import LogLine
from lmd.training.loss import UnrolledLoss
from lmd.training.settings import TrainingSettings
from lmd.training.train import train

ABLATION_METHODS = ("lmd-adaptive", "lmd-two-iterations", "lmd-no-consistency", "lgd", "lmd-corrected")

_ABLATION: dict[str, Any] = {
    "batch": 4,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup": 8,
    "clip_gradient": 100.0,
    "validation_batch": 32,
}

ABLATION_SETTINGS: dict[str, dict[str, Any]] = {
    "quick": {**_ABLATION, "updates": 45},
    "standard": {**_ABLATION, "updates": 300},
    "paper": PUBLISHED["paper"],
}
"""Arguments of `lmd.train`, the same for every method: the paper's loss, with s = 1 at the start."""


class AblationExperiment(Experiment):
    """Inpainting with adaptive LMD, and with variants that each change one thing."""

    name = "ablation"
    title = "What makes learned mirror descent work: one thing changed at a time, on inpainting"
    paper = "Figure 14"
    imaging = True

    def run(self, session: Session) -> None:
        problem = inpainting_problem(session, images_for(session))
        session.facts["mean minimum"] = float(minimum(problem).mean())
        for method in ABLATION_METHODS:
            _record_ablation(session, method, _trained(session, method), problem)
        draw_ablation(session)


def inpainting_recipe(preset: str) -> Recipe:
    """Return the recipe of the published networks for the preset `paper`, else of networks that a CPU can train."""
    return recipes.recipe("inpaint-published-10" if preset == "paper" else "inpaint-pair-10")


def inpainting_pair(preset: str, seed: int) -> Pair:
    """The learned pair before its training."""
    solver: Any = inpainting_recipe(preset).solver(seed)
    pair: Pair = solver.mirror
    return pair


def adaptive(mirror: Pair, iterations: int = HORIZON) -> LearnedMirrorDescent:
    """The paper's adaptive LMD, whose last step is repeated forever."""
    return LearnedMirrorDescent(mirror, iterations, extension="last")


def untrained(method: str, preset: str, seed: int) -> MirrorDescent:
    """Return the solver of a method; learned gradient descent divides the steps by the mirror's scale."""
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
    """Train the solver of a method; the settings are the same for all methods, except for what a method changes."""
    solver = untrained(method, session.preset, session.seed)
    family = inpainting_recipe(session.preset).family(session.preset)
    settings = ABLATION_SETTINGS[session.preset] | (
        {"consistency_weight": 0.0} if method == "lmd-no-consistency" else {}
    )
    result = train(solver, family, seed=session.seed, progress=session.progress, **settings)
    with torch.no_grad():
        steps = [round(float(solver.steps(k)), 4) for k in range(solver.horizon or HORIZON)]
    session.facts[f"{method} learned steps"] = steps
    session.log("trained", method=method, seconds=round(result.seconds, 1), skipped=result.skipped)
    return solver


def _record_ablation(session: Session, method: str, solver: MirrorDescent, problem: TVInpainting) -> None:
    """Record loss, gap and inconsistency of each iterate; an exact mirror has no inconsistency."""

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


def draw_ablation(session: Session) -> None:
    """Inconsistency (left) and loss (right) against iterations."""
    with figure(12.5, 4.8) as drawing:
        left, right = drawing.subplots(1, 2)
        for method in ABLATION_METHODS:
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


PROBLEMS = {"svm": "SVM", "inpaint": "inpainting"}
PARTS = ("value", "inconsistency")
HELD_OUT_STARTS = {"quick": 10, "standard": 50, "paper": 100}
HELD_OUT_SIDES = {"quick": 24, "standard": 32, "paper": 96}
"""After each epoch, the number of SVM starts and the size of test images that are evaluated."""

_CONSISTENCY = {
    "batch": 4,
    "learning_rate": 2e-3,
    "warmup": 8,
    "clip_gradient": 100.0,
    "consistency_at": "start",
    "consistency_growth": 1.25,
}

CONSISTENCY_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "svm": {
        "quick": {"updates": 80, "consistency_growth_every": 4, "consistency_growth": 1.63},
        "standard": {"updates": 1000, "consistency_growth_every": 50, "consistency_growth": 1.63},
        "paper": {"updates": 10_000, "consistency_growth_every": 50, "consistency_growth": 1.05},
    },
    "inpaint": {
        "quick": {**_CONSISTENCY, "updates": 46, "consistency_growth_every": 2},
        "standard": {**_CONSISTENCY, "updates": 460, "consistency_growth_every": 5, "updates_per_epoch": 4},
        "paper": {**PUBLISHED["paper"], "updates": 110_000, "consistency_growth_every": 50, "consistency_growth": 1.05},
    },
}
"""Arguments of `lmd.train`, on top of the recipes'. In the shorter runs s grows in about as many leaps as in the
paper's inpainting (22), and for the SVM about as far as in the paper (17 000-fold)."""


class ConsistencyExperiment(Experiment):
    """The paper's LMD, trained from scratch while s grows."""

    name = "consistency"
    title = "Training loss and inconsistency while the weight s of the inconsistency grows"
    paper = "Figures 12 and 13"
    imaging = True

    def run(self, session: Session) -> None:
        for problem in PROBLEMS:
            solver, trained_on, settings = ingredients(problem, session.preset, session.seed)
            chosen = TrainingSettings.from_arguments(settings)
            session.facts[f"{problem} s grew at epochs"] = growth_epochs(chosen)
            look = Observer(session, problem, UnrolledLoss(solver, chosen))
            look({"updates": 0})
            result = train(solver, trained_on, progress=session.progress, callback=look, **settings)
            session.log("trained", problem=problem, seconds=round(result.seconds, 1), skipped=result.skipped)
        draw_consistency(session)


class Observer:
    """Called with each line of the training log; records its numbers, and those of held-out instances, as rows."""

    def __init__(self, session: Session, problem: str, loss: UnrolledLoss) -> None:
        self.session, self.problem, self.loss = session, problem, loss
        self.instances, self.x0 = _held_out(session, problem)

    def __call__(self, record: LogLine) -> None:
        with torch.no_grad():
            parts = self.loss(self.instances, self.x0, consistency_weight=1.0)
        figures = {f"held_out_{name}": float(getattr(parts, name)) for name in PARTS}
        figures |= {f"training_{name}": record[name] for name in PARTS if record.get(name) is not None}
        if "consistency_weight" in record:
            figures["consistency_weight"] = record["consistency_weight"]
        epoch = record["updates"] // self.loss.settings.updates_per_epoch
        for metric, value in figures.items():
            self.session.record("lmd", epoch, metric, value, problem=self.problem)


def ingredients(problem: str, preset: str, seed: int) -> tuple[Solver[Any], Family, dict[str, Any]]:
    """Return solver, family and settings: the paper's algorithm, with a constant learning rate, logged every epoch."""
    own = CONSISTENCY_SETTINGS[problem][preset]
    if problem == "svm":
        recipe = recipes.recipe("svm-published-10")
        solver, instances = recipe.solver(seed), recipe.family(preset)
        own = {**recipe.settings[preset], "consistency_at": "all", **own}
    else:
        recipe = inpainting_recipe(preset)
        solver, instances = adaptive(inpainting_pair(preset, seed)), recipe.family(preset)
    every = own.get("updates_per_epoch", 1)
    return solver, instances, {**own, "schedule": "constant", "log_every": every, "validate_every": 0, "seed": seed}


def _held_out(session: Session, problem: str) -> tuple[Problem, Tensor]:
    """Return test instances and their starts: from the test fold of the digits, or the middles of the test images."""
    if problem == "svm":
        session.facts["svm data"] = SVM_DIGITS.name(session.preset)
        test: Family = SVM_DIGITS.held_out(None, HeldOut(session.preset, subsets=1))
        return test.sample(HELD_OUT_STARTS[session.preset], torch.Generator().manual_seed(TEST_SEED + session.seed))
    inpainting = inpainting_problem(session, middles(images_for(session), HELD_OUT_SIDES[session.preset]))
    return inpainting, inpainting.start()


def growth_epochs(settings: TrainingSettings) -> list[int]:
    """Return the epochs at which s was multiplied by `consistency_growth`."""
    every = settings.consistency_growth_every
    return list(range(every, settings.updates // settings.updates_per_epoch, every))


def draw_consistency(session: Session) -> None:
    """A column for each problem: value, inconsistency and s against epochs, grey lines where s grew."""
    with figure(11.0, 7.0) as drawing:
        panels = drawing.subplots(3, 2, sharex="col", height_ratios=(3, 3, 1.3))
        for column, (problem, title) in enumerate(PROBLEMS.items()):
            rows = select(session.rows, problem=problem)
            above, below, weight = panels[:, column]
            for axes, part, colour in ((above, "value", COLOURS["gd"]), (below, "inconsistency", COLOURS["adaptive"])):
                axes.plot(*curve(rows, f"training_{part}"), color=colour, linewidth=0.8, alpha=0.45, label="training")
                axes.plot(*curve(rows, f"held_out_{part}"), color=colour, linewidth=2.0, label="held out")
                axes.legend(loc="best", frameon=True, framealpha=0.9)
            weight.plot(*curve(rows, "consistency_weight"), color=COLOURS["truth"], drawstyle="steps-pre")
            plain_log(above)
            plain_log(below)
            weight.set_yscale("log")
            for axes in panels[:, column]:
                axes.grid(axis="x", visible=False)
                for epoch in session.facts[f"{problem} s grew at epochs"]:
                    axes.axvline(epoch, color="0.85", linewidth=0.8, zorder=0)
            above.set_title(title)
            weight.set_xlabel("epoch")
        for axes, label in zip(panels[:, 0], ("loss: sum of $f(x_k)$", "inconsistency, $L^1$", "$s$"), strict=True):
            axes.set_ylabel(label)
        session.save_figure(
            "figures-12-13-consistency",
            drawing,
            "Training the paper's LMD while the weight s of the inconsistency grows (each grey line). While s is small "
            "the pair learns to answer at once, as an encoder and a decoder would: the loss falls and the maps are no "
            "inverses of each other. As s grows they become inverses, and the loss rises to what an optimiser can do.",
        )
