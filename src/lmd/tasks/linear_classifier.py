"""Linear classifiers of 10 classes on 50 features of digits, by cross entropy."""

from __future__ import annotations

from typing import Any

from lmd.problems import LinearClassifierFamily
from lmd.solvers import CorrectedMirrorDescent, LearnedSteps, Solver
from lmd.tasks.exact import for_classifier
from lmd.tasks.sources import Digits
from lmd.tasks.svm import STEPS, dense_pair
from lmd.tasks.task import Recipe, Task

SOURCE = Digits(LinearClassifierFamily, mnist=2000, digits=300)


def _pair(seed: int) -> Solver[Any]:
    return CorrectedMirrorDescent(dense_pair(500, 48, 48, 0.2, seed), LearnedSteps(10, 0.01, STEPS, "last"))


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

TASK = Task(
    name="linear-classifier",
    title="linear classifiers on features of digits",
    recipes=(
        Recipe(
            iterations=10,
            formerly="linear-classifier",
            title="corrected adaptive LMD with a learned mirror pair, for linear classifiers on 50 features",
            solver=_pair,
            family=SOURCE.train,
            source=SOURCE,
            settings=_SETTINGS,
        ),
        for_classifier(SOURCE),
    ),
)
