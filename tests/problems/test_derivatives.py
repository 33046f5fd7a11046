"""Derivatives of minimisers against finite differences of solutions, region by region, and what is refused."""

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.operators import Differences
from lmd.problems import Composite, TVDeblurring, TVDenoising, TVInpainting
from lmd.problems.derivatives import _regions
from lmd.terms import L1, Absolute, Huber, Squares

F64 = torch.float64


def patches(batch=1, side=16, seed=0):
    """Flat patches with noise of 0.1, `(batch, 1, side, side)`."""
    generator = torch.Generator().manual_seed(seed)
    clean = torch.rand(batch, 1, side // 8, side // 8, generator=generator, dtype=F64)
    clean = clean.repeat_interleave(8, 2).repeat_interleave(8, 3)
    return clean + 0.1 * torch.randn(clean.shape, generator=generator, dtype=F64)


MASK = torch.rand(16, 16, generator=torch.Generator().manual_seed(4)) > 0.3
MAP = 0.05 + 0.2 * torch.rand(1, 1, 1, 16, 16, generator=torch.Generator().manual_seed(5), dtype=F64)
ONE = torch.tensor([0.2], dtype=F64)
MILD = torch.tensor([[0.1, 0.8, 0.1]], dtype=F64)


def composed(term, **options):
    return lambda y, w: Composite(Squares(y), (term(w, **options), Differences((16, 16))), start=y)


MODELS = {
    "denoise": (TVDenoising, ONE),
    "denoise isotropic": (lambda y, w: TVDenoising(y, w, isotropic=True), ONE),
    "denoise halved": (lambda y, w: TVDenoising(y, w, halved=True), ONE),
    "map": (composed(L1), MAP),
    "huber": (composed(Huber, delta=0.05, axes=2), MAP),
    "inpaint": (lambda y, w: TVInpainting(y, MASK, w), ONE),
    "inpaint isotropic": (lambda y, w: TVInpainting(y, MASK, w, isotropic=True), ONE / 2),
    "deblur": (lambda y, w: TVDeblurring(y, MILD, w), ONE / 4),
}


@pytest.mark.parametrize("name", MODELS)
def test_finite_differences_agree(name):
    make, weight = MODELS[name]
    cotangent = torch.randn(1, 1, 16, 16, generator=torch.Generator().manual_seed(1), dtype=F64)
    cotangent = cotangent * MASK if name.startswith("inpaint") else cotangent  # what is lost is not unique

    def score(y, w, differentiable=False):
        return (lmd.solve(make(y, w), 1e-10, differentiable=differentiable).x * cotangent).sum()

    given = [patches().requires_grad_(), weight.clone().requires_grad_()]
    gradients = torch.autograd.grad(score(*given, differentiable=True), given)
    for place, gradient in enumerate(gradients):
        step = 1e-5 * gradient / gradient.norm()
        ends = [[each.detach().clone() for each in given] for _ in range(2)]
        ends[0][place] += step
        ends[1][place] -= step
        slope = (score(*ends[0]) - score(*ends[1])) / 2e-5
        assert_close(slope, gradient.norm(), rtol=1e-4, atol=0)


def test_of_anisotropic_denoising_it_is_the_mean_over_regions():
    y = torch.tensor([[[0.0, 0.1, 0.0, 1.0, 1.1]]], dtype=F64, requires_grad=True)
    w = torch.tensor([0.3], dtype=F64, requires_grad=True)
    result = lmd.solve(TVDenoising(y, w), 1e-8, differentiable=True)
    assert_close(result.x, torch.tensor([[[1 / 12, 1 / 12, 1 / 12, 0.975, 0.975]]], dtype=F64), rtol=0, atol=1e-4)
    by_y, by_w = torch.autograd.grad(result.x[0, 0, 0] + 2 * result.x[0, 0, 4], (y, w))
    assert_close(by_y, torch.tensor([[[1 / 3, 1 / 3, 1 / 3, 1.0, 1.0]]], dtype=F64))
    assert_close(by_w, torch.tensor([1 / 6 - 2 / 4], dtype=F64))  # half the weight, over the size


def test_an_instance_of_a_batch_has_its_own():
    y, w = patches(3).requires_grad_(), torch.tensor([0.1, 0.2, 0.3], dtype=F64, requires_grad=True)
    for isotropic in (False, True):
        x = lmd.solve(TVDenoising(y, w, isotropic), 1e-6, differentiable=True).x
        together = torch.autograd.grad(x.square().sum(), (y, w))
        alone = lmd.solve(TVDenoising(y[1:2], w[1:2], isotropic), 1e-6, differentiable=True).x
        assert_close(torch.autograd.grad(alone.square().sum(), y)[0][1], together[0][1], rtol=1e-4, atol=1e-6)


def test_ends_of_a_box_do_not_move():
    y = torch.tensor([[[[-0.5, -0.5, 0.3], [0.9, 2.0, 2.0]]]], dtype=F64, requires_grad=True)
    kernel = torch.ones(1, 1, dtype=F64)
    x = lmd.solve(TVDeblurring(y, kernel, 1e-3), 1e-6, differentiable=True).x
    (gradient,) = torch.autograd.grad(x.sum(), y)
    assert_close(gradient.flatten(), torch.tensor([0.0, 0, 1, 1, 0, 0], dtype=F64), rtol=0, atol=1e-6)


def test_regions_are_joined_however_they_wind():
    kinks = torch.zeros(1, 1, 2, 4, 4, dtype=torch.bool)
    kinks[0, 0, 1, 0, :] = kinks[0, 0, 1, 3, :] = True  # rows 0 and 3, joined on the right
    kinks[0, 0, 0, :, 3] = True
    roots = _regions(torch.zeros(1, 1, 4, 4), kinks).view(4, 4)
    assert (roots == 0).tolist() == [[True] * 4, [False] * 3 + [True], [False] * 3 + [True], [True] * 4]
    assert len(roots.unique()) == 7


def test_nothing_is_kept_of_the_iterations():
    def kept(tolerance):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            problem = TVInpainting(patches(side=8).requires_grad_(), torch.ones(8, 8))
            result = lmd.solve(problem, tolerance, differentiable=True)
        return int(result.iterations), sum(sizes)

    (few, one), (many, other) = kept(1e-2), kept(1e-8)
    assert many > few and other == one


def test_the_certificate_is_about_the_numbers():
    y = patches().requires_grad_()
    result = lmd.solve(TVDenoising(y), 1e-3, differentiable=True)
    assert result.x.requires_grad and not result.certificate.bound.requires_grad
    assert_close(result.x.detach(), lmd.solve(TVDenoising(y.detach()), 1e-3).x, rtol=0, atol=1e-12)


def score(w):
    return lmd.solve(TVDenoising(patches(), w), differentiable=True).x.sum()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: score(0.1), "problem: got data and weights that require no gradients"),
        (lambda: torch.func.grad(score)(ONE[0]), "differentiable: got a transform of torch.func"),
        (lambda: torch.autograd.grad(score(w := ONE.clone().requires_grad_()), w, create_graph=True), "create_graph"),
        (lambda: lmd.solve(lmd.problems.LeastSquares(torch.eye(2), torch.ones(1, 2)), differentiable=True), "problem"),
    ],
)
def test_what_cannot_be_is_one_line(call, words):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)


def test_kinks_that_are_not_known_are_refused():
    y = patches().requires_grad_()
    problem = Composite(Absolute(y), (Huber(0.1, 0.1), Differences((16, 16))), start=y)
    with pytest.raises(CapabilityError):
        lmd.solve(problem, 0.5, differentiable=True, iterations=2)
