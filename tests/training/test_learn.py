import importlib
import math
import shutil
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch

import lmd
from lmd.cli.program import main
from lmd.errors import InputError, TrainingWarning
from lmd.guarantees import Monitor, Promise
from lmd.problems import ControlFamily, Family, LeastSquares, Problem
from lmd.reproduction.experiments.check import import_family
from lmd.reproduction.experiments.tour import card_rows
from lmd.solvers import GradientDescent
from lmd.terms import Box
from lmd.training.instances import Instances, draw
from lmd.training.learn import _Learning
from lmd.training.proposals import Grid

settings, tuning = (importlib.import_module(f"lmd.training.{name}") for name in ("learn", "tuning"))


SMALL = """
import importlib

settings = importlib.import_module("lmd.training.learn")
settings.N_TRAINING, settings.N_VALIDATION, settings.N_TEST, settings.N_PROMISE = 40, 20, 20, 60
settings.N_RUNGS, settings.MAX_TRAINING_FACTOR, settings.DIVISOR = 2, 1, 1
settings.MIN_UPDATES, settings.MAX_UPDATES, settings.MAX_INITIALISER_UPDATES = 2, 10, 120
tuning = importlib.import_module("lmd.training.tuning")
settings.N_TIMED_UPDATES = tuning.N_TIMED_UPDATES = tuning.N_TAIL_TRIALS = 1
learns = settings.propose_learned
settings.climb = lambda sizes, first, rank: (rank(first), first)[1]
settings.propose_learned = lambda *given: dict(list(learns(*given).items())[:2])
"""
"""Few instances, settings, solvers to learn and updates: seconds. For processes of their own as well."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for module in (settings, tuning):
        for name, value in vars(module).items():
            if not name.startswith("__"):
                monkeypatch.setattr(module, name, value)  # and that it is again afterwards
    exec(SMALL, {})
    torch.set_num_threads(1)


class Control(ControlFamily):
    """Small enough for a test."""

    def __init__(self):
        super().__init__(states=2, inputs=1, horizon=5)


class KilledError(Exception):
    pass


def kill_at(word, times=1):
    seen = []

    def say(line):
        seen.append(word in line)
        if sum(seen) == times and seen[-1]:
            raise KilledError

    return say


def test_it_returns_a_solver_with_its_card_and_saves_it(tmp_path):
    lines = []
    solver = lmd.learn(Control(), minutes=1, out=tmp_path / "run", progress=lines.append)
    card = solver.card
    assert card["winner"] in card["tried"] and card["promise"]["runs"] == 60 and card["reached"]
    assert any("leads with" in line for line in lines) and lines[-1] == card["promised"]
    assert not Monitor(Promise(**card["promise"])).see(torch.zeros(10))
    assert {row["method"] for row in card["rows"]} >= {card["winner"], "ADMM", "PDHG", "ADMM, mean start"}
    columns, rows = card_rows(card)
    assert len(columns) == 4 and len(rows) == len(card["rows"])
    again = lmd.solvers.load(tmp_path / "run")
    problem, x0 = Control().sample(5, torch.Generator().manual_seed(9))
    results = [lmd.run(each, problem, x0, 30) for each in (solver, again)]
    assert torch.equal(results[0].x, results[1].x) and again.card == card
    assert float(problem.relative_gap(results[0].x, results[0].dual).max()) < 1e-2


class Bowl(Problem):
    """A quadratic per instance, on a box where `domain` is set."""

    batched = ("centre",)

    def __init__(self, centre, bend=1.0):
        self.centre, self.bend = centre, bend

    def value(self, x):
        return 1 + self.bend * (x - self.centre).square().sum(dim=1)


class Bowls(Family):
    name = "bowls"
    bend = 1.0

    def sample(self, batch, generator):
        return Bowl(torch.randn(batch, 3, generator=generator), self.bend), torch.zeros(batch, 3)


class InABox(Bowls):
    def sample(self, batch, generator):
        problem, x0 = super().sample(batch, generator)
        problem.domain = Box(-0.5, 0.5)
        return problem, x0


@pytest.mark.parametrize("family", [Bowls(), InABox()])
def test_a_problem_with_one_method_is_enough(family):
    solver = lmd.learn(family, minutes=1)
    problem, x0 = family.sample(5, torch.Generator().manual_seed(9))
    best = problem.centre.clamp(-0.5, 0.5) if problem.domain else problem.centre
    torch.testing.assert_close(lmd.run(solver, problem, x0, 60).x, best, rtol=1e-2, atol=1e-2)


def test_where_nothing_reaches_the_target_the_nearest_is_the_answer_and_a_warning_says_so(monkeypatch):
    measured = settings.curve
    monkeypatch.setattr(settings, "curve", lambda *given: [0.5 + gap for gap in measured(*given)][:9])
    with pytest.warns(TrainingWarning, match=r"no solver gets 95% of the validation instances within 0.001 .* nearest"):
        solver = lmd.learn(Bowls(), minutes=1)
    card = solver.card
    assert not card["reached"] and "promise" not in card and card["promised"].startswith("no promise: no solver")
    assert set(card["tried"].values()) == {None} and len(card["notes"]) >= 1


@pytest.mark.parametrize(("fails", "winner"), [((), "slow"), (("slow",), "fast"), (("slow", "fast"), "slow")])
def test_a_solver_that_fails_the_test_is_not_the_answer(monkeypatch, fails, winner):
    """Of two that reach the target on validation; neither on the test is said as loudly."""
    monkeypatch.setattr(settings, "curve", lambda solver, *rest: [1.0] if solver in fails else [1e-9])
    run, said = object.__new__(_Learning), []
    run.max_iterations, run.target, run.notes, run.say = 8, 1e-3, [], said.append
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ranks = {"never": (math.inf, 1e-9), "slow": (1.0, 1e-4), "fast": (2.0, 1e-3)}
        chosen = run._choose({name: name for name in ranks}, ranks, [])
    assert chosen == (winner if len(fails) < 2 else "never", len(fails) < 2)
    assert len(caught) == min(1, len(fails)) and said == run.notes


def test_each_method_has_its_share_of_the_time_to_tune(monkeypatch):
    """One that takes all of it leaves the next its share, and what is found is ranked in any case."""
    monkeypatch.undo()
    run = object.__new__(_Learning)
    run.minutes, run.target, run.accuracies, run.say = 1e-3, 1e-3, (1e-2, 1e-3, 1e-4), lambda line: None
    run.measured = {"speeds": {name: {"start": 0.0, "each": 1.0} for name in ("slow", "quick")}}
    run.validation = [Instances.solve(*draw(Bowls(), 8, 0))]
    run.grids = {
        "slow": Grid(GradientDescent, ((1e-9, 2e-9, 3e-9, 4e-9, 5e-9),), (2,)),
        "quick": Grid(GradientDescent, ((1e-9, 1e-3, 0.01, 0.1, 0.4, 0.5),), (2,)),
    }
    _, ranks = run._tune()
    assert math.isinf(ranks["slow"][0]) and math.isfinite(ranks["quick"][0])


def test_instances_are_drawn_one_by_one_and_no_two_share_a_seed():
    class Shared(Bowls):
        def sample(self, batch, generator):
            bend = 1.0 + float(torch.rand((), generator=generator))
            return Bowl(torch.randn(batch, 3, generator=generator), bend), torch.zeros(batch, 3)

    run = object.__new__(_Learning)
    run.family, run.seed, run.like, run.divisor = Shared(), 0, torch.zeros(1, 3), 1
    assert len(run._draw_separately(20, 3)) == 20
    validation = run._draw_evaluation(20, 1)
    assert not run.is_stackable and len({each.problem.bend for each in validation}) == settings.MAX_BATCHES
    run.family = Bowls()
    assert [len(each.x0) for each in run._draw_evaluation(20, 1)] == [20] and run.is_stackable
    seeds = [run._seed(kind, place) for kind in range(4) for place in range(400)]
    assert len(set(seeds)) == len(seeds)


class Deaf(Bowls):
    def sample(self, batch, generator):
        return Bowl(torch.ones(batch, 3)), torch.zeros(batch, 3)


class Stubborn(Bowls):
    def sample(self, batch, generator):
        return Bowl(torch.randn(batch, 3)), torch.zeros(batch, 3)


class Shifting(Bowls):
    def sample(self, batch, generator):
        return Bowl(torch.randn(batch, batch, generator=generator)), torch.zeros(batch, batch)


class Turning(Bowls):
    """One dtype after the other."""

    calls = 0

    def sample(self, batch, generator):
        self.calls += 1
        dtype = (torch.float32, torch.float64)[self.calls > 5]
        return Bowl(torch.randn(batch, 3, generator=generator, dtype=dtype)), torch.zeros(batch, 3, dtype=dtype)


class Whole(Bowls):
    def sample(self, batch, generator):
        return Bowl(torch.randn(batch, 3, generator=generator)), torch.zeros(batch, 3, dtype=torch.int64)


class Holes(Bowls):
    bend = float("nan")


class Of(Bowls):
    """With a function of their own of x and the centres."""

    def __init__(self, function):
        self.kind = type("Own", (Bowl,), {"value": lambda own, x: function(x, own.centre)})

    def sample(self, batch, generator):
        problem, x0 = super().sample(batch, generator)
        problem.__class__ = self.kind
        return problem, x0


class Hills(Bowls):
    bend = -1.0


class Other(Bowls):
    def sample(self, batch, generator):
        return super().sample(batch + 1, generator)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (Deaf(), "the same sample for two seeds"),
        (Stubborn(), "differs for one seed"),
        (Shifting(), "one shape and dtype"),
        (Turning(), "one shape and dtype"),
        (Whole(), "floating-point"),
        (Holes(), "values that are not finite"),
        (Of(lambda x, c: (x - c).square().sum(dim=1)), "minima of 0"),
        (Of(lambda x, c: (x - c).square().sum(dim=1) + c.mean()), "alone has another value"),
        (Hills(), "not convex"),
        (Other(), "as asked for"),
        ("bowls", "lmd.problems.Family"),
    ],
)
def test_a_family_that_cannot_be_learned_is_refused_in_one_line(tmp_path, family, said):
    with pytest.raises(InputError, match=said) as error:
        lmd.learn(family, minutes=1, out=tmp_path / "run")
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_values_that_fall_without_bound_are_refused(tmp_path):
    with pytest.raises(InputError, match="without bound"):
        lmd.learn(Of(lambda x, c: (x * c).sum(dim=1)), minutes=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_budget_that_is_too_small_says_how_much_it_takes(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "MIN_UPDATES", 10**6)
    with pytest.raises(InputError, match=r"minutes: got 0.01, expected at least \d"):
        lmd.learn(Bowls(), minutes=0.01, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    with pytest.raises(KilledError):
        lmd.learn(Bowls(), minutes=1, out=tmp_path, progress=kill_at("round 1"))
    with pytest.raises(InputError, match="holds a run"):
        lmd.learn(Bowls(), minutes=1, out=tmp_path)
    with pytest.raises(InputError, match="target"):
        lmd.learn(Bowls(), minutes=1, out=tmp_path, target=1e-2, resume=True)
    with pytest.raises(InputError, match="resume"):
        lmd.learn(Bowls(), resume=True)


def test_families_by_name(monkeypatch, tmp_path):
    (tmp_path / "my_own_module.py").write_text(
        "from lmd.problems import ControlFamily\nmade = ControlFamily()\nx = 1\n"
    )
    monkeypatch.chdir(tmp_path)
    assert isinstance(import_family("my_own_module:ControlFamily"), ControlFamily)
    assert isinstance(import_family("my_own_module:made"), ControlFamily)
    for name in ("my_own_module:x", "my_own_module:y", "my_own_module", "no_such_module:x"):
        with pytest.raises(InputError, match="family"):
            import_family(name)


def test_where_a_closed_form_is_known_it_is_what_is_compared_with():
    W = torch.tensor([[2.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    problem = LeastSquares(W, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    instances = Instances.solve(problem, torch.zeros(4, 2))
    torch.testing.assert_close(instances.optima, problem.minimiser())


def same(one, two):
    one, two = one.state_dict(), two.state_dict()
    return one.keys() == two.keys() and all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def killed_while_training(folder):
    """`lmd learn` in a process of its own, which ends by SIGKILL when it has begun to train."""
    code = f"{SMALL}\nfrom lmd.cli.program import main\nmain()"
    words = [sys.executable, "-c", code, "learn", "my_control:family", "--minutes", "1", "--out", "run"]
    child = subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL)
    while child.poll() is None and not (folder / "run" / "tried").exists():
        time.sleep(0.02)
    child.kill()
    assert child.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_killed_at_any_moment_the_command_line_ends_with_the_same_solver(monkeypatch, tmp_path, capsys):
    (tmp_path / "my_control.py").write_text(
        "from lmd.problems import ControlFamily\nfamily = ControlFamily(states=2, inputs=1, horizon=3)\n"
    )
    monkeypatch.chdir(tmp_path)
    killed_while_training(tmp_path)
    (tmp_path / "whole").mkdir()
    shutil.copy(tmp_path / "run" / "learn.json", tmp_path / "whole")  # what was measured, and nothing else
    family = import_family("my_control:family")
    for moment in ("where to start", "round 2"):
        with pytest.raises(KilledError):
            lmd.learn(family, minutes=1, out="run", resume=True, progress=kill_at(moment))
    with pytest.raises(SystemExit) as outcome:
        main(["learn", "my_control:family", "--minutes", "1", "--out", "run", "--resume"])
    said = capsys.readouterr().out
    assert outcome.value.code == 0 and "it is: 20 instances together" in said and "with confidence 95%" in said
    whole, pieces = lmd.learn(family, minutes=1, out="whole", resume=True), lmd.solvers.load("run")
    assert whole.card["winner"] == pieces.card["winner"] and same(whole, pieces)
    assert whole.card["tried"] == pieces.card["tried"], "scores of all that was tried, of which one was the best"


def test_what_the_clock_says_decides_and_nothing_else_does(monkeypatch):
    """Two runs by one seed and one clock are the same to the last number."""
    monkeypatch.setattr(tuning.Trainer, "update_seconds", lambda self, solver: (0.01, 0.001))
    monkeypatch.setattr(_Learning, "_initialiser_seconds", lambda self, solver, wanted: 0.01)
    monkeypatch.setattr(settings, "speed", lambda solver, *rest: {"start": 0.01, "each": 0.1})
    one, two = (lmd.learn(Bowls(), minutes=1) for _ in range(2))
    assert one.card["learned"] and one.card["tried"] == two.card["tried"] and same(one, two)


def test_a_module_without_the_family_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as outcome:
        main(["learn", "my_control:nothing", "--out", "other"])
    assert outcome.value.code == 2 and capsys.readouterr().err.count("\n") == 1
