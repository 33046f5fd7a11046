"""Pictures and volumes in files: PNG, JPEG, TIFF of one page or many, arrays of NumPy; grey or colour, upright."""

from __future__ import annotations

import importlib
import logging
import math
import os
import stat
import sys
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmd.data.memory import check_memory
from lmd.errors import FileError, InputError
from lmd.extras import MissingError, require
from lmd.files import atomic_path, writable_name

if TYPE_CHECKING:
    import tifffile
    from PIL import Image

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF", ".npy": "NPY"}
"""What the ending of a file's name says about it, when it is to be written."""

PILLOW = ("PNG", "JPEG", "TIFF")
DEEP = ("TIFF", "NPY")
"""The formats that hold volumes and floating-point numbers."""

ACCEPTED = "a PNG, JPEG or TIFF image, or an array in .npy"
KINDS = "grey, RGB or RGBA of 8 or 16 bits per channel, or floating-point numbers in .tif or .npy"

JPEG_QUALITY = 95
JPEG_SIDE = 65500
"""The most pixels that JPEG holds in a row or a column."""

DECODING = 3
"""How many copies of an image there are while it is decoded, at most."""

DENSEST = 8 * 1032
"""How many pixels a byte of a PNG holds at most: eight make a byte, which deflate packs 1032 to one. JPEG has fewer."""

MOST_GREY = 0.01
"""How much of a mask may be grey, as the rims of what is drawn by hand are."""

PNG_LEVEL = 4
"""How hard to compress, of 9: a little larger than at the usual 6, in half the time."""

NUMBERS = {("u", 1), ("u", 2), ("f", 2), ("f", 4), ("f", 8), ("b", 1)}
"""What the numbers of volumes and arrays may be, by NumPy's letter and bytes."""

COLOURS = {0: 1, 1: 1, 2: 3}
"""How many channels a TIFF has beside alpha, by what it calls its colours: white is zero, black is zero, RGB."""

_HEADER_END = 33
"""Where the first chunk of a PNG file ends; a profile comes next."""

_ORIENTATION = 0x0112
_PROFILES = {1: b"GRAY", 3: b"RGB "}
"""What a colour profile has at bytes 16 to 20 if it speaks of so many channels."""


Opened = Any
"""What a file is before it is decoded: an array, an image of Pillow, a page of tifffile or a list of them."""


@dataclass(frozen=True)
class Picture:
    """An image or a volume as a file holds it, upright."""

    colours: np.ndarray
    """`(1, H, W)` grey or `(3, H, W)` RGB, or `(1 or 3, D, H, W)`; uint8, uint16 or floating-point."""

    alpha: np.ndarray | None = None
    """How opaque each pixel is `(H, W)`, in the same type."""

    profile: bytes | None = None
    """The ICC colour profile."""

    exif: bytes | None = None
    """What the camera noted, without the orientation, which has been followed."""

    @property
    def size(self) -> tuple[int, ...]:
        """Height and width, of a volume depth before them."""
        return self.colours.shape[1:]

    @property
    def most(self) -> int:
        """The number that stands for white: 255 or 65535, and 1 where numbers are floating-point."""
        return 1 if self.colours.dtype.kind == "f" else int(np.iinfo(self.colours.dtype).max)

    @property
    def bits(self) -> int:
        """8 or 16; more where numbers are floating-point."""
        return 8 * self.colours.dtype.itemsize

    @property
    def mode(self) -> str:
        """`grey` or `RGB`, with an A where there is transparency."""
        return ("grey" if len(self.colours) == 1 else "RGB") + ("" if self.alpha is None else "A")

    def samples(self) -> np.ndarray:
        """All channels as files have them: `(*size)`, or `(*size, channels)` with alpha last."""
        parts = [*self.colours] if self.alpha is None else [*self.colours, self.alpha]
        return np.stack(parts, axis=-1) if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class Header:
    """What a file says about its image before it is decoded."""

    size: tuple[int, ...]
    """Height and width, of a volume depth before them."""

    channels: int
    """With alpha."""

    bits: int
    floating: bool = False

    @property
    def deep(self) -> bool:
        """Whether only some formats hold it: a volume, or floating-point numbers."""
        return self.floating or len(self.size) > 2

    @property
    def bytes(self) -> int:
        return math.prod(self.size) * self.channels * self.bits // 8

    def __str__(self) -> str:
        return spoken(self.size)


