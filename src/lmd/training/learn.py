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

from lmd.core.checks import check_count, check_positive
from lmd.errors import InputError, TrainingError, TrainingWarning
from lmd.guarantees.promises import Promise, try_promise
from lmd.guarantees.safeguard import guard
from lmd.problems.base import Family
from lmd.solvers import Solver, WithInitialiser, save
from lmd.training.instances import DrawnAgain, Instances, check_family, check_minima, draw, draw_separately
from lmd.training.journal import Journal
from lmd.training.measure import Speed, clock, curve, milliseconds, quantile, reached, speed
from lmd.training.peers import peers
from lmd.training.proposals import LONGEST, Known, Settings, to_learn, to_start, to_tune
from lmd.training.search import climb, search_
from lmd.training.settings import training_seed
from lmd.training.starting import EMPHASIS, fit_starts_
from lmd.training.train import train

TRAINING, VALIDATION, TEST = 300, 100, 100
"""Instances to train on, to choose by, and to test what was chosen on."""

PROMISED, PROMISED_ALONE = 300, 60
"""Instances that a promise is made from, which nothing else sees; fewer where they do not stack or are hard."""

MAX_BATCHES = 8
"""Batches that validation and test instances are in at most."""

SEEDS_OF_A_KIND = 1_000_000
"""Seeds for each kind of instances."""

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

MAX_TIMES_LONGER = 10
"""Where nothing reaches the target, methods go on for so many times as many iterations, at most."""

SEARCHED, TAIL_TRIALS = 160, 24
"""Training instances that few numbers are searched on, and changes that are tried of those past what was learned."""

Say = Callable[[str], object]

