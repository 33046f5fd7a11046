"""A solver for a class of one's own, from one call: propose, train, tune the classical methods, compare, guard."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lmd.checks import check_count, check_positive
from lmd.errors import InputError, TrainingError, TrainingWarning
from lmd.guarantees.promise import promise
from lmd.guarantees.safeguard import guard
from lmd.learning.instances import Drawn, Instances, check_family, draw
from lmd.learning.journal import Journal
from lmd.learning.measure import Speed, clock, curve, milliseconds, quantile, reached, speed
from lmd.learning.peers import peers
from lmd.learning.proposals import LONGEST, Known, Make, to_learn, to_start, to_tune
from lmd.learning.search import search_
from lmd.learning.starting import fit_starts_
from lmd.problems.base import Family
from lmd.solvers import Carded, Solver, Started, save
from lmd.training import train

TRAINING, VALIDATION, TEST = 300, 100, 300
"""Instances of each kind; those of the test are looked at once, when everything is decided."""

MOST_TIMES = 16
"""Where instances are solved quickly, so many times as many are drawn for training."""

STARTS_SHARE, STARTS_TIMES = 0.25, 12
"""The share of the time in which networks learn where to start, and their most updates, in `MOST_UPDATES`."""

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
    the validation instances are within `target` of their minima, relative to them, and on those until a tenth of it.
    Classical methods are tuned on the same instances, from the given starts and from the mean of the training optima.
    The fastest of all is the answer, be it a classical method; it goes on past what was learned with a method that
    converges, or is guarded.

    `card` of the answer says what was tried, how long each takes to ten times, one and a tenth of the target on test
    instances nobody has seen, for a batch and for one alone, and what is promised of the class: with
    `lmd.guarantees.Monitor(Promise(**card["promise"]))` a running solver sees when the class has moved.

    On one thread `minutes` are of the processor, so that other programs change nothing but how long one waits for them.

    With `out`, the folder gets the solver, and a run that was killed goes on with `resume`. Speeds are measured once,
    at the beginning, and written down; everything else follows from them and the seed. `progress` is called with a line
    after each step.

        solver = lmd.learn(lmd.problems.ControlFamily(), minutes=5, out="runs/control")
        result = lmd.run(solver, problem, x0, iterations=10)
    """
    check_positive("minutes", minutes), check_positive("target", target), check_count("seed", seed, least=0)
    begun, say = clock(), progress or (lambda line: None)
    check_family(family, seed)
    settings = {"family": family.name, "minutes": minutes, "target": target, "seed": seed}
    journal = Journal(out, settings, resume)
    try:
        return _Learning(family, minutes, target, seed, journal, say, begun).run()
    finally:
        journal.close()


