"""The classical methods that a task is compared with, each with the grid that it is tuned over."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from lmd.operators import Stack
from lmd.problems.base import offers
from lmd.solvers import FGP, LBFGS, PDHG, Adam, GradientDescent, Nesterov, ProjectedGradient, RelaxedPDHG, Solver
from lmd.solvers.classical.relaxed_pdhg import RATIO

CLASSICAL = ("gd", "nesterov", "pdhg", "relaxed-pdhg", "adam", "lbfgs", "fgp")
"""The names of the methods that need no training."""

DUAL = ("pdhg", "relaxed-pdhg", "fgp")
"""Those of them that keep dual points, and so can prove what they have."""

SUBGRADIENTS = 100
"""How many iterations methods get that know no more than subgradients; none of them comes nearer with more."""


@dataclass(frozen=True)
class Setting:
    """A solver with one choice of what it is tuned over."""

    solver: Solver[Any]
    """As it is set."""

    balance: float = 1.0
    """What PDHG multiplies the `balance` of a problem by, where it has one."""

    def adapt(self, problem: Any) -> Any:
        """The same problem as this setting wants it."""
        if self.balance == 1.0:
            return problem
        adapted, old = copy.copy(problem), problem.operator
        adapted.operator = Stack(old.parts, old.shapes, (1.0, self.balance * problem.balance))
        return adapted


@dataclass(frozen=True)
class Method:
    """A name and what it is tuned over: one setting for a method that has nothing to tune."""

    name: str
    """What it is called in tables."""

    settings: tuple[Setting, ...]
    """Those that it is tuned over."""

    most: int
    """How many iterations it is run for at most."""


def classical_methods(problem: Any, steps: float, tau: float, most: int) -> list[Method]:
    """Our own classical methods for a problem, on grids around a step of gradient methods and one of PDHG.

    Relaxed PDHG and FGP are compiled for most models; PDHG itself is not.
    """
    found = _by_subgradients(problem, steps, most) if steps else []
    if offers(problem, PDHG().needs):
        found.append(Method("pdhg", _pdhg(problem, tau), most))
    if offers(problem, RelaxedPDHG().needs):
        ratios = tuple(Setting(RelaxedPDHG(ratio=m * RATIO)) for m in (0.1, 0.3, 1, 3, 10))
        found.append(Method("relaxed-pdhg", ratios, most))
    if offers(problem, FGP().needs):
        grid = [FGP(m, restart) for m in (1.0, 1.5, 2.0) for restart in (False, True)]
        found.append(Method("fgp", tuple(map(Setting, grid)), most))
    return found


def _by_subgradients(problem: Any, steps: float, most: int) -> list[Method]:
    descent = GradientDescent if problem.domain is None else ProjectedGradient
    wide = [steps * m for m in (0.3, 1, 3, 10, 30)]
    few = min(most, SUBGRADIENTS)
    found = [
        Method("gd", tuple(Setting(descent(step)) for step in wide), few),
        Method("nesterov", tuple(Setting(Nesterov(step)) for step in wide), few),
    ]
    if problem.domain is None:  # neither of these knows how to stay in a box
        adam = tuple(Setting(Adam(step)) for step in (0.003, 0.01, 0.02, 0.05, 0.1))
        lbfgs = tuple(Setting(LBFGS(memory)) for memory in (5, 20))
        found += [Method("adam", adam, few), Method("lbfgs", lbfgs, min(most, SUBGRADIENTS // 2))]
    return found


def _pdhg(problem: Any, tau: float) -> tuple[Setting, ...]:
    if not tau:
        own = float(torch.as_tensor(PDHG().steps(problem)[0], dtype=torch.float64).mean())
        return tuple(Setting(PDHG(own * m)) for m in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10))
    taus = [tau * m for m in (0.25, 0.5, 1, 2, 4)]
    if offers(problem, ("balance",)):
        return tuple(Setting(PDHG(tau), balance) for tau in taus for balance in (0.5, 1.0, 2.0))
    settles = (1.0,) if offers(problem, ("data_strong_convexity",)) else (1.0, 8.0)
    return tuple(Setting(PDHG(tau, settle=settle)) for tau in taus for settle in settles)
