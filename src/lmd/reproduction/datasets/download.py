"""Downloading files once: each is checked by its SHA-256 before anybody sees it, then kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmd.core.extras import require
from lmd.core.files import writable_folder
from lmd.core.progress import LateBar
from lmd.errors import FileError

SECONDS_TO_WAIT = 30
"""For a server that does not answer."""


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
        with LateBar(name) as bar:
            fetch = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=SECONDS_TO_WAIT)
            try:
                return Path(pooch.retrieve(source + name, f"sha256:{digest}", name, folder, downloader=fetch))
            except ValueError:
                trouble.append(f"{source} (another SHA-256 than {digest[:12]}...)")
            except OSError as error:  # what requests raises are OSErrors
                trouble.append(f"{source} ({type(error).__name__})")
    accepted = f"the genuine file; put it into {folder} by hand, or into a folder that LMD_DATA names"
    raise FileError(name, f"nothing usable from {', '.join(trouble)}", accepted)
