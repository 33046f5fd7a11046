import copy

import pytest
import torch

import lmd
from lmd.errors import InputError
from lmd.problems import ControlFamily, LeastSquares
from lmd.solvers import ADMM, LBFGS
from lmd.solvers.initialisers import MeanInitialiser, NetworkInitialiser, effective_rank
from lmd.solvers.learned.gradient import LearnedGradient, Metric
from lmd.solvers.wrappers import Sequential, WithInitialiser

W = torch.tensor([[3.0, 1.0], [0.5, 2.0], [0.0, 0.3]])


def problems(batch=6, seed=0):
    b = torch.randn(batch, 3, generator=torch.Generator().manual_seed(seed))
    return LeastSquares(W, b)


def test_a_linear_start_learns_what_is_linear():
    train, test = problems(50), problems(5, seed=1)
    assert effective_rank(train.data_vector(), 10) == 3
    start = NetworkInitialiser([2], 3, 3)
    start.fit_(train.data_vector(), train.minimiser())
    torch.testing.assert_close(start(test, 5), test.minimiser(), rtol=1e-2, atol=1e-2)


def test_a_network_begins_as_the_linear_start():
    train = problems(50)
    starts = [NetworkInitialiser([2], 3, 3, hidden=hidden) for hidden in (0, 4)]
    for start in starts:
        start.fit_(train.data_vector(), train.minimiser())
    assert torch.equal(*(start(train, 50) for start in starts))


def test_the_mean():
    train, mean = problems(6), MeanInitialiser([2])
    mean.fit_(train.data_vector(), train.minimiser())
    torch.testing.assert_close(mean(train, 6), train.minimiser().mean(dim=0).expand(6, 2))


class Known(MeanInitialiser):
    """Points that are known."""

    def __init__(self, points):
        super().__init__(points.shape[1:])
        self.points = points

    def forward(self, problem, batch):
        return self.points

    def fit_(self, features, optima):
        pass


def test_dual_points_can_be_learned_as_well():
    problem, x0 = ControlFamily().sample(20, torch.Generator().manual_seed(0))
    best = lmd.solve(problem, 1e-5, solver=ADMM())
    result = lmd.run(WithInitialiser(ADMM(), Known(best.x), Known(best.dual)), problem, x0, 1)
    assert float(problem.relative_gap(result.x, result.dual).max()) < 1e-3


def test_data_of_another_size_are_refused():
    with pytest.raises(InputError, match="as the start was made for"):
        NetworkInitialiser([2], 4, 3)(problems(), 6)


@pytest.mark.parametrize("dense", [False, True])
def test_a_metric_begins_near_the_inverse_hessian(dense):
    root = torch.randn(10, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inverse = torch.linalg.inv(root @ root.mT + torch.eye(10, dtype=torch.float64))
    metric = Metric(10, dense).double()
    metric.fit_(inverse)
    found = metric(torch.eye(10, dtype=torch.float64)).detach()
    values = torch.linalg.eigvals(torch.linalg.solve(inverse, found)).real
    assert float(values.min()) > 0
    if dense:
        torch.testing.assert_close(found, inverse)
    else:
        assert float(values.max()) <= 1 + 1e-9  # so that a step of 1 does not overshoot


def test_a_quadratic_is_solved_at_once_in_its_own_metric():
    problem = problems()
    metric = Metric(2)
    metric.fit_(torch.linalg.inv(2 * W.T @ W))
    for solver in (LearnedGradient(metric, 1), LearnedGradient(metric, 1, memory=8)):
        x = lmd.run(solver, problem, torch.ones(6, 2), 1).x
        torch.testing.assert_close(x, problem.minimiser(), rtol=1e-4, atol=1e-4)


def test_quasi_newton_steps_learn_the_curvature():
    problem, poor = problems(), Metric(2, dense=False)
    poor.fit_(torch.linalg.inv(2 * W.T @ W))
    values = {}
    for memory in (0, 5):
        solver = LearnedGradient(poor, 6, memory=memory)
        values[memory] = lmd.run(solver, problem, torch.ones(6, 2), 6).values - problem.minimum()
    assert float(values[5].max()) < 0.01 * float(values[0].max())


def test_what_follows_does_not_begin_where_learned_steps_went_wrong():
    problem = problems()
    wild = LearnedGradient(Metric(2, dense=False), 3)
    with torch.no_grad():
        wild.steps.fill_(3.0)
    result = lmd.run(Sequential(wild, LBFGS()), problem, torch.ones(6, 2), 20, divergence_factor=1e30)
    torch.testing.assert_close(result.values, problem.minimum(), rtol=1e-4, atol=1e-4)


def test_a_solver_in_sequence_needs_a_number_of_iterations():
    with pytest.raises(InputError, match="number of iterations"):
        Sequential(LBFGS(), LBFGS())


def test_costs_are_what_is_declared(counting_problem):
    solvers = [
        LearnedGradient(Metric(2), 2, memory=8),
        WithInitialiser(LearnedGradient(Metric(2), 2), MeanInitialiser([2])),
    ]
    for solver in [*solvers, *(Sequential(solver, LBFGS()) for solver in solvers)]:
        solver, x0 = solver.double(), torch.ones(3, 2, dtype=torch.float64)
        with torch.no_grad():
            state = solver.init(counting_problem, x0)
            assert dict(counting_problem.calls) == solver.init_cost
            for _ in range(4):
                counting_problem.calls.clear()
                state = solver.step(counting_problem, state)
                counted = {name: int(counts.max()) for name, counts in state.evaluations.items()}
                declared = {
                    name: solver.step_cost.get(name, 0) + counted.get(name, 0) for name in ("value", "subgradient")
                }
                assert dict(counting_problem.calls) == {name: count for name, count in declared.items() if count}
        counting_problem.calls.clear()


@torch.no_grad()
def test_weights_that_were_loaded_after_it_was_used_count():
    problem, start, other = problems(), NetworkInitialiser([2], 3, 3, hidden=4), NetworkInitialiser([2], 3, 3, hidden=4)
    start(problem, 6)
    other.linear.bias.fill_(2.0)
    weights = copy.deepcopy(other.state_dict())
    start.load_state_dict({**weights, "directions": start.directions}, assign=True)
    assert torch.equal(start(problem, 6), other(problem, 6))


@torch.no_grad()
def test_one_that_was_used_in_inference_mode_is_trained():
    problem, start = problems(), NetworkInitialiser([2], 3, 3, hidden=4)
    start.fit_(problem.data_vector(), problem.minimiser())
    with torch.inference_mode():
        seen = start(problem, 6)
        made = NetworkInitialiser([2], 3, 3, hidden=4)
        made(problem, 6)
    assert torch.equal(copy.deepcopy(start)(problem, 6), seen)
    with torch.enable_grad():
        start(problem, 6).sum().backward()
    assert float(start.linear.bias.grad.min()) > 0
