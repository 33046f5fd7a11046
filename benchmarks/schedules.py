"""Learned schedules of total variation: how far each gets, and the file that the engine reads.

    lmd train denoise-steps-21 --preset standard --seed 0 --out runs/denoise-steps-21     (and so on)
    python benchmarks/schedules.py runs/denoise-steps-21 runs/models-saddle-40 ...

Writes the schedules of these folders into src/lmd/tv/schedules.safetensors, in place of those of the same names, with
the command, the seed and the data that made them. The reach of a schedule of denoising is measured: the relative gap
that a solve proves after it, of 18 held-out images of 96 x 96 pixels at 1, 5 and 20% noise, at each roughness that it
has numbers for and halfway to the next; the 65% quantile where the answer is averaged over constant regions in the
anisotropic form, else the median.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import lmd
from lmd import kernels
from lmd.problems import TVDenoising, TVModel
from lmd.problems.image_families import add_noise
from lmd.reproduction.datasets.images import image_data
from lmd.solvers import LearnedFGP
from lmd.solvers.learned.primal_dual import LOWEST, PLACES, RATIO, roughness
from lmd.terms import Squares
from lmd.tv import match
from lmd.tv.schedules import FILE, Schedule, table_of

COUPLED = {False: 3**0.4, True: 3**0.6}
"""Coupled channels are as rough as others that are rougher by this: `roughness_of` of loop.c, by form."""

MIN_AVERAGED = 13
"""Iterations from which on a solve averages its answer over constant regions."""


def noisy_images() -> Tensor:
    """The held-out images, in colour."""
    clean = image_data("photographs").test_images.float() / 255
    clean = clean[:: len(clean) // 6][:6].repeat(3, 1, 1, 1)
    noise = torch.tensor([0.01, 0.05, 0.2]).repeat_interleave(6)
    return add_noise(clean, noise, torch.Generator().manual_seed(0))


def reach(solver: LearnedFGP, isotropic: bool, coupled: bool) -> list[float]:
    """The relative gap after all iterations, at each roughness."""
    noisy, found = noisy_images(), []
    rough = roughness(TVDenoising(noisy, 1.0)) * (COUPLED[isotropic] if coupled else 1)
    table = table_of(
        [Schedule(solver.numbers.detach().double(), solver.coarse, [[-100.0] * PLACES] * kernels.library().FORMS)]
    )
    for place in range(PLACES):
        weight = rough / (LOWEST * RATIO ** (place / 2))
        plan: Any = match(TVModel(Squares(noisy), weight, isotropic=isotropic, coupled=coupled), 1e-3)
        ends = plan.solve(1e-12, solver.iterations, None, table=table).outcomes
        gaps = torch.tensor([end.gap / max(end.value - end.gap, 1e-300) for end in ends], dtype=torch.float64)
        averaged = solver.iterations >= MIN_AVERAGED and not isotropic and not coupled
        found.append(float(gaps.quantile(0.65 if averaged else 0.5)))
    return found


def main() -> None:
    with safe_open(FILE, "pt") as file:
        tensors, cards = {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118
    for folder in map(Path, sys.argv[1:]):
        solver: Any = lmd.zoo.load(folder, bare=True)
        name = folder.name
        if isinstance(solver, LearnedFGP):
            tensors[name] = solver.numbers.detach().contiguous()
            forms = [(isotropic, coupled) for coupled in (False, True) for isotropic in (False, True)]
            tensors[f"{name}.reach"] = torch.tensor([reach(solver, *form) for form in forms], dtype=torch.float32)
        else:
            tensors[name] = solver.solver.numbers.detach().contiguous()
        cards[name] = json.dumps({key: solver.card[key] for key in ("command", "seed", "data", "data_sha256")})
        print(name)
    save_file(tensors, FILE, metadata=cards)


if __name__ == "__main__":
    main()
