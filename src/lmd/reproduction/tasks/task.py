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
    """The held-out instances that are wanted: their preset, sizes, images and dtype."""

    preset: str  # the preset that the solver was trained with: quick, standard or paper
    subsets: int = 2  # number of data sets per sample, if instances are subsets of features
    side: int = 32  # the side of crops of images, small so that their minima are found quickly
    images: tuple[Tensor, ...] | None = None  # images in place of the test images
    dtype: torch.dtype | None = None  # of the instances; None is the dtype of the family


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
    """Images, for families with attributes `images`, `crop` and `dtype`: the bundled photographs, or STL-10."""

    large: bool = False  # whether the preset `paper` uses STL-10 if it is available
    whole: bool = False  # whether a solver is for a single size of images, the one of its family

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
    """Subsets of digit features, for families of one `kind`: of MNIST if available (not at quick size) or bundled."""

    # called as kind(features, labels, subset=number of pairs, subsets=data sets per sample) to make a family
    kind: Callable[..., Any]
    mnist: int  # pairs in an instance of MNIST: the paper's number
    digits: int  # pairs in an instance of the bundled digits, of which there are few

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

    words: str  # the name of the data
    arrays: tuple[str, ...] = ()  # attributes of the family that hold these arrays

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
    """Return the SHA-256 of the shapes, dtypes and entries of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((tuple(array.shape), str(array.dtype))).encode())
        digest.update(array.contiguous().numpy().data)
    return digest.hexdigest()


Reference = Callable[[Any, Tensor], tuple[Tensor, Tensor | None]]
"""Maps a problem and starting points to its minima `(B,)` and, if they are proven, its minimisers."""


def optimum(problem: Any) -> Optimum:
    """Return the certified optima of a batch; they are cached in a folder."""
    return guarantees.optimum(problem, guarantees.OptimumCache())


def minimum(problem: Any) -> Tensor:
    """The certified minima `(B,)`."""
    return guarantees.minimum(problem, guarantees.OptimumCache())


def minimiser(problem: Any) -> Tensor:
    """Return the certified minimisers `(B, ...)`; the smoothest ones if there are many, as in inpainting."""
    return smoothest_minimiser(problem, guarantees.OptimumCache())


def gap_scale(problem: Any, minima: Tensor, like: Tensor) -> Tensor:
    """Return the scale of relative gaps `(B,)`: the minima, or the values at x = 0 if the minima are almost 0."""
    at_zero: Tensor = problem.value(like.new_zeros(like.shape))
    return minima.where((minima > 1e-6 * at_zero) | torch.isinf(at_zero), at_zero)


def known(problem: Any, x0: Tensor) -> tuple[Tensor, None]:
    """Return the minima by `lmd.guarantees.minimum`, and None for the minimisers."""
    return minimum(problem), None


@dataclass(frozen=True)
class CertifiedBy:
    """Minima, certified to a `tolerance` by a classical solver; with `unique`, minimisers as well.

    A tolerance of a tenth of the learned solver's expected gap is enough; in tomography, less would take minutes.
    """

    solver: Solver[Any]  # one that keeps dual points
    tolerance: float  # the relative gap to be proven
    unique: bool = False  # whether there is one minimiser, so that points can be compared with it

    def __call__(self, problem: Any, x0: Tensor) -> tuple[Tensor, Tensor | None]:
        found = run(self.solver, problem, x0, tolerance=self.tolerance)
        return found.values, found.x if self.unique else None


Call = Callable[[Any], Any]  # maps an entry of `Peer.ladder` to an answer in the peer's format
COUNTS = (1, 2, 3, 5, 10, 20, 35, 50, 100, 200, 500, 1000)
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10)  # for peers with a tolerance; the others get COUNTS
EXPERIMENTS = "pip install 'lmd[experiments]'"  # installs the peers that experiments need too
ONE_THREAD = "-1-thread"  # suffix of a peer that is also run with all threads


@dataclass(frozen=True)
class Peer:
    """A solver of another package, called anew for each number of iterations or each tolerance."""

    name: str  # its name in tables
    package: str  # the module to import
    ladder: tuple[float, ...]  # the numbers of iterations, or the tolerances, to call it with, the fastest first
    prepare: Callable[[Any], Call]  # converts a problem to the peer's format, untimed, and returns the timed call
    finish: Callable[[Any, Any], Tensor]  # maps the problem and the answer to x, untimed
    hint: str = "pip install 'lmd[bench]'"  # how to install it

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


NOISE_LEVELS = (0.01, 0.05, 0.1, 0.2)  # the noise levels of the harder families, where a family has a noise level


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that `lmd train NAME` needs to train a solver."""

    title: str  # what the solver is, in a few words
    solver: Callable[[int], Solver[Any]]  # the untrained solver, from a seed
    family: Callable[[str], Family]  # the training family of each preset
    source: Source  # where the instances of the family come from. A solver ships for the data that its card names
    settings: Mapping[str, Mapping[str, Any]]  # arguments of `lmd.train` by preset
    iterations: int  # number of trained iterations
    form: str = ""  # distinguishes it from other solvers of the task, for example by its mirror; may be empty
    fast: bool = False  # whether it is made for speed, with smaller kernels than the others
    # whether it is one of the horizons that `lmd.solve` chooses from; the bench runs them through `lmd.solve` only
    rung: bool = False
    weak: str = ""  # where the trained solver is weak, for its card

    def name(self, task: str) -> str:
        """Return the name of the solver, such as `denoise-20-fast` or `svm-quadratic-10`."""
        words = (task, self.form, str(self.iterations), "fast" if self.fast else "")
        return "-".join(word for word in words if word)


# maps clean images `(n, C, H, W)`, or just their number n, a noise level and a generator to n instances
Make = Callable[[Tensor, float, torch.Generator], Any]


@dataclass(frozen=True)
class Contest:
    """What `lmd bench` needs for a problem: instances, noise levels, grids of settings, and peers."""

    make: Make  # maps clean images, a noise level and a generator to a problem
    noise: tuple[int, ...] = (5,)  # percent
    steps: float = 0.01  # the base step of the grids of gradient methods; 0 leaves these methods out
    tau: float = 0.2  # the base step of PDHG's grid; 0 for its default step
    peers: tuple[Peer, ...] = ()  # solvers of other packages
    # whether optima are those of `guarantees.optimum`, which caches them; else `lmd.solve` finds them in float64
    kept: bool = True
    sized: bool = True  # whether instances are images, which `lmd bench --sizes` may resize


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

    To add a task from your own package, declare an entry point in the group `lmd.tasks`; see examples/own_task.py.
    """

    name: str  # the names of its solvers begin with it
    title: str  # what it is, in a few words
    recipes: tuple[Recipe, ...] = ()  # the recipes of its trained solvers
    reference: Reference = known  # how certified minima are found for the cards
    instances: int = 8  # how many held-out instances are on a card
    slow: bool = False  # whether certified minima take too long for experiments of quick size
    contest: Contest | None = None  # its contest in `lmd bench`; None if it has none
    models: Mapping[str, Contest] = field(default_factory=dict)  # further contests, by the names of their models
    # maps the held-out family to harder families, by name
    conditions: Callable[[Family], dict[str, Family]] = conditions

    @cached_property
    def solvers(self) -> dict[str, Recipe]:
        """The recipes by name."""
        return {recipe.name(self.name): recipe for recipe in self.recipes}
