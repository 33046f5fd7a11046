"""From a picture to the bytes of a file: PNG and TIFF, which keep all of it, and JPEG."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

from lmd.core.extras import require
from lmd.imaging.picture import Picture, eight_bits

JPEG_QUALITY = 95

PNG_LEVEL, RUNS, PAETH = 1, 3, 128
"""Each pixel is guessed from its neighbours by Paeth's rule, and of what is left runs alone are sought: a sixth of the
time of the usual search for repetitions, and files of photographs are a tenth smaller."""

_HEADER_END = 33
"""Where the first chunk of a PNG file ends; a profile comes next."""


def encode_png(picture: Picture) -> bytes:
    """All of the picture, its profile and what the camera noted among it."""
    require("imagecodecs")
    import imagecodecs

    encoded = bytes(imagecodecs.png_encode(picture.samples(), level=PNG_LEVEL, strategy=RUNS, filter=PAETH))
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


def write_tiff(path: Path, picture: Picture) -> None:
    """All of the picture but what the camera noted."""
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


def write_jpeg(path: Path, picture: Picture) -> None:
    """The colours in 8 bits, nearly."""
    from PIL import Image

    image = Image.fromarray(eight_bits(replace(picture, alpha=None).samples()))
    extra = {"exif": picture.exif} if picture.exif else {}
    image.save(path, "JPEG", quality=JPEG_QUALITY, subsampling=0, icc_profile=picture.profile, **extra)
