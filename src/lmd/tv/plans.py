"""Plans: which compiled code serves a problem, and whole solves of models with squares in one compiled call.

`match` looks at the types of a problem's terms and operators, and returns a plan or None. A plan that is not a solver
solves the whole problem in one call, with iterations, gap evaluations and stopping, and returns a `Solved`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from lmd import kernels
from lmd.core.checks import shape_of
from lmd.errors import InputError
from lmd.operators import Differences
from lmd.problems import Composite
from lmd.problems.base import offers
from lmd.problems.duality import relative_gap
from lmd.solvers.base import Solver
from lmd.solvers.classical.fgp import FGP, RESTART_EVERY
from lmd.solvers.classical.pdhg import BALANCING_INTERVAL, MAX_BALANCING_ITERATION, MIN_TRUSTED_ITERATION, RelaxedPDHG
from lmd.solvers.learned.primal_dual import LOWEST, NODES, RATIO, roughness
from lmd.terms import L1, GroupNorm, Huber, Squares
from lmd.terms.base import Scale
from lmd.terms.squares import MaskedSquares
from lmd.terms.wrappers import Boxed
from lmd.tv import schedules

METHOD = FGP(restart=True)

NORMS = (L1, GroupNorm, Huber)  # the terms of total variation; subclasses do not match
AXES = ((), (1,), (2,), (1, 2))
"""The axes of a dual field along which compiled code can take lengths: none, channels, directions, both."""

MIN_LENGTH, MAX_LENGTH = 1e-15, 1e18  # range of bounds whose squares fit into float32, as lengths require

MIN_TOLERANCE = 1e-5
"""Least relative gap for a plain `SquaresModel`, because its float32 dual points are scaled down by 5e-7."""

MEETINGS = 10
"""Threads pay off from this many times more pixels on if they synchronise in each iteration or gap evaluation."""

Grid = tuple[tuple[int, ...], tuple[float, ...], tuple[float, Tensor | None]]


class End(IntEnum):
    """Why a solve of one instance ended; the first three members have the same values in C."""

    OUT_OF_ITERATIONS = 1
    REACHED = 2  # the gap is within the tolerance
    STUCK = 3  # the gap has not fallen for many iterations, due to rounding or slow convergence
    ROUNDED = 4  # rounding keeps the gap from falling
    NOT_FEASIBLE = 5  # x violates the constraints
    SLOW = 6  # the gap has not fallen for many iterations in float32, possibly due to rounding


class Outcome(NamedTuple):
    """How the solve of one instance ended."""

    iterations: int
    end: int  # a member of `End`
    value: float  # F(x)
    gap: float  # a bound on F(x) - min F, with room for its rounding


class Solved(NamedTuple):
    """The result of a whole solve."""

    x: Tensor
    dual: Tensor
    outcomes: Sequence[Outcome]

    @property
    def gaps(self) -> Tensor:
        """The bounds on F(x) - min F `(B,)`, in float64."""
        return torch.tensor([each.gap for each in self.outcomes], dtype=torch.float64, device=self.x.device)

    def ended(self, *ends: int) -> Tensor:
        """Return which instances ended in one of these ways `(B,)`."""
        return torch.tensor([each.end in ends for each in self.outcomes], dtype=torch.bool, device=self.x.device)


def match(problem: Any, tolerance: float) -> SquaresModel | Inpainting | Solver[Any] | None:
    """Return the plan by which compiled code solves a problem to a relative gap; None if there is none.

    A plan solves the problem in one compiled call, or is a solver with compiled iterations.

    Args:
        problem: Any problem.
        tolerance: The relative gap to be proven.
    """
    if not isinstance(problem, Composite):
        return None
    whole = _match_whole(problem, tolerance)
    if whole is not None:
        return whole
    from lmd.tv.primal_dual import match_solver  # imported here because it imports this module

    return match_solver(problem, tolerance)


def _match_whole(problem: Any, tolerance: float) -> SquaresModel | Inpainting | None:
    """Return the plan for squares or masked squares plus a norm of differences; None for other problems."""
    f, K, g = problem.f, problem.operator, problem.regularisers[0]
    if len(problem.regularisers) > 1 or type(K) is not Differences or type(g) not in NORMS:
        return None
    if type(f) is MaskedSquares:
        is_plain = K.spacing == (1.0, 1.0) and g.axes in ((), (2,)) and not isinstance(g, Huber) and f.y.ndim == 4
        if not is_plain or is_map(g.weight) or not is_served(f.y, g.weight, also_float64=True):
            return None
        return Inpainting(problem)
    is_boxed = type(f) is Boxed and not isinstance(f.low, Tensor) and not isinstance(f.high, Tensor)
    squares: Any = f.term if is_boxed else f
    if type(squares) is not Squares or isinstance(squares.scale, Tensor) or isinstance(squares.weight, Tensor):
        return None
    if not is_boxed and not isinstance(g, Huber) and g.axes in AXES:
        plan = plan_denoising(f.y, g.weight, K, 2 in g.axes, 1 in g.axes, f.curvature, problem)
        if plan is not None:
            return plan
    is_fit = tolerance >= MIN_TOLERANCE and fits_grid(g, squares.y) and is_served(squares.y, g.weight)
    return model_of(problem) if is_fit else None


def plan_denoising(
    y: Tensor, bound: Scale, K: Differences, isotropic: bool, coupled: bool, scale: float = 1.0, problem: Any = None
) -> Denoising | None:
    """Return the plan for scale ||x - y||^2 + bound ||Kx|| on images; None if compiled code does not serve it.

    The `problem` is needed only to start from dual points.
    """
    if y.ndim != 4 or K.spacing != (1.0, 1.0) or is_map(bound) or not is_served(y, bound, also_float64=True):
        return None
    if coupled and y.shape[1] > kernels.library().MAX_COUPLED:
        return None
    return Denoising(problem, y, bound, scale, K.spacing, K.norm, K.roundings, isotropic, coupled)


def is_map(weight: Scale) -> bool:
    """Return whether a weight has a number for each pixel."""
    return isinstance(weight, Tensor) and weight.ndim > 1


def fits_grid(g: Any, y: Tensor) -> bool:
    """Return whether compiled code supports the lengths and weights of a norm, along one to three axes."""
    if not 3 <= y.ndim <= 5 or g.axes not in AXES or isinstance(getattr(g, "delta", 0.0), Tensor):
        return False
    if not is_map(g.weight):
        return True
    shape = g.weight.shape
    whole = len(shape) == y.ndim + 1 and shape[0] == len(y) and shape[3:] == y.shape[2:]
    channels, components = {1, y.shape[1]}, {1, y.ndim - 2}
    return whole and shape[1] in channels and shape[2] in components and all(shape[axis] == 1 for axis in g.axes)


def is_served(*data: Any, also_float64: bool = False) -> bool:
    """Return whether compiled code can read the tensors in `data`: one dtype, on the CPU, not recorded by autograd."""
    dtype, recording = data[0].dtype, torch.is_grad_enabled()
    for each in data:
        if isinstance(each, Tensor) and (each.dtype != dtype or not each.is_cpu or (recording and each.requires_grad)):
            return False
    return (dtype == torch.float32 or (also_float64 and dtype == torch.float64)) and kernels.library() is not None


@dataclass(frozen=True)
class SquaresModel:
    """s ||x - y||^2 + g(Kx), with or without a box; K takes differences of neighbours along one to three axes."""

    problem: Any  # evaluates dual points to start from
    noisy: Tensor  # y `(B, C, *size)`, one to three axes
    bound: float | Tensor  # weights: a number, one per instance `(B,)`, or a map `(B, 1 or C, 1 or axes, *size)`
    scale: float  # s
    spacing: tuple[float, ...]
    norm: float
    roundings: float
    isotropic: bool
    coupled: bool
    delta: float = 0.0  # the delta of Huber's function; 0 for lengths
    box: tuple[float, float] | None = None

    method: ClassVar[FGP] = METHOD  # the same method in PyTorch, which can continue the solve
    is_continued: ClassVar[bool] = False
    """Whether solves that get stuck in float32 continue from their dual points in float64."""

    def solve(self, tolerance: float, limit: int, dual: Tensor | None) -> Solved:
        """Solve to a relative gap, with at most `limit` iterations, one instance after the other.

        Iterations start from `dual`, or follow the schedule for the tolerance, on coarser grids first if there are any.
        """
        y = self.noisy.detach()
        x, p = torch.empty_like(y, memory_format=torch.contiguous_format), self._field(dual)
        if dual is not None:
            none = p.new_zeros(2, 0)
            return Solved(x, p, [_iterate(self, n, none, limit, tolerance, p[n], x[n]) for n in range(len(y))])
        outcomes = []
        for n, rough in enumerate(roughness(self.problem).tolist()):
            has_grids = offers(self.problem, ("coarser",))
            schedule = schedules.choose(rough, tolerance, self.isotropic, coarse=has_grids)
            start = _coarse_start(self.problem.select(n), schedule)
            if start is not None:
                p[n] = start[0]
            values = schedule.at(rough)
            outcomes.append(_iterate(self, n, values, limit, tolerance, p[n], x[n]))
        return Solved(x, p, outcomes)

    def _field(self, dual: Tensor | None) -> Tensor:
        """Return a new dual field `(B, C, axes, *size)`: a copy of `dual`, or 0 if that is None."""
        y = self.noisy
        shape = (*y.shape[:2], y.ndim - 2, *y.shape[2:])
        if dual is not None and dual.shape != shape:
            raise InputError("dual", f"shape {shape_of(dual)}", f"shape {shape}, as the images have")
        return y.new_zeros(shape) if dual is None else dual.detach().to(y).clone().contiguous()


@dataclass(frozen=True)
class Denoising(SquaresModel):
    """s ||x - y||^2 + b ||Kx||; K takes differences of neighbours in images, b is a number or one per image `(B,)`.

    `replace(plan, noisy=..., bound=...)` is the plan for other data and weights of the same size; its solves cannot
    start from dual points.
    """

    is_continued: ClassVar[bool] = True

    def solve(
        self, tolerance: float, limit: int, dual: Tensor | None, *, table: schedules.Table | None = None
    ) -> Solved:
        """Solve to a relative gap, with at most `limit` iterations for each instance.

        A dual point is evaluated once, and used as the start if that is cheaper than p = 0. `table` holds the schedules
        to choose from; None is all schedules of the package.
        """
        problem, y = self.problem, self.noisy.detach().contiguous()
        batch, channels, height, width = y.shape
        is_double, coupled = y.dtype == torch.float64, self.coupled and channels > 1
        bounds = self.bound.detach().tolist() if isinstance(self.bound, Tensor) else [self.bound]
        bounds = bounds if len(bounds) == batch else bounds * batch
        p, x = y.new_empty(batch, channels, 2, height, width), torch.empty_like(y)
        has_squares = is_double or (min(bounds) >= MIN_LENGTH and max(bounds) <= MAX_LENGTH)
        if (self.isotropic or coupled) and not has_squares:
            return Solved(y, p.zero_(), [Outcome(0, End.STUCK, torch.inf, torch.inf)] * batch)
        gaps = [torch.inf] * batch
        if dual is not None:
            dual = problem.g.project(self._field(dual))
            start = problem.f.tilted_minimiser(problem.operator.adjoint(dual))
            value, gap = problem.certified_gap(start, dual)
            gaps = relative_gap(value, gap).tolist()
        table = table or schedules.table()
        step = 2 * self.scale / self.norm**2
        constants = (self.scale, step, tolerance, self.norm, self.roundings, LOWEST, RATIO)
        options = (self.isotropic, coupled, is_double, RESTART_EVERY, len(table.horizons), NODES)
        report = kernels.call(
            "fgp",
            (y, dual, *table, p, x),
            (*constants, *bounds, *gaps),
            (*y.shape, limit, *options),
            threads=kernels.threads_for(y),
            reports=4 * batch,
        )
        outcomes = outcomes_of(report)
        if dual is not None:
            for n, each in enumerate(outcomes):
                if each.iterations == 0 and each.end == End.REACHED:  # the given dual point is within the tolerance
                    x[n], p[n] = start[n], dual[n]
                    outcomes[n] = each._replace(value=float(value[n]), gap=float(gap[n]))
        return Solved(x, p, outcomes)


def model_of(problem: Any) -> SquaresModel:
    """Return the parts of a supported problem that compiled code needs."""
    f, K, g = problem.f, problem.operator, problem.regularisers[0]
    squares = getattr(f, "term", f)
    box = None if squares is f else (float(f.low), float(f.high))
    grid = (K.spacing, K.norm, K.roundings)
    return SquaresModel(problem, squares.y, g.weight, squares.curvature, *grid, *form_of(g), box)


def form_of(g: Any) -> tuple[bool, bool, float]:
    """Return whether lengths are taken along directions, whether along channels, and Huber's delta."""
    return 2 in g.axes, 1 in g.axes, getattr(g, "delta", 0.0)


