"""When an iterate of a reference method is good enough: its duality gap proves it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from lmd.errors import LmdError
from lmd.problems.composite import Composite
from lmd.reference.optimum import Optimum

ROUNDING = 1e-15
"""A gap of this, relative to the value at 0, is rounding: where the minimum is 0, no relative gap can be had."""

Pair = tuple[Tensor, Tensor]
"""A point x and a dual point, each of a batch of one."""


class Effort(NamedTuple):
    """How long to look for a proof, counted in looks at an iterate."""

    goal: float
    """The relative duality gap to stop at."""

    tolerance: float
    """The one that is good enough after `patience` looks, and what a cached optimum must prove."""

    patience: int
    looks: int
    """When to give up."""


def proven(problem: Composite, x: Tensor, dual: Tensor, tolerance: float) -> bool:
    """Whether the duality gap proves x a minimiser, to a relative tolerance or to rounding; a NaN proves nothing."""
    if float(problem.relative_gap(x, dual)) <= tolerance:
        return True
    size = float(problem.value(torch.zeros_like(x)))  # infinite where 0 breaks a constraint
    return math.isfinite(size) and float(problem.gap(x, dual)) <= ROUNDING * size


def first_proven(problem: Composite, iterates: Iterable[Pair], effort: Effort) -> Pair:
    """The first of the iterates, each a point and a dual point, that proves enough."""
    gap = float("nan")
    for look, (x, dual) in enumerate(islice(iterates, effort.looks), 1):
        if proven(problem, x, dual, effort.goal if look < effort.patience else effort.tolerance):
            return x, dual
        gap = float(problem.relative_gap(x, dual))
    raise LmdError(f"{type(problem).__name__}: no certified minimiser, the relative duality gap stays at {gap:.1e}")


def certified(problem: Composite, x: Tensor, dual: Tensor) -> Optimum:
    """A point and the lower bound that a dual point proves."""
    value = problem.value(x)
    return Optimum.of(x, value, value - problem.gap(x, dual))
