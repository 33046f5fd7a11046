"""Constraints as infinite values: runs and training go on beside them, and say how far they are broken."""

import math

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.operators import Identity, Matrix
from lmd.problems import Composite, Family, Problem
from lmd.solvers import PDHG, GradientDescent, LearnedPDHG, Status
from lmd.terms import Box, Squares

F64 = torch.float64


def nearest(c, A=None):
    """F(x) = 1/2 ||x - c||^2 over Ax <= 1."""
    K = Identity() if A is None else Matrix(A)
    return Composite(Squares(c, 0.5), (Box(-math.inf, 1.0), K), start=c)


def test_an_indicator_as_regulariser_runs_and_tells_how_far_it_is_broken():
    A = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=F64)
    c = torch.tensor([[2.0, 2.0], [0.2, 0.1], [3.0, 0.0]], dtype=F64)
    result = lmd.run(PDHG(accelerated=False), nearest(c, A), iterations=300)
    words = {True: Status.NOT_FEASIBLE, False: Status.FINISHED}
    assert result.status == tuple(words[is_broken] for is_broken in (result.violation > 0).tolist())
    assert_close(result.x, torch.tensor([[0.5, 0.5], [0.2, 0.1], [1.0, 0.0]], dtype=F64), atol=1e-6, rtol=0)
    rows = result.history.diagnostics["violation"]
    assert_close(rows[0], torch.tensor([3.0, 0.0, 8**0.5], dtype=F64)) and float(rows[300].max()) < 1e-5
    assert_close(result.values, torch.tensor([2.25, 0.0, 2.0], dtype=F64), atol=1e-5, rtol=0)
    assert_close(result.violation, rows[300])
    broken = result.violation > 0
    assert bool(result.certificate.bound[broken].isinf().all())  # f is infinite there: nothing else would be true
    assert ("constraints: violated" in result.summary()) == bool(broken.any())


class Wall(Problem):
    """x log x - c'x over the box [0, 1], and NaN at once outside."""

    domain = Box(0.0, 1.0)

    def value(self, x):
        return (torch.special.xlogy(x, x) - 2 * x).sum(dim=1)

    def subgradient(self, x):
        return 1 + x.clamp(min=1e-12).log() - 2


class Beyond(GradientDescent):
    """A projection that is off by rounding."""

    def step(self, problem, state):
        inside = super().step(problem, state)
        return lmd.solvers.State(inside.x - 1e-9, inside.iteration)


def test_a_point_just_outside_the_domain_counts_as_the_nearest_one_inside():
    class Falling(Wall):
        def value(self, x):
            return torch.sqrt(x).sum(dim=1)

        def subgradient(self, x):
            return torch.ones_like(x)

    result = lmd.run(Beyond(0.5), Falling(), torch.full((2, 3), 0.7, dtype=F64), iterations=5)
    assert set(result.status) == {Status.FINISHED}
    assert_close(result.x, torch.zeros(2, 3, dtype=F64)) and assert_close(result.values, torch.zeros(2, dtype=F64))
    assert_close(result.violation, torch.full((2,), 3**0.5 * 1e-9, dtype=F64))


def test_a_value_that_is_nowhere_finite_is_still_a_failure():
    with pytest.raises(lmd.InputError, match=r"^x0: got a start where the value of instance \[0\] is not finite"):
        lmd.run(
            GradientDescent(), type("Bad", (Wall,), {"value": lambda self, x: x.sum(dim=1) / 0})(), torch.ones(1, 2)
        )


class NearestFamily(Family):
    def sample(self, batch, generator):
        problem = nearest(2 * torch.randn(batch, 4, dtype=F64, generator=generator))
        return problem, problem.start()


def test_training_with_constraints():
    solver = LearnedPDHG(4, tau=0.3).double()
    result = lmd.train(
        solver, NearestFamily(), updates=60, batch=16, learning_rate=0.02, progress=False, validate_every=60
    )
    assert result.skipped == 0
    first, last = result.curve("validation_value")[1]
    assert last < first
