"""Shared parts of the recipes: data, solved instances, training settings, learned pairs, exact mirrors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from lmd.guarantees import minimiser
from lmd.mirrors import ConvPair, Cosine, Rotation, Separable
from lmd.problems import Family, Problem
from lmd.reproduction.datasets.digits import digit_features, digits_data
from lmd.reproduction.tasks.task import Digits, Images, Recipe
from lmd.solvers import CorrectedMirrorDescent, ExactMirrorDescent, LearnedMirrorDescent, LearnedSteps, Solver

WEIGHT = 0.3  # the weight of the total variation, as in the paper, for images in [0, 1]
PHOTOGRAPHS = Images()
CROPS = {"quick": 24, "standard": 48, "paper": 64}
POOLS = {"quick": 60, "standard": 1000, "paper": 4000}  # instances that are drawn and solved before training begins
MAX_CHUNK = 100  # instances that are solved together
WEAK = (
    "Only the last trained iterate is good, not those before it: to stop early, take the solver of fewer iterations. "
)


@dataclass(eq=False)
class SolvedFamily(Family):
    """`size` instances of a family, drawn once with `seed` and solved by `iterations` steps of a classical `solver`.

    Samples have the solutions as `problem.reference`. `finish` maps a problem and the last iterate to the solution,
    such as the smoothest of many. A tenth of the instances is held out. All are drawn and solved on first use.
    """

    family: Family
    size: int
    solver: Solver[Any]
    iterations: int
    seed: int = 0
    finish: Callable[[Any, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        self.name = self.family.name

    @property
    def inside(self) -> Family:
        return self.family

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        return self._choose(range(len(self._solved) // 10, len(self._solved)), batch, generator)

    def held_out(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        return self._choose(range(len(self._solved) // 10), batch, generator)

    def _choose(self, places: range, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        """Draw instances of one of the chunks."""
        device = generator.device
        (place,) = torch.randint(len(places), (1,), generator=generator, device=device).tolist()
        problem, x0 = self._solved[places[place]]
        chosen = torch.randint(len(x0), (batch,), generator=generator, device=device).to(x0.device)
        return problem.select(chosen), x0[chosen]

    @cached_property
    def _solved(self) -> list[tuple[Problem, Tensor]]:
        """At least ten chunks of instances."""
        generator = torch.Generator().manual_seed(self.seed)
        chunk = min(MAX_CHUNK, self.size // 10)
        return [self._solve(*self.family.sample(chunk, generator)) for _ in range(self.size // chunk)]

    @torch.no_grad()
    def _solve(self, problem: Problem, x0: Tensor) -> tuple[Problem, Tensor]:
        state = self.solver.init(problem, x0)
        for _ in range(self.iterations):
            state = self.solver.step(problem, state)
        problem.reference = state.x if self.finish is None else self.finish(problem, state.x)
        return problem, x0


def solved(
    family: Family,
    preset: str,
    solver: Solver[Any],
    share: int = 1,
    iterations: int = 1000,
    finish: Callable[[Any, Tensor], Tensor] | None = None,
) -> Family:
    """Return the family with solutions, in a pool of `POOLS[preset] // share` instances."""
    iterations = 300 if preset == "quick" else iterations
    return SolvedFamily(family, POOLS[preset] // share, solver, iterations=iterations, finish=finish)


def training(objective: str, learning_rate: float, updates: int = 2000, batch: int = 6) -> dict[str, dict[str, Any]]:
    """Return the arguments of `lmd.train` by preset. Solvers with many iterations need a smaller learning rate."""
    shared: dict[str, Any] = {
        "objective": objective,
        "value_weights": "last",
        "learning_rate": learning_rate,
        "schedule": "cosine",
        "clip_gradient": 5.0,
    }
    larger = {"updates": updates, "batch": batch, "warmup": 50, "validation_batch": 50, "checkpoint_every": 200}
    return {
        "quick": {**shared, "updates": 60, "batch": 4, "warmup": 5},
        "standard": {**shared, **larger},
        "paper": {**shared, "updates": 10_000, "batch": 16, "warmup": 50, "validation_batch": 100},
    }


PAIR_IMAGES = Images(large=True)
PAIR_CROPS = {"quick": 16, "standard": 28, "paper": None}  # pixels a side; convolutions also take other sizes

PAIR_TRAINING: dict[str, Any] = {
    "batch": 4,
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "clip_gradient": 100.0,
    "consistency_weight": 0.02,
    "consistency_growth": 1.0,
    "consistency_at": "start",
    "checkpoint_every": 50,
    "validation_batch": 8,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "paper": {
        "updates": 100_000,
        "batch": 10,
        "learning_rate": 1e-5,
        "consistency_at": "start",
        "updates_per_epoch": 100,
        "recompute": True,
    }
}
"""The published settings. Iterations are recomputed in the backward pass to fit into the memory of a workstation."""


def small_pair(scale: float, seed: int) -> CorrectedMirrorDescent:
    """Return a solver whose pair trains on two cores: 8 filters forward, 24 backward, with replicated borders.

    A scale of 0.5 suits steps of about 0.02 in denoising. In inpainting lost pixels have to move farther, and a
    scale of 0.2 makes the same steps longer.
    """
    options: dict[str, Any] = {"backward_filters": 24, "backward_layers": 2, "border": "replicate"}
    mirror = ConvPair(3, 8, 1, scale=scale, seed=seed, **options)
    return CorrectedMirrorDescent(mirror, LearnedSteps(10, 0.02, (1e-3, 1e-1), "min"))


def small_recipe(
    doing: str, scale: float, family: Callable[[str], Family], updates: int, weights: tuple[float, ...]
) -> Recipe:
    """Return the recipe for a CPU. The loss weights the tenth iteration most."""
    return Recipe(
        form="pair",
        iterations=10,
        title=f"corrected adaptive LMD with a learned convolutional pair, for TV {doing}",
        solver=lambda seed: small_pair(scale, seed),
        family=family,
        source=PAIR_IMAGES,
        settings={
            "quick": {**PAIR_TRAINING, "updates": 40},
            "standard": {**PAIR_TRAINING, "updates": updates, "value_weights": weights},
        },
    )


def published_recipe(doing: str, family: Callable[[str], Family]) -> Recipe:
    """Return the recipe of the published networks in the paper's algorithm."""
    return Recipe(
        form="published",
        iterations=10,
        title=f"the paper's adaptive LMD at its published size, for TV {doing}",
        solver=lambda seed: LearnedMirrorDescent(ConvPair.published(seed=seed), 10, 0.01, (1e-3, 1e-1), "last"),
        family=family,
        source=PAIR_IMAGES,
        settings=PUBLISHED,
    )


