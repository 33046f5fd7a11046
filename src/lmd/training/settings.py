"""The settings of a training run, the schedules that follow from them, and the seeds of its batches."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from lmd.core.checks import check_choice, check_count, check_positive
from lmd.errors import InputError

SCHEDULES = ("constant", "cosine")
OBJECTIVES = ("value", "gap", "distance", "gap and distance", "duality gap", "both duality gaps")
VALUE_WEIGHTS = ("all", "last")
CONSISTENCY_POINTS = ("iterates", "start", "all")

N_SEEDS = 1 << 31
"""PyTorch's generator on the CPU uses the low 32 bits of a seed, of which one says whether a batch is held out."""


@dataclass(frozen=True)
class TrainingSettings:
    """What `lmd.train` takes as keyword arguments, with their defaults.

    Args:
        updates: Optimiser updates, those of skipped batches included.
        batch: Instances per update, over all processes together.
        learning_rate: Adam's learning rate; the highest one where it is scheduled.
        schedule: `constant`, or `cosine`: from the learning rate down to 0 over the run.
        warmup: Updates over which the learning rate first grows linearly from 0.
        iterations: N, how many iterations are unrolled; None is the solver's own horizon.
        objective: What is summed over the iterates: `value` f(x_k) (the paper's), or how far x_k is from the
            `reference` x* in decibels, so that instances near and far from it count alike: `gap` 10 log10 (f(x_k) -
            f(x*)) / |f(x*)|, `distance` 10 log10 of the mean square of x_k - x*, or `gap and distance`, their sum.
            `duality gap` is 10 log10 gap(x_k, p_k) / f(x_k), of a solver with dual points p_k: it needs no reference.
            `both duality gaps` adds 10 log10 gap(x*, p_k) / f(x*).
        value_weights: r_1, ..., r_N: `all` is 1 for each (the paper's), `last` is 1 for the last alone, or N numbers.
        start_weight: The weight of the start, beside the `value_weights` of the iterations: for solvers that learn it.
        emphasis: p: instances are weighted by the power p of what an objective in decibels takes the logarithm of, so
            that the worst count more; 0 weights all alike.
        consistency_weight: s, the weight of the inconsistency, at the start of the run.
        consistency_growth: What s is multiplied by every `consistency_growth_every` epochs.
        consistency_growth_every: Epochs from one growth of s to the next.
        updates_per_epoch: Updates that count as an epoch.
        consistency_at: Where the inconsistency is measured: `iterates` x_1, ..., x_N (the paper's), `start` x_0, or
            `all` of them.
        clip_gradient: The largest Euclidean norm of the gradient; a longer one is shortened to it.
        recompute: Recompute each iteration in the backward pass: memory for the iterates alone, the same numbers, more
            time.
        seed: The seed of every batch, held-out ones included.
        checkpoint_every: Updates from one checkpoint to the next, where the run has a folder.
        validate_every: Updates from one validation to the next; 0 is none.
        validation_batch: Instances in the held-out batch; None is as many as in `batch`.
        max_skipped: Skipped batches that are allowed: a whole number of them, or a fraction of `updates`.
        log_every: Updates from one line of the log to the next.

    >>> TrainingSettings(updates=200, learning_rate=0.01, schedule="cosine").learning_rate_at(100)
    0.005
    """

    updates: int = 1000
    batch: int = 32
    learning_rate: float = 1e-3
    schedule: str = "constant"
    warmup: int = 0
    iterations: int | None = None
    objective: str = "value"
    value_weights: str | tuple[float, ...] = "all"
    start_weight: float = 0.0
    emphasis: float = 0.0
    consistency_weight: float = 1.0
    consistency_growth: float = 1.05
    consistency_growth_every: int = 50
    updates_per_epoch: int = 1
    consistency_at: str = "iterates"
    clip_gradient: float | None = None
    recompute: bool = False
    seed: int = 0
    checkpoint_every: int = 500
    validate_every: int = 100
    validation_batch: int | None = None
    max_skipped: float = 0.05
    log_every: int = 10

    def __post_init__(self) -> None:
        counts = ("updates", "batch", "consistency_growth_every", "updates_per_epoch", "checkpoint_every", "log_every")
        for name in counts:
            check_count(name, getattr(self, name))
        for name in ("warmup", "validate_every", "seed"):
            check_count(name, getattr(self, name), least=0)
        for name in ("iterations", "validation_batch"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("learning_rate", "consistency_growth"):
            check_positive(name, getattr(self, name))
        for name in ("consistency_weight", "max_skipped", "start_weight", "emphasis"):
            check_positive(name, getattr(self, name), zero=True)
        if self.clip_gradient is not None:
            check_positive("clip_gradient", self.clip_gradient)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("objective", self.objective, OBJECTIVES)
        check_choice("consistency_at", self.consistency_at, CONSISTENCY_POINTS)
        if self.warmup >= self.updates:
            raise InputError("warmup", self.warmup, f"fewer than the {self.updates} updates of the run")
        if not isinstance(self.recompute, bool):
            raise InputError("recompute", repr(self.recompute), "True or False")
        if isinstance(self.max_skipped, float) and self.max_skipped >= 1 and not self.max_skipped.is_integer():
            raise InputError("max_skipped", self.max_skipped, "a whole number, or a fraction below 1")
        if self.emphasis and self.objective == "value":
            raise InputError("emphasis", self.emphasis, "0 with the objective `value`, which is not in decibels")
        self._check_value_weights()

    def _check_value_weights(self) -> None:
        if isinstance(self.value_weights, str):
            check_choice("value_weights", self.value_weights, VALUE_WEIGHTS)
            return
        values: Any = self.value_weights
        numbers = isinstance(values, Sequence) and all(isinstance(v, (int, float)) and math.isfinite(v) for v in values)
        if not numbers:
            raise InputError("value_weights", repr(values), "a list of finite numbers")
        weights = tuple(float(value) for value in values)
        if not weights or min(weights) < 0 or max(weights) == 0:
            raise InputError("value_weights", weights, "all, last, or numbers of 0 or more, not all of them 0")
        object.__setattr__(self, "value_weights", weights)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> TrainingSettings:
        """Return the settings of keyword arguments; a name that is no setting is an InputError."""
        known = tuple(field.name for field in fields(cls))
        for name in arguments:
            check_choice("setting", name, known)
        return cls(**arguments)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def learning_rate_at(self, done: int) -> float:
        """Return the learning rate of the update after `done` updates."""
        if done < self.warmup:
            return self.learning_rate * (done + 1) / self.warmup
        if self.schedule == "constant":
            return self.learning_rate
        share = min(1.0, (done - self.warmup) / (self.updates - self.warmup))
        return self.learning_rate * (1 + math.cos(math.pi * share)) / 2

    def consistency_weight_at(self, done: int) -> float:
        """Return s for the update after `done` updates."""
        times = done // (self.updates_per_epoch * self.consistency_growth_every)
        return self.consistency_weight * self.consistency_growth**times

    def weights_for(self, iterations: int) -> tuple[float, ...]:
        """Return r_1, ..., r_N."""
        if isinstance(self.value_weights, str):  # "all" or "last"
            return (float(self.value_weights == "all"),) * (iterations - 1) + (1.0,)
        if len(self.value_weights) != iterations:
            given = f"{len(self.value_weights)} numbers"
            raise InputError("value_weights", given, f"one for each of the {iterations} iterations")
        return self.value_weights

    @property
    def skips_allowed(self) -> int:
        """How many batches may be skipped before the run is stopped."""
        return math.floor(self.max_skipped if self.max_skipped >= 1 else self.max_skipped * self.updates)


def training_seed(seed: int, done: int) -> int:
    """Return the seed of the batch after `done` updates: even, and different for the first 2^31 updates of a run."""
    return 2 * ((_number(seed, "offset") + done * (2 * _number(seed, "stride") + 1)) % N_SEEDS)


def validation_seed(seed: int) -> int:
    """Return the seed of the held-out batch: odd, so that no training batch of any run has it."""
    return 2 * _number(seed, "validation") + 1


def _number(seed: int, purpose: str) -> int:
    """Return a pseudo-random number below 2^31."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:8], "big") % N_SEEDS
