"""`learn` finds the fastest solver for a class: it proposes and trains solvers, tunes classical methods, compares."""

from __future__ import annotations

import copy
import math
import statistics
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count, check_positive
from lmd.errors import InputError, TrainingWarning
from lmd.guarantees.promises import Promise, try_promise
from lmd.guarantees.safeguard import guard
from lmd.problems.base import Family
from lmd.solvers import Solver, save
from lmd.solvers.wrappers import WithInitialiser
from lmd.training.folder import open_journal, write_journal
from lmd.training.instances import (
    Instances,
    ResampledFamily,
    check_family,
    check_minima,
    clock,
    curve,
    draw,
    draw_separately,
    milliseconds,
    quantile,
    reached,
    seconds,
    speed,
)
from lmd.training.proposals import (
    MAX_ITERATIONS,
    ClassInfo,
    Grid,
    propose_classical,
    propose_initialisers,
    propose_learned,
)
from lmd.training.settings import training_seed
from lmd.training.tuning import N_TIMED_UPDATES, Trainer, climb, fit_initialisers_

N_TRAINING, N_VALIDATION, N_TEST = 300, 100, 100  # instances for training, choosing a solver, testing it
N_PROMISE = 300  # instances for the promise, which are used for nothing else
DIVISOR = 5  # if instances take long to solve, their numbers are divided by this

MAX_BATCHES = 8  # maximum number of batches of validation instances, and of test instances
SEEDS_PER_USE = 1_000_000
TRAINING, VALIDATION, TEST, PROMISE = range(4)  # the uses of instances; different uses have different seeds
MAX_TRAINING_FACTOR = 16  # training instances are multiplied by up to this factor if solving is quick
TRAINING_SHARE, INITIALISER_SHARE, TUNING_SHARE = 0.85, 0.25, 0.1
SOLVING_SHARE, TIMING_SHARE = 0.1, 1e-3
"""Shares of the time: for all training, for training initialisers (part of the first share), for tuning, for solving
the validation instances, and for timing one method once."""

N_RUNGS = 3  # rounds of successive halving
MIN_UPDATES, MAX_UPDATES, MAX_INITIALISER_UPDATES = 10, 3000, 36_000  # updates in one rung, and for initialisers
TRIAL_FACTOR = 2.0  # iterations of a trial of random search, divided by the iterations before the last phase
N_TUNING = 25  # validation instances for comparing settings of classical methods
MAX_SLOWDOWN = 4.0  # a classical method is stopped if it takes this many times as long as another one
MAX_EXTENSION = 10  # if no method reaches the target, all get up to this many times the iterations
Say = Callable[[str], object]
Rank = tuple[float, float]
"""Mean milliseconds (infinite if the target is not reached) and the smallest gap. A smaller rank is better."""


def learn(
    family: Family,
    minutes: float = 10.0,
    out: str | Path | None = None,
    target: float = 1e-3,
    *,
    seed: int = 0,
    resume: bool = False,
    progress: Say | None = None,
) -> Solver[Any]:
    """Return the fastest solver that can be found for a family in this many minutes, with its `card`.

    Solvers that fit the problems (initialisers, metrics, steps, penalties, relaxations, the paper's mirrors) are
    trained by successive halving. Classical methods are tuned on the validation instances, from the given starts and
    from the mean of the training optima. All are ranked by the geometric mean of three times: the milliseconds until
    95% of the validation instances have relative gaps of 10 `target`, `target` and `target` / 10. The answer is the
    fastest solver that reaches the target on validation and test instances, which may be a classical method. After its
    learned iterations, a learned solver continues with a method that converges, or it has a safeguard. If no solver
    reaches the target, the closest one is returned with a `TrainingWarning`, and `card["reached"]` is false.

    `card` lists what was tried, the times of each method on the test instances, for a batch and for a single instance,
    and what is promised about the class. `lmd.guarantees.Monitor(Promise(**card["promise"]))` notices when the class
    changes. The promise is based on independent instances that were used for nothing else, and on gaps to minima that
    are proven to a tenth of the target. If these cannot be proven, there is no `card["promise"]`, and
    `card["promised"]` says why.

    On one thread `minutes` are processor time. With `out`, the solver is saved in that folder, and with `resume` an
    interrupted run continues and ends with the same solver: speeds are measured once and saved, and everything else
    follows from them and the seed.

        solver = lmd.learn(lmd.problems.ControlFamily(), minutes=5, out="runs/control")
        result = lmd.run(solver, problem, x0, iterations=10)

    Args:
        family: The distribution of problems and starting points.
        minutes: The time to spend.
        out: The folder of the run; if None, nothing is written.
        target: The relative gap to reach.
        seed: The seed of instances and solvers.
        resume: Whether to continue the run in `out`.
        progress: A function that is called with a line of text after each step.
    """
    check_positive("minutes", minutes), check_positive("target", target), check_count("seed", seed, least=0)
    begun = clock()
    like = check_family(family, seed)
    settings = {"family": family.name, "minutes": minutes, "target": target, "seed": seed}
    folder = None if out is None else Path(out)
    with open_journal(folder, settings, resume) as before:
        learning = _Learning(family, like, settings, folder, progress or (lambda line: None))
        learning.prepare(begun, before)
        return learning.run()


