"""Train the shipped solvers from their recipes, and measure them for their cards."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd import __version__, solvers, zoo
from lmd.core.checks import check_choice
from lmd.guarantees.certify import run
from lmd.problems import Family, Problem
from lmd.reproduction import tasks
from lmd.reproduction.tasks import Recipe, Task
from lmd.reproduction.tasks.task import HeldOut, Reference, Source, gap_scale
from lmd.solvers import Solver
from lmd.training.train import train

SEED = 5_000_000
GAP = "relative gap"
DISTANCE = "PSNR to the minimiser, dB"

SHIPPED_PRESET = "standard"  # the preset that the shipped solvers were trained with


def names() -> list[str]:
    """The names of all solvers that have a recipe, shipped or not."""
    return [name for task in tasks.every() for name in task.solvers]


def task_of(name: str) -> Task:
    """The task of a solver, by the solver's name."""
    check_choice("solver", name, tuple(names()))
    return next(task for task in tasks.every() if name in task.solvers)


def recipe(name: str) -> Recipe:
    """The recipe of a solver."""
    return task_of(name).solvers[name]


def ships_for(name: str, preset: str) -> bool:
    """Return whether the shipped solver was trained with this preset on the same data."""
    if preset != SHIPPED_PRESET or name not in zoo.names():
        return False
    return bool(zoo.card(name)["data"] == recipe(name).source.name(preset))


def origin(name: str, preset: str, *, retrain: bool = False) -> str:
    """A phrase saying where `obtain` takes a solver from."""
    if ships_for(name, preset) and not retrain:
        return f"the solver {name} that ships with lmd"
    return f"training with the {preset} preset in this run"


def obtain(
    name: str, preset: str, *, retrain: bool = False, seed: int = 0, progress: bool | None = None
) -> Solver[Any]:
    """Return the shipped solver for this preset and its data if there is one, else train one; without a safeguard."""
    if ships_for(name, preset) and not retrain:
        return zoo.load(name, bare=True)
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
    """Train a solver from its recipe; `out` is the folder of the run, and None writes nothing."""
    chosen = recipe(name)
    settings = chosen.settings[check_choice("preset", preset, tuple(chosen.settings))]
    solver, family = chosen.solver(seed), chosen.family(preset)
    result = train(solver, family, out=out, resume=resume, progress=progress, seed=seed, **settings)
    if out is not None and os.environ.get("RANK", "0") == "0":
        history = {"improved": result.improved, "training_seconds": round(result.seconds, 1)}
        solvers.save(result.solver, out, card={**history, **make_card(name, preset, seed, result.solver)})
    return result.solver


def make_card(name: str, preset: str, seed: int, solver: Solver[Any]) -> dict[str, Any]:
    """The card of a solver that was trained from a recipe: how to train it again, and its measured accuracy."""
    chosen = recipe(name)
    card: dict[str, Any] = {
        "command": f"lmd train {name} --preset {preset} --seed {seed}",
        "seed": seed,
        "data": chosen.source.name(preset),
        "data_sha256": data_sha256(chosen, preset),
        "settings": dict(chosen.settings[preset]),
        "measured": measure(task_of(name), chosen, solver, preset),
    }
    return {**card, "weak": chosen.weak} if chosen.weak else card


def measure(task: Task, recipe: Recipe, solver: Solver[Any], preset: str) -> dict[str, Any]:
    """Return the mean accuracy after the trained iterations on held-out instances.

    The relative gap is (f - f*) / f*, or (f - f*) / f(0) if f* is almost 0. The PSNR, if minimisers are known, is
    10 log10(1 / mean (x - x*)^2). Both are computed in float64 if the source of the instances supports it.
    """
    data = recipe.source.name(preset)
    problem, x0, least, minimiser = _solved(recipe.family, recipe.source, task.reference, task.instances, data, preset)
    result = run(copy.deepcopy(solver).to(x0.dtype), problem, x0, record=False)
    scale = gap_scale(problem, least, x0)
    found: dict[str, Any] = {
        "instances": f"{len(x0)} held out, {' x '.join(map(str, x0.shape[1:]))}",
        "iterations": int(result.iterations.max()),
        GAP: float(((result.values - least) / scale).clamp(min=0).mean()),
    }
    if minimiser is not None:
        mean_square = (result.x - minimiser).square().flatten(1).mean(dim=1)
        found[DISTANCE] = float(-10 * mean_square.clamp(min=1e-30).log10().mean())
    return {**found, "lmd": __version__, "torch": str(torch.__version__)}


@functools.lru_cache
def _solved(
    make: Callable[[str], Family], source: Source, reference: Reference, count: int, data: str, preset: str
) -> tuple[Problem, Tensor, Tensor, Tensor | None]:
    """Return held-out problems, starts, minima and, if known, minimisers; cached for all solvers of a family."""
    problem, x0 = held_out(make, source, count, preset)
    return problem, x0, *reference(problem, x0)


def held_out(make: Callable[[str], Family], source: Source, count: int, preset: str) -> tuple[Problem, Tensor]:
    """Return instances of a family on held-out data, and their starts; the same ones every time."""
    family: Family = source.held_out(make(preset), HeldOut(preset, dtype=torch.float64))
    return family.sample(count, torch.Generator().manual_seed(SEED))


def data_sha256(recipe: Recipe, preset: str) -> str:
    """Return the SHA-256 of the training data of a recipe: images of the train fold, digits, or a matrix."""
    return recipe.source.fingerprint(recipe.family, preset)
