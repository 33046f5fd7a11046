"""A task: the solvers trained for one kind of problem, their data, and the peers they are compared with."""

from __future__ import annotations

import abc
import copy
import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd import guarantees
from lmd.guarantees.certify import run
from lmd.guarantees.reference import Optimum, smoothest_minimiser
from lmd.problems import Family
from lmd.reproduction.datasets import image_data
from lmd.reproduction.datasets.digits import DigitFeatures, digit_features, digits_data
from lmd.solvers import Solver


@dataclass(frozen=True)
class HeldOut:
    """The number of held-out instances, and their dtype; None is the dtype of the family."""

    preset: str  # the one that the solver was trained with: quick, standard or paper
    subsets: int = 2  # data sets of a sample, where instances are subsets of features
    side: int = 32  # the side of the pieces of images, small enough that their minima are quick to have
    images: tuple[Tensor, ...] | None = None  # images in place of the test images
    dtype: torch.dtype | None = None  # of the instances; None is that of the family


class Source(abc.ABC):
    """Where the instances of a family come from."""

    @abc.abstractmethod
    def name(self, preset: str) -> str:
        """The name of the data."""

    @abc.abstractmethod
    def fingerprint(self, family: Callable[[str], Any], preset: str) -> str:
        """Return the SHA-256 of the training data, given the family of each preset."""

    @abc.abstractmethod
    def held_out(self, family: Any, wanted: HeldOut) -> Any:
        """Return the same family on held-out data."""


@dataclass(frozen=True)
class Images(Source):
    """Images, for families with `images`, `crop` and `dtype`: the bundled photographs."""

    large: bool = False  # whether `paper` size is on STL-10, where it is at hand
    whole: bool = False  # whether a solver is for one size of images alone, that of its family

    def name(self, preset: str) -> str:
        return image_data("auto").name if self.large and preset == "paper" else "photographs"

    def fingerprint(self, family: Callable[[str], Any], preset: str) -> str:
        return sha256_of(image_data(self.name(preset)).train_images)

    def train(self, preset: str) -> Tensor:
        """The images to train on, bytes `(n, 3, H, W)`."""
        return image_data(self.name(preset)).train_images

    def held_out(self, family: Any, wanted: HeldOut) -> Any:
        """Return the family on test images."""
        other = copy.copy(family.inside)
        own = image_data(self.name(wanted.preset)).test_images if wanted.images is None else wanted.images
        side = (other.crop or min(other.images[0].shape[1:])) if self.whole else wanted.side
        other.images = list(own)
        other.crop = min([side, *(min(image.shape[1:]) for image in other.images)])
        other.dtype = wanted.dtype or other.dtype
        return other


@dataclass(frozen=True)
class Digits(Source):
    """Subsets of features of digits, for families of one `kind`: MNIST where it is at hand, else the bundled digits."""

    # from features, labels, the pairs of a `subset` and how many `subsets` a sample has to a family
    kind: Callable[..., Any]
    mnist: int  # pairs in an instance of MNIST: the paper's number
    digits: int  # pairs in an instance of the bundled digits: what so few of them allow

    def name(self, preset: str) -> str:
        return "digits" if preset == "quick" else digits_data("auto").name

    def fingerprint(self, family: Callable[[str], Any], preset: str) -> str:
        return digits_data(self.name(preset)).fingerprint()

    def features(self, preset: str) -> DigitFeatures:
        """The features of both folds; the result says which data they are from."""
        return digit_features(digits_data(self.name(preset)))

    def train(self, preset: str, **settings: Any) -> Any:
        """The family on the features to train on."""
        features = self.features(preset)
        return self._family(features.data_name, features.train_features, features.train_labels, **settings)

    def held_out(self, family: Any, wanted: HeldOut) -> Any:
        """Return the family on the features of the test fold."""
        features = self.features(wanted.preset)
        tested = features.test_features.to(wanted.dtype or features.test_features.dtype)
        return self._family(features.data_name, tested, features.test_labels, subsets=wanted.subsets)

    def _family(self, data: str, features: Tensor, labels: Tensor, **settings: Any) -> Any:
        return self.kind(features, labels, subset=self.mnist if data == "mnist" else self.digits, **settings)


