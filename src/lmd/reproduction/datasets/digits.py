"""Images of handwritten digits: MNIST, or the digits that ship with scikit-learn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lmd.core.checks import check_choice
from lmd.core.extras import require
from lmd.errors import FileError
from lmd.reproduction.datasets import mnist

NAMES = ("mnist", "digits")

DIGITS_TRAIN = 1200
"""How many of scikit-learn's 1797 digits are the train fold: the first ones. They come writer by writer, so that the
last ones were mostly written by other people; a random split would put every writer into both folds."""


@dataclass(frozen=True)
class DigitData:
    """Images in [0, 1] `(n, H, W)`, float32, with their labels 0 to 9 `(n,)`, int64, in a train and a test fold."""

    name: str
    """Which data these are: `mnist` or `digits`. Results carry it."""

    train_images: Tensor
    """`(n, H, W)`."""

    train_labels: Tensor
    """`(n,)`."""

    test_images: Tensor
    """`(n, H, W)`."""

    test_labels: Tensor
    """`(n,)`."""

    def fingerprint(self) -> str:
        """The SHA-256 of name, shapes and every number: equal for equal data."""
        digest = hashlib.sha256(self.name.encode())
        for tensor in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()


def digits_data(name: str = "auto", data_dir: str | Path | None = None) -> DigitData:
    """The images called `name`: `mnist`, `digits`, or `auto`, which is MNIST where it is at hand and else the digits.

    MNIST is at hand in `data_dir`, or else in the folder that LMD_DATA names, or in the cache after
    `lmd.reproduction.datasets.fetch("mnist")`. Nothing is downloaded here.

    Args:
        name: "mnist", "digits" or "auto".
        data_dir: A folder to look in; None is the one that LMD_DATA names, and the cache.

    >>> data = digits_data("digits")
    >>> data.name, tuple(data.train_images.shape), tuple(data.test_images.shape)
    ('digits', (1200, 8, 8), (597, 8, 8))
    """
    check_choice("name", name, ("auto", *NAMES))
    if name == "digits":
        return _bundled()
    folder = mnist.find(data_dir)
    if folder is not None:
        return _as_data("mnist", 255, *mnist.read(folder))
    if name == "auto":
        return _bundled()
    given = f"no MNIST in {data_dir}" if data_dir is not None else "no MNIST in LMD_DATA or the cache"
    raise FileError("MNIST", given, "its four IDX files, or those of `lmd data fetch mnist`, or the data `digits`")


def _bundled() -> DigitData:
    require("sklearn")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8)
    first = slice(0, DIGITS_TRAIN)
    last = slice(DIGITS_TRAIN, None)
    return _as_data("digits", 16, images[first], labels[first], images[last], labels[last])


def _as_data(name: str, white: int, *arrays: np.ndarray) -> DigitData:
    """The arrays as tensors, images divided by the number that stands for white."""
    images, labels, test_images, test_labels = arrays
    return DigitData(
        name,
        torch.from_numpy(images.astype(np.float32)) / white,
        torch.from_numpy(labels.astype(np.int64)),
        torch.from_numpy(test_images.astype(np.float32)) / white,
        torch.from_numpy(test_labels.astype(np.int64)),
    )
