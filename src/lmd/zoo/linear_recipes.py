"""Recipes of the solvers for linear models: least squares, support vector machines and linear classifiers."""

from __future__ import annotations

from typing import Any

import torch

from lmd.data import digit_features, digits_data
from lmd.mirrors import DensePair, Mirror, OneLayer, Quadratic
from lmd.problems import Family, LeastSquaresFamily, LinearClassifierFamily, SVMFamily
from lmd.solvers import CorrectedMirrorDescent, LearnedMirrorDescent, LearnedSteps, Solver
from lmd.zoo.recipe import Recipe


def _least_squares(preset: str) -> Family:
    return LeastSquaresFamily()


def _normal_data(preset: str) -> str:
    return "right-hand sides and starts standard normal"


def _quadratic_least_squares(seed: int) -> Solver[Any]:
    """The paper's start: the identity plus a small random diagonal."""
    noise = torch.randn(2, generator=torch.Generator().manual_seed(seed)) * 0.001**0.5
    mirror = Quadratic(2, matrix=torch.diag(1 + noise))
    return LearnedMirrorDescent(mirror, iterations=10, initial_step=0.1, interval=(0.05, 0.5)).double()


def _one_layer_least_squares(seed: int) -> Solver[Any]:
    mirror = OneLayer.random(2, torch.Generator().manual_seed(seed))
    return LearnedMirrorDescent(mirror, iterations=10, initial_step=0.1, interval=(0.05, 0.5)).double()


_LEAST_SQUARES = {
    "quick": {"updates": 300, "batch": 100, "learning_rate": 5e-2, "schedule": "cosine"},
    "standard": {"updates": 3000, "batch": 1000, "learning_rate": 3e-2, "schedule": "cosine"},
    "paper": {"updates": 20_000, "batch": 1000, "learning_rate": 1e-3, "schedule": "cosine"},
}

SVM_SUBSET = {"mnist": 1000, "digits": 100}
"""Pairs in an instance, by data: the paper's number, and what the few bundled digits allow."""


def digit_data_name(preset: str) -> str:
    """The bundled digits at quick size; otherwise MNIST, where it is at hand."""
    return "digits" if preset == "quick" else digits_data("auto").name


def _svm(preset: str) -> Family:
    features = digit_features(digits_data(digit_data_name(preset)))
    return SVMFamily(features.train_features, features.train_labels, subset=SVM_SUBSET[features.data_name])


def _svm_solver(mirror: Mirror) -> Solver[Any]:
    return LearnedMirrorDescent(mirror, iterations=10, initial_step=0.01, interval=(1e-3, 1e-1), extension="decay")


def _quadratic_svm(seed: int) -> Solver[Any]:
    return _svm_solver(Quadratic(51, matrix=10 * torch.eye(51)))


def _one_layer_svm(seed: int) -> Solver[Any]:
    """Weights of 20 make the range of the map wide enough for the gradients of a thousand hinges."""
    return _svm_solver(OneLayer(51, weight=torch.full((51,), 20.0)))


def _published_one_layer_svm(seed: int) -> Solver[Any]:
    """The paper's start, whose range is so narrow that most steps are clipped."""
    return _svm_solver(OneLayer.random(51, torch.Generator().manual_seed(seed)))


_SVM: dict[str, dict[str, Any]] = {
    "quick": {"updates": 60, "batch": 50, "learning_rate": 3e-2, "schedule": "cosine", "clip_gradient": 1e3},
    "standard": {"updates": 3000, "batch": 500, "learning_rate": 3e-2, "schedule": "cosine", "clip_gradient": 1e3},
    "paper": {"updates": 10_000, "batch": 2000, "learning_rate": 1e-3, "clip_gradient": 1e3},
}


def _pair(dimension: int, width: int, backward_width: int, scale: float, seed: int) -> Mirror:
    options: dict[str, Any] = {"backward": "gradient", "backward_width": backward_width, "activation": "leaky"}
    return DensePair(dimension, width, 2, scale=scale, seed=seed, **options)


def _pair_svm(seed: int) -> Solver[Any]:
    """A scale of 30 makes steps of 0.01 short enough for the gradients of a thousand hinges."""
    mirror = _pair(51, 64, 96, 30.0, seed)
    return CorrectedMirrorDescent(mirror, LearnedSteps(10, 0.01, (1e-3, 1e-1), "decay"))


def _published_svm(seed: int) -> Solver[Any]:
    """The same networks in the paper's algorithm: nothing is corrected, the last step goes on for ever."""
    mirror = _pair(51, 64, 96, 30.0, seed)
    return LearnedMirrorDescent(mirror, 10, 0.01, (1e-3, 1e-1), "last")


_PAIR_SVM: dict[str, dict[str, Any]] = {
    "quick": {"updates": 60, "batch": 50, "learning_rate": 1e-2, "schedule": "cosine", "clip_gradient": 1e3},
    "standard": {"updates": 1500, "batch": 200, "learning_rate": 3e-3, "schedule": "cosine", "clip_gradient": 1e3},
    "paper": {"updates": 10_000, "batch": 2000, "learning_rate": 1e-3, "clip_gradient": 1e3, "consistency_at": "all"},
}

CLASSIFIER_SUBSET = {"mnist": 2000, "digits": 300}


def _classifier(preset: str) -> Family:
    features = digit_features(digits_data(digit_data_name(preset)))
    subset = CLASSIFIER_SUBSET[features.data_name]
    return LinearClassifierFamily(features.train_features, features.train_labels, subset=subset)


def _pair_classifier(seed: int) -> Solver[Any]:
    mirror = _pair(500, 48, 48, 0.2, seed)
    return CorrectedMirrorDescent(mirror, LearnedSteps(10, 0.01, (1e-3, 1e-1), "last"))


_CLASSIFIER: dict[str, dict[str, Any]] = {
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

RECIPES: dict[str, Recipe] = {
    "least-squares-quadratic": Recipe(
        "adaptive LMD with a quadratic potential, for ||Wx - b||^2 in the plane",
        _quadratic_least_squares,
        _least_squares,
        _normal_data,
        _LEAST_SQUARES,
    ),
    "least-squares-one-layer": Recipe(
        "adaptive LMD with a one-layer potential, for ||Wx - b||^2 in the plane",
        _one_layer_least_squares,
        _least_squares,
        _normal_data,
        _LEAST_SQUARES,
    ),
    "svm-quadratic": Recipe(
        "adaptive LMD with a quadratic potential, for SVMs on 50 features", _quadratic_svm, _svm, digit_data_name, _SVM
    ),
    "svm-one-layer": Recipe(
        "adaptive LMD with a one-layer potential, for SVMs on 50 features", _one_layer_svm, _svm, digit_data_name, _SVM
    ),
    "svm-one-layer-published": Recipe(
        "the same from the paper's start, which has to clip", _published_one_layer_svm, _svm, digit_data_name, _SVM
    ),
    "svm": Recipe(
        "corrected adaptive LMD with a learned mirror pair, for SVMs on 50 features",
        _pair_svm,
        _svm,
        digit_data_name,
        _PAIR_SVM,
    ),
    "svm-published": Recipe(
        "the paper's adaptive LMD with the same networks", _published_svm, _svm, digit_data_name, _PAIR_SVM
    ),
    "linear-classifier": Recipe(
        "corrected adaptive LMD with a learned mirror pair, for linear classifiers of 10 classes on 50 features",
        _pair_classifier,
        _classifier,
        digit_data_name,
        _CLASSIFIER,
    ),
}
