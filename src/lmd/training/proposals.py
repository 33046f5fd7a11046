"""What to try on a class, by what its problems can do: solvers to train, and grids of classical ones to tune."""

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
    InteriorPoint,
    LearnedMirrorDescent,
    LearnedPDHG,
    Nesterov,
    ProjectedGradient,
    Sequential,
    Solver,
    WithInitialiser,
)
from lmd.solvers.initialisers import (
    Initialiser,
    MeanInitialiser,
    NearestInitialiser,
    NetworkInitialiser,
    effective_rank,
)
from lmd.solvers.learned.gradient import DenseMetric, DiagonalMetric, LearnedGradient, LearnedQuasiNewton, Metric
from lmd.training.instances import Instances
from lmd.training.measure import curve, reached

LONGEST_DATA, MOST_DIRECTIONS = 4096, 256
"""Numbers per instance that a start is learned from, and directions among them."""

FEW_DIRECTIONS = 16
"""Directions up to which the nearest training instance is near."""

HIDDEN = 32
"""Units in each of the two hidden layers of a network."""

DENSE = 256
"""Entries of x up to which a metric is a dense matrix."""

PHASES = (1 / 12, 1 / 4, 3 / 5)
"""Shares of the way to the target, in iterations of the classical method, after which learned numbers change."""

LONGEST = 400
"""Iterations after which a method is not waited for."""

Make = Callable[[], Solver[Any]]


@dataclass(frozen=True)
class Known:
    """What is known of a class from its training instances."""

    train: Instances

    @property
    def size(self) -> int:
        return self.train.x0[0].numel()

    @property
    def splits(self) -> bool:
        """Whether ADMM runs, with matrices that all instances share."""
        problem = self.train.problem
        if not offers(problem, ADMM().needs) or self.size > MAX_SYSTEM_SIZE:
            return False
        quadratic, operator = problem.quadratic, problem.operator
        return operator.select(0) is operator and (quadratic is None or quadratic[0].ndim == 2)

    @property
    def smooth_everywhere(self) -> bool:
        """Whether gradient methods on the whole space are worth a try: nothing says that it is composite."""
        return self.train.problem.domain is None and not offers(self.train.problem, PDHG().needs)

    @cached_property
    def data(self) -> Tensor | None:
        """What a start can be learned from `(B, m)`."""
        try:
            data = self.train.problem.data_vector()
        except CapabilityError:
            return None
        telling = data.shape[1] <= LONGEST_DATA and 4 * effective_rank(data, len(data)) <= 3 * len(data)
        return data if telling else None

    @cached_property
    def scale(self) -> float:
        """A step that gradients allow."""
        return 1 / estimate_smoothness(self.train.problem, self.train.optima)

    @cached_property
    @torch.no_grad()
    def inverse_hessian(self) -> Tensor:
        """The mean of the Hessians at some of the optima, by differences of gradients, inverted: `(n, n)`."""
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
        """A start that has learned from the training instances."""
        start = start.to(optima)
        start.fit_(optima.new_zeros(len(optima), 1) if self.data is None else self.data, optima)
        return start

    def mean(self) -> Initialiser:
        return self.fitted(MeanInitialiser(self.train.x0.shape[1:]), self.train.optima)

    def network(self, optima: Tensor) -> Initialiser:
        features, rank = self._features(), effective_rank(self._features(), MOST_DIRECTIONS)
        return self.fitted(NetworkInitialiser(optima.shape[1:], features.shape[1], rank, HIDDEN), optima)

    def nearest(self) -> Initialiser:
        x, features = self.train.optima, self._features()
        return self.fitted(NearestInitialiser(x.shape[1:], len(x), features.shape[1]), x)

    def _features(self) -> Tensor:
        if self.data is None:
            raise CapabilityError("problem", "no data that tell instances apart", "`batched` tensors")
        return self.data

    def metric(self) -> Metric:
        made = DenseMetric(self.size) if self.size <= DENSE else DiagonalMetric(self.size)
        made = made.to(self.train.x0)
        inverse = self.inverse_hessian if self.size <= DENSE else None
        made.fit_(self.scale * torch.eye(self.size, dtype=torch.float64, device="cpu") if inverse is None else inverse)
        return made


