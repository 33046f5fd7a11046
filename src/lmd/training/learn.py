"""The fastest solver for a class of your own, from one call: propose, train, tune the classical methods, compare."""

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
from lmd.training.card import peers
from lmd.training.instances import Instances, ResampledFamily, check_family, check_minima, draw, draw_separately
from lmd.training.journal import Journal
from lmd.training.measure import Speed, clock, curve, milliseconds, quantile, reached, speed
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

N_TRAINING, N_VALIDATION, N_TEST = 300, 100, 100  # instances to train on, to choose by, and to test what was chosen
N_PROMISE, N_PROMISE_HARD = 300, 60
"""Instances that a promise is made from, which nothing else sees; fewer where they do not stack or are not solved."""

MAX_BATCHES = 8  # batches of validation and test instances
SEEDS_PER_USE = 1_000_000
TRAINING, VALIDATION, TEST, PROMISE = range(4)  # the uses of instances; no two share a seed
MAX_TRAINING_FACTOR = 16  # where instances are solved quickly, up to so many times as many are drawn for training
TRAINING_SHARE, INITIALISER_SHARE, TUNING_SHARE = 0.85, 0.25, 0.1
"""Shares of the time: for training, that of it for initialisers, and for tuning."""

N_RUNGS = 3  # rounds of successive halving
MIN_UPDATES, MAX_UPDATES, MAX_INITIALISER_UPDATES = 10, 3000, 36_000  # updates of one rung, and of initialisers
TRIAL_FACTOR = 2.0  # iterations of a trial of random search, in those before the last phase
N_TUNING = 25  # validation instances on which settings of classical methods are compared
MAX_SLOWDOWN = 4.0  # a classical method that takes so many times as long as another is stopped
MAX_EXTENSION = 10  # where nothing reaches the target, methods get up to so many times as many iterations
Rank = tuple[float, float]
"""Mean milliseconds, infinite where the target is not reached, and the least gap: smaller is better."""


def learn(
    family: Family,
    minutes: float = 10.0,
    out: str | Path | None = None,
    target: float = 1e-3,
    *,
    seed: int = 0,
    resume: bool = False,
    progress: Callable[[str], object] | None = None,
) -> Solver[Any]:
    """Return the fastest solver that can be found for a family in this many minutes, with its `card`.

    Proposes solvers that fit the problems (initialisers, metrics, steps, penalties, relaxations, the paper's mirrors)
    and trains them by successive halving. Classical methods are tuned on the same instances, from the given starts and
    from the mean of the training optima. All are ranked by the milliseconds until 95% of the validation instances have
    relative gaps of ten times `target`, `target` and a tenth of it, by the geometric mean of the three times. Returns
    the fastest solver that reaches the target on validation and test instances, which may be a classical method. After
    its learned iterations it continues with a method that converges, or it has a safeguard. If no solver reaches the
    target, the one that gets closest is returned with a `TrainingWarning`, and `card["reached"]` is false.

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
        out: A folder for the run; None writes nothing.
        target: The relative gap to reach.
        seed: The seed of instances and solvers.
        resume: Whether to continue the run in `out`.
        progress: A function that is called with a line of text after each step.
    """
    check_positive("minutes", minutes), check_positive("target", target), check_count("seed", seed, least=0)
    begun, say = clock(), progress or (lambda line: None)
    like = check_family(family, seed)
    settings = {"family": family.name, "minutes": minutes, "target": target, "seed": seed}
    journal = Journal(out, settings, resume)
    try:
        return _Learning(family, minutes, target, seed, journal, say, begun, like).run()
    finally:
        journal.close()


