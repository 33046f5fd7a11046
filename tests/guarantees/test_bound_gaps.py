import re

import pytest
import torch

from lmd.guarantees import minima
from lmd.guarantees.promises import try_promise
from lmd.problems import Family, LeastSquares, Problem
from lmd.solvers import LBFGS, GradientDescent
from lmd.solvers.base import Solver, State
from lmd.training.instances import Instances, curve, draw_separately

SEEDS = range(60)


class Shared(Family):
    """A batch shares its matrix, which is hard with probability 0.4."""

    def sample(self, batch, generator):
        hard = torch.rand((), generator=generator) < 0.4
        W = torch.diag(torch.logspace(-1 if hard else 0, 0, 4, dtype=torch.float64))
        b = torch.randn(batch, 4, generator=generator, dtype=torch.float64)
        W, b = torch.cat([W, 0.01 * torch.eye(4, dtype=torch.float64)]), torch.cat([b, torch.ones_like(b)], dim=1)
        return LeastSquares(W, b), torch.zeros(batch, 4, dtype=torch.float64)


def test_a_promise_counts_batches_that_share_their_data_once():
    """60% of the class are there after one step; with all instances in one batch it would be all of them or none."""
    batches = draw_separately(Shared(), SEEDS, torch.zeros(1, 4, dtype=torch.float64))
    assert len(batches) == 2
    made, text = try_promise(GradientDescent(0.49995), batches, target=1e-3, iterations=1)
    within = sum(len(x0) for problem, x0 in batches if problem.W[0, 0] > 0.5)
    if made is None:
        assert text == f"no promise: only {within} of 60 test instances are within 0.001 after 1 iterations"
    else:
        assert made.within == within and 0.5 <= made.share < within / 60


class Flat(Problem):
    batched = ("b",)

    def __init__(self, b):
        self.b = b

    def value(self, x):
        weights = torch.logspace(-12, 0, 20, dtype=torch.float64)
        return 1e-3 + (weights * ((1 + (x - self.b) ** 2).sqrt() - 1)).sum(dim=1)


class Flats(Family):
    def sample(self, batch, generator):
        b = 30 * torch.randn(batch, 20, generator=generator, dtype=torch.float64)
        return Flat(b), torch.zeros_like(b)


class Wrong(Flat):
    """A closed form that is none."""

    def minimiser(self):
        return self.b + 1


class Wrongs(Flats):
    def sample(self, batch, generator):
        problem, _ = super().sample(batch, generator)
        return Wrong(problem.b), problem.b.clone()


class Same(Shared):
    def held_out(self, batch, generator):
        return self.sample(batch, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (Flats(), "no promise: the minima of .* test instances are not proven to 0.0001"),
        (Wrongs(), "no promise: values are below the minima"),
        (Same(), "no promise: held_out gives the same instance"),
    ],
)
def test_without_proven_minima_of_different_instances_there_is_no_promise(monkeypatch, family, said):
    monkeypatch.setattr(minima, "_candidates", lambda problem, x0: [(LBFGS(), 20, 100)])
    batches = draw_separately(family, range(12), family.sample(1, torch.Generator())[1])
    made, text = try_promise(GradientDescent(1e-9), batches, target=1e-3, iterations=1)
    assert made is None
    assert re.match(said, text)


class Leap(Solver):
    """Far away after the first step, at the minimiser after the second."""

    step_cost = property(lambda self: {})

    def init(self, problem, x0):
        return State(x0)

    def step(self, problem, state):
        return State(problem.minimiser() + (0 if state.iteration else 1e6), state.iteration + 1)


def test_a_solver_that_a_run_stops_on_its_way_neither_wins_nor_promises():
    batches = draw_separately(Shared(), SEEDS, torch.zeros(1, 4, dtype=torch.float64))
    made, text = try_promise(Leap(), batches, target=1e-3, iterations=2)
    assert made is None and text == "no promise: only 0 of 60 test instances are within 0.001 after 2 iterations"
    solved = [Instances.solve(*batch) for batch in batches]
    assert curve(Leap(), solved, 4, 1e-3)[1:] == [torch.inf]
