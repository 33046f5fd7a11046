"""Whole compiled solves of total variation models with squares: signals, images and volumes, maps, Huber, boxes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.problems.base import offers
from lmd.solvers.classical.fgp import FGP, RESTART_EVERY
from lmd.solvers.learned.dual import roughness
from lmd.tv import schedules
from lmd.tv.calls import as_row, as_row_field, call, grid_of, weight_of
from lmd.tv.denoising import METHOD
from lmd.tv.solved import Outcome, Solved

MIN_TOLERANCE = 1e-5
"""Smaller relative gaps are left to other code: dual points are float32 numbers here, scaled down by 5e-7."""

FIRST_EVALUATION = 8  # iterations before the first gap evaluation without a schedule


class SquaresModel(NamedTuple):
    """s ||x - y||^2 + g(Kx), in a box or not, K the differences of neighbours along one to three axes."""

    problem: Any
    noisy: Tensor  # y `(B, C, *size)`, one to three axes, float32
    bound: float | Tensor  # weights: a number, one per instance `(B,)`, or a map `(B, 1 or C, 1 or axes, *size)`
    scale: float  # s
    spacing: tuple[float, ...]
    norm: float
    roundings: float
    isotropic: bool
    coupled: bool
    delta: float  # of Huber's function; 0 for lengths
    box: tuple[float, float] | None

    @property
    def method(self) -> FGP:
        """The method whose iterations these are, to go on with."""
        return METHOD

    @property
    def is_continued(self) -> bool:
        """Whether solves that float32 holds up continue from their dual points in float64."""
        return False

    def solve(self, tolerance: float, limit: int, dual: Tensor | None) -> Solved:
        """Solve to a relative gap, or up to `limit` iterations, one instance after the other.

        From a dual point; or by the schedule for the tolerance, on coarser grids first where the problem has them.
        """
        y = self.noisy.detach()
        if y.ndim == 3:
            wide = self._replace(noisy=y.unsqueeze(2), bound=as_row(self.bound), spacing=(1.0, *self.spacing))
            found = wide.solve(tolerance, limit, None if dual is None else as_row_field(dual))
            return Solved(found.x[:, :, 0], found.dual[:, :, 1:, 0].contiguous(), found.outcomes)
        x, p = torch.empty_like(y, memory_format=torch.contiguous_format), self._field(dual)
        if dual is not None:
            none = p.new_zeros(2, 0)
            return Solved(x, p, [_iterate(self, n, none, limit, tolerance, p[n], x[n], False) for n in range(len(y))])
        outcomes = []
        for n, rough in enumerate(roughness(self.problem).tolist()):
            has_grids = offers(self.problem, ("coarser",))
            schedule = schedules.choose(rough, tolerance, self.isotropic, coarse=has_grids)
            start = _coarse_start(self.problem.select(n), schedule)
            if start is not None:
                p[n] = start[0]
            values = schedule.at(rough)
            outcomes.append(_iterate(self, n, values, limit, tolerance, p[n], x[n], start is None))
        return Solved(x, p, outcomes)

    def _field(self, dual: Tensor | None) -> Tensor:
        """A dual field to be written to, `(B, C, axes, *size)`."""
        y = self.noisy
        shape = (*y.shape[:2], y.ndim - 2, *y.shape[2:])
        return y.new_zeros(shape) if dual is None else dual.detach().to(y).reshape(shape).clone().contiguous()


def model_of(problem: Any) -> SquaresModel:
    """What compiled code has to know of a problem that it serves."""
    f, g, operator = problem.f, problem.regularisers[0], problem.operator
    squares = getattr(f, "term", f)
    box = None if squares is f else (float(f.low), float(f.high))
    form = (2 in g.axes, 1 in g.axes, getattr(g, "delta", 0.0))
    constants = (operator.spacing, operator.norm, operator.roundings)
    return SquaresModel(problem, squares.y, g.weight, squares.curvature, *constants, *form, box)


def _coarse_start(problem: Any, schedule: schedules.Schedule) -> Tensor | None:
    """The dual point of one instance `(1, ...)` from coarser grids; None where the schedule begins at p = 0."""
    coarse = problem.coarser() if schedule.coarse else None
    if coarse is None:
        return None
    model, start = model_of(coarse), _coarse_start(coarse, schedule)
    p, x = model._field(start), torch.empty_like(model.noisy)
    values = schedule.at(float(roughness(coarse)))
    _iterate(model, 0, values, schedule.iterations, -1.0, p[0], x[0], start is None)
    found: Tensor = problem.from_coarser(p)
    return found


def _iterate(
    model: SquaresModel, n: int, values: Tensor, limit: int, tolerance: float, p: Tensor, x: Tensor, cold: bool
) -> Outcome:
    """Iterate on instance n, first with step sizes and momenta `(2, N)`; p and x are written to.

    A tolerance below 0 is none; `cold` says that p is 0.
    """
    y, report = model.noisy.detach(), torch.zeros(5, dtype=torch.float64, device="cpu")
    (sizes, spacing), (weight, weights, maps) = grid_of(y, model.spacing), weight_of(model.bound, n)
    low, high = model.box or (0.0, 0.0)
    step, count = 2 * model.scale / model.norm**2, values.shape[1]
    reals = (weight, model.scale, step, tolerance, model.delta, low, high, model.norm, model.roundings, *spacing)
    counts = (*sizes, *maps, count, count, limit, FIRST_EVALUATION, RESTART_EVERY)
    options = (model.isotropic, model.coupled, model.box is not None, cold)
    call("lmd_model", (y[n], weights, values.double().contiguous()), (reals, counts, options), (p, x, report))
    iterations, end, value, gap, _ = report.tolist()
    return Outcome(int(iterations), int(end), value, gap)
