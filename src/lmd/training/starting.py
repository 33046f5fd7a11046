"""Networks that say where to start, trained on the optima of a class before any solver is."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.solvers import WithInitialiser
from lmd.training.instances import Instances
from lmd.training.loss import power_weights

BATCH, RATE = 256, 3e-3

LEAST = 1e-5
"""What is added to relative gaps before their logarithm is taken."""

EMPHASIS = 0.5
"""Instances count by this power of their relative gaps."""

BESIDE = 0.05
"""What the distance from the optima counts for, beside the logarithm of the gap."""


def fit_starts_(
    solver: WithInitialiser, instances: Instances, wanted: tuple[Tensor, ...], updates: int, seed: int
) -> None:
    """Train the starts of a solver, and nothing else of it, by Adam with a rate that falls to 0.

    The loss is the logarithm of the relative gap where the solver begins, before its first step; what is far from its
    minimum counts more, as it is the 95% quantile of a class that decides how many steps it takes. Where that says
    nothing, such as of dual points and of how far a start is outside a box, the squared distance from `wanted` counts:
    points for `start` `(B, ...)`, then those for `dual`, where there is one.
    """
    starts = [start for start in (solver.start, solver.dual) if start is not None]
    optimiser = torch.optim.Adam([number for start in starts for number in start.parameters()], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    spreads = [each.var().clamp(min=torch.finfo(each.dtype).tiny) for each in wanted]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        index = torch.randint(len(instances.x0), (BATCH,), generator=generator, device="cpu")
        part = instances.select(index)
        points = [start(part.problem, BATCH) for start in starts]
        state = solver.begin(part.problem, *points)
        gaps = (part.errors(state.x) + LEAST).log()
        loss = (power_weights(EMPHASIS, gaps.detach()) * gaps).sum()
        for point, each, spread in zip(points, wanted, spreads, strict=True):
            loss = loss + BESIDE * (point - each[index]).square().mean() / spread
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
