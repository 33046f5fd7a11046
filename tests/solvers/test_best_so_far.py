import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.solvers import PDHG, BestSoFar, GradientDescent, LearnedMirrorDescent, Status


def absolute(x):
    return x.abs().sum(dim=1)


def test_is_the_best_iterate_of_the_solver_inside():
    """|x| with steps of 0.8 from 1, 0.5 and 3: each jumps over zero at its own time."""
    x0 = torch.tensor([[1.0], [0.5], [3.0]], dtype=torch.float64)
    plain = lmd.run(GradientDescent(0.8), absolute, x0, iterations=7).history.values
    best = lmd.run(BestSoFar(GradientDescent(0.8)), absolute, x0, iterations=7)
    assert bool((plain[1:] > plain[:-1]).any()), "the test should see a step that ascends"
    assert_close(best.history.values, plain.cummin(dim=0).values)
    assert_close(best.values, absolute(best.x))


def test_what_the_solver_inside_needs_and_is_trained_for_is_passed_on(least_squares):
    problem, x0 = least_squares
    with pytest.raises(CapabilityError, match="which has no operator"):
        lmd.run(BestSoFar(PDHG()), problem, x0)
    assert BestSoFar(LearnedMirrorDescent(lmd.mirrors.Euclidean(), iterations=7)).horizon == 7


def test_a_nan_inside_is_reported_and_the_best_point_kept():
    """x^1.5 from 4 and from 100: the first steps over the edge, where the derivative is a NaN."""
    x0 = torch.tensor([[4.0], [100.0]], dtype=torch.float64)
    result = lmd.run(BestSoFar(GradientDescent(1.5)), lambda x: x.pow(1.5).sum(dim=1), x0, iterations=5)
    assert result.status == (Status.NOT_FINITE, Status.FINISHED)
    assert result.iterations.tolist() == [2, 5]
    assert result.x[0] == 4 and result.values[0] == 8 and result.x[1] < 100


def test_only_a_solver_can_be_wrapped():
    with pytest.raises(InputError, match=r"^solver: got float, expected an lmd\.solvers\.Solver$"):
        BestSoFar(0.1)


def test_a_run_does_not_evaluate_again_what_the_step_knows(counting_problem):
    x0 = torch.tensor([[1.0, -2.0], [0.5, 0.0], [3.0, 3.0]], dtype=torch.float64)
    result = lmd.run(BestSoFar(GradientDescent(0.03)), counting_problem, x0, iterations=5)
    assert counting_problem.calls["value"] == 6  # once at the start and once in each iteration
    assert_close(result.values, counting_problem.value(result.x))
