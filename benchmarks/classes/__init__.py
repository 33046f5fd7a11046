"""Classes of problems that people bring, one file each: what they are, and their minima from other solvers."""

import importlib
import pkgutil
from types import ModuleType

SHARED = ("base", "peers")


def modules() -> dict[str, ModuleType]:
    """Return the modules of all classes by name; each has SIZES and sample(size, batch, generator)."""
    names = sorted(each.name for each in pkgutil.iter_modules(__path__) if each.name not in SHARED)
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}
