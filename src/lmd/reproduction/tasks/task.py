"""What a task is: all that is known about one kind of problem, in a record that everything else reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmd.problems import Family
from lmd.reproduction.tasks.optima import Reference, known
from lmd.reproduction.tasks.peers import Peer
from lmd.reproduction.tasks.sources import Source
from lmd.solvers import Solver

NOISE = (0.01, 0.05, 0.1, 0.2)
"""The levels at which a family whose noise has a level is harder."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `lmd train NAME` does: everything needed to make a trained solver again."""

    title: str
    """What the solver is, in a few words."""

    solver: Callable[[int], Solver[Any]]
    """The untrained solver, from a seed."""

    family: Callable[[str], Family]
    """What it is trained on, by preset."""

    source: Source
    """Where the instances of the family come from. A solver ships for the data that its card names."""

    settings: Mapping[str, Mapping[str, Any]]
    """Arguments of `lmd.train` by preset."""

    iterations: int
    """How many it is trained for."""

    form: str = ""
    """What tells it from other solvers of the task, such as its mirror; nothing for the usual one."""

    fast: bool = False
    """Whether it is made for speed, with smaller kernels than the others."""

    rung: bool = False
    """Whether it is one of many horizons that `lmd.solve` chooses from: the bench has them through it alone."""

    weak: str = ""
    """Where the trained solver is weak, for its card."""

    def name(self, task: str) -> str:
        """Task, form, iterations, speed: `denoise-20-fast`, `svm-quadratic-10`."""
        words = (task, self.form, str(self.iterations), "fast" if self.fast else "")
        return "-".join(word for word in words if word)


Make = Callable[[Tensor, float, torch.Generator], Any]
"""From clean images `(n, C, H, W)`, a noise level and randomness to a problem of n instances; what is not about images
takes their number alone."""


@dataclass(frozen=True)
class Contest:
    """What `lmd bench` does with a problem: how instances are made, at which noise, the grids, and the peers."""

    make: Make
    """From clean images, a noise level and randomness to a problem."""

    noise: tuple[int, ...] = (5,)
    """Percent."""

    steps: float = 0.01
    """What the grids of gradient methods are multiples of; 0 for none of these methods."""

    tau: float = 0.2
    """What the grid of PDHG is multiples of; 0 for the step that it takes by itself."""

    peers: tuple[Peer, ...] = ()
    """Other people's solvers for it."""

    kept: bool = True
    """Whether optima are those of the room `reference`, which keeps them; else `lmd.solve` proves them in float64."""

    sized: bool = True
    """Whether it is about images, which `sizes` may enlarge."""


def conditions(family: Family) -> dict[str, Family]:
    """What is harder: 1 to 20% noise, where noise has a level; else shifted data, or starts that are farther away."""
    noisy = {f"{noise:.0%} noise": family.with_noise(noise) for noise in NOISE}
    found = {condition: other for condition, other in noisy.items() if other is not None}
    if found:
        return found
    shifted = getattr(family, "shifted", family.harder)
    return {"held out": family, **shifted()}


@dataclass(frozen=True, kw_only=True)
class Task:
    """All that is known about one kind of problem.

    A package of your own adds one by an entry point of the group `lmd.tasks` that names it: examples/own_task.py.
    """

    name: str
    """Its name, which those of its solvers begin with."""

    title: str
    """What it is, in a few words."""

    recipes: tuple[Recipe, ...] = ()
    """Those of its trained solvers."""

    reference: Reference = known
    """How certified minima are found for the cards."""

    instances: int = 8
    """How many held-out instances are on a card."""

    slow: bool = False
    """Whether certified minima take too long for experiments of quick size."""

    contest: Contest | None = None
    """What the bench does with it; None where it has no part in it."""

    models: Mapping[str, Contest] = field(default_factory=dict)
    """Contests of the models that it serves, by their names."""

    conditions: Callable[[Family], dict[str, Family]] = conditions
    """Harder families, by what is harder about them, from the held-out one."""

    @cached_property
    def solvers(self) -> dict[str, Recipe]:
        """The recipes by name."""
        return {recipe.name(self.name): recipe for recipe in self.recipes}