def to_start(known: Known, classical: dict[str, Solver[Any]]) -> tuple[WithInitialiser, tuple[Tensor, ...]] | None:
    """A classical method that begins where networks say, which are to be trained, and the points they are to give.

    None where data do not tell instances apart. Where ADMM takes how far a start is outside a box for how much the box
    presses, the points to give are outside it.
    """
    train = known.train
    if known.data is None:
        return None
    if not known.splits or train.duals is None:
        method = _rest(train, classical)
        return WithInitialiser(method, known.network(train.optima)), (train.optima,)
    tuned = copy.deepcopy(classical["ADMM"]).requires_grad_(False)
    wanted: tuple[Tensor, ...] = (train.optima, train.duals)
    if train.problem.operator.is_identity and train.problem.quadratic is not None:
        r = tuned.init(train.problem, train.x0).numbers[0][0]
        wanted = (train.optima + train.duals / r,)
    return WithInitialiser(tuned, *(known.network(each) for each in wanted)), wanted


def _rest(train: Instances, classical: dict[str, Solver[Any]]) -> Solver[Any]:
    """The method that gradient steps end in."""
    return LBFGS() if train.problem.domain is None else classical.get("Nesterov", LBFGS())


def to_learn(
    known: Known, classical: dict[str, Solver[Any]], told: WithInitialiser | None, target: float
) -> dict[str, Make]:
    """Solvers to train, by name; they begin as the classical methods that were tuned, and gradient steps end in one.

    `told` has the networks that say where to start, trained; `target` is the relative gap to be fast to.
    """
    train, found = known.train, {}
    rest = _rest(train, classical)
    starts: dict[str, Callable[[], tuple[Initialiser, ...]]] = {"mean start": lambda: (known.mean(),)}
    if known.data is not None and told is not None:
        starts["network start"] = lambda: (copy.deepcopy(told.start),)
        if effective_rank(known.data, len(known.data)) <= FEW_DIRECTIONS:
            starts["nearest start"] = lambda: (known.nearest(),)
        if told.dual is not None:
            dual = told.dual
            starts["network starts, primal and dual"] = lambda: (copy.deepcopy(told.start), copy.deepcopy(dual))
    for name, start in starts.items():
        for method, make in _learned(known, classical, target):
            if _together(known, name, method):
                found[f"{method}, {name}"] = _started(make, start, rest)
    if known.smooth_everywhere and known.size <= DENSE:
        found["learned mirror descent, mean start"] = _started(lambda: _mirror(known), lambda: (known.mean(),), rest)
    return found


def _together(known: Known, start: str, method: str) -> bool:
    """Whether a start and a method are worth a try together: what is better almost always leaves time to train it."""
    splits, told = method.startswith("ADMM"), known.data is not None
    if "dual" in start or ("mean" in start and told):
        return splits and not known.train.problem.operator.is_identity
    return not ("nearest" in start and splits)


def _started(make: Make, start: Callable[[], tuple[Initialiser, ...]], rest: Solver[Any]) -> Make:
    def whole() -> Solver[Any]:
        solver = WithInitialiser(make(), *start())
        return solver if solver.ends_proven else Sequential(solver, rest)

    return whole


def _learned(known: Known, classical: dict[str, Any], target: float) -> Iterator[tuple[str, Make]]:
    problem, x0 = known.train.problem, known.train.x0
    if known.splits and problem.quadratic is None:
        yield (
            "ADMM in phases",
            partial(_learned_admm, known, classical["ADMM"], _ends(known, classical["ADMM"], target)),
        )
    elif known.splits:
        for count in (2, 4, 8):
            ends = range(1, count + 1)
            yield f"ADMM, {count} learned iterations", partial(_learned_admm, known, classical["ADMM"], ends)
    if offers(problem, PDHG().needs):
        yield "PDHG, 20 learned iterations", lambda: LearnedPDHG(20, classical["PDHG"].tau).to(x0.dtype)
    elif problem.domain is None:
        for count in (3, 6):
            yield f"quasi-Newton, {count} learned iterations", partial(_quasi_newton, known, count)
    else:
        yield "gradient steps, 10 learned iterations", lambda: LearnedGradient(known.metric(), 10).to(x0.dtype)


def _admm(known: Known, penalty: float, ratio: float, relaxation: float) -> ADMM:
    """The classical method with the matrices of the class kept; `ratio` is s over r."""
    solver = ADMM(1, known.size, penalty, relaxation).to(known.train.x0.dtype)
    with torch.no_grad():
        solver.penalties[:, 1] += math.log(ratio)
    return solver.precompute_(known.train.problem, known.train.x0)


