"""From the bytes of a file to a picture: PNG, JPEG, TIFF of one page or many, arrays of NumPy.

Decoders may raise anything and print anything on files that are damaged: here it becomes one line.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import math
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmd.core.extras import MissingError, require
from lmd.errors import FileError, InputError
from lmd.imaging.picture import Header, Picture

if TYPE_CHECKING:
    import tifffile
    from PIL import Image

PILLOW = ("PNG", "JPEG", "TIFF")
ACCEPTED = "a PNG, JPEG or TIFF image, or an array in .npy"
KINDS = "grey, RGB or RGBA of 8 or 16 bits per channel, or floating-point numbers in .tif or .npy"
DENSEST = 8 * 1032  # pixels in a byte of a PNG, at most: eight make a byte, which deflate packs 1032 to one
NUMBERS = {("u", 1), ("u", 2), ("f", 2), ("f", 4), ("f", 8), ("b", 1)}  # of volumes and arrays: NumPy's letter, bytes
FAST = ("L", "LA", "RGB", "RGBA")  # PNG of 8 bits that imagecodecs reads as Pillow does, in less than half the time
COLOURS = {0: 1, 1: 1, 2: 3}  # channels of a TIFF beside alpha, by its name of them: white is zero, black is zero, RGB
MIN_PAGE_BYTES = 50  # of a TIFF: its number of tags, four tags, and where the next page is
_ORIENTATION = 0x0112
_PROFILES = {1: b"GRAY", 3: b"RGB "}  # bytes 16 to 20 of a colour profile for so many channels

Opened = Any
"""A file before it is decoded: an array, an image of Pillow, a page of tifffile or a list of them."""


@contextmanager
def opened(argument: str, path: Path) -> Iterator[tuple[Opened, Header]]:
    """Open an image file and read its header.

    Whatever a decoder raises becomes one line, and what it prints is dropped.
    """
    require("PIL")
    from PIL import UnidentifiedImageError

    try:
        with _SILENCE, ExitStack() as files:
            image = _open(argument, path, files)
            yield image, _header(argument, path, image)
    except (InputError, MissingError):
        raise
    except PermissionError:
        raise FileError(argument, f"{path}, which may not be read", ACCEPTED) from None
    except UnidentifiedImageError:
        raise FileError(argument, f"{path}, not an image", ACCEPTED) from None
    except MemoryError:
        raise FileError(argument, f"{path}, too large for the memory there is", "a smaller image") from None
    except Exception as error:  # a decoder may raise anything on a file that is damaged or cut short
        raise FileError(argument, f"{path}, damaged ({error})", ACCEPTED) from None


class _Silence:
    """While anything is read, in any thread: no warnings, no limit on pixels but memory, nothing on stderr.

    The last to leave restores everything.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._all = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._all.enter_context(_quiet())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._all.close()