class _Learning:
    """The state of `learn`, with a method for each stage.

    Everything that depends on the clock is in `measured`, which is written to the journal before any decision. The rest
    follows from `measured` and the seed, so an interrupted run ends with the same solver.
    """

    def __init__(self, family: Family, like: Tensor, settings: dict[str, Any], folder: Path | None, say: Say) -> None:
        self.family, self.like, self.settings, self.folder, self.say = family, like, settings, folder, say
        self.minutes, self.target, self.seed = settings["minutes"], settings["target"], settings["seed"]
        self.accuracies = (10 * self.target, self.target, self.target / 10)
        self.max_iterations, self.notes = MAX_ITERATIONS, list[str]()
        self.most_timed = TIMING_SHARE * 6e4 * self.minutes

    def prepare(self, begun: float, before: dict[str, Any] | None) -> None:
        """Draw and solve instances, propose solvers, and measure speeds that are not in `before`, the old journal."""
        self.say("drawing instances and solving them to compare with")
        self.divisor = before["divisor"] if before else self._choose_divisor()
        self.validation = self._draw_evaluation(N_VALIDATION, VALIDATION)
        check_minima(self.validation)
        few = self._draw_training(N_TRAINING // self.divisor)
        affordable = 60 * self.minutes / 20 / max(clock() - begun, 1e-3)  # how often that fits into 1/20 of the time
        most = N_TRAINING // self.divisor * min(MAX_TRAINING_FACTOR, 2 ** max(0, int(math.log2(max(affordable, 1.0)))))
        count = before["training"] if before else most
        self.info = ClassInfo(few if count == len(few.x0) else self._draw_training(count))
        check_minima([self.info.train])
        solved = torch.cat([each.is_solved() for each in self.validation])
        self.is_solved = bool(solved.all())
        if not self.is_solved:
            share = float((~solved).double().mean())
            self._note(f"the minima of {share:.0%} of the validation instances were not found; gaps are too small")
        resampled = ResampledFamily(self.info.train, self.family.name)
        self.trainer = Trainer(resampled, self.accuracies, self.seed, self.folder, self.say)
        self.grids = propose_classical(self.info)
        self.measured = before or self._measure(count)
        if before is None and self.folder is not None:
            write_journal(self.folder, self.settings, self.measured)

    # Instances

    def _seed(self, use: int, place: int = 0) -> int:
        return training_seed(self.seed, use * SEEDS_PER_USE + place)

    def _draw_training(self, count: int) -> Instances:
        return Instances.solve(*draw(self.family, count, self._seed(TRAINING), like=self.like))

    def _draw_evaluation(self, count: int, use: int) -> list[Instances]:
        """Draw held-out instances one by one and solve them; if they do not stack, draw a few batches instead."""
        count = math.ceil(count / self.divisor)
        batches = self._draw_separately(count, use)
        self.is_stackable = len(batches) <= MAX_BATCHES
        if not self.is_stackable:
            seeds = [self._seed(use, count + place) for place in range(MAX_BATCHES)]
            each = math.ceil(count / MAX_BATCHES)
            batches = [draw(self.family, each, seed, held_out=True, like=self.like) for seed in seeds]
        return [Instances.solve(*batch) for batch in batches]

    def _draw_separately(self, count: int, use: int) -> list[tuple[Any, Tensor]]:
        return draw_separately(self.family, [self._seed(use, place) for place in range(count)], self.like)

    def _choose_divisor(self) -> int:
        """Return the divisor of the numbers of instances: 1, or `DIVISOR` if they take long to solve."""
        self.divisor = DIVISOR
        taken = min(seconds(lambda _: self._draw_evaluation(N_VALIDATION, VALIDATION), range(2)))  # the first is slower
        return DIVISOR if DIVISOR * taken > SOLVING_SHARE * 60 * self.minutes else 1

    def _note(self, line: str) -> None:
        """Add a line to the card."""
        self.notes.append(line)
        self.say(line)

    # Time

    def _measure(self, count: int) -> dict[str, Any]:
        """Measure the time of a solve with each method, and of an update of each solver to train."""
        classical = {name: grid.solver(grid.first) for name, grid in self.grids.items()}
        proposed = propose_initialisers(self.info, classical)
        initialised = None if proposed is None else proposed[0]
        learned = propose_learned(self.info, classical, initialised, self.target)
        speeds = {
            name: speed(solver, self.validation, min(solver.horizon or 8, 8), self.most_timed)
            for name, solver in (classical | learned).items()
        }
        updates = {name: self.trainer.update_seconds(solver) for name, solver in learned.items()}
        least = MIN_UPDATES * N_RUNGS * sum(once for once, _ in updates.values()) / 60 / TRAINING_SHARE
        if self.minutes < least:
            raise InputError("minutes", f"{self.minutes:g}", f"at least {least:.2g} for this class, to train anything")
        initialiser = None if proposed is None else self._initialiser_seconds(*proposed)
        counts = {"training": count, "divisor": self.divisor}
        return {**counts, "speeds": speeds, "updates": updates, "start": initialiser}

    def _initialiser_seconds(self, initialised: WithInitialiser, wanted: tuple[Tensor, ...]) -> float:
        """Return the seconds of an update of the initialisers, without the first update, which takes longer."""
        given, counts = (copy.deepcopy(initialised), self.info.train, wanted), (1, N_TIMED_UPDATES)
        return seconds(lambda updates: fit_initialisers_(*given, updates, self.seed), counts)[1] / N_TIMED_UPDATES

    # Stages

    def run(self) -> Solver[Any]:
        self.classical, ranks = self._tune()
        initialised = self._train_initialisers()
        self.learned = self._halve(propose_learned(self.info, self.classical, initialised, self.target))
        ranks |= {name: self._rank(name, solver) for name, solver in self.learned.items()}
        solvers = self.classical | self.learned
        if not any(math.isfinite(score) for score, _ in ranks.values()):
            ranks = self._extend(solvers)
        test = self._draw_evaluation(N_TEST, TEST)
        winner, is_reached = self._choose(solvers, ranks, test)
        return self._finish(winner, is_reached, ranks, test)

    def _tune(self) -> tuple[dict[str, Solver[Any]], dict[str, Rank]]:
        """Return classical methods, tuned on some of the validation instances, and their ranks on all of these.

        Each method gets an equal share of the remaining time. A run is stopped once it has taken `MAX_SLOWDOWN` times
        as long as the best run of another method.
        """
        found, ranks, places = dict[str, Solver[Any]](), dict[str, Rank](), dict[str, tuple[int, ...]]()
        best, left = math.inf, TUNING_SHARE * 6e4 * self.minutes
        for place, (name, grid) in enumerate(self.grids.items()):
            first = places.get(name.partition(",")[0], grid.first)
            share = left / (len(self.grids) - place)
            places[name], times, least = self._climb(name, grid, first, MAX_SLOWDOWN * best, share)
            best, left = min(best, least), left - sum(times)
            found[name] = grid.solver(places[name])
            ranks[name] = self._rank(name, found[name], MAX_ITERATIONS)
            self.say(f"{name}: {_time(ranks[name][0])}, the best of {len(times)} settings")
        return found, ranks

    def _climb(
        self, name: str, grid: Grid, first: tuple[int, ...], longest: float, share: float
    ) -> tuple[tuple[int, ...], list[float], float]:
        """Return the best setting found in `share` milliseconds, the times of all runs, and the least time to the goal.

        A run is stopped after `longest` milliseconds.
        """
        few = [each.select(slice(0, math.ceil(N_TUNING / len(self.validation)))) for each in self.validation]
        each, goal = self.measured["speeds"][name]["each"], self.accuracies[-1]
        most, times, reaching = max(1, int(min(MAX_ITERATIONS, longest / each))), list[float](), list[float]()

        def rank(setting: tuple[int, ...]) -> Rank:
            if times and sum(times) > share:
                return math.inf, math.inf
            quantiles = curve(grid.solver(setting), few, most, goal)
            times.append(each * len(quantiles))
            if quantiles[-1] <= goal:
                reaching.append(times[-1])
            return self.rank_of(name, quantiles)

        return climb(grid.sizes, first, rank), times, min(reaching, default=math.inf)

    def _train_initialisers(self) -> WithInitialiser | None:
        proposed = propose_initialisers(self.info, self.classical)
        if proposed is None:
            return None
        initialised, wanted = proposed
        affordable = int(INITIALISER_SHARE * 60 * self.minutes / self.measured["start"])
        updates = max(1, min(MAX_INITIALISER_UPDATES, affordable))
        fit_initialisers_(initialised, self.info.train, wanted, updates, self.seed)
        with torch.no_grad():
            gaps = [each.errors(initialised.init(each.problem, each.x0).x) for each in self.validation]
        begun = quantile(torch.cat(gaps))
        self.say(f"where to start, learned: 95% of the instances begin within {begun:.2g} of their minima")
        return initialised

    def _halve(self, solvers: dict[str, Solver[Any]]) -> dict[str, Solver[Any]]:
        """Train solvers by successive halving; return all of them, also those that dropped out early."""
        alive = list(solvers)
        for rung in range(N_RUNGS):
            updates = self._updates(solvers, rung)
            for name in alive:
                self.trainer.improve(solvers[name], name, updates, rung)
            ranks = {name: self._rank(name, solvers[name]) for name in alive}
            alive = sorted(alive, key=lambda name: ranks[name])[: max(1, len(alive) // 2)]
            self.say(f"round {rung + 1} of {N_RUNGS}: {alive[0]} leads with {_time(ranks[alive[0]][0])}")
        return solvers

    def _updates(self, solvers: dict[str, Solver[Any]], rung: int) -> int:
        """Return how many updates each solver gets in a rung; half of the solvers remain after each rung."""
        taken = []
        for name, solver in solvers.items():
            once, each = self.measured["updates"][name]
            taken.append(once + each * TRIAL_FACTOR * (solver.horizon or 0))
        share = TRAINING_SHARE - (0 if self.measured["start"] is None else INITIALISER_SHARE)
        alive = sorted(taken)[: max(1, len(taken) >> rung)]
        return max(MIN_UPDATES, min(MAX_UPDATES, int(share * 60 * self.minutes / N_RUNGS / sum(alive))))

    def _extend(self, solvers: dict[str, Solver[Any]]) -> dict[str, Rank]:
        """Return the ranks after more iterations; each solver gets the same time."""
        share, ranks = TUNING_SHARE * 6e4 * self.minutes / len(solvers), dict[str, Rank]()
        counts = {name: int(share / self.measured["speeds"][name]["each"]) for name in solvers}
        self.max_iterations = max(MAX_ITERATIONS, min(MAX_EXTENSION * MAX_ITERATIONS, max(counts.values())))
        self.say(f"nothing gets there in {MAX_ITERATIONS} iterations; going on for up to {self.max_iterations}")
        for name, solver in solvers.items():
            ranks[name] = self._rank(name, solver, max(MAX_ITERATIONS, min(self.max_iterations, counts[name])))
        return ranks

    def rank_of(self, name: str, quantiles: list[float]) -> Rank:
        """Return the geometric mean of the milliseconds to the three `accuracies`, and the smallest gap.

        If the last accuracy is not reached, it counts as twice the iterations. If another is not, the mean is infinite.
        """
        speed, counts = self.measured["speeds"][name], [reached(quantiles, accuracy) for accuracy in self.accuracies]
        if counts[-1] is None:
            counts[-1] = 2 * max(MAX_ITERATIONS, len(quantiles))
        times = [math.inf if count is None else speed["start"] + speed["each"] * count for count in counts]
        return math.inf if math.inf in times else statistics.geometric_mean(times), min(quantiles)

    def _rank(self, name: str, solver: Solver[Any], most: int = MAX_ITERATIONS // 2) -> Rank:
        return self.rank_of(name, curve(solver, self.validation, most, self.target / 10))

    def _choose(self, solvers: dict[str, Any], ranks: dict[str, Rank], test: list[Instances]) -> tuple[str, bool]:
        """Return the fastest solver that reaches the target on test instances, and True; or the closest, and False."""
        order = sorted(ranks, key=lambda name: ranks[name])
        reaching = [name for name in order if math.isfinite(ranks[name][0])]
        for name in reaching:
            quantiles = curve(solvers[name], test, self.max_iterations, self.target)
            if reached(quantiles, self.target) is not None:
                if name != order[0]:
                    self._warn(f"{order[0]} was fastest on validation and failed the test; {name} takes its place")
                return name, True
        where = "test" if reaching else "validation"
        nearest = min(order, key=lambda name: ranks[name][1])
        self._warn(
            f"no solver gets 95% of the {where} instances within {self.target:g} of their minima; {nearest} gets "
            f"nearest, within {ranks[nearest][1]:.2g} on validation: allow more minutes, or a larger target"
        )
        return nearest, False

    def _warn(self, line: str) -> None:
        self._note(line)
        warnings.warn(f"lmd.learn: {line}", TrainingWarning, stacklevel=5)

    # The answer

    def _finish(self, winner: str, is_reached: bool, ranks: dict[str, Rank], test: list[Instances]) -> Solver[Any]:
        """Return the solver with its card, and save both."""
        is_learned = winner in self.learned
        self.say(f"{winner} it is; testing" + ("" if is_learned else ": a classical method, tuned, is fastest"))
        guarded = solver = (self.learned | self.classical)[winner]
        if is_learned and not solver.ends_proven:
            guarded = guard(solver, test[0].problem) or solver
        promised, text = self._promise(guarded, test) if is_reached else (None, f"no promise: {self.notes[-1]}")
        shown = sorted(self.learned, key=lambda name: ranks[name])[:3]
        guarded.card = {
            **self.settings,
            "winner": winner,
            "learned": is_learned,
            "reached": is_reached,
            "batch": sum(len(each.x0) for each in test),
            "rows": [self._row(name, test) for name in (*shown, *self.classical)],
            **({} if promised is None else {"promise": asdict(promised)}),
            "promised": text,
            "notes": self.notes,
            "tried": {name: score if math.isfinite(score) else None for name, (score, _) in ranks.items()},
        }
        if self.folder is not None:
            save(guarded, self.folder)
        self.say(text)
        return guarded

    def _promise(self, solver: Solver[Any], test: list[Instances]) -> tuple[Promise | None, str]:
        """Promise the target after as many iterations as 95% of the validation and test instances need."""
        count = reached(curve(solver, [*self.validation, *test], self.max_iterations, self.target), self.target)
        if count is None:
            return None, f"no promise: guarded, {self.max_iterations} iterations are not enough"
        is_easy = self.is_stackable and self.is_solved and self.divisor == 1
        drawn = self._draw_separately(N_PROMISE if is_easy else N_PROMISE // DIVISOR, PROMISE)
        return try_promise(solver, drawn, self.target, max(1, count))

    def _row(self, name: str, test: list[Instances]) -> dict[str, Any]:
        """Return iterations and milliseconds to each accuracy, for a batch and one instance, and the gap curve."""
        is_learned, solver = name in self.learned, (self.learned | self.classical)[name]
        quantiles = curve(solver, test, self.max_iterations, self.target / 10)
        gaps = [float(f"{gap:.3g}") for gap in quantiles if math.isfinite(gap)]
        row: dict[str, Any] = {"method": name, "learned": is_learned, "iterations": {}, "milliseconds": {}, "one": {}}
        row |= {"gaps": gaps, "speed": self.measured["speeds"][name]}
        alone = [test[0].select(slice(0, 1))]
        for accuracy in self.accuracies:
            count = reached(quantiles, accuracy)
            if count is not None:
                key = f"{accuracy:g}"
                row["iterations"][key] = count
                row["milliseconds"][key] = milliseconds(solver, test, count, most=self.most_timed)
                row["one"][key] = milliseconds(solver, alone, count, most=self.most_timed)
        return row


def _time(score: float) -> str:
    if not math.isfinite(score):
        return "not there"
    return f"{score:.3g} ms in the mean to ten times, one and a tenth of the target"
