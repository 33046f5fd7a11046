"""Quadratic programs over boxes, as in receding-horizon control: x'Px / 2 + q'x with low <= x <= high."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.problems import ControlFamily
from lmd.reproduction.tasks.peers import TOLERANCES, Call, Peer, stacked
from lmd.reproduction.tasks.task import Contest, Task


def make(images: Tensor, noise: float, generator: torch.Generator) -> Any:
    """As many states as there are images."""
    return ControlFamily().sample(len(images), generator)[0]


def _osqp(problem: Any) -> Call:
    """One after the other, each begun where the one before it ended; the answer is clipped to the box."""
    import osqp
    from scipy import sparse

    P, q = (each.double().numpy() for each in problem.quadratic)
    low, high = (end[0].double().numpy() for end in (problem.g.low, problem.g.high))
    box = sparse.identity(len(low), format="csc"), low, high

    def call(tolerance: float) -> list[Any]:
        solver = osqp.OSQP()
        options: dict[str, Any] = {"eps_abs": tolerance, "eps_rel": tolerance, "max_iter": 10_000, "verbose": False}
        solver.setup(sparse.triu(sparse.csc_matrix(P), format="csc"), q[0], *box, **options)
        answers = []
        for each in q:
            solver.update(q=each)
            answers.append(np.clip(solver.solve(raise_error=False).x, low, high))
        return answers

    return call


TASK = Task(
    name="control",
    title="quadratic programs of receding-horizon control",
    contest=Contest(
        make,
        noise=(0,),
        steps=0.0,
        tau=0.0,
        peers=(Peer("osqp", "osqp", TOLERANCES, _osqp, stacked),),
        kept=False,
        sized=False,
    ),
)
