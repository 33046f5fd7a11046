"""What a bench is to run, checked before anything is, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmd import tasks, zoo
from lmd.checks import check_choice, check_count
from lmd.data.images import CROP
from lmd.errors import InputError
from lmd.experiments.bench.measuring import SOLVE
from lmd.report.rows import Row
from lmd.tasks.methods import CLASSICAL, Method, Setting, classical_methods
from lmd.tasks.task import Contest

MOST = 300
"""How many iterations a method has to reach the targets."""

LEAST_SIDE, MOST_SIDE = 8, 8192
"""The sides of images that `sizes` may name."""

TEST_SEED, TUNING_SEED = 7_000_000, 8_000_000


def contests() -> dict[str, Contest]:
    """What every task of the bench has for it, by the name of the task."""
    return {task.name: task.contest for task in tasks.every() if task.contest is not None}


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
    noise: tuple[int, ...] | None = None
    methods: tuple[str, ...] | None = None
    sizes: tuple[int, ...] = ()
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
        check_count("count", self.count)
        check_count("repeats", self.repeats)

    def wants(self, method: str) -> bool:
        """Whether a method is among those that are asked for."""
        return self.methods is None or method in self.methods

    @classmethod
    def quick(cls, **choices: Any) -> Plan:
        """Seconds: two small images, few repeats."""
        small = {"count": 2, "side": 24, "tuning": 1, "batches": (1, 2), "repeats": 2, "most": 60, "preset": "quick"}
        return cls(**{**small, **choices})


@dataclass(frozen=True)
class Curve:
    """One method's mean relative gap at every iteration, and the seconds it took to get there, for the figures."""

    problem: str
    noise: int
    batch: int
    method: str
    iterations: tuple[int, ...]
    gaps: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass
class Bench:
    """Rows, facts and what was skipped, as a run adds to them."""

    plan: Plan
    say: Callable[[str], None] = lambda text: None
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    seconds: float = 0.0
    """How long all of it took."""


def learned_names(task: str) -> list[str]:
    """What the bench calls the learned solvers of a task: lmd- and the name in the zoo, of those that ship."""
    return [f"lmd-{name}" for name in tasks.get(task).solvers if zoo.shipped(name)]


def known_methods() -> tuple[str, ...]:
    """The name of every method and of every peer, installed or not."""
    ours = [name for task in contests() for name in learned_names(task)]
    theirs = [peer.name for contest in contests().values() for peer in contest.peers]
    return tuple(dict.fromkeys((*CLASSICAL, SOLVE, *ours, *theirs)))


def methods_for(task: str, problem: Any, most: int) -> list[Method]:
    """Our own methods for a problem: classical ones with their grids, learned ones as they ship.

    Learned mirror descent on F itself, which has no proven rule to go on, gets up to 50 iterations.
    """
    contest = contests()[task]
    found = classical_methods(problem, contest.steps, contest.tau, most)
    for name in learned_names(task):
        solver = zoo.load(name.removeprefix("lmd-"), bare=True)
        found.append(Method(name, (Setting(solver),), most if solver.ends_proven else min(most, 50)))
    return found
