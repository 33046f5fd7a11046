"""Whole solves of total variation denoising of images in one compiled call: iterations, gaps, and when to stop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lmd import kernels
from lmd.core.checks import shape_of
from lmd.errors import InputError
from lmd.problems.duality import relative_gap
from lmd.solvers.classical.fgp import FGP
from lmd.tv import schedules
from lmd.tv.solved import End, Outcome, Solved

METHOD = FGP(restart=True)

MIN_LENGTH, MAX_LENGTH = 1e-15, 1e18  # bounds whose squares, with which lengths are compared, are float32 numbers


class Denoising(NamedTuple):
    """s ||x - y||^2 + b ||Kx||, K the differences of neighbours in images.

    `plan._replace(noisy=..., bound=...)` is the plan for other data and weights of the same size, to solve for from
    nothing.
    """

    problem: Any  # by which dual points to start from are evaluated
    noisy: Tensor  # y (B, C, H, W)
    bound: float | Tensor  # b, a number or one per image (B,)
    isotropic: bool
    coupled: bool  # one length for all channels

    @property
    def method(self) -> FGP:
        """The method whose iterations these are, to go on with."""
        return METHOD

    @property
    def is_continued(self) -> bool:
        """Whether solves that float32 holds up continue from their dual points in float64."""
        return True

    def solve(
        self, tolerance: float, limit: int, dual: Tensor | None, *, table: schedules.Table | None = None
    ) -> Solved:
        """Solve to a relative gap, or up to `limit` iterations, instance by instance.

        A dual point is evaluated once, and is the start where it beats a start from nothing. `table` has the schedules
        to choose from; None is all that ship.
        """
        problem, y = self.problem, self.noisy.detach().contiguous()
        batch, channels, height, width = y.shape
        is_double, scale, norm = y.dtype == torch.float64, problem.f.curvature, problem.operator.norm
        bound = self.bound.detach().tolist() if isinstance(self.bound, Tensor) else self.bound
        p, x = y.new_empty(batch, channels, 2, height, width), torch.empty_like(y)
        bounds = bound if isinstance(bound, list) else [bound]
        has_squares = is_double or (min(bounds) >= MIN_LENGTH and max(bounds) <= MAX_LENGTH)
        if (self.isotropic or self.coupled) and not has_squares:
            return Solved(y, p.zero_(), [Outcome(0, End.STUCK, torch.inf, torch.inf)] * batch)
        gaps: float | list[float] = torch.inf
        if dual is not None:
            dual = _check_dual(problem, dual, p)
            start = problem.tilted_minimiser(problem.operator.adjoint(dual))
            value, gap = problem.certified_gap(start, dual)
            gaps = relative_gap(value, gap).tolist()
        rows = _function()(
            y.data_ptr(), None if dual is None else dual.data_ptr(), gaps, bound,
            (table or schedules.table()).address, scale, 2 * scale / norm**2, tolerance,
            norm, problem.operator.roundings,
            batch, channels, height, width, limit, self.isotropic, self.coupled, is_double,
            torch.get_num_threads() if y.numel() >= kernels.SMALL else 1, p.data_ptr(), x.data_ptr(),
        )  # fmt: skip
        outcomes = [Outcome(*row) for row in rows]
        if dual is not None:
            for n, each in enumerate(outcomes):
                if each.iterations == 0 and each.end == End.REACHED:  # by the dual point itself
                    x[n], p[n] = start[n], dual[n]
                    outcomes[n] = each._replace(value=float(value[n]), gap=float(gap[n]))
        return Solved(x, p, outcomes)


def _check_dual(problem: Any, dual: Tensor, field: Tensor) -> Tensor:
    """The dual point within its bounds, as C reads it."""
    if dual.shape != field.shape or dual.dtype != field.dtype or dual.device != field.device:
        given = f"shape {shape_of(dual)}, {dual.dtype} on {dual.device}"
        raise InputError("dual", given, f"shape {tuple(field.shape)}, {field.dtype} on the CPU, as the images are")
    projected: Tensor = problem.project_dual(dual.detach())
    return projected.resolve_neg().contiguous()


@functools.cache
def _function() -> Callable[..., list[tuple[int, int, float, float]]]:
    return cast(Callable[..., list[tuple[int, int, float, float]]], kernels.module().fgp)
