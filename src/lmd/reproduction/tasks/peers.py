"""Other people's solvers that the bench compares with: what is installed is measured, what is not is named."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Call = Callable[[Any], Any]
"""From a rung of the ladder to an answer in the peer's own form."""

COUNTS = (1, 2, 3, 5, 10, 20, 35, 50, 100, 200, 500, 1000)
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10)
"""The ladders of peers that stop at a number of iterations, and of such that stop at a tolerance."""

EXPERIMENTS = "pip install 'lmd[experiments]'"
"""How to get the peers that experiments need too."""

ONE_THREAD = "-1-thread"
"""How the name of a peer ends that is there with all threads too."""


@dataclass(frozen=True)
class Peer:
    """A solver of another package, called whole for each number of iterations or each tolerance."""

    name: str
    """What it is called in tables."""

    package: str
    """What is imported."""

    ladder: tuple[float, ...]
    """The numbers of iterations, or the tolerances, to call it with: the cheapest first."""

    prepare: Callable[[Any], Call]
    """From a problem to what is timed: data in the peer's own form is made here, untimed."""

    finish: Callable[[Any, Any], Tensor]
    """From the problem and the answer to x, untimed."""

    hint: str = "pip install 'lmd[bench]'"
    """How to get it."""

    @property
    def installed(self) -> bool:
        """Whether the package can be found, without importing it."""
        return importlib.util.find_spec(self.package) is not None


def stacked(problem: Any, answers: Any) -> Tensor:
    """x of answers that are arrays, one for each instance, in their own precision."""
    return torch.as_tensor(np.stack(answers))


def channels_last(problem: Any, answers: Any) -> Tensor:
    """x of answers that are images `(H, W, C)`."""
    return stacked(problem, answers).movedim(-1, 1)


@contextmanager
def numpy_errors_as_they_are() -> Iterator[None]:
    """Peers may divide by zero on flat images; that is theirs to handle."""
    with np.errstate(all="ignore"):
        yield
