"""What there is on this machine: version, compiled code, threads, devices, extras, cache."""

from __future__ import annotations

import platform
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from typing import Any

from lmd import __version__
from lmd.core.extras import EXTRAS
from lmd.core.files import cache_folder


def info() -> dict[str, Any]:
    """What `lmd info` prints.

    >>> sorted(info())
    ['cache', 'devices', 'extras', 'kernels', 'lmd', 'python', 'threads', 'torch']
    """
    import torch

    from lmd import kernels

    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    return {
        "lmd": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": kernels.instructions(),
        "threads": torch.get_num_threads(),
        "devices": ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])],
        "extras": _extras(),
        "cache": str(cache_folder()),
    }


def told(found: dict[str, Any]) -> list[str]:
    """The same in lines for a person."""
    lines = [f"{name:12s} {found[name]}" for name in ("lmd", "python", "torch", "threads", "cache")]
    kernels = found["kernels"] or "none: everything works, more slowly; install a wheel, or with a C compiler"
    lines += [f"{'kernels':12s} {kernels}", f"{'devices':12s} {', '.join(found['devices'])}"]
    for extra, modules in found["extras"].items():
        here = ", ".join(f"{module} {number}" for module, number in modules.items() if number)
        absent = ", ".join(module for module, number in modules.items() if not number)
        advice = f"; not installed: {absent} (pip install 'lmd[{extra}]')" if absent else ""
        lines.append(f"{extra:12s} {here or 'nothing'}{advice}")
    return lines


def _extras() -> dict[str, dict[str, str | None]]:
    """By extra and module the version; None where it is not installed."""
    packages = packages_distributions()

    def found(module: str) -> str | None:
        return None if find_spec(module) is None else version(packages[module][0]) if module in packages else "?"

    return {extra: {module: found(module) for module in modules} for extra, modules in EXTRAS.items()}
