"""Which solver is taken where none is named, and what names there are beside those of the zoo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lmd import tv, zoo
from lmd.problems.base import Problem, offers
from lmd.problems.penalised import split_of
from lmd.solvers import FGP, LBFGS, PDHG, ProximalGradient, RelaxedPDHG
from lmd.solvers.base import Solver
from lmd.solvers.classical.circulant_admm import CirculantADMM
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.solvers.classical.qp_interior_point import MAX_SIZE, QPInteriorPoint
from lmd.solvers.wrappers import Averaged
from lmd.terms.wrappers import Boxed

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


def solver_for(problem: Any) -> Solver[Any]:
    """The solver that `lmd.solve` takes where the compiled engine has no plan for a problem."""
    if offers(problem, CirculantADMM().needs):
        return CirculantADMM()
    if _is_small_program(problem):
        return QPInteriorPoint()
    if not offers(problem, PDHG().needs):
        return _without_dual(problem)
    if not offers(problem, ("data_strong_convexity",)) and offers(problem, RelaxedPDHG().needs):
        return Averaged(tv.PrimalDual())
    has_grid = offers(problem, ("differences",))
    if has_grid and offers(problem, FGP().needs) and not isinstance(problem.f, Boxed):
        return FGP(restart=True)  # in a box PDHG leaves x at its ends exactly
    return PDHG(settle=8.0 if has_grid else 1.0)


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
    """The name of the method that `lmd.solve` takes for a problem and a tolerance."""
    plan = tv.match(problem, tolerance)
    if plan is not None and not isinstance(plan, Solver):
        name = type(plan.method).__name__.lower()
        return "learned-fgp" if name == "fgp" else name
    return type(solver_for(problem) if plan is None else plan).__name__.lower()