EXACT_CROPS = {"quick": 24, "standard": 48, "paper": None}
KINDS = 10  # knots of the slopes as a function of frequency, with nine intervals between them


def _stiff(stiffness: float) -> Separable:
    """Return the mirror with slopes 1 + stiffness e: I + stiffness D'D, e the eigenvalues of D'D, D the differences."""
    eigenvalues = 8 * torch.linspace(0, 1, KINDS, dtype=torch.float64).square()
    mirror = Separable(Cosine(KINDS))
    with torch.no_grad():
        mirror.logs.copy_((1 + stiffness * eigenvalues).log()[:, None])
    return mirror


def _imaging(widths: int, seed: int) -> Solver[Any]:
    """Return a solver; its mirrors start as smoothed Hessians, with half of the differences inside the width."""
    solver = ExactMirrorDescent(_stiff(10.0), 10, width=0.6, final_width=0.05, widths=widths)
    for k, width in enumerate(solver.log_widths[:-1, 0].exp().tolist()):
        solver.mirrors[k] = _stiff(0.5 / width)
    return solver


_EXACT_TRAINING: dict[str, Any] = {
    "batch": 8,
    "learning_rate": 3e-2,
    "schedule": "cosine",
    "warmup": 20,
    "clip_gradient": 50.0,
    "value_weights": "last",
    "validation_batch": 16,
}


