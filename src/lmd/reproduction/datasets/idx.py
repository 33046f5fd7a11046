"""Reading IDX files, the format MNIST comes in: a header that says type and shape, then the numbers."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from lmd.errors import FileError

UNSIGNED_BYTE = 0x08
"""The type code of MNIST's numbers, and the only one read here."""


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked where its name ends in `.gz`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileError("file", f"no file {path}", "an existing IDX file") from None
    except OSError as error:
        raise FileError("file", f"{path} ({error.strerror})", "a readable IDX file") from None
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError("file", f"{path}, damaged or truncated ({error})", "a gzip file") from None


def parse_idx(content: bytes, path: Path) -> np.ndarray:
    """The array of bytes in `content`, which was read from `path`.

    Two zeros, the type code, the number of dimensions; each dimension as a big-endian 32-bit number; the entries.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE or not 1 <= content[3] <= 4:
        raise FileError("file", f"{path}, which does not start as one", "an IDX file of unsigned bytes")
    begin = 4 + 4 * content[3]
    if len(content) < begin:
        raise FileError("file", f"{path}, truncated inside its header", "a whole IDX file")
    shape = tuple(int(size) for size in np.frombuffer(content[4:begin], dtype=">u4"))
    if 0 in shape:
        raise FileError("file", f"{path}, of shape {shape}", "an array with entries")
    expected = math.prod(shape)
    if len(content) - begin != expected:
        given = f"{path}, {'truncated' if len(content) - begin < expected else 'too long'}"
        accepted = f"{expected} entries after the header, as its shape {shape} says, not {len(content) - begin}"
        raise FileError("file", given, accepted)
    return np.frombuffer(content, dtype=np.uint8, offset=begin).reshape(shape)


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, packed with gzip or not."""
    return parse_idx(read_bytes(path), path)
