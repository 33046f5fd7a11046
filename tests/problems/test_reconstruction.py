import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.operators import Blur, ParallelBeam, gaussian_kernel, motion_kernel
from lmd.problems import TomographyFamily, TVDeblurring, TVDeblurringFamily, TVTomography
from lmd.problems.base import autograd_subgradient
from lmd.solvers import PDHG
from lmd.terms.wrappers import join

FORMS = pytest.mark.parametrize("isotropic", [False, True], ids=["anisotropic", "isotropic"])
KINDS = pytest.mark.parametrize("kind", ["circular", "replicate", "tomography"])


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(kind, shape=(2, 2, 5, 6), seed=0, **arguments):
    """A problem on a step between 0.1 and 1, so that the box matters, with noise; weights per image."""
    image = (0.1 + 0.9 * torch.linspace(0, 1, shape[3], dtype=torch.float64).round()).expand(shape)
    weight = torch.linspace(0.05, 0.2, shape[0], dtype=torch.float64)
    if kind == "tomography":
        seen = ParallelBeam(*shape[2:], angles=4)(image)
        return TVTomography(seen + 0.1 * random(*seen.shape, seed=seed), shape[2:], weight, **arguments)
    kernel = gaussian_kernel(0.7, 3)
    seen = Blur(kernel, *shape[2:], kind)(image)
    return TVDeblurring(seen + 0.1 * random(*seen.shape, seed=seed), kernel, weight, border=kind, **arguments)


@functools.cache
def solved(kind, shape, isotropic):
    return lmd.guarantees.optimum(make(kind, shape, isotropic=isotropic))


def tv(x, isotropic):
    """Total variation by its formula, for images that are padded with their own border."""
    down = torch.diff(x, dim=2, append=x[:, :, -1:])
    right = torch.diff(x, dim=3, append=x[..., -1:])
    return ((down.square() + right.square()).sqrt() if isotropic else down.abs() + right.abs()).sum((1, 2, 3))


def inside(x):
    return x.clamp(0, 1)


@KINDS
@FORMS
class TestFormulas:
    @pytest.mark.parametrize("halved", [False, True])
    def test_value(self, kind, isotropic, halved):
        problem, x = make(kind, isotropic=isotropic, halved=halved), inside(random(2, 2, 5, 6, seed=5))
        misfit = (problem.forward(x) - problem.noisy).square().sum((1, 2, 3))
        expected = (misfit + problem.weight * tv(x, isotropic)) / (2 if halved else 1)
        assert_close(problem.value(x), expected)
        whole = problem.f.value(x) + problem.g.value(problem.operator(x))
        assert_close(whole, expected)

    def test_subgradient_is_autograds_with_sign_0_equal_0(self, kind, isotropic):
        problem, x = make(kind, isotropic=isotropic), inside(random(2, 2, 5, 6, seed=5).round())
        assert_close(problem.subgradient(x), autograd_subgradient(problem.value, x)[1])

    def test_prox_of_f_is_the_projection_onto_the_box(self, kind, isotropic):
        problem, x = make(kind, isotropic=isotropic), 2 * random(2, 2, 5, 6, seed=5)
        assert_close(problem.f.prox(x, 0.3), inside(x), rtol=0, atol=0)

    @pytest.mark.parametrize("halved", [False, True])
    def test_prox_of_the_conjugate_minimises(self, kind, isotropic, halved):
        problem = make(kind, isotropic=isotropic, halved=halved, balance=0.6)
        p = random(*problem.operator(problem.start()).shape, seed=3)
        steps = torch.tensor([0.3, 2.0], dtype=torch.float64)
        found = problem.g.conjugate_prox(p, steps)
        assert_close(problem.g.project(found), found, rtol=1e-14, atol=1e-15)

        def aim(q):
            return problem.g.conjugate(q) + (q - p).square().sum(1) / (2 * steps)

        for seed in range(20):
            other = problem.g.project(found + 0.05 * random(*p.shape, seed=seed))
            assert bool((aim(other) > aim(found)).all())
        expected = problem.g.conjugate_prox(p, 0.3)[0]
        assert_close(found[0], expected)

    def test_the_conjugate_is_one(self, kind, isotropic):
        problem = make(kind, isotropic=isotropic, balance=0.6)
        p = problem.g.project(random(*problem.operator(problem.start()).shape, seed=3))
        # The supremum of <z, p> - g(z) is where z = 0 in the differences and w = c (y + c q / 2s).
        _, q = problem.operator.split(p)
        zero = torch.zeros(2, 2, 2, 5, 6, dtype=torch.float64)
        best = join((zero, 0.6 * (problem.noisy + 0.6 * q / 2)))
        expected = (best * p).sum(1) - problem.g.value(best)
        assert_close(problem.g.conjugate(p), expected)
        for seed in range(10):
            z = best + random(*p.shape, seed=seed)
            assert bool(((z * p).sum(1) - problem.g.value(z) <= expected).all())


