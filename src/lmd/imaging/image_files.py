"""Pictures and volumes in files: PNG, JPEG, TIFF of one page or many, arrays of NumPy; grey or colour, upright."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np

from lmd.core.files import atomic_path, writable_name
from lmd.core.memory import check_memory
from lmd.errors import FileError
from lmd.imaging.decoding import ACCEPTED, decode, header_of, opened, reading
from lmd.imaging.encoding import encode_png, write_jpeg, write_tiff
from lmd.imaging.picture import Header, Picture, spoken

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF", ".npy": "NPY"}
"""What the ending of a file's name says about it, when it is to be written."""

DEEP = ("TIFF", "NPY")
"""The formats that hold volumes and floating-point numbers."""

JPEG_SIDE = 65500
"""The most pixels that JPEG holds in a row or a column."""

DECODING = 3
"""How many copies of an image there are while it is decoded, at most."""

MOST_GREY = 0.01
"""How much of a mask may be grey, as the rims of what is drawn by hand are."""


def read_header(path: str | Path, argument: str = "image") -> Header:
    """The size of an image file, whose pixels are not looked at."""
    path = _check_file(Path(path), argument)
    with reading(argument, path), opened(argument, path) as image:
        return header_of(argument, path, image)


def read_picture(path: str | Path, argument: str = "image") -> Picture:
    """An image file: upright, palettes resolved, CMYK turned into RGB, all else as it is.

    A TIFF of several pages is a volume. So is an array of three axes in .npy, unless the last has length 3 or 4: those
    are channels. `argument` is what errors call it.
    """
    path = _check_file(Path(path), argument)
    with reading(argument, path), opened(argument, path) as image:
        header = header_of(argument, path, image)
        check_memory(argument, f"{path} of {header}", DECODING * header.bytes)
        return decode(argument, path, image)


def read_mask(path: str | Path, size: tuple[int, ...], argument: str = "mask") -> np.ndarray:
    """A black and white image, or a volume, of the given size: true where it is white.

    Lighter than half is white; more than one grey pixel in a hundred, a colour or transparency are refused.
    """
    accepted = "an image of black (lost) and white (kept) pixels alone"
    check_mask_size(path, size, argument)
    picture = read_picture(path, argument)
    if picture.size != size:
        raise _other_size(argument, path, picture.size, size)
    if picture.alpha is not None and bool((picture.alpha < picture.most).any()):
        raise FileError(argument, f"{path}, partly transparent", accepted)
    white = picture.colours > picture.most // 2
    if bool((white != white[0]).any()):
        raise FileError(argument, f"{path}, in colour", accepted)
    if int(picture.colours.max()) == 1:
        raise FileError(argument, f"{path}, of zeros and ones", f"{accepted}: 0 and {picture.most}")
    quarter = picture.most // 4
    grey = float(((picture.colours > quarter) & (picture.colours < picture.most - quarter)).mean())
    if grey > MOST_GREY:
        raise FileError(argument, f"{path}, {100 * grey:.1f}% of which is grey", accepted)
    if not bool(white.any()):
        raise FileError(argument, f"{path}, all black", "at least one white pixel, as white pixels are kept")
    return white[0]


def check_mask_size(path: str | Path, size: tuple[int, ...], argument: str = "mask") -> None:
    """Raise if the header of a mask says that it is neither as large as the image nor so when set upright."""
    header = read_header(path, argument)
    if sorted(header.size) != sorted(size):
        raise _other_size(argument, path, header.size, size)


def _other_size(argument: str, path: str | Path, found: tuple[int, ...], size: tuple[int, ...]) -> FileError:
    return FileError(argument, f"{path} of {spoken(found)}", f"{spoken(size)}, as the image has")


def write_picture(path: str | Path, picture: Picture, argument: str = "out") -> None:
    """Write what the name's ending says; the file appears when it is whole. JPEG loses what `losses` says."""
    path = Path(path)
    kind = _format_of(path, argument)
    with atomic_path(path) as temporary:
        if kind == "PNG":
            temporary.write_bytes(encode_png(picture))
        elif kind == "TIFF":
            write_tiff(temporary, picture)
        elif kind == "NPY":
            np.save(temporary, np.ascontiguousarray(picture.samples()), allow_pickle=False)
        else:
            write_jpeg(temporary, picture)


def losses(path: str | Path, picture: Picture) -> list[str]:
    """What the format of `path` cannot hold of a picture, one line each."""
    if _format_of(Path(path), "out") != "JPEG":
        return []
    lost = ["JPEG holds no transparency: write PNG or TIFF to keep it"] if picture.alpha is not None else []
    return lost + (["JPEG holds 8 bits: write PNG or TIFF to keep 16"] if picture.bits == 16 else [])


def check_out(
    path: str | Path, header: Header, *inputs: str | Path, overwrite: bool = False, argument: str = "out"
) -> Path:
    """Return `path` if an image can be written there, and nothing is: never a folder or one of the inputs."""
    path = writable_name(argument, path)
    kind = _format_of(path, argument)
    if kind == "JPEG" and max(header.size) > JPEG_SIDE:
        accepted = f".png or .tif, as JPEG holds at most {JPEG_SIDE} each way"
        raise FileError(argument, f"{path} for {header}", accepted)
    if kind not in DEEP and header.deep:
        what = "floating-point numbers" if header.floating else "a volume"
        raise FileError(argument, f"{path} for {what}", "a name that ends in .tif or .npy")
    if any(_same_file(path, Path(other)) for other in inputs):
        raise FileError(argument, f"{path}, which is an input too", "another name, as inputs are never overwritten")
    if path.exists() and not overwrite:
        raise FileError(
            argument, f"{path}, which exists already", "a new name, or --overwrite (overwrite=True) to replace it"
        )
    return path


def _check_file(path: Path, argument: str) -> Path:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileError(argument, f"no file {path}", ACCEPTED) from None
    except (OSError, ValueError) as error:
        raise FileError(argument, f"{path} ({error})", ACCEPTED) from None
    if stat.S_ISDIR(found.st_mode):
        raise FileError(argument, f"{path}, which is a folder", ACCEPTED)
    if not stat.S_ISREG(found.st_mode):
        raise FileError(argument, f"{path}, which is no plain file", ACCEPTED)
    if found.st_size == 0:
        raise FileError(argument, f"{path}, an empty file", ACCEPTED)
    return path


def _format_of(path: Path, argument: str) -> str:
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise FileError(argument, f"{path}", f"a name that ends in {', '.join(FORMATS)}")
    return kind


def _same_file(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)
