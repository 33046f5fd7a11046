"""Trained solvers that ship with the package, by name.

A name consists of the task, the form if there are several, the number of iterations, and `fast` for small solvers:
`denoise-20-fast`, `denoise-pair-10`, `svm-quadratic-10`, `lasso-10`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from lmd import solvers
from lmd.core.checks import check_choice
from lmd.core.files import read_json
from lmd.guarantees import DescentSafeguard, Safeguard
from lmd.solvers import BestSoFar
from lmd.solvers.base import Solver
from lmd.solvers.saving import SOLVER_FILE
from lmd.solvers.wrappers import NoWorseThanStart

__all__ = ["card", "load", "names"]

TRAINED = Path(__file__).parent / "trained"

ALIASES = {
    "isotropic-tv-denoising": "denoise-isotropic-10",
    "tv-denoising": "denoise-10",
    "tv-denoising-20": "denoise-20",
    "tv-denoising-fast-7": "denoise-7-fast",
    "tv-denoising-fast-20": "denoise-20-fast",
    "tv-inpainting": "inpaint-10",
}
"""Alternative names, by problem instead of task."""


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all trained solvers that ship with the package."""
    return tuple(sorted(file.parent.name for file in TRAINED.glob(f"*/{SOLVER_FILE}")))


def load(name: str | Path, *, bare: bool = False) -> Solver[Any]:
    """Load a trained solver, with a safeguard, by its name or from a folder that `lmd train` or `lmd import` wrote.

    Args:
        name: A name in `names()`, or a folder.
        bare: Return the solver without a safeguard, for experiments and further training. It may diverge on problems
            that differ from those it was trained on.

    >>> import lmd
    >>> lmd.zoo.load("least-squares-quadratic-10").horizon
    10
    """
    is_folder = isinstance(name, Path) or "/" in name or Path(name).is_dir()
    solver = solvers.load(Path(name) if is_folder else _folder(str(name)))
    return solver if bare else add_safeguard(solver)


def card(name: str) -> dict[str, Any]:
    """Return the card of a trained solver: the command, seed and data it was trained with, and its measured accuracy.

    Args:
        name: A name in `names()`.
    """
    return dict(read_json(_folder(name) / SOLVER_FILE)["card"])


def _folder(name: str) -> Path:
    name = ALIASES.get(name, name)
    return TRAINED / check_choice("solver", name, names())


def add_safeguard(solver: Solver[Any]) -> Solver[Any]:
    """Wrap a learned solver with the cheapest safeguard that makes its answer no worse than its start.

    A solver that ends in a convergent method is compared with its start. Any other solver runs beside a classical
    method, if there is one for the problem. Classical solvers and safeguarded solvers are returned unchanged.
    """
    learned = any(True for _ in solver.parameters())
    if not learned or isinstance(solver, (BestSoFar, DescentSafeguard, NoWorseThanStart, Safeguard)):
        return solver
    wrapper = NoWorseThanStart(solver) if solver.ends_proven else Safeguard(solver, delay=None)
    wrapper.card = solver.card
    return wrapper
