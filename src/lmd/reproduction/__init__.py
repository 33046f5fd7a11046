"""The paper and the benchmarks on top of the library: experiments, bench, report."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["bench", "datasets", "experiments", "tasks"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
