"""Trained solvers that ship with the package, by name, and how to make them again.

A name says the task, the form where there are several, the iterations, and whether it is made for speed:
`denoise-20-fast`, `denoise-pair-10`, `svm-quadratic-10`, `lasso-10`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lmd import solvers, tasks
from lmd.core.checks import check_choice
from lmd.core.deprecation import say_deprecated
from lmd.core.files import read_json
from lmd.guarantees import DescentSafeguard, Safeguard
from lmd.solvers import BestSoFar, NoWorseThanStart
from lmd.solvers.base import Solver
from lmd.solvers.saving import SOLVER_FILE
from lmd.tasks import Recipe, Task
from lmd.training.train import train
from lmd.zoo.measure import data_sha256, measure

__all__ = [
    "card",
    "current_name",
    "guarded",
    "load",
    "names",
    "obtain",
    "old_names",
    "origin",
    "recipe",
    "shipped",
    "ships_for",
    "task_of",
    "train_recipe",
    "written_card",
]

TRAINED = Path(__file__).parent / "trained"
SHIPPED_PRESET = "standard"
"""The preset that the shipped solvers were trained with."""


def names() -> list[str]:
    """Every solver there is a recipe for."""
    return [name for task in tasks.every() for name in task.solvers]


def old_names() -> dict[str, str]:
    """Names that solvers had before, and those they have now."""
    found = [(recipe.formerly, name) for task in tasks.every() for name, recipe in task.solvers.items()]
    return {old: new for old, new in found if old}


def current_name(name: str) -> str:
    """The name that a solver has now; one that it had before is still known, and a warning says so once.

    Args:
        name: Of a solver, now or before.
    """
    new = old_names().get(name, name)
    if new != name and name not in names():
        say_deprecated(f"the solver {name}", f"{new}, as it is called now", removal="1.0")
        return new
    return name


def task_of(name: str) -> Task:
    """The task of a solver.

    Args:
        name: Of a solver.
    """
    chosen = check_choice("solver", current_name(name), tuple(names()))
    return next(task for task in tasks.every() if chosen in task.solvers)


def recipe(name: str) -> Recipe:
    """How a solver is made.

    Args:
        name: Of a solver.
    """
    return task_of(name).solvers[current_name(name)]


def shipped(name: str) -> bool:
    """Whether trained weights of this solver come with the package.

    Args:
        name: Of a solver.
    """
    chosen = current_name(name)
    return chosen in names() and (_folder(chosen) / SOLVER_FILE).is_file()


def _folder(name: str) -> Path:
    return (task_of(name).trained or TRAINED) / current_name(name)


def load(name: str | Path, *, bare: bool = False) -> Solver[Any]:
    """A trained solver, `guarded`: by its name, or from a folder that `lmd train` or `lmd import` wrote.

    `bare` is for experiments and further training: the solver as it was trained, which may do anything on problems
    unlike those it was trained on.

    Args:
        name: Of a solver that ships, or a folder.
        bare: Leave the safeguard out.

    >>> import lmd
    >>> lmd.zoo.load("least-squares-quadratic-10").horizon
    10
    """
    if isinstance(name, Path) or "/" in str(name) or Path(name).is_dir():
        folder = Path(name)
    else:
        if not shipped(str(name)):
            check_choice("solver", current_name(name), tuple(each for each in names() if shipped(each)))
        folder = _folder(name)
    solver = solvers.load(folder)
    return solver if bare else guarded(solver)


def guarded(solver: Solver[Any]) -> Solver[Any]:
    """A learned solver under the wrapper that costs least: its answer is never above its start, whatever comes in.

    One that ends in a method which converges only has to be compared with its start; beside any other runs a classical
    method, where one is known for the problem. Classical solvers and those that are guarded are left as they are.

    Args:
        solver: Any solver.
    """
    learned = any(True for _ in solver.parameters())
    if not learned or isinstance(solver, (BestSoFar, DescentSafeguard, NoWorseThanStart, Safeguard)):
        return solver
    wrapper = NoWorseThanStart(solver) if solver.ends_proven else Safeguard(solver, delay=None)
    wrapper.card = solver.card
    return wrapper


def ships_for(name: str, preset: str) -> bool:
    """Whether the solver that ships is the one this preset would train: the same preset, on the same data.

    Args:
        name: Of a solver.
        preset: "quick", "standard" or "paper".
    """
    if preset != SHIPPED_PRESET or not shipped(name):
        return False
    return bool(card(name)["data"] == recipe(name).source.name(preset))


def card(name: str) -> dict[str, Any]:
    """What is known of a shipped solver: the command, seed and data that made it, and what it was measured at.

    Args:
        name: Of a solver that ships.
    """
    return dict(read_json(_folder(name) / SOLVER_FILE)["card"])


def origin(name: str, preset: str, *, retrain: bool = False) -> str:
    """Where `obtain` takes a solver from, in words.

    Args:
        name: Of a solver.
        preset: "quick", "standard" or "paper".
        retrain: Train also where a solver ships.
    """
    if ships_for(name, preset) and not retrain:
        return f"the solver {name} that ships with lmd"
    return f"training with the {preset} preset in this run"


def obtain(
    name: str, preset: str, *, retrain: bool = False, seed: int = 0, progress: bool | None = None
) -> Solver[Any]:
    """The shipped solver where there is one for this preset and its data, otherwise one trained now; it is bare.

    Args:
        name: Of a solver.
        preset: "quick", "standard" or "paper".
        retrain: Train also where a solver ships.
        seed: Of a training.
        progress: Whether to show a bar; None does on a terminal.
    """
    if ships_for(name, preset) and not retrain:
        return load(name, bare=True)
    return train_recipe(name, preset, seed=seed, progress=progress)


def train_recipe(
    name: str,
    preset: str,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    resume: bool = False,
    progress: bool | None = None,
) -> Solver[Any]:
    """Train a solver of the zoo from its recipe; `out` is where `lmd.train` puts its files.

    Args:
        name: Of a solver.
        preset: "quick", "standard" or "paper".
        out: A folder for the run; None writes nothing.
        seed: Of the solver and the training.
        resume: Go on with the run in `out`.
        progress: Whether to show a bar; None does on a terminal.
    """
    made = recipe(name)
    settings = made.settings[check_choice("preset", preset, tuple(made.settings))]
    solver = made.solver(seed)
    result = train(solver, made.family(preset), out=out, resume=resume, progress=progress, seed=seed, **settings)
    if out is not None and os.environ.get("RANK", "0") == "0":
        history = {"improved": result.improved, "training_seconds": round(result.seconds, 1)}
        solvers.save(result.solver, out, card={**history, **written_card(name, preset, seed, result.solver)})
    return result.solver


def written_card(name: str, preset: str, seed: int, solver: Solver[Any]) -> dict[str, Any]:
    """What is on the card of a solver that was trained from a recipe: how to make it again, and what it is worth.

    Args:
        name: Of a solver.
        preset: That it was trained with.
        seed: That it was trained with.
        solver: As it was trained.
    """
    made, task = recipe(name), task_of(name)
    card: dict[str, Any] = {
        "command": f"lmd train {current_name(name)} --preset {preset} --seed {seed}",
        "seed": seed,
        "data": made.source.name(preset),
        "data_sha256": data_sha256(made, preset),
        "settings": dict(made.settings[preset]),
        "measured": measure(task, made, solver, preset),
    }
    return {**card, "weak": made.weak} if made.weak else card
