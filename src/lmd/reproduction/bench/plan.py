"""What a bench is to run, checked before anything is, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmd import zoo
from lmd.core.checks import check_choice, check_count, check_positive
from lmd.errors import InputError
from lmd.reproduction import tasks
from lmd.reproduction.bench.measuring import GAPS, SOLVE
from lmd.reproduction.datasets.images import CROP
from lmd.reproduction.report.rows import Row
from lmd.reproduction.tasks.methods import CLASSICAL, DUAL, Method, Setting, classical_methods
from lmd.reproduction.tasks.task import Contest

MOST = 1000
"""How many iterations a method has to reach the targets."""

LIMIT = 20.0
"""Seconds that a method has to reach them, while it is looked at; a peer that takes longer is called no further."""

PROVEN = "-proven"
"""How the name of a classical method ends that goes on until a gap is proven."""

LEAST_SIDE, MOST_SIDE = 8, 8192
"""The sides of images that `sizes` may name."""

LEAST_GAP = 1e-7
"""Below this, minima are not known well enough."""

TEST_SEED, TUNING_SEED = 7_000_000, 8_000_000


def contests() -> dict[str, Contest]:
    """What every task has for the bench: by its own name, and by those of the models that it serves."""
    found: dict[str, Contest] = {}
    for task in tasks.every():
        found.update({} if task.contest is None else {task.name: task.contest}, **task.models)
    return found


@dataclass(frozen=True)
class Plan:
    """What to run."""

    problems: tuple[str, ...] = field(default_factory=lambda: tuple(contests()))
    images: Path | None = None
    count: int = 20
    side: int = CROP
    tuning: int = 4
    """How many other images the methods are tuned on."""

    batches: tuple[int, ...] = (1, 20)
    repeats: int = 7
    most: int = MOST
    gaps: tuple[float, ...] = GAPS
    """The relative gaps that methods are timed to."""

    limit: float = LIMIT
    noise: tuple[int, ...] | None = None
    methods: tuple[str, ...] | None = None
    sizes: tuple[int, ...] = ()
    """The sides of one photograph, in place of the test images."""

    seed: int = 0
    preset: str = "full"

    def check(self) -> None:
        """Raise on what cannot be run, before anything is."""
        for name in self.problems:
            check_choice("problem", name, tuple(contests()))
        for name in self.methods or ():
            check_choice("methods", name, known_methods())
        levels = sorted({level for contest in contests().values() for level in contest.noise})
        for noise in self.noise or ():
            if noise not in levels:
                raise InputError("noise", repr(noise), f"some of {', '.join(map(str, levels))}, in percent")
        for side in self.sizes:
            check_count("sizes", side, least=LEAST_SIDE, most=MOST_SIDE)
        for gap in self.gaps:
            if not LEAST_GAP <= gap <= 1:
                raise InputError("gaps", f"{gap:g}", f"numbers from {LEAST_GAP:g} to 1")
        check_positive("limit", self.limit)
        check_count("count", self.count)
        check_count("repeats", self.repeats)

    def wants(self, method: str) -> bool:
        """Whether a method is among those that are asked for; at many sizes those that know more than subgradients."""
        if self.methods is not None:
            return method in self.methods
        return not self.sizes or not method.startswith(("gd", "nesterov", "adam", "lbfgs", "lmd-"))

    @classmethod
    def quick(cls, **choices: Any) -> Plan:
        """Seconds for each task, minutes for all: two small images, few repeats."""
        small = {"count": 2, "side": 24, "tuning": 1, "batches": (1, 2), "repeats": 2, "most": 60, "limit": 2.0}
        return cls(**{**small, "gaps": GAPS[:3], "preset": "quick", **choices})


@dataclass(frozen=True)
class TimedCurve:
    """One method's calls, for the figures."""

    settings: dict[str, Any]
    """The problem, its noise and the size, where there are sizes."""

    batch: int
    method: str
    points: tuple[tuple[float, float], ...]
    """Seconds of a call and the mean relative gap of its answer, the fastest first."""


@dataclass
class Bench:
    """Rows, facts and what was skipped, as a run adds to them."""

    plan: Plan
    say: Callable[[str], None] = lambda text: None
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    curves: list[TimedCurve] = field(default_factory=list)
    seconds: float = 0.0
    """How long all of it took."""


def learned_names(contest: str) -> list[str]:
    """What the bench calls the learned solvers of a task: lmd- and the name in the zoo, of those that ship."""
    task = next(task for task in tasks.every() if contest in (task.name, *task.models))
    return [f"lmd-{name}" for name, recipe in task.solvers.items() if name in zoo.names() and not recipe.rung]


def known_methods() -> tuple[str, ...]:
    """The name of every method and of every peer, installed or not."""
    ours = [name for task in contests() for name in learned_names(task)]
    theirs = [peer.name for contest in contests().values() for peer in contest.peers]
    return tuple(dict.fromkeys((*CLASSICAL, *(name + PROVEN for name in DUAL), SOLVE, *ours, *theirs)))


def methods_for(name: str, problem: Any, most: int) -> list[Method]:
    """Our own methods for a problem: classical ones with their grids, learned ones as they ship.

    Learned mirror descent on F itself, which has no proven rule to go on, gets up to 50 iterations. The schedules
    of models are part of `lmd.solve`.
    """
    contest, learned = contests()[name], learned_names(name)
    if name not in tasks.names():
        learned = []
    found = classical_methods(problem, contest.steps, contest.tau, most)
    for each in learned:
        solver = zoo.load(each.removeprefix("lmd-"), bare=True)
        found.append(Method(each, (Setting(solver),), most if solver.ends_proven else min(most, 50)))
    return found