@KINDS
@FORMS
class TestDuality:
    def test_the_tilted_minimiser_minimises(self, kind, isotropic):
        problem, u = make(kind, isotropic=isotropic, box=(-0.5, 2.0)), random(2, 2, 5, 6, seed=6)
        best = problem.f.tilted_minimiser(u)
        assert_close(-problem.f.conjugate(-u), (u * best).sum((1, 2, 3)))
        for seed in range(10):
            other = random(2, 2, 5, 6, seed=seed).clamp(-0.5, 2.0)
            assert bool(((u * other).sum((1, 2, 3)) >= -problem.f.conjugate(-u)).all())

    @settings(max_examples=15)
    @given(seed=st.integers(0, 10_000), size=st.floats(0, 3), at=st.sampled_from(["near", "far"]))
    def test_the_gap_bounds_the_true_gap_whatever_x_and_p(self, kind, isotropic, seed, size, at):
        problem = make(kind, (2, 1, 4, 4), isotropic=isotropic)
        found = solved(kind, (2, 1, 4, 4), isotropic)
        minimisers, minimum = found.x, found.value
        x = inside((minimisers if at == "near" else 0) + size * random(2, 1, 4, 4, seed=seed))
        p = size * random(*problem.operator(x).shape, seed=seed + 1)
        gap = problem.gap(x, p)
        assert_close(gap, problem.value(x) - problem.dual_value(p), rtol=1e-9, atol=1e-9)
        assert bool((gap >= problem.value(x) - minimum - 2e-5 * minimum).all())
        assert bool((problem.relative_gap(x, p) >= (problem.value(x) - minimum) / minimum - 2e-5).all())
        assert bool((problem.dual_value(p) <= minimum).all())

    def test_pdhg_converges_to_it(self, kind, isotropic):
        problem = make(kind, (2, 1, 4, 5), isotropic=isotropic)
        result = lmd.run(PDHG(), problem, tolerance=1e-4, iterations=20_000)
        assert all(status.name == "TOLERANCE_REACHED" for status in result.status)
        assert_close(result.values, lmd.guarantees.minimum(problem), rtol=2e-4, atol=0)

    def test_balance_changes_no_value(self, kind, isotropic):
        one, other = (make(kind, isotropic=isotropic, balance=c) for c in (1.0, 0.3))
        x = random(2, 2, 5, 6, seed=5)
        assert_close(one.value(x), other.value(x))
        p, q = one.operator.split(random(*one.operator(x).shape, seed=6))
        gaps = [problem.gap(inside(x), join((p, q / c))) for problem, c in ((one, 1), (other, 0.3))]
        assert_close(gaps[0], gaps[1])

    def test_a_part_of_the_batch_and_float32(self, kind, isotropic):
        problem = make(kind, isotropic=isotropic)
        x = inside(random(2, 2, 5, 6, seed=5))
        p = random(*problem.operator(x).shape, seed=6)
        assert_close(problem.select(1).gap(x[1:], p[1:]), problem.gap(x, p)[1:])
        data = problem.noisy.float(), (5, 6) if kind == "tomography" else problem.forward.kernel, problem.weight.float()
        border = {} if kind == "tomography" else {"border": kind}
        single = type(problem)(*data, isotropic=isotropic, **border)
        assert_close(single.gap(x.float(), p.float()), problem.gap(x, p).float(), rtol=1e-4, atol=1e-4)


