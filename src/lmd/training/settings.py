"""The settings of a training run, its schedules of learning rates and weights, and the seeds of its batches."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lmd.core.checks import check_choice, check_count, check_positive
from lmd.errors import InputError

SCHEDULES = ("constant", "cosine")
OBJECTIVES = ("value", "gap", "distance", "gap and distance", "duality gap", "both duality gaps")
VALUE_WEIGHTS = ("all", "last")
CONSISTENCY_POINTS = ("iterates", "start", "all")

N_SEEDS = 1 << 31
"""The number of training seeds: PyTorch's CPU generator uses 32 bits of a seed, one of which marks held-out batches."""


@dataclass(frozen=True)
class TrainingSettings:
    """The keyword arguments of `lmd.train`, with their defaults.

    Args:
        updates: The number of optimiser updates, including skipped batches.
        batch: Instances per update, over all processes together.
        learning_rate: Adam's learning rate, or its maximum if there is a schedule or a warm-up.
        schedule: `constant`, or `cosine`, which decreases the learning rate to 0 over the run.
        warmup: The number of updates during which the learning rate first grows linearly.
        iterations: N, the number of unrolled iterations; if None, the solver's own horizon.
        objective: The loss of each iterate. `value` is f(x_k) (as in the paper). The others are in decibels, so that
            instances near and far from the `reference` x* count alike: `gap` is 10 log10 (f(x_k) - f(x*)) / |f(x*)|,
            `distance` is 10 log10 of the mean square of x_k - x*, `gap and distance` is their sum. `duality gap` is
            10 log10 gap(x_k, p_k) / f(x_k). It needs no reference, but a solver with dual points p_k.
            `both duality gaps` adds 10 log10 gap(x*, p_k) / f(x*).
        value_weights: The weights r_1, ..., r_N: `all` sets all to 1 (as in the paper), `last` only r_N; or N numbers.
        start_weight: The weight of the start in the same sum, for solvers that learn where to start.
        emphasis: p. If an objective in decibels is 10 log10 a, instances are weighted by a^p, so that the worst count
            more. With 0, all instances count alike.
        consistency_weight: s, the weight of the inconsistency, at the start of the run.
        consistency_growth: The factor by which s grows every `consistency_growth_every` epochs.
        consistency_growth_every: The number of epochs after which s grows.
        updates_per_epoch: The number of updates that count as an epoch.
        consistency_at: The points at which the inconsistency is measured: the `iterates` x_1, ..., x_N (as in the
            paper), the `start` x_0, or `all` of these points.
        clip_gradient: The largest Euclidean norm of the gradient. Longer gradients are scaled to this norm.
        recompute: Whether the backward pass recomputes each iteration. This stores only the iterates, gives the same
            numbers and takes more time.
        seed: The seed of all batches, including the held-out batch.
        checkpoint_every: The number of updates between checkpoints, if the run has a folder.
        validate_every: The number of updates between validations; 0 means no validation.
        validation_batch: The number of instances in the held-out batch; if None, it is `batch`.
        max_skipped: The number of batches that may be skipped, or their fraction of `updates` if it is below 1.
        log_every: The number of updates between lines of the log.

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
        weights: Any = self.value_weights
        if isinstance(weights, str):
            check_choice("value_weights", weights, VALUE_WEIGHTS)
            return
        numbers = isinstance(weights, Sequence) and all(isinstance(weight, (int, float)) for weight in weights)
        if not (numbers and any(weights) and all(0 <= weight < math.inf for weight in weights)):
            accepted = "all, last, or finite numbers of 0 or more, not all of them 0"
            raise InputError("value_weights", repr(weights), accepted)
        object.__setattr__(self, "value_weights", tuple(map(float, weights)))

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> TrainingSettings:
        """Return the settings from keyword arguments; unknown names raise an InputError."""
        known = tuple(field.name for field in fields(cls))
        for name in arguments:
            check_choice("setting", name, known)
        return cls(**arguments)

    def learning_rate_at(self, done: int) -> float:
        """Return the learning rate for the next update, after `done` updates."""
        if done < self.warmup:
            return self.learning_rate * (done + 1) / self.warmup
        if self.schedule == "constant":
            return self.learning_rate
        share = min(1.0, (done - self.warmup) / (self.updates - self.warmup))
        return self.learning_rate * (1 + math.cos(math.pi * share)) / 2

    def consistency_weight_at(self, done: int) -> float:
        """Return s for the next update, after `done` updates."""
        times = done // (self.updates_per_epoch * self.consistency_growth_every)
        return self.consistency_weight * self.consistency_growth**times

    def weights_for(self, iterations: int) -> tuple[float, ...]:
        """Return the weights r_1, ..., r_N of N iterations."""
        if isinstance(self.value_weights, str):  # "all" or "last"
            return (float(self.value_weights == "all"),) * (iterations - 1) + (1.0,)
        if len(self.value_weights) != iterations:
            given = f"{len(self.value_weights)} numbers"
            raise InputError("value_weights", given, f"one for each of the {iterations} iterations")
        return self.value_weights

    @property
    def skips_allowed(self) -> int:
        """The number of batches that may be skipped before the run is stopped."""
        return math.floor(self.max_skipped if self.max_skipped >= 1 else self.max_skipped * self.updates)


def training_seed(seed: int, done: int) -> int:
    """Return the seed of the batch after `done` updates. It is even, and repeats only after 2^31 updates of a run."""
    return 2 * ((_number(seed, "offset") + done * (2 * _number(seed, "stride") + 1)) % N_SEEDS)


def validation_seed(seed: int) -> int:
    """Return the seed of the held-out batch. It is odd, so no training batch of any run has the same seed."""
    return 2 * _number(seed, "validation") + 1


def _number(seed: int, purpose: str) -> int:
    """Return a pseudo-random number below 2^31."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:8], "big") % N_SEEDS
