"""Libraries that only a part of lmd needs: which extra installs them, and one line where one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from lmd.errors import LmdError

EXTRAS = {  # of pyproject.toml, and the modules that each brings
    "pictures": ("PIL", "imagecodecs", "tifffile"),
    "experiments": ("jinja2", "matplotlib", "pooch", "scipy", "skimage", "sklearn"),
    "cluster": ("distributed",),
    "bench": (
        "celer",
        "clarabel",
        "daqp",
        "highspy",
        "ortools",
        "osqp",
        "piqp",
        "prox_tv",
        "proxsuite",
        "skglm",
    ),
    "cvxpy": ("cvxpy",),
    "deepinv": ("deepinv",),
}


class MissingError(LmdError, ImportError):
    """A library that is not installed; the message says which extra brings it."""


def require(*modules: str) -> None:
    """Raise if one of these modules is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingError(missing(module))


def installed(*modules: str) -> bool:
    """Return whether all of these modules are there; none is imported.

    >>> installed("torch", "no_such_module")
    False
    """
    return all(find_spec(module) is not None for module in modules)


def missing(module: str) -> str:
    """Return what to do about a module that is not there.

    >>> missing("matplotlib")
    "matplotlib is not installed: pip install 'lmd[experiments]'"
    """
    extra = next((f"'lmd[{extra}]'" for extra, modules in EXTRAS.items() if module in modules), module)
    return f"{module} is not installed: pip install {extra}"
