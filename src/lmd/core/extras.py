"""Optional libraries: the extras that install them, and the message if one is missing."""

from __future__ import annotations

import functools
from importlib.util import find_spec

from lmd.errors import LmdError

EXTRAS = {  # the extras of pyproject.toml, with the modules that each installs
    "pictures": ("PIL", "imagecodecs", "tifffile"),
    "experiments": ("jinja2", "matplotlib", "pooch", "scipy", "skimage", "sklearn"),
    "cluster": ("distributed",),
    "bench": ("celer", "clarabel", "daqp", "highspy", "ortools", "osqp", "piqp", "prox_tv", "proxsuite", "skglm"),
    "cvxpy": ("cvxpy",),
    "deepinv": ("deepinv",),
}


class MissingError(LmdError, ImportError):
    """A library that is not installed; the message names the extra that installs it."""


@functools.cache
def require(*modules: str) -> None:
    """Raise if one of these modules is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingError(missing(module))


def installed(*modules: str) -> bool:
    """Return whether all of these modules are installed, without importing them.

    >>> installed("torch", "no_such_module")
    False
    """
    return all(find_spec(module) is not None for module in modules)


def missing(module: str) -> str:
    """Return a message that says how to install a missing module.

    >>> missing("matplotlib")
    "matplotlib is not installed: pip install 'lmd[experiments]'"
    """
    extra = next((f"'lmd[{extra}]'" for extra, modules in EXTRAS.items() if module in modules), module)
    return f"{module} is not installed: pip install {extra}"
