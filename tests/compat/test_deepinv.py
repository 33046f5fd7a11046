"""The adapters for deepinv, against deepinv itself; skipped where it is not installed."""

import runpy
from pathlib import Path

import pytest
import torch

import lmd

deepinv = pytest.importorskip("deepinv", reason="deepinv is not installed: it wants an environment of its own")

from deepinv.loss.metric import PSNR  # noqa: E402
from deepinv.models import TVDenoiser as TheirDenoiser  # noqa: E402
from deepinv.optim import L2  # noqa: E402
from deepinv.optim import TVPrior as TheirPrior  # noqa: E402
from deepinv.physics import (  # noqa: E402
    Blur,
    BlurFFT,
    CompressedSensing,
    Denoising,
    GaussianNoise,
    Inpainting,
    Tomography,
)

from lmd.compat.deepinv import Gap, MirrorPotential, OfPhysics, TVDenoiser, TVPrior, TVReconstructor  # noqa: E402

THS = 0.1


@pytest.fixture(scope="module")
def images():
    """Two piecewise constant pictures (2, 3, 24, 24) and noise on them."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.rand(2, 3, 4, 4, generator=generator).repeat_interleave(6, dim=2).repeat_interleave(6, dim=3)
    return clean, clean + 0.1 * torch.randn(clean.shape, generator=generator)


def objective(x, y, ths=THS):
    return (x - y).square().flatten(1).sum(dim=1) / 2 + ths * TheirPrior().fn(x)


def test_the_denoiser_finds_what_theirs_finds(images):
    _, y = images
    ours, theirs = TVDenoiser(1e-6)(y, THS), TheirDenoiser(n_it_max=5000, tau=0.35, crit=1e-9)(y, THS)
    assert torch.allclose(ours, theirs, atol=1e-3)
    assert bool((objective(ours, y) <= objective(theirs, y) * (1 + 1e-5)).all())


def test_strengths_for_each_image_when_made_and_in_volumes(images):
    _, y = images
    each = TVDenoiser(1e-6)(y, torch.tensor([0.05, 0.2]))
    for i, ths in enumerate((0.05, 0.2)):
        assert torch.allclose(each[i : i + 1], TVDenoiser(1e-6, ths=ths)(y[i : i + 1]), atol=1e-3)
    volume = y[:1, :1].expand(1, 4, 24, 24)[:, None]
    theirs = TheirDenoiser(n_it_max=3000, tau=0.35, crit=1e-8)(volume, THS)
    assert torch.allclose(TVDenoiser(1e-6)(volume, THS), theirs, atol=2e-3)
    with pytest.raises(lmd.InputError, match="ths"):
        TVDenoiser()(y)


def test_derivatives_are_those_of_their_unrolled_iterations(images):
    y = images[1][:1, :1, :8, :8].double()
    answers = []
    for model in (TVDenoiser(1e-10), TheirDenoiser(n_it_max=4000, tau=0.35, crit=0.0)):
        data, ths = y.clone().requires_grad_(), torch.tensor(0.05, dtype=y.dtype, requires_grad=True)
        answers.append(torch.autograd.grad(model(data, ths).square().sum(), (data, ths)))
    assert all(torch.allclose(one, other, rtol=1e-3, atol=1e-3) for one, other in zip(*answers, strict=True))


def test_the_dual_point_is_warm(images):
    _, y = images
    prior = TVPrior(1e-5)
    first = prior.prox(y, gamma=THS)
    cold = int(prior.TVModel.result.iterations.max())
    again = prior.prox(y + 1e-4, gamma=THS)
    assert int(prior.TVModel.result.iterations.max()) < cold
    assert torch.allclose(again, first + 1e-4, atol=1e-3)
    certificate = prior.TVModel.result.certificate
    assert bool((certificate.bound <= 1e-5 * certificate.value).all())
    assert prior.prox(y[:1], gamma=THS).shape == y[:1].shape
    assert torch.allclose(prior.fn(y), TheirPrior().fn(y)) and prior.grad(y).shape == y.shape


def test_the_prior_serves_an_algorithm_of_theirs(images):
    clean, y = images
    physics, fidelity, prior, step = Denoising(GaussianNoise(0.1)), L2(), TVPrior(1e-6), 0.7
    x = torch.zeros_like(y)
    for _ in range(40):
        x = prior.prox(x - step * fidelity.grad(x, y, physics), gamma=step * THS)
    assert torch.allclose(x, TVDenoiser(1e-6)(y, THS), atol=2e-3)
    assert bool((PSNR()(x, clean) > PSNR()(y, clean) + 3).all())


def physics_of(name):
    generator = torch.Generator().manual_seed(2)
    kernel = deepinv.physics.blur.gaussian_blur(sigma=(1.0, 1.0))
    made = {
        "denoising": lambda: Denoising(GaussianNoise(0.05)),
        "inpainting": lambda: Inpainting((3, 24, 24), mask=0.7, rng=generator),
        "blur": lambda: Blur(kernel, padding="valid"),
        "circular blur": lambda: BlurFFT((3, 24, 24), kernel),
        "tomography": lambda: Tomography(12, img_width=24, normalize=False, adjoint_via_backprop=True),
        "compressed sensing": lambda: CompressedSensing(m=200, img_size=(3, 24, 24)),
    }
    return made[name]()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["denoising", "inpainting", "blur", "circular blur", "tomography", "compressed sensing"]
)
def test_reconstructions_are_proven_and_no_image_is_better(name, images):
    clean, _ = images
    clean = clean[:1]
    torch.manual_seed(0)
    physics = physics_of(name)
    y = physics(clean)
    model = TVReconstructor(0.02, tolerance=5e-2)
    x = model(y, physics)
    assert x.shape == clean.shape
    found = model.result

    def value(image):
        return float((physics.A(image) - y).square().sum() / 2 + 0.02 * TheirPrior().fn(image).sum())

    assert value(x) == pytest.approx(float(found.values[0]), rel=1e-4)
    lower = float(found.certificate.lower_bound[0])
    assert lower >= value(x) * (1 - 5.1e-2)
    assert lower <= value(clean), "a lower bound is below every value, that of the clean image among them"
    better = TVReconstructor(0.02, tolerance=2e-2)(y, physics)
    assert lower <= value(better) * (1 + 1e-6)


@pytest.mark.filterwarnings("ignore")
def test_an_adjoint_that_is_none_is_refused(images):
    """That of tomography by interpolation is off: a bound from it would be none."""
    physics = physics_of("tomography")
    y = physics(images[0][:1, :1])
    operator = OfPhysics(physics, y)
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in (operator.shape, y.shape))
    assert float((operator(x) * z).sum()) == pytest.approx(float((x * operator.adjoint(z)).sum()), rel=1e-5)
    assert float(torch.linalg.vector_norm(operator(x)) / torch.linalg.vector_norm(x)) <= operator.norm
    with pytest.raises(lmd.InputError, match="physics"):
        OfPhysics(Tomography(12, img_width=24, normalize=False, adjoint_via_backprop=False), y)
    with pytest.raises(lmd.InputError, match="linear"):
        OfPhysics(deepinv.physics.Physics(), y)


def test_mirrors_are_potentials_with_conjugates_that_are_right(images):
    clean, _ = images
    box = MirrorPotential(lmd.mirrors.EuclideanBox(0.0, 1.0))
    assert torch.equal(box.MD_step(clean, torch.ones_like(clean), gamma=0.3), (clean - 0.3).clamp(0, 1))
    quadratic = MirrorPotential(lmd.mirrors.Quadratic.from_matrix(torch.diag(torch.arange(1.0, 5.0))))
    x, y = torch.rand(2, 4), torch.rand(2, 4)
    assert torch.allclose(quadratic.grad_conj(quadratic.grad(x)), x, atol=1e-6)
    assert torch.allclose(quadratic(x) + quadratic.conjugate(quadratic.grad(x)), (x * quadratic.grad(x)).sum(dim=1))
    assert torch.allclose(quadratic.div(x, y), quadratic(x - y), atol=1e-5)
    step = quadratic.MD_step(x, y, gamma=0.5)
    assert torch.allclose(quadratic.grad(step), quadratic.grad(x) - 0.5 * y, atol=1e-5)


def test_the_gap_of_any_answer(images):
    _, y = images
    physics = Denoising(GaussianNoise(0.1))
    gap = Gap(THS, reduction="mean")
    rough, fine = (TheirDenoiser(tau=0.35, n_it_max=n, crit=0.0)(y, THS) for n in (5, 500))
    least = objective(TVDenoiser(1e-8)(y.double(), THS), y.double())
    for x in (rough, fine):
        true = ((objective(x.double(), y.double()) - least) / least).mean()
        assert float(true) <= float(gap(x, y=y, physics=physics)) <= float(true) + 1e-4
    assert gap.lower_better


def test_a_blur_that_is_not_symmetric_keeps_its_phase(images):
    """Its transform is complex: a cast to float32 would drop the imaginary part, and with it the shift."""
    kernel = torch.zeros(1, 1, 5, 5)
    kernel[0, 0, 0, 1] = kernel[0, 0, 3, 4] = 0.5
    physics = BlurFFT((3, 24, 24), kernel)
    x = images[0]
    operator = OfPhysics(physics, physics.A(x))
    assert torch.equal(operator(x), physics.A(x))
    assert torch.allclose(operator(x.double()).float(), physics.A(x), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_the_example_gives_what_their_prior_gives_and_is_faster(capsys, tmp_path):
    example = Path(__file__).parents[2] / "examples" / "with_deepinv.py"
    runpy.run_path(str(example))["main"](str(tmp_path / "deepinv.png"))
    lines = {line.split(":")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    ours, theirs, blurred = lines["lmd's prior"], lines["deepinv's prior"], lines["blurred"]
    assert float(ours[2]) == pytest.approx(float(theirs[2]), abs=0.05) and float(ours[2]) > float(blurred[1]) + 1
    assert (tmp_path / "deepinv.png").stat().st_size > 10_000
