"""How each trained solver of the zoo is made: its solver before training, its family, and its training settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lmd.mirrors import OneLayer, Quadratic
from lmd.problems import Family, LeastSquaresFamily
from lmd.solvers import LearnedMirrorDescent, Solver


@dataclass(frozen=True)
class Recipe:
    """What `lmd train NAME` does."""

    title: str
    solver: Callable[[int], Solver[Any]]
    """The untrained solver, from a seed."""

    family: Callable[[], Family]
    data: str
    """What it is trained on, in words."""

    settings: Mapping[str, Mapping[str, Any]]
    """Arguments of `lmd.train` by preset."""


def _quadratic_least_squares(seed: int) -> Solver[Any]:
    """The paper's start: the identity plus a small random diagonal."""
    noise = torch.randn(2, generator=torch.Generator().manual_seed(seed)) * 0.001**0.5
    mirror = Quadratic(2, matrix=torch.diag(1 + noise))
    return LearnedMirrorDescent(mirror, iterations=10, initial_step=0.1, interval=(0.05, 0.5)).double()


def _one_layer_least_squares(seed: int) -> Solver[Any]:
    mirror = OneLayer.random(2, torch.Generator().manual_seed(seed))
    return LearnedMirrorDescent(mirror, iterations=10, initial_step=0.1, interval=(0.05, 0.5)).double()


_LEAST_SQUARES = {
    "quick": {"steps": 300, "batch": 100, "learning_rate": 5e-2, "schedule": "cosine"},
    "standard": {"steps": 3000, "batch": 1000, "learning_rate": 3e-2, "schedule": "cosine"},
    "paper": {"steps": 20_000, "batch": 1000, "learning_rate": 1e-3, "schedule": "cosine"},
}

RECIPES: dict[str, Recipe] = {
    "least-squares-quadratic": Recipe(
        "adaptive LMD with a quadratic potential, for ||Wx - b||^2 in the plane",
        _quadratic_least_squares,
        LeastSquaresFamily,
        "right-hand sides and starts standard normal",
        _LEAST_SQUARES,
    ),
    "least-squares-one-layer": Recipe(
        "adaptive LMD with a one-layer potential, for ||Wx - b||^2 in the plane",
        _one_layer_least_squares,
        LeastSquaresFamily,
        "right-hand sides and starts standard normal",
        _LEAST_SQUARES,
    ),
}
