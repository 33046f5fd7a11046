"""Which solver `lmd solve` takes where none is named, and what names it knows: one place to change the choice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lmd import zoo
from lmd.checks import check_choice
from lmd.guarantees.safeguard import default_fallback
from lmd.problems.base import Problem, offers
from lmd.solvers import FGP, PDHG
from lmd.solvers.base import Solver

CLASSICAL: Mapping[str, Callable[[], Solver[Any]]] = {
    "fgp": lambda: FGP(restart=True),
    "pdhg": lambda: PDHG(settle=8),
}
"""The methods that need no training, by name."""

CHOICES = {"denoise": ("tv-denoising-20", "pdhg"), "inpaint": ("tv-inpainting-20", "pdhg")}
"""For each task, best first: a learned solver counts where it ships, a classical one always. People wait for pictures
to be good, so these are the solvers of twenty iterations."""


def default(task: str) -> str:
    """The name of the best solver there is for a task, `denoise` or `inpaint`.

    >>> default("denoise") in ("tv-denoising-20", "pdhg")
    True
    """
    choices = CHOICES[check_choice("task", task, tuple(CHOICES))]
    return next(name for name in choices if name in CLASSICAL or zoo.shipped(name))


def find(name: str) -> Solver[Any]:
    """The solver of that name: `fgp`, `pdhg`, one of the zoo, or a folder that `lmd train` or `lmd import` wrote."""
    return CLASSICAL[name]() if name in CLASSICAL else zoo.load(name)


LEARNED: dict[tuple[str, ...], tuple[tuple[float, str], ...]] = {
    ("squares", "l1", "differences"): ((5e-2, "tv-denoising-fast-7"), (0.0, "tv-denoising-fast-20")),
    ("squares", "lengths", "differences"): ((0.0, "isotropic-tv-denoising"),),
    ("kept squares", "l1", "differences"): ((5e-2, "tv-inpainting-fast-7"), (0.0, "tv-inpainting-fast-15")),
}
"""For problems of these parts: the solver to take for a tolerance of so much or more."""


def solver_for(problem: Problem, tolerance: float) -> Solver[Any]:
    """The solver that `lmd.solve` takes: a learned one for the parts of the problem, or its classical method."""
    for least, name in LEARNED.get(problem.parts, ()):
        if tolerance >= least and zoo.shipped(name):
            return _loaded(name, problem)
    if offers(problem, PDHG().needs):  # near the solution of image problems short primal steps are the better ones
        return PDHG(settle=8.0 if offers(problem, ("differences",)) else 1.0)
    return default_fallback(problem)


def _loaded(name: str, problem: Any) -> Solver[Any]:
    dtype: torch.dtype = problem.noisy.dtype
    return _cached(name, dtype)


@functools.cache
def _cached(name: str, dtype: torch.dtype) -> Solver[Any]:
    return zoo.load(name).to(dtype)