def spoken(size: tuple[int, ...]) -> str:
    """Width first, as people say it.

    >>> spoken((480, 640))
    '640 x 480 pixels'
    """
    return " x ".join(str(length) for length in reversed(size)) + " pixels"


def read_header(path: str | Path, argument: str = "image") -> Header:
    """The size of an image file, whose pixels are not looked at."""
    path = _check_file(Path(path), argument)
    with _reading(argument, path), _opened(argument, path) as image:
        return _header(argument, path, image)


def read_picture(path: str | Path, argument: str = "image") -> Picture:
    """An image file: upright, palettes resolved, CMYK turned into RGB, all else as it is.

    A TIFF of several pages is a volume. So is an array of three axes in .npy, unless the last has length 3 or 4: those
    are channels. `argument` is what errors call it.
    """
    from PIL import Image

    path = _check_file(Path(path), argument)
    with _reading(argument, path), _opened(argument, path) as image:
        header = _header(argument, path, image)
        check_memory(argument, f"{path} of {header}", DECODING * header.bytes)
        if isinstance(image, np.ndarray):
            return _read_array(image)
        if not isinstance(image, Image.Image):
            return _read_pages(argument, path, image) if isinstance(image, list) else _read_tiff(argument, path, image)
        return _read_deep_png(path, image) if _deep_bands(image) else _read_pillow(argument, path, image)


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
            temporary.write_bytes(_encode_png(picture))
        elif kind == "TIFF":
            _write_tiff(temporary, picture)
        elif kind == "NPY":
            np.save(temporary, np.ascontiguousarray(picture.samples()), allow_pickle=False)
        else:
            _write_jpeg(temporary, picture)


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
        raise FileError(argument, f"{path}, which exists already", "a new name, or leave to overwrite it")
    return path


def eight_bits(samples: np.ndarray) -> np.ndarray:
    """The nearest bytes: 65535 becomes 255."""
    if samples.dtype == np.uint8:
        return samples
    return ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)


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


@contextmanager
def _reading(argument: str, path: Path) -> Iterator[None]:
    """Turn whatever a decoder raises into one line, and keep what it says besides to itself."""
    require("PIL")
    from PIL import UnidentifiedImageError

    try:
        with _SILENCE:
            yield
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

    The last to leave puts all back. Libraries in C write to stderr too, so it is led nowhere as a whole.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._all = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._all = ExitStack()
                self._all.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                self._all.enter_context(_no_limits())
                self._all.enter_context(_nothing_on_stderr())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._all.close()


_SILENCE = _Silence()


@contextmanager
def _no_limits() -> Iterator[None]:
    from PIL import Image

    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    log = logging.getLogger("tifffile")
    was_silent, log.disabled = log.disabled, True
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS, log.disabled = limit, was_silent


