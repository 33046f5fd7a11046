"""Proposals for a class of problems: solvers to train, and classical methods with grids of settings to tune."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from lmd.errors import CapabilityError
from lmd.guarantees.minima import MAX_SYSTEM_SIZE, estimate_smoothness, hessians
from lmd.mirrors import Quadratic
from lmd.problems.base import offers
from lmd.solvers import (
    ADMM,
    FGP,
    LBFGS,
    PDHG,
    Adam,
    GradientDescent,
    LearnedMirrorDescent,
    LearnedPDHG,
    Nesterov,
    Solver,
)
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.solvers.initialisers import MeanInitialiser, NetworkInitialiser, effective_rank
from lmd.solvers.learned.gradient import LearnedGradient, Metric
from lmd.solvers.wrappers import Sequential, WithInitialiser
from lmd.training.instances import Instances, curve, reached

MAX_DATA, MAX_RANK = 4096, 256  # limits of the data per instance for an initialiser, and of their principal directions
HIDDEN_UNITS = 32  # units in each of the two hidden layers of a network
MAX_DENSE_SIZE = 256  # entries of x up to which a metric is a dense matrix
PHASES = (1 / 12, 1 / 4, 3 / 5)
"""Learned parameters change after these shares of the iterations that the classical method takes to the target."""

MAX_ITERATIONS = 400  # maximum number of iterations; raised if no method reaches the target
MIRROR_DESCENT = "learned mirror descent"


@dataclass(frozen=True)
class ClassInfo:
    """Facts about a class of problems, computed from its training instances."""

    train: Instances

    @property
    def size(self) -> int:
        return self.train.x0[0].numel()

    @property
    def splits(self) -> bool:
        """Whether ADMM can solve the problems, with the same matrices for all instances."""
        problem = self.train.problem
        if not offers(problem, ADMM().needs) or self.size > MAX_SYSTEM_SIZE:
            return False
        quadratic, operator = problem.f.quadratic, problem.operator
        return operator.select(0) is operator and (quadratic is None or quadratic[0].ndim == 2)

    @cached_property
    def data(self) -> Tensor | None:
        """The data `(B, m)` from which an initialiser can learn; None if they do not distinguish the instances."""
        try:
            data = self.train.problem.data_vector()
        except CapabilityError:
            return None
        telling = data.shape[1] <= MAX_DATA and 4 * effective_rank(data, len(data)) <= 3 * len(data)
        return data if telling else None

    @cached_property
    def scale(self) -> float:
        """1 / L, where L is the smoothness of the problems."""
        return 1 / estimate_smoothness(self.train.problem, self.train.optima)

    @cached_property
    @torch.no_grad()
    def inverse_hessian(self) -> Tensor:
        """The inverse `(n, n)` of the mean Hessian at some of the optima, computed by differences of gradients."""
        part = self.train.select(slice(0, 32))
        length = 1e-2 * (1e-3 + part.optima.abs().mean())
        hessian = hessians(part.problem, part.optima, length.expand(len(part.x0), 1)).double().mean(dim=0)
        values, vectors = torch.linalg.eigh(hessian)
        values = values.clamp(min=max(1e-5 * float(values[-1]), 1e-12))
        return (vectors / values) @ vectors.mT

    def mean(self) -> MeanInitialiser:
        x = self.train.optima
        return _fitted(MeanInitialiser(x.shape[1:]), x.new_zeros(len(x), 1), x)

    def network(self, points: Tensor) -> MeanInitialiser:
        assert self.data is not None
        start = NetworkInitialiser(
            points.shape[1:], self.data.shape[1], effective_rank(self.data, MAX_RANK), HIDDEN_UNITS
        )
        return _fitted(start, self.data, points)

    def metric(self) -> Metric:
        is_dense = self.size <= MAX_DENSE_SIZE
        made = Metric(self.size, dense=is_dense).to(self.train.x0)
        identity = torch.eye(self.size, dtype=torch.float64, device="cpu")
        made.fit_(self.inverse_hessian if is_dense else self.scale * identity)
        return made


def _fitted(start: MeanInitialiser, data: Tensor, points: Tensor) -> MeanInitialiser:
    start = start.to(points)
    start.fit_(data, points)
    return start


def propose_initialisers(
    info: ClassInfo, classical: dict[str, Solver[Any]]
) -> tuple[WithInitialiser, tuple[Tensor, ...]] | None:
    """Return a classical method with untrained networks as initialisers, and the points that they should learn.

    Return None if the data do not distinguish the instances. ADMM takes the dual point from the distance between
    a start and the box, so its starts lie outside the box.
    """
    train = info.train
    if info.data is None:
        return None
    if not info.splits or train.duals is None:
        method = _rest(train, classical)
        return WithInitialiser(method, info.network(train.optima)), (train.optima,)
    tuned = copy.deepcopy(classical["ADMM"]).requires_grad_(False)
    wanted: tuple[Tensor, ...] = (train.optima, train.duals)
    if train.problem.operator.is_identity and train.problem.f.quadratic is not None:
        r = tuned.init(train.problem, train.x0).schedule[0][0]
        wanted = (train.optima + train.duals / r,)
    return WithInitialiser(tuned, *(info.network(each) for each in wanted)), wanted


def _rest(train: Instances, classical: dict[str, Solver[Any]]) -> Solver[Any]:
    """Return the classical method that continues after learned gradient steps."""
    return LBFGS() if train.problem.domain is None else classical.get("Nesterov", LBFGS())


def propose_learned(
    info: ClassInfo, classical: dict[str, Solver[Any]], initialised: WithInitialiser | None, target: float
) -> dict[str, Solver[Any]]:
    """Return solvers to train, by name, whose parameters start at those of the tuned classical methods.

    Gradient steps are followed by a classical method. To save time, each method is tried only with the initialisers
    that suit it. `initialised` has the trained networks, or is None; `target` is the relative gap to reach.
    """
    found, rest = dict[str, Solver[Any]](), _rest(info.train, classical)
    mean: dict[str, tuple[MeanInitialiser, ...]] = {"mean start": (info.mean(),)}
    plain = mean if initialised is None else {"network start": (initialised.start,)}
    primal_and_dual = mean | plain
    if initialised is not None and initialised.dual is not None:
        primal_and_dual["network starts, primal and dual"] = (initialised.start, initialised.dual)
    for method, solver in _learned(info, classical, target):
        has_dual = method.startswith("ADMM") and not info.train.problem.operator.is_identity
        starting = mean if method == MIRROR_DESCENT else primal_and_dual if has_dual else plain
        for name, starts in starting.items():
            whole = WithInitialiser(copy.deepcopy(solver), *copy.deepcopy(starts)).to(info.train.x0.dtype)
            found[f"{method}, {name}"] = whole if whole.ends_proven else Sequential(whole, rest)
    return found


def _learned(info: ClassInfo, classical: dict[str, Any], target: float) -> Iterator[tuple[str, Solver[Any]]]:
    """Yield the methods to train whose `needs` the problems meet, each with its name."""
    problem = info.train.problem
    if info.splits and problem.f.quadratic is None:
        yield "ADMM in phases", _learned_admm(info, classical["ADMM"], _ends(info, classical["ADMM"], target))
    elif info.splits:
        for count in (2, 4, 8):
            ends = range(1, count + 1)
            yield f"ADMM, {count} learned iterations", _learned_admm(info, classical["ADMM"], ends)
    if offers(problem, PDHG().needs):
        yield "PDHG, 20 learned iterations", LearnedPDHG(20, classical["PDHG"].tau)
    elif problem.domain is None:
        for count in (3, 6):
            yield f"quasi-Newton, {count} learned iterations", LearnedGradient(info.metric(), count, memory=8)
        if info.size <= MAX_DENSE_SIZE:
            t, mirror = info.scale, Quadratic(info.size)
            yield MIRROR_DESCENT, LearnedMirrorDescent(mirror, 10, initial_step=t, interval=(0.01 * t, 100 * t))
    else:
        yield "gradient steps, 10 learned iterations", LearnedGradient(info.metric(), 10)


def _admm(info: ClassInfo, penalty: float, ratio: float, relaxation: float) -> ADMM:
    """Return classical ADMM with the penalties r = `penalty` and s = `ratio` r."""
    solver = ADMM((), penalty, relaxation).to(info.train.x0.dtype)
    with torch.no_grad():
        solver.penalties[:, 1] += math.log(ratio)
    return solver


def _ends(info: ClassInfo, tuned: ADMM, target: float) -> list[int]:
    """Return the iterations at which phases end: `PHASES` times the iterations of the tuned method to the target."""
    few = info.train.select(slice(0, 32))
    count = reached(curve(tuned, [few], MAX_ITERATIONS, target), target) or MAX_ITERATIONS
    return [max(place + 1, round(share * count)) for place, share in enumerate(PHASES)]


def _learned_admm(info: ClassInfo, tuned: ADMM, ends: Sequence[int]) -> ADMM:
    """Return ADMM with a penalty for each block of the operator, or for each entry if the operator is the identity."""
    problem = info.train.problem
    images = (part(info.train.x0[:1]) for part in problem.operator.blocks)
    sizes = [1] * info.size if problem.operator.is_identity else [image.numel() for image in images]
    solver = ADMM(ends, blocks=sizes).to(info.train.x0.dtype)
    with torch.no_grad():
        solver.penalties[:, :-1] = tuned.penalties[:, :1]
        solver.penalties[:, -1:] = tuned.penalties[:, 1:]
        solver.relaxations.copy_(tuned.relaxations)
    return solver


@dataclass(frozen=True)
class Grid:
    """A classical method with a grid of settings: the values on each axis, and the indices of the first setting."""

    make: Callable[..., Solver[Any]]
    axes: tuple[tuple[Any, ...], ...] = ()
    first: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes)

    def solver(self, places: Sequence[int]) -> Solver[Any]:
        """Return the method with the values at these indices of the axes."""
        return self.make(*(axis[place] for axis, place in zip(self.axes, places, strict=True)))


def _half_decades(low: int, high: int) -> tuple[float, ...]:
    """Return the powers of sqrt(10) from 10^(low / 2) to 10^(high / 2)."""
    return tuple(10.0 ** (power / 2) for power in range(low, high + 1))


def propose_classical(info: ClassInfo) -> dict[str, Grid]:
    """Return the classical methods to tune, first from the given starts, then from the mean optimum."""
    problem, found = info.train.problem, dict[str, Grid]()
    if info.splits:
        ratios = (1.0,) if problem.f.quadratic is not None else _half_decades(-6, 2)
        first = (6, 0 if problem.f.quadratic is not None else 6, 1)
        found["ADMM"] = Grid(partial(_admm, info), (_half_decades(-6, 12), ratios, (1.0, 1.6, 1.9)), first)
    if offers(problem, PDHG().needs):
        default = float(torch.as_tensor(PDHG().steps(problem)[0], dtype=torch.float64, device="cpu").mean())
        taus = tuple(default * factor for factor in _half_decades(-8, 8))
        found["PDHG"] = Grid(lambda tau, settle: PDHG(tau, settle=settle), (taus, (1.0, 16.0)), (8, 0))
        if problem.f.strong_convexity is not None and offers(problem, FGP().needs):
            found["FGP"] = Grid(partial(FGP, 1.0), ((False, True),), (0,))
    elif offers(problem, InteriorPoint().needs):
        found["interior point"] = Grid(InteriorPoint)
    else:
        steps = tuple(info.scale * factor for factor in (0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0))
        if problem.domain is None:
            found["L-BFGS"] = Grid(LBFGS, ((10, 30),), (0,))
        found["Nesterov"] = Grid(Nesterov, (steps,), (5,))
        descent = "gradient descent" if problem.domain is None else "projected gradient"
        found[descent] = Grid(GradientDescent, (steps,), (5,))
        if problem.domain is None:
            rates = tuple(factor * info.scale**0.5 for factor in (0.001, 0.01, 0.1, 1.0))
            found["Adam"] = Grid(Adam, (rates,), (2,))

    def from_mean(make: Callable[..., Solver[Any]], *values: Any) -> Solver[Any]:
        return WithInitialiser(make(*values), info.mean())

    return found | {
        f"{name}, mean start": replace(grid, make=partial(from_mean, grid.make)) for name, grid in found.items()
    }
