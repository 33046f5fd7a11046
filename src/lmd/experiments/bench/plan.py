"""What a bench is to run, checked before anything is, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmd.checks import check_choice, check_count
from lmd.data.images import CROP
from lmd.errors import InputError
from lmd.experiments.bench import peers
from lmd.experiments.bench.methods import CLASSICAL, NOISE, TASKS, learned_names
from lmd.report.rows import Row

MOST = 300
"""How many iterations a method has to reach the targets."""

LEAST_SIDE, MOST_SIDE = 8, 8192
"""The sides of images that `sizes` may name."""

TEST_SEED, TUNING_SEED = 7_000_000, 8_000_000


@dataclass(frozen=True)
class Plan:
    """What to run."""

    problems: tuple[str, ...] = tuple(TASKS)
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
            check_choice("problem", name, tuple(TASKS))
        for name in self.methods or ():
            check_choice("methods", name, known_methods())
        for noise in self.noise or ():
            if noise not in NOISE:
                raise InputError("noise", repr(noise), f"some of {', '.join(map(str, NOISE))}, in percent")
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


def known_methods() -> tuple[str, ...]:
    """The name of every method and of every peer, installed or not."""
    ours = [name for task in TASKS.values() for name in learned_names(task)]
    return tuple(dict.fromkeys((*CLASSICAL, *ours, *(peer.name for peer in peers.PEERS))))
