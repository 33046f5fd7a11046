"""Measure the free memory, so that `lmd.core.checks.check_memory` refuses tasks that are too large."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")  # the folder in which Linux keeps the limits of a container
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # options of the GNU C library


@functools.cache
def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory, because fresh pages for images cost more than the arithmetic."""
    with suppress(AttributeError, OSError, TypeError):  # other systems have no mallopt
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def available_memory() -> int | None:
    """Return the free bytes within the limits of machine, container and `ulimit -v`; None if they are unknown."""
    limits = [_of_machine(), _of_container(GROUPS), _of_process()]
    return min([limit for limit in limits if limit is not None], default=None)


def _of_machine() -> int | None:
    """Return the bytes that Linux can provide without swapping; on other systems, the total memory."""
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _of_container(groups: Path) -> int | None:
    """Return the limit minus the memory in use; cached files do not count, because the system can drop them."""
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
