"""Proposals for a class, by what its problems offer: solvers to train, and grids of classical ones to tune."""

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
from lmd.guarantees.approximate import MAX_SYSTEM_SIZE, estimate_smoothness
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
from lmd.solvers.initialisers import (
    Initialiser,
    MeanInitialiser,
    NearestInitialiser,
    NetworkInitialiser,
    effective_rank,
)
from lmd.solvers.learned.gradient import DenseMetric, DiagonalMetric, LearnedGradient, LearnedQuasiNewton, Metric
from lmd.solvers.wrappers import Sequential, WithInitialiser
from lmd.training.instances import Instances
from lmd.training.measure import curve, reached

MAX_DATA, MAX_RANK = 4096, 256  # numbers per instance that an initialiser learns from, and directions among them
MAX_NEAREST_RANK = 16  # directions up to which the nearest training instance is close
HIDDEN_UNITS = 32  # units in each of the two hidden layers of a network
MAX_DENSE_SIZE = 256  # entries of x up to which a metric is a dense matrix
PHASES = (1 / 12, 1 / 4, 3 / 5)
"""Shares of the iterations of the classical method to the target, after which learned parameters change."""

MAX_ITERATIONS = 400  # iterations of a method, unless all are slower
Make = Callable[[], Solver[Any]]


@dataclass(frozen=True)
class ClassInfo:
    """What the training instances say about a class."""

    train: Instances

    @property
    def size(self) -> int:
        return self.train.x0[0].numel()

    @property
    def splits(self) -> bool:
        """Whether ADMM can run, with matrices that all instances share."""
        problem = self.train.problem
        if not offers(problem, ADMM().needs) or self.size > MAX_SYSTEM_SIZE:
            return False
        quadratic, operator = problem.quadratic, problem.operator
        return operator.select(0) is operator and (quadratic is None or quadratic[0].ndim == 2)

    @property
    def smooth_everywhere(self) -> bool:
        """Whether to try gradient methods on the whole space: the problem is not composite."""
        return self.train.problem.domain is None and not offers(self.train.problem, PDHG().needs)

    @cached_property
    def data(self) -> Tensor | None:
        """What an initialiser can learn from `(B, m)`, if it tells instances apart."""
        try:
            data = self.train.problem.data_vector()
        except CapabilityError:
            return None
        telling = data.shape[1] <= MAX_DATA and 4 * effective_rank(data, len(data)) <= 3 * len(data)
        return data if telling else None

    @cached_property
    def scale(self) -> float:
        """One over the smoothness."""
        return 1 / estimate_smoothness(self.train.problem, self.train.optima)

    @cached_property
    @torch.no_grad()
    def inverse_hessian(self) -> Tensor:
        """The inverse `(n, n)` of the mean of the Hessians at some of the optima, by differences of gradients."""
        part = self.train.select(slice(0, 32))
        x, columns = part.optima, []
        length = 1e-2 * (1e-3 + float(x.abs().mean()))
        for entry in range(self.size):
            move = torch.zeros_like(x).flatten(1)
            move[:, entry] = length
            there, back = (part.problem.subgradient(x + sign * move.reshape_as(x)) for sign in (1, -1))
            columns.append(((there - back) / (2 * length)).flatten(1).double().mean(dim=0))
        hessian = torch.stack(columns)
        values, vectors = torch.linalg.eigh((hessian + hessian.mT) / 2)
        values = values.clamp(min=max(1e-5 * float(values[-1]), 1e-12))
        return (vectors / values) @ vectors.mT

    def fitted(self, start: Initialiser, optima: Tensor) -> Initialiser:
        """Return an initialiser, fitted to the training instances."""
        start = start.to(optima)
        start.fit_(optima.new_zeros(len(optima), 1) if self.data is None else self.data, optima)
        return start

    def mean(self) -> Initialiser:
        return self.fitted(MeanInitialiser(self.train.x0.shape[1:]), self.train.optima)

    def network(self, optima: Tensor) -> Initialiser:
        features, rank = self._features(), effective_rank(self._features(), MAX_RANK)
        return self.fitted(NetworkInitialiser(optima.shape[1:], features.shape[1], rank, HIDDEN_UNITS), optima)

    def nearest(self) -> Initialiser:
        x, features = self.train.optima, self._features()
        return self.fitted(NearestInitialiser(x.shape[1:], len(x), features.shape[1]), x)

    def _features(self) -> Tensor:
        if self.data is None:
            raise CapabilityError("problem", "no data that tell instances apart", "`batched` tensors")
        return self.data

    def metric(self) -> Metric:
        made = DenseMetric(self.size) if self.size <= MAX_DENSE_SIZE else DiagonalMetric(self.size)
        made = made.to(self.train.x0)
        inverse = self.inverse_hessian if self.size <= MAX_DENSE_SIZE else None
        made.fit_(self.scale * torch.eye(self.size, dtype=torch.float64, device="cpu") if inverse is None else inverse)
        return made


