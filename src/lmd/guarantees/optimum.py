"""Certified optima: what a reference method returns, how it is proven, and the cache of them on disk."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.core.files import cache_folder, read_tensors, write_tensors
from lmd.errors import FileError
from lmd.problems.composite import Composite

MAX_CACHE_BYTES = 2**30

Pair = tuple[Tensor, Tensor]  # a point x and a dual point, each of a batch of one


@dataclass(frozen=True)
class Optimum:
    """Certified optima of a batch, in float64 on the CPU: each infimum f* lies in [`bound`, `value`].

    Args:
        x: Points `(B, ...)`.
        value: f(x) `(B,)`, which no infimum can exceed.
        bound: Proven lower bounds on f* `(B,)`.
        attained: Which have a minimiser `(B,)`. Where there is none, f* is `bound`, and f falls to it along t x.
    """

    x: Tensor
    value: Tensor
    bound: Tensor
    attained: Tensor

    @classmethod
    def of(cls, x: Tensor, value: Tensor, bound: Tensor, attained: bool = True) -> Optimum:
        """Return optima that are all attained, or all not."""
        return cls(x, value, bound, torch.full_like(value, attained, dtype=torch.bool))

    @classmethod
    def from_dual(cls, problem: Composite, x: Tensor, dual: Tensor) -> Optimum:
        """Return a point with the lower bound that a dual point proves."""
        value = problem.value(x)
        return cls.of(x, value, value - problem.gap(x, dual))

    @property
    def gap(self) -> Tensor:
        """How far f(x) can be from f* `(B,)`."""
        return self.value - self.bound

    @property
    def infimum(self) -> Tensor:
        """f* `(B,)`, to within `gap` where it is attained, exactly where it is not."""
        return torch.where(self.attained, self.value, self.bound)


class OptimumCache:
    """A folder of points and dual points by the content of their problems; beyond `limit` bytes the oldest are removed.

    What is read is proven again before it is used.

    Args:
        folder: None is `optima` in the folder that LMD_CACHE names, or in the platform's cache folder.
        limit: Bytes.
    """

    def __init__(self, folder: str | Path | None = None, limit: int = MAX_CACHE_BYTES) -> None:
        self.folder = cache_folder() / "optima" if folder is None else Path(folder)
        self.limit = check_count("limit", limit)

    def read(self, problem: Any) -> Pair | None:
        """Return what was written for a problem of this content, if it has the right shapes."""
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
        """Write an optimum, whole or not at all; errors of the disk are ignored, as they cost no more than time."""
        with suppress(OSError, FileError):
            write_tensors(self._path(problem), {"x": x, "dual": dual})
            total = 0
            for path in sorted(self.folder.glob("*.safetensors"), key=lambda path: -path.stat().st_mtime_ns):
                total += path.stat().st_size
                if total > self.limit:
                    path.unlink(missing_ok=True)

    def _path(self, problem: Any) -> Path:
        digest = hashlib.sha256()
        _add(digest, problem)
        return self.folder / f"{digest.hexdigest()}.safetensors"


def _add(digest: Any, item: Any) -> None:
    """Add the content of an item; private attributes and cached properties follow from the rest."""
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
