"""Least squares in the plane: ||Wx - b||^2 with one W."""

from __future__ import annotations

from typing import Any

import torch

from lmd.mirrors import Mirror, OneLayer, Quadratic
from lmd.problems import LeastSquaresFamily
from lmd.reproduction.tasks.sources import Drawn
from lmd.reproduction.tasks.task import Recipe, Task
from lmd.solvers import LearnedMirrorDescent, Solver

SOURCE = Drawn("right-hand sides and starts standard normal", arrays=("W",))


def family(preset: str) -> LeastSquaresFamily:
    """The same at all sizes."""
    return LeastSquaresFamily()


def _adaptive(mirror: Mirror) -> Solver[Any]:
    return LearnedMirrorDescent(mirror, iterations=10, initial_step=0.1, interval=(0.05, 0.5)).double()


def _quadratic(seed: int) -> Solver[Any]:
    """The paper's start: the identity plus a small random diagonal."""
    noise = torch.randn(2, generator=torch.Generator().manual_seed(seed)) * 0.001**0.5
    return _adaptive(Quadratic(2, matrix=torch.diag(1 + noise)))


def _one_layer(seed: int) -> Solver[Any]:
    return _adaptive(OneLayer.random(2, torch.Generator().manual_seed(seed)))


_SETTINGS = {
    "quick": {"updates": 300, "batch": 100, "learning_rate": 5e-2, "schedule": "cosine"},
    "standard": {"updates": 3000, "batch": 1000, "learning_rate": 3e-2, "schedule": "cosine"},
    "paper": {"updates": 20_000, "batch": 1000, "learning_rate": 1e-3, "schedule": "cosine"},
}


def _recipe(form: str, solver: Any) -> Recipe:
    return Recipe(
        form=form,
        iterations=10,
        title=f"adaptive LMD with a {form} potential, for ||Wx - b||^2 in the plane",
        solver=solver,
        family=family,
        source=SOURCE,
        settings=_SETTINGS,
    )


TASK = Task(
    name="least-squares",
    title="least squares in the plane",
    recipes=(_recipe("quadratic", _quadratic), _recipe("one-layer", _one_layer)),
)
