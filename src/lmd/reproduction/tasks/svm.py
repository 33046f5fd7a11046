"""Support vector machines on 50 features of digits: C sum of hinges + 1/2 ||w||^2."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.mirrors import DensePair, Mirror, OneLayer, Quadratic
from lmd.problems import Family, SVMFamily
from lmd.reproduction.tasks.exact import for_svm, mean_optimum
from lmd.reproduction.tasks.peers import EXPERIMENTS, TOLERANCES, Call, Peer, stacked
from lmd.reproduction.tasks.sources import Digits, HeldOut
from lmd.reproduction.tasks.task import Contest, Recipe, Task
from lmd.solvers import (
    CorrectedMirrorDescent,
    InteriorPoint,
    LearnedInteriorPoint,
    LearnedMirrorDescent,
    LearnedSteps,
    Solver,
)
from lmd.training.solved import SolvedFamily

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


def _interior(seed: int) -> Solver[Any]:
    """From the mean of a few optima."""
    solver = LearnedInteriorPoint(51)
    with torch.no_grad():
        solver.guess.copy_(mean_optimum(SOURCE.train("standard"), seed))
    return solver


def _solved(preset: str) -> Family:
    """Data sets that are drawn once, each in one instance, with their optima."""
    count = 4 if preset == "quick" else 20
    return SolvedFamily(SOURCE.train(preset, subsets=count), 10 * count, InteriorPoint(), iterations=30)


_INTERIOR: dict[str, dict[str, Any]] = {
    "quick": {
        "updates": 20,
        "batch": 4,
        "objective": "gap",
        "learning_rate": 1e-2,
        "schedule": "cosine",
        "clip_gradient": 100.0,
        "validation_batch": 20,
        "validate_every": 2,
    },
    "standard": {
        "updates": 100,
        "batch": 8,
        "objective": "gap",
        "learning_rate": 1e-2,
        "schedule": "cosine",
        "clip_gradient": 100.0,
        "validation_batch": 20,
        "validate_every": 20,
    },
}


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


def make(images: Tensor, noise: float, generator: torch.Generator) -> Any:
    """As many machines as there are images, each on a subset of its own of the test fold."""
    family = SOURCE.held_out(SOURCE.train("standard"), HeldOut("standard", subsets=len(images)))
    return family.sample(len(images), generator)[0]


def _fitted(estimator: Callable[[Any], Any], problem: Any) -> Call:
    """An estimator by its tolerance; x is its weights and its bias."""
    sets = list(zip(problem.features.double().numpy(), problem.labels.numpy(), strict=True))
    chosen = [sets[k] for k in problem.subset.tolist()]

    def call(tolerance: Any) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge
            models = [estimator(tolerance).fit(*pair) for pair in chosen]
        return [np.append(model.coef_[0], model.intercept_) for model in models]

    return call


def _libsvm(problem: Any) -> Call:
    from sklearn.svm import SVC

    return _fitted(lambda tolerance: SVC(kernel="linear", C=problem.C, tol=tolerance), problem)


def _liblinear(problem: Any) -> Call:
    """Dual coordinate descent. It penalises the bias too, here by a hundredth."""
    from sklearn.svm import LinearSVC

    options: dict[str, Any] = {"loss": "hinge", "intercept_scaling": 10.0, "max_iter": 100_000, "random_state": 0}
    return _fitted(lambda tolerance: LinearSVC(C=problem.C, tol=tolerance, **options), problem)


_FOR = "for SVMs on 50 features"
_FORMS: dict[str, tuple[str, Any, Any]] = {
    "quadratic": (f"adaptive LMD with a quadratic potential, {_FOR}", _quadratic, _CLOSED_FORM),
    "one-layer": (f"adaptive LMD with a one-layer potential, {_FOR}", _one_layer, _CLOSED_FORM),
    "one-layer-published": ("one-layer, from the paper's start, which has to clip", _published_one_layer, _CLOSED_FORM),
    "pair": (f"corrected adaptive LMD with a learned mirror pair, {_FOR}", _pair, _PAIRS),
    "published": ("the paper's adaptive LMD with the networks of the pair", _published, _PAIRS),
}

TASK = Task(
    name="svm",
    title="support vector machines on features of digits",
    recipes=(
        *(
            Recipe(
                form=form,
                iterations=10,
                title=title,
                solver=solver,
                family=SOURCE.train,
                source=SOURCE,
                settings=settings,
            )
            for form, (title, solver, settings) in _FORMS.items()
        ),
        for_svm(SOURCE),
        Recipe(
            form="interior",
            iterations=10,
            title=f"interior-point steps from a learned start, {_FOR}",
            solver=_interior,
            family=_solved,
            source=SOURCE,
            settings=_INTERIOR,
        ),
    ),
    contest=Contest(
        make,
        noise=(0,),
        steps=1e-4,
        peers=(
            Peer("libsvm", "sklearn", TOLERANCES, _libsvm, stacked, EXPERIMENTS),
            Peer("liblinear", "sklearn", TOLERANCES, _liblinear, stacked, EXPERIMENTS),
        ),
        sized=False,
    ),
)
