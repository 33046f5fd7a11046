"""MNIST: its four IDX files, where they may lie, and the checks that they are what their names say."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmd.core.files import cache_folder
from lmd.errors import FileError
from lmd.reproduction.datasets.download import download
from lmd.reproduction.datasets.idx import parse_idx, read_bytes

SOURCES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


@dataclass(frozen=True)
class _Part:
    """One of the four files: its shape, the SHA-256 of the packed file and of what it unpacks to."""

    name: str
    shape: tuple[int, ...]
    packed: str
    unpacked: str

    @property
    def holds(self) -> str:
        """What is in it, in words."""
        return _words(self.shape)


PARTS = (
    _Part(
        "train-images-idx3-ubyte",
        (60000, 28, 28),
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    _Part(
        "train-labels-idx1-ubyte",
        (60000,),
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    _Part(
        "t10k-images-idx3-ubyte",
        (10000, 28, 28),
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    _Part(
        "t10k-labels-idx1-ubyte",
        (10000,),
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


def fetch() -> Path:
    """Download MNIST (11 MB) to the cache, unless it is there, and return the folder."""
    folder = cache_folder() / "mnist"
    download({f"{part.name}.gz": part.packed for part in PARTS}, SOURCES, folder)
    return folder


def find(data_dir: str | Path | None = None) -> Path | None:
    """The folder with MNIST's files, or None where there is none.

    Looked for in `data_dir` if given, else in the folder LMD_DATA names and then in the cache; in each of them, in
    its subfolder `mnist` first. A folder with only some of the four files counts: reading it says what is missing.
    """
    if data_dir is not None:
        return _holder(named_folder("data_dir", data_dir))
    named = os.environ.get("LMD_DATA")
    found = _holder(named_folder("LMD_DATA", named)) if named else None
    return found or _holder(cache_folder())


def named_folder(argument: str, path: str | Path) -> Path:
    """Return `path` if it is a folder."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise FileError(argument, f"{folder}, which is not a folder", "a folder with data in it")
    return folder


def _holder(folder: Path) -> Path | None:
    for place in (folder / "mnist", folder):
        if any(_file(place, part) for part in PARTS):
            return place
    return None


def _file(folder: Path, part: _Part) -> Path | None:
    for name in (part.name, f"{part.name}.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def read(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Train images, train labels, test images, test labels, as unsigned bytes; every byte is checked."""
    images, labels, test_images, test_labels = (_read_part(folder, part) for part in PARTS)
    return images, labels, test_images, test_labels


def _read_part(folder: Path, part: _Part) -> np.ndarray:
    path = _file(folder, part)
    if path is None:
        raise FileError(
            "MNIST", f"{folder} without {part.name}[.gz]", "all four files; `lmd data fetch mnist` gets them"
        )
    content = read_bytes(path)
    array = parse_idx(content, path)
    if array.shape != part.shape:
        raise FileError("MNIST", f"{path}, which holds {_words(array.shape)}", f"{part.holds} in a file of that name")
    if hashlib.sha256(content).hexdigest() != part.unpacked:
        accepted = f"the genuine file, whose content has SHA-256 {part.unpacked[:12]}..."
        raise FileError("MNIST", f"{path}, the right shape with other content", accepted)
    return array


def _words(shape: tuple[int, ...]) -> str:
    if len(shape) == 3:
        return f"{shape[0]} images of {shape[1]} x {shape[2]}"
    return f"{shape[0]} labels" if len(shape) == 1 else f"numbers of shape {shape}"