def _coarse_start(problem: Any, schedule: schedules.Schedule) -> Tensor | None:
    """Return the dual point of one instance `(1, ...)` from coarser grids; None if the schedule begins at p = 0."""
    coarse = problem.coarser() if schedule.coarse else None
    if coarse is None:
        return None
    model, start = model_of(coarse), _coarse_start(coarse, schedule)
    p, x = model._field(start), torch.empty_like(model.noisy)
    values = schedule.at(float(roughness(coarse)))
    _iterate(model, 0, values, schedule.iterations, -1.0, p[0], x[0])
    found: Tensor = problem.from_coarser(p)
    return found


def _iterate(
    model: SquaresModel, n: int, values: Tensor, limit: int, tolerance: float, p: Tensor, x: Tensor
) -> Outcome:
    """Iterate on instance n, first with the step sizes and momenta `(2, N)` in `values`; write p and x in place.

    If the tolerance is negative, gaps are not evaluated.
    """
    grid, spacing, (bound, weights) = grid_of(model, n)
    low, high = model.box or (0.0, 0.0)
    step = 2 * model.scale / model.norm**2
    constants = (model.scale, step, tolerance, low, high, model.norm, model.roundings)
    report = kernels.call(
        "model",
        (model.noisy[n].detach().contiguous(), weights, values.double().contiguous(), p, x),
        (bound, model.delta, *spacing, *constants),
        (*grid, model.box is not None, values.shape[1], limit, RESTART_EVERY),
        threads=kernels.threads_for(x, MEETINGS),
        reports=4,
    )
    return outcomes_of(report)[0]


