"""The lasso, sparse linear regression: 1/2 ||Ax - b||^2 + weight ||x||_1."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.problems import Family, Lasso, LassoFamily
from lmd.reproduction.tasks.peers import COUNTS, TOLERANCES, Call, Peer, stacked
from lmd.reproduction.tasks.sources import Drawn
from lmd.reproduction.tasks.task import Contest, Recipe, Task
from lmd.reproduction.tasks.unrolled import WEAK, solved, training
from lmd.solvers import PDHG, LearnedPDHG


def _family(preset: str) -> Family:
    return solved(LassoFamily(), preset, PDHG(0.5), iterations=2000)


def make(images: Tensor, noise: float, generator: torch.Generator) -> Lasso:
    """As many regressions as there are images."""
    return LassoFamily(noise=noise).sample(len(images), generator)[0]


def _coordinate_descent(problem: Any) -> Call:
    """A tolerance of 0, so that it does not stop before its iterations are over."""
    from sklearn.linear_model import Lasso as TheirLasso

    return _fitted(TheirLasso, problem, lambda count: {"tol": 0.0, "max_iter": count, "copy_X": False})


def _celer(problem: Any) -> Call:
    """Coordinate descent on working sets; a tolerance is one on its duality gap, relative to ||b||^2."""
    from celer import Lasso as TheirLasso

    return _fitted(TheirLasso, problem, lambda tolerance: {"tol": tolerance, "max_iter": 100})


def _skglm(problem: Any) -> Call:
    """The same with Anderson acceleration; a tolerance is one on the distance of subgradients to zero."""
    from skglm import Lasso as TheirLasso

    return _fitted(TheirLasso, problem, lambda tolerance: {"tol": tolerance, "max_iter": 100})


def _fitted(estimator: Any, problem: Any, options: Callable[[Any], dict[str, Any]]) -> Call:
    """Estimators whose loss is a mean over the rows of A, so that their weight is ours over m."""
    A = np.asfortranarray(problem.A.double().numpy())
    rows = [(b.double().numpy(), float(w) / len(A)) for b, w in zip(problem.b, problem.weight, strict=True)]

    def call(rung: Any) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge
            return [estimator(w, fit_intercept=False, **options(rung)).fit(A, b).coef_ for b, w in rows]

    return call


TASK = Task(
    name="lasso",
    title="the lasso, sparse linear regression",
    recipes=(
        Recipe(
            iterations=10,
            title="learned saddle mirror descent of 10 iterations, steps and momenta alone, for lassos with one matrix",
            solver=lambda seed: LearnedPDHG(10, tau=0.5),
            family=_family,
            source=Drawn("random sparse regressions", arrays=("A",)),
            settings=training("gap", 2e-2, updates=1500, batch=10),
            weak=WEAK + "Trained for one matrix, the one of LassoFamily(): for another one, train again, in a minute.",
        ),
    ),
    contest=Contest(
        make,
        steps=0.1,
        tau=0.5,
        peers=(
            Peer("scikit-learn", "sklearn", COUNTS, _coordinate_descent, stacked),
            Peer("celer", "celer", TOLERANCES, _celer, stacked),
            Peer("skglm", "skglm", TOLERANCES, _skglm, stacked),
        ),
        sized=False,
    ),
)
