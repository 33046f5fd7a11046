"""Total variation denoising and inpainting: ADMM with an exact linear step, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lmd.reference.proof import Effort, Pair

EVERY = 20
"""How many iterations there are from one look at the gap to the next."""

EFFORT = Effort(goal=1e-8, tolerance=1e-6, patience=3000 // EVERY, looks=100_000 // EVERY)
"""300 to 1000 iterations are usual for the anisotropic form, a few thousand for the isotropic one."""

RELAXATION = 1.8

NEEDS = ("differences", "noisy", "weight", "halved", "data_prox", "project_dual")


def iterates(problem: Any) -> Iterator[Pair]:
    r"""Points and dual points `(1, ...)`, from every `EVERY` iterations one.

    ADMM on min f(v) + g(z) over v = x, z = Kx, over-relaxed: the step in x is linear, (a I + r K'K) x = right-hand
    side, which the cosine transform solves; the steps in v and z are proximal. a and r are penalties; their sizes
    decide the speed, not the answer
    ([Boyd, Parikh, Chu, Peleato and Eckstein 2011](https://doi.org/10.1561/2200000016), section 3).
    """
    K, a = problem.differences, 2 * problem.scale
    spread = float(problem.noisy.max() - problem.noisy.min()) or 1.0
    # Found by trial on photographs with noise of 1 to 20% and weights of 0.04 to 2.
    r = 18 * a * (float(problem.weight) / spread) ** 0.5
    v = problem.data_prox(problem.noisy, 1 / a)
    z = K(v)
    v_dual, z_dual = torch.zeros_like(v), torch.zeros_like(z)  # scaled by 1/a and 1/r
    while True:
        for _ in range(EVERY):
            x = K.solve(a * (v - v_dual) + r * K.adjoint(z - z_dual), a, r)
            v_target = v_dual.add_(torch.lerp(v, x, RELAXATION))
            v = problem.data_prox(v_target, 1 / a)
            v_dual = v_target - v
            z_target = z_dual.add_(torch.lerp(z, K(x), RELAXATION))
            dual = problem.project_dual(r * z_target)
            z_dual = dual / r
            z = z_target - z_dual
        yield min((x, v), key=lambda point: float(problem.gap(point, dual))), dual
