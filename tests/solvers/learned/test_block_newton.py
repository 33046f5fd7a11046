import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError
from lmd.problems import LinearClassifier
from lmd.solvers import LBFGS
from lmd.solvers.learned.gradient import LearnedBlockNewton
from lmd.solvers.wrappers import Sequential


def classes(sets=2, count=90, width=4, apart=3.0, ridge=0.0, starts=1):
    """Three classes around points of the simplex; far apart they can be separated."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count).remainder(3).expand(sets, count)
    noise = torch.randn(sets, count, width, dtype=torch.float64, generator=generator)
    return LinearClassifier(noise + apart * torch.eye(width).double()[labels], labels, 3, ridge, starts)


def test_blocks_are_gradient_and_second_derivative_along_each_row():
    problem = classes(apart=1.0, ridge=0.1)
    x = torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradient, matrices = problem.newton_blocks(x, x.new_zeros(()), 1.0)
    assert_close(gradient, problem.subgradient(x))
    for i in range(2):
        whole = torch.autograd.functional.jacobian(lambda y: problem.select([i]).subgradient(y[None])[0], x[i])  # noqa: B023
        for k in range(3):
            assert_close(matrices[i, k], whole[4 * k : 4 * k + 4, 4 * k : 4 * k + 4])
    more = problem.newton_blocks(x, x.new_ones(()), 1.0)[1] - matrices
    assert bool((torch.linalg.eigvalsh(more) > 0).all())


def test_the_pairs_that_are_furthest_from_right_take_part():
    problem = classes(sets=1, count=24)
    x = torch.randn(1, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scores = problem.features[0] @ x.reshape(3, 4).T
    right = scores.softmax(dim=1).gather(1, problem.labels[0][:, None])[:, 0]
    part = problem.minibatch(right.topk(8, largest=False).indices)
    few, caution = problem.newton_blocks(x, x.new_ones(()), 1 / 3)[1], x.new_ones(())
    assert_close(few, part.newton_blocks(x, caution, 1.0)[1] / 3)


def test_on_data_that_can_be_separated_every_step_divides_the_loss():
    solver, start = LearnedBlockNewton().double(), torch.zeros(2, 12, dtype=torch.float64)
    solver.share = 1.0
    values = lmd.run(solver, classes(apart=6.0), start, 12).history.values
    assert bool((values[5:13] < 0.6 * values[4:12]).all()) and float(values[-1].max()) < 1e-3


def test_it_ends_where_the_rest_does():
    problem = classes(apart=1.0, ridge=0.01)
    start = torch.zeros(2, 12, dtype=torch.float64)
    solver = Sequential(LearnedBlockNewton(4).double(), LBFGS())
    assert_close(lmd.run(solver, problem, start, 60).values, lmd.run(LBFGS(), problem, start, 100).values)


def test_derivatives_reach_all_numbers():
    solver, problem = LearnedBlockNewton(3).double(), classes(apart=1.0)
    state = solver.init(problem, torch.zeros(2, 12, dtype=torch.float64))
    for _ in range(3):
        state = solver.step(problem, state)
    problem.value(state.x).sum().backward()
    assert solver.numbers.grad is not None and bool((solver.numbers.grad != 0).all())


def test_a_point_without_a_system_stays():
    solver, problem = LearnedBlockNewton(1).double(), classes(sets=1)
    x = torch.full((1, 12), 1e200, dtype=torch.float64)
    assert bool(solver.step(problem, solver.init(problem, x)).x.isfinite().all())


def test_bad_input():
    with pytest.raises(CapabilityError, match="blocks"):
        lmd.run(LearnedBlockNewton(), lambda x: x.square().sum(dim=1), torch.ones(1, 3), 1)
