"""Improving the solvers that `learn` proposes: training, random search, coordinate search, and where to start."""

from __future__ import annotations

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
from lmd.training.instances import Instances, ResampledFamily
from lmd.training.loss import MIN_GAP, power_weights
from lmd.training.measure import clock, curve
from lmd.training.train import train

BATCH = 64
LEARNING_RATES, MAX_FEW_PARAMETERS = (2e-2, 1e-3), 1000  # learning rates of solvers with few parameters, and with more
EMPHASIS = 0.5  # instances are weighted by this power of their relative gaps
N_TIMED_UPDATES = 10  # updates that are timed to predict how long one takes
N_SEARCH_INSTANCES, N_TAIL_TRIALS = 160, 24
"""Training instances for random search, and trials for the parameters of iterations past the learned ones."""

INITIALISER_BATCH, INITIALISER_RATE = 256, 3e-3
DISTANCE_WEIGHT = 0.05  # the weight of the distance from the optima, beside the logarithm of the gap
FIRST_STEP, MIN_STEP, MAX_STEP = 0.5, 0.1, 1.0  # standard deviations of random moves in logarithms
GROWTH, DECAY = 1.3, 0.93  # factors of the step after a move that helped, and after one that did not
MAX_TRIAL_LENGTH = 1.3  # a trial runs for at most so many times the iterations of the best
FIRST_TRIAL_ITERATIONS = 200