def _ends(known: Known, tuned: ADMM, target: float) -> list[int]:
    """Where phases end, as shares of the iterations that the classical method takes to the target."""
    few = known.train.select(slice(0, 32))
    count = reached(curve(tuned, [few], LONGEST, target), target) or LONGEST
    return [max(place + 1, round(share * count)) for place, share in enumerate(PHASES)]


def _learned_admm(known: Known, tuned: ADMM, ends: Sequence[int]) -> ADMM:
    """With a penalty for each part behind an operator, and for each entry where that is the identity."""
    problem = known.train.problem
    images = (part(known.train.x0[:1]) for part in problem.operator.blocks)
    sizes = [1] * known.size if problem.operator.is_identity else [image.numel() for image in images]
    solver = ADMM(len(ends) + 1, known.size, blocks=sizes, ends=ends).to(known.train.x0.dtype)
    with torch.no_grad():
        solver.penalties[:, :-1] = tuned.penalties[:, :1]
        solver.penalties[:, -1:] = tuned.penalties[:, 1:]
        solver.relaxations.copy_(tuned.relaxations)
    return solver.precompute_(problem, known.train.x0)


def _quasi_newton(known: Known, count: int) -> Solver[Any]:
    return LearnedQuasiNewton(known.metric(), count).to(known.train.x0.dtype)


def _mirror(known: Known) -> Solver[Any]:
    """The paper's, with steps around what gradients allow."""
    step, mirror = known.scale, Quadratic(known.size)
    return LearnedMirrorDescent(mirror, iterations=10, initial_step=step, interval=(0.01 * step, 100 * step)).to(
        known.train.x0.dtype
    )


@dataclass(frozen=True)
class Settings:
    """A classical method with what is to be chosen: values along some axes, and the places to begin at."""

    make: Callable[..., Solver[Any]]
    axes: tuple[tuple[Any, ...], ...] = ()
    first: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes)

    def solver(self, places: Sequence[int]) -> Solver[Any]:
        """The method with the values at these places."""
        return self.make(*(axis[place] for axis, place in zip(self.axes, places, strict=True)))


def _ladder(low: int, high: int) -> tuple[float, ...]:
    """Powers of the root of 10: from 10^(low / 2) to 10^(high / 2)."""
    return tuple(10.0 ** (power / 2) for power in range(low, high + 1))


def to_tune(known: Known) -> dict[str, Settings]:
    """Classical methods with settings to choose from: from the given starts and, after those, from the mean optimum."""
    problem, found = known.train.problem, dict[str, Settings]()
    if known.splits:
        ratios = (1.0,) if problem.quadratic is not None else _ladder(-6, 2)
        first = (6, 0 if problem.quadratic is not None else 6, 1)
        found["ADMM"] = Settings(partial(_admm, known), (_ladder(-6, 12), ratios, (1.0, 1.6, 1.9)), first)
    if offers(problem, PDHG().needs):
        default = float(torch.as_tensor(PDHG().steps(problem)[0], dtype=torch.float64, device="cpu").mean())
        taus = tuple(default * factor for factor in _ladder(-8, 8))
        found["PDHG"] = Settings(lambda tau, settle: PDHG(tau, settle=settle), (taus, (1.0, 16.0)), (8, 0))
        if problem.data_strong_convexity is not None and offers(problem, FGP().needs):
            found["FGP"] = Settings(lambda restart: FGP(restart=restart), ((False, True),), (0,))
    elif offers(problem, InteriorPoint().needs):
        found["interior point"] = Settings(InteriorPoint)
    else:
        steps = tuple(known.scale * factor for factor in (0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0))
        if problem.domain is None:
            found["L-BFGS"] = Settings(LBFGS, ((10, 30),), (0,))
        found["Nesterov"] = Settings(Nesterov, (steps,), (5,))
        if problem.domain is None:
            found["gradient descent"] = Settings(GradientDescent, (steps,), (5,))
            rates = tuple(factor * known.scale**0.5 for factor in (0.001, 0.01, 0.1, 1.0))
            found["Adam"] = Settings(Adam, (rates,), (2,))
        else:
            found["projected gradient"] = Settings(ProjectedGradient, (steps,), (5,))
    return found | {f"{name}, mean start": _from_mean(known, settings) for name, settings in found.items()}


def _from_mean(known: Known, settings: Settings) -> Settings:
    def make(*values: Any) -> Solver[Any]:
        return WithInitialiser(settings.make(*values), known.mean())

    return replace(settings, make=make)
