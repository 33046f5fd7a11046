"""Digits, their features, and photographs: bundled, or downloaded, checked and cached.

from lmd.reproduction.datasets import image_data

images = image_data("photographs")  # or "stl10"; read_images(path) for a folder or an .npz of your own
images.train_images, images.test_images
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lmd.core.checks import check_choice
from lmd.core.extras import installed
from lmd.reproduction.datasets.digits import DIGIT_DATA, fetch_mnist, find_mnist
from lmd.reproduction.datasets.images import IMAGE_DATA, fetch_stl10, find_stl10, image_data, read_images

__all__ = ["fetch", "image_data", "read_images"]


@dataclass(frozen=True)
class Dataset:
    """One line of `lmd data list`."""

    name: str  # what `fetch` takes
    title: str  # what is in it, in a few words
    source: str  # where it comes from
    present: bool  # whether it can be used now, without a download
    folder: Path | None  # where its files are; None for what ships inside a dependency or is not present


def datasets(data_dir: str | Path | None = None) -> list[Dataset]:
    """All datasets, those that need no download first.

    >>> [dataset.name for dataset in datasets()]
    ['digits', 'photographs', 'mnist', 'stl10']
    """
    folder, stl10_folder = find_mnist(data_dir), find_stl10(data_dir)
    title = "60000 + 10000 handwritten digits, 28 x 28"
    bundled = "ships with scikit-image and scikit-learn"
    photographs = installed("PIL", "skimage", "sklearn")
    stl10_title = "5000 + 8000 photographs, 96 x 96, and 100000 without labels"
    stl10_source = "binary files: LMD_DATA, or `lmd data fetch stl10` (2.6 GB)"
    return [
        Dataset("digits", "1797 handwritten digits, 8 x 8", "ships with scikit-learn", installed("sklearn"), None),
        Dataset("photographs", "243 + 105 crops of ten photographs, 96 x 96", bundled, photographs, None),
        Dataset("mnist", title, "IDX files: LMD_DATA, or `lmd data fetch mnist` (11 MB)", folder is not None, folder),
        Dataset("stl10", stl10_title, stl10_source, stl10_folder is not None, stl10_folder),
    ]


def fetch(name: str) -> Path | None:
    """Download a dataset to the cache, check it and return its folder; None where there is nothing to download."""
    check_choice("dataset", name, (*DIGIT_DATA, *IMAGE_DATA))
    downloads = {"mnist": fetch_mnist, "stl10": fetch_stl10}
    return downloads[name]() if name in downloads else None
