"""Measure the quality of iterates, untimed, with settings tuned on other instances."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.core.batching import to_double
from lmd.operators.matrix import Stack
from lmd.problems.base import offers
from lmd.reproduction.tables import Row, row
from lmd.reproduction.tasks.task import Peer, optimum
from lmd.solvers import FGP, LBFGS, PDHG, Adam, GradientDescent, Nesterov, RelaxedPDHG, Solver
from lmd.solvers.classical.pdhg import DEFAULT_RATIO
from lmd.zoo.solve import solve

CLASSICAL = ("gd", "nesterov", "pdhg", "relaxed-pdhg", "adam", "lbfgs", "fgp")  # methods that need no training
DUAL = ("pdhg", "relaxed-pdhg", "fgp")  # the methods with dual points, which can prove gaps
MAX_SUBGRADIENTS = 100  # limit for methods that use only subgradients; more iterations do not help them


@dataclass(frozen=True)
class Setting:
    """A solver with one value of the parameter that is tuned."""

    solver: Solver[Any]  # the solver with this value
    balance: float = 1.0  # factor on the `balance` of a `TVModel` with an operator, for PDHG

    def adapt(self, problem: Any) -> Any:
        """Return the problem in the form that this setting needs."""
        if self.balance == 1.0:
            return problem
        adapted, old = copy.copy(problem), problem.operator
        adapted.operator = Stack(old.parts, old.shapes, (1.0, self.balance * old.scales[1]))
        return adapted


@dataclass(frozen=True)
class Method:
    """A method and the settings to choose from by tuning; a single setting if there is nothing to tune."""

    name: str  # the name in tables
    settings: tuple[Setting, ...]  # the grid for tuning
    most: int  # the maximum number of iterations


def classical_methods(problem: Any, steps: float, tau: float, most: int) -> list[Method]:
    """Return the classical methods for a problem, with grids of step sizes.

    Relaxed PDHG and FGP are compiled for most models; PDHG itself is not.
    """
    found = _by_subgradients(problem, steps, most) if steps else []
    if offers(problem, PDHG().needs):
        found.append(Method("pdhg", _pdhg(problem, tau), most))
    if offers(problem, RelaxedPDHG().needs):
        ratios = tuple(Setting(RelaxedPDHG(ratio=m * DEFAULT_RATIO)) for m in (0.1, 0.3, 1, 3, 10))
        found.append(Method("relaxed-pdhg", ratios, most))
    if offers(problem, FGP().needs):
        grid = [FGP(m, restart) for m in (1.0, 1.5, 2.0) for restart in (False, True)]
        found.append(Method("fgp", tuple(map(Setting, grid)), most))
    return found


def _by_subgradients(problem: Any, steps: float, most: int) -> list[Method]:
    wide = [steps * m for m in (0.3, 1, 3, 10, 30)]
    few = min(most, MAX_SUBGRADIENTS)
    found = [
        Method("gd", tuple(Setting(GradientDescent(step)) for step in wide), few),
        Method("nesterov", tuple(Setting(Nesterov(step)) for step in wide), few),
    ]
    if problem.domain is None:  # neither method can keep x in a box
        adam = tuple(Setting(Adam(step)) for step in (0.003, 0.01, 0.02, 0.05, 0.1))
        lbfgs = tuple(Setting(LBFGS(memory)) for memory in (5, 20))
        found += [Method("adam", adam, few), Method("lbfgs", lbfgs, min(most, MAX_SUBGRADIENTS // 2))]
    return found


def _pdhg(problem: Any, tau: float) -> tuple[Setting, ...]:
    if not tau:
        own = float(torch.as_tensor(PDHG().steps(problem)[0], dtype=torch.float64).mean())
        return tuple(Setting(PDHG(own * m)) for m in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10))
    taus = [tau * m for m in (0.25, 0.5, 1, 2, 4)]
    if offers(problem, ("forward",)):
        return tuple(Setting(PDHG(tau), balance) for tau in taus for balance in (0.5, 1.0, 2.0))
    settles = (1.0,) if offers(problem, ("f.strong_convexity",)) else (1.0, 8.0)
    return tuple(Setting(PDHG(tau, settle=settle)) for tau in taus for settle in settles)


GAPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
DECIBELS = (30, 40, 50)
SHOWN = (5, 10, 20, 50)  # the iterations whose quality is reported
EVERY = 1.05  # after the last of them, each measured iteration is this multiple of the one before
SOLVE = "lmd.solve"  # its name in rows
SPARE, PATIENCE = 10.0, 20_000
"""Minima without a cache are proven to the smallest requested gap / SPARE, in at most PATIENCE iterations."""


@dataclass(frozen=True)
class QualityTarget:
    """A target quality for timing: a metric and its value."""

    metric: str  # psnr, relative_gap or certified_gap
    level: float

    @property
    def name(self) -> str:
        return f"{self.level:g}db" if self.metric == "psnr" else f"gap_{self.level:.0e}".replace("e-0", "e-")

    def reached(self, quality: Sequence[float]) -> int | None:
        """Return the first index of a curve at which the target is reached."""
        sign = 1 if self.metric == "psnr" else -1
        return next((k for k, q in enumerate(quality) if sign * q >= sign * self.level), None)


def targets(gaps: Sequence[float]) -> tuple[QualityTarget, ...]:
    """Return the targets for timing: relative gaps, and decibels."""
    return (
        *(QualityTarget("relative_gap", level) for level in gaps),
        *(QualityTarget("psnr", level) for level in DECIBELS),
    )


@dataclass(frozen=True)
class KnownInstances:
    """Instances whose answers are known: a problem with certified minimisers and minima."""

    problem: Any
    exact: Any  # the problem in float64, for values: float32 does not resolve gaps of 1e-6
    x0: Tensor
    minimiser: Tensor
    minimum: Tensor
    proven: Tensor  # the proven relative error of the minima `(B,)`

    @classmethod
    def of(cls, problem: Any, kept: bool = True, smallest: float = GAPS[-1]) -> KnownInstances:
        """Return instances with optima from the cache of `lmd.guarantees` if `kept`, else by `lmd.solve` in float64."""
        exact = to_double(problem)
        if kept:
            known = optimum(problem)
            x, minimum, bound = known.x, known.value, known.bound
        else:
            result = solve(exact, smallest / SPARE, iterations=PATIENCE)
            x = result.x
            minimum, short = exact.certified_gap(x, result.dual)
            bound = minimum - short
        x0 = problem.start() if offers(problem, ("start",)) else torch.zeros_like(x, dtype=torch.float32)
        return cls(problem, exact, x0, x.to(x0), minimum, (minimum - bound) / minimum.abs())

    def __len__(self) -> int:
        return len(self.minimum)

    def part(self, index: slice) -> KnownInstances:
        parts = self.problem.select(index), self.exact.select(index), self.x0[index]
        return KnownInstances(*parts, self.minimiser[index], self.minimum[index], self.proven[index])

    def quality(self, problem: Any, x: Tensor, dual: Tensor | None) -> dict[str, Tensor]:
        """Return PSNR to the minimiser, (f - f*) / f* and, with dual points, the certified relative gap: `(B,)`."""
        peak = 1.0 if x.ndim == 4 else float(self.minimiser.abs().max())
        error = (x - self.minimiser).square().flatten(1).mean(dim=1).double()
        found = {
            "psnr": (10 * torch.log10(peak**2 / error.clamp(min=1e-30))).clamp(max=200),
            "relative_gap": (self.exact.value(x.double()) - self.minimum) / self.minimum.abs(),
        }
        if dual is not None and offers(problem, ("relative_gap",)):
            started = dual.numel() > 0  # some methods have no dual point before their first iteration
            found["certified_gap"] = (
                problem.relative_gap(x, dual).double() if started else torch.full_like(error, math.inf)
            )
        return found


class MeasuredSolver:
    """A method of this package, tuned on other instances separately for each number that is reported."""

    def __init__(
        self,
        method: Method,
        instances: KnownInstances,
        trial: KnownInstances,
        wanted: Sequence[QualityTarget],
        limit: float,
    ) -> None:
        self.name, self.method, self.instances = method.name, method, instances
        self.wanted, self.limit = tuple(wanted), limit
        self._curves: dict[int, dict[str, Tensor]] = {}
        several = method.settings if len(method.settings) > 1 else ()
        self._tuning = [quality_curve(each, trial, method.most, wanted, limit / len(several)) for each in several]

    def curve(self, which: int) -> dict[str, Tensor]:
        """Return the quality `(K, B)` of a setting on the test instances at `looks`, by metric."""
        if which not in self._curves:
            setting, most = self.method.settings[which], self.method.most
            self._curves[which] = quality_curve(setting, self.instances, most, self.wanted, self.limit)
        return self._curves[which]

    def best_at(self, metric: str, k: int) -> int:
        """Return the index of the setting that is best at iteration k (-1: the last) on the tuning instances."""
        if not self._tuning:
            return 0
        sign = -1 if metric == "psnr" else 1
        scores = [
            sign * float(curve[metric][k].mean()) if k < len(curve[metric]) else math.inf for curve in self._tuning
        ]
        return min(range(len(scores)), key=lambda i: scores[i] if math.isfinite(scores[i]) else math.inf)

    def best_to(self, target: QualityTarget) -> int:
        """Return the index of the setting that first reaches a target on the tuning instances, or comes nearest."""
        if not self._tuning:
            return 0
        at = [target.reached(curve[target.metric].mean(dim=1).tolist()) for curve in self._tuning]
        soonest = [k for k in at if k is not None]
        return at.index(min(soonest)) if soonest else self.best_at(target.metric, -1)

    def rows(self, batches: Sequence[int], settings: Mapping[str, Any]) -> list[Row]:
        """Mean quality over the instances at the iterations that are shown, once for each batch."""
        found = []
        for k in (k for k in SHOWN if k <= self.method.most):
            for metric in ("psnr", "relative_gap", "certified_gap"):
                which = self.best_at("psnr" if metric == "psnr" else "relative_gap", k)
                if metric in (curve := self.curve(which)) and k < len(curve[metric]):
                    value = float(curve[metric][k].mean())
                    tuned = _described(self.method.settings[which]) if self._tuning else {}
                    found += [row(self.name, k, metric, value, batch=batch, **settings, **tuned) for batch in batches]
        return found


class MeasuredPeer:
    """A peer, called with growing effort until it reaches every gap or exceeds the time limit."""

    def __init__(
        self, peer: Peer, instances: KnownInstances, wanted: Sequence[QualityTarget], most: int, limit: float
    ) -> None:
        self.name, self.peer, self.instances, self.wanted = peer.name, peer, instances, tuple(wanted)
        call, found = peer.prepare(instances.problem), []
        least = min(target.level for target in wanted if target.metric == "relative_gap")
        with np.errstate(all="ignore"):  # some peers divide by zero on flat images
            call(peer.ladder[0])  # a warm-up: some peers compile in their first call
            for rung in (rung for rung in peer.ladder if rung <= most):
                begun = time.perf_counter()
                answer = call(rung)
                seconds = time.perf_counter() - begun
                found.append(instances.quality(instances.problem, peer.finish(instances.problem, answer), None))
                if seconds > limit or float(found[-1]["relative_gap"].max()) <= least:
                    break
        self.rungs = peer.ladder[: len(found)]
        self.quality = {metric: torch.stack([each[metric] for each in found]) for metric in found[0]}

    def rows(self, batches: Sequence[int], settings: Mapping[str, Any]) -> list[Row]:
        """Mean quality over the instances at the iterations that are shown, once for each batch."""
        return [
            row(self.name, int(k), metric, float(curve[place].mean()), batch=batch, **settings)
            for place, k in enumerate(self.rungs)
            for metric, curve in self.quality.items()
            if k in SHOWN
            for batch in batches
        ]


def _described(setting: Setting) -> dict[str, Any]:
    """Return the numbers of a setting as text, with the key "setting"."""
    config = {key: value for key, value in setting.solver.config().items() if isinstance(value, (int, float))}
    if "steps" in setting.solver.config():
        config["steps"] = float(setting.solver.config()["steps"](0))
    if setting.balance != 1.0:
        config["balance"] = setting.balance
    return {"setting": ", ".join(f"{key} {value:g}" for key, value in config.items())}


def looks(most: int) -> list[int]:
    """Return the iterations at which quality is measured: densely at first, then at growing distances."""
    found = list(range(min(most, SHOWN[-1]) + 1))
    while found[-1] < most:
        found.append(min(most, math.ceil(EVERY * found[-1])))
    return found


def quality_curve(
    setting: Setting, instances: KnownInstances, most: int, wanted: Sequence[QualityTarget], limit: float
) -> dict[str, Tensor]:
    """Return the quality `(K, B)` of iterates at `looks`, until all targets are reached or `limit` seconds are over."""
    problem = setting.adapt(instances.problem)
    found: list[dict[str, Tensor]] = []
    until = time.perf_counter() + limit
    with torch.inference_mode():
        state = setting.solver.init(problem, instances.x0)
        for k in looks(most):
            if k > state.iteration:
                state = setting.solver.advance(problem, state, k - state.iteration)
            found.append(instances.quality(problem, state.x, getattr(state, "dual", None)))
            done = k >= SHOWN[-1] and all(
                target.reached([float(found[-1][target.metric].mean())]) == 0 for target in wanted
            )
            if done or time.perf_counter() > until:
                break
    curves = {metric: torch.stack([each[metric] for each in found]) for metric in ("psnr", "relative_gap")}
    worst = {"psnr": 0.0, "relative_gap": math.inf}  # diverged iterates reach no target
    curves = {metric: curve.nan_to_num(nan=worst[metric]) for metric, curve in curves.items()}
    if "certified_gap" in found[0]:
        curves["certified_gap"] = torch.stack([each["certified_gap"] for each in found])
    return curves
