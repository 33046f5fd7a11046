"""Photographs: those bundled with scikit-image and scikit-learn, STL-10, any folder of images, any `.npz` of them."""

from __future__ import annotations

import functools
import importlib.util
import math
import shutil
import tarfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from lmd.core.checks import check_choice, check_count, check_memory
from lmd.core.extras import missing, require
from lmd.core.files import atomic_path, cache_folder
from lmd.errors import FileError, InputError
from lmd.imaging.image_files import FORMATS, eight_bits, read_picture
from lmd.reproduction.datasets.files import download, find_folder

STL10_SOURCES = ("https://cs.stanford.edu/~acoates/stl10/", "http://ai.stanford.edu/~acoates/stl10/")
STL10_ARCHIVE = "stl10_binary.tar.gz"
STL10_SHA256 = "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866"  # of the archive, 2.6 GB
STL10_COUNTS = {"train": 5000, "test": 8000, "unlabeled": 100_000}  # how many images each part has
STL10_SHAPE = (3, 96, 96)
STL10_BYTES = 3 * 96 * 96


def fetch_stl10() -> Path:
    """Download STL-10 (2.6 GB) to the cache and unpack its images (3.1 GB), unless they exist; return the folder."""
    folder = cache_folder() / "stl10"
    if not all(_is_complete(folder, part) for part in STL10_COUNTS):
        (archive,) = download({STL10_ARCHIVE: STL10_SHA256}, STL10_SOURCES, folder)
        unpack_stl10(archive, folder)
        archive.unlink()
    return folder


