"""What is known about each kind of problem: one file for each task, and the register of all of them.

    from lmd.reproduction import tasks

    tasks.names()                           # ours, and those of packages that name one by the entry point `lmd.tasks`
    tasks.get("denoise").solvers            # the recipes of its trained solvers, by name

The command line, the zoo, the bench, the cards, the safeguard experiment and `lmd.solve` read it here and nowhere else.
"""

from __future__ import annotations

import functools
import warnings
from importlib.metadata import entry_points

from lmd.core.checks import check_choice
from lmd.reproduction.tasks import (
    control,
    deblur,
    denoise,
    denoise_isotropic,
    inpaint,
    lasso,
    least_squares,
    linear_classifier,
    models,
    svm,
    tomography,
)
from lmd.reproduction.tasks.methods import Method, Setting
from lmd.reproduction.tasks.optima import CertifiedBy
from lmd.reproduction.tasks.peers import Peer
from lmd.reproduction.tasks.sources import Digits, Drawn, HeldOut, Images, Source
from lmd.reproduction.tasks.task import Contest, Recipe, Task

__all__ = [
    "CertifiedBy",
    "Contest",
    "Digits",
    "Drawn",
    "HeldOut",
    "Images",
    "Method",
    "Peer",
    "Recipe",
    "Setting",
    "Source",
    "Task",
    "every",
    "get",
    "names",
]

GROUP = "lmd.tasks"
OWN = (
    denoise,
    denoise_isotropic,
    inpaint,
    deblur,
    tomography,
    models,
    lasso,
    svm,
    linear_classifier,
    least_squares,
    control,
)


@functools.cache
def _register() -> dict[str, Task]:
    """Every task by name; one of another package that cannot be had is named in a warning, and left out."""
    found = {module.TASK.name: module.TASK for module in OWN}
    for entry in entry_points(group=GROUP):
        try:
            task = entry.load()
            if not isinstance(task, Task):
                raise TypeError(f"{type(task).__name__}, which is no lmd.reproduction.tasks.Task")
            if task.name in found:
                raise ValueError(f"a second task of the name {task.name}")
        except Exception as error:  # what others wrote may fail anyhow
            reason = " ".join(str(error).split())
            warnings.warn(f"task {entry.name} of {entry.value} left out: {reason}", stacklevel=2)
        else:
            found[task.name] = task
    return found


def names() -> list[str]:
    """Every task, ours first."""
    return list(_register())


def every() -> list[Task]:
    """Every task, ours first."""
    return list(_register().values())


def get(name: str) -> Task:
    """A task by its name.

    Args:
        name: Of a task, such as "denoise".

    >>> list(get("lasso").solvers)
    ['lasso-10']
    """
    return _register()[check_choice("task", name, tuple(_register()))]