@contextmanager
def _nothing_on_stderr() -> Iterator[None]:
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        sys.stderr.flush()
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _opened(argument: str, path: Path) -> Iterator[Opened]:
    """The file's image, not decoded: an array in .npy, the pages of a volume, a page of tifffile for TIFF of more than
    8 bits, else an image of Pillow.

    Pillow knows every palette and colour space, but cuts colours of 16 bits down to 8.
    """
    with open(path, "rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        yield np.load(path, mmap_mode="r", allow_pickle=False)
        return
    if start[:2] in (b"II", b"MM"):
        require("tifffile")
        import tifffile

        with tifffile.TiffFile(path) as whole:
            pages = [page for page in whole.pages if isinstance(page, tifffile.TiffPage) and not page.is_reduced]
            if len(pages) > 1:
                yield pages
                return
            if whole.pages.first.bitspersample > 8:
                yield whole.pages.first
                return
    from PIL import Image

    for name in PILLOW:  # or Pillow imports every format it has
        importlib.import_module(f"PIL.{name.capitalize()}ImagePlugin")
    with Image.open(path, formats=PILLOW) as image:
        yield image


def _header(argument: str, path: Path, image: Opened) -> Header:
    if isinstance(image, np.ndarray):
        return _array_header(argument, path, image)
    if isinstance(image, list):
        return _pages_header(argument, path, image)
    if bits := getattr(image, "bitspersample", 0):
        header = Header((image.imagelength, image.imagewidth), image.samplesperpixel, bits, _floating(image))
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


def _floating(page: tifffile.TiffPage) -> bool:
    return page.dtype is not None and page.dtype.kind == "f"


def _array_header(argument: str, path: Path, array: np.ndarray) -> Header:
    """Of an array in .npy: `(H, W)`, `(H, W, 3 or 4)`, `(D, H, W)` or `(D, H, W, 3)`."""
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
    """Of a TIFF of several pages, which are the layers of a volume."""
    first = pages[0]
    if any((page.shape, page.dtype) != (first.shape, first.dtype) for page in pages):
        raise FileError(argument, f"{path}, of {len(pages)} pages of several sizes or kinds", "pages that are alike")
    _check_numbers(argument, path, first.dtype)
    if COLOURS.get(int(first.photometric)) != first.samplesperpixel:
        raise FileError(argument, f"{path}, of pages of {first.samplesperpixel} channels", "pages in grey or RGB")
    size = (len(pages), first.imagelength, first.imagewidth)
    return Header(size, first.samplesperpixel, first.bitspersample, _floating(first))


def _read_pages(argument: str, path: Path, pages: list[tifffile.TiffPage]) -> Picture:
    layers = np.stack([_page_samples(argument, path, page) for page in pages])
    return _picture(layers, False, profile=pages[0].iccprofile, coloured=pages[0].samplesperpixel > 1)


def _deep_bands(image: Image.Image) -> str:
    """The channels of a PNG of 16 bits, of which Pillow would give the upper 8; empty for any other image."""
    coding = [str(tile.args) for tile in getattr(image, "tile", ()) if image.format == "PNG"]
    return coding[0].split(";")[0] if coding and "16" in coding[0] else ""


def _read_pillow(argument: str, path: Path, image: Image.Image) -> Picture:
    from PIL import ImageOps

    upright = _plain(argument, path, ImageOps.exif_transpose(image))
    samples = np.asarray(upright)
    return _picture(samples, upright.mode.endswith("A"), image)


def _plain(argument: str, path: Path, image: Image.Image) -> Image.Image:
    """The image in the mode L, LA, RGB or RGBA."""
    if image.mode in ("F", "I") or image.mode.startswith("I;"):
        numbers = "floating-point numbers" if image.mode == "F" else "whole numbers of other sizes"
        raise FileError(argument, f"{path}, an image of {numbers}", KINDS)
    clear = image.has_transparency_data
    grey = image.mode in ("1", "L", "LA", "La")
    if not grey and image.mode not in ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"):
        raise FileError(argument, f"{path}, an image of mode {image.mode}", KINDS)
    mode = ("L" if grey else "RGB") + ("A" if clear else "")
    return image if image.mode == mode and "transparency" not in image.info else image.convert(mode)


def _read_deep_png(path: Path, image: Image.Image) -> Picture:
    require("imagecodecs")
    import imagecodecs

    samples = imagecodecs.png_decode(path.read_bytes())
    channels = samples.shape[2] if samples.ndim == 3 else 1
    return _picture(_upright(samples, image.getexif().get(_ORIENTATION, 1)), channels in (2, 4), image)


def _read_tiff(argument: str, path: Path, page: tifffile.TiffPage) -> Picture:
    """A page of 16 bits or of floating-point numbers; other depths, colours and numbers of channels are refused."""
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
    """`(H, W)` or `(H, W, channels)`, upright, black being 0."""
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
    """`(H, W, ...)` as it is to be seen, from the orientation 1 to 8 that EXIF and TIFF know."""
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
    """A picture from `(H, W)` or `(H, W, channels)`, with what else Pillow knows of the file.

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


def _encode_png(picture: Picture) -> bytes:
    require("imagecodecs")
    import imagecodecs

    encoded = bytes(imagecodecs.png_encode(picture.samples(), level=PNG_LEVEL))
    chunks = b""
    if picture.profile:
        chunks += _chunk(b"iCCP", b"ICC profile\0\0" + zlib.compress(picture.profile))
    if picture.exif:
        chunks += _chunk(b"eXIf", picture.exif.removeprefix(b"Exif\0\0"))
    return encoded[:_HEADER_END] + chunks + encoded[_HEADER_END:]


def _chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG file: its length, its kind, its content, and a checksum of the two."""
    checksum = zlib.crc32(kind + content)
    return len(content).to_bytes(4, "big") + kind + content + checksum.to_bytes(4, "big")


def _write_tiff(path: Path, picture: Picture) -> None:
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
    from PIL import Image

    image = Image.fromarray(eight_bits(replace(picture, alpha=None).samples()))
    extra = {"exif": picture.exif} if picture.exif else {}
    image.save(path, "JPEG", quality=JPEG_QUALITY, subsampling=0, icc_profile=picture.profile, **extra)
