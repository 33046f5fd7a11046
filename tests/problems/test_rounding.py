"""A certified gap is never below the true one, however little is left of the contrast beside the offset."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lmd
from lmd.operators import gaussian_kernel
from lmd.problems import Lasso, TVDeblurring, TVDenoising, TVInpainting
from lmd.problems.duality import evaluate, rounding_of_sums
from lmd.solvers import FGP, PDHG


def levels(seed, dtype, ulps, offset, size=(1, 1, 5, 6)):
    """Images whose pixels are an offset and so many units of its last place."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, ulps + 1, size, generator=generator).double()
    unit = torch.finfo(dtype).eps * 2.0 ** torch.tensor(offset, dtype=torch.float64).log2().floor()
    return (offset + unit * steps).to(dtype), generator


def true_value(problem, x, offset):
    """F of a problem whose images are moved down by the offset, in float64: nothing is lost."""
    return problem.value(x.double() - offset)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    ulps=st.integers(1, 3),
    isotropic=st.booleans(),
    weight=st.sampled_from([0.01, 0.3, 1.0, 30.0]),
    iterations=st.sampled_from([1, 7, 100]),
    kind=st.sampled_from(["denoising", "inpainting"]),
)
def test_of_images_with_an_offset_in_float32(seed, ulps, isotropic, weight, iterations, kind):
    offset = 1.4 * 2**24
    y, generator = levels(seed, torch.float32, ulps, offset)
    mask = torch.rand(5, 6, generator=generator) < 0.6
    mask[0, 0] = True
    if kind == "denoising":
        problem, exact = TVDenoising(y, weight, isotropic), TVDenoising(y.double() - offset, weight, isotropic)
    else:
        problem = TVInpainting(y, mask, weight, isotropic)
        exact = TVInpainting(y.double() - offset, mask, weight, isotropic)
    result = lmd.run(PDHG(), problem, iterations=iterations)
    # What min F is, from below and from above, by many steps in float64 on small numbers.
    reference = lmd.run(PDHG(settle=16), exact, iterations=1200)
    upper = exact.value(reference.x)
    gap = true_value(exact, result.x, offset) - upper
    assert bool((result.certificate.bound >= gap).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_room_for_rounding_is_small_beside_the_value(scale, dtype):
    generator = torch.Generator().manual_seed(0)
    y = (scale * torch.rand(1, 1, 16, 16, generator=generator)).to(dtype)
    mask = torch.rand(16, 16, generator=generator) < 0.7
    inside = y / y.max()
    problems = [
        TVDenoising(y, 0.3 * scale),
        TVDenoising(y, 0.3 * scale, isotropic=True),
        TVInpainting(y, mask, 0.3 * scale),
        TVDeblurring(inside, gaussian_kernel(1.0), 0.1),
    ]
    A = scale * torch.randn(10, 20, generator=generator).to(dtype)
    b = (A @ torch.randn(20, generator=generator).to(dtype))[None]
    problems.append(Lasso(A, b, 0.1 * scale**2))
    for problem in problems:
        exact = problem.double()
        result = lmd.run(PDHG(settle=8), exact, iterations=300)
        value, gap = exact.certified_gap(result.x, result.dual)
        plain = exact.gap(result.x, result.dual)
        assert bool((gap > plain).all()) and bool((gap - plain <= 1e-10 * value).all()), type(problem).__name__


def test_a_float32_run_can_prove_more_than_float32_has_digits_for():
    y = torch.rand(1, 1, 24, 24, generator=torch.Generator().manual_seed(0))
    result = lmd.run(FGP(restart=True), TVDenoising(y, 0.3), tolerance=2e-6)
    assert result.status[0].name == "TOLERANCE_REACHED"


def kinds(generator, offset, scale):
    """One problem of each kind in float32, with a point and a dual point near nothing in particular."""

    def random(*shape):
        return torch.randn(shape, generator=generator)

    y = offset + scale * random(3, 1, 9, 8)
    mask = (torch.rand(9, 8, generator=generator) < 0.6).float()
    mask[0, 0] = 1.0
    A = random(12, 20)
    inside = torch.rand(3, 1, 9, 8, generator=generator)
    weight = 0.3 * scale
    image, field = (offset + scale * random(3, 1, 9, 8), 0.4 * scale * random(3, 1, 2, 9, 8))
    yield TVDenoising(y, weight), image, field
    yield TVDenoising(y, weight, isotropic=True, halved=True), image, field
    yield TVInpainting(y, mask, weight), image, field
    yield TVInpainting(y, mask, weight, isotropic=True), image, field
    blurred = TVDeblurring(inside, gaussian_kernel(1.0), 0.1)
    yield blurred, torch.rand(3, 1, 9, 8, generator=generator), 0.1 * random(*blurred.operator(inside).shape)
    yield Lasso(A, random(3, 12), 0.5), random(3, 20), random(3, 12)


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e4, 1.0), (0.0, 1e-4), (3.0, 1e3)])
def test_the_room_for_rounding_covers_it_and_is_needed(offset, scale):
    """In float32, where rounding can be seen: the computed bound less its room is never above the exact one."""
    above = 0
    for seed in range(15):
        for problem, x, dual in kinds(torch.Generator().manual_seed(seed), offset, scale):
            p, exact = problem.g.project(dual), problem.double()
            value, gap, room = evaluate(problem, x, problem.feasible_dual(p))
            room = room + rounding_of_sums(x, p, torch.finfo(x.dtype).eps, value, gap)
            true = exact.value(x.double()) - exact.gap(x.double(), p.double())
            computed = value.double() - gap.double()
            size = 1e-12 * exact.value(x.double())
            assert bool((computed - room.double() <= true + size).all()), type(problem).__name__
            above += int((computed > true + size).sum())
    assert above > 15  # without the room some would be false
