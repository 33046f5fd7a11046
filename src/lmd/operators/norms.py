"""Bounds on the norms of operators whose entries are 0 or more."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

NORM_ITERATIONS = 30


def norm_bound(gram: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    r"""A bound on ||A|| for a matrix A of entries of 0 or more, from x -> A'Ax on images of this shape.

    Collatz and Wielandt: the largest eigenvalue of a matrix G of entries of 0 or more is at most max_i (Gv)_i / v_i
    for every v > 0. Power iterations bring the bound down to the eigenvalue; whenever they stop, it holds.
    """
    v, least = torch.ones(shape, dtype=torch.float64), math.inf
    for _ in range(NORM_ITERATIONS):
        image = gram(v)
        least = min(least, float((image / v).max()))
        v = image + 1e-12 * float(image.max()) + torch.finfo(v.dtype).tiny  # positive, as the bound asks for
    return math.sqrt(least * (1 + 1e-12)) if least > 0 else 1.0  # A = 0: any bound serves it
