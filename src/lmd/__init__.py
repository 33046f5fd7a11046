"""lmd learns fast, certified solvers for classes of convex problems.

The shortest useful program:

    import lmd, torch

    problem = lmd.problems.LeastSquares(W, b)                 # a batch of B problems
    solver = lmd.solvers.GradientDescent(0.1)
    result = lmd.run(solver, problem, torch.zeros(B, d), iterations=100)

Everything loads when it is first used, so `import lmd` itself costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_ROOMS = ("problems", "mirrors", "solvers", "training", "zoo", "experiments", "report")
_NAMES = {"run": "lmd.solvers.run", "train": "lmd.training.train", "InputError": "lmd.errors", "LmdError": "lmd.errors"}

__all__ = ["__version__", *_ROOMS, *_NAMES]

if TYPE_CHECKING:
    from lmd import experiments, mirrors, problems, report, solvers, training, zoo
    from lmd.errors import InputError, LmdError
    from lmd.solvers.run import run
    from lmd.training.train import train


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"lmd.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'lmd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
