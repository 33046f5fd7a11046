"""What data there are, where they come from, whether they are present, and how to get them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lmd.checks import check_choice
from lmd.data import digits, mnist


@dataclass(frozen=True)
class Dataset:
    """One line of `lmd data list`."""

    name: str
    title: str
    source: str
    """Where it comes from."""
    present: bool
    """Whether it can be used now, without a download."""
    folder: Path | None
    """Where its files are; None for what ships inside a dependency or is not present."""


def datasets(data_dir: str | Path | None = None) -> list[Dataset]:
    """All datasets, those that need no download first.

    >>> [dataset.name for dataset in datasets()]
    ['digits', 'mnist']
    """
    folder = mnist.find(data_dir)
    title = "60000 + 10000 handwritten digits, 28 x 28"
    return [
        Dataset("digits", "1797 handwritten digits, 8 x 8", "ships with scikit-learn", True, None),
        Dataset("mnist", title, "IDX files: LMD_DATA, or `lmd data fetch mnist` (11 MB)", folder is not None, folder),
    ]


def fetch(name: str) -> Path | None:
    """Download a dataset to the cache, check it and return its folder; None where there is nothing to download."""
    check_choice("dataset", name, digits.NAMES)
    return mnist.fetch() if name == "mnist" else None