_SILENCE = _Silence()


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop warnings, logs and stderr as a whole, as libraries in C write to it too."""
    from PIL import Image

    log, limit = logging.getLogger("tifffile"), Image.MAX_IMAGE_PIXELS
    was_silent = log.disabled
    with warnings.catch_warnings(), ExitStack() as closing:
        warnings.simplefilter("ignore")
        with suppress(OSError):  # there may be no stderr
            stderr = os.dup(2)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for handle in (stderr, nowhere):
                closing.callback(os.close, handle)
            sys.stderr.flush()
            os.dup2(nowhere, 2)
            closing.callback(os.dup2, stderr, 2)
        Image.MAX_IMAGE_PIXELS, log.disabled = None, True
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, log.disabled = limit, was_silent


def _open(argument: str, path: Path, files: ExitStack) -> Opened:
    """Return an array in .npy, the pages of a volume, a page of tifffile for deep TIFF, else an image of Pillow.

    Pillow knows every palette and colour space, but cuts colours of 16 bits down to 8.
    """
    with open(path, "rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        return np.load(path, mmap_mode="r", allow_pickle=False)
    if start[:2] in (b"II", b"MM"):
        require("tifffile")
        import tifffile

        whole = files.enter_context(tifffile.TiffFile(path))
        most = path.stat().st_size // MIN_PAGE_BYTES
        chain = list(itertools.islice(whole.pages, most + 1))
        if len(chain) > most:
            raise FileError(argument, f"{path}, damaged (its pages lead back to pages before them)", ACCEPTED)
        pages = [page for page in chain if isinstance(page, tifffile.TiffPage) and not page.is_reduced]
        if len(pages) > 1:
            return pages
        if whole.pages.first.bitspersample > 8:
            return whole.pages.first
    from PIL import Image

    for name in PILLOW:  # or Pillow imports every format it has
        importlib.import_module(f"PIL.{name.capitalize()}ImagePlugin")
    return files.enter_context(Image.open(path, formats=PILLOW))


def _header(argument: str, path: Path, image: Opened) -> Header:
    """Return what an opened file says of its image."""
    if isinstance(image, np.ndarray):
        return _array_header(argument, path, image)
    if isinstance(image, list):
        return _pages_header(argument, path, image)
    if bits := getattr(image, "bitspersample", 0):
        header = Header((image.imagelength, image.imagewidth), image.samplesperpixel, bits, _is_floating(image))
    elif deep := _deep_bands(image):
        header = Header((image.height, image.width), len(deep), 16)
    else:
        bands = 4 if image.mode in ("P", "PA") else len(image.getbands())
        header = Header((image.height, image.width), bands, 8)
    pixels = math.prod(header.size)
    if pixels == 0:
        raise FileError(argument, f"{path}, damaged (it has no pixels)", ACCEPTED)
    if getattr(image, "format", "") in ("PNG", "JPEG") and pixels > DENSEST * path.stat().st_size:
        raise FileError(argument, f"{path}, damaged (it is too short to hold {header})", ACCEPTED)
    return header


def decode(argument: str, path: Path, image: Opened) -> Picture:
    """Return the picture in an opened file."""
    from PIL import Image

    if isinstance(image, np.ndarray):
        return _read_array(image)
    if not isinstance(image, Image.Image):
        return _read_pages(argument, path, image) if isinstance(image, list) else _read_tiff(argument, path, image)
    fast = _coding(image) in FAST and "transparency" not in image.info and importlib.util.find_spec("imagecodecs")
    return _read_png(path, image) if fast or _deep_bands(image) else _read_pillow(argument, path, image)


def _is_floating(page: tifffile.TiffPage) -> bool:
    return page.dtype is not None and page.dtype.kind == "f"


def _array_header(argument: str, path: Path, array: np.ndarray) -> Header:
    """Return the header of an array in .npy: `(H, W)`, `(H, W, 3 or 4)`, `(D, H, W)` or `(D, H, W, 3)`."""
    coloured = array.ndim == 4 or (array.ndim == 3 and array.shape[2] in (3, 4))
    size, channels = (array.shape[:-1], array.shape[-1]) if coloured else (array.shape, 1)
    if not 2 <= len(size) <= 3 or channels not in ((1, 3) if len(size) == 3 else (1, 3, 4)) or array.size == 0:
        accepted = "an image (H, W) or (H, W, 3 or 4), or a volume (D, H, W) or (D, H, W, 3)"
        raise FileError(argument, f"{path}, an array of shape {array.shape}", accepted)
    _check_numbers(argument, path, array.dtype)
    return Header(size, channels, 8 * array.dtype.itemsize, array.dtype.kind == "f")


def _check_numbers(argument: str, path: Path, dtype: np.dtype | None) -> None:
    if dtype is None or (dtype.kind, dtype.itemsize) not in NUMBERS:
        accepted = "numbers of 8 or 16 bits without a sign, floating-point numbers, or, in .npy, true and false"
        raise FileError(argument, f"{path}, of {dtype}", accepted)


def _read_array(array: np.ndarray) -> Picture:
    header = _array_header("image", Path(), array)
    samples = 255 * array.astype(np.uint8) if array.dtype.kind == "b" else array
    native = np.asarray(samples, dtype=samples.dtype.newbyteorder("="))
    return _picture(native, header.channels == 4, coloured=header.channels > 1)


def _pages_header(argument: str, path: Path, pages: list[tifffile.TiffPage]) -> Header:
    """Return the header of a TIFF of several pages, which are the layers of a volume."""
    first = pages[0]
    if any((page.shape, page.dtype) != (first.shape, first.dtype) for page in pages):
        raise FileError(argument, f"{path}, of {len(pages)} pages of several sizes or kinds", "pages that are alike")
    _check_numbers(argument, path, first.dtype)
    if COLOURS.get(int(first.photometric)) != first.samplesperpixel:
        raise FileError(argument, f"{path}, of pages of {first.samplesperpixel} channels", "pages in grey or RGB")
    size = (len(pages), first.imagelength, first.imagewidth)
    return Header(size, first.samplesperpixel, first.bitspersample, _is_floating(first))


def _read_pages(argument: str, path: Path, pages: list[tifffile.TiffPage]) -> Picture:
    layers = np.stack([_page_samples(argument, path, page) for page in pages])
    return _picture(layers, False, profile=pages[0].iccprofile, coloured=pages[0].samplesperpixel > 1)


def _deep_bands(image: Image.Image) -> str:
    """Return the channels of a PNG of 16 bits, of which Pillow reads the upper 8; empty for any other image."""
    return _coding(image).split(";")[0] if "16" in _coding(image) else ""


def _coding(image: Image.Image) -> str:
    """Return how the pixels of a PNG are written, as Pillow calls it; empty for any other image."""
    tiles = getattr(image, "tile", None)
    return str(tiles[0].args) if tiles and image.format == "PNG" else ""


def _read_pillow(argument: str, path: Path, image: Image.Image) -> Picture:
    from PIL import ImageOps

    upright = _plain(argument, path, ImageOps.exif_transpose(image))
    samples = np.asarray(upright)
    return _picture(samples, upright.mode.endswith("A"), image)


def _plain(argument: str, path: Path, image: Image.Image) -> Image.Image:
    """Return the image in the mode L, LA, RGB or RGBA."""
    if image.mode in ("F", "I") or image.mode.startswith("I;"):
        numbers = "floating-point numbers" if image.mode == "F" else "whole numbers of other sizes"
        raise FileError(argument, f"{path}, an image of {numbers}", KINDS)
    clear = image.has_transparency_data
    grey = image.mode in ("1", "L", "LA", "La")
    if not grey and image.mode not in ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"):
        raise FileError(argument, f"{path}, an image of mode {image.mode}", KINDS)
    mode = ("L" if grey else "RGB") + ("A" if clear else "")
    return image if image.mode == mode and "transparency" not in image.info else image.convert(mode)


def _read_png(path: Path, image: Image.Image) -> Picture:
    require("imagecodecs")
    import imagecodecs

    samples = imagecodecs.png_decode(path.read_bytes())
    channels = samples.shape[2] if samples.ndim == 3 else 1
    return _picture(_upright(samples, image.getexif().get(_ORIENTATION, 1)), channels in (2, 4), image)


def _read_tiff(argument: str, path: Path, page: tifffile.TiffPage) -> Picture:
    """Return a page of 16 bits or of floating-point numbers; refuse other depths, colours and numbers of channels."""
    colours = COLOURS.get(int(page.photometric))
    if page.dtype is None or (page.dtype.kind, page.dtype.itemsize) not in NUMBERS or page.bitspersample % 16:
        raise FileError(argument, f"{path}, an image of {page.bitspersample} bits per channel", KINDS)
    if colours is None or page.samplesperpixel - colours not in (0, 1) or len(page.shape) > 3:
        name = getattr(page.photometric, "name", page.photometric)
        said = f"{page.samplesperpixel} channels of {page.bitspersample} bits ({name})"
        raise FileError(argument, f"{path}, of {said}", KINDS)
    samples = _page_samples(argument, path, page)
    return _picture(samples, page.samplesperpixel > colours, profile=page.iccprofile)


def _page_samples(argument: str, path: Path, page: tifffile.TiffPage) -> np.ndarray:
    """Return `(H, W)` or `(H, W, channels)`, upright, black being 0."""
    if len(page.dataoffsets) < math.prod(page.chunked):  # the rest would be black
        raise FileError(argument, f"{path}, damaged (pixels are missing)", ACCEPTED)
    samples = page.asarray()
    if page.axes.startswith("S"):
        samples = np.moveaxis(samples, 0, -1)
    if int(page.photometric) == 0 and samples.dtype.kind == "u":
        samples = np.iinfo(samples.dtype).max - samples
    tag = page.tags.get(_ORIENTATION)
    return _upright(samples, 1 if tag is None else int(tag.value))


def _upright(samples: np.ndarray, orientation: int) -> np.ndarray:
    """Return `(H, W, ...)` as it is to be seen, from the orientation 1 to 8 that EXIF and TIFF know."""
    if orientation in (5, 6, 7, 8):
        samples = samples.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        samples = samples[::-1]
    return samples[:, ::-1] if orientation in (2, 3, 6, 7) else samples


def _picture(
    samples: np.ndarray,
    transparent: bool,
    image: Image.Image | None = None,
    profile: bytes | None = None,
    coloured: bool | None = None,
) -> Picture:
    """Return a picture from `(H, W)` or `(H, W, channels)`, with what else Pillow knows of the file.

    Of volumes `coloured` says whether the last axis holds channels.
    """
    coloured = samples.ndim == 3 if coloured is None else coloured
    channels = np.moveaxis(samples, -1, 0) if coloured else samples[None]
    colours, alpha = (channels[:-1], channels[-1].copy()) if transparent else (channels, None)
    profile = profile if image is None else image.info.get("icc_profile")
    if profile and profile[16:20] != _PROFILES[len(colours)]:
        profile = None  # of the palette or the inks that the file was in
    return Picture(np.ascontiguousarray(colours), alpha, profile or None, None if image is None else _exif(image))


def _exif(image: Image.Image) -> bytes | None:
    exif = image.getexif()
    if image.format == "TIFF" or not len(exif):
        return None  # what a TIFF has there is its own layout
    exif.pop(_ORIENTATION, None)
    return exif.tobytes() if len(exif) else None