def unpack_stl10(archive: Path, folder: Path) -> None:
    """Write the image files of the archive to `folder`, each whole or not at all, and nothing else."""
    try:
        with tarfile.open(archive, "r:gz") as members:
            for part in STL10_COUNTS:
                packed = members.extractfile(f"stl10_binary/{_stl10_name(part)}")
                if packed is None:
                    raise FileError(
                        "STL-10", f"{archive} with {_stl10_name(part)} that is no file", "the genuine archive"
                    )
                with atomic_path(folder / _stl10_name(part)) as path, open(path, "wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)
    except (KeyError, tarfile.TarError, EOFError) as error:
        raise FileError("STL-10", f"{archive} ({error})", "the genuine archive") from None


def find_stl10(data_dir: str | Path | None = None) -> Path | None:
    """The folder with STL-10's train and test images, or None.

    It is looked for in `data_dir` if given, else in LMD_DATA and then in the cache; in each of them, first in the
    subfolders `stl10` and `stl10_binary`.
    """
    return find_folder(data_dir, _stl10_folder)


def read_stl10(folder: Path, part: str = "train") -> np.ndarray:
    """Return the images of a part as a memory map, bytes `(n, 3, 96, 96)`."""
    path = folder / _stl10_name(check_choice("part", part, tuple(STL10_COUNTS)))
    if not path.is_file():
        raise FileError("STL-10", f"{folder} without {path.name}", "all its files; `lmd data fetch stl10` gets them")
    if not _is_complete(folder, part):
        given = f"{path} of {path.stat().st_size} bytes"
        raise FileError(
            "STL-10", given, f"{STL10_COUNTS[part] * STL10_BYTES}: {STL10_COUNTS[part]} images of {STL10_BYTES}"
        )
    columns_first = np.memmap(path, dtype=np.uint8, mode="r", shape=(STL10_COUNTS[part], *STL10_SHAPE))
    return columns_first.transpose(0, 1, 3, 2)


def _stl10_name(part: str) -> str:
    return f"{part}_X.bin"


def _is_complete(folder: Path, part: str) -> bool:
    path = folder / _stl10_name(part)
    return path.is_file() and path.stat().st_size == STL10_COUNTS[part] * STL10_BYTES


def _stl10_folder(folder: Path) -> Path | None:
    for place in (folder / "stl10", folder / "stl10_binary", folder):
        if any((place / _stl10_name(part)).is_file() for part in ("train", "test")):
            return place
    return None


IMAGE_DATA = ("photographs", "stl10")

SUFFIXES = tuple(suffix for suffix, kind in FORMATS.items() if kind != "NPY")  # what counts as an image in a folder
CROP = 96  # the side of the crops of the bundled photographs: that of STL-10
SIDES = (96, 192, 288, 384)  # the photographs are shrunk until their shorter side is one of these, then cut
TRAIN_PHOTOGRAPHS = (
    ("skimage", "data/astronaut.png"),
    ("sklearn", "datasets/images/china.jpg"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/ihc.png"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/retina.jpg"),
    ("skimage", "data/rocket.jpg"),
)
TEST_PHOTOGRAPHS = (
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("sklearn", "datasets/images/flower.jpg"),
)
"""The split is by photograph: no pixel of a test crop is in a train crop. (The other half of the motorcycle's stereo
pair is left out for the same reason.)"""


@dataclass(frozen=True)
class ImageData:
    """Colour images `(n, 3, 96, 96)`, bytes, in a train and a test fold."""

    name: str  # `photographs` or `stl10`; stored with results
    train_images: Tensor  # `(n, 3, 96, 96)`
    test_images: Tensor  # `(n, 3, 96, 96)`


@dataclass(frozen=True)
class ImageSet:
    """Images of the user: bytes `(3, H, W)` of any sizes."""

    name: str  # the name of their folder or file; stored with results
    images: tuple[Tensor, ...]  # each `(3, H, W)`

    def crops(self, side: int) -> Tensor:
        """Return the middle `side` x `side` pixels of each image, `(n, 3, side, side)`."""
        check_count("side", side)
        for image in self.images:
            if min(image.shape[1:]) < side:
                given = f"an image of {image.shape[1]} x {image.shape[2]} pixels in {self.name}"
                raise FileError("images", given, f"images of at least {side} x {side}")
        return torch.stack([_middle(image, side) for image in self.images])


def image_data(name: str = "auto", data_dir: str | Path | None = None) -> ImageData:
    """Return the images called `name`: `photographs`, `stl10`, or `auto`, which is `stl10` if available.

    STL-10 is looked for in `data_dir` if given, else in the folder that LMD_DATA names and then in the cache, where
    `lmd.reproduction.datasets.fetch("stl10")` puts it. Nothing is downloaded here.

    >>> data = image_data("photographs")
    >>> data.name, data.train_images.shape, data.test_images.shape
    ('photographs', torch.Size([243, 3, 96, 96]), torch.Size([105, 3, 96, 96]))
    """
    check_choice("name", name, ("auto", *IMAGE_DATA))
    folder = None if name == "photographs" else find_stl10(data_dir)
    if folder is not None:
        train, test = (_tensor(read_stl10(folder, part)) for part in ("train", "test"))
        return ImageData("stl10", train, test)
    if name == "stl10":
        given = f"no STL-10 in {data_dir}" if data_dir is not None else "no STL-10 in LMD_DATA or the cache"
        raise FileError("STL-10", given, "its binary files, those of `lmd data fetch stl10`, or `photographs`")
    train, test = (_bundled_crops(part).clone() for part in (TRAIN_PHOTOGRAPHS, TEST_PHOTOGRAPHS))
    return ImageData("photographs", train, test)


def read_images(path: str | Path) -> ImageSet:
    """The images of a folder (PNG, JPEG, TIFF), of an `.npz` with bytes `images` `(n, 3, H, W)`, or one image file."""
    path = Path(path).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
        if not files:
            raise FileError("images", f"{path}, which has no images in it", "a folder of PNG, JPEG or TIFF files")
        return ImageSet(path.name, tuple(read_image(file) for file in files))
    if path.suffix.lower() == ".npz":
        return ImageSet(path.stem, tuple(_tensor(_read_npz(path))))
    return ImageSet(path.stem, (read_image(path),))


def read_image(path: str | Path) -> Tensor:
    """Return an image file in colour, upright, as bytes `(3, H, W)`; transparency is dropped, 16 bits become 8."""
    picture = read_picture(path)
    if len(picture.size) > 2 or picture.colours.dtype.kind == "f":
        raise FileError("image", f"{path}, a volume or floating-point numbers", "an image of 8 or 16 bits")
    colours = eight_bits(picture.colours)
    return _tensor(np.broadcast_to(colours, (3, *colours.shape[1:])))


def _read_npz(path: Path) -> np.ndarray:
    accepted = "an .npz with `images`, bytes (n, 3, H, W)"
    if path.exists() and not path.is_file():
        raise FileError("images", f"{path}, which is no plain file", accepted)
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as packed:  # np.load would leave a bad file open
            names = sorted(name.removesuffix(".npy") for name in packed.namelist())
            if "images.npy" not in packed.namelist():
                raise FileError("images", f"{path}, which holds {', '.join(names) or 'nothing'}", accepted)
            with packed.open("images.npy") as array:
                return _read_bytes(path, array, accepted)
    except InputError:
        raise
    except FileNotFoundError:
        raise FileError("images", f"no file {path}", accepted) from None
    except Exception:  # numpy and zipfile raise anything on a file that is damaged
        raise FileError("images", f"{path}, damaged or not an .npz", accepted) from None


def _read_bytes(path: Path, file: IO[bytes], accepted: str) -> np.ndarray:
    """Read an .npy file; raise an error unless it has bytes `(n, 3, H, W)` that fit into memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers of Python 2
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read_header(file)
    if dtype != np.uint8 or len(shape) != 4 or shape[1] != 3 or math.prod(shape) <= 0:
        raise FileError("images", f"{path} with `images` of {dtype} {shape}", accepted)
    check_memory("images", f"{path} with `images` of {shape}", 2 * math.prod(shape))
    content = np.frombuffer(file.read(math.prod(shape) + 1), dtype=np.uint8)  # to the end: checks the CRC
    return content.reshape(shape, order="F" if columns_first else "C")


def photograph_crops(photographs: Sequence[tuple[str, str]]) -> Tensor:
    """Cut photographs at several scales into 96 x 96 crops `(n, 3, 96, 96)` that do not overlap within a scale.

    Crops take turns by photograph and begin with coarse scales, so that the first few show all photographs.
    """
    pieces = [_pieces(bundled(*place)) for place in photographs]
    return torch.stack([piece for turn in zip_longest(*pieces) for piece in turn if piece is not None])


_bundled_crops = functools.cache(photograph_crops)
"""Computed once per process: cropping takes a second, and every image family needs the crops."""


def bundled(package: str, file: str) -> Path:
    """Return the path of a file in an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileError("photographs", f"no package {package}", missing(package))
    return Path(spec.submodule_search_locations[0], file)


def _pieces(path: Path) -> Iterator[Tensor]:
    """Yield crops around the middle, row by row, of a photograph shrunk to each of `SIDES` up to its shorter side."""
    require("PIL")
    from PIL import Image

    with Image.open(path) as photograph:
        whole = photograph.convert("RGB")
    for side in SIDES:
        if min(whole.size) >= side:
            scale = side / min(whole.size)
            size = (round(whole.width * scale), round(whole.height * scale))
            image = _tensor(np.asarray(whole.resize(size, Image.Resampling.LANCZOS)).transpose(2, 0, 1))
            rows, columns = image.shape[1] // CROP, image.shape[2] // CROP
            top, left = (image.shape[1] - rows * CROP) // 2, (image.shape[2] - columns * CROP) // 2
            for row, column in product(range(rows), range(columns)):
                i, j = top + row * CROP, left + column * CROP
                yield image[:, i : i + CROP, j : j + CROP]


def _middle(image: Tensor, side: int) -> Tensor:
    top, left = (image.shape[1] - side) // 2, (image.shape[2] - side) // 2
    return image[:, top : top + side, left : left + side]


def _tensor(array: np.ndarray) -> Tensor:
    """Return a copy as a tensor, as PyTorch accepts neither negative strides nor read-only memory."""
    return torch.from_numpy(np.array(array, order="C"))