def fit_initialisers_(
    solver: WithInitialiser, instances: Instances, wanted: tuple[Tensor, ...], updates: int, seed: int
) -> None:
    """Train the initialisers of a solver, and nothing else of it, by Adam with a rate that falls to 0.

    The loss is the logarithm of the relative gap before the first step, weighted towards the worst instances, plus the
    squared distance from `wanted`: points for `start` `(B, ...)`, then those for `dual`, where there is one. That
    counts for dual points, and for points outside a box.
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
        state = solver.begin(part.problem, *points)
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
    """Trains solvers on instances of a class: by unrolling, or by random search where phases have many iterations."""

    instances: Instances
    family: ResampledFamily
    accuracies: tuple[float, ...]  # relative gaps in decreasing order
    seed: int
    folder: Path | None  # where training runs are written, so that they can be resumed
    say: Callable[[str], object]

    def update_seconds(self, solver: Solver[Any]) -> tuple[float, float]:
        """Return how long an update takes and, for random search, each iteration of a trial beyond that."""
        if _phased_parts(solver):
            part = self.instances.select(slice(0, N_SEARCH_INSTANCES))
            moments = [clock()]
            for work in (lambda: self.refresh(solver), lambda: curve(solver, [part], N_TIMED_UPDATES, 0.0)):
                work()
                moments.append(clock())
            return moments[1] - moments[0], (moments[2] - moments[1]) / N_TIMED_UPDATES
        moments = []
        options: dict[str, Any] = {"progress": False, "batch": BATCH, "objective": "gap", "validate_every": 0}
        for updates in (1, 1, 1 + N_TIMED_UPDATES):  # the first one takes longer
            train(solver, self.family, updates=updates, **options)
            moments.append(clock())
        return max((moments[2] - 2 * moments[1] + moments[0]) / N_TIMED_UPDATES, 1e-4), 0.0

    def improve(self, solver: Solver[Any], name: str, updates: int, rung: int) -> None:
        """Train a solver in place for a rung of successive halving, or resume that."""
        if parts := _phased_parts(solver):
            self._search(solver, parts, updates, rung)
            return
        self._train(solver, name, updates, rung)
        self.refresh(solver)
        if rung > 0:
            self._search(solver, _searchable_parts(solver), N_TAIL_TRIALS, rung, tail=True)

    def refresh(self, solver: Solver[Any]) -> None:
        """Compute the matrices of a class that follow from the parameters of a solver."""
        for part in solver.modules():
            if callable(precompute := getattr(part, "precompute_", None)):
                precompute(self.instances.problem, self.instances.x0)

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
                    start_weight=1.0,  # or iterations are learned that make the points they begin at worse
                    learning_rate=LEARNING_RATES[count > MAX_FEW_PARAMETERS] / 2**rung,
                    schedule="cosine",
                    clip_gradient=10.0,
                    seed=self.seed + rung,
                )
            except TrainingError as error:
                self.say(f"given up: {error}")

    def _search(self, solver: Solver[Any], parts: list[Any], trials: int, rung: int, tail: bool = False) -> None:
        """Search for the parameters of parts of a solver, or for those past its learned iterations alone."""
        few = self.instances.select(slice(0, N_SEARCH_INSTANCES))
        accuracies = self.accuracies[-1:] if tail else self.accuracies
        for part in parts:
            rows = [part.iterations - 1] if tail else range(part.iterations)
            search_(solver, part, rows, lambda: self.refresh(solver), few, accuracies, trials, self.seed + rung)


def _searchable_parts(solver: Solver[Any]) -> list[Any]:
    return [part for part in solver.modules() if hasattr(part, "search_directions")]


def _phased_parts(solver: Solver[Any]) -> list[Any]:
    """Return the parts with parameters for phases of many iterations, which are searched for, not trained."""
    return [part for part in _searchable_parts(solver) if part.horizon and part.horizon > part.iterations]


def search_(
    solver: Solver[Any],
    part: Any,
    rows: Sequence[int],
    refresh: Callable[[], None],
    instances: Instances,
    accuracies: Sequence[float],
    trials: int,
    seed: int,
) -> None:
    """Improve the parameters of `part` of a solver in place by random moves of one of its `rows` after the other.

    A move is kept if it lowers the sum of the logarithms of the iterations until 95% of the instances are within each
    of the accuracies, in decreasing order. `refresh` is called when parameters have changed.
    """
    generator, steps = torch.Generator().manual_seed(seed), dict.fromkeys(rows, FIRST_STEP)
    directions = part.search_directions()
    best, most = _score(solver, instances, accuracies, FIRST_TRIAL_ITERATIONS)
    for trial in range(trials):
        row = rows[trial % len(rows)]
        before = {name: tensor.clone() for name, tensor in part.state_dict().items()}
        noise = torch.randn(len(directions), generator=generator, dtype=torch.float64, device="cpu").to(directions)
        part.move_(row, steps[row] * noise @ directions)
        refresh()
        score, length = _score(solver, instances, accuracies, math.ceil(MAX_TRIAL_LENGTH * most))
        if score < best:
            best, most = score, length
            steps[row] = min(MAX_STEP, GROWTH * steps[row])
        else:
            part.load_state_dict(before)
            steps[row] = max(MIN_STEP, DECAY * steps[row])
    refresh()


def _score(solver: Solver[Any], instances: Instances, accuracies: Sequence[float], most: int) -> tuple[float, int]:
    """Return the sum of the logarithms of the iterations to each accuracy, interpolated, and their number."""
    quantiles = curve(solver, [instances], most, accuracies[-1])
    return sum(math.log(1 + _crossing(quantiles, accuracy)) for accuracy in accuracies), len(quantiles) - 1


def _crossing(quantiles: Sequence[float], accuracy: float) -> float:
    """Return where the logarithms of the quantiles, joined by lines, meet an accuracy; far off where they do not."""
    levels = [math.log(max(each, 1e-30) / accuracy) for each in quantiles]
    after = next((k for k, level in enumerate(levels) if level <= 0), None)
    if after is None:
        return (len(levels) + FIRST_TRIAL_ITERATIONS) * (1 + min(max(levels[-1], 0.0), 1e3))
    return after - 1 + levels[after - 1] / (levels[after - 1] - levels[after]) if after else 0.0


def climb(
    sizes: Sequence[int], first: Sequence[int], rank: Callable[[tuple[int, ...]], tuple[float, float]]
) -> tuple[int, ...]:
    """Return indices on axes of these sizes that no step along one axis improves, by coordinate search.

    From the `first` indices, by strides of two along axes of more than four entries, then by single steps, as long as
    ranks fall. Every point is ranked once.
    """
    known: dict[tuple[int, ...], tuple[float, float]] = {}

    def ranked(places: tuple[int, ...]) -> tuple[float, float]:
        if places not in known:
            known[places] = rank(places)
        return known[places]

    best, before = tuple(first), None
    for stride in (2, 1):
        while best != before:
            before = best
            for axis, size in enumerate(sizes):
                for step in (stride, -stride) if size > 4 else (1, -1):
                    while 0 <= (place := best[axis] + step) < size:
                        moved = (*best[:axis], place, *best[axis + 1 :])
                        if not ranked(moved) < ranked(best):
                            break
                        best = moved
        before = None
    return best