def propose_initialisers(
    info: ClassInfo, classical: dict[str, Solver[Any]]
) -> tuple[WithInitialiser, tuple[Tensor, ...]] | None:
    """Return a classical method with networks as initialisers, to be trained, and the points they are to give.

    None where data do not tell instances apart. ADMM reads the dual point from how far a start is outside a box, so
    there the points are outside it.
    """
    train = info.train
    if info.data is None:
        return None
    if not info.splits or train.duals is None:
        method = _rest(train, classical)
        return WithInitialiser(method, info.network(train.optima)), (train.optima,)
    tuned = copy.deepcopy(classical["ADMM"]).requires_grad_(False)
    wanted: tuple[Tensor, ...] = (train.optima, train.duals)
    if train.problem.operator.is_identity and train.problem.quadratic is not None:
        r = tuned.init(train.problem, train.x0).schedule[0][0]
        wanted = (train.optima + train.duals / r,)
    return WithInitialiser(tuned, *(info.network(each) for each in wanted)), wanted


def _rest(train: Instances, classical: dict[str, Solver[Any]]) -> Solver[Any]:
    """Return the method that follows learned gradient steps."""
    return LBFGS() if train.problem.domain is None else classical.get("Nesterov", LBFGS())


def propose_learned(
    info: ClassInfo, classical: dict[str, Solver[Any]], initialised: WithInitialiser | None, target: float
) -> dict[str, Make]:
    """Return solvers to train, by name; they start from the tuned classical methods, and gradient steps end in one.

    `initialised` has the trained networks as initialisers; `target` is the relative gap to reach.
    """
    train, found = info.train, {}
    rest = _rest(train, classical)
    starts: dict[str, Callable[[], tuple[Initialiser, ...]]] = {"mean start": lambda: (info.mean(),)}
    if info.data is not None and initialised is not None:
        starts["network start"] = lambda: (copy.deepcopy(initialised.start),)
        if effective_rank(info.data, len(info.data)) <= MAX_NEAREST_RANK:
            starts["nearest start"] = lambda: (info.nearest(),)
        if initialised.dual is not None:
            dual = initialised.dual
            starts["network starts, primal and dual"] = lambda: (copy.deepcopy(initialised.start), copy.deepcopy(dual))
    for name, start in starts.items():
        for method, make in _learned(info, classical, target):
            if _fit_together(info, name, method):
                found[f"{method}, {name}"] = _with_start(make, start, rest)
    if info.smooth_everywhere and info.size <= MAX_DENSE_SIZE:
        found["learned mirror descent, mean start"] = _with_start(lambda: _mirror(info), lambda: (info.mean(),), rest)
    return found


def _fit_together(info: ClassInfo, start: str, method: str) -> bool:
    """Return whether to try an initialiser with a method: each gets the best for it, which leaves time to train."""
    splits, initialised = method.startswith("ADMM"), info.data is not None
    if "dual" in start or ("mean" in start and initialised):
        return splits and not info.train.problem.operator.is_identity
    return not ("nearest" in start and splits)


def _with_start(make: Make, start: Callable[[], tuple[Initialiser, ...]], rest: Solver[Any]) -> Make:
    def whole() -> Solver[Any]:
        solver = WithInitialiser(make(), *start())
        return solver if solver.ends_proven else Sequential(solver, rest)

    return whole


def _learned(info: ClassInfo, classical: dict[str, Any], target: float) -> Iterator[tuple[str, Make]]:
    problem, x0 = info.train.problem, info.train.x0
    if info.splits and problem.quadratic is None:
        yield (
            "ADMM in phases",
            partial(_learned_admm, info, classical["ADMM"], _ends(info, classical["ADMM"], target)),
        )
    elif info.splits:
        for count in (2, 4, 8):
            ends = range(1, count + 1)
            yield f"ADMM, {count} learned iterations", partial(_learned_admm, info, classical["ADMM"], ends)
    if offers(problem, PDHG().needs):
        yield "PDHG, 20 learned iterations", lambda: LearnedPDHG(20, classical["PDHG"].tau).to(x0.dtype)
    elif problem.domain is None:
        for count in (3, 6):
            yield f"quasi-Newton, {count} learned iterations", partial(_quasi_newton, info, count)
    else:
        yield "gradient steps, 10 learned iterations", lambda: LearnedGradient(info.metric(), 10).to(x0.dtype)


def _admm(info: ClassInfo, penalty: float, ratio: float, relaxation: float) -> ADMM:
    """Return the classical method with the matrices of the class; `ratio` is s over r."""
    solver = ADMM(1, info.size, penalty, relaxation).to(info.train.x0.dtype)
    with torch.no_grad():
        solver.penalties[:, 1] += math.log(ratio)
    return solver.precompute_(info.train.problem, info.train.x0)


