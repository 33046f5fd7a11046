"""What a recipe is: everything needed to make a trained solver of the zoo again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmd.problems import Family
from lmd.solvers import Solver


@dataclass(frozen=True)
class Recipe:
    """What `lmd train NAME` does."""

    title: str
    solver: Callable[[int], Solver[Any]]
    """The untrained solver, from a seed."""

    family: Callable[[str], Family]
    """What it is trained on, by preset."""

    data: Callable[[str], str]
    """The same in words. A solver ships for the data that its card names."""

    settings: Mapping[str, Mapping[str, Any]]
    """Arguments of `lmd.train` by preset."""

    weak: str = ""
    """Where the trained solver is weak, for its card."""
