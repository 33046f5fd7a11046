"""Seeds that depend on the number of updates alone, so that a run which goes on draws what it would have drawn.

PyTorch's generator on the CPU takes the low 32 bits of a seed, so the promises below are kept within those.
"""

from __future__ import annotations

import hashlib

_HALF = 1 << 31


def training_seed(seed: int, done: int) -> int:
    """The seed of the batch after `done` updates: even, and no two of the first 2^31 of a run share one."""
    return 2 * ((_number(seed, "offset") + done * (2 * _number(seed, "stride") + 1)) % _HALF)


def validation_seed(seed: int) -> int:
    """The seed of the held-out batch: odd, so no training batch of any run has it."""
    return 2 * _number(seed, "validation") + 1


def _number(seed: int, purpose: str) -> int:
    """A number below 2^31 that looks random."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:8], "big") % _HALF