def _ends(info: ClassInfo, tuned: ADMM, target: float) -> list[int]:
    """Return where phases end, as shares of the iterations of the classical method to the target."""
    few = info.train.select(slice(0, 32))
    count = reached(curve(tuned, [few], MAX_ITERATIONS, target), target) or MAX_ITERATIONS
    return [max(place + 1, round(share * count)) for place, share in enumerate(PHASES)]


def _learned_admm(info: ClassInfo, tuned: ADMM, ends: Sequence[int]) -> ADMM:
    """Return ADMM with a penalty for each part behind an operator, or for each entry where that is the identity."""
    problem = info.train.problem
    images = (part(info.train.x0[:1]) for part in problem.operator.blocks)
    sizes = [1] * info.size if problem.operator.is_identity else [image.numel() for image in images]
    solver = ADMM(len(ends) + 1, info.size, blocks=sizes, ends=ends).to(info.train.x0.dtype)
    with torch.no_grad():
        solver.penalties[:, :-1] = tuned.penalties[:, :1]
        solver.penalties[:, -1:] = tuned.penalties[:, 1:]
        solver.relaxations.copy_(tuned.relaxations)
    return solver.precompute_(problem, info.train.x0)


def _quasi_newton(info: ClassInfo, count: int) -> Solver[Any]:
    return LearnedQuasiNewton(info.metric(), count).to(info.train.x0.dtype)


def _mirror(info: ClassInfo) -> Solver[Any]:
    """Return the paper's, with steps around one over the smoothness."""
    step, mirror = info.scale, Quadratic(info.size)
    return LearnedMirrorDescent(mirror, iterations=10, initial_step=step, interval=(0.01 * step, 100 * step)).to(
        info.train.x0.dtype
    )


@dataclass(frozen=True)
class Grid:
    """A classical method with a grid of settings: values along some axes, and the indices to start from."""

    make: Callable[..., Solver[Any]]
    axes: tuple[tuple[Any, ...], ...] = ()
    first: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes)

    def solver(self, places: Sequence[int]) -> Solver[Any]:
        """Return the method with the values at these indices."""
        return self.make(*(axis[place] for axis, place in zip(self.axes, places, strict=True)))


def _half_decades(low: int, high: int) -> tuple[float, ...]:
    """Return powers of the root of 10: from 10^(low / 2) to 10^(high / 2)."""
    return tuple(10.0 ** (power / 2) for power in range(low, high + 1))


def propose_classical(info: ClassInfo) -> dict[str, Grid]:
    """Return classical methods to tune: from the given starts and, after those, from the mean optimum."""
    problem, found = info.train.problem, dict[str, Grid]()
    if info.splits:
        ratios = (1.0,) if problem.quadratic is not None else _half_decades(-6, 2)
        first = (6, 0 if problem.quadratic is not None else 6, 1)
        found["ADMM"] = Grid(partial(_admm, info), (_half_decades(-6, 12), ratios, (1.0, 1.6, 1.9)), first)
    if offers(problem, PDHG().needs):
        default = float(torch.as_tensor(PDHG().steps(problem)[0], dtype=torch.float64, device="cpu").mean())
        taus = tuple(default * factor for factor in _half_decades(-8, 8))
        found["PDHG"] = Grid(lambda tau, settle: PDHG(tau, settle=settle), (taus, (1.0, 16.0)), (8, 0))
        if problem.data_strong_convexity is not None and offers(problem, FGP().needs):
            found["FGP"] = Grid(lambda restart: FGP(restart=restart), ((False, True),), (0,))
    elif offers(problem, InteriorPoint().needs):
        found["interior point"] = Grid(InteriorPoint)
    else:
        steps = tuple(info.scale * factor for factor in (0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0))
        if problem.domain is None:
            found["L-BFGS"] = Grid(LBFGS, ((10, 30),), (0,))
        found["Nesterov"] = Grid(Nesterov, (steps,), (5,))
        found["gradient descent" if problem.domain is None else "projected gradient"] = Grid(
            GradientDescent, (steps,), (5,)
        )
        if problem.domain is None:
            rates = tuple(factor * info.scale**0.5 for factor in (0.001, 0.01, 0.1, 1.0))
            found["Adam"] = Grid(Adam, (rates,), (2,))
    return found | {f"{name}, mean start": _from_mean(info, settings) for name, settings in found.items()}


def _from_mean(info: ClassInfo, settings: Grid) -> Grid:
    def make(*values: Any) -> Solver[Any]:
        return WithInitialiser(settings.make(*values), info.mean())

    return replace(settings, make=make)
