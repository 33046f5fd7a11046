"""Figures 12 and 13: training loss and inconsistency while the weight of the inconsistency grows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmd.problems import Family, Problem
from lmd.reproduction import recipes
from lmd.reproduction.experiments.ablation import adaptive, inpainting_pair, inpainting_recipe
from lmd.reproduction.experiments.base import Experiment, Session
from lmd.reproduction.experiments.imaging import images_for, middles
from lmd.reproduction.experiments.inpaint import inpainting_problem
from lmd.reproduction.experiments.linear_models import TEST_SEED
from lmd.reproduction.report.figures import COLOURS, figure, plain_log
from lmd.reproduction.report.rows import curve, select
from lmd.reproduction.tasks import HeldOut
from lmd.reproduction.tasks.pairs import PUBLISHED
from lmd.reproduction.tasks.svm import SOURCE
from lmd.solvers import Solver
from lmd.training.log import LogLine
from lmd.training.loss import UnrolledLoss
from lmd.training.settings import TrainingSettings
from lmd.training.train import train

PROBLEMS = {"svm": "SVM", "inpaint": "inpainting"}
PARTS = ("value", "inconsistency")
STARTS = {"quick": 10, "standard": 50, "paper": 100}
SIDES = {"quick": 24, "standard": 32, "paper": 96}
"""What to look at after each epoch: so many starts of an SVM, and the middle of each test image of this size."""

_INPAINT = {
    "batch": 4,
    "learning_rate": 2e-3,
    "warmup": 8,
    "clip_gradient": 100.0,
    "consistency_at": "start",
    "consistency_growth": 1.25,
}

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "svm": {
        "quick": {"updates": 80, "consistency_growth_every": 4, "consistency_growth": 1.63},
        "standard": {"updates": 1000, "consistency_growth_every": 50, "consistency_growth": 1.63},
        "paper": {"updates": 10_000, "consistency_growth_every": 50, "consistency_growth": 1.05},
    },
    "inpaint": {
        "quick": {**_INPAINT, "updates": 46, "consistency_growth_every": 2},
        "standard": {**_INPAINT, "updates": 460, "consistency_growth_every": 5, "updates_per_epoch": 4},
        "paper": {
            **PUBLISHED["paper"],
            "updates": 110_000,
            "consistency_growth_every": 50,
            "consistency_growth": 1.05,
        },
    },
}
"""Arguments of `lmd.train`, on top of the recipes'. In the shorter runs s grows in about as many leaps as in the
paper's inpainting (22), and for the SVM about as far as in the paper (17 000-fold)."""


class ConsistencyExperiment(Experiment):
    """The paper's LMD, trained afresh while s grows: first it learns to answer at once, then to optimise."""

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
        draw(session)


class Observer:
    """Called with each line of the training log: its figures become rows, beside those of held-out instances."""

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
    """What is trained, on what and how: the paper's algorithm, with a constant learning rate, logged every epoch."""
    own = SETTINGS[problem][preset]
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
    """Instances from the test fold: of the digits, or the middles of the test images."""
    if problem == "svm":
        session.facts["svm data"] = SOURCE.name(session.preset)
        test: Family = SOURCE.held_out(None, HeldOut(session.preset, subsets=1))
        return test.sample(STARTS[session.preset], torch.Generator().manual_seed(TEST_SEED + session.seed))
    inpainting = inpainting_problem(session, middles(images_for(session), SIDES[session.preset]))
    return inpainting, inpainting.start()


def growth_epochs(settings: TrainingSettings) -> list[int]:
    """The epochs at which s was multiplied by its growth."""
    every = settings.consistency_growth_every
    return list(range(every, settings.updates // settings.updates_per_epoch, every))


def draw(session: Session) -> None:
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
