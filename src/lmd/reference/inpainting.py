"""The smoothest of all minimisers of TV inpainting: the one that points are compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmd.core.batching import doubled
from lmd.errors import LmdError
from lmd.problems.base import offers
from lmd.reference.cache import Cache
from lmd.reference.find import minimiser, optimum
from lmd.reference.total_variation import EVERY, RELAXATION
from lmd.terms.base import sum_instances

NEEDS = ("differences", "mask", "weight", "scale", "clip", "project_dual", "regulariser_value")

PULL = 1.0
"""e of the second stage to begin with, in units of s weight / range; exact below some 1.5 on photographs."""

LOOKS = 200
TOLERANCE = 1e-5
"""How far, relative to the minimum, the value may be above it; the second stage goes on to a tenth of this."""


def smoothest(problem: Any, cache: Cache | None = None) -> Tensor:
    """The minimiser x whose sum of squares ||Kx||^2 is least, `(B, ...)`, in the dtype of the problem and where it is.

    TV inpainting has many minimisers: kept pixels are the same in all of them, but a lost one may be anything between
    the middle two of its four neighbours. They form a convex set, in which ||Kx||^2 has one least point, as some pixel
    is kept. Where a problem has no lost pixels, its minimiser is this.

    Proven in two stages: kept pixels by the duality gap of the problem, lost ones by that of `second_stage`. The value
    of the answer is within 1e-5 of the minimum.

    Args:
        problem: One that `optimum` has a method for.
        cache: Where optima are read and kept; None for nowhere.
    """
    lost = offers(problem, NEEDS) and problem.mask is not None and not bool((problem.mask > 0).all())
    if not lost:
        return minimiser(problem, cache)
    found, exact = optimum(problem, cache), doubled(problem, "cpu")
    answers = [_proven(exact.select([i]), found.x[i : i + 1], found.bound[i : i + 1]) for i in range(len(found.x))]
    return torch.cat(answers).to(problem.noisy)


def _proven(problem: Any, x: Tensor, bound: Tensor) -> Tensor:
    for pull in (PULL, PULL / 4, PULL / 16):
        answer, short = second_stage(problem, x, pull)
        if short <= TOLERANCE and float(problem.value(answer)) <= float(bound) * (1 + TOLERANCE):
            return answer
    raise LmdError(f"{type(problem).__name__}: no certified smoothest minimiser, the second stage is short {short:.1e}")


@torch.no_grad()
def second_stage(problem: Any, x: Tensor, pull: float = PULL, looks: int = LOOKS) -> tuple[Tensor, float]:
    r"""argmin h(Kz) over z with the kept pixels of x, h = g + e/2 ||.||^2, and how far it may be above that minimum.

    x `(B, ...)` is a minimiser of the problem and g its regulariser, s weight TV. g is polyhedral in the anisotropic
    form, so that for every e small enough the z of least g which is smoothest comes out, and not only as e falls to 0
    ([Friedlander and Tseng 2007](https://doi.org/10.1137/060675320)). By ADMM, as `lmd.reference.total_variation`.

    The proof: for any dual point q and any z in the box that all minimisers lie in, h(Kz) >= <K'q, z> - h*(q), where
    h*(q) is the squared distance of q to the dual points of g, over 2 e. The second number is relative to h(Kx).
    """
    K, kept = problem.differences, problem.mask.expand_as(x) > 0
    b = problem.scale * float(problem.weight.mean())
    a, e = 2 * problem.scale, pull * b / (float(x.max() - x.min()) or 1.0)
    r = 10 * a * (e / pull / problem.scale) ** 0.5  # found by trial; it decides the speed, not the answer
    low, high = (problem.clip(torch.full_like(x, end)) for end in (-torch.inf, torch.inf))
    v, z = x, K(x)
    v_dual, z_dual, short = torch.zeros_like(v), torch.zeros_like(z), float("inf")
    for look in range(looks * EVERY):
        y = K.solve(a * (v - v_dual) + r * K.adjoint(z - z_dual), a, r)
        v_target = v_dual + torch.lerp(v, y, RELAXATION)
        v = torch.where(kept, x, v_target)
        v_dual = v_target - v
        z_target = z_dual + torch.lerp(z, K(y), RELAXATION)
        z = (z_target - problem.project_dual(r * z_target) / r) * (r / (r + e))
        z_dual = z_target - z
        if look % EVERY == EVERY - 1:
            short = _short(problem, torch.where(kept, x, v.clamp(low, high)), r * z_dual, e, (low, high))
            if short <= TOLERANCE / 10:
                break
    return torch.where(kept, x, v.clamp(low, high)), short


def _short(problem: Any, z: Tensor, q: Tensor, e: float, box: tuple[Tensor, Tensor]) -> float:
    """How far h(Kz) is above what q proves of its minimum, over h(Kz): the largest of the batch."""
    Kz, tilt = problem.differences(z), problem.differences.adjoint(q)
    h = problem.regulariser_value(Kz) + e / 2 * sum_instances(Kz.square())
    conjugate = sum_instances((q - problem.project_dual(q)).square()) / (2 * e)
    lowest = tilt * torch.where(tilt > 0, box[0], box[1])
    at_kept = problem.mask.expand_as(z) > 0
    proven = sum_instances(torch.where(at_kept, tilt * z, lowest)) - conjugate
    return float(((h - proven) / h.clamp(min=torch.finfo(h.dtype).tiny)).max())
