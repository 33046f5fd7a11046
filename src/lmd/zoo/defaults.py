"""Which solver `lmd solve` takes where none is named, and what names it knows: one place to change the choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lmd import zoo
from lmd.checks import check_choice
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