class TestChecks:
    def test_shapes(self):
        with pytest.raises(InputError, match="images"):
            TVDeblurring(torch.rand(2, 5, 5), gaussian_kernel(1.0, 3))
        with pytest.raises(InputError, match="sinograms"):
            TVTomography(torch.rand(2, 5, 5), (5, 5))
        with pytest.raises(InputError, match="noisy"):
            TVTomography(torch.rand(2, 1, 5, 5), (5, 5))
        with pytest.raises(InputError, match="x0"):
            lmd.run(PDHG(), make("tomography"), torch.rand(2, 2, 6, 5, dtype=torch.float64))
        with pytest.raises(InputError, match="box"):
            TVDeblurring(torch.rand(2, 1, 5, 5), gaussian_kernel(1.0, 3), box=(1.0, 0.0))


class TestFamilies:
    def test_deblurring(self):
        images = torch.rand(5, 3, 24, 24)
        family = TVDeblurringFamily(images, noise=0.0, crop=20, blur=(0.5, 1.5), weight=(0.1, 0.3), border="replicate")
        problem, x0 = family.sample(4, torch.Generator().manual_seed(0))
        again, _ = family.sample(4, torch.Generator().manual_seed(0))
        other, _ = family.sample(4, torch.Generator().manual_seed(1))
        assert (
            isinstance(problem, TVDeblurring)
            and isinstance(again, TVDeblurring)
            and problem.forward.border == "replicate"
        )
        assert_close(problem.noisy, again.noisy, rtol=0, atol=0)
        assert problem.forward.kernel.shape != other.forward.kernel.shape or not torch.equal(
            problem.forward.kernel, other.forward.kernel
        )
        assert x0.shape == (4, 3, 20, 20) and bool(((problem.weight >= 0.1) & (problem.weight <= 0.3)).all())
        # Without noise y is the blurred image: its mean is the mean of some crop.
        assert 0.4 < float(problem.noisy.mean()) < 0.6

    def test_tomography(self):
        images = torch.rand(5, 1, 24, 24)
        problem, x0 = TomographyFamily(images, noise=0.0, angles=7).sample(4, torch.Generator().manual_seed(0))
        assert isinstance(problem, TVTomography) and problem.noisy.shape[2] == 7
        # The flat start has the sum of the image, which flips do not change.
        sums = {round(float(image.mean()), 4) for image in images}
        assert {round(float(x.mean()), 4) for x in x0} <= sums
        assert bool((x0 == x0[:, :, :1, :1]).all())


def test_float64_is_not_rounded_to_the_default_dtype_on_the_way():
    problem = make("circular", box=(0.1, 0.7))
    x = random(2, 2, 5, 6)
    assert set(problem.f.tilted_minimiser(x).flatten().tolist()) == {0.1, 0.7}


def test_gaps_do_not_compute_the_norm_of_a_blur_again(monkeypatch):
    counts = []
    norm_bound = lmd.operators.blur.norm_bound
    monkeypatch.setattr(lmd.operators.blur, "norm_bound", lambda *given: counts.append(1) or norm_bound(*given))
    noisy = torch.rand(1, 1, 24, 24, generator=torch.Generator().manual_seed(0))
    problem = TVDeblurring(noisy, motion_kernel(5.0, 0.6), weight=0.05)
    for _ in range(3):
        problem.certified_gap(noisy, torch.zeros_like(problem.operator(noisy)))
    assert len(counts) == 1
