"""What a trained solver is worth on problems it has not seen: the numbers on its card, measured alike for all."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmd import __version__
from lmd.guarantees.certify import run
from lmd.problems import Family, Problem
from lmd.solvers import Solver
from lmd.tasks.optima import Reference, gap_scale
from lmd.tasks.sources import HeldOut, Source
from lmd.tasks.task import Recipe, Task

SEED = 5_000_000
GAP = "relative gap"
DISTANCE = "PSNR to the minimiser, dB"


def measure(task: Task, recipe: Recipe, solver: Solver[Any], preset: str) -> dict[str, Any]:
    """Where the trained iterations lead, a mean over held-out instances of what a recipe trains on.

    The relative gap is (f - f*) / f*, with f(0) in place of f* where that is 0; the PSNR, where minimisers are known,
    is 10 log10(1 / mean (x - x*)^2). All is in float64, where the source of the instances has it.
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
    """Held-out problems, starts, minima and minimisers where they are known: the same for all solvers of a family."""
    problem, x0 = held_out(make, source, count, preset)
    return problem, x0, *reference(problem, x0)


def held_out(make: Callable[[str], Family], source: Source, count: int, preset: str) -> tuple[Problem, Tensor]:
    """Problems like those of a family, from data that it does not train on; the same ones every time."""
    family: Family = source.held_out(make(preset), HeldOut(preset, dtype=torch.float64))
    return family.sample(count, torch.Generator().manual_seed(SEED))


def data_sha256(recipe: Recipe, preset: str) -> str:
    """The SHA-256 of what a recipe trains on: the images of the train fold, the digits, or a matrix."""
    return _hash(recipe.family, recipe.source, recipe.source.name(preset), preset)


@functools.lru_cache
def _hash(make: Callable[[str], Family], source: Source, data: str, preset: str) -> str:
    return source.fingerprint(make(preset), preset)
