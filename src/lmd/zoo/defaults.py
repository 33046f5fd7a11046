"""Which solver is taken where none is named, and what names there are beside those of the zoo."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lmd import zoo
from lmd.problems.base import Problem, offers
from lmd.problems.compiled import composed_of, is_denoising, masked_of
from lmd.problems.grids import is_circulant
from lmd.problems.penalised import split_of
from lmd.solvers import (
    FGP,
    LBFGS,
    PDHG,
    Averaged,
    CirculantADMM,
    InteriorPoint,
    ProximalGradient,
    QPInteriorPoint,
    RelaxedPDHG,
)
from lmd.solvers.base import Solver
from lmd.solvers.classical.qp_interior_point import MAX_SIZE
from lmd.solvers.learned.ladder import Ladder
from lmd.tasks.steps import SCALES, STEPS
from lmd.zoo.choice import trained_solvers

CLASSICAL: Mapping[str, Callable[[], Solver[Any]]] = {
    "fgp": lambda: FGP(restart=True),
    "pdhg": lambda: PDHG(settle=8),
}
"""The methods that need no training, by name."""

MAX_COMPOSITE_SIZE = 512
"""Entries of x up to which composites without a matrix P are solved as quadratic programs: beyond, factorising takes
far longer than first-order methods do on all but the hardest."""


def find(name: str) -> Solver[Any]:
    """The solver of that name: `fgp`, `pdhg`, one of the zoo, or a folder that `lmd train` or `lmd import` wrote."""
    return CLASSICAL[name]() if name in CLASSICAL else zoo.load(name)


@functools.lru_cache
def chosen_name(parts: tuple[str, ...], tolerance: float) -> str | None:
    """The trained solver for problems of these parts; None where there is none."""
    return next(iter(trained_solvers(parts, tolerance)), None)


def solver_for(problem: Any, tolerance: float) -> Solver[Any]:
    """The solver that `lmd.solve` takes: a learned one for the parts of the problem, or its classical method."""
    if is_denoising(problem):
        return ladder(problem.f.y.dtype)
    if (model := composed_of(problem, tolerance)) is not None:
        return ladder(model.noisy.dtype)
    if masked_of(problem) is not None:
        return RelaxedPDHG()
    name = chosen_name(problem.parts, tolerance)
    if offers(problem, CirculantADMM().needs) and (name is None or is_circulant(problem.beside)):
        return CirculantADMM()
    if name is not None:
        return _loaded(name, problem)
    if _is_small_program(problem):
        return QPInteriorPoint()
    if not offers(problem, PDHG().needs):
        return _without_dual(problem)
    if not offers(problem, ("data_strong_convexity",)) and offers(problem, RelaxedPDHG().needs):
        return Averaged(RelaxedPDHG())
    return PDHG(settle=8.0 if offers(problem, ("differences",)) else 1.0)


def _is_small_program(problem: Any) -> bool:
    """Whether a problem is a quadratic program for an interior-point method: no grid, and few variables."""
    if not offers(problem, QPInteriorPoint().needs) or offers(problem, ("differences",)):
        return False
    limit = MAX_COMPOSITE_SIZE if problem.quadratic is None else MAX_SIZE
    return bool(problem.start()[0].numel() <= limit)


def _without_dual(problem: Problem) -> Solver[Any]:
    """An interior-point method for SVMs, a proximal gradient method with a penalty or a domain, or else L-BFGS."""
    if offers(problem, InteriorPoint().needs):
        return InteriorPoint()
    return LBFGS() if split_of(problem).term is None else ProximalGradient()


def name_for(problem: Problem, tolerance: float) -> str:
    """What `solver_for` takes, by name; "denoise-steps" for the learned schedules of all lengths."""
    solver, name = solver_for(problem, tolerance), chosen_name(problem.parts, tolerance)
    if isinstance(solver, Ladder):
        return "denoise-steps"
    return name if name is not None and solver is _loaded(name, problem) else type(solver).__name__.lower()


def ladder(dtype: torch.dtype) -> Ladder:
    """Fast gradient projection with learned numbers, of all horizons that ship, by their cost: read once."""
    with _READING:
        return _ladder(dtype)


_READING = threading.Lock()
"""So that of several threads one reads the numbers, and the others wait for them."""


@functools.cache
@torch.inference_mode(False)
def _ladder(dtype: torch.dtype) -> Ladder:
    """Coarser grids are a third of the work again or more, and four iterations to set up."""
    scales = {f"denoise-scales-{n}": (4 + 1.38 * n, gaps) for n, gaps in SCALES.items()}
    named = {**scales, **{f"denoise-steps-{n}": (n, gaps) for n, gaps in STEPS.items()}}
    shipped = sorted((name for name in named if name in zoo.names()), key=lambda name: named[name][0])
    return Ladder([zoo.load(name, bare=True).to(dtype) for name in shipped], [named[name][1] for name in shipped])


def _loaded(name: str, problem: Problem) -> Solver[Any]:
    data = (getattr(problem, attribute) for attribute in problem.batched)
    return _cached(name, next((each.dtype for each in data if each.dtype.is_floating_point), torch.float32))


@functools.cache
@torch.inference_mode(False)
def _cached(name: str, dtype: torch.dtype) -> Solver[Any]:
    return zoo.load(name).to(dtype)