Rank = tuple[float, float]
"""Milliseconds in the mean, infinite where the target is not reached, and the least gap: what is smaller is better."""


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
    """The fastest solver that could be learned for a family within so many minutes, with its card.

    Looks at what the problems can do, proposes solvers with something to learn (where to start, the metric, steps,
    penalties, relaxations, the paper's mirrors), and trains them by successive halving on the milliseconds until 95% of
    the validation instances are within ten times `target`, `target` and a tenth of it of their minima, relative to
    them: on the geometric mean of the three, in which a solver that is twice as fast to one of them is as good as one
    that is to another.
    Classical methods are tuned on the same instances, from the given starts and from the mean of the training optima.
    The fastest of all that get there is the answer, be it a classical method; it goes on past what was learned with a
    method that converges, or is guarded. If it does not get there on test instances, the fastest that does takes its
    place. Where no solver gets there, the one that gets nearest is the answer, with a `TrainingWarning`, and
    `card["reached"]` is false.

    `card` of the answer says what was tried, how long each takes to ten times, one and a tenth of the target on the
    test instances, for a batch and for one alone, and what is promised of the class: with
    `lmd.guarantees.Monitor(Promise(**card["promise"]))` a running solver sees when the class has moved. The promise is
    made from instances that nothing else has seen, drawn one by one, and from gaps to minima that are proven to a
    tenth of the target. Where they cannot be, there is no `card["promise"]`, and `card["promised"]` says why.

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
        self.longest, self.notes = LONGEST, list[str]()
        self.validation = self._evaluation(VALIDATION, 1)
        check_minima(self.validation)
        few, before = self._training(TRAINING), journal.answers.get("measured")
        count = before["training"] if before else self._affordable(clock() - begun)
        self.known = Known(few if count == TRAINING else self._training(count))
        check_minima([self.known.train])
        self._note_unsolved()
        self.drawn = DrawnAgain(self.known.train, family.name)
        self.settings = to_tune(self.known)
        self.measured = journal.once("measured", lambda: {"training": count, **self._measure()})

    def _seed(self, kind: int, place: int = 0) -> int:
        """The seed of a draw for training (0), validation (1), the test (2) or the promise (3): no two share one."""
        return training_seed(self.seed, kind * SEEDS_OF_A_KIND + place)

    def _training(self, count: int) -> Instances:
        return Instances.solve(*draw(self.family, count, self._seed(0), like=self.like))

    def _evaluation(self, count: int, kind: int) -> list[Instances]:
        """Held-out instances with their optima, drawn one by one; in a few batches where these do not stack."""
        batches = self._apart(count, kind)
        self.is_stackable = len(batches) <= MAX_BATCHES
        if not self.is_stackable:
            seeds = [self._seed(kind, count + place) for place in range(MAX_BATCHES)]
            each = math.ceil(count / MAX_BATCHES)
            batches = [draw(self.family, each, seed, held_out=True, like=self.like) for seed in seeds]
        return [Instances.solve(*batch) for batch in batches]

    def _apart(self, count: int, kind: int) -> list[tuple[Any, Tensor]]:
        return draw_separately(self.family, [self._seed(kind, place) for place in range(count)], self.like)

    def _note_unsolved(self) -> None:
        solved = torch.cat([each.is_solved() for each in self.validation])
        self.is_solved = bool(solved.all())
        if not self.is_solved:
            share = float((~solved).double().mean())
            self._note(f"the minima of {share:.0%} of the validation instances were not found; gaps are too small")

    def _note(self, line: str) -> None:
        """What the card has to say beside its numbers."""
        self.notes.append(line)
        self.say(line)

    def _affordable(self, seconds: float) -> int:
        """How many training instances a twentieth of the time is enough to solve, after the first took so long."""
        times = 60 * self.minutes / 20 / max(seconds, 1e-3)
        return TRAINING * min(MOST_TIMES, 2 ** max(0, int(math.log2(max(times, 1.0)))))

    def _measure(self) -> dict[str, Any]:
        """What a solve takes with each method, and an update of each of the solvers to train, before it is trained."""
        classical = {name: settings.solver(settings.first) for name, settings in self.settings.items()}
        proposed = to_start(self.known, classical)
        told = None if proposed is None else proposed[0]
        makes = to_learn(self.known, classical, told, self.target)
        learned = {name: make() for name, make in makes.items()}
        speeds = {
            name: asdict(speed(solver, self.validation, min(solver.horizon or 8, 8)))
            for name, solver in (classical | learned).items()
        }
        updates = {name: self._update_seconds(solver) for name, solver in learned.items()}
        least = FEWEST * RUNGS * sum(once for once, _ in updates.values()) / 60 / TRAINING_SHARE
        if self.minutes < least:
            raise InputError("minutes", f"{self.minutes:g}", f"at least {least:.2g} for this class, to train anything")
        start = None if proposed is None else self._start_seconds(*proposed)
        return {"speeds": speeds, "updates": updates, "start": start}

    def _start_seconds(self, told: WithInitialiser, wanted: tuple[Tensor, ...]) -> float:
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
            for look in (lambda: self._keep(solver), lambda: curve(solver, [part], TIMED, 0.0)):
                look()
                moments.append(clock())
            return moments[1] - moments[0], (moments[2] - moments[1]) / TIMED
        moments = []
        for updates in (1, 1, 1 + TIMED):  # the first one takes longer
            train(solver, self.drawn, progress=False, updates=updates, batch=BATCH, objective="gap", validate_every=0)
            moments.append(clock())
        return max((moments[2] - 2 * moments[1] + moments[0]) / TIMED, 1e-4), 0.0

    def run(self) -> Solver[Any]:
        classical, scores = self._tune()
        told = self._start(classical)
        makes = to_learn(self.known, classical, told, self.target)
        learned = self._halve({name: make() for name, make in makes.items()}, told is not None)
        scores |= {name: self._rank(name, solver) for name, solver in learned.items()}
        solvers = classical | learned
        if not any(math.isfinite(score) for score, _ in scores.values()):
            scores = self._wait(solvers)
        test = self._evaluation(TEST, 2)
        winner, is_reached = self._choose(solvers, scores, test)
        return self._finish(winner, is_reached, learned, classical, scores, test)

    def _start(self, classical: dict[str, Solver[Any]]) -> WithInitialiser | None:
        """Networks that say where to start, trained for a share of the time."""
        proposed = to_start(self.known, classical)
        if proposed is None:
            return None
        told, wanted = proposed
        affordable = int(STARTS_SHARE * 60 * self.minutes / self.measured["start"])
        fit_starts_(told, self.known.train, wanted, max(1, min(STARTS_TIMES * MOST_UPDATES, affordable)), self.seed)
        with torch.no_grad():
            gaps = [each.errors(told.init(each.problem, each.x0).x) for each in self.validation]
        begun = quantile(torch.cat(gaps))
        self.say(f"where to start, learned: 95% of the instances begin within {begun:.2g} of their minima")
        return told

    def _tune(self) -> tuple[dict[str, Solver[Any]], dict[str, Rank]]:
        """Classical methods, each with its best setting on some of the validation instances, and their ranks on all.

        Each has an equal share of the time that is left; the setting that is found is ranked however much it took. A
        setting that takes `PATIENCE` times as long as another method is not waited for.
        """
        found, ranks, places = dict[str, Solver[Any]](), dict[str, Rank](), dict[str, tuple[int, ...]]()
        few = [each.select(slice(0, math.ceil(FEW / len(self.validation)))) for each in self.validation]
        best, left = math.inf, TUNING_SHARE * 6e4 * self.minutes
        for place, (name, settings) in enumerate(self.settings.items()):
            each, share = self.speed_of(name).each, left / (len(self.settings) - place)
            tuner = _Tuner(self, name, settings, few, min(LONGEST, PATIENCE * best / each), share)
            first = places.get(name.partition(",")[0], settings.first)
            places[name] = climb(settings.sizes, first, tuner.rank)
            found[name] = settings.solver(places[name])
            ranks[name] = self._rank(name, found[name], LONGEST)
            best, left = min(best, tuner.best), left - tuner.spent
            self.say(f"{name}: {_time(ranks[name][0])}, the best of {tuner.count} settings")
        return found, ranks

    def speed_of(self, name: str) -> Speed:
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
            if callable(keep := getattr(part, "precompute_", None)):
                keep(self.known.train.problem, self.known.train.x0)

    def _search(self, solver: Solver[Any], parts: list[Any], trials: int, rung: int, tail: bool = False) -> None:
        """Search for numbers of parts of a solver, or for those past its learned iterations alone."""
        few = self.known.train.select(slice(0, SEARCHED))
        accuracies = self.accuracies[-1:] if tail else self.accuracies
        for part in parts:
            rows = [part.iterations - 1] if tail else range(part.iterations)
            search_(solver, part, rows, lambda: self._keep(solver), few, accuracies, trials, self.seed + rung)

    def rank_of(self, name: str, quantiles: list[float]) -> Rank:
        """The mean of the milliseconds to `accuracies`, geometric, and the least gap.

        Very many to the last accuracy where it is not reached, infinite where one of the others is not.
        """
        speed, counts = self.speed_of(name), [reached(quantiles, accuracy) for accuracy in self.accuracies]
        *first, last = counts
        many = 2 * max(LONGEST, len(quantiles))
        each = [speed.milliseconds(count) for count in (*first, many if last is None else last)]
        return math.inf if math.inf in each else statistics.geometric_mean(each), min(quantiles)

    def _rank(self, name: str, solver: Solver[Any], most: int = LONGEST // 2) -> Rank:
        return self.rank_of(name, curve(solver, self.validation, most, self.target / 10))

    def _wait(self, solvers: dict[str, Solver[Any]]) -> dict[str, Rank]:
        """Ranks after more iterations: as many as each has time for, where none is there after `LONGEST`."""
        share, ranks = TUNING_SHARE * 6e4 * self.minutes / len(solvers), dict[str, Rank]()
        counts = {name: int(share / self.speed_of(name).each) for name in solvers}
        self.longest = max(LONGEST, min(MAX_TIMES_LONGER * LONGEST, max(counts.values())))
        self.say(f"nothing gets there in {LONGEST} iterations; going on for up to {self.longest}")
        for name, solver in solvers.items():
            ranks[name] = self._rank(name, solver, max(LONGEST, min(self.longest, counts[name])))
        return ranks

    def _choose(self, solvers: dict[str, Any], ranks: dict[str, Rank], test: list[Instances]) -> tuple[str, bool]:
        """The fastest on validation that reaches the target on the test as well; or the nearest, where none does."""
        order = sorted(ranks, key=lambda name: ranks[name])
        reaching = [name for name in order if math.isfinite(ranks[name][0])]
        for name in reaching:
            quantiles = curve(solvers[name], test, self.longest, self.target)
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

    def _finish(
        self,
        winner: str,
        is_reached: bool,
        learned: dict[str, Any],
        classical: dict[str, Any],
        ranks: dict[str, Rank],
        test: list[Instances],
    ) -> Solver[Any]:
        """The answer, saved, with the card that the test instances give it and what can be promised."""
        self.say(f"{winner} it is; testing" + ("" if winner in learned else ": a classical method, tuned, is fastest"))
        solver, problem = (learned | classical)[winner], test[0].problem
        guarded = solver if solver.ends_proven or winner in classical else guard(solver, problem) or solver
        promised, text = self._promise(guarded, test) if is_reached else (None, f"no promise: {self.notes[-1]}")
        shown = sorted(learned, key=lambda name: ranks[name])[:3]
        rows = [self._row(name, learned[name], test, True) for name in shown]
        rows += [self._row(name, solver, test, False) for name, solver in classical.items()]
        card = {
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
        guarded.card = card
        if self.journal.folder is not None:
            save(guarded, self.journal.folder)
        self.say(text)
        return guarded

    def _promise(self, solver: Solver[Any], test: list[Instances]) -> tuple[Promise | None, str]:
        """After the iterations that 95% of the validation and test instances take, from instances of its own."""
        count = reached(curve(solver, [*self.validation, *test], self.longest, self.target), self.target)
        if count is None:
            return None, f"no promise: guarded, {self.longest} iterations are not enough"
        apart = self._apart(PROMISED if self.is_stackable and self.is_solved else PROMISED_ALONE, 3)
        return try_promise(solver, apart, self.target, max(1, count))

    def _row(self, name: str, solver: Solver[Any], test: list[Instances], is_learned: bool) -> dict[str, Any]:
        """Iterations and milliseconds to ten times, one and a tenth of the target: for a batch, and for one alone.

        And what curves are drawn of: the 95% quantile of the gaps after each iteration, and how long these take.
        """
        quantiles = curve(solver, test, self.longest, self.target / 10)
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

    def __init__(
        self, run: _Learning, name: str, settings: Settings, few: list[Instances], most: float, share: float
    ) -> None:
        self.run, self.name, self.settings, self.few = run, name, settings, few
        self.most, self.share = max(1, int(most)), share
        self.count, self.spent, self.best = 0, 0.0, math.inf

    def rank(self, places: tuple[int, ...]) -> Rank:
        """The rank of a setting; the worst there is where no time is left for it, unless it is the first."""
        if self.count and self.spent > self.share:
            return math.inf, math.inf
        accuracy, each = self.run.accuracies[-1], self.run.speed_of(self.name).each
        quantiles = curve(self.settings.solver(places), self.few, self.most, accuracy)
        self.count, self.spent = self.count + 1, self.spent + each * len(quantiles)
        if quantiles[-1] <= accuracy:
            self.best = min(self.best, each * len(quantiles))
        return self.run.rank_of(self.name, quantiles)


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
