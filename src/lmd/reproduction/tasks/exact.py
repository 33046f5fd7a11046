"""Recipes of solvers with exact learned mirrors: images in the cosine basis, linear models in their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmd.guarantees import minimiser
from lmd.mirrors import Cosine, Rotation, Separable, Splines
from lmd.problems import Family
from lmd.reproduction.datasets import digit_features, digits_data
from lmd.reproduction.tasks import pairs
from lmd.reproduction.tasks.sources import Digits
from lmd.reproduction.tasks.task import Recipe
from lmd.solvers import ExactMirrorDescent, Solver

CROPS = {"quick": 24, "standard": 48, "paper": None}
KINDS = 10
"""Weights for the frequencies of an image: nine intervals between them."""


def _stiff(stiffness: float) -> Separable:
    """Slopes 1 + s e, e the eigenvalues of differences: the Hessian of squares of pixels plus s times differences."""
    eigenvalues = 8 * torch.linspace(0, 1, KINDS, dtype=torch.float64).square()
    curves = Splines(KINDS)
    with torch.no_grad():
        curves.logs.copy_((1 + stiffness * eigenvalues).log()[:, None])
    return Separable(Cosine(KINDS), curves)


def _imaging(widths: int, seed: int) -> Solver[Any]:
    """Each mirror begins as the Hessian of the smoothed objective, if half of the differences are within its width."""
    solver = ExactMirrorDescent(_stiff(10.0), 10, width=0.6, final_width=0.05, widths=widths)
    for k, width in enumerate(solver.log_widths[:-1, 0].exp().tolist()):
        solver.mirrors[k] = _stiff(0.5 / width)
    return solver


_TRAINING: dict[str, Any] = {
    "batch": 8,
    "learning_rate": 3e-2,
    "schedule": "cosine",
    "warmup": 20,
    "clip_gradient": 50.0,
    "value_weights": "last",
    "validation_batch": 16,
}


class _Basis:
    """Quadratic potentials in the basis of the principal directions of features `(n, d)`, which stays as it is."""

    def __init__(self, features: Tensor) -> None:
        points = features.double()
        self.moments, directions = torch.linalg.eigh(points.T @ points / len(points))
        self.directions = directions.T.contiguous()

    def mirror(self, floor: float, stiffness: float) -> Separable:
        """Slopes floor + stiffness e, e the second moments of the features along their principal directions."""
        curves = Splines(len(self.moments), interval=(1e-4, 1e6))
        with torch.no_grad():
            curves.logs.copy_((floor + stiffness * self.moments).log()[:, None])
        rotation = Rotation.from_matrix(self.directions).float()
        rotation.vectors.requires_grad_(False)
        return Separable(rotation, curves)


def mean_optimum(family: Any, seed: int) -> Tensor:
    """The mean of the optima of eight instances `(n,)`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([minimiser(family.sample(1, generator)[0]) for _ in range(8)]).mean(dim=0)


def _svm(source: Digits, seed: int) -> Solver[Any]:
    """From the mean of a few optima; mirrors as if a tenth, and in the end a fiftieth, of all hinges were near 1."""
    family = source.train("standard")
    size, basis = family.subset, _Basis(torch.nn.functional.pad(family.features, (0, 1), value=1.0))
    solver = ExactMirrorDescent(basis.mirror(1.0, 0.2 * size), 10, width=1.0, final_width=0.1, dimension=51)
    with torch.no_grad():
        solver.guess.copy_(mean_optimum(family, seed))
        solver.momenta[1:, 0] = 0.4
    for k, width in enumerate(solver.log_widths[:-1, 0].exp().tolist()):
        solver.mirrors[k] = basis.mirror(1.0, size * 0.1 * 0.2 ** (k / 9) / width)
    return solver


def _classifier(source: Digits, seed: int) -> Solver[Any]:
    basis = _Basis(digit_features(digits_data("auto")).train_features)
    return ExactMirrorDescent(basis.mirror(1e-3, 1 / float(basis.moments[-1])), 10, dimension=500)


_LINEAR: dict[str, Any] = {"schedule": "cosine", "warmup": 20, "value_weights": "last"}
_SVM: dict[str, dict[str, Any]] = {
    "quick": {**_LINEAR, "updates": 40, "batch": 20, "learning_rate": 3e-3, "clip_gradient": 1e3},
    "standard": {**_LINEAR, "updates": 600, "batch": 50, "learning_rate": 3e-3, "clip_gradient": 1e3},
}
_CLASSIFIER: dict[str, dict[str, Any]] = {
    "quick": {**_LINEAR, "updates": 40, "batch": 5, "learning_rate": 3e-2, "clip_gradient": 1.0},
    "standard": {**_LINEAR, "updates": 300, "batch": 10, "learning_rate": 3e-2, "clip_gradient": 1.0},
}


def for_images(doing: str, family: Callable[[str], Family], updates: int, widths: int = 1, **settings: Any) -> Recipe:
    """Trained like the pairs, on crops of `CROPS`, without their inconsistency term."""
    settings = {**_TRAINING, **settings}
    return Recipe(
        form="exact",
        iterations=10,
        title=f"mirror descent with exact mirrors in the cosine basis, for TV {doing}",
        solver=partial(_imaging, widths),
        family=family,
        source=pairs.SOURCE,
        settings={"quick": {**settings, "updates": 40}, "standard": {**settings, "updates": updates}},
    )


def _linear(title: str, make: Callable[[Digits, int], Solver[Any]], source: Digits, settings: Any) -> Recipe:
    return Recipe(
        form="exact",
        iterations=10,
        title=f"mirror descent with exact mirrors in the basis of the features, for {title}",
        solver=partial(make, source),
        family=source.train,
        source=source,
        settings=settings,
    )


def for_svm(source: Digits) -> Recipe:
    """Support vector machines."""
    return _linear("SVMs on 50 features", _svm, source, _SVM)


def for_classifier(source: Digits) -> Recipe:
    """Linear classifiers."""
    return _linear("linear classifiers of 10 classes", _classifier, source, _CLASSIFIER)
