"""How much memory there is to be had, so that what is too large is refused before it is begun."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

from lmd.errors import InputError

GROUPS = Path("/sys/fs/cgroup")  # where Linux keeps the limits of a container
UNCHECKED = 1 << 26  # bytes; for less nobody asks the system
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # options of the GNU C library


def check_memory(argument: str, given: str, need: int) -> None:
    """Raise if `need` bytes for what was `given` are more than there are to be had."""
    free = available_memory() if need > UNCHECKED else None
    if free is not None and need > free:
        accepted = f"one that fits into the {free / 1e9:.1f} GB that are free"
        raise InputError(argument, f"{given}, which needs about {need / 1e9:.1f} GB of memory", accepted)


def keep_freed_memory() -> None:
    """Ask the C library, where it can, to keep freed memory: fresh pages for images cost more than the arithmetic."""
    with suppress(AttributeError, OSError, TypeError):  # other systems have no mallopt
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def available_memory() -> int | None:
    """Return the bytes that machine, container and `ulimit -v` have left; None where the system does not say."""
    limits = [_of_machine(), _of_container(GROUPS), _of_process()]
    return min([limit for limit in limits if limit is not None], default=None)


def _of_machine() -> int | None:
    """Return what Linux can give without swapping; elsewhere all the memory there is."""
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _of_container(groups: Path) -> int | None:
    """Return the limit less what is in use; files that the system keeps in memory make way when asked."""
    for limit, used, stat, cached in (
        ("memory.max", "memory.current", "memory.stat", "file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_cache"),
    ):
        most, now = _lines(groups / limit), _lines(groups / used)
        if most and now and most[0].isdecimal():
            files = [int(line.split()[1]) for line in _lines(groups / stat) if line.split()[0] == cached]
            return max(0, int(most[0]) - max(0, int(now[0]) - sum(files)))
    return None


def _of_process() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _lines(Path("/proc/self/statm"))
    if limit == resource.RLIM_INFINITY or not used:
        return None
    return max(0, limit - int(used[0].split()[0]) * resource.getpagesize())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []
