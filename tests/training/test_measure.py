import pytest
import torch

from lmd.problems import LeastSquares
from lmd.solvers.base import Solver, State
from lmd.training import instances
from lmd.training.instances import curve, milliseconds, quantile, reached, speed


class Clock(Solver):
    """A start of 3 ms, and steps of 2 ms, on a clock of its own, which now and then is late."""

    def __init__(self):
        super().__init__()
        self.now, self.calls = 0.0, 0

    step_cost = property(lambda self: {})

    def init(self, problem, x0):
        self.calls += 1
        self.now += 3e-3 + (1.0 if self.calls % 4 == 0 else 0)
        return State(x0)

    def step(self, problem, state):
        self.now += 2e-3
        return State(state.x / 10, state.iteration + 1)


@pytest.fixture
def solver(monkeypatch):
    solver = Clock()
    monkeypatch.setattr(instances, "clock", lambda: solver.now)
    return solver


PROBLEM, X0 = LeastSquares(torch.eye(2), torch.ones(4, 2)), torch.ones(4, 2)


class Near:
    problem, x0, minima = PROBLEM, X0, torch.ones(4)

    def errors(self, x):
        return x[:, 0]


def test_what_a_solve_takes_is_told_from_what_disturbs_it(solver):
    assert milliseconds(solver, [Near()], 5) == pytest.approx(13)
    found = speed(solver, [Near()], 5)
    assert found == {"start": pytest.approx(3), "each": pytest.approx(2)}


def test_curves_end_where_they_are_told_to(solver):
    found = curve(solver, [Near()], 10, 5e-4)
    assert found == pytest.approx([1, 1e-1, 1e-2, 1e-3, 1e-4]) and reached(found, 1e-2) == 2
    assert len(curve(solver, [Near()], 2, 5e-4)) == 3 and reached(found, 1e-9) is None


def test_several_batches_count_as_one(solver):
    class Far(Near):
        x0 = 10 * X0

    assert curve(solver, [Near(), Far()], 10, 5e-3) == pytest.approx([10, 1, 1e-1, 1e-2, 1e-3])


def test_the_quantile_is_one_of_the_errors():
    assert quantile(torch.arange(1.0, 101)) == 95 and quantile(torch.tensor([2.0])) == 2
