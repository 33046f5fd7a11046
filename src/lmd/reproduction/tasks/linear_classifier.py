"""Linear classifiers of 10 classes on 50 features of digits, by cross entropy."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from lmd.problems import LinearClassifierFamily
from lmd.reproduction.tasks.exact import for_classifier, mean_optimum
from lmd.reproduction.tasks.sources import Digits
from lmd.reproduction.tasks.svm import STEPS, dense_pair
from lmd.reproduction.tasks.task import Recipe, Task
from lmd.solvers import (
    LBFGS,
    CorrectedMirrorDescent,
    LearnedBlockNewton,
    LearnedSteps,
    Sequential,
    Solver,
    WithInitialiser,
)
from lmd.solvers.initialisers import MeanInitialiser

SOURCE = Digits(LinearClassifierFamily, mnist=2000, digits=300)


def _pair(seed: int) -> Solver[Any]:
    return CorrectedMirrorDescent(dense_pair(500, 48, 48, 0.2, seed), LearnedSteps(10, 0.01, STEPS, "last"))


def _newton(seed: int) -> Solver[Any]:
    """From the mean of a few optima with a small ridge: without one, data that can be separated have none.

    Longer steps are for when all pairs are on their side. It is trained little: a rate of 3e-2 made three of four
    hundred instances diverge for the sake of the others.
    """
    start, solver = MeanInitialiser([500]), LearnedBlockNewton()
    start.fit_(start.mean[None], mean_optimum(SOURCE.train("standard", ridge=1e-4), seed).float()[None])
    with torch.no_grad():
        solver.numbers[2:, 0] = math.log(2)
        solver.numbers[2, 0] = math.log(1.5)
    return Sequential(WithInitialiser(solver, start), LBFGS())


_SETTINGS: dict[str, dict[str, Any]] = {
    "quick": {"updates": 100, "batch": 5, "learning_rate": 2e-2, "schedule": "cosine", "consistency_weight": 0.01},
    "standard": {
        "updates": 1500,
        "batch": 20,
        "learning_rate": 3e-3,
        "schedule": "cosine",
        "value_weights": "last",
        "consistency_weight": 1e-4,
        "clip_gradient": 1.0,
    },
    "paper": {"updates": 10_000, "batch": 2000, "learning_rate": 1e-3, "consistency_at": "all"},
}

_WEIGHTS = (1.0, 10.0, *(100.0,) * 8)
_CAREFUL: dict[str, Any] = {
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "clip_gradient": 1.0,
    "value_weights": _WEIGHTS,
}
_NEWTON: dict[str, dict[str, Any]] = {
    "quick": {**_CAREFUL, "updates": 2, "batch": 16, "validation_batch": 16},
    "standard": {**_CAREFUL, "updates": 60, "batch": 16, "validation_batch": 48, "validate_every": 10},
}

TASK = Task(
    name="linear-classifier",
    title="linear classifiers on features of digits",
    recipes=(
        Recipe(
            iterations=10,
            title="corrected adaptive LMD with a learned mirror pair, for linear classifiers on 50 features",
            solver=_pair,
            family=SOURCE.train,
            source=SOURCE,
            settings=_SETTINGS,
        ),
        for_classifier(SOURCE),
        Recipe(
            form="newton",
            iterations=10,
            title="Newton's steps class by class from a learned start, for linear classifiers of 10 classes",
            solver=_newton,
            family=partial(SOURCE.train, subsets=16),
            source=SOURCE,
            settings=_NEWTON,
        ),
    ),
)
