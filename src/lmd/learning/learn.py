"""A solver for a class of one's own, from one call: propose, train, tune the classical methods, compare, guard."""

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

from lmd.checks import check_count, check_positive
from lmd.errors import InputError, TrainingError, TrainingWarning
from lmd.guarantees.promise import promise
from lmd.guarantees.safeguard import guard
from lmd.learning.instances import DrawnAgain, Instances, check_family, draw
from lmd.learning.journal import Journal
from lmd.learning.measure import Speed, clock, curve, milliseconds, quantile, reached, speed
from lmd.learning.peers import peers
from lmd.learning.proposals import LONGEST, Known, to_learn, to_start, to_tune
from lmd.learning.search import search_
from lmd.learning.starting import EMPHASIS, fit_starts_
from lmd.problems.base import Family
from lmd.solvers import Carded, Solver, Started, save
from lmd.training import train

TRAINING, VALIDATION, TEST = 300, 100, 300
"""Instances of each kind; those of the test are looked at once, when everything is decided."""

MOST_TIMES = 16
"""Where instances are solved quickly, so many times as many are drawn for training."""

TRAINING_SHARE, STARTS_SHARE, TUNING_SHARE = 0.85, 0.25, 0.1
"""The share of the time for training, that of it in which networks learn where to start, and that for tuning."""

STARTS_TIMES = 12
"""The most updates of networks that say where to start, in `MOST_UPDATES`."""

TRIAL = 2.0
"""Iterations of a trial of numbers for phases, in those before the last phase."""

RUNGS, BATCH = 3, 64
RATE, FEW_NUMBERS = (2e-2, 1e-3), 1000
"""Learning rates of solvers with few numbers to learn, and with more."""

TIMED = 10
"""Updates by which it is found out how long one takes."""

FEWEST, MOST_UPDATES = 10, 3000
"""Updates of one rung: with fewer nothing is learned, and more are not needed."""

FEW = 25
"""Validation instances that settings of classical methods are compared on."""

PATIENCE = 4.0
"""A classical method that takes so many times as long as another is not waited for."""

SEARCHED, TAIL_TRIALS = 160, 24
"""Training instances that few numbers are searched on, and changes that are tried of those past what was learned."""

Say = Callable[[str], object]