class _Learning:
    """The state of `learn` and its stages.

    Everything that depends on the clock is in one answer of the journal, written before anything is decided: the rest
    is computed from it and the seed, and is the same after any interruption.
    """

    def __init__(
        self,
        family: Family,
        minutes: float,
        target: float,
        seed: int,
        journal: Journal,
        say: Callable[[str], object],
        begun: float,
        like: Tensor,
    ) -> None:
        self.family, self.minutes, self.target, self.seed = family, minutes, target, seed
        self.accuracies = (10 * target, target, target / 10)
        self.journal, self.say, self.like = journal, say, like
        self.say("drawing instances and solving them to compare with")
        self.max_iterations, self.notes = MAX_ITERATIONS, list[str]()
        self.validation = self._draw_evaluation(N_VALIDATION, VALIDATION)
        check_minima(self.validation)
        few, before = self._draw_training(N_TRAINING), journal.answers.get("measured")
        count = before["training"] if before else self._affordable_instances(clock() - begun)
        self.info = ClassInfo(few if count == N_TRAINING else self._draw_training(count))
        check_minima([self.info.train])
        self._note_unsolved()
        resampled = ResampledFamily(self.info.train, family.name)
        self.trainer = Trainer(self.info.train, resampled, self.accuracies, seed, journal.folder, say)
        self.grids = propose_classical(self.info)
        self.measured = journal.once("measured", lambda: {"training": count, **self._measure()})

    # Instances

    def _seed(self, use: int, place: int = 0) -> int:
        return training_seed(self.seed, use * SEEDS_PER_USE + place)

    def _draw_training(self, count: int) -> Instances:
        return Instances.solve(*draw(self.family, count, self._seed(TRAINING), like=self.like))

    def _draw_evaluation(self, count: int, use: int) -> list[Instances]:
        """Draw held-out instances one by one, with their optima; in a few batches where they do not stack."""
        batches = self._draw_separately(count, use)
        self.is_stackable = len(batches) <= MAX_BATCHES
        if not self.is_stackable:
            seeds = [self._seed(use, count + place) for place in range(MAX_BATCHES)]
            each = math.ceil(count / MAX_BATCHES)
            batches = [draw(self.family, each, seed, held_out=True, like=self.like) for seed in seeds]
        return [Instances.solve(*batch) for batch in batches]

    def _draw_separately(self, count: int, use: int) -> list[tuple[Any, Tensor]]:
        return draw_separately(self.family, [self._seed(use, place) for place in range(count)], self.like)

    def _note_unsolved(self) -> None:
        solved = torch.cat([each.is_solved() for each in self.validation])
        self.is_solved = bool(solved.all())
        if not self.is_solved:
            share = float((~solved).double().mean())
            self._note(f"the minima of {share:.0%} of the validation instances were not found; gaps are too small")

    def _affordable_instances(self, seconds: float) -> int:
        """Return how many training instances a twentieth of the time can solve, after the first took so long."""
        times = 60 * self.minutes / 20 / max(seconds, 1e-3)
        return N_TRAINING * min(MAX_TRAINING_FACTOR, 2 ** max(0, int(math.log2(max(times, 1.0)))))

    def _note(self, line: str) -> None:
        """Add a line to the card."""
        self.notes.append(line)
        self.say(line)

    # Time

    def _measure(self) -> dict[str, Any]:
        """Measure a solve with each method, and an update of each of the solvers to train."""
        classical = {name: grid.solver(grid.first) for name, grid in self.grids.items()}
        proposed = propose_initialisers(self.info, classical)
        initialised = None if proposed is None else proposed[0]
        makes = propose_learned(self.info, classical, initialised, self.target)
        learned = {name: make() for name, make in makes.items()}
        speeds = {
            name: asdict(speed(solver, self.validation, min(solver.horizon or 8, 8)))
            for name, solver in (classical | learned).items()
        }
        updates = {name: self.trainer.update_seconds(solver) for name, solver in learned.items()}
        least = MIN_UPDATES * N_RUNGS * sum(once for once, _ in updates.values()) / 60 / TRAINING_SHARE
        if self.minutes < least:
            raise InputError("minutes", f"{self.minutes:g}", f"at least {least:.2g} for this class, to train anything")
        initialiser = None if proposed is None else self._initialiser_seconds(*proposed)
        return {"speeds": speeds, "updates": updates, "start": initialiser}

    def _initialiser_seconds(self, initialised: WithInitialiser, wanted: tuple[Tensor, ...]) -> float:
        """Return how long an update of the initialisers takes; the first one takes longer."""
        seconds = 0.0
        for updates in (1, N_TIMED_UPDATES):
            begun = clock()
            fit_initialisers_(copy.deepcopy(initialised), self.info.train, wanted, updates, self.seed)
            seconds = clock() - begun
        return seconds / N_TIMED_UPDATES

    def speed_of(self, name: str) -> Speed:
        return Speed(**self.measured["speeds"][name])

    # Stages

    def run(self) -> Solver[Any]:
        classical, ranks = self._tune()
        initialised = self._train_initialisers(classical)
        makes = propose_learned(self.info, classical, initialised, self.target)
        learned = self._halve({name: make() for name, make in makes.items()}, initialised is not None)
        ranks |= {name: self._rank(name, solver) for name, solver in learned.items()}
        solvers = classical | learned
        if not any(math.isfinite(score) for score, _ in ranks.values()):
            ranks = self._extend(solvers)
        test = self._draw_evaluation(N_TEST, TEST)
        winner, is_reached = self._choose(solvers, ranks, test)
        return self._finish(winner, is_reached, learned, classical, ranks, test)

    def _tune(self) -> tuple[dict[str, Solver[Any]], dict[str, Rank]]:
        """Return classical methods with the best setting on some validation instances, and their ranks on all.

        Each has an equal share of the time that is left. A setting that takes `MAX_SLOWDOWN` times as long as another
        method is stopped.
        """
        found, ranks, places = dict[str, Solver[Any]](), dict[str, Rank](), dict[str, tuple[int, ...]]()
        few = [each.select(slice(0, math.ceil(N_TUNING / len(self.validation)))) for each in self.validation]
        best, left = math.inf, TUNING_SHARE * 6e4 * self.minutes
        for place, (name, grid) in enumerate(self.grids.items()):
            each, share = self.speed_of(name).each, left / (len(self.grids) - place)
            tuner = _Tuner(self, name, grid, few, min(MAX_ITERATIONS, MAX_SLOWDOWN * best / each), share)
            first = places.get(name.partition(",")[0], grid.first)
            places[name] = climb(grid.sizes, first, tuner.rank)
            found[name] = grid.solver(places[name])
            ranks[name] = self._rank(name, found[name], MAX_ITERATIONS)
            best, left = min(best, tuner.best), left - tuner.spent
            self.say(f"{name}: {_time(ranks[name][0])}, the best of {tuner.count} settings")
        return found, ranks

    def _train_initialisers(self, classical: dict[str, Solver[Any]]) -> WithInitialiser | None:
        proposed = propose_initialisers(self.info, classical)
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

    def _halve(self, solvers: dict[str, Solver[Any]], with_initialisers: bool) -> dict[str, Solver[Any]]:
        """Return the solvers after the last rung of successive halving that each of them was trained in."""
        alive = list(solvers)
        counts = [self._updates(solvers, rung, with_initialisers) for rung in range(N_RUNGS)]
        for rung, updates in enumerate(counts):
            for name in alive:
                self.trainer.improve(solvers[name], name, updates, rung)
            ranks = {name: self._rank(name, solvers[name]) for name in alive}
            alive = sorted(alive, key=lambda name: ranks[name])[: max(1, len(alive) // 2)]
            self.say(f"round {rung + 1} of {N_RUNGS}: {alive[0]} leads with {_time(ranks[alive[0]][0])}")
        return solvers

    def _updates(self, solvers: dict[str, Solver[Any]], rung: int, with_initialisers: bool) -> int:
        """Return how many updates of each solver a rung has time for, where half of them are left after each."""
        seconds = []
        for name, solver in solvers.items():
            once, each = self.measured["updates"][name]
            seconds.append(once + each * TRIAL_FACTOR * (solver.horizon or 0))
        share = TRAINING_SHARE - (INITIALISER_SHARE if with_initialisers else 0)
        alive = sorted(seconds)[: max(1, len(seconds) >> rung)]
        return max(MIN_UPDATES, min(MAX_UPDATES, int(share * 60 * self.minutes / N_RUNGS / sum(alive))))

    def _extend(self, solvers: dict[str, Solver[Any]]) -> dict[str, Rank]:
        """Return ranks after more iterations, as many as each has time for."""
        share, ranks = TUNING_SHARE * 6e4 * self.minutes / len(solvers), dict[str, Rank]()
        counts = {name: int(share / self.speed_of(name).each) for name in solvers}
        self.max_iterations = max(MAX_ITERATIONS, min(MAX_EXTENSION * MAX_ITERATIONS, max(counts.values())))
        self.say(f"nothing gets there in {MAX_ITERATIONS} iterations; going on for up to {self.max_iterations}")
        for name, solver in solvers.items():
            ranks[name] = self._rank(name, solver, max(MAX_ITERATIONS, min(self.max_iterations, counts[name])))
        return ranks

    def rank_of(self, name: str, quantiles: list[float]) -> Rank:
        """Return the geometric mean of the milliseconds to `accuracies`, and the least gap.

        Very many to the last accuracy where it is not reached, infinite where one of the others is not.
        """
        speed, counts = self.speed_of(name), [reached(quantiles, accuracy) for accuracy in self.accuracies]
        *first, last = counts
        many = 2 * max(MAX_ITERATIONS, len(quantiles))
        each = [speed.milliseconds(count) for count in (*first, many if last is None else last)]
        return math.inf if math.inf in each else statistics.geometric_mean(each), min(quantiles)

    def _rank(self, name: str, solver: Solver[Any], most: int = MAX_ITERATIONS // 2) -> Rank:
        return self.rank_of(name, curve(solver, self.validation, most, self.target / 10))

    def _choose(self, solvers: dict[str, Any], ranks: dict[str, Rank], test: list[Instances]) -> tuple[str, bool]:
        """Return the fastest on validation that reaches the target on the test as well, or the nearest."""
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

    def _finish(
        self,
        winner: str,
        is_reached: bool,
        learned: dict[str, Any],
        classical: dict[str, Any],
        ranks: dict[str, Rank],
        test: list[Instances],
    ) -> Solver[Any]:
        """Return the solver with its card, and save it."""
        self.say(f"{winner} it is; testing" + ("" if winner in learned else ": a classical method, tuned, is fastest"))
        solver, problem = (learned | classical)[winner], test[0].problem
        guarded = solver if solver.ends_proven or winner in classical else guard(solver, problem) or solver
        promised, text = self._promise(guarded, test) if is_reached else (None, f"no promise: {self.notes[-1]}")
        shown = sorted(learned, key=lambda name: ranks[name])[:3]
        rows = [self._row(name, learned[name], test, True) for name in shown]
        rows += [self._row(name, solver, test, False) for name, solver in classical.items()]
        guarded.card = {
            **self.journal.settings,
            "winner": winner,
            "learned": winner in learned,
            "reached": is_reached,
            "batch": sum(len(each.x0) for each in test),
            "rows": rows + peers(test[0], self.target, self.say, TUNING_SHARE * 60 * self.minutes),
            **({} if promised is None else {"promise": promised.to_json()}),
            "promised": text,
            "notes": self.notes,
            "tried": {name: score if math.isfinite(score) else None for name, (score, _) in ranks.items()},
        }
        if self.journal.folder is not None:
            save(guarded, self.journal.folder)
        self.say(text)
        return guarded

    def _promise(self, solver: Solver[Any], test: list[Instances]) -> tuple[Promise | None, str]:
        """Promise the target after the iterations that 95% of the validation and test instances take."""
        count = reached(curve(solver, [*self.validation, *test], self.max_iterations, self.target), self.target)
        if count is None:
            return None, f"no promise: guarded, {self.max_iterations} iterations are not enough"
        instances = N_PROMISE if self.is_stackable and self.is_solved else N_PROMISE_HARD
        return try_promise(solver, self._draw_separately(instances, PROMISE), self.target, max(1, count))

    def _row(self, name: str, solver: Solver[Any], test: list[Instances], is_learned: bool) -> dict[str, Any]:
        """Return iterations and milliseconds to each accuracy, for a batch and for one alone, and the gap curve."""
        quantiles = curve(solver, test, self.max_iterations, self.target / 10)
        row: dict[str, Any] = {"method": name, "learned": is_learned, "iterations": {}, "milliseconds": {}, "one": {}}
        row |= {
            "gaps": [float(f"{gap:.3g}") for gap in quantiles if math.isfinite(gap)],
            "speed": asdict(self.speed_of(name)),
        }
        alone = [test[0].select(slice(0, 1))]
        for accuracy in self.accuracies:
            count = reached(quantiles, accuracy)
            if count is not None:
                key = f"{accuracy:g}"
                row["iterations"][key] = count
                row["milliseconds"][key] = milliseconds(solver, test, count)
                row["one"][key] = milliseconds(solver, alone, count)
        return row


class _Tuner:
    """Ranks settings of one method on some instances, for as long as its share of the time lasts."""

    def __init__(self, run: _Learning, name: str, grid: Grid, few: list[Instances], most: float, share: float) -> None:
        self.run, self.name, self.grid, self.few = run, name, grid, few
        self.most, self.share = max(1, int(most)), share
        self.count, self.spent, self.best = 0, 0.0, math.inf

    def rank(self, places: tuple[int, ...]) -> Rank:
        """Return the rank of a setting; the worst there is where no time is left for it, unless it is the first."""
        if self.count and self.spent > self.share:
            return math.inf, math.inf
        accuracy, each = self.run.accuracies[-1], self.run.speed_of(self.name).each
        quantiles = curve(self.grid.solver(places), self.few, self.most, accuracy)
        self.count, self.spent = self.count + 1, self.spent + each * len(quantiles)
        if quantiles[-1] <= accuracy:
            self.best = min(self.best, each * len(quantiles))
        return self.run.rank_of(self.name, quantiles)


def _time(score: float) -> str:
    if not math.isfinite(score):
        return "not there"
    return f"{score:.3g} ms in the mean to ten times, one and a tenth of the target"