class _Learning:
    """A run of `learn`: its instances, what was found, and the stages."""

    def __init__(
        self, family: Family, minutes: float, target: float, seed: int, journal: Journal, say: Say, begun: float
    ) -> None:
        self.family, self.minutes, self.target, self.seed = family, minutes, target, seed
        self.journal, self.say, self.begun = journal, say, begun
        self.say("drawing instances and solving them to compare with")
        few = Instances.solve(*draw(family, TRAINING, 3 * seed))
        count = journal.once("training instances", lambda: self._affordable(clock() - begun))
        self.known = Known(few if count == TRAINING else Instances.solve(*draw(family, count, 3 * seed)))
        self.drawn = Drawn(self.known.train, family.name)
        self.validation = Instances.solve(*draw(family, VALIDATION, 3 * seed + 1, held_out=True))

    def _affordable(self, seconds: float) -> int:
        """How many training instances a twentieth of the time is enough to solve, after the first took so long."""
        times = 60 * self.minutes / 20 / max(seconds, 1e-3)
        return TRAINING * min(MOST_TIMES, 2 ** max(0, int(math.log2(max(times, 1.0)))))

    def run(self) -> Carded:
        classical = self._tune()
        makes = to_learn(self.known, classical, self._start(classical), self.target)
        plan = self.journal.once("plan", lambda: self._plan(makes))
        learned = self._halve(makes, plan)
        scores = {name: _score_of(self.journal.answers["classical"][name]) for name in classical}
        scores |= {name: self._score(solver, plan[name]) for name, solver in learned.items()}
        winner = min(scores, key=lambda name: scores[name])
        if not math.isfinite(scores[winner]):
            winner = next(iter(classical))
        return self._finish(winner, learned, classical, scores)

    def _start(self, classical: dict[str, Solver[Any]]) -> Started | None:
        """Networks that say where to start, trained for a share of the time; how many updates that is, is written."""
        proposed = to_start(self.known, classical)
        if proposed is None:
            return None
        told, wanted = proposed

        def affordable() -> int:
            tried, seconds = copy.deepcopy(told), 0.0
            for updates in (1, TIMED):  # the first one takes longer
                begun = clock()
                fit_starts_(tried, self.known.train, wanted, updates, self.seed)
                seconds = clock() - begun
            each = seconds / TIMED
            return max(1, min(STARTS_TIMES * MOST_UPDATES, int(STARTS_SHARE * 60 * self.minutes / each)))

        updates = self.journal.once("start updates", affordable)
        fit_starts_(told, self.known.train, wanted, updates, self.seed)
        with torch.no_grad():
            state = told.init(self.validation.problem, self.validation.x0)
            gaps = self.validation.errors(state.x)
        self.say(f"where to start, learned: 95% of the instances begin within {quantile(gaps):.2g} of their minima")
        return told

    def _tune(self) -> dict[str, Solver[Any]]:
        """The best setting of each classical method; which one that is, is written down, as it depends on speed."""
        grids = to_tune(self.known)

        def choose() -> dict[str, Any]:
            found, best, few = dict[str, Any](), math.inf, self.validation.select(slice(0, FEW))
            for name, grid in grids.items():
                scores = []
                for solver in grid:
                    scores.append(self._classical_score(solver, few, PATIENCE * best / 1e3))
                    best = min(best, scores[-1])
                place = min(range(len(grid)), key=lambda i: scores[i])
                score = math.inf
                if math.isfinite(scores[place]):
                    score = self._classical_score(grid[place], self.validation, math.inf)
                found[name] = {"place": place, "milliseconds": score if math.isfinite(score) else None}
                self.say(f"{name}: {_time(score)}, the best of {len(grid)} settings")
            return found

        chosen = self.journal.once("classical", choose)
        return {name: grid[chosen[name]["place"]] for name, grid in grids.items()}

    def _classical_score(self, solver: Solver[Any], instances: Instances, seconds: float) -> float:
        first, last = self._counts(curve(solver, instances, LONGEST, self.target / 10, seconds))
        if first is None:
            return math.inf
        count = max(first, 1)
        return milliseconds(solver, instances.problem, instances.x0, count, repeats=3) * (first + last) / count

    def _counts(self, quantiles: list[float]) -> tuple[int | None, int]:
        """Iterations to the target and to a tenth of it; very many where that is not reached."""
        last = reached(quantiles, self.target / 10)
        return reached(quantiles, self.target), 2 * LONGEST if last is None else last

    def _plan(self, makes: dict[str, Make]) -> dict[str, Any]:
        """Speeds of the solvers to train, and the updates of each rung that there is time for."""
        speeds, seconds = {}, {}
        for name, make in makes.items():
            solver = make()
            speeds[name] = speed(solver, self.validation.problem, self.validation.x0, solver.horizon or 8)
            few, more = (self._training_seconds(solver, updates) for updates in (1, 6))
            seconds[name] = max((more - few) / 5, 1e-4)
        spent = clock() - self.begun
        left = 0.85 * (60 * self.minutes - spent)
        plan: dict[str, Any] = {name: {"start": s.start, "each": s.each, "updates": []} for name, s in speeds.items()}
        alive = sorted(seconds.values())
        for rung in range(RUNGS):
            share = left / RUNGS / sum(alive[: max(1, len(alive) >> rung)])
            updates = min(MOST_UPDATES, int(share))
            if rung == 0 and updates < FEWEST:
                needed = (spent + FEWEST * RUNGS * sum(alive) / 0.85) / 60
                raise InputError(
                    "minutes", f"{self.minutes:g}", f"at least {needed:.2g} for this class, to train anything"
                )
            for name in plan:
                plan[name]["updates"].append(max(FEWEST, updates))
        return plan

    def _training_seconds(self, solver: Solver[Any], updates: int) -> float:
        begun = clock()
        if phases := _phases(solver):
            self._search(solver, phases, updates, 0)
        else:
            train(solver, self.drawn, progress=False, updates=updates, batch=BATCH, objective="gap", validate_every=0)
        return clock() - begun

    def _halve(self, makes: dict[str, Make], plan: dict[str, Any]) -> dict[str, Solver[Any]]:
        """The solvers after the last rung that each of them was trained in."""
        solvers = {name: make() for name, make in makes.items()}
        alive = list(makes)
        for rung in range(RUNGS):
            for name in alive:
                folder, updates = self._place(name, rung), plan[name]["updates"][rung]
                if phases := _phases(solvers[name]):
                    self._search(solvers[name], phases, updates, rung)
                else:
                    solvers[name] = self._train(solvers[name], folder, updates, rung)
            scores = {name: self._rank(solvers[name], plan[name]) for name in alive}
            alive = sorted(alive, key=lambda name: scores[name])[: max(1, len(alive) // 2)]
            best = self._score(solvers[alive[0]], plan[alive[0]])
            self.say(f"round {rung + 1} of {RUNGS}: {alive[0]} leads with {_time(best)}")
        return solvers

    def _place(self, name: str, rung: int) -> Path | None:
        words = "".join(letter if letter.isalnum() else "-" for letter in name)
        return None if self.journal.folder is None else self.journal.folder / "tried" / f"{words}-{rung + 1}"

    def _train(self, solver: Solver[Any], folder: Path | None, updates: int, rung: int) -> Solver[Any]:
        """Train for a rung, or go on with one that was stopped; matrices that follow from what was learned are kept."""
        count = sum(parameter.numel() for parameter in solver.parameters())
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
        accuracies = [self.target / 10] if tail else [10 * self.target, self.target, self.target / 10]
        for part in parts:
            rows = [part.iterations - 1] if tail else range(part.iterations)
            search_(solver, part, rows, lambda: self._keep(solver), few, accuracies, trials, self.seed + rung)

    def _quantiles(self, solver: Solver[Any]) -> list[float]:
        return curve(solver, self.validation, LONGEST // 2, self.target / 10)

    def _score(self, solver: Solver[Any], planned: dict[str, Any]) -> float:
        first, last = self._counts(self._quantiles(solver))
        measured = Speed(planned["start"], planned["each"])
        return measured.milliseconds(first) + measured.milliseconds(last)

    def _rank(self, solver: Solver[Any], planned: dict[str, Any]) -> tuple[float, float]:
        """By milliseconds, and by the least gap where none gets there."""
        return self._score(solver, planned), min(self._quantiles(solver))

    def _finish(
        self, winner: str, learned: dict[str, Any], classical: dict[str, Any], scores: dict[str, float]
    ) -> Carded:
        """The answer, saved, with the card that the test instances give it."""
        self.say(f"{winner} it is; testing" + ("" if winner in learned else ": a classical method, tuned, is fastest"))
        test = Instances.solve(*draw(self.family, TEST, 3 * self.seed + 2, held_out=True))
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
            "rows": rows + peers(test.select(slice(0, VALIDATION)), self.target),
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
        """Iterations and milliseconds to ten times, one and a tenth of the target: for a batch, and for one alone."""
        part = test.select(slice(0, VALIDATION))
        quantiles = curve(solver, part, LONGEST, self.target / 10)
        row: dict[str, Any] = {"method": name, "learned": is_learned, "iterations": {}, "milliseconds": {}, "one": {}}
        alone = part.select(slice(0, 1))
        for accuracy in (10 * self.target, self.target, self.target / 10):
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


def _score_of(row: dict[str, Any]) -> float:
    return math.inf if row["milliseconds"] is None else float(row["milliseconds"])


def _time(score: float) -> str:
    return f"{score:.3g} ms to the target and a tenth of it" if math.isfinite(score) else "not there"
