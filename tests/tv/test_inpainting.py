"""The compiled solve of inpainting against the PyTorch steps beside it, and what it proves."""

import pytest
import torch

import lmd
from lmd import kernels
from lmd.problems import TVInpainting
from lmd.solvers import RelaxedPDHG
from lmd.tv import match

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="there are no compiled kernels here")

F32, F64 = torch.float32, torch.float64


def inpainting(kind=F64, size=(2, 3, 21, 17), isotropic=False, channels=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    smooth = torch.rand(*size[:2], 3, 3, dtype=F64, generator=generator)
    noisy = torch.nn.functional.interpolate(smooth, size=size[2:], mode="bilinear")
    noisy = noisy + 0.05 * torch.randn(size, dtype=F64, generator=generator)
    mask = torch.rand(size[0], channels, *size[2:], generator=generator) > 0.4
    mask[..., 0, 0] = True
    return TVInpainting(noisy.to(kind), mask.to(kind), torch.linspace(0.1, 0.3, size[0]).to(kind), isotropic)


def compiled(problem, count):
    """The answer after so many iterations."""
    with torch.no_grad():
        return match(problem, 1e-3).solve(-1.0, count)


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 21, 17), (1, 1, 1, 9), (1, 2, 9, 1), (3, 1, 5, 16), (1, 1, 40, 33)])
@pytest.mark.parametrize("count", [1, 5, 23, 410])
def test_iterations_are_those_of_the_solver(isotropic, size, count):
    """With steps that are balanced on the way."""
    problem, solver = inpainting(size=size, isotropic=isotropic, channels=size[1]), RelaxedPDHG()
    with torch.no_grad():
        expected = solver.advance(problem, solver.init(problem, problem.start()), count)
    found = compiled(problem, count)
    torch.testing.assert_close((found.x, found.dual), (expected.x, expected.dual), rtol=1e-9, atol=1e-10)
    assert [outcome.iterations for outcome in found.outcomes] == [count] * size[0]


@pytest.mark.parametrize("kind", [F32, F64])
@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5])
def test_what_is_proven_is_what_the_problem_proves(kind, isotropic, tolerance):
    problem = inpainting(kind, isotropic=isotropic)
    result = lmd.solve(problem, tolerance)
    value, gap = problem.certified_gap(result.x, result.dual)
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}
    torch.testing.assert_close(result.certificate.bound, gap, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(result.values.double(), value, rtol=1e-6, atol=0)
    exact = lmd.solve(inpainting(F64, isotropic=isotropic), 1e-10).values
    assert bool((result.certificate.bound >= result.certificate.value - exact - 1e-9 * exact).all())


@pytest.mark.parametrize(("shift", "scale"), [(1000.0, 1.0), (0.0, 1e-6), (0.0, 1e6), (-3.0, 20.0)])
def test_certificates_hold_in_other_units(shift, scale):
    plain = inpainting()
    problem = TVInpainting(scale * plain.noisy + shift, plain.mask, scale * plain.weight)
    result = lmd.solve(problem, 1e-4)
    assert bool((problem.relative_gap(result.x, result.dual) <= 1.0001e-4).all())


def test_an_instance_of_a_batch_is_solved_as_alone():
    problem = inpainting(F32, size=(3, 2, 19, 23), channels=2)
    together = lmd.solve(problem, 1e-3)
    for n in range(3):
        alone = lmd.solve(problem.select(n), 1e-3)
        torch.testing.assert_close(together.x[n : n + 1], alone.x, rtol=0, atol=0)
        assert int(together.iterations[n]) == int(alone.iterations)


def test_threads_change_nothing(monkeypatch):
    monkeypatch.setattr(kernels, "SMALL", 0)
    problem, before = inpainting(F32, size=(1, 3, 30, 20)), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = lmd.solve(problem, 1e-4)
        torch.set_num_threads(2)
        two = lmd.solve(problem, 1e-4)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(one.x, two.x, rtol=0, atol=0)


def test_it_stops_at_the_limit():
    result = lmd.solve(inpainting(F32), 1e-7, iterations=30)
    assert {status.name for status in result.status} == {"FINISHED"}
    assert result.iterations.tolist() == [30, 30]
