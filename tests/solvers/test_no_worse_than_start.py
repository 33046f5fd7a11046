"""The start is the answer wherever the solver inside is above it; nothing else changes, and nothing gets slower."""

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.problems import TVDenoising, TVInpainting
from lmd.solvers import (
    PDHG,
    BestSoFar,
    GradientDescent,
    LearnedDual,
    LearnedMirrorDescent,
    LearnedSaddle,
    Status,
)
from lmd.solvers.wrappers import NoWorseThanStart


def absolute(x):
    return x.abs().sum(dim=1)


def noisy_images(dtype=torch.float32):
    return torch.rand(2, 1, 12, 12, dtype=dtype, generator=torch.Generator().manual_seed(0))


def test_the_answer_is_the_iterate_or_the_start():
    """|x| with steps of 0.8 from 1, 0.5 and 0.1: each jumps over zero, and the last one away from it."""
    x0 = torch.tensor([[1.0], [0.5], [0.1]], dtype=torch.float64)
    plain = lmd.run(GradientDescent(0.8), absolute, x0, iterations=5).history.values
    kept = lmd.run(NoWorseThanStart(GradientDescent(0.8)), absolute, x0, iterations=5)
    assert bool((plain[1:] > plain[0]).any()) and bool((plain[1:] < plain[0]).any()), "the test should see both"
    assert_close(kept.history.values, torch.minimum(plain, plain[0]))
    assert_close(kept.values, absolute(kept.x))


def test_what_diverges_answers_with_its_start_and_a_nan_is_reported():
    x0 = torch.tensor([[4.0], [1.0]], dtype=torch.float64)
    result = lmd.run(NoWorseThanStart(GradientDescent(3.0)), lambda x: x.square().sum(dim=1), x0, iterations=50)
    assert torch.equal(result.x, x0) and result.status == (Status.FINISHED,) * 2
    result = lmd.run(NoWorseThanStart(GradientDescent(1.5)), lambda x: x.pow(1.5).sum(dim=1), x0, iterations=5)
    assert result.status[0] is Status.NOT_FINITE and result.values[0] == 8


@pytest.mark.parametrize("solver", [LearnedDual(4, 3), LearnedDual(4, 3).double()], ids=["compiled", "float64"])
@pytest.mark.parametrize("iterations", [3, 9])
def test_many_iterations_at_once_are_as_many_steps(solver, iterations):
    problem = TVDenoising(noisy_images(solver.kernels.dtype), 0.3)
    watched, whole = (lmd.run(NoWorseThanStart(solver), problem, None, iterations, record=r) for r in (True, False))
    bare = lmd.run(solver, problem, None, iterations, record=False)
    assert torch.equal(whole.x, bare.x) and torch.equal(whole.dual, bare.dual)
    assert_close(watched.x, whole.x)
    assert whole.evaluations["value"].tolist() == [2, 2]  # the start and the end
    assert watched.evaluations["value"].tolist() == [iterations + 1] * 2
    others = set(bare.evaluations)
    assert all(torch.equal(whole.evaluations[name], bare.evaluations[name]) for name in others)


def test_a_run_evaluates_no_more_than_it_would_without(counting_problem):
    x0 = torch.tensor([[1.0, -2.0], [0.5, 0.0], [3.0, 3.0]], dtype=torch.float64)
    for record in (True, False):
        calls = []
        for solver in (GradientDescent(0.03), NoWorseThanStart(GradientDescent(0.03))):
            counting_problem.calls.clear()
            lmd.run(solver, counting_problem, x0, iterations=5, record=record)
            calls.append(counting_problem.calls["value"])
        assert calls == [6, 6] if record else [2, 2]


def test_what_the_solver_inside_keeps_needs_and_is_trained_for_is_passed_on():
    inner = LearnedSaddle(3, 3, 3)
    for wrap in (NoWorseThanStart, BestSoFar):
        solver = wrap(inner)
        assert (solver.needs, solver.horizon, solver.ends_proven) == (inner.needs, 3, True)
        assert not wrap(LearnedMirrorDescent(lmd.mirrors.Euclidean(), iterations=7)).ends_proven
        mask = (noisy_images() < 0.7).float()
        result = lmd.run(solver, TVInpainting(noisy_images(), mask, 0.3), tolerance=1e-2)
        assert result.status == (Status.TOLERANCE_REACHED,) * 2
        assert bool((result.certificate.bound <= 0.011 * result.values).all())
        moved = wrap(LearnedDual(2, 3)).double()
        assert lmd.run(moved, TVDenoising(noisy_images(torch.float64), 0.3)).x.dtype == torch.float64
    with pytest.raises(CapabilityError, match="which has no operator"):
        lmd.run(NoWorseThanStart(PDHG()), lambda x: x.square().sum(dim=1), torch.ones(1, 2))


def test_only_a_solver_can_be_wrapped():
    with pytest.raises(InputError, match=r"^solver: got float, expected an lmd\.solvers\.Solver$"):
        NoWorseThanStart(0.1)
