"""Norms of operators: bounds where entries are 0 or more, estimates elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

NORM_ITERATIONS, LANCZOS = 30, 20
"""Of bounds, and of estimates."""


def norm_bound(gram: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    r"""A bound on ||A|| for a matrix A of entries of 0 or more, from x -> A'Ax on images of this shape.

    Collatz and Wielandt: the largest eigenvalue of a matrix G of entries of 0 or more is at most max_i (Gv)_i / v_i
    for every v > 0. Power iterations bring the bound down to the eigenvalue; whenever they stop, it holds.
    """
    v, least = torch.ones(shape, dtype=torch.float64, device="cpu"), math.inf
    for _ in range(NORM_ITERATIONS):
        image = gram(v)
        least = min(least, float((image / v).max()))
        v = image + 1e-12 * float(image.max()) + torch.finfo(v.dtype).tiny  # positive, as the bound asks for
    return math.sqrt(least * (1 + 1e-12)) if least > 0 else 1.0  # A = 0: any bound serves it


def norm_estimate(gram: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    """The largest eigenvalue of a symmetric matrix without negative ones, from below, by the method of Lanczos.

    The largest eigenvalue of the tridiagonal matrix that a few steps from a random start make
    ([Golub and Van Loan 2013](https://doi.org/10.56021/9781421407944), section 10.1).
    """
    v = torch.rand(shape, dtype=torch.float64, device="cpu", generator=torch.Generator().manual_seed(0))
    before, v, length = torch.zeros_like(v), v / v.norm(), 0.0
    middle, beside = list[float](), list[float]()
    for _ in range(min(LANCZOS, v.numel())):
        image = gram(v) - length * before
        middle.append(float((image * v).sum()))
        rest = image - middle[-1] * v
        length = float(rest.norm())
        beside.append(length)
        before, v = v, rest / max(length, torch.finfo(v.dtype).tiny)
    along = torch.tensor(middle, dtype=torch.float64, device="cpu").diag()
    off = torch.tensor(beside[:-1], dtype=torch.float64, device="cpu").diag(1)
    return float(torch.linalg.eigvalsh(along + off + off.mT)[-1])
