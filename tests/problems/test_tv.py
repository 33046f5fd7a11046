import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.problems import TVDenoising, TVInpainting
from lmd.problems.base import autograd_subgradient
from lmd.solvers import FGP, PDHG, LearnedDual, LearnedSaddle

FORMS = pytest.mark.parametrize("isotropic", [False, True], ids=["anisotropic", "isotropic"])
KINDS = pytest.mark.parametrize("kind", ["denoising", "inpainting"])


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(kind, shape=(2, 3, 5, 6), seed=0, **arguments):
    """A problem on a step with noise, so that flat parts and edges both occur; weights and masks per image."""
    step = torch.linspace(0, 1, shape[3], dtype=torch.float64).round()
    noisy = step + 0.2 * random(*shape, seed=seed)
    weight = torch.linspace(0.2, 0.5, shape[0], dtype=torch.float64)
    if kind == "denoising":
        return TVDenoising(noisy, weight, **arguments)
    mask = torch.rand(shape[0], 1, *shape[2:], generator=torch.Generator().manual_seed(seed + 1)) < 0.7
    mask[:, :, 0, 0] = True
    return TVInpainting(noisy, mask, weight, **arguments)


@functools.cache
def solved(kind, shape, isotropic):
    return lmd.guarantees.optimum(make(kind, shape, isotropic=isotropic))


def by_loops(problem, x):
    """The formula of the docstring, pixel by pixel."""
    B, C, H, W = x.shape
    values = torch.zeros(B, dtype=x.dtype)
    for b in range(B):
        for c in range(C):
            for i in range(H):
                for j in range(W):
                    z = problem.mask[b, min(c, problem.mask.shape[1] - 1), i, j] if problem.mask is not None else 1
                    down = float(x[b, c, i + 1, j] - x[b, c, i, j]) if i + 1 < H else 0.0
                    right = float(x[b, c, i, j + 1] - x[b, c, i, j]) if j + 1 < W else 0.0
                    tv = math.hypot(down, right) if problem.isotropic else abs(down) + abs(right)
                    values[b] += z * (x[b, c, i, j] - problem.noisy[b, c, i, j]) ** 2 + problem.weight[b] * tv
    return values / 2 if problem.halved else values


class States:
    """A callback that keeps the last state."""

    def __call__(self, state, values):
        self.last = state


@KINDS
@FORMS
@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("size", [(4, 5), (1, 4), (3, 1), (1, 1)], ids=str)
class TestFormulas:
    def test_value(self, kind, isotropic, halved, size):
        problem = make(kind, (2, 2, *size), isotropic=isotropic, halved=halved)
        x = random(2, 2, *size, seed=5)
        assert_close(problem.value(x), by_loops(problem, x))

    def test_subgradient_is_autograds_with_sign_0_equal_0(self, kind, isotropic, halved, size):
        problem = make(kind, (2, 2, *size), isotropic=isotropic, halved=halved)
        x = random(2, 2, *size, seed=5).round()  # ties between neighbours
        assert_close(problem.subgradient(x), autograd_subgradient(problem.value, x)[1])
        assert bool(torch.isfinite(problem.subgradient(torch.zeros_like(x))).all())

    def test_prox_of_f_is_where_the_derivative_vanishes_or_points_out_of_the_box(self, kind, isotropic, halved, size):
        problem = make(kind, (2, 2, *size), isotropic=isotropic, halved=halved)
        x, steps = 2 * random(2, 2, *size, seed=5), torch.tensor([0.3, 2.0], dtype=torch.float64)
        found = problem.f.prox(x, steps)
        slope = problem.data_gradient(found) + (found - x) / steps.reshape(2, 1, 1, 1)
        inside = torch.ones_like(x, dtype=torch.bool)
        if kind == "inpainting":
            assert bool(((found >= problem.f.low) & (found <= problem.f.high)).all())
            inside = (found > problem.f.low) & (found < problem.f.high)
            assert bool((slope[(found == problem.f.low) & (found < problem.f.high)] >= -1e-12).all())
            assert bool((slope[(found == problem.f.high) & (found > problem.f.low)] <= 1e-12).all())
        assert_close(slope[inside], torch.zeros_like(slope[inside]), rtol=0, atol=1e-12)
        assert_close(problem.f.prox(x, 0.3)[0], found[0])