class _Basis:
    """Quadratic potentials in the fixed basis of the principal directions of features `(n, d)`."""

    def __init__(self, features: Tensor) -> None:
        points = features.double()
        self.moments, directions = torch.linalg.eigh(points.T @ points / len(points))
        self.directions = directions.T.contiguous()

    def mirror(self, floor: float, stiffness: float) -> Separable:
        """Return the mirror with slopes floor + stiffness e, e the second moments along the principal directions."""
        rotation = Rotation.from_matrix(self.directions).float()
        rotation.vectors.requires_grad_(False)
        mirror = Separable(rotation, interval=(1e-4, 1e6))
        with torch.no_grad():
            mirror.logs.copy_((floor + stiffness * self.moments).log()[:, None])
        return mirror


def mean_optimum(family: Any, seed: int) -> Tensor:
    """Return the mean `(n,)` of the optima of eight instances."""
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([minimiser(family.sample(1, generator)[0]) for _ in range(8)]).mean(dim=0)


def exact_svm(source: Digits, seed: int) -> Solver[Any]:
    """Start at the mean of a few optima; mirrors assume that a tenth (later a fiftieth) of the hinges are near 1."""
    family = source.train("standard")
    size, basis = family.subset, _Basis(torch.nn.functional.pad(family.features, (0, 1), value=1.0))
    solver = ExactMirrorDescent(basis.mirror(1.0, 0.2 * size), 10, width=1.0, final_width=0.1, dimension=51)
    with torch.no_grad():
        solver.guess.copy_(mean_optimum(family, seed))
        solver.momenta[1:, 0] = 0.4
    for k, width in enumerate(solver.log_widths[:-1, 0].exp().tolist()):
        solver.mirrors[k] = basis.mirror(1.0, size * 0.1 * 0.2 ** (k / 9) / width)
    return solver


def exact_classifier(source: Digits, seed: int) -> Solver[Any]:
    """Return a solver whose mirrors all start the same, with a curvature of at least 0.001 in every direction."""
    basis = _Basis(digit_features(digits_data("auto")).train_features)
    return ExactMirrorDescent(basis.mirror(1e-3, 1 / float(basis.moments[-1])), 10, dimension=500)


_LINEAR: dict[str, Any] = {"schedule": "cosine", "warmup": 20, "value_weights": "last"}
EXACT_SVM: dict[str, dict[str, Any]] = {
    "quick": {**_LINEAR, "updates": 40, "batch": 20, "learning_rate": 3e-3, "clip_gradient": 1e3},
    "standard": {**_LINEAR, "updates": 600, "batch": 50, "learning_rate": 3e-3, "clip_gradient": 1e3},
}
EXACT_CLASSIFIER: dict[str, dict[str, Any]] = {
    "quick": {**_LINEAR, "updates": 40, "batch": 5, "learning_rate": 3e-2, "clip_gradient": 1.0},
    "standard": {**_LINEAR, "updates": 300, "batch": 10, "learning_rate": 3e-2, "clip_gradient": 1.0},
}


def exact_recipe_for_images(
    doing: str, family: Callable[[str], Family], updates: int, widths: int = 1, **settings: Any
) -> Recipe:
    """Return the recipe of exact mirrors; unlike the recipes of pairs, its loss has no inconsistency term."""
    settings = {**_EXACT_TRAINING, **settings}
    return Recipe(
        form="exact",
        iterations=10,
        title=f"mirror descent with exact mirrors in the cosine basis, for TV {doing}",
        solver=partial(_imaging, widths),
        family=family,
        source=PAIR_IMAGES,
        settings={"quick": {**settings, "updates": 40}, "standard": {**settings, "updates": updates}},
    )


def exact_recipe_for_vectors(
    title: str, solver: Callable[[Digits, int], Solver[Any]], source: Digits, settings: Any
) -> Recipe:
    """Return the recipe of exact mirrors in the basis of the principal directions of the features."""
    return Recipe(
        form="exact",
        iterations=10,
        title=f"mirror descent with exact mirrors in the basis of the features, for {title}",
        solver=partial(solver, source),
        family=source.train,
        source=source,
        settings=settings,
    )
