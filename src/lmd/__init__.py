"""lmd learns fast, certified solvers for classes of convex problems.

The shortest useful program:

    import lmd, torch

    problem = lmd.problems.LeastSquares(W, b)                 # a batch of B problems
    solver = lmd.solvers.GradientDescent(0.1)
    result = lmd.run(solver, problem, torch.zeros(B, d), iterations=100)

Everything loads when it is first used, so `import lmd` itself takes almost no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lmd import (
        compat,
        guarantees,
        imaging,
        mirrors,
        nn,
        operators,
        optim,
        problems,
        reproduction,
        solvers,
        terms,
        testing,
        training,
        zoo,
    )
    from lmd.errors import InputError, LmdError
    from lmd.guarantees.certify import run
    from lmd.imaging.functions import deblur, denoise, denoise_video, inpaint, reconstruct
    from lmd.imaging.noise import estimate_noise
    from lmd.training.learn import learn
    from lmd.training.train import train
    from lmd.zoo.solve import solve

__all__ = [
    "InputError",
    "LmdError",
    "__version__",
    "compat",
    "deblur",
    "denoise",
    "denoise_video",
    "estimate_noise",
    "guarantees",
    "imaging",
    "inpaint",
    "learn",
    "mirrors",
    "nn",
    "operators",
    "optim",
    "problems",
    "reconstruct",
    "reproduction",
    "run",
    "solve",
    "solvers",
    "terms",
    "testing",
    "train",
    "training",
    "zoo",
]

_FUNCTIONS = {
    "InputError": "lmd.errors",
    "LmdError": "lmd.errors",
    "deblur": "lmd.imaging.functions",
    "denoise": "lmd.imaging.functions",
    "denoise_video": "lmd.imaging.functions",
    "estimate_noise": "lmd.imaging.noise",
    "inpaint": "lmd.imaging.functions",
    "reconstruct": "lmd.imaging.functions",
    "learn": "lmd.training.learn",
    "run": "lmd.guarantees.certify",
    "solve": "lmd.zoo.solve",
    "train": "lmd.training.train",
}


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        found = getattr(importlib.import_module(_FUNCTIONS[name]), name)
    elif name in __all__:
        found = importlib.import_module(f"lmd.{name}")
    else:
        raise AttributeError(f"module 'lmd' has no attribute {name!r}")
    globals()[name] = found  # later lookups do not call this function
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
