"""Support vector machines on 50 features of digits: C sum of hinges + 1/2 ||w||^2."""

from __future__ import annotations

from typing import Any

import torch

from lmd.mirrors import DensePair, Mirror, OneLayer, Quadratic
from lmd.problems import SVMFamily
from lmd.solvers import CorrectedMirrorDescent, LearnedMirrorDescent, LearnedSteps, Solver
from lmd.tasks.sources import Digits
from lmd.tasks.task import Recipe, Task

SOURCE = Digits(SVMFamily, mnist=1000, digits=100)
STEPS = (1e-3, 1e-1)


def dense_pair(dimension: int, width: int, backward_width: int, scale: float, seed: int) -> Mirror:
    """The networks of the paper's dense pairs."""
    options: dict[str, Any] = {"backward": "gradient", "backward_width": backward_width, "activation": "leaky"}
    return DensePair(dimension, width, 2, scale=scale, seed=seed, **options)


def _adaptive(mirror: Mirror, extension: str = "decay") -> Solver[Any]:
    return LearnedMirrorDescent(mirror, iterations=10, initial_step=0.01, interval=STEPS, extension=extension)


def _quadratic(seed: int) -> Solver[Any]:
    return _adaptive(Quadratic(51, matrix=10 * torch.eye(51)))


def _one_layer(seed: int) -> Solver[Any]:
    """Weights of 20 make the range of the map wide enough for the gradients of a thousand hinges."""
    return _adaptive(OneLayer(51, weight=torch.full((51,), 20.0)))


def _published_one_layer(seed: int) -> Solver[Any]:
    """The paper's start, whose range is so narrow that most steps are clipped."""
    return _adaptive(OneLayer.random(51, torch.Generator().manual_seed(seed)))


def _pair(seed: int) -> Solver[Any]:
    """A scale of 30 makes steps of 0.01 short enough for the gradients of a thousand hinges."""
    return CorrectedMirrorDescent(dense_pair(51, 64, 96, 30.0, seed), LearnedSteps(10, 0.01, STEPS, "decay"))


def _published(seed: int) -> Solver[Any]:
    """The same networks in the paper's algorithm: nothing is corrected, the last step goes on for ever."""
    return _adaptive(dense_pair(51, 64, 96, 30.0, seed), "last")


_CLIPPED: dict[str, Any] = {"schedule": "cosine", "clip_gradient": 1e3}
_CLOSED_FORM: dict[str, dict[str, Any]] = {
    "quick": {"updates": 60, "batch": 50, "learning_rate": 3e-2, **_CLIPPED},
    "standard": {"updates": 3000, "batch": 500, "learning_rate": 3e-2, **_CLIPPED},
    "paper": {"updates": 10_000, "batch": 2000, "learning_rate": 1e-3, "clip_gradient": 1e3},
}
_PAIRS: dict[str, dict[str, Any]] = {
    "quick": {"updates": 60, "batch": 50, "learning_rate": 1e-2, **_CLIPPED},
    "standard": {"updates": 1500, "batch": 200, "learning_rate": 3e-3, **_CLIPPED},
    "paper": {"updates": 10_000, "batch": 2000, "learning_rate": 1e-3, "clip_gradient": 1e3, "consistency_at": "all"},
}


def _recipe(form: str, formerly: str, title: str, solver: Any, settings: dict[str, dict[str, Any]]) -> Recipe:
    return Recipe(
        form=form,
        iterations=10,
        formerly=formerly,
        title=title,
        solver=solver,
        family=SOURCE.train,
        source=SOURCE,
        settings=settings,
    )


TASK = Task(
    name="svm",
    title="support vector machines on features of digits",
    recipes=(
        _recipe(
            "quadratic",
            "svm-quadratic",
            "adaptive LMD with a quadratic potential, for SVMs on 50 features",
            _quadratic,
            _CLOSED_FORM,
        ),
        _recipe(
            "one-layer",
            "svm-one-layer",
            "adaptive LMD with a one-layer potential, for SVMs on 50 features",
            _one_layer,
            _CLOSED_FORM,
        ),
        _recipe(
            "one-layer-published",
            "svm-one-layer-published",
            "the same from the paper's start, which has to clip",
            _published_one_layer,
            _CLOSED_FORM,
        ),
        _recipe(
            "pair", "svm", "corrected adaptive LMD with a learned mirror pair, for SVMs on 50 features", _pair, _PAIRS
        ),
        _recipe("published", "svm-published", "the paper's adaptive LMD with the same networks", _published, _PAIRS),
    ),
)
