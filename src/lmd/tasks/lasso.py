"""The lasso, sparse linear regression: 1/2 ||Ax - b||^2 + weight ||x||_1."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.problems import Family, Lasso, LassoFamily
from lmd.solvers import PDHG, LearnedPDHG
from lmd.tasks.peers import COUNTS, Call, Peer, stacked
from lmd.tasks.sources import Drawn
from lmd.tasks.task import Contest, Recipe, Task
from lmd.tasks.unrolled import WEAK, solved, training


def _family(preset: str) -> Family:
    return solved(LassoFamily(), preset, PDHG(0.5), iterations=2000)


def make(images: Tensor, noise: float, generator: torch.Generator) -> Lasso:
    """As many regressions as there are images."""
    return LassoFamily(noise=noise).sample(len(images), generator)[0]


def _coordinate_descent(problem: Any) -> Call:
    """Its loss is a mean over the rows of A, so its weight is ours over m; tol = 0 so that it does not stop."""
    from sklearn.linear_model import Lasso as TheirLasso

    A = np.asfortranarray(problem.A.double().numpy())
    rows = [(b.double().numpy(), float(w) / len(A)) for b, w in zip(problem.b, problem.weight, strict=True)]

    def call(iterations: int) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge
            options: Any = {"fit_intercept": False, "tol": 0.0, "max_iter": iterations, "copy_X": False}
            return [TheirLasso(weight, **options).fit(A, b).coef_ for b, weight in rows]

    return call


TASK = Task(
    name="lasso",
    title="the lasso, sparse linear regression",
    recipes=(
        Recipe(
            iterations=10,
            formerly="lasso",
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
        peers=(Peer("scikit-learn", "sklearn", COUNTS, _coordinate_descent, stacked),),
    ),
)
