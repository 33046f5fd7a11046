"""Searches for violations of each theorem find none, and find one with a constant halved: benchmarks/adversaries.py."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.guarantees import DescentSafeguard
from lmd.mirrors import Euclidean
from lmd.problems import Composite, LeastSquares
from lmd.solvers import (
    BacktrackedMirrorDescent,
    BestSoFar,
    MirrorDescent,
)
from lmd.terms import L1, Squares

F64 = torch.float64
TRIES, MOST = 640, 2600

path = Path(__file__).parents[2] / "benchmarks" / "adversaries.py"
spec = importlib.util.spec_from_file_location("adversaries", path)
adversaries = importlib.util.module_from_spec(spec)
sys.modules["adversaries"] = adversaries  # dataclasses look their module up
spec.loader.exec_module(adversaries)


@pytest.fixture(params=adversaries.ADVERSARIES, ids=lambda each: each.theorem)
def adversary(request):
    return request.param


def test_no_violation_is_found(adversary):
    hidden = adversary.theorem == "Rounding of the history"  # few of its draws are ill-conditioned enough
    found = adversaries.search(adversary, MOST if hidden else TRIES)
    assert found.violations == 0 and found.worst > 0, found


def test_a_halved_constant_is_caught(adversary):
    for constant in adversary.constants:
        found = adversaries.search(adversary, MOST, halved=constant, enough=1)
        assert found.violations, f"{constant}: {found}"


class TestFallingWidths:
    """F(x) = |x| + x^2 / 2 from x_0 = 0.1, width 1, delay 0.01."""

    def after(self, iterations):
        x0 = torch.tensor([[0.1]], dtype=F64)
        problem = Composite(Squares(torch.zeros_like(x0), 0.5), (L1(1.0), lmd.operators.Identity()), start=x0)
        solver = BacktrackedMirrorDescent(Euclidean(), accelerated=True, width=1.0, delay=0.01)
        state, weights = solver.init(problem, x0), []
        for _ in range(iterations):
            state = solver.step(problem, state)
            weights.append(state.weight)
        return float(problem.value(state.x)), torch.stack(weights)

    @staticmethod
    def widths(first, count):
        return torch.tensor([[0.01 / (0.01 + k)] for k in range(first, first + count)], dtype=F64)

    def test_after_one_step_it_is_that_of_the_step(self):
        gap, weights = self.after(1)
        assert gap == pytest.approx(0.0454, abs=1e-4)
        bound = float(adversaries.accelerated_bound(weights, 0.005, self.widths(0, 1), 1.0))
        assert bound == pytest.approx(0.005 / 0.2778 + 0.5, abs=1e-4)
        printed = float(adversaries.accelerated_bound(weights, 0.005, self.widths(1, 1), 1.0))
        assert printed < gap <= bound

    def test_later_the_widths_that_fell_are_added(self):
        gap, weights = self.after(3)
        w, A = self.widths(0, 3), weights
        expected = (0.005 + (A[0] * (w[0] - w[1]) + A[1] * (w[1] - w[2])) / 2) / A[2] + w[2] / 2
        bound = adversaries.accelerated_bound(A, 0.005, w, 1.0)[-1]
        assert float(bound) == pytest.approx(float(expected)) and gap <= float(bound)

    def test_a_smooth_function_has_none(self):
        weights = torch.tensor([[0.5], [2.0]], dtype=F64)
        assert adversaries.accelerated_bound(weights, 3.0, torch.zeros(2, 1), 1.0).tolist() == [[6.0], [1.5]]


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("smoothness", [1e8, 1e13, 1e20])
def test_backtracking_needs_no_constant_however_large_it_is(accelerated, smoothness):
    """More than 40 doublings take more than one iteration, and no more."""
    solver = BacktrackedMirrorDescent(Euclidean(), accelerated=accelerated)
    problem = LeastSquares(torch.tensor([[smoothness**0.5]], dtype=F64), torch.zeros(1, 1, dtype=F64))
    result = lmd.run(solver, problem, torch.ones(1, 1, dtype=F64), 30)
    assert float(result.values) < 1e-6 * smoothness


@pytest.mark.parametrize(
    "learned",
    [BacktrackedMirrorDescent(Euclidean(), accelerated=True), BestSoFar(MirrorDescent(Euclidean(), 1.05))],
    ids=["accelerated", "best so far"],
)
def test_a_safeguard_measures_the_gradient_at_its_own_point(learned):
    """Theorem 9 needs ||g|| at x, where these solvers notice that of another point."""
    problem = LeastSquares(torch.diag(torch.tensor([0.2, 1.0], dtype=F64)), torch.zeros(1, 2, dtype=F64))
    solver = DescentSafeguard(learned)
    state = solver.init(problem, torch.tensor([[3.0, 1.0]], dtype=F64))
    for _ in range(4):
        inner = learned.step(problem, state.inner)
        squared = problem.subgradient(state.x).square().sum(dim=1)
        assert_close(solver._squared_norm(problem, state, inner), squared)
        state = replace(state, x=inner.x, inner=inner)
