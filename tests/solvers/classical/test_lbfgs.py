import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.problems import SVM, Problem
from lmd.solvers import LBFGS, BestSoFar, GradientDescent, Status


class Rosenbrock(Problem):
    """The banana of each instance, steeper or flatter."""

    batched = ("steepness",)

    def __init__(self, steepness):
        self.steepness = torch.as_tensor(steepness, dtype=torch.float64)

    def value(self, x):
        return self.steepness * (x[:, 1] - x[:, 0] ** 2) ** 2 + (1 - x[:, 0]) ** 2


def quadratic(dimension, condition):
    """1/2 x'Ax with eigenvalues from 1 to `condition`, minimum 0."""
    scales = torch.logspace(0, torch.log10(torch.tensor(condition)).item(), dimension, dtype=torch.float64)
    return lambda x: 0.5 * (scales * x.square()).sum(dim=1)


def test_as_good_as_scipys_on_a_quadratic():
    from scipy.optimize import minimize

    problem, x0 = lmd.problems.base.as_problem(quadratic(20, 1e3)), torch.ones(1, 20, dtype=torch.float64)

    def both(x):
        value, gradient = problem.value_and_subgradient(torch.tensor(x)[None])
        return float(value), gradient[0].numpy()

    theirs = minimize(both, x0[0].numpy(), jac=True, method="L-BFGS-B", options={"maxiter": 50, "maxcor": 10})
    ours = lmd.run(LBFGS(), problem, x0, iterations=50)
    assert float(ours.values) < max(10 * theirs.fun, 1e-8)
    assert int(ours.evaluations["value"]) < 2 * theirs.nfev + 20


def test_with_all_its_memory_a_quadratic_is_over_in_as_many_steps_as_it_has_dimensions():
    result = lmd.run(LBFGS(memory=20), quadratic(6, 100.0), torch.ones(1, 6, dtype=torch.float64), iterations=40)
    assert float(result.values) < 1e-20
    short = lmd.run(LBFGS(memory=1), quadratic(6, 100.0), torch.ones(1, 6, dtype=torch.float64), iterations=40)
    assert float(short.values) > float(result.values)


def test_the_values_never_rise_and_each_instance_has_its_own_steps():
    problem, x0 = Rosenbrock([1.0, 100.0, 10.0]), torch.tensor([[-1.2, 1.0]] * 3, dtype=torch.float64)
    result = lmd.run(LBFGS(), problem, x0, iterations=60)
    assert bool((result.history.values.diff(dim=0) <= 0).all())
    assert_close(result.x, torch.ones(3, 2, dtype=torch.float64), atol=1e-6, rtol=0)
    spent = result.evaluations["value"]
    assert len(set(spent.tolist())) == 3 and torch.equal(spent, result.evaluations["subgradient"])


def test_only_instances_that_still_search_are_evaluated():
    asked = []

    class Counting(Rosenbrock):
        def value(self, x):
            asked.append(len(x))
            return super().value(x)

    problem, x0 = Counting([1.0, 100.0, 10.0]), torch.tensor([[-1.2, 1.0]] * 3, dtype=torch.float64)
    solver, state, spent = LBFGS(), None, 0
    state = solver.init(problem, x0)
    for _ in range(10):
        state = solver.step(problem, state)
        spent += int(state.evaluations["value"].sum())
    assert sum(asked) == 3 + spent and min(asked) < 3


def test_a_function_without_smoothness_is_no_obstacle():
    generator = torch.Generator().manual_seed(0)
    x0 = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    result = lmd.run(LBFGS(), lambda x: x.abs().sum(dim=1) + 5 * x.amax(dim=1).abs(), x0, iterations=60)
    assert result.ok and bool((result.values < 1e-2 * result.history.values[0]).all())
    labels = torch.tensor([-1, 1]).repeat(50)
    features = torch.randn(100, 5, dtype=torch.float64, generator=generator) + 0.5 * labels[:, None]
    problem = SVM(features, labels, starts=8)
    x0 = torch.randn(8, 6, dtype=torch.float64, generator=generator)
    result = lmd.run(LBFGS(), problem, x0, iterations=100)
    assert result.ok and bool((result.values < 1.001 * lmd.guarantees.minimum(problem)).all())


def test_a_minimum_is_kept_at_no_cost_once_nothing_lower_is_found():
    solver, problem = LBFGS(), lmd.problems.base.as_problem(lambda x: x.abs().sum(dim=1))
    state = solver.init(problem, torch.tensor([[0.0, 0.0], [1.0, 0.3]]))
    for _ in range(60):
        state = solver.step(problem, state)
    assert state.x[0].tolist() == [0.0, 0.0] and bool((state.x[1].abs() < 1e-3).all())
    assert state.evaluations["value"].tolist() == [0, 0] and bool(state.stuck.all())


def test_beyond_a_wall_it_turns_back(bowls):
    # -log is NaN beyond 0; a step of length 1 from 0.1 could cross it.
    problem = bowls([1.0, 1.0], wall=[1.0, 0.0])
    result = lmd.run(LBFGS(), problem, torch.tensor([[5.0, 0.1]] * 2, dtype=torch.float64), iterations=30)
    assert result.status == (Status.FINISHED, Status.FINISHED)
    assert_close(result.x, torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64), atol=1e-6, rtol=0)


def test_points_of_any_shape():
    x0 = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
    result = lmd.run(LBFGS(), lambda x: (x - 1).square().flatten(1).sum(dim=1), x0, iterations=10)
    assert_close(result.x, torch.ones_like(x0))


def test_evaluations_are_counted_only_while_an_instance_runs():
    problem, x0 = Rosenbrock([1.0, 100.0]), torch.tensor([[-1.2, 1.0]] * 2, dtype=torch.float64)
    states = []
    target = torch.tensor([1e-3, 0.0])
    note = [lambda state, values: states.append(state)]
    result = lmd.run(LBFGS(), problem, x0, iterations=12, target_value=target, callbacks=note)
    stopped = int(result.iterations[0])
    assert result.status[0] is Status.TARGET_REACHED and stopped < 12 == int(result.iterations[1])
    per_step = torch.stack([state.evaluations["value"] for state in states])
    expected = [1 + int(per_step[:stopped, 0].sum()), 1 + int(per_step[:, 1].sum())]
    assert result.evaluations["value"].tolist() == expected


def test_a_wrapper_passes_the_counts_on():
    problem, x0 = Rosenbrock([1.0, 100.0]), torch.tensor([[-1.2, 1.0]] * 2, dtype=torch.float64)
    plain, wrapped = (lmd.run(solver, problem, x0, iterations=8) for solver in (LBFGS(), BestSoFar(LBFGS())))
    assert torch.equal(wrapped.evaluations["subgradient"], plain.evaluations["subgradient"])
    assert torch.equal(wrapped.evaluations["value"], plain.evaluations["value"] + 1)  # known after x_0
    assert "value" not in lmd.run(GradientDescent(1e-3), problem, x0, iterations=2).evaluations


def test_bad_arguments():
    with pytest.raises(InputError, match=r"^memory: got 0"):
        LBFGS(memory=0)


def test_it_is_saved_and_loaded(tmp_path):
    solver = lmd.solvers.load(lmd.solvers.save(LBFGS(memory=3), tmp_path / "solver"))
    assert solver.memory == 3