@KINDS
@FORMS
class TestDuality:
    def test_projection(self, kind, isotropic):
        problem = make(kind, isotropic=isotropic)
        p = random(2, 3, 2, 5, 6, seed=3)
        found = problem.g.project(p)
        size = found.square().sum(2).sqrt() if isotropic else found.abs()
        assert bool((size.flatten(1).amax(1) <= problem.bound * (1 + 1e-12)).all())
        assert_close(problem.g.project(found), found, rtol=1e-15, atol=0)
        inner = found / 2
        assert_close(problem.g.project(inner), inner, rtol=0, atol=0)
        # Nearest: <p - found, q - found> <= 0 for every q of the set, here for each pixel by itself.
        q = problem.g.project(random(2, 3, 2, 5, 6, seed=4))
        assert bool((((p - found) * (q - found)).sum(2) <= 1e-12).all())

    def test_one_weight_for_all_projects_like_one_per_image(self, kind, isotropic):
        problem = make(kind, isotropic=isotropic)
        data = (problem.noisy,) if kind == "denoising" else (problem.noisy, problem.mask)
        same = type(problem)(*data, 0.2, isotropic=isotropic)
        assert same.bound == 0.2 and problem.bound.tolist() == problem.weight.tolist()
        p = random(2, 3, 2, 5, 6, seed=3)
        assert_close(same.g.project(p)[0], problem.g.project(p)[0])
        assert_close(same.value(random(2, 3, 5, 6))[0], problem.value(random(2, 3, 5, 6))[0])

    def test_the_tilted_minimiser_minimises(self, kind, isotropic):
        problem = make(kind, isotropic=isotropic)
        u = random(2, 3, 5, 6, seed=6)
        best = problem.f.tilted_minimiser(u)
        tilted = lambda x: problem.f.value(x) + (u * x).flatten(1).sum(1)  # noqa: E731
        assert_close(-problem.f.conjugate(-u), tilted(best))
        for seed in range(20):
            other = best + 0.1 * random(2, 3, 5, 6, seed=seed)
            if kind == "inpainting":
                other = torch.minimum(torch.maximum(other, problem.f.low), problem.f.high)
            assert bool((tilted(other) >= -problem.f.conjugate(-u) - 1e-12).all())

    @given(seed=st.integers(0, 10_000), size=st.floats(0, 3), at=st.sampled_from(["near", "far"]))
    def test_the_gap_bounds_the_true_gap_whatever_x_and_p(self, kind, isotropic, seed, size, at):
        problem = make(kind, (2, 1, 4, 4), isotropic=isotropic)
        found = solved(kind, (2, 1, 4, 4), isotropic)
        minimisers, minimum = found.x, found.value
        x = (minimisers if at == "near" else 0) + size * random(2, 1, 4, 4, seed=seed)
        p = size * random(2, 1, 2, 4, 4, seed=seed + 1)
        gap = problem.gap(x, p)
        assert_close(gap, problem.value(x) - problem.dual_value(p), rtol=1e-9, atol=1e-9)
        assert bool((gap >= problem.value(x) - minimum - 1e-7 * minimum).all())
        assert bool((problem.relative_gap(x, p) >= (problem.value(x) - minimum) / minimum - 1e-6).all())
        assert bool((problem.dual_value(p) <= minimum).all())

    def test_the_gap_is_never_negative_in_float32(self, kind, isotropic):
        problem = make(kind, isotropic=isotropic)
        noisy = problem.noisy.float()
        weight = problem.weight.float()
        if kind == "denoising":
            single = TVDenoising(noisy, weight, isotropic)
        else:
            single = TVInpainting(noisy, problem.mask, weight, isotropic)
        result = lmd.run(PDHG(), single, iterations=3000, callbacks=[states := States()])
        assert bool((single.gap(result.x, states.last.dual) >= 0).all())
        assert bool((single.relative_gap(result.x, states.last.dual) < 1e-4).all())


