"""Read and write pictures and volumes: PNG, JPEG, TIFF of one page or many, NumPy arrays; grey or colour, upright.

Decoders may raise and print anything on damaged files; this module turns all of it into an error of one line.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import math
import os
import stat
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lmd.core.checks import check_memory
from lmd.core.extras import MissingError, require
from lmd.core.files import atomic_path, writable_name
from lmd.errors import FileError, InputError

if TYPE_CHECKING:
    import tifffile
    from PIL import Image

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF", ".npy": "NPY"}
DEEP = ("TIFF", "NPY")  # the formats that hold volumes and floating-point numbers
JPEG_SIDE = 65500  # the largest width and height of a JPEG
JPEG_QUALITY = 95
PNG_LEVEL, RUNS, PAETH = 1, 3, 128
"""PNG settings: Paeth's rule predicts each pixel from its neighbours, and only runs of equal bytes are compressed. This
takes a sixth of the time of the usual search for repetitions, and files of photographs are a tenth smaller."""
PNG_HEADER_END = 33  # the byte at which the first chunk of a PNG file ends; a profile comes next
NUM_DECODING_COPIES = 3  # copies of an image in memory while it is decoded, at most
MAX_GREY = 0.01  # the largest share of grey pixels in a mask; lines drawn by hand have grey rims

PILLOW = ("PNG", "JPEG", "TIFF")
ACCEPTED = "a PNG, JPEG or TIFF image, or an array in .npy"
KINDS = "grey, RGB or RGBA of 8 or 16 bits per channel, or floating-point numbers in .tif or .npy"
DENSEST = 8 * 1032  # pixels in a byte of a PNG, at most: a byte holds 8 pixels, and deflate packs 1032 bytes into one
NUMBERS = {("u", 1), ("u", 2), ("f", 2), ("f", 4), ("f", 8), ("b", 1)}  # accepted dtypes: NumPy's kind, itemsize
FAST = ("L", "LA", "RGB", "RGBA")  # modes of 8-bit PNG that imagecodecs decodes like Pillow, in less than half the time
COLOURS = {0: 1, 1: 1, 2: 3}  # channels without alpha, by the TIFF tag: 0 white is zero, 1 black is zero, 2 RGB
MIN_PAGE_BYTES = 50  # a page of a TIFF has at least the number of its tags (2 bytes) and four tags (12 bytes each)
_ORIENTATION = 0x0112
_PROFILES = {1: b"GRAY", 3: b"RGB "}  # bytes 16 to 20 of a colour profile, by the number of channels


@dataclass(frozen=True)
class Picture:
    """An image or a volume with the numbers of its file, turned upright."""

    colours: np.ndarray  # `(1 or 3, H, W)`, grey or RGB, or `(1 or 3, D, H, W)`; uint8, uint16 or floating-point
    alpha: np.ndarray | None = None  # how opaque each pixel is `(H, W)`, in the same type
    profile: bytes | None = None  # the ICC colour profile
    exif: bytes | None = None  # the camera's EXIF data without the orientation, which has been applied

    @property
    def size(self) -> tuple[int, ...]:
        """`(H, W)`, or `(D, H, W)` for a volume."""
        return self.colours.shape[1:]

    @property
    def most(self) -> int:
        """The number that stands for white: 255, 65535, or 1 for floating-point numbers."""
        return 1 if self.colours.dtype.kind == "f" else int(np.iinfo(self.colours.dtype).max)

    @property
    def bits(self) -> int:
        """The number of bits per channel: 8, 16, 32 or 64."""
        return 8 * self.colours.dtype.itemsize

    @property
    def mode(self) -> str:
        """`grey` or `RGB`, followed by an A if there is an alpha channel."""
        return ("grey" if len(self.colours) == 1 else "RGB") + ("" if self.alpha is None else "A")

    def samples(self) -> np.ndarray:
        """Return all channels in the layout of files: `(*size)`, or `(*size, channels)` with alpha last."""
        parts = [*self.colours] if self.alpha is None else [*self.colours, self.alpha]
        return np.stack(parts, axis=-1) if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class Header:
    """The facts about an image that its file gives before it is decoded."""

    size: tuple[int, ...]  # `(H, W)`, or `(D, H, W)` for a volume
    channels: int  # including alpha
    bits: int
    floating: bool = False

    @property
    def bytes(self) -> int:
        return math.prod(self.size) * self.channels * self.bits // 8


def spoken(size: tuple[int, ...]) -> str:
    """Return a size in words, with the width first.

    >>> spoken((480, 640))
    '640 x 480 pixels'
    """
    return " x ".join(map(str, reversed(size))) + " pixels"


def eight_bits(samples: np.ndarray) -> np.ndarray:
    """Return samples of 8 or 16 bits as bytes; 65535 becomes 255."""
    if samples.dtype == np.uint8:
        return samples
    return ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)


Opened = tuple[Header, Callable[[], Picture]]
"""The header of a file, and the function that decodes its image."""


@contextmanager
def open_picture(path: str | Path, argument: str = "image") -> Iterator[Opened]:
    """Open an image file; yield its header and a function that decodes it. `argument` is its name in errors."""
    require("PIL")
    from PIL import UnidentifiedImageError

    path = Path(path)
    _check_file(path, argument)
    try:
        with _SILENCE, ExitStack() as files:
            header, decode = _open(argument, path, files)
            if math.prod(header.size) == 0:
                raise FileError(argument, f"{path}, damaged (it has no pixels)", ACCEPTED)

            def read() -> Picture:
                check_memory(argument, f"{path} of {spoken(header.size)}", NUM_DECODING_COPIES * header.bytes)
                return decode()

            yield header, read
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


def _check_file(path: Path, argument: str) -> None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileError(argument, f"no file {path}", ACCEPTED) from None
    except (OSError, ValueError) as error:
        raise FileError(argument, f"{path} ({error})", ACCEPTED) from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "no plain file"
        raise FileError(argument, f"{path}, which is {kind}", ACCEPTED)
    if found.st_size == 0:
        raise FileError(argument, f"{path}, an empty file", ACCEPTED)


class _Silence:
    """Suppress warnings, Pillow's limit on pixels and all output to stderr while any thread reads a file.

    The file descriptor of stderr is redirected, because C libraries write to it too. The last thread undoes this.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._all = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        from PIL import Image

        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            self._all.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            with suppress(OSError):  # there may be no stderr
                stderr = os.dup(2)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                for handle in (stderr, nowhere):
                    self._all.callback(os.close, handle)
                sys.stderr.flush()
                os.dup2(nowhere, 2)
                self._all.callback(os.dup2, stderr, 2)
            for owner, name, value in ((Image, "MAX_IMAGE_PIXELS", None), (LOG, "disabled", True)):
                self._all.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, value)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._all.close()


