"""Where the instances of a task come from: what the data are called, their fingerprint, and what is held out."""

from __future__ import annotations

import abc
import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.reproduction.datasets import DigitFeatures, digit_features, digits_data, image_data


@dataclass(frozen=True)
class HeldOut:
    """How much of the data that nothing trains on, and in which dtype; None leaves that of the family."""

    preset: str
    """The one that the solver was trained with: quick, standard or paper."""

    subsets: int = 2
    """Data sets of a sample, where instances are subsets of features."""

    side: int = 32
    """The side of the pieces of images, small enough that their minima are quick to have."""

    images: tuple[Tensor, ...] | None = None
    """Images in place of the test images."""

    dtype: torch.dtype | None = None
    """Of the instances; None is that of the family."""


class Source(abc.ABC):
    """Where the instances of a family come from."""

    @abc.abstractmethod
    def name(self, preset: str) -> str:
        """What the data are called."""

    @abc.abstractmethod
    def fingerprint(self, family: Any, preset: str) -> str:
        """The SHA-256 of what is trained on."""

    @abc.abstractmethod
    def held_out(self, family: Any, wanted: HeldOut) -> Any:
        """The same family on data that it does not train on."""


@dataclass(frozen=True)
class Images(Source):
    """Images, for families with `images`, `crop` and `dtype`: the bundled photographs."""

    large: bool = False
    """Whether `paper` size is on STL-10, where it is at hand."""

    whole: bool = False
    """Whether a solver is for one size of images alone, that of its family."""

    def name(self, preset: str) -> str:
        return image_data("auto").name if self.large and preset == "paper" else "photographs"

    def fingerprint(self, family: Any, preset: str) -> str:
        return sha256_of(image_data(self.name(preset)).train_images)

    def train(self, preset: str) -> Tensor:
        """The images to train on, bytes `(n, 3, H, W)`."""
        return image_data(self.name(preset)).train_images

    def held_out(self, family: Any, wanted: HeldOut) -> Any:
        """On other images, or on pieces of them: convolutions solve images of any size."""
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

    kind: Callable[..., Any]
    """From features, labels, the pairs of a `subset` and how many `subsets` a sample has to a family."""

    mnist: int
    """Pairs in an instance of MNIST: the paper's number."""

    digits: int
    """Pairs in an instance of the bundled digits: what so few of them allow."""

    def name(self, preset: str) -> str:
        return "digits" if preset == "quick" else digits_data("auto").name

    def fingerprint(self, family: Any, preset: str) -> str:
        return digits_data(self.name(preset)).fingerprint()

    def features(self, preset: str) -> DigitFeatures:
        """The features of both folds; the result says which data they are from."""
        return digit_features(digits_data(self.name(preset)))

    def train(self, preset: str, **settings: Any) -> Any:
        """The family on the features to train on."""
        features = self.features(preset)
        return self._family(features.data_name, features.train_features, features.train_labels, **settings)

    def held_out(self, family: Any, wanted: HeldOut) -> Any:
        """On the features of the test fold."""
        features = self.features(wanted.preset)
        tested = features.test_features.to(wanted.dtype or features.test_features.dtype)
        return self._family(features.data_name, tested, features.test_labels, subsets=wanted.subsets)

    def _family(self, data: str, features: Tensor, labels: Tensor, **settings: Any) -> Any:
        return self.kind(features, labels, subset=self.mnist if data == "mnist" else self.digits, **settings)


@dataclass(frozen=True)
class Drawn(Source):
    """Numbers that are drawn, so that every sample is a new one, but for arrays that all have in common."""

    words: str
    """What the numbers are called."""

    arrays: tuple[str, ...] = ()
    """Their names in the family."""

    def name(self, preset: str) -> str:
        return self.words

    def fingerprint(self, family: Any, preset: str) -> str:
        return sha256_of(*(getattr(family.inside, name) for name in self.arrays))

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
