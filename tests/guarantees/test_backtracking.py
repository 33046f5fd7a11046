"""Certificates of backtracked mirror descent: never below the true gap, and near it on well-conditioned quadratics."""

from functools import partial

import pytest
import torch

import lmd
from lmd.guarantees.certify import Record, accelerated_certificate, relative_certificate
from lmd.mirrors import Cosine, Mirror, Quadratic, Rotation, Separable
from lmd.problems import LeastSquares, TVDenoising
from lmd.solvers import BacktrackedMirrorDescent

accelerated_descent = partial(BacktrackedMirrorDescent, accelerated=True)
KINDS = [BacktrackedMirrorDescent, accelerated_descent]


def shaken(mirror, seed, dtype=torch.float64):
    """The mirror with random parameters within its constraints."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in mirror.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator).to(parameter.dtype))
    for module in mirror.modules():
        if hasattr(module, "constrain_"):
            module.constrain_()
    return mirror.to(dtype)


def random_problem(seed, batch, dimension, dtype, spread=None):
    """Least squares with singular values between 1 and sqrt(spread), or any; scales from 1e-3 to 1e3."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(dimension, dimension, dtype=torch.float64, generator=generator)
    if spread is not None:
        left, _, right = torch.linalg.svd(W)
        W = left @ torch.diag(torch.linspace(1, spread, dimension, dtype=torch.float64).sqrt()) @ right
    scale = 10 ** (3 * torch.randn((), dtype=torch.float64, generator=generator).clamp(-1, 1))
    b, x0 = (scale * torch.randn(batch, dimension, dtype=torch.float64, generator=generator) for _ in range(2))
    return LeastSquares(W.to(dtype), b.to(dtype)), x0.to(dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_certificate_is_below_the_true_gap(kind, dtype):
    """250 problems for each of the four cases, 1000 in all, with ten mirrors each."""
    for seed in range(10):
        dimension = 2 + seed % 4
        start = Quadratic(dimension, floor=0.2) if seed % 3 == 0 else Separable(Rotation(dimension), knots=seed % 3)
        problem, x0 = random_problem(seed, 25, dimension, dtype)
        result = lmd.run(kind(shaken(start, seed, dtype)), problem, x0, 3 + seed)
        exact = problem.double()
        gap = exact.value(result.x.double()) - lmd.guarantees.minimum(exact)
        record = Record.of(result)
        for certificate in (result.certificate, relative_certificate(record), accelerated_certificate(record)):
            assert bool((certificate.bound >= gap).all()), certificate.explain()


@pytest.mark.parametrize("kind", KINDS)
def test_on_well_conditioned_quadratics_it_is_within_a_factor_of_ten(kind):
    for seed in range(10):
        problem, x0 = random_problem(seed, 20, 5, torch.float64, spread=10)
        result = lmd.run(kind(shaken(Separable(Rotation(5), 2), seed)), problem, x0, 10)
        gap = result.values - lmd.guarantees.minimum(problem)
        assert bool((result.certificate.bound <= 10.1 * gap + 1e-12 * problem.value(x0)).all())


@pytest.mark.parametrize(
    ("kind", "theorem"),
    [(BacktrackedMirrorDescent, relative_certificate), (accelerated_descent, accelerated_certificate)],
)
def test_the_own_theorem_of_the_method_proves_something(kind, theorem):
    problem, x0 = random_problem(0, 5, 4, torch.float64, spread=10)
    result = lmd.run(kind(shaken(Separable(Rotation(4), 2), 0)), problem, x0, 400)
    assert bool((theorem(Record.of(result)).bound < 0.1 * (problem.value(x0) - lmd.guarantees.minimum(problem))).all())


def test_smoothed_problems_are_certified_by_their_gap():
    noisy = torch.rand(2, 1, 12, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    problem = TVDenoising(noisy, 0.3)
    mirror = Separable(Cosine(4)).double()
    short, long = (lmd.run(accelerated_descent(mirror), problem, noisy, k) for k in (20, 400))
    gap = long.values - lmd.guarantees.minimum(problem)
    assert bool((gap < 2e-3 * lmd.guarantees.minimum(problem)).all())
    assert bool((long.certificate.bound >= gap).all())
    assert bool((long.certificate.bound < short.certificate.bound).all())
    assert "duality" in long.certificate.theorem


class Cancelling(Quadratic):
    """Its divergence is the difference of potentials that defines it, in which digits cancel."""

    divergence = Mirror.divergence


@pytest.mark.parametrize(
    ("kind", "theorem"),
    [(BacktrackedMirrorDescent, relative_certificate), (accelerated_descent, accelerated_certificate)],
)
def test_there_is_room_for_divergences_that_cancel(kind, theorem):
    problem = LeastSquares(torch.eye(2), torch.full((1, 2), 100.0))
    x0 = torch.full((1, 2), 101.0)
    results = [lmd.run(kind(mirror(2).requires_grad_(False)), problem, x0, 4) for mirror in (Quadratic, Cancelling)]
    own, cancelling = (Record.of(result) for result in results)
    assert not bool(own.divergence_rounding.any())
    assert bool((cancelling.divergence_rounding > 64 * torch.finfo(torch.float32).eps * 1e4).all())
    bound = theorem(cancelling, divergence=1.0).bound
    vars(cancelling)["divergence_rounding"] = torch.zeros(1, dtype=torch.float64)
    assert bool((bound > 1.01 * theorem(cancelling, divergence=1.0).bound).all())


def test_what_a_rule_misses_counts_for_the_distances_too():
    """Of a float64 run whose divergences are off by 1: after one step B(x*, x_1) is at most B(x*, x_0) + 1."""
    problem = LeastSquares(torch.eye(1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
    solver = BacktrackedMirrorDescent(Quadratic(1).double().requires_grad_(False))
    record = Record.of(lmd.run(solver, problem, torch.full((1, 1), 1e-3, dtype=torch.float64), 2))
    vars(record)["divergence_rounding"] = torch.ones(1, dtype=torch.float64)
    vars(record)["_strong_convexity"] = None
    vars(record)["_dual_size"] = torch.full((1,), 1e13, dtype=torch.float64)
    rounding = float(record.step_rounding(record.steps)[0])
    lower = float(relative_certificate(record, divergence=0.0).lower_bound)
    assert lower < -float(record.relative_smoothness[0]) * (1 + 2**0.5 * rounding)