@dataclass(frozen=True)
class Drawn(Source):
    """Random numbers: every sample is new, except for arrays that all instances share."""

    words: str  # what the numbers are called
    arrays: tuple[str, ...] = ()  # their names in the family

    def name(self, preset: str) -> str:
        return self.words

    def fingerprint(self, family: Callable[[str], Any], preset: str) -> str:
        drawn = family(preset).inside
        return sha256_of(*(getattr(drawn, name) for name in self.arrays))

    def held_out(self, family: Any, wanted: HeldOut) -> Any:
        other = copy.copy(family.inside)
        for name in self.arrays:
            array = getattr(other, name)
            setattr(other, name, array.to(wanted.dtype or array.dtype))
        return other


def sha256_of(*arrays: Tensor) -> str:
    """The SHA-256 of shapes, dtypes and numbers."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((tuple(array.shape), str(array.dtype))).encode())
        digest.update(array.contiguous().numpy().data)
    return digest.hexdigest()


Reference = Callable[[Any, Tensor], tuple[Tensor, Tensor | None]]
"""Maps a problem and starting points to its minima `(B,)` and, if they are proven, its minimisers."""


def optimum(problem: Any) -> Optimum:
    """The certified optima of a batch, from the cache where they are in it."""
    return guarantees.optimum(problem, guarantees.OptimumCache())


def minimum(problem: Any) -> Tensor:
    """The certified minima `(B,)`."""
    return guarantees.minimum(problem, guarantees.OptimumCache())


def minimiser(problem: Any) -> Tensor:
    """The certified minimisers `(B, ...)`; where there are many, as in inpainting, the smoothest."""
    return smoothest_minimiser(problem, guarantees.OptimumCache())


def gap_scale(problem: Any, minima: Tensor, like: Tensor) -> Tensor:
    """Return the scale of relative gaps `(B,)`: the minima, or the values at x = 0 if the minima are almost 0."""
    at_zero: Tensor = problem.value(like.new_zeros(like.shape))
    return minima.where((minima > 1e-6 * at_zero) | torch.isinf(at_zero), at_zero)


def known(problem: Any, x0: Tensor) -> tuple[Tensor, None]:
    """Return the minima by `lmd.guarantees.minimum`."""
    return minimum(problem), None


@dataclass(frozen=True)
class CertifiedBy:
    """Minima, certified to a `tolerance` by a classical solver; with `unique`, minimisers as well.

    A tenth of the gap that a learned solver is expected to leave is enough: for tomographies less would take minutes.
    """

    solver: Solver[Any]  # one that keeps dual points
    tolerance: float  # the relative gap to be proven
    unique: bool = False  # whether there is one minimiser, so that points can be compared with it

    def __call__(self, problem: Any, x0: Tensor) -> tuple[Tensor, Tensor | None]:
        found = run(self.solver, problem, x0, tolerance=self.tolerance)
        return found.values, found.x if self.unique else None


Call = Callable[[Any], Any]  # from a rung of the ladder to an answer in the peer's own form
COUNTS = (1, 2, 3, 5, 10, 20, 35, 50, 100, 200, 500, 1000)
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10)  # for peers that stop at one; COUNTS for the others
EXPERIMENTS = "pip install 'lmd[experiments]'"  # how to get the peers that experiments need too
ONE_THREAD = "-1-thread"  # how the name of a peer ends that is there with all threads too


@dataclass(frozen=True)
class Peer:
    """A solver of another package, called whole for each number of iterations or each tolerance."""

    name: str  # what it is called in tables
    package: str  # what is imported
    ladder: tuple[float, ...]  # the numbers of iterations, or the tolerances, to call it with: the cheapest first
    prepare: Callable[[Any], Call]  # from a problem to what is timed: data in the peer's own form is made here, untimed
    finish: Callable[[Any, Any], Tensor]  # from the problem and the answer to x, untimed
    hint: str = "pip install 'lmd[bench]'"  # how to get it

    @property
    def installed(self) -> bool:
        """Whether the package can be found, without importing it."""
        return importlib.util.find_spec(self.package) is not None


def stacked(problem: Any, answers: Any) -> Tensor:
    """Return a batch `(B, ...)` from one array for each instance, in the precision of the arrays."""
    return torch.as_tensor(np.stack(answers))


def channels_last(problem: Any, answers: Any) -> Tensor:
    """Return a batch `(B, C, H, W)` from images `(H, W, C)`."""
    return stacked(problem, answers).movedim(-1, 1)


NOISE_LEVELS = (0.01, 0.05, 0.1, 0.2)  # the levels at which a family whose noise has a level is harder


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that `lmd train NAME` needs to train a solver."""

    title: str  # what the solver is, in a few words
    solver: Callable[[int], Solver[Any]]  # the untrained solver, from a seed
    family: Callable[[str], Family]  # what it is trained on, by preset
    source: Source  # where the instances of the family come from. A solver ships for the data that its card names
    settings: Mapping[str, Mapping[str, Any]]  # arguments of `lmd.train` by preset
    iterations: int  # how many it is trained for
    form: str = ""  # what tells it from other solvers of the task, such as its mirror; nothing for the usual one
    fast: bool = False  # whether it is made for speed, with smaller kernels than the others
    # whether it is one of many horizons that `lmd.solve` chooses from: the bench has them through it alone
    rung: bool = False
    weak: str = ""  # where the trained solver is weak, for its card

    def name(self, task: str) -> str:
        """Task, form, iterations, speed: `denoise-20-fast`, `svm-quadratic-10`."""
        words = (task, self.form, str(self.iterations), "fast" if self.fast else "")
        return "-".join(word for word in words if word)