@dataclass(frozen=True)
class Inpainting:
    """s ||Z(x - y)||^2 + b ||Kx|| over low <= x <= high; K takes differences of neighbours in images."""

    problem: Any

    method: ClassVar[RelaxedPDHG] = RelaxedPDHG()  # the same method in PyTorch
    is_continued: ClassVar[bool] = False  # as in `SquaresModel`

    def solve(self, tolerance: float, limit: int, dual: Tensor | None = None) -> Solved:
        """Run at most `limit` iterations of `RelaxedPDHG` to a relative gap for each instance; `dual` is ignored."""
        f, g, norm = self.problem.f, self.problem.regularisers[0], self.problem.operator.norm
        state = self.method.init(self.problem, self.problem.start())
        y, x = f.y.detach().contiguous(), state.x.detach().resolve_neg().contiguous()
        batch, channels = y.shape[:2]
        mask, low, high = (each.detach().expand(batch, -1, -1, -1).contiguous() for each in (f.mask, f.low, f.high))
        bounds = torch.as_tensor(g.weight, dtype=torch.float64, device="cpu").expand(batch)
        each = torch.cat([part.detach().double().flatten() for part in (bounds, state.tau, low, high)])
        found, dual = torch.empty_like(y), y.new_empty(batch, channels, 2, *y.shape[2:])
        reals = (f.scale, norm**2, self.method.relaxation, tolerance, *each.tolist())
        balance = (BALANCING_INTERVAL, MAX_BALANCING_ITERATION, MIN_TRUSTED_ITERATION)
        sizes = (batch, channels, mask.shape[1], *y.shape[2:], limit, bool(g.axes), y.dtype == torch.float64, *balance)
        threads = kernels.threads_for(y, MEETINGS)
        report = kernels.call("saddle", (y, mask, x, found, dual), reals, sizes, threads=threads, reports=4 * batch)
        return Solved(found, dual, outcomes_of(report))


def outcomes_of(report: Sequence[float]) -> list[Outcome]:
    """Return the outcomes of the instances from the report of compiled code, four numbers each."""
    counts, ends = map(int, report[::4]), map(int, report[1::4])
    return list(map(Outcome, counts, ends, report[2::4], report[3::4]))


def grid_of(model: Any, n: int) -> Grid:
    """Return instance n of a model in the form that `model_of` of volume.c reads.

    Returns:
        The sizes: channels, axes, three lengths, channels and axes of the map of weights, isotropic, coupled; the three
        spacings; the weight and the map of weights, which may be None.
    """
    channels, *size = model.noisy.shape[1:]
    absent, bound = (1,) * (3 - len(size)), model.bound  # missing axes, of one pixel, stand before the last
    lengths, spacing = ((*each[:-1], *absent, each[-1]) for each in (size, model.spacing))
    if is_map(bound):
        maps, weight = tuple(bound.shape[1:3]), (1.0, bound[n].detach().contiguous())
    else:
        maps, weight = (0, 0), (float(bound[n]) if isinstance(bound, Tensor) else bound, None)
    return (channels, len(size), *lengths, *maps, model.isotropic, model.coupled), spacing, weight
