"""STL-10: its binary files, where they may lie, and the download of the archive they come in."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import numpy as np

from lmd.core.checks import check_choice
from lmd.core.files import atomic_path, cache_folder
from lmd.errors import FileError
from lmd.reproduction.datasets.download import download
from lmd.reproduction.datasets.mnist import named_folder

SOURCES = ("https://cs.stanford.edu/~acoates/stl10/", "http://ai.stanford.edu/~acoates/stl10/")
ARCHIVE = "stl10_binary.tar.gz"
SHA256 = "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866"
"""Of the archive, 2.6 GB."""

COUNTS = {"train": 5000, "test": 8000, "unlabeled": 100_000}
"""How many images each part has."""

SHAPE = (3, 96, 96)
BYTES = 3 * 96 * 96


def fetch() -> Path:
    """Download STL-10 (2.6 GB) to the cache and unpack its images (3.1 GB), unless they are there; the folder."""
    folder = cache_folder() / "stl10"
    if not all(_whole(folder, part) for part in COUNTS):
        (archive,) = download({ARCHIVE: SHA256}, SOURCES, folder)
        unpack(archive, folder)
        archive.unlink()
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Write the image files of the archive to `folder`, each whole or not at all, and nothing else."""
    try:
        with tarfile.open(archive, "r:gz") as members:
            for part in COUNTS:
                packed = members.extractfile(f"stl10_binary/{_name(part)}")
                if packed is None:
                    raise FileError("STL-10", f"{archive} with {_name(part)} that is no file", "the genuine archive")
                with atomic_path(folder / _name(part)) as path, open(path, "wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)
    except (KeyError, tarfile.TarError, EOFError) as error:
        raise FileError("STL-10", f"{archive} ({error})", "the genuine archive") from None


def find(data_dir: str | Path | None = None) -> Path | None:
    """The folder with STL-10's train and test images, or None where there is none.

    Looked for in `data_dir` if given, else in the folder LMD_DATA names and then in the cache; in each of them, in
    its subfolders `stl10` and `stl10_binary` first.
    """
    if data_dir is not None:
        return _holder(named_folder("data_dir", data_dir))
    named = os.environ.get("LMD_DATA")
    found = _holder(named_folder("LMD_DATA", named)) if named else None
    return found or _holder(cache_folder())


def read(folder: Path, part: str = "train") -> np.ndarray:
    """The images of a part, bytes `(n, 3, 96, 96)`, mapped into memory, not read."""
    path = folder / _name(check_choice("part", part, tuple(COUNTS)))
    if not path.is_file():
        raise FileError("STL-10", f"{folder} without {path.name}", "all its files; `lmd data fetch stl10` gets them")
    if not _whole(folder, part):
        given = f"{path} of {path.stat().st_size} bytes"
        raise FileError("STL-10", given, f"{COUNTS[part] * BYTES}: {COUNTS[part]} images of {BYTES}")
    columns_first = np.memmap(path, dtype=np.uint8, mode="r", shape=(COUNTS[part], *SHAPE))
    return columns_first.transpose(0, 1, 3, 2)


def _name(part: str) -> str:
    return f"{part}_X.bin"


def _whole(folder: Path, part: str) -> bool:
    path = folder / _name(part)
    return path.is_file() and path.stat().st_size == COUNTS[part] * BYTES


def _holder(folder: Path) -> Path | None:
    for place in (folder / "stl10", folder / "stl10_binary", folder):
        if any((place / _name(part)).is_file() for part in ("train", "test")):
            return place
    return None
