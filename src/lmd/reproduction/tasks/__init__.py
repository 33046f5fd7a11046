"""The tasks: recipes of the trained solvers for each kind of problem, and what `lmd bench` compares them with.

from lmd.reproduction import tasks

tasks.names()                           # ours, and those of packages with an entry point in the group `lmd.tasks`
tasks.get("denoise").solvers            # the recipes of its trained solvers, by name
"""

from __future__ import annotations

import functools
import warnings
from importlib.metadata import entry_points

from lmd.core.checks import check_choice
from lmd.reproduction.tasks.denoise import DENOISE, DENOISE_ISOTROPIC
from lmd.reproduction.tasks.inverse import DEBLUR, INPAINT, TOMOGRAPHY
from lmd.reproduction.tasks.models import MODELS
from lmd.reproduction.tasks.task import CertifiedBy, Contest, Drawn, Peer, Recipe, Task
from lmd.reproduction.tasks.vectors import CONTROL, LASSO, LEAST_SQUARES, LINEAR_CLASSIFIER, SVM

__all__ = ["CertifiedBy", "Contest", "Drawn", "Peer", "Recipe", "Task", "every", "get", "names"]

IMAGING = (DENOISE, DENOISE_ISOTROPIC, INPAINT, DEBLUR, TOMOGRAPHY, MODELS)
OWN = (*IMAGING, LASSO, SVM, LINEAR_CLASSIFIER, LEAST_SQUARES, CONTROL)


@functools.cache
def _register() -> dict[str, Task]:
    """All tasks by name. A task of another package that cannot be loaded is left out, with a warning."""
    found = {task.name: task for task in OWN}
    for entry in entry_points(group="lmd.tasks"):
        try:
            task = entry.load()
            if not isinstance(task, Task):
                raise TypeError(f"{type(task).__name__}, which is no lmd.reproduction.tasks.Task")
            if task.name in found:
                raise ValueError(f"a second task of the name {task.name}")
        except Exception as error:  # code of other packages may raise anything
            reason = " ".join(str(error).split())
            warnings.warn(f"task {entry.name} of {entry.value} left out: {reason}", stacklevel=2)
        else:
            found[task.name] = task
    return found


def names() -> list[str]:
    """Return the names of all tasks, those of this package first."""
    return list(_register())


def every() -> list[Task]:
    """Return all tasks, those of this package first."""
    return list(_register().values())


def get(name: str) -> Task:
    """The task of that name, such as "denoise".

    >>> list(get("lasso").solvers)
    ['lasso-10']
    """
    return _register()[check_choice("task", name, tuple(_register()))]
