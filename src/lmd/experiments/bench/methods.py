"""What the bench runs: instances of every problem, our own classical methods with their grids, and the learned ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd import zoo
from lmd.operators import Blur, ParallelBeam, Stack
from lmd.problems import (
    CompositeProblem,
    Lasso,
    LassoFamily,
    TVDeblurring,
    TVDenoising,
    TVInpainting,
    TVReconstruction,
    TVTomography,
    add_noise,
    gaussian_kernel,
    random_masks,
)
from lmd.solvers import FGP, LBFGS, PDHG, Adam, GradientDescent, Nesterov, ProjectedGradient, Solver
from lmd.zoo.imaging_recipes import WEIGHT

BLUR = 1.5
ANGLES = 30
KEPT = 0.8
NOISE = (1, 2, 5, 10, 15, 20)
"""Percent."""

CLASSICAL = ("gd", "nesterov", "pdhg", "adam", "lbfgs", "fgp")
"""The names of the methods that need no training."""

SUBGRADIENTS = 100
"""How many iterations methods get that know no more than subgradients; none of them comes nearer with more."""

Make = Callable[[Tensor, float, torch.Generator], Any]
"""From clean images `(n, C, H, W)`, a noise level and randomness to a problem."""


def _denoise(images: Tensor, noise: float, generator: torch.Generator) -> TVDenoising:
    return TVDenoising(add_noise(images, noise, generator), WEIGHT)


def _denoise_isotropic(images: Tensor, noise: float, generator: torch.Generator) -> TVDenoising:
    return TVDenoising(add_noise(images, noise, generator), WEIGHT, isotropic=True)


def _inpaint(images: Tensor, noise: float, generator: torch.Generator) -> TVInpainting:
    mask = random_masks(len(images), images.shape[2], images.shape[3], KEPT, generator).to(images)
    return TVInpainting(add_noise(mask * images, noise, generator), mask, WEIGHT)


def _deblur(images: Tensor, noise: float, generator: torch.Generator) -> TVDeblurring:
    kernel = gaussian_kernel(BLUR)
    blurred = Blur(kernel, images.shape[2], images.shape[3])(images)
    return TVDeblurring(add_noise(blurred, noise, generator), kernel, WEIGHT)


def _tomography(images: Tensor, noise: float, generator: torch.Generator) -> TVTomography:
    size = (images.shape[2], images.shape[3])
    beams = ParallelBeam(*size, angles=ANGLES)
    return TVTomography(add_noise(beams(images), noise, generator), size, WEIGHT, beams=beams)


def _lasso(images: Tensor, noise: float, generator: torch.Generator) -> Lasso:
    return LassoFamily(noise=noise).sample(len(images), generator)[0]


@dataclass(frozen=True)
class Task:
    """A problem of the bench: how to make it, at which noise, and which learned solvers are for it."""

    make: Make
    noise: tuple[int, ...]
    learned: tuple[str, ...] = ()
    """Names in the zoo; one that ends in * stands for all that begin so."""

    steps: float = 0.01
    """What the grids of gradient methods are multiples of."""

    tau: float = 0.2
    """What the grid of PDHG is multiples of."""


TASKS: dict[str, Task] = {
    "denoise": Task(_denoise, NOISE, ("tv-denoising*", "denoise")),
    "denoise-isotropic": Task(_denoise_isotropic, (5,), ("isotropic-tv-denoising",)),
    "inpaint": Task(_inpaint, (5,), ("tv-inpainting*", "inpaint")),
    "deblur": Task(_deblur, (5,), ("tv-deblurring*",), tau=0.04),
    "tomography": Task(_tomography, (5,), ("tv-tomography*",), steps=0.001, tau=0.012),
    "lasso": Task(_lasso, (5,), ("lasso*",), steps=0.1, tau=0.5),
}
"""Every problem of the bench, by name. A learned solver is registered in its line."""


@dataclass(frozen=True)
class Setting:
    """A solver with one choice of what it is tuned over."""

    solver: Solver[Any]
    balance: float = 1.0
    """What PDHG multiplies the `balance` of a reconstruction by."""

    def adapt(self, problem: Any) -> Any:
        """The same problem as this setting wants it."""
        if self.balance == 1.0:
            return problem
        assert isinstance(problem, TVReconstruction)
        adapted, old = copy.copy(problem), problem.operator
        adapted.operator = Stack(old.parts, old.shapes, (1.0, self.balance * problem.balance))
        return adapted


@dataclass(frozen=True)
class Method:
    """A name and what it is tuned over: one setting for a method that has nothing to tune."""

    name: str
    settings: tuple[Setting, ...]
    most: int
    """How many iterations it is run for at most."""


def methods_for(task: str, problem: CompositeProblem, most: int) -> list[Method]:
    """Our own methods for a problem: classical ones with their grids, learned ones as they ship."""
    base = TASKS[task]
    descent = GradientDescent if problem.domain is None else ProjectedGradient
    wide = [base.steps * m for m in (0.3, 1, 3, 10, 30)]
    found = [
        Method("gd", tuple(Setting(descent(step)) for step in wide), min(most, SUBGRADIENTS)),
        Method("nesterov", tuple(Setting(Nesterov(step)) for step in wide), min(most, SUBGRADIENTS)),
        Method("pdhg", _pdhg(base, problem), most),
    ]
    if problem.domain is None:  # neither of these knows how to stay in a box
        found += [
            Method(
                "adam", tuple(Setting(Adam(step)) for step in (0.003, 0.01, 0.02, 0.05, 0.1)), min(most, SUBGRADIENTS)
            ),
            Method("lbfgs", tuple(Setting(LBFGS(memory)) for memory in (5, 20)), min(most, SUBGRADIENTS // 2)),
        ]
    if problem.data_strong_convexity is not None:
        grid = [FGP(m, restart) for m in (1.0, 1.5, 2.0) for restart in (False, True)]
        found.append(Method("fgp", tuple(map(Setting, grid)), most))
    return [*found, *_learned(base, most)]


def _pdhg(base: Task, problem: CompositeProblem) -> tuple[Setting, ...]:
    taus = [base.tau * m for m in (0.25, 0.5, 1, 2, 4)]
    if isinstance(problem, TVReconstruction):
        return tuple(Setting(PDHG(tau), balance) for tau in taus for balance in (0.5, 1.0, 2.0))
    settles = (1.0,) if problem.data_strong_convexity is not None else (1.0, 8.0)
    return tuple(Setting(PDHG(tau, settle=settle)) for tau in taus for settle in settles)


def learned_names(task: Task) -> list[str]:
    """What the bench calls the learned solvers of a task: lmd- and the name in the zoo, of those that ship."""
    return [
        f"lmd-{name}"
        for pattern in task.learned
        for name in zoo.names()
        if zoo.shipped(name) and (name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])))
    ]


def _learned(base: Task, most: int) -> list[Method]:
    """The learned solvers; learned mirror descent on F itself, which has no proven rule to go on, up to 50."""
    found = []
    for name in learned_names(base):
        solver = zoo.load(name.removeprefix("lmd-"), bare=True)
        found.append(Method(name, (Setting(solver),), most if solver.ends_proven else min(most, 50)))
    return found