class TestDenoising:
    def test_two_pixels_by_hand(self):
        # Each pixel moves towards the other by weight / 2, until they meet.
        noisy = torch.tensor([[[[0.0, 1.0]]], [[[0.0, 1.0]]]], dtype=torch.float64)
        problem = TVDenoising(noisy, torch.tensor([0.5, 3.0], dtype=torch.float64))
        assert_close(
            lmd.guarantees.minimiser(problem).flatten(1),
            torch.tensor([[0.25, 0.75], [0.5, 0.5]]).double(),
            rtol=1e-4,
            atol=0,
        )
        assert_close(lmd.guarantees.minimum(problem), torch.tensor([0.375, 0.5], dtype=torch.float64))

    def test_the_halved_form_is_half(self):
        problem, half = make("denoising"), make("denoising", halved=True)
        x, p = random(2, 3, 5, 6, seed=1), problem.g.project(random(2, 3, 2, 5, 6, seed=2))
        assert_close(half.value(x), problem.value(x) / 2)
        assert_close(half.gap(x, p / 2), problem.gap(x, p) / 2)
        assert_close(lmd.guarantees.minimum(half), lmd.guarantees.minimum(problem) / 2, rtol=1e-6, atol=0)

    def test_strong_convexity(self):
        problem = make("denoising", halved=True)
        assert (problem.f.strong_convexity, float(problem.strong_convexity)) == (1, 1)
        assert make("denoising").f.strong_convexity == 2
        assert make("inpainting").f.strong_convexity is None and make("inpainting").strong_convexity is None

    @FORMS
    def test_training_can_differentiate_through_values_and_subgradients(self, isotropic):
        problem = make("denoising", (2, 1, 3, 4), isotropic=isotropic)
        x = random(2, 1, 3, 4, seed=8).requires_grad_()
        assert torch.autograd.gradcheck(problem.value, x)
        assert torch.autograd.gradcheck(problem.subgradient, x)
        assert torch.autograd.gradcheck(lambda x: problem.gap(x, random(2, 1, 2, 3, 4)), x)
        p = random(2, 1, 2, 3, 4, seed=8).requires_grad_()
        assert torch.autograd.gradcheck(lambda p: problem.dual_value(p), p)
        zero = torch.zeros(2, 1, 3, 4, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(
            problem.value(zero - zero).sum() + problem.g.project(problem.operator(zero)).sum(), zero
        )
        assert bool(torch.isfinite(slope).all())


class TestInpainting:
    def test_what_lies_at_lost_pixels_does_not_matter(self):
        problem = make("inpainting")
        other = TVInpainting(torch.where(problem.mask > 0, problem.noisy, 99.0), problem.mask, problem.weight)
        x, p = random(2, 3, 5, 6), random(2, 3, 2, 5, 6)
        for name in ("value", "subgradient"):
            assert_close(getattr(other, name)(x), getattr(problem, name)(x))
        assert_close(other.gap(x, p), problem.gap(x, p))

    @pytest.mark.parametrize("shape", [(5, 6), (2, 1, 5, 6), (2, 3, 5, 6)], ids=str)
    def test_masks_of_every_shape(self, shape):
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.6
        whole = mask.expand(2, 3, 5, 6)
        noisy, x = random(2, 3, 5, 6), random(2, 3, 5, 6, seed=1)
        problem = TVInpainting(noisy, mask, 0.4)
        assert_close(problem.value(x), TVInpainting(noisy, whole.double(), 0.4).value(x))
        assert_close(problem.select(1).value(x[1:]), problem.value(x)[1:])

    def test_clipping_to_the_box_never_raises_the_value(self):
        for isotropic in (False, True):
            problem = make("inpainting", isotropic=isotropic)
            for seed in range(20):
                x = 2 * random(2, 3, 5, 6, seed=seed)
                inside = torch.minimum(torch.maximum(x, problem.f.low), problem.f.high)
                assert bool((problem.value(inside) <= problem.value(x)).all())

    def test_with_every_pixel_kept_it_is_denoising(self):
        problem = make("denoising", (2, 1, 6, 6))
        same = TVInpainting(problem.noisy, torch.ones(6, 6), problem.weight)
        assert_close(lmd.guarantees.minimum(same), lmd.guarantees.minimum(problem), rtol=1e-6, atol=0)
        assert_close(lmd.guarantees.minimiser(same), lmd.guarantees.minimiser(problem), rtol=0, atol=1e-3)


@FORMS
@KINDS
@pytest.mark.parametrize("size", [(30,), (5, 4, 6)], ids=str)
class TestSignalsAndVolumes:
    def problem(self, kind, isotropic, size, dtype=torch.float64):
        y = random(2, 2, *size).to(dtype)
        options = {"isotropic": isotropic, "spacing": [0.5, 1.0, 2.0][: len(size)]}
        mask = torch.rand(size, generator=torch.Generator().manual_seed(1)) < 0.7
        return TVDenoising(y, 0.4, **options) if kind == "denoising" else TVInpainting(y, mask, 0.4, **options)

    def test_value(self, kind, isotropic, size):
        problem, x = self.problem(kind, isotropic, size), random(2, 2, *size, seed=5)
        slopes = [
            torch.diff(x, dim=2 + a, append=x.narrow(2 + a, n - 1, 1)) / h
            for a, (n, h) in enumerate(zip(size, problem.differences.spacing, strict=True))
        ]
        tv = sum(s.square() for s in slopes).sqrt() if isotropic else sum(s.abs() for s in slopes)
        kept = 1 if problem.mask is None else problem.mask
        assert_close(problem.value(x), (kept * (x - problem.noisy).square() + 0.4 * tv).flatten(1).sum(1))
        assert_close(problem.subgradient(x), autograd_subgradient(problem.value, x)[1])

    def test_its_minimum_is_certified_and_solvers_find_it(self, kind, isotropic, size):
        problem = self.problem(kind, isotropic, size)
        least = lmd.guarantees.optimum(problem)
        assert bool((least.gap <= 1e-6 * least.value).all())
        single = self.problem(kind, isotropic, size, torch.float32)
        result = lmd.solve(single, 1e-3)
        excess = problem.value(result.x.double()) - least.value
        assert bool((result.certificate.bound + 1e-6 * least.value >= excess).all())
        assert bool((result.certificate.bound <= 1.001e-3 * least.value).all())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TVDenoising(torch.ones(3, 4)), r"noisy: got shape \(3, 4\), expected signals, images or volumes"),
        (lambda: TVDenoising([1.0]), "noisy: got list"),
        (lambda: TVDenoising(torch.ones(1, 1, 2, 2, dtype=torch.uint8)), "noisy: got torch.uint8"),
        (lambda: TVDenoising(torch.full((1, 1, 2, 2), math.nan)), "noisy: got 4 non-finite entries"),
        (lambda: TVDenoising(torch.ones(1, 1, 0, 2)), "noisy: got shape"),
        (lambda: TVDenoising(torch.ones(1, 1, 2, 2), 0), "weight: got 0, expected a positive number"),
        (
            lambda: TVDenoising(torch.ones(1, 1, 2, 2), torch.ones(2)),
            r"weight: got shape \(2,\), expected one number, or",
        ),
        (lambda: TVDenoising(torch.ones(2, 1, 2, 2), torch.tensor([1.0, -1.0])), "weight: got -1, expected positive"),
        (lambda: TVDenoising(torch.ones(1, 1, 2, 2), torch.ones(1).double()), "weight: got torch.float64"),
        (
            lambda: TVInpainting(torch.ones(2, 3, 2, 2), torch.ones(2, 3)),
            r"mask: got shape \(2, 3\), expected shape \(2, 2",
        ),
        (lambda: TVInpainting(torch.ones(1, 1, 2, 2), torch.full((2, 2), 0.5)), "mask: got entries other than 0 and 1"),
        (lambda: TVInpainting(torch.ones(1, 1, 2, 2), torch.zeros(2, 2)), r"mask: got no kept pixel in .* \(0, 0\)"),
        (lambda: TVInpainting(torch.ones(1, 1, 2, 2), None), "mask: got NoneType"),
        (
            lambda: lmd.run(FGP(), make("denoising"), random(2, 3, 6, 5)),
            r"x0: got shape \(2, 3, 6, 5\), expected shape \(2",
        ),
        (lambda: lmd.run(FGP(), make("denoising"), torch.ones(2, 3, 5, 6)), "x0: got torch.float32"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(InputError, match=r"^" + words):
        call()


class TestDerivativesByTheWeight:
    """Where all weights are equal the bound is a number, which must not cut the graph."""

    @pytest.mark.parametrize("isotropic", [False, True])
    @pytest.mark.parametrize("kind", ["denoising", "inpainting"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_of_values_subgradients_and_gaps(self, kind, isotropic, dtype):
        generator = torch.Generator().manual_seed(0)
        y, x = (torch.rand(2, 1, 6, 5, dtype=torch.float64, generator=generator) for _ in range(2))
        p = 0.1 * torch.randn(2, 1, 2, 6, 5, dtype=torch.float64, generator=generator)
        mask = torch.rand(6, 5, generator=generator) < 0.7

        def numbers(weight):
            w, kind_of = weight.to(dtype), weight.dtype
            data = y.to(dtype)
            if kind == "denoising":
                problem = TVDenoising(data, w, isotropic=isotropic)
            else:
                problem = TVInpainting(data, mask, w, isotropic=isotropic)
            found = problem.value(x.to(dtype)), problem.subgradient(x.to(dtype)).square().flatten(1).sum(dim=1)
            return torch.stack([*found, problem.gap(x.to(dtype), p.to(dtype))]).to(kind_of)

        weight = torch.full((2,), 0.3, dtype=torch.float64, requires_grad=True)
        step = 1e-4 if dtype == torch.float64 else 1e-2
        for row in range(3):
            (slope,) = torch.autograd.grad(numbers(weight)[row].sum(), weight)
            with torch.no_grad():
                difference = (numbers(weight + step)[row] - numbers(weight - step)[row]) / (2 * step)
            assert_close(slope, difference, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("name", ["dual", "saddle", "fgp", "pdhg"])
    def test_of_steps(self, name):
        generator = torch.Generator().manual_seed(0)
        y = torch.rand(2, 1, 8, 8, generator=generator)
        mask = (torch.rand(8, 8, generator=generator) < 0.8).float()
        make = {
            "dual": (LearnedDual(3, kernel=3), lambda w: TVDenoising(y, w)),
            "saddle": (LearnedSaddle(3, 3, 3), lambda w: TVInpainting(y, mask, w)),
            "fgp": (FGP(), lambda w: TVDenoising(y, w)),
            "pdhg": (PDHG(), lambda w: TVInpainting(y, mask, w)),
        }
        solver, problem_of = make[name]

        def last(weight):
            problem = problem_of(weight)
            state = solver.init(problem, problem.start())
            for _ in range(5):
                state = solver.step(problem, state)
            return state.x.double().square().sum()

        weight = torch.full((2,), 0.05, requires_grad=True)
        (slope,) = torch.autograd.grad(last(weight), weight)
        with torch.no_grad():
            difference = (last(weight + 1e-3) - last(weight - 1e-3)) / 2e-3
        assert_close(float(slope.sum()), float(difference), rtol=0.02, atol=1e-3)
