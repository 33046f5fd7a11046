"""The benchmark of classes: references agree with a second way, problems with their data, failures are one line."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lmd
from lmd.problems import Composite
from lmd.terms import Domain

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from classes import modules  # noqa: E402
from classes.base import SIZES  # noqa: E402

NAMES = tuple(modules())


def draw(name, batch=2, size="small"):
    return modules()[name].sample(size, batch, np.random.default_rng(0))


@pytest.fixture(scope="module")
def runner():
    spec = importlib.util.spec_from_file_location("classes_runner", BENCHMARKS / "classes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["classes_runner"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["classes_runner"]


def test_twenty_classes_have_three_sizes():
    assert len(NAMES) >= 20
    for name, module in modules().items():
        assert tuple(module.SIZES) == SIZES, name


def by_scipy(program):
    from scipy.optimize import linprog

    (A, lower, upper), (low, high) = program.rows, program.bounds
    above, below = np.isfinite(upper), np.isfinite(lower)
    rows, ends = np.vstack([A[above], -A[below]]), np.append(upper[above], -lower[below])
    return linprog(program.q, rows, ends, bounds=np.stack([low, high], axis=1)).x


def by_osqp(program):
    import osqp
    from scipy import sparse

    solver, (A, *ends) = osqp.OSQP(), program.stacked
    P, A = sparse.csc_matrix(np.triu(program.P)), sparse.csc_matrix(A)
    options = {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iter": 100_000, "polishing": True}
    solver.setup(P, program.q, A, *ends, verbose=False, **options)
    return solver.solve(raise_error=False).x


@pytest.mark.parametrize("name", NAMES)
def test_reference_agrees_with_a_second_way(name):
    sample = draw(name, 1)
    program = sample.programs[0] if sample.programs else None
    if program is not None and program.G is None:
        x = (by_osqp if program.P.any() else by_scipy)(program)[: sample.size]
    else:
        problem = sample.build()
        start = problem.problem.start() if hasattr(problem, "problem") else problem.start()
        x = lmd.solve(problem, 1e-7, x0=start).x[0].numpy()
    assert abs(sample.relative_error(0, x)) <= 1e-6
    assert abs(sample.reference(0).error) <= 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_value_of_the_problem_is_the_objective_of_the_data(name):
    sample, generator = draw(name, 3), np.random.default_rng(1)
    if sample.build is None:
        assert sample.reason
        return
    problem = sample.build()
    for _ in range(3):
        points = [(sample.point or (lambda each: each.normal(size=sample.size)))(generator) for _ in range(3)]
        x = torch.from_numpy(np.stack(points)).reshape(3, *sample.shape)
        if isinstance(problem, Composite):  # constraints apart
            parts = [(problem.f, x), *((term, K(x)) for term, K, _ in problem.blocks)]
            values = sum(term.value(z) for term, z in parts if not isinstance(term, Domain))
        else:
            values = problem.value(x)
        expected = [sample.value(i, point) for i, point in enumerate(points)]
        torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_violations_count_as_multipliers_do():
    sample = draw("equality_qp", 1)
    x = sample.reference(0).x
    below = x - 0.01 * np.linalg.lstsq(sample.programs[0].A, sample.programs[0].l, rcond=None)[0]
    assert abs(sample.relative_error(0, x)) < 1e-9
    assert sample.error(0, below) > 0


def test_a_class_that_fails_is_one_line(runner, capsys):
    table = runner.Table(runner.QUICK, None, True, True)
    table.measure("broken", type(sys)("broken"), "small")
    assert "failed: AttributeError" in capsys.readouterr().out
    assert not runner.is_wrong(table.rows[0])


def test_a_certificate_below_the_truth_is_seen(runner):
    sample = draw("lasso", 1)
    result = lmd.solve(sample.build(), 1e-6, iterations=1)
    assert runner.judge(sample, result, 1)["certificates_below"] == 0
    bound = torch.zeros(1, dtype=torch.float64)
    lying = type("Result", (), {"x": result.x, "status": result.status, "certificate": type("C", (), {"bound": bound})})
    assert runner.judge(sample, lying, 1)["certificates_below"] == 1


def test_work_that_is_killed_or_raises_is_a_failure(runner):
    import os

    assert runner.isolated(lambda send: os._exit(3), 5)[-1]["failure"] == "exit code 3"
    assert runner.isolated(lambda send: 1 / 0, 5)[-1]["failure"].startswith("ZeroDivisionError")
    assert runner.isolated(lambda send: send({"x": 1}), 5) == [{"x": 1}]
