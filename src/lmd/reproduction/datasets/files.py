"""Files of datasets: downloads that are checked by SHA-256, IDX files, and where datasets are looked for."""

from __future__ import annotations

import gzip
import logging
import math
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from lmd.core.extras import require
from lmd.core.files import cache_folder, writable_folder
from lmd.core.progress import ProgressBar
from lmd.errors import FileError

TIMEOUT_SECONDS = 30  # for a server that does not answer


def download(files: Mapping[str, str], sources: Sequence[str], folder: Path) -> list[Path]:
    """Download the named files to `folder` unless they are there already, and return where they are.

    `files` maps names to SHA-256 digests, `sources` are base addresses ending in a slash, tried in turn. A file that
    is there with another digest is fetched anew; one that arrives with another digest is refused and not kept.
    """
    require("pooch")
    import pooch

    writable_folder("cache folder", folder)
    pooch.get_logger().setLevel(logging.WARNING)
    return [_download_one(name, digest, sources, folder) for name, digest in files.items()]


def _download_one(name: str, digest: str, sources: Sequence[str], folder: Path) -> Path:
    import pooch

    trouble = []
    for source in sources:
        with ProgressBar(name) as bar:
            fetch = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=TIMEOUT_SECONDS)
            try:
                return Path(pooch.retrieve(source + name, f"sha256:{digest}", name, folder, downloader=fetch))
            except ValueError:
                trouble.append(f"{source} (another SHA-256 than {digest[:12]}...)")
            except OSError as error:  # all exceptions of requests are OSErrors
                trouble.append(f"{source} ({type(error).__name__})")
    accepted = f"the genuine file; put it into {folder} by hand, or into a folder that LMD_DATA names"
    raise FileError(name, f"nothing usable from {', '.join(trouble)}", accepted)


def named_folder(argument: str, path: str | Path) -> Path:
    """Return `path` if it is a folder."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise FileError(argument, f"{folder}, which is not a folder", "a folder with data in it")
    return folder


def find_folder(data_dir: str | Path | None, holder: Callable[[Path], Path | None]) -> Path | None:
    """Return what `holder` finds in `data_dir` if given, else in the folder LMD_DATA names, then in the cache."""
    if data_dir is not None:
        return holder(named_folder("data_dir", data_dir))
    named = os.environ.get("LMD_DATA")
    found = holder(named_folder("LMD_DATA", named)) if named else None
    return found or holder(cache_folder())


UNSIGNED_BYTE = 0x08  # the type code of MNIST's numbers, and the only one read here


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

    Format: two zeros, the type code, the number of dimensions; each dimension as a big-endian 32-bit number; entries.
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
