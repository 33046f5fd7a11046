import doctest
import importlib
import pkgutil

import pytest

import lmd

NO_MODULES = ("__main__", "lmd.kernels._")  # the latter are libraries that ctypes loads
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(lmd.__path__, "lmd.")
    if not any(part in module.name for part in NO_MODULES)
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_say_what_happens(name):
    if name == "lmd.compat.deepinv":
        pytest.importorskip("deepinv", reason="deepinv is not installed")
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


def test_there_are_examples():
    attempted = [doctest.testmod(importlib.import_module(name)).attempted for name in ("lmd.errors", "lmd.solvers.run")]
    assert all(attempted)