# from clean images `(n, C, H, W)`, or n alone, a noise level and randomness to a problem of n instances
Make = Callable[[Tensor, float, torch.Generator], Any]


@dataclass(frozen=True)
class Contest:
    """What `lmd bench` needs for a problem: instances, noise levels, grids of settings, and peers."""

    make: Make  # from clean images, a noise level and randomness to a problem
    noise: tuple[int, ...] = (5,)  # percent
    steps: float = 0.01  # what the grids of gradient methods are multiples of; 0 for none of these methods
    tau: float = 0.2  # what the grid of PDHG is multiples of; 0 for the step that it takes by itself
    peers: tuple[Peer, ...] = ()  # other people's solvers for it
    # whether optima are those of the room `reference`, which keeps them; else `lmd.solve` proves them in float64
    kept: bool = True
    sized: bool = True  # whether it is about images, which `sizes` may enlarge


def conditions(family: Family) -> dict[str, Family]:
    """Return harder families by name: with 1 to 20% noise, or else with shifted data or more distant starts."""
    noisy = {f"{noise:.0%} noise": family.with_noise(noise) for noise in NOISE_LEVELS}
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

    name: str  # its name, which those of its solvers begin with
    title: str  # what it is, in a few words
    recipes: tuple[Recipe, ...] = ()  # those of its trained solvers
    reference: Reference = known  # how certified minima are found for the cards
    instances: int = 8  # how many held-out instances are on a card
    slow: bool = False  # whether certified minima take too long for experiments of quick size
    contest: Contest | None = None  # what the bench does with it; None where it has no part in it
    models: Mapping[str, Contest] = field(default_factory=dict)  # contests of the models that it serves, by their names
    # harder families, by what is harder about them, from the held-out one
    conditions: Callable[[Family], dict[str, Family]] = conditions

    @cached_property
    def solvers(self) -> dict[str, Recipe]:
        """The recipes by name."""
        return {recipe.name(self.name): recipe for recipe in self.recipes}