def learn(
    family: Family,
    minutes: float = 10.0,
    out: str | Path | None = None,
    target: float = 1e-3,
    *,
    seed: int = 0,
    resume: bool = False,
    progress: Say | None = None,
) -> Carded:
    """The fastest solver that could be learned for a family within so many minutes, with its card.

    Looks at what the problems can do, proposes solvers with something to learn (where to start, the metric, steps,
    penalties, relaxations, the paper's mirrors), and trains them by successive halving on the milliseconds until 95% of
    the validation instances are within ten times `target`, `target` and a tenth of it of their minima, relative to
    them: on the geometric mean of the three, in which a solver that is twice as fast to one of them is as good as one
    that is to another.
    Classical methods are tuned on the same instances, from the given starts and from the mean of the training optima.
    The fastest of all is the answer, be it a classical method; it goes on past what was learned with a method that
    converges, or is guarded.

    `card` of the answer says what was tried, how long each takes to ten times, one and a tenth of the target on test
    instances nobody has seen, for a batch and for one alone, and what is promised of the class: with
    `lmd.guarantees.Monitor(Promise(**card["promise"]))` a running solver sees when the class has moved.

    On one thread `minutes` are of the processor, so that other programs change nothing but how long one waits for them.

    With `out`, the folder gets the solver, and a run that was killed goes on with `resume` and ends with the same one:
    speeds are measured once, before anything is tuned or trained, and written down; everything else follows from them
    and the seed. `progress` is called with a line after each step.

        solver = lmd.learn(lmd.problems.ControlFamily(), minutes=5, out="runs/control")
        result = lmd.run(solver, problem, x0, iterations=10)

    Args:
        family: What problems and starting points are drawn from.
        minutes: How long to learn.
        out: A folder for the run; None writes nothing.
        target: The relative gap to get to.
        seed: What instances and solvers are drawn from.
        resume: Go on with the run in `out`.
        progress: Called with a line of text after each step; None says nothing.

    Returns:
        The solver, with its `card`.
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
    """A run of `learn`: its instances, what was found, and the stages.

    Everything that the clock decides is in one answer of the journal, written before anything is decided: the rest is
    computed from it and the seed, and comes out the same after any interruption.
    """

    def __init__(
        self,
        family: Family,
        minutes: float,
        target: float,
        seed: int,
        journal: Journal,
        say: Say,
        begun: float,
        like: Tensor,
    ) -> None:
        self.family, self.minutes, self.target, self.seed = family, minutes, target, seed
        self.accuracies = (10 * target, target, target / 10)
        self.journal, self.say, self.like = journal, say, like
        self.say("drawing instances and solving them to compare with")
        self.validation = self._solved(VALIDATION, 1)
        few, before = self._solved(TRAINING, 0), journal.answers.get("measured")
        count = before["training"] if before else self._affordable(clock() - begun)
        self.known = Known(few if count == TRAINING else self._solved(count, 0))
        self.drawn = DrawnAgain(self.known.train, family.name)
        self.grids = to_tune(self.known)
        self.measured = journal.once("measured", lambda: {"training": count, **self._measure()})

    def _solved(self, count: int, kind: int) -> Instances:
        """Instances for training (0), validation (1) or the test (2), with their optima."""
        return Instances.solve(*draw(self.family, count, 3 * self.seed + kind, held_out=kind > 0, like=self.like))

    def _affordable(self, seconds: float) -> int:
        """How many training instances a twentieth of the time is enough to solve, after the first took so long."""
        times = 60 * self.minutes / 20 / max(seconds, 1e-3)
        return TRAINING * min(MOST_TIMES, 2 ** max(0, int(math.log2(max(times, 1.0)))))

    def _measure(self) -> dict[str, Any]:
        """What a solve takes with each method, and an update of each of the solvers to train, before it is trained."""
        classical = {name: grid[0] for name, grid in self.grids.items()}
        proposed = to_start(self.known, classical)
        told = None if proposed is None else proposed[0]
        makes = to_learn(self.known, classical, told, self.target)
        learned = {name: make() for name, make in makes.items()}
        x0 = self.validation.x0
        speeds = {
            name: asdict(speed(solver, self.validation.problem, x0, min(solver.horizon or 8, 8)))
            for name, solver in (classical | learned).items()
        }
        updates = {name: self._update_seconds(solver) for name, solver in learned.items()}
        least = FEWEST * RUNGS * sum(once for once, _ in updates.values()) / 60 / TRAINING_SHARE
        if self.minutes < least:
            raise InputError("minutes", f"{self.minutes:g}", f"at least {least:.2g} for this class, to train anything")
        start = None if proposed is None else self._start_seconds(*proposed)
        return {"speeds": speeds, "updates": updates, "start": start}

    def _start_seconds(self, told: Started, wanted: tuple[Tensor, ...]) -> float:
        """How long an update of the networks that say where to start takes; the first one takes longer."""
        seconds = 0.0
        for updates in (1, TIMED):
            begun = clock()
            fit_starts_(copy.deepcopy(told), self.known.train, wanted, updates, self.seed)
            seconds = clock() - begun
        return seconds / TIMED

    def _update_seconds(self, solver: Solver[Any]) -> tuple[float, float]:
        """How long an update takes, and, where numbers are searched for, each iteration of a trial beyond that."""
        if _phases(solver):
            part = self.known.train.select(slice(0, SEARCHED))
            moments = [clock()]
            for look in (lambda: self._keep(solver), lambda: curve(solver, part, TIMED, 0.0)):
                look()
                moments.append(clock())
            return moments[1] - moments[0], (moments[2] - moments[1]) / TIMED
        moments = []
        for updates in (1, 1, 1 + TIMED):  # the first one takes longer
            train(solver, self.drawn, progress=False, updates=updates, batch=BATCH, objective="gap", validate_every=0)
            moments.append(clock())
        return max((moments[2] - 2 * moments[1] + moments[0]) / TIMED, 1e-4), 0.0

    def run(self) -> Carded:
        classical, tuned = self._tune()
        told = self._start(classical)
        makes = to_learn(self.known, classical, told, self.target)
        solvers = self._halve({name: make() for name, make in makes.items()}, told is not None)
        scores = tuned | {name: self._score(name, self._quantiles(solver)) for name, solver in solvers.items()}
        winner = min(scores, key=lambda name: scores[name])
        if not math.isfinite(scores[winner]):
            winner = next(iter(classical))
        return self._finish(winner, solvers, classical, scores)

    def _start(self, classical: dict[str, Solver[Any]]) -> Started | None:
        """Networks that say where to start, trained for a share of the time."""
        proposed = to_start(self.known, classical)
        if proposed is None:
            return None
        told, wanted = proposed
        affordable = int(STARTS_SHARE * 60 * self.minutes / self.measured["start"])
        fit_starts_(told, self.known.train, wanted, max(1, min(STARTS_TIMES * MOST_UPDATES, affordable)), self.seed)
        with torch.no_grad():
            state = told.init(self.validation.problem, self.validation.x0)
            gaps = self.validation.errors(state.x)
        self.say(f"where to start, learned: 95% of the instances begin within {quantile(gaps):.2g} of their minima")
        return told

    def _tune(self) -> tuple[dict[str, Solver[Any]], dict[str, float]]:
        """Classical methods, each with its best setting on some of the validation instances, and their scores on all.

        One that takes `PATIENCE` times as long as another is not waited for, nor one beyond its share of the time.
        """
        found, scores, few = dict[str, Solver[Any]](), dict[str, float](), self.validation.select(slice(0, FEW))
        best, left = math.inf, TUNING_SHARE * 6e4 * self.minutes
        for name, grid in self.grids.items():
            each, tried = self._speed(name).each, []
            for solver in grid:
                most = max(1, int(min(LONGEST, PATIENCE * best / each, left / each)))
                quantiles = curve(solver, few, most, self.target / 10)
                tried.append((self._score(name, quantiles), min(quantiles)))
                if quantiles[-1] <= self.target / 10:
                    best = min(best, each * len(quantiles))
                left -= each * len(quantiles)
            found[name], scores[name] = grid[tried.index(min(tried))], math.inf
            if math.isfinite(min(tried)[0]):
                scores[name] = self._score(name, curve(found[name], self.validation, LONGEST, self.target / 10))
            self.say(f"{name}: {_time(scores[name])}, the best of {len(grid)} settings")
        return found, scores

    def _speed(self, name: str) -> Speed:
        return Speed(**self.measured["speeds"][name])

    def _updates(self, solvers: dict[str, Solver[Any]], rung: int, starts: bool) -> int:
        """How many updates of each solver a rung has time for, where half of them are left after each."""
        seconds = []
        for name, solver in solvers.items():
            once, each = self.measured["updates"][name]
            seconds.append(once + each * TRIAL * (solver.horizon or 0))
        share = TRAINING_SHARE - (STARTS_SHARE if starts else 0)
        alive = sorted(seconds)[: max(1, len(seconds) >> rung)]
        return max(FEWEST, min(MOST_UPDATES, int(share * 60 * self.minutes / RUNGS / sum(alive))))

    def _halve(self, solvers: dict[str, Solver[Any]], starts: bool) -> dict[str, Solver[Any]]:
        """The solvers after the last rung that each of them was trained in."""
        alive = list(solvers)
        counts = [self._updates(solvers, rung, starts) for rung in range(RUNGS)]
        for rung, updates in enumerate(counts):
            for name in alive:
                if phases := _phases(solvers[name]):
                    self._search(solvers[name], phases, updates, rung)
                else:
                    solvers[name] = self._train(solvers[name], self._place(name, rung), updates, rung)
            scores = {name: self._rank(name, solvers[name]) for name in alive}
            alive = sorted(alive, key=lambda name: scores[name])[: max(1, len(alive) // 2)]
            self.say(f"round {rung + 1} of {RUNGS}: {alive[0]} leads with {_time(scores[alive[0]][0])}")
        return solvers

    def _place(self, name: str, rung: int) -> Path | None:
        words = "".join(letter if letter.isalnum() else "-" for letter in name)
        return None if self.journal.folder is None else self.journal.folder / "tried" / f"{words}-{rung + 1}"

    def _train(self, solver: Solver[Any], folder: Path | None, updates: int, rung: int) -> Solver[Any]:
        """Train for a rung, or go on with one that was stopped; matrices that follow from what was learned are kept."""
        count = sum(parameter.numel() for parameter in solver.parameters() if parameter.requires_grad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)
            try:
                train(
                    solver,
                    self.drawn,
                    out=folder,
                    resume=folder is not None,
                    progress=False,
                    updates=updates,
                    batch=BATCH,
                    validation_batch=min(self.drawn.kept, 2 * BATCH),
                    validate_every=max(1, updates // 10),
                    checkpoint_every=max(1, updates // 4),
                    objective="gap",
                    emphasis=EMPHASIS,
                    start_weight=1.0,  # or iterations are learned that make the points they begin at worse
                    learning_rate=RATE[count > FEW_NUMBERS] / 2**rung,
                    schedule="cosine",
                    clip_gradient=10.0,
                    seed=self.seed + rung,
                )
            except TrainingError as error:
                self.say(f"given up: {error}")
        self._keep(solver)
        if rung > 0:
            self._search(solver, _searched(solver), TAIL_TRIALS, rung, tail=True)
        return solver

    def _keep(self, solver: Solver[Any]) -> None:
        for part in solver.modules():
            if callable(keep := getattr(part, "keep_", None)):
                keep(self.known.train.problem, self.known.train.x0)

    def _search(self, solver: Solver[Any], parts: list[Any], trials: int, rung: int, tail: bool = False) -> None:
        """Search for numbers of parts of a solver, or for those past its learned iterations alone."""
        few = self.known.train.select(slice(0, SEARCHED))
        accuracies = self.accuracies[-1:] if tail else self.accuracies
        for part in parts:
            rows = [part.iterations - 1] if tail else range(part.iterations)
            search_(solver, part, rows, lambda: self._keep(solver), few, accuracies, trials, self.seed + rung)

    def _quantiles(self, solver: Solver[Any]) -> list[float]:
        return curve(solver, self.validation, LONGEST // 2, self.target / 10)

    def _score(self, name: str, quantiles: list[float]) -> float:
        """The mean of the milliseconds to `accuracies`, geometric; very many to the last where it is not reached."""
        speed, counts = self._speed(name), [reached(quantiles, accuracy) for accuracy in self.accuracies]
        *first, last = counts
        each = [speed.milliseconds(count) for count in (*first, 2 * LONGEST if last is None else last)]
        return math.inf if math.inf in each else statistics.geometric_mean(each)

    def _rank(self, name: str, solver: Solver[Any]) -> tuple[float, float]:
        """By milliseconds, and by the least gap where none gets there."""
        quantiles = self._quantiles(solver)
        return self._score(name, quantiles), min(quantiles)

    def _finish(
        self, winner: str, learned: dict[str, Any], classical: dict[str, Any], scores: dict[str, float]
    ) -> Carded:
        """The answer, saved, with the card that the test instances give it."""
        self.say(f"{winner} it is; testing" + ("" if winner in learned else ": a classical method, tuned, is fastest"))
        test = self._solved(TEST, 2)
        solver = (learned | classical)[winner]
        count = reached(curve(solver, self.validation, LONGEST, self.target), self.target)
        count = LONGEST if count is None else count
        with torch.no_grad():
            state = solver.advance(test.problem, solver.init(test.problem, test.x0), count)
            promised = promise(test.errors(state.x), self.target, count)
        shown = sorted(learned, key=lambda name: scores[name])[:3]
        rows = [self._row(name, learned[name], test, True) for name in shown]
        rows += [self._row(name, solver, test, False) for name, solver in classical.items()]
        guarded = solver if solver.ends_proven or winner in classical else guard(solver, test.problem) or solver
        card = {
            **self.journal.settings,
            "winner": winner,
            "learned": winner in learned,
            "batch": VALIDATION,
            "rows": rows + peers(test.select(slice(0, VALIDATION)), self.target, self.say),
            "promise": promised.to_json(),
            "promised": str(promised),
            "tried": {name: score if math.isfinite(score) else None for name, score in scores.items()},
        }
        answer = Carded(guarded, card)
        if self.journal.folder is not None:
            save(answer, self.journal.folder)
        self.say(str(promised))
        return answer

    def _row(self, name: str, solver: Solver[Any], test: Instances, is_learned: bool) -> dict[str, Any]:
        """Iterations and milliseconds to ten times, one and a tenth of the target: for a batch, and for one alone.

        And what curves are drawn of: the 95% quantile of the gaps after each iteration, and how long these take.
        """
        part = test.select(slice(0, VALIDATION))
        quantiles = curve(solver, part, LONGEST, self.target / 10)
        row: dict[str, Any] = {"method": name, "learned": is_learned, "iterations": {}, "milliseconds": {}, "one": {}}
        row |= {
            "gaps": [float(f"{gap:.3g}") for gap in quantiles if math.isfinite(gap)],
            "speed": asdict(self._speed(name)),
        }
        alone = part.select(slice(0, 1))
        for accuracy in self.accuracies:
            count = reached(quantiles, accuracy)
            if count is not None:
                key = f"{accuracy:g}"
                row["iterations"][key] = count
                row["milliseconds"][key] = milliseconds(solver, part.problem, part.x0, count)
                row["one"][key] = milliseconds(solver, alone.problem, alone.x0, count)
        return row


def _searched(solver: Solver[Any]) -> list[Any]:
    """Its parts whose numbers can be searched for."""
    return [part for part in solver.modules() if hasattr(part, "search_directions")]


def _phases(solver: Solver[Any]) -> list[Any]:
    """Those with numbers of phases of many iterations, which are searched for, not trained."""
    return [part for part in _searched(solver) if part.horizon and part.horizon > part.iterations]


def _time(score: float) -> str:
    return (
        f"{score:.3g} ms in the mean to ten times, one and a tenth of the target"
        if math.isfinite(score)
        else "not there"
    )
