"""Methods that improve the proposals of `learn`: training, random search, coordinate search, fitting initialisers."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd.errors import TrainingError, TrainingWarning
from lmd.solvers import Solver
from lmd.solvers.wrappers import WithInitialiser
from lmd.training.instances import Instances, ResampledFamily, curve, seconds
from lmd.training.loss import MIN_GAP, power_weights
from lmd.training.train import train

BATCH = 64
LEARNING_RATES, MAX_FEW_PARAMETERS = (2e-2, 1e-3), 1000  # learning rates for at most this many parameters, and for more
EMPHASIS = 0.5  # the weight of an instance is this power of its relative gap
N_TIMED_UPDATES = 10  # updates that are timed to predict the time of one
N_SEARCH_INSTANCES, N_TAIL_TRIALS = 160, 24
"""Numbers of training instances for random search, and of trials for parameters used after the learned iterations."""

INITIALISER_BATCH, INITIALISER_RATE = 256, 3e-3
DISTANCE_WEIGHT = 0.05  # the weight of the distance from the optima; the logarithm of the gap has weight 1
FIRST_STEP, MIN_STEP, MAX_STEP = 0.5, 0.1, 1.0  # standard deviations of random moves of logarithms
GROWTH, DECAY = 1.3, 0.93  # factors of the step after a move that is kept, and after one that is not
MAX_TRIAL_LENGTH = 1.3  # a trial has at most this many times the iterations of the best one
FIRST_TRIAL_ITERATIONS = 200


def fit_initialisers_(
    solver: WithInitialiser, instances: Instances, wanted: tuple[Tensor, ...], updates: int, seed: int
) -> None:
    """Train only the initialisers of a solver, by Adam with a learning rate that decreases to 0.

    The loss is the logarithm of the relative gap before the first step, weighted towards the worst instances, plus the
    squared distance from `wanted`: points `(B, ...)` for `start` and, if there is one, for `dual`. Dual points, and
    points outside a box, need this distance, because the gap does not show how good they are.
    """
    starts = [start for start in (solver.start, solver.dual) if start is not None]
    optimiser = torch.optim.Adam([number for start in starts for number in start.parameters()], lr=INITIALISER_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    spreads = [each.var().clamp(min=torch.finfo(each.dtype).tiny) for each in wanted]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        index = torch.randint(len(instances.x0), (INITIALISER_BATCH,), generator=generator, device="cpu")
        part = instances.select(index)
        points = [start(part.problem, INITIALISER_BATCH) for start in starts]
        state = solver.begin_at(part.problem, *points)
        gaps = (part.errors(state.x) + MIN_GAP).log()
        loss = (power_weights(EMPHASIS, gaps.detach()) * gaps).sum()
        for point, each, spread in zip(points, wanted, spreads, strict=True):
            loss = loss + DISTANCE_WEIGHT * (point - each[index]).square().mean() / spread
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()


@dataclass(frozen=True)
class Trainer:
    """Trains solvers on instances of a class: by random search if phases have many iterations, else by `train`."""

    family: ResampledFamily  # samples from the training instances
    accuracies: tuple[float, ...]  # relative gaps in decreasing order
    seed: int
    folder: Path | None  # the folder for training runs, so that they can be resumed
    say: Callable[[str], object]

    def update_seconds(self, solver: Solver[Any]) -> tuple[float, float]:
        """Return the seconds of an update and, for random search, the additional seconds per iteration of a trial."""
        if _phased_parts(solver):
            part = self.family.instances.select(slice(0, N_SEARCH_INSTANCES))
            fresh = copy.deepcopy(solver)  # has no cached matrices, like a solver after a move
            once, more = seconds(lambda iterations: curve(fresh, [part], iterations, 0.0), (1, N_TIMED_UPDATES))
            return once, more / N_TIMED_UPDATES
        options: dict[str, Any] = {"progress": False, "batch": BATCH, "objective": "gap", "validate_every": 0}
        counts = (1, 1, 1 + N_TIMED_UPDATES)  # the first call takes longer
        _, once, more = seconds(lambda updates: train(solver, self.family, updates=updates, **options), counts)
        return max((more - once) / N_TIMED_UPDATES, 1e-4), 0.0

    def improve(self, solver: Solver[Any], name: str, updates: int, rung: int) -> None:
        """Train a solver in place for a rung of successive halving, or resume its training."""
        if parts := _phased_parts(solver):
            self._search(solver, parts, updates, rung)
        else:
            self._train(solver, name, updates, rung)
            if rung > 0:
                self._search(solver, _searchable_parts(solver), N_TAIL_TRIALS, rung, tail=True)

    def _train(self, solver: Solver[Any], name: str, updates: int, rung: int) -> None:
        count = sum(parameter.numel() for parameter in solver.parameters() if parameter.requires_grad)
        words = "".join(letter if letter.isalnum() else "-" for letter in name)
        folder = None if self.folder is None else self.folder / "tried" / f"{words}-{rung + 1}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)
            try:
                train(
                    solver,
                    self.family,
                    out=folder,
                    resume=folder is not None,
                    progress=False,
                    updates=updates,
                    batch=BATCH,
                    validation_batch=min(self.family.n_held_out, 2 * BATCH),
                    validate_every=max(1, updates // 10),
                    checkpoint_every=max(1, updates // 4),
                    objective="gap",
                    emphasis=EMPHASIS,
                    start_weight=1.0,  # with 0, some learned iterations make their starting points worse
                    learning_rate=LEARNING_RATES[count > MAX_FEW_PARAMETERS] / 2**rung,
                    schedule="cosine",
                    clip_gradient=10.0,
                    seed=self.seed + rung,
                )
            except TrainingError as error:
                self.say(f"given up: {error}")

    def _search(self, solver: Solver[Any], parts: list[Any], trials: int, rung: int, tail: bool = False) -> None:
        """Search for the parameters of parts of a solver; with `tail`, only of iterations after the learned ones."""
        few = self.family.instances.select(slice(0, N_SEARCH_INSTANCES))
        accuracies = self.accuracies[-1:] if tail else self.accuracies
        for part in parts:
            rows = [part.iterations - 1] if tail else range(part.iterations)
            search_(solver, part, rows, few, accuracies, trials, self.seed + rung)


def _searchable_parts(solver: Solver[Any]) -> list[Any]:
    return [part for part in solver.modules() if hasattr(part, "search_directions")]


def _phased_parts(solver: Solver[Any]) -> list[Any]:
    """Return the parts whose parameters belong to phases of many iterations; random search improves them."""
    return [part for part in _searchable_parts(solver) if part.horizon and part.horizon > part.iterations]


def search_(
    solver: Solver[Any],
    part: Any,
    rows: Sequence[int],
    instances: Instances,
    accuracies: Sequence[float],
    trials: int,
    seed: int,
) -> None:
    """Improve the parameters of one part of a solver in place, by random moves of its `rows`, one row at a time.

    A move is kept if it lowers the score: the sum over the accuracies, which decrease, of the logarithm of the number
    of iterations until 95% of the instances reach the accuracy.
    """
    generator, steps = torch.Generator().manual_seed(seed), dict.fromkeys(rows, FIRST_STEP)
    directions = part.search_directions()
    best, most = _score(solver, instances, accuracies, FIRST_TRIAL_ITERATIONS)
    for trial in range(trials):
        row = rows[trial % len(rows)]
        before = {name: tensor.clone() for name, tensor in part.state_dict().items()}
        noise = torch.randn(len(directions), generator=generator, dtype=torch.float64, device="cpu").to(directions)
        part.move_(row, steps[row] * noise @ directions)
        score, length = _score(solver, instances, accuracies, math.ceil(MAX_TRIAL_LENGTH * most))
        if score < best:
            best, most = score, length
            steps[row] = min(MAX_STEP, GROWTH * steps[row])
        else:
            part.load_state_dict(before)
            steps[row] = max(MIN_STEP, DECAY * steps[row])


def _score(solver: Solver[Any], instances: Instances, accuracies: Sequence[float], most: int) -> tuple[float, int]:
    """Return the score that `search_` lowers, with interpolated iterations, and the number of iterations done."""
    quantiles = curve(solver, [instances], most, accuracies[-1])
    return sum(math.log(1 + _crossing(quantiles, accuracy)) for accuracy in accuracies), len(quantiles) - 1


def _crossing(quantiles: Sequence[float], accuracy: float) -> float:
    """Return the interpolated iteration at which quantiles reach an accuracy; a large number if they do not."""
    levels = [math.log(max(each, 1e-30) / accuracy) for each in quantiles]
    after = next((k for k, level in enumerate(levels) if level <= 0), None)
    if after is None:
        return (len(levels) + FIRST_TRIAL_ITERATIONS) * (1 + min(max(levels[-1], 0.0), 1e3))
    return after - 1 + levels[after - 1] / (levels[after - 1] - levels[after]) if after else 0.0


def climb(
    sizes: Sequence[int], first: Sequence[int], rank: Callable[[tuple[int, ...]], tuple[float, float]]
) -> tuple[int, ...]:
    """Return indices that no step along one axis improves, found by coordinate search on axes of these sizes.

    The search begins at the `first` indices and moves as long as ranks fall. Along axes with more than four entries it
    first takes strides of two, then single steps. Every point is ranked once.
    """
    ranked, best = functools.cache(rank), tuple(first)
    for stride in (2, 1):
        before = None
        while best != before:
            before = best
            for axis, size in enumerate(sizes):
                for step in (stride, -stride) if size > 4 else (1, -1):
                    while 0 <= (place := best[axis] + step) < size:
                        moved = (*best[:axis], place, *best[axis + 1 :])
                        if not ranked(moved) < ranked(best):
                            break
                        best = moved
    return best
