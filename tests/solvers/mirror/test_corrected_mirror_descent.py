import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.mirrors import Quadratic
from lmd.solvers import CorrectedMirrorDescent, GradientDescent, LearnedSteps, MirrorDescent, load, run, save


class Crooked(Quadratic):
    """A quadratic mirror whose inverse is off by a shift and a factor."""

    is_exact = False

    def to_primal(self, y, tolerance=None):
        return 0.9 * super().to_primal(y) + 0.3


def problem_at_one():
    return lambda x: (x - 1).square().sum(dim=1)


X0 = torch.tensor([[3.0, -2.0], [0.5, 1.0]], dtype=torch.float64)


def crooked(correction=0.5):
    solver = CorrectedMirrorDescent(Crooked(2), LearnedSteps(3, 0.1, (0.01, 0.5))).double()
    solver.corrections.data.fill_(correction)
    return solver


def test_without_correction_it_is_mirror_descent_and_drifts() -> None:
    corrected, plain = crooked(0.0), MirrorDescent(Crooked(2).double(), 0.1)
    assert_close(run(corrected, problem_at_one(), X0, 3).x, run(plain, problem_at_one(), X0, 3).x)
    far = run(plain, problem_at_one(), X0, 500)
    assert (far.values > 0.01).all(), "the fixed point of an inconsistent round trip is not the minimum"


def test_with_correction_a_minimum_is_a_fixed_point_and_is_reached() -> None:
    solver = crooked(1.0)
    at_minimum = torch.ones(1, 2, dtype=torch.float64)
    assert_close(run(solver, problem_at_one(), at_minimum, 1).x, at_minimum, rtol=0, atol=1e-15)
    assert (run(solver, problem_at_one(), X0, 500).values < 1e-12).all()


def test_past_the_horizon_the_correction_is_whole() -> None:
    assert (run(crooked(0.0), problem_at_one(), X0, 500).values < 1e-12).all()


def test_with_an_exact_mirror_there_is_nothing_to_correct() -> None:
    corrected = CorrectedMirrorDescent(Quadratic(2).double(), 0.1, iterations=3)
    assert_close(run(corrected, problem_at_one(), X0, 20).x, run(GradientDescent(0.1), problem_at_one(), X0, 20).x)


def test_it_trains_saves_and_keeps_its_corrections_in_bounds(tmp_path) -> None:
    solver = crooked()
    lmd.train(solver, lmd.problems.LeastSquaresFamily(), updates=30, batch=16, learning_rate=0.1)
    assert not torch.equal(solver.corrections, torch.full_like(solver.corrections, 0.5))
    assert bool(((solver.corrections >= 0) & (solver.corrections <= 1)).all())
    again = load(save(solver, tmp_path))
    assert_close(run(again, problem_at_one(), X0, 5).x, run(solver, problem_at_one(), X0, 5).x, rtol=0, atol=0)
    other = solver.with_steps(0.2)
    assert other.corrections is solver.corrections
    assert float(other.steps(0)) == 0.2


def test_bad_input() -> None:
    with pytest.raises(InputError, match="iterations: got none"):
        CorrectedMirrorDescent(Quadratic(2), 0.1)
