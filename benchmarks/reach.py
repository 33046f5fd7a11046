"""How far fast gradient projection with learned numbers gets: the tables of lmd/tasks/steps.py, measured.

    python benchmarks/reach.py [FOLDER...]

For each solver `denoise-steps-N` and `denoise-scales-N` that ships, or in the folders that `lmd train` wrote, and 18
held-out images of 96 x 96 pixels at 1, 5 and 20% noise: the relative gap that is proven after N iterations, at each
roughness that it has numbers for and halfway to the next. The median; or, where that is less, the 65% quantile of that
of x drawn flat, from 13 iterations on: it costs as much as a dozen, and again where it was in vain (isotropic, where it
differs less from image to image, the median), but no less than a solve expects of it, which does not try it otherwise.
With coupled channels the median of x as it is. Beside it that of FGP.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from lmd.tasks.steps import SCALES, STEPS

import lmd
from lmd.problems import TVDenoising, TVModel, add_noise
from lmd.problems.duality import relative_gap
from lmd.reproduction.datasets.images import image_data
from lmd.solvers import FGP
from lmd.solvers.base import State
from lmd.solvers.learned.fgp import LOWEST, PLACES, RATIO, roughness
from lmd.terms import Squares


def noisy_images() -> torch.Tensor:
    """The held-out images, in colour."""
    clean = image_data("photographs").test_images.float() / 255
    clean = clean[:: len(clean) // 6][:6].repeat(3, 1, 1, 1)
    noise = torch.tensor([0.01, 0.05, 0.2]).repeat_interleave(6)
    return add_noise(clean, noise, torch.Generator().manual_seed(0))


COUPLED = {False: 3**0.4, True: 3**0.6}
"""Coupled channels are as rough as others that are rougher by this: `roughness_of` of loop.c, by form."""


def problems(isotropic: bool = False, coupled: bool = False) -> list[Any]:
    """Those at each roughness, and halfway."""
    noisy = noisy_images()
    rough = roughness(TVDenoising(noisy, 1.0)) * (COUPLED[isotropic] if coupled else 1)
    weights = [rough / (LOWEST * RATIO ** (place / 2)) for place in range(PLACES)]
    if coupled:
        return [TVModel(Squares(noisy), weight, isotropic=isotropic, coupled=True) for weight in weights]
    return [TVDenoising(noisy, weight, isotropic) for weight in weights]


WORTH, FLATTER = 13, {False: 8, True: 25}
"""From so many iterations on it is worth to draw x flat; what a solve expects of it, as in loop.c, by form."""


def proven(problem: Any, state: State, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The relative gaps that a solve looks at: of x, and of x drawn flat."""
    assert state.dual_point is not None
    plain = relative_gap(*problem.certified_gap(state.x, state.dual_point))
    if count < WORTH or isinstance(problem, TVModel):
        return plain, torch.full_like(plain, torch.inf)
    return plain, relative_gap(*problem.certified_gap(problem.flattened(state.dual_point), state.dual_point))


def reached(plain: torch.Tensor, flat: torch.Tensor, isotropic: bool) -> float:
    """What counts of the gaps of all images."""
    usual = float(plain.quantile(0.5))
    return min(usual, max(float(flat.quantile(0.5 if isotropic else 0.65)), FLATTER[isotropic] * usual**1.5))


def main() -> None:
    names = [f"denoise-{form}-{n}" for form, table in (("steps", STEPS), ("scales", SCALES)) for n in table]
    at_hand = [name for name in names if name in lmd.zoo.names()]
    instances, easier = problems(), problems(isotropic=True)
    coupled = [problems(isotropic, coupled=True) for isotropic in (False, True)]
    for name in sys.argv[1:] or at_hand:
        solver = lmd.zoo.load(name, bare=True)
        count, rows = solver.horizon or 0, []
        for which, batch in (
            (solver, instances),
            (solver, easier),
            *((solver, each) for each in coupled),
            (FGP(restart=True), instances),
        ):
            with torch.no_grad():
                states = [which.advance(each, which.init(each, each.noisy), count) for each in batch]
                pairs = zip(batch, states, strict=True)
                gaps = [proven(each, state, count) for each, state in pairs]
            isotropic = batch is easier
            rows.append([reached(plain, flat, isotropic) for plain, flat in gaps])
        labels = ("", "isotropic", "coupled", "both", "FGP")
        for label, row in zip(labels, rows, strict=True):
            print(f"{Path(name).name:20s} {label:14s}", ", ".join(f"{gap:.2g}" for gap in row), flush=True)


if __name__ == "__main__":
    main()
