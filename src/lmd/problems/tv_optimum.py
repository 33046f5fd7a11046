"""The certified optimum of one total variation problem, by ADMM in float64, and the cache that remembers it."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmd.errors import FileError, LmdError
from lmd.files import cache_folder, read_tensors, write_tensors
from lmd.problems.optimum import Optimum

if TYPE_CHECKING:
    from lmd.problems.tv import TVProblem

GOAL = 1e-8
"""The relative duality gap to stop at."""

TOLERANCE = 1e-6
"""The relative duality gap that is good enough after `PATIENCE` iterations, and what a cached optimum must prove."""

ROUNDING = 1e-15
"""A gap of this, relative to the value at 0, is rounding: where the minimum is 0, no relative gap can be had."""

PATIENCE = 3000
ITERATIONS = 100_000
"""When to give up; 300 to 1000 are usual for the anisotropic form, a few thousand for the isotropic one."""

RELAXATION = 1.8
FORMAT = 1
"""Part of every cache key."""

MEMORY = 256 * 2**20
"""How many bytes of optima to remember in this process."""


def optimum(
    problem: TVProblem,
    solve: Callable[[Any], tuple[Tensor, Tensor]] | None = None,
    tolerance: float = TOLERANCE,
) -> Optimum:
    """The optimum of a batch of one, in float64: remembered, or read and proven again, or solved and written.

    `solve` gives a minimiser and a dual point, `solve_tv` by default; what is read must prove `tolerance`.
    """
    key = content_key(problem)
    if (found := _memory.get(key)) is not None:
        return found
    path = cache_folder() / "optima" / f"{key}.safetensors"
    found = _read(problem, path, tolerance)
    if found is None:
        x, dual = (solve or solve_tv)(problem)
        found = certified(problem, x, dual)
        _write(path, x, dual)
    _memory.put(key, found)
    return found


def content_key(problem: TVProblem) -> str:
    """The SHA-256 of everything the optimum depends on."""
    digest = hashlib.sha256(json.dumps({"format": FORMAT, **problem.description()}, sort_keys=True).encode())
    for name in problem.batched:
        tensor = getattr(problem, name)
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def certified(problem: TVProblem, x: Tensor, dual: Tensor) -> Optimum:
    """A point and the lower bound that a dual point proves."""
    value = float(problem.value(x))
    return Optimum(x[0], value, value - float(problem.gap(x, dual)))


def solve_tv(problem: TVProblem) -> tuple[Tensor, Tensor]:
    r"""A minimiser and a dual point `(1, ...)` of relative gap `GOAL`, or at least `TOLERANCE`.

    ADMM on min f(v) + g(z) over v = x, z = Kx, over-relaxed: the step in x is linear, (a I + r K'K) x = right-hand
    side, which the cosine transform solves; the steps in v and z are proximal. a and r are penalties; their sizes
    decide the speed, not the answer. Boyd, Parikh, Chu, Peleato and Eckstein 2011, section 3.
    """
    K = problem.differences
    spread = float(problem.noisy.max() - problem.noisy.min()) or 1.0
    a = 2 * problem.scale
    # Found by trial on photographs with noise of 1 to 20% and weights of 0.04 to 2.
    r = 18 * a * (float(problem.weight) / spread) ** 0.5
    v = problem.data_prox(problem.noisy, 1 / a)
    z = K(v)
    v_dual, z_dual = torch.zeros_like(v), torch.zeros_like(z)  # scaled by 1/a and 1/r
    for iteration in range(1, ITERATIONS + 1):
        x = K.solve(a * (v - v_dual) + r * K.adjoint(z - z_dual), a, r)
        v_target = v_dual.add_(torch.lerp(v, x, RELAXATION))
        v = problem.data_prox(v_target, 1 / a)
        v_dual = v_target - v
        z_target = z_dual.add_(torch.lerp(z, K(x), RELAXATION))
        dual = problem.project_dual(r * z_target)
        z_dual = dual / r
        z = z_target - z_dual
        if iteration % 20 == 0:
            best = min((x, v), key=lambda point: float(problem.gap(point, dual)))
            if proven(problem, best, dual, GOAL if iteration < PATIENCE else TOLERANCE):
                return best, dual
    gap = float(problem.relative_gap(best, dual))
    raise LmdError(f"{type(problem).__name__}: no certified minimiser, the relative duality gap stays at {gap:.1e}")


def proven(problem: TVProblem, x: Tensor, dual: Tensor, tolerance: float) -> bool:
    """Whether the duality gap proves x a minimiser, to a relative tolerance or to rounding; a NaN proves nothing."""
    if float(problem.relative_gap(x, dual)) <= tolerance:
        return True
    return float(problem.gap(x, dual)) <= ROUNDING * float(problem.value(torch.zeros_like(x)))


class _Memory:
    """The optima of this process by key; the oldest go when they take more than `MEMORY` bytes."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Optimum] = OrderedDict()

    def get(self, key: str) -> Optimum | None:
        if key in self._found:
            self._found.move_to_end(key)
        return self._found.get(key)

    def put(self, key: str, found: Optimum) -> None:
        self._found[key] = found
        while len(self._found) > 1 and sum(item.x.nbytes for item in self._found.values()) > MEMORY:
            self._found.popitem(last=False)

    def clear(self) -> None:
        self._found.clear()


_memory = _Memory()


def _read(problem: TVProblem, path: Path, tolerance: float) -> Optimum | None:
    """What `_write` wrote, if it still proves what it should; nothing on disk is taken on trust."""
    try:
        found = read_tensors(path)
    except FileError:
        return None
    x, dual = found.get("x"), found.get("dual")
    start = problem.start()
    if x is None or dual is None or x.shape != start.shape or dual.shape != problem.operator(start).shape:
        return None
    if x.dtype != torch.float64 or dual.dtype != torch.float64:
        return None
    return certified(problem, x, dual) if proven(problem, x, dual, tolerance) else None


def _write(path: Path, x: Tensor, dual: Tensor) -> None:
    """Write to the cache; one that cannot be written costs time and nothing else."""
    with suppress(OSError, FileError):
        write_tensors(path, {"x": x, "dual": dual})