_SILENCE, LOG = _Silence(), logging.getLogger("tifffile")


def _open(argument: str, path: Path, files: ExitStack) -> Opened:
    """Open a .npy array with NumPy, a TIFF of more than 8 bits or several pages with tifffile, all else with Pillow.

    Pillow knows every palette and colour space but reduces colours of 16 bits to 8 bits.
    """
    with open(path, "rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        return _open_array(argument, path, np.load(path, mmap_mode="r", allow_pickle=False))
    if start[:2] in (b"II", b"MM"):
        require("tifffile")
        import tifffile

        whole = files.enter_context(tifffile.TiffFile(path))
        most = path.stat().st_size // MIN_PAGE_BYTES
        chain = list(itertools.islice(whole.pages, most + 1))
        if len(chain) > most:
            raise FileError(argument, f"{path}, damaged (its pages lead back to pages before them)", ACCEPTED)
        pages = [page for page in chain if isinstance(page, tifffile.TiffPage) and not page.is_reduced]
        if len(pages) > 1 or whole.pages.first.bitspersample > 8:
            return _open_tiff(argument, path, pages if len(pages) > 1 else [whole.pages.first])
    from PIL import Image

    for name in PILLOW:  # otherwise Pillow imports all of its formats
        importlib.import_module(f"PIL.{name.capitalize()}ImagePlugin")
    return _open_pillow(argument, path, files.enter_context(Image.open(path, formats=PILLOW)))


def _open_array(argument: str, path: Path, array: np.ndarray) -> Opened:
    """Open an array in .npy: `(H, W)`, `(H, W, 3 or 4)`, `(D, H, W)` or `(D, H, W, 3)`."""
    dtype, is_coloured = array.dtype, array.ndim == 4 or (array.ndim == 3 and array.shape[2] in (3, 4))
    size, channels = (array.shape[:-1], array.shape[-1]) if is_coloured else (array.shape, 1)
    if not 2 <= len(size) <= 3 or channels not in ((1, 3) if len(size) == 3 else (1, 3, 4)) or array.size == 0:
        accepted = "an image (H, W) or (H, W, 3 or 4), or a volume (D, H, W) or (D, H, W, 3)"
        raise FileError(argument, f"{path}, an array of shape {array.shape}", accepted)
    if (dtype.kind, dtype.itemsize) not in NUMBERS:
        accepted = "numbers of 8 or 16 bits without a sign, floating-point numbers, or true and false"
        raise FileError(argument, f"{path}, of {dtype}", accepted)

    def decode() -> Picture:
        samples = 255 * array.astype(np.uint8) if dtype.kind == "b" else array
        native = np.asarray(samples, dtype=samples.dtype.newbyteorder("="))
        return _picture(native, channels == 4, is_coloured)

    return Header(size, channels, 8 * dtype.itemsize, dtype.kind == "f"), decode


def _open_tiff(argument: str, path: Path, pages: list[tifffile.TiffPage]) -> Opened:
    """Open the pages of a TIFF; several pages are the layers of a volume."""
    first, is_volume = pages[0], len(pages) > 1
    dtype, bits, channels = first.dtype, first.bitspersample, first.samplesperpixel
    if any((page.shape, page.dtype) != (first.shape, dtype) for page in pages):
        raise FileError(argument, f"{path}, of {len(pages)} pages of several sizes or kinds", "pages that are alike")
    if dtype is None or (dtype.kind, dtype.itemsize) not in NUMBERS or (bits % 16 and not is_volume):
        raise FileError(argument, f"{path}, an image of {bits} bits per channel", KINDS)
    colours = COLOURS.get(int(first.photometric))
    if colours is None or channels - colours not in ((0,) if is_volume else (0, 1)) or len(first.shape) > 3:
        name = getattr(first.photometric, "name", first.photometric)
        raise FileError(argument, f"{path}, of {channels} channels of {bits} bits ({name})", KINDS)

    def decode() -> Picture:
        layers = [_page_samples(argument, path, page) for page in pages]
        return _picture(
            np.stack(layers) if is_volume else layers[0], channels > colours, channels > 1, first.iccprofile
        )

    size = (*((len(pages),) if is_volume else ()), first.imagelength, first.imagewidth)
    return Header(size, channels, bits, dtype.kind == "f"), decode


def _page_samples(argument: str, path: Path, page: tifffile.TiffPage) -> np.ndarray:
    """Return the samples of a page `(H, W)` or `(H, W, channels)`, upright, with 0 for black."""
    if len(page.dataoffsets) < math.prod(page.chunked):  # tifffile would fill the missing chunks with black
        raise FileError(argument, f"{path}, damaged (pixels are missing)", ACCEPTED)
    samples = page.asarray()
    if page.axes.startswith("S"):
        samples = np.moveaxis(samples, 0, -1)
    if int(page.photometric) == 0 and samples.dtype.kind == "u":
        samples = np.iinfo(samples.dtype).max - samples
    tag = page.tags.get(_ORIENTATION)
    return _upright(samples, 1 if tag is None else int(tag.value))


def _open_pillow(argument: str, path: Path, image: Image.Image) -> Opened:
    """Open an image of Pillow; imagecodecs decodes PNG if it is faster or keeps 16 bits."""
    tiles = getattr(image, "tile", None)
    coding = str(tiles[0].args) if tiles and image.format == "PNG" else ""  # how the pixels are written
    deep = coding.split(";")[0] if "16" in coding else ""
    bands = len(deep) if deep else 4 if image.mode in ("P", "PA") else len(image.getbands())
    header = Header((image.height, image.width), bands, 16 if deep else 8)
    if image.format in ("PNG", "JPEG") and math.prod(header.size) > DENSEST * path.stat().st_size:
        raise FileError(argument, f"{path}, damaged (it is too short to hold {spoken(header.size)})", ACCEPTED)
    is_fast = coding in FAST and "transparency" not in image.info and importlib.util.find_spec("imagecodecs")

    def decode() -> Picture:
        from PIL import ImageOps

        if is_fast or deep:
            require("imagecodecs")
            import imagecodecs

            samples = imagecodecs.png_decode(path.read_bytes())
            samples = _upright(samples, image.getexif().get(_ORIENTATION, 1))
        else:
            samples = np.asarray(_plain(argument, path, ImageOps.exif_transpose(image)))
        has_alpha = samples.ndim == 3 and samples.shape[2] in (2, 4)
        return _picture(samples, has_alpha, samples.ndim == 3, image.info.get("icc_profile"), _exif(image))

    return header, decode


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


def _upright(samples: np.ndarray, orientation: int) -> np.ndarray:
    """Return samples `(H, W, ...)` turned upright, given the orientation (1 to 8) of EXIF or TIFF."""
    if orientation in (5, 6, 7, 8):
        samples = samples.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        samples = samples[::-1]
    return samples[:, ::-1] if orientation in (2, 3, 6, 7) else samples


def _picture(
    samples: np.ndarray, has_alpha: bool, is_coloured: bool, profile: bytes | None = None, exif: bytes | None = None
) -> Picture:
    """Return a picture from samples `(*size)`, or `(*size, channels)` if it is coloured or has alpha."""
    channels = np.moveaxis(samples, -1, 0) if is_coloured else samples[None]
    colours, alpha = (channels[:-1], channels[-1].copy()) if has_alpha else (channels, None)
    if profile and profile[16:20] != _PROFILES[len(colours)]:
        profile = None  # it described the file's palette or inks, which have been converted
    return Picture(np.ascontiguousarray(colours), alpha, profile or None, exif)


def _exif(image: Image.Image) -> bytes | None:
    exif = image.getexif()
    if image.format == "TIFF" or not len(exif):
        return None  # the EXIF data of a TIFF describe its own layout
    exif.pop(_ORIENTATION, None)
    return exif.tobytes() if len(exif) else None


def read_header(path: str | Path, argument: str = "image") -> Header:
    """Return the header of an image file without reading its pixels."""
    with open_picture(path, argument) as (header, _):
        return header


def read_picture(path: str | Path, argument: str = "image") -> Picture:
    """Return the picture in a file, turned upright, with palettes and CMYK converted to RGB.

    A TIFF of several pages is a volume. A .npy array of three axes is a volume too, unless its last axis has length
    3 or 4: such an axis holds the channels.
    """
    with open_picture(path, argument) as (_, read):
        return read()


def read_mask(path: str | Path, size: tuple[int, ...]) -> np.ndarray:
    """Return a boolean array that is true at the white pixels of a black-and-white image or volume of this size.

    Pixels lighter than half are white. Masks with colours, transparency or more than 1% grey pixels are refused.
    """
    accepted = "an image of black (lost) and white (kept) pixels alone"
    check_mask_size(path, size)
    picture = read_picture(path, "mask")
    colours, most = picture.colours, picture.most
    white, is_grey = colours > most // 2, (colours > most // 4) & (colours < most - most // 4)
    if picture.size != size:
        raise FileError("mask", f"{path} of {spoken(picture.size)}", f"{spoken(size)}, as the image has")
    if picture.alpha is not None and bool((picture.alpha < most).any()):
        raise FileError("mask", f"{path}, partly transparent", accepted)
    if bool((white != white[0]).any()):
        raise FileError("mask", f"{path}, in colour", accepted)
    if int(colours.max()) == 1:
        raise FileError("mask", f"{path}, of zeros and ones", f"{accepted}: 0 and {most}")
    if (share := float(is_grey.mean())) > MAX_GREY:
        raise FileError("mask", f"{path}, {100 * share:.1f}% of which is grey", accepted)
    if not bool(white.any()):
        raise FileError("mask", f"{path}, all black", "at least one white pixel, as white pixels are kept")
    return white[0]


def check_mask_size(path: str | Path, size: tuple[int, ...]) -> None:
    """Raise if the size in the header of a mask is not that of the image, whatever the orientation."""
    found = read_header(path, "mask").size
    if sorted(found) != sorted(size):
        raise FileError("mask", f"{path} of {spoken(found)}", f"{spoken(size)}, as the image has")


def write_picture(path: str | Path, picture: Picture) -> None:
    """Write a picture atomically, in the format that its name ends in; `losses` lists what JPEG cannot hold."""
    path = Path(path)
    kind, samples = _format_of(path), picture.samples()
    with atomic_path(path) as temporary:
        if kind == "PNG":
            temporary.write_bytes(_encode_png(picture, samples))
        elif kind == "TIFF":
            require("tifffile")
            import tifffile

            tifffile.imwrite(
                temporary,
                samples,
                photometric="minisblack" if len(picture.colours) == 1 else "rgb",
                planarconfig="contig" if picture.mode != "grey" else None,
                extrasamples=None if picture.alpha is None else ["unassalpha"],
                compression="zlib",
                predictor=samples.dtype.kind == "u",
                iccprofile=picture.profile,
                metadata=None,
                software=False,
            )
        elif kind == "NPY":
            np.save(temporary, np.ascontiguousarray(samples), allow_pickle=False)
        else:
            from PIL import Image

            image = Image.fromarray(eight_bits(replace(picture, alpha=None).samples()))
            extra = {"exif": picture.exif} if picture.exif else {}
            image.save(temporary, "JPEG", quality=JPEG_QUALITY, subsampling=0, icc_profile=picture.profile, **extra)


def _encode_png(picture: Picture, samples: np.ndarray) -> bytes:
    """Return the bytes of a PNG file with the picture, its colour profile and its EXIF data."""
    require("imagecodecs")
    import imagecodecs

    encoded = bytes(imagecodecs.png_encode(samples, level=PNG_LEVEL, strategy=RUNS, filter=PAETH))
    chunks = b""
    if picture.profile:
        chunks += _chunk(b"iCCP", b"ICC profile\0\0" + zlib.compress(picture.profile))
    if picture.exif:
        chunks += _chunk(b"eXIf", picture.exif.removeprefix(b"Exif\0\0"))
    return encoded[:PNG_HEADER_END] + chunks + encoded[PNG_HEADER_END:]


def _chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file: length, kind, content, and a checksum of kind and content."""
    checksum = zlib.crc32(kind + content)
    return len(content).to_bytes(4, "big") + kind + content + checksum.to_bytes(4, "big")


def losses(path: str | Path, picture: Picture) -> list[str]:
    """Return a line for each property of the picture that the format of `path` cannot hold."""
    if _format_of(Path(path)) != "JPEG":
        return []
    lost = ["JPEG holds no transparency: write PNG or TIFF to keep it"] if picture.alpha is not None else []
    return lost + (["JPEG holds 8 bits: write PNG or TIFF to keep 16"] if picture.bits == 16 else [])


def check_out(path: str | Path, header: Header, *inputs: str | Path, overwrite: bool = False) -> Path:
    """Return `path` if an image can be written there. Existing files need `overwrite`; inputs are never replaced."""
    path = writable_name("out", path)
    kind = _format_of(path)
    if kind == "JPEG" and max(header.size) > JPEG_SIDE:
        accepted = f".png or .tif, as JPEG holds at most {JPEG_SIDE} each way"
        raise FileError("out", f"{path} for {spoken(header.size)}", accepted)
    if kind not in DEEP and (header.floating or len(header.size) > 2):
        what = "floating-point numbers" if header.floating else "a volume"
        raise FileError("out", f"{path} for {what}", "a name that ends in .tif or .npy")
    if path.exists() and any(map(path.samefile, filter(os.path.exists, inputs))):
        raise FileError("out", f"{path}, which is an input too", "another name, as inputs are never overwritten")
    if path.exists() and not overwrite:
        accepted = "a new name, or --overwrite (overwrite=True) to replace it"
        raise FileError("out", f"{path}, which exists already", accepted)
    return path


def _format_of(path: Path) -> str:
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise FileError("out", f"{path}", f"a name that ends in {', '.join(FORMATS)}")
    return kind
