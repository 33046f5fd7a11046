"""Optima on disk: points and dual points by the content of their problems, as many as fit into a limit."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.core.files import cache_folder, read_tensors, write_tensors
from lmd.errors import FileError

LIMIT = 2**30
"""How many bytes of optima to keep."""


class Cache:
    """A folder of points and dual points, of at most `limit` bytes: the oldest go first.

    The folder is `optima` in the one that LMD_CACHE names, or in the platform's place for caches, unless another is
    given. Nothing that is read is taken on trust: `lmd.reference.optimum` proves it again.

    Args:
        folder: Where to; None is the place above.
        limit: Bytes.
    """

    def __init__(self, folder: str | Path | None = None, limit: int = LIMIT) -> None:
        self.folder = cache_folder() / "optima" if folder is None else Path(folder)
        self.limit = check_count("limit", limit)

    def read(self, problem: Any) -> tuple[Tensor, Tensor] | None:
        """What was written for a problem of this content, of the right shapes; None where there is nothing."""
        try:
            found = read_tensors(self._path(problem))
        except FileError:
            return None
        x, dual = found.get("x"), found.get("dual")
        start = problem.start()
        if x is None or dual is None or x.shape != start.shape or dual.shape != problem.operator(start).shape:
            return None
        return (x, dual) if x.dtype == dual.dtype == torch.float64 else None

    def write(self, problem: Any, x: Tensor, dual: Tensor) -> None:
        """Keep an answer, whole or not at all; a cache that cannot be written costs time and nothing else."""
        with suppress(OSError, FileError):
            write_tensors(self._path(problem), {"x": x, "dual": dual})
            kept = 0
            for path in sorted(self.folder.glob("*.safetensors"), key=lambda path: -path.stat().st_mtime_ns):
                kept += path.stat().st_size
                if kept > self.limit:
                    path.unlink(missing_ok=True)

    def _path(self, problem: Any) -> Path:
        digest = hashlib.sha256()
        _add(digest, problem)
        return self.folder / f"{digest.hexdigest()}.safetensors"


def _add(digest: Any, item: Any) -> None:
    """Add what an item is made of; what is private or computed on demand follows from the rest."""
    if isinstance(item, Tensor):
        digest.update(f"{item.dtype}{tuple(item.shape)}".encode())
        digest.update(item.detach().cpu().contiguous().numpy().data)
    elif isinstance(item, (tuple, list)):
        digest.update(f"{len(item)}".encode())
        for entry in item:
            _add(digest, entry)
    elif hasattr(item, "__dict__"):
        digest.update(type(item).__qualname__.encode())
        for name, value in sorted(vars(item).items()):
            if not name.startswith("_") and not isinstance(getattr(type(item), name, None), cached_property):
                digest.update(name.encode())
                _add(digest, value)
    else:
        digest.update(repr(item).encode())
