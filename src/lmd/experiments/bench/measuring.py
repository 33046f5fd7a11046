"""Quality of iterates against certified answers, untimed, with the setting that is best on other instances."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.report.rows import Row, row
from lmd.tasks.methods import Method, Setting
from lmd.tasks.optima import optimum
from lmd.tasks.peers import Peer, numpy_errors_as_they_are

GAPS = (1e-1, 1e-2, 1e-3)
DECIBELS = (30, 40, 50)
SHOWN = (5, 10, 20, 50)
"""The iterations whose quality is reported."""

SOLVE = "lmd.solve"
"""What the rows call it."""

DRAWN = 100
"""How far curves are drawn."""


@dataclass(frozen=True)
class QualityTarget:
    """A quality that a method is timed to."""

    metric: str
    """psnr or relative_gap."""

    level: float

    @property
    def name(self) -> str:
        return f"{self.level:g}db" if self.metric == "psnr" else f"gap_1e{round(math.log10(self.level))}"

    def reached(self, quality: Sequence[float]) -> int | None:
        """The first place in a curve at which the quality is there."""
        sign = 1 if self.metric == "psnr" else -1
        return next((k for k, q in enumerate(quality) if sign * q >= sign * self.level), None)


TARGETS = (
    *(QualityTarget("relative_gap", level) for level in GAPS),
    *(QualityTarget("psnr", level) for level in DECIBELS),
)


@dataclass(frozen=True)
class KnownInstances:
    """Instances whose answers are known: a problem with certified minimisers and minima."""

    problem: Any
    x0: Tensor
    minimiser: Tensor
    minimum: Tensor

    @classmethod
    def of(cls, problem: Any) -> KnownInstances:
        known = optimum(problem)
        return cls(problem, problem.start(), known.x.to(problem.start()), known.value)

    def __len__(self) -> int:
        return len(self.minimum)

    def part(self, index: slice) -> KnownInstances:
        return KnownInstances(self.problem.select(index), self.x0[index], self.minimiser[index], self.minimum[index])

    def quality(self, problem: Any, x: Tensor, dual: Tensor | None) -> dict[str, Tensor]:
        """psnr to the minimiser, (f - f*) / f*, and the certified relative gap where there is a dual point: `(B,)`."""
        peak = 1.0 if x.ndim == 4 else float(self.minimiser.abs().max())
        error = (x - self.minimiser).square().flatten(1).mean(dim=1).double()
        found = {
            "psnr": (10 * torch.log10(peak**2 / error.clamp(min=1e-30))).clamp(max=200),
            "relative_gap": (problem.value(x).double() - self.minimum) / self.minimum,
        }
        if dual is not None:
            found["certified_gap"] = problem.relative_gap(x, dual).double()
        return found


class Measured(abc.ABC):
    """A method on the test instances: what it reached at which iteration."""

    name: str

    @abc.abstractmethod
    def rows(self, batches: Sequence[int], settings: Mapping[str, Any]) -> list[Row]:
        """Mean quality over the instances at the iterations that are shown, once for each batch."""


class MeasuredSolver(Measured):
    """A method of ours. It is tuned on other instances, anew for each number that is reported."""

    def __init__(self, method: Method, instances: KnownInstances, trial: KnownInstances) -> None:
        self.name, self.method, self.instances = method.name, method, instances
        self._curves: dict[int, dict[str, Tensor]] = {}
        several = len(method.settings) > 1
        self._tuning = [quality_curve(setting, trial, method.most) for setting in method.settings] if several else []

    def curve(self, which: int) -> dict[str, Tensor]:
        """Quality `(K + 1, B)` of a setting on the test instances, by metric."""
        if which not in self._curves:
            self._curves[which] = quality_curve(self.method.settings[which], self.instances, self.method.most)
        return self._curves[which]

    def best_at(self, metric: str, k: int) -> int:
        """The setting that is best at iteration k (-1: the last) on the tuning instances."""
        if not self._tuning:
            return 0
        sign = -1 if metric == "psnr" else 1
        scores = [sign * float(curve[metric][k].mean()) for curve in self._tuning]
        return min(range(len(scores)), key=lambda i: scores[i] if math.isfinite(scores[i]) else math.inf)

    def best_to(self, target: QualityTarget) -> int:
        """The setting that reaches a target first on the tuning instances, or else comes nearest."""
        if not self._tuning:
            return 0
        at = [target.reached(curve[target.metric].mean(dim=1).tolist()) for curve in self._tuning]
        soonest = [k for k in at if k is not None]
        return at.index(min(soonest)) if soonest else self.best_at(target.metric, -1)

    def rows(self, batches: Sequence[int], settings: Mapping[str, Any]) -> list[Row]:
        found = []
        for k in (k for k in SHOWN if k <= self.method.most):
            for metric in ("psnr", "relative_gap", "certified_gap"):
                which = self.best_at("psnr" if metric == "psnr" else "relative_gap", k)
                if metric in (curve := self.curve(which)):
                    value = float(curve[metric][k].mean())
                    tuned = _described(self.method.settings[which]) if self._tuning else {}
                    found += [row(self.name, k, metric, value, batch=batch, **settings, **tuned) for batch in batches]
        return found


class MeasuredSolve(Measured):
    """`lmd.solve`, which picks its solver and stops where it is proven: it is timed to tolerances alone."""

    name = SOLVE

    def __init__(self, instances: KnownInstances) -> None:
        self.instances = instances

    def rows(self, batches: Sequence[int], settings: Mapping[str, Any]) -> list[Row]:
        return []


class MeasuredPeer(Measured):
    """A peer, called whole for each number of iterations."""

    def __init__(self, peer: Peer, instances: KnownInstances, most: int) -> None:
        self.name, self.peer, self.instances = peer.name, peer, instances
        self.counts = tuple(k for k in peer.counts if k <= most)
        call = peer.prepare(instances.problem)
        with numpy_errors_as_they_are():
            answers = [peer.finish(instances.problem, call(k)) for k in self.counts]
        found = [instances.quality(instances.problem, x, None) for x in answers]
        self.quality = {metric: torch.stack([each[metric] for each in found]) for metric in found[0]}

    def rows(self, batches: Sequence[int], settings: Mapping[str, Any]) -> list[Row]:
        return [
            row(self.name, k, metric, float(curve[place].mean()), batch=batch, **settings)
            for place, k in enumerate(self.counts)
            for metric, curve in self.quality.items()
            if k in SHOWN
            for batch in batches
        ]


def _described(setting: Setting) -> dict[str, Any]:
    """A setting in one flat word, for the row."""
    config = {key: value for key, value in setting.solver.config().items() if isinstance(value, (int, float))}
    if "steps" in setting.solver.config():
        config["steps"] = float(setting.solver.config()["steps"](0))
    if setting.balance != 1.0:
        config["balance"] = setting.balance
    return {"setting": ", ".join(f"{key} {value:g}" for key, value in config.items())}


def quality_curve(setting: Setting, instances: KnownInstances, most: int) -> dict[str, Tensor]:
    """Quality `(K + 1, B)` of every iterate, untimed, until all targets are reached."""
    problem = setting.adapt(instances.problem)
    found: list[dict[str, Tensor]] = []
    with torch.inference_mode():
        state = setting.solver.init(problem, instances.x0)
        for k in range(most + 1):
            state = setting.solver.step(problem, state) if k else state
            dual = getattr(state, "dual", None) if k in SHOWN else None
            found.append(instances.quality(problem, state.x, dual))
            if k >= DRAWN and all(target.reached([float(found[-1][target.metric].mean())]) == 0 for target in TARGETS):
                break
    curves = {metric: torch.stack([each[metric] for each in found]) for metric in ("psnr", "relative_gap")}
    worst = {"psnr": 0.0, "relative_gap": math.inf}  # what diverged reaches nothing
    curves = {metric: curve.nan_to_num(nan=worst[metric]) for metric, curve in curves.items()}
    if "certified_gap" in found[min(SHOWN[0], most)]:
        unknown = torch.full((len(instances),), math.nan, dtype=torch.float64)
        curves["certified_gap"] = torch.stack([each.get("certified_gap", unknown) for each in found])
    return curves
