import math

import pytest
import torch
from torch import nn

from lmd.problems import LeastSquares
from lmd.solvers.base import Solver, State
from lmd.training.instances import Instances
from lmd.training.tuning import _crossing, climb, search_


class Shrink(Solver):
    """x -> exp(-rate) x, with a rate for each of its rows; the last is that of all later iterations."""

    def __init__(self, iterations=1):
        super().__init__()
        self.iterations, self.rates = iterations, nn.Parameter(torch.full((iterations,), 0.05))

    def search_directions(self):
        return torch.ones(1, 1)

    @torch.no_grad()
    def move_(self, row, change):
        self.rates[row] += change[0]

    @property
    def step_cost(self):
        return {}

    def init(self, problem, x0):
        return State(x0)

    def step(self, problem, state):
        rate = self.rates[min(state.iteration, self.iterations - 1)]
        return State(state.x * torch.exp(-rate), state.iteration + 1)


class Squares(Instances):
    """Points are to get to 0, from 1."""

    def errors(self, x):
        return x.square().sum(dim=1)


@pytest.fixture
def instances():
    problem, zero = LeastSquares(torch.eye(2), torch.zeros(8, 2)), torch.zeros(8, 2)
    return Squares(problem, torch.ones(8, 2), zero, torch.zeros(8), None)


def searched(instances, rows, trials=30, seed=0):
    solver = Shrink(2)
    search_(solver, solver, rows, instances, [1e-1, 1e-3], trials, seed)
    return solver


def test_numbers_that_take_fewer_iterations_are_found(instances):
    solver = searched(instances, [0, 1])
    assert float(solver.rates.detach().min()) > 0.3


def test_only_the_rows_that_are_asked_for_change(instances):
    solver = searched(instances, [1])
    assert float(solver.rates.detach()[0]) == pytest.approx(0.05) and float(solver.rates.detach()[1]) > 0.3


def test_a_change_for_the_worse_is_taken_back(instances):
    class Stubborn(Shrink):
        def move_(self, row, change):
            super().move_(row, -change.abs() - 1)

    solver = Stubborn()
    before = solver.rates.detach().clone()
    search_(solver, solver, [0], instances, [1e-1], 5, 0)
    assert torch.equal(solver.rates.detach(), before)


def test_a_seed_gives_the_same_numbers(instances):
    one, two, other = (searched(instances, [0, 1], 6, seed).rates.detach() for seed in (0, 0, 1))
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_where_a_curve_meets_an_accuracy():
    assert _crossing([1e-3], 1e-2) == 0
    assert _crossing([1.0, 1e-2], 1e-1) == pytest.approx(0.5)
    assert _crossing([1.0, 1e-1, 1e-3], 1e-2) == pytest.approx(1.5)
    near, far = _crossing([1.0, 2e-2], 1e-2), _crossing([1.0, 0.5], 1e-2)
    assert 2 < near < far < math.inf, "not there at all: the farther off the worse, and worse than any that is"


def test_settings_are_climbed_to_the_best_from_any_first_place():
    seen = []

    def rank(places):
        seen.append(places)
        return math.inf, abs(places[0] - 11) + 3 * abs(places[1] - 1)

    for first in ((0, 0), (18, 2), (5, 1)):
        assert climb((19, 3), first, rank) == (11, 1)
    assert len(seen) < 60
