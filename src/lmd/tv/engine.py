"""One way into compiled solves: `solve(plan, tolerance, limit, warm)`."""

from __future__ import annotations

from torch import Tensor

from lmd.tv.denoising import Denoising
from lmd.tv.inpainting import Inpainting
from lmd.tv.models import SquaresModel
from lmd.tv.solved import Solved


def solve(plan: Denoising | SquaresModel | Inpainting, tolerance: float, limit: int, warm: Tensor | None) -> Solved:
    """Solve a problem by its plan, to a relative gap or up to `limit` iterations, instance by instance.

    Args:
        plan: From `match`.
        tolerance: The relative gap to be proven.
        limit: How many iterations at most.
        warm: A feasible dual point to start from where that helps; None is none. Inpainting starts anew.
    """
    if isinstance(plan, Inpainting):
        return plan.solve(tolerance, limit)
    return plan.solve(tolerance, limit, warm)
