"""Pictures and volumes in files: PNG, JPEG, TIFF of one page or many, arrays of NumPy; grey or colour, upright."""

from __future__ import annotations

import stat
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from lmd.core.extras import require
from lmd.core.files import atomic_path, writable_name
from lmd.core.memory import check_memory
from lmd.errors import FileError
from lmd.imaging.decoding import ACCEPTED, decode, opened
from lmd.imaging.picture import Header, Picture, eight_bits, spoken

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF", ".npy": "NPY"}
DEEP = ("TIFF", "NPY")  # the formats that hold volumes and floating-point numbers
JPEG_SIDE = 65500  # the most pixels that JPEG holds in a row or a column
JPEG_QUALITY = 95
PNG_LEVEL, RUNS, PAETH = 1, 3, 128
"""Each pixel is guessed from its neighbours by Paeth's rule, and of what is left runs alone are sought: a sixth of the
time of the usual search for repetitions, and files of photographs are a tenth smaller."""
PNG_HEADER_END = 33  # where the first chunk of a PNG file ends; a profile comes next
NUM_DECODING_COPIES = 3  # of an image while it is decoded, at most
MAX_GREY = 0.01  # how much of a mask may be grey, as the rims of what is drawn by hand are


def read_header(path: str | Path, argument: str = "image") -> Header:
    """Return the size of an image file, whose pixels are not read."""
    with opened(argument, _check_file(Path(path), argument)) as (_, header):
        return header


def read_picture(path: str | Path, argument: str = "image") -> Picture:
    """Return the picture of a file: upright, palettes resolved, CMYK turned into RGB, all else as it is.

    A TIFF of several pages is a volume. So is an array of three axes in .npy, unless the last has length 3 or 4: those
    are channels. `argument` is what errors call it.
    """
    path = _check_file(Path(path), argument)
    with opened(argument, path) as (image, header):
        check_memory(argument, f"{path} of {header}", NUM_DECODING_COPIES * header.bytes)
        return decode(argument, path, image)


def read_mask(path: str | Path, size: tuple[int, ...], argument: str = "mask") -> np.ndarray:
    """Return where a black and white image, or volume, of the given size is white.

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
    if grey > MAX_GREY:
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
            temporary.write_bytes(_encode_png(picture))
        elif kind == "TIFF":
            _write_tiff(temporary, picture)
        elif kind == "NPY":
            np.save(temporary, np.ascontiguousarray(picture.samples()), allow_pickle=False)
        else:
            _write_jpeg(temporary, picture)


def _encode_png(picture: Picture) -> bytes:
    """Return the whole picture, its profile and what the camera noted included."""
    require("imagecodecs")
    import imagecodecs

    encoded = bytes(imagecodecs.png_encode(picture.samples(), level=PNG_LEVEL, strategy=RUNS, filter=PAETH))
    chunks = b""
    if picture.profile:
        chunks += _chunk(b"iCCP", b"ICC profile\0\0" + zlib.compress(picture.profile))
    if picture.exif:
        chunks += _chunk(b"eXIf", picture.exif.removeprefix(b"Exif\0\0"))
    return encoded[:PNG_HEADER_END] + chunks + encoded[PNG_HEADER_END:]


def _chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file: its length, its kind, its content, and a checksum of the two."""
    checksum = zlib.crc32(kind + content)
    return len(content).to_bytes(4, "big") + kind + content + checksum.to_bytes(4, "big")


def _write_tiff(path: Path, picture: Picture) -> None:
    """Write the whole picture but what the camera noted."""
    require("tifffile")
    import tifffile

    tifffile.imwrite(
        path,
        picture.samples(),
        photometric="minisblack" if len(picture.colours) == 1 else "rgb",
        planarconfig="contig" if picture.mode != "grey" else None,
        extrasamples=None if picture.alpha is None else ["unassalpha"],
        compression="zlib",
        predictor=picture.colours.dtype.kind == "u",
        iccprofile=picture.profile,
        metadata=None,
        software=False,
    )


def _write_jpeg(path: Path, picture: Picture) -> None:
    """Write the colours in 8 bits, nearly."""
    from PIL import Image

    image = Image.fromarray(eight_bits(replace(picture, alpha=None).samples()))
    extra = {"exif": picture.exif} if picture.exif else {}
    image.save(path, "JPEG", quality=JPEG_QUALITY, subsampling=0, icc_profile=picture.profile, **extra)


def losses(path: str | Path, picture: Picture) -> list[str]:
    """Return what the format of `path` cannot hold of a picture, one line each."""
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
