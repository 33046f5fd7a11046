"""One line for people with arrays: right kind out, proven, with a weight that is near the best."""

import math
import time
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError, PictureWarning
from lmd.imaging import models
from lmd.operators import Blur, FromFunctions, gaussian_kernel
from lmd.reproduction.datasets import image_data
from lmd.solvers import Status


def picture(*shape, seed=0):
    """Flat patches with noise of 0.1."""
    rng = np.random.default_rng(seed)
    clean = rng.random([-(-n // 8) for n in shape])
    for axis in range(len(shape)):
        clean = clean.repeat(8, axis)
    return clean[tuple(slice(n) for n in shape)] + 0.1 * rng.normal(size=shape)


def scratched():
    """A picture of which one row is lost, and 9."""
    y = picture(8, 8)
    y[4] = 9
    return y


ARRAYS = {
    "bytes": (picture(20, 21, 3).clip(0, 1) * 255).astype(np.uint8),
    "words": (picture(20, 21).clip(0, 1) * 65535).astype(np.uint16),
    "grey": picture(20, 21).astype(np.float32),
    "signal": picture(50),
    "volume": picture(9, 10, 11).astype(np.float16),
    "batch": torch.tensor(picture(20, 21))[None, None].expand(2, 3, 20, 21),
    "permuted": torch.tensor(picture(20, 21, 3)).permute(2, 0, 1)[None],
    "reversed": picture(20, 21)[::-1, ::2],
}


class TestDenoise:
    @pytest.mark.parametrize("name", ARRAYS)
    def test_the_kind_that_went_in_comes_out(self, name):
        array = ARRAYS[name]
        clean, info = lmd.denoise(array, info=True)
        assert type(clean) is type(array) and clean.dtype == array.dtype and clean.shape == array.shape
        assert info.relative <= 1.001e-3
        assert 0.01 < float(np.max(np.asarray(info.weight))) < 1

    def test_it_is_the_minimiser(self):
        noisy = picture(12, 13)
        x = torch.tensor(lmd.denoise(noisy, 0.2, tolerance=1e-7))
        problem = lmd.problems.TVDenoising(torch.tensor(noisy)[None, None], 0.2)
        assert_close(x[None, None], lmd.guarantees.minimiser(problem), rtol=0, atol=1e-4)

    @pytest.mark.parametrize(("scale", "shift"), [(1e-12, 0.0), (1e12, 0.0), (1.0, 1e5), (1e-6, 3.0)])
    def test_units_do_not_matter(self, scale, shift):
        noisy = picture(16, 17)
        plain = lmd.denoise(noisy, 0.2, tolerance=1e-5)
        other, info = lmd.denoise(noisy * scale + shift, 0.2 * scale, tolerance=1e-5, info=True)
        np.testing.assert_allclose((other - shift) / scale, plain, atol=5e-3)
        assert info.relative < 1e-4

    def test_what_is_proven_holds_for_the_numbers_that_came_in(self):
        noisy = picture(16, 17) * 100 + 5000
        x, info = lmd.denoise(noisy, 20.0, info=True)
        problem = lmd.problems.TVDenoising(torch.tensor(noisy)[None, None], 20.0)
        true = float(problem.value(torch.tensor(x)[None, None]) - lmd.guarantees.minimum(problem))
        assert -1e-9 <= true <= info.absolute * (1 + 1e-9)
        apart = math.sqrt(np.mean((x - lmd.guarantees.minimiser(problem)[0, 0].numpy()) ** 2))
        assert apart <= info.grey_levels / 255 * info.range and info.range == pytest.approx(np.ptp(noisy))

    def test_lists_and_batches_are_solved_image_by_image(self):
        first, second = picture(16, 17), picture(16, 17, seed=1) * 3
        both = lmd.denoise([first, second])
        assert isinstance(both, list)
        np.testing.assert_allclose(both[1], lmd.denoise(second))
        batch, info = lmd.denoise(torch.tensor(np.stack([first, second]))[:, None], info=True)
        assert len(info.weight) == 2 and float(info.weight[1]) > 1.5 * float(info.weight[0])
        np.testing.assert_allclose(batch[0, 0], both[0], atol=0.02)

    def test_a_weight_for_each_image(self):
        batch = torch.tensor(np.stack([picture(16, 17)] * 2))[:, None]
        x = lmd.denoise(batch, torch.tensor([0.1, 0.4]))
        assert_close(x[1:], lmd.denoise(batch[1:], 0.4), rtol=0, atol=5e-3)

    @pytest.mark.parametrize("noise", [0.05, 0.2])
    def test_the_weight_is_near_the_best(self, noise):
        images = image_data("photographs").test_images[:3]
        clean = torch.stack([image[:, 20:84, 20:84] for image in images]).float() / 255
        noisy = clean + noise * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
        grid = [2 * noise * share for share in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)]
        best = max(psnr(lmd.denoise(noisy, weight, tolerance=1e-2), clean) for weight in grid)
        assert psnr(lmd.denoise(noisy), clean) >= best - 0.3

    def test_images_without_noise_or_contrast(self):
        np.testing.assert_allclose(lmd.denoise(np.full((9, 9), 7.0)), 7.0)
        steps = np.kron(np.eye(3), np.ones((8, 8)))
        assert np.abs(lmd.denoise(steps) - steps).max() < 0.03

    def test_warm_starts_end_where_cold_ones_do(self):
        noisy = picture(32, 33)
        _, info = lmd.denoise(noisy, 0.2, info=True)
        again, warm = lmd.denoise(noisy + 0.001, 0.2, warm=info, info=True)
        np.testing.assert_allclose(again, lmd.denoise(noisy + 0.001, 0.2), atol=0.02)
        assert warm.relative <= 1.001e-3
        assert int(warm.result.iterations.max()) <= int(info.result.iterations.max())


def psnr(x, clean):
    return float((-10 * (x.clamp(0, 1) - clean).square().flatten(1).mean(1).log10()).mean())


class TestCoupledColours:
    def test_they_are_the_default_for_three_channels(self):
        y = picture(12, 13, 3)
        np.testing.assert_array_equal(lmd.denoise(y, 0.2), lmd.denoise(y, 0.2, coupled=True))
        assert np.abs(lmd.denoise(y, 0.2) - lmd.denoise(y, 0.2, coupled=False)).max() > 0.01
        assert lmd.denoise(y, np.full((12, 13), 0.2)).shape == y.shape
        apart = lmd.denoise(y, np.full((12, 13, 3), 0.2))
        np.testing.assert_allclose(apart, lmd.denoise(y, 0.2, coupled=False), atol=0.01)

    def test_they_are_nearer_to_photographs(self):
        clean = np.asarray(image_data("photographs").test_images[0].permute(1, 2, 0)) / 255
        noisy = clean + 0.1 * np.random.default_rng(0).normal(size=clean.shape)
        errors = [np.mean((lmd.denoise(noisy, coupled=each) - clean) ** 2) for each in (None, False)]
        assert errors[0] < 0.95 * errors[1]


class TestWeightsOfOtherLibraries:
    """The table of `lmd.imaging.functions`."""

    noisy = picture(24, 25)
    options: ClassVar = {"weight": 0.2, "tolerance": 1e-6}

    def test_scikit_image(self):
        restoration = pytest.importorskip("skimage.restoration")
        theirs = restoration.denoise_tv_chambolle(self.noisy, weight=0.1, eps=1e-9, max_num_iter=3000)
        np.testing.assert_allclose(lmd.denoise(self.noisy, isotropic=True, **self.options), theirs, atol=2e-3)

    def test_prox_tv(self):
        theirs = pytest.importorskip("prox_tv").tv1_2d(self.noisy, 0.1)
        np.testing.assert_allclose(lmd.denoise(self.noisy, **self.options), theirs, atol=2e-3)

    def test_deepinv(self):
        denoiser = pytest.importorskip("deepinv").models.TVDenoiser(n_it_max=3000, crit=1e-8)
        y = torch.tensor(self.noisy)[None, None]
        assert_close(lmd.denoise(y, isotropic=True, **self.options), denoiser(y, ths=0.1), rtol=0, atol=2e-3)

    def test_cil(self):
        functions, framework = (pytest.importorskip(f"cil.{name}") for name in ("optimisation.functions", "framework"))
        container = framework.ImageGeometry(voxel_num_x=25, voxel_num_y=24).allocate()
        container.fill(self.noisy.astype(np.float32))
        theirs = functions.TotalVariation(max_iteration=3000).__rmul__(0.1).proximal(container, 1.0).as_array()
        np.testing.assert_allclose(lmd.denoise(self.noisy, isotropic=True, **self.options), theirs, atol=5e-3)


class TestInpaint:
    def test_lost_pixels_may_be_anything(self):
        noisy, rng = picture(20, 21, 3), np.random.default_rng(2)
        mask = rng.random((20, 21)) > 0.4
        holes = np.where(mask[..., None], noisy, np.nan)
        one = lmd.inpaint(holes, mask, 0.1)
        np.testing.assert_allclose(one, lmd.inpaint(noisy * mask[..., None], mask[..., None] & np.ones(3, bool), 0.1))
        assert np.isfinite(one).all()

    def test_the_weight_is_found(self):
        noisy = picture(40, 41)
        mask = np.random.default_rng(2).random((40, 41)) > 0.5
        _, info = lmd.inpaint(noisy, mask, info=True)
        assert 0.02 < info.weight < 0.4 and info.relative <= 1.001e-3
        assert info.choice is not None and len(info.choice.risk) >= 4

    def test_a_mask_of_another_size(self):
        with pytest.raises(InputError, match=r"^mask: got shape \(3, 3\), expected shape \(20, 21\)"):
            lmd.inpaint(picture(20, 21), np.ones((3, 3)))

    def test_lists_have_one_mask_or_a_list_of_them(self):
        images, mask = [picture(12, 13), picture(12, 13, seed=1)], np.random.default_rng(2).random((12, 13)) > 0.3
        shared = lmd.inpaint(images, mask, 0.1)
        apart, told = lmd.inpaint(images, [mask, ~mask], 0.1, info=True)
        assert len(shared) == len(apart) == len(told) == 2
        np.testing.assert_array_equal(shared[1], lmd.inpaint(images[1], mask, 0.1))
        np.testing.assert_array_equal(apart[1], lmd.inpaint(images[1], ~mask, 0.1))
        with pytest.raises(InputError, match=r"^mask: got 1 masks, expected one, or one for each of 2 images"):
            lmd.inpaint(images, [mask])


class TestDeblur:
    def test_lists_are_solved_one_by_one(self):
        images, kernel = [picture(12, 13), picture(14, 13)], np.ones((3, 3)) / 9
        found, told = lmd.deblur(images, kernel, 0.05, border="circular", info=True)
        np.testing.assert_array_equal(found[1], lmd.deblur(images[1], kernel, 0.05, border="circular"))
        assert len(told) == 2

    def test_it_is_nearer_to_the_truth_than_what_came_in(self):
        rng = np.random.default_rng(0)
        clean = np.kron(rng.random((4, 4)), np.ones((8, 8)))
        kernel = gaussian_kernel(1.0)
        blurred = Blur(kernel, 32, 32, "replicate")(torch.tensor(clean)[None, None].float())[0, 0].numpy()
        noisy = blurred + 0.01 * rng.normal(size=blurred.shape).astype(np.float32)
        x, info = lmd.deblur(noisy, kernel, tolerance=1e-2, info=True)
        assert np.mean((x - clean) ** 2) < 0.5 * np.mean((noisy - clean) ** 2)
        assert x.dtype == np.float32 and info.relative <= 1.001e-2

    def test_a_kernel_larger_than_the_image(self):
        with pytest.raises(InputError, match=r"^kernel"):
            lmd.deblur(picture(5, 5), np.ones((9, 9)) / 81, 0.1)


class TestReconstruct:
    def test_an_operator_of_ours_and_two_functions_agree(self):
        rng = np.random.default_rng(0)
        A, x = rng.normal(size=(30, 40)) / 6, np.repeat([0.2, 0.9], 20)
        options = {"shape": (40,), "weight": 1e-3, "tolerance": 1e-5, "box": (0, 1)}
        one, told = lmd.reconstruct(A @ x, lambda x: A @ x, lambda z: A.T @ z, info=True, **options)
        assert np.abs(one - x).max() < 0.05 and one.dtype == np.float64
        assert told.result.status == (Status.TOLERANCE_REACHED,), "float32 does not get there without noise"
        y = torch.tensor(A @ x)
        two = lmd.reconstruct(y, lambda x: torch.tensor(A).to(x) @ x, lambda z: torch.tensor(A).to(z).T @ z, **options)
        np.testing.assert_allclose(two.numpy(), one, atol=1e-2)

    def test_without_an_adjoint(self):
        with pytest.raises(InputError, match=r"^adjoint: got nothing"):
            lmd.reconstruct(np.ones(3), lambda x: x, shape=(3,), weight=0.1)

    def test_no_box_is_part_of_the_problem_unless_it_is_given(self):
        rng = np.random.default_rng(0)
        A, x = rng.normal(size=(50, 40)) / 8, np.repeat([0.0, 300.0, -120.0, 0.0], 10)
        options = {"shape": (40,), "tolerance": 1e-2, "info": True}
        for scale in (1.0, 1e-4):
            call = (scale * A @ x, lambda x: A @ x, lambda z: A.T @ z)
            found, told = lmd.reconstruct(*call, weight=10 * scale, **options)
            assert np.abs(found - scale * x).max() < 15 * scale and told.relative <= 1.001e-2
        assert lmd.reconstruct(*call, weight=10 * scale, box=(0, 1e-3), **options)[0].max() <= 1e-3


class TestVideo:
    def test_the_weight_follows_a_fade_in(self):
        rng = np.random.default_rng(0)
        clean = np.kron(rng.random((6, 6)), np.ones((8, 8)))
        shares = np.array([0, 0.2, 0.6, 1.0, 1.0])[:, None, None]
        frames = shares * clean + 0.1 * rng.normal(size=(5, 48, 48)) * (shares > 0)
        found, told = lmd.denoise_video(frames, info=True)
        assert told[0].weight < 0.01 and told[3].weight > 0.05 and told[4].weight == told[3].weight
        assert np.mean((found[3:] - clean) ** 2) < 0.2 * 0.1**2

    def test_kinds_of_frames(self):
        frames = np.stack([picture(16, 17) + 0.01 * k for k in range(3)])
        out = lmd.denoise_video(frames, 0.1)
        assert isinstance(out, np.ndarray) and out.shape == frames.shape
        one_by_one = lmd.denoise_video(iter(list(frames)), 0.1)
        np.testing.assert_allclose(next(one_by_one), out[0])
        as_list, told = lmd.denoise_video(list(frames), info=True)
        assert isinstance(as_list, list) and len(told) == 3
        assert len({info.weight for info in told}) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lmd.denoise("photo.png"), "image: got str"),
        (lambda: lmd.denoise(picture(8, 8), "best"), "weight: got 'best', expected a positive number or 'auto'"),
        (lambda: lmd.denoise(picture(8, 8), -1.0), "weight: got -1.0"),
        (lambda: lmd.denoise(picture(8, 8), noise=0.0), "noise: got 0.0"),
        (lambda: lmd.denoise(picture(8, 8), np.array([0.1, 0.2])), "weight: got an array of shape"),
        (lambda: lmd.denoise(picture(8, 8), channel_axis=5), "channel_axis: got 5"),
        (lambda: lmd.denoise(np.array([[1.0, np.inf]])), "image: got 1 of 2 numbers that are not finite"),
        (lambda: lmd.denoise(picture(8, 8), 0.1, tolerance=0), "tolerance: got 0"),
        (lambda: lmd.denoise(picture(8, 8), 0.1, warm="yesterday"), "warm: got str"),
        (
            lambda: lmd.denoise(torch.ones(1, 1, 4, 4, requires_grad=True)),
            "image: got a tensor that requires gradients",
        ),
        (lambda: lmd.denoise(np.full((4, 4), 2**60)), "image: got whole numbers of 1.2e+18"),
        (lambda: lmd.denoise(np.zeros((0, 4))), "image: got shape (0, 4), expected at least one pixel"),
        (lambda: lmd.denoise([picture(8, 8), np.zeros((0, 4))], 0.1), "image: got shape (0, 4)"),
        (lambda: lmd.denoise(picture(8, 8), channel_axis="first"), "channel_axis: got 'first'"),
        (lambda: lmd.deblur(picture(8, 8), np.ones(3) / 3), "kernel: got shape (3,)"),
        (lambda: lmd.deblur(picture(8, 8), np.full((3, 3), np.nan)), "kernel: got 9 of 9 numbers"),
        (lambda: lmd.deblur(picture(8), np.ones((3, 3)) / 9), "image: got shape (8,)"),
        (lambda: lmd.deblur(picture(8, 8), np.ones((5, 5))), "kernel: got an array that sums to 25, expected a sum of"),
        (lambda: lmd.inpaint(picture(8, 8), np.zeros((8, 8))), "mask: got 0 everywhere"),
        (lambda: lmd.inpaint(picture(8, 8), np.full((8, 8), np.nan)), "mask: got 64 of 64 numbers that are NaN"),
        (lambda: lmd.inpaint(scratched(), scratched() == 9), "mask: got one that keeps 12% of the pixels, all of one"),
        (lambda: lmd.inpaint(torch.tensor(scratched()), scratched() == 9), "mask: got one that keeps 12%"),
        (lambda: lmd.denoise(picture(3, 9, 8)), "image: got an array of shape (3, 9, 8), expected channel_axis=0"),
        (lambda: lmd.denoise_video(np.zeros((0, 4, 4))), "frames: got none"),
    ],
)
def test_bad_input_is_one_line(call, words):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)


class TestInputsOfEveryKind:
    @pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 9), (9, 1), (2, 2, 3), (1, 1, 1)])
    def test_one_pixel_wide(self, shape):
        array = np.random.default_rng(0).random(shape)
        clean = lmd.denoise(array)
        assert clean.shape == shape and np.isfinite(clean).all()

    def test_a_blur_is_chosen_for_on_windows_of_large_images(self):
        noisy = picture(150, 151).astype(np.float32)
        _, info = lmd.deblur(noisy, gaussian_kernel(1.0), tolerance=0.1, info=True)
        assert info.choice is not None and 0 < info.weight < 1

    @pytest.mark.filterwarnings("ignore:weight")
    def test_a_blur_that_is_wider_than_a_window(self):
        noisy = picture(96, 97).astype(np.float32)
        _, info = lmd.deblur(noisy, np.full((1, 49), 1 / 49), tolerance=0.3, info=True)
        assert info.choice is not None and 0 < info.weight < 1

    def test_a_hole_larger_than_a_window(self):
        noisy, mask = picture(150, 151), np.ones((150, 151), bool)
        mask[10:100, 10:100] = False
        _, info = lmd.inpaint(noisy, mask, tolerance=0.1, info=True)
        assert 0 < info.weight < 1

    def test_a_mask_goes_with_channels_on_any_axis(self):
        noisy, mask = picture(20, 21, 3), np.random.default_rng(2).random((20, 21)) > 0.4
        last = lmd.inpaint(noisy, mask, 0.1)
        for axis in (0, 1):
            moved = lmd.inpaint(np.moveaxis(noisy, 2, axis), mask, 0.1, channel_axis=axis)
            np.testing.assert_allclose(np.moveaxis(moved, axis, 2), last, atol=1e-6)

    def test_noise_is_in_the_numbers_of_the_array(self):
        clean = picture(40, 41).clip(0, 1)
        weights = [
            lmd.denoise((clean * white).astype(kind), noise=0.1 * white, info=True)[1].weight
            for kind, white in ((np.uint8, 255), (np.uint16, 65535), (np.float64, 1))
        ]
        np.testing.assert_allclose(weights, weights[0], rtol=0.02)

    def test_a_choice_is_in_the_units_of_the_weight(self):
        _, info = lmd.denoise(1e6 * picture(24, 25), info=True)
        assert float(info.choice.path[0]) <= info.weight <= float(info.choice.path[-1])
        assert float(info.choice.noise) == pytest.approx(info.noise)

    def test_a_batch_says_its_weights(self):
        _, info = lmd.denoise(torch.rand(2, 1, 8, 8), torch.tensor([0.1, 0.25]), info=True)
        assert str(info).startswith("weight 0.1 to 0.25, within")

    def test_measurements_of_signals_in_batches(self):
        A = torch.randn(30, 40, generator=torch.Generator().manual_seed(0)) / 6
        operator = FromFunctions(lambda x: A.to(x) @ x, lambda z: A.to(z).T @ z, (40,))
        x = torch.rand(3, 8, 40, generator=torch.Generator().manual_seed(1))
        found = lmd.reconstruct(operator(x), operator, shape=(40,), weight=0.01, tolerance=0.1)
        assert found.shape == x.shape and found.dtype == torch.float32


def test_denoise_takes_the_forms_of_the_models():
    rng = np.random.default_rng(0)
    image = np.clip(rng.random((6, 7, 1)) + 0.1 * rng.normal(size=(6, 7, 3)), 0, 1)
    y = torch.from_numpy(image).movedim(-1, 0)[None]
    for form in (
        {"coupled": True},
        {"coupled": False, "huber": 0.05},
        {"coupled": True, "huber": 0.05, "isotropic": True},
    ):
        found, info = lmd.denoise(image, 0.2, tolerance=1e-6, info=True, spacing=(1.0, 2.0), **form)
        problem = lmd.problems.TVModel(lmd.terms.Squares(y), 0.2, spacing=(1.0, 2.0), **form)
        solved = lmd.run(lmd.solvers.FGP(restart=True), problem, y, 5000, tolerance=1e-7)
        least = solved.values
        assert info.relative <= 1.001e-6
        assert float(problem.value(torch.from_numpy(found).movedim(-1, 0)[None])) == pytest.approx(
            float(least), rel=2e-6
        )
    tenfold = lmd.denoise(10 * image, 2.0, tolerance=1e-6, spacing=(1.0, 2.0), coupled=True, huber=0.5, isotropic=True)
    np.testing.assert_allclose(tenfold, 10 * found, atol=1e-2)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("data", "weight"), [("poisson", 0.1), ("absolute", 1.0), ("squares", 50.0)])
@pytest.mark.parametrize("scale", [1000.0, 1.0])
def test_what_is_proven_is_what_was_asked_for_in_any_unit(data, order, weight, scale):
    y = scale * np.random.default_rng(0).poisson(1000 * picture(20, 21).clip(0.1, 1)) / 1000
    asked = {"data": data, "order": order, "info": True, "tolerance": 1e-2}
    _, info = lmd.denoise(y, weight * (scale / 1000 if data == "squares" else 1), **asked)
    assert info.relative <= 1.001e-2
    _, again = lmd.denoise(y, info.weight, warm=info, **asked)
    assert again.relative <= 1.001e-2
    assert int(again.result.iterations) <= 10 + int(info.result.iterations) // 4


def test_in_inference_mode_as_elsewhere():
    noisy, mask = picture(20, 21), picture(20, 21) > 0.2
    options = ({}, {"data": "absolute"}, {"order": 2})
    with torch.inference_mode():
        found = [lmd.denoise(noisy, info=True, **each) for each in options]
        filled = lmd.inpaint(noisy, mask)
        assert all(info.relative <= 1.001e-3 for _, info in found)
    for (clean, _), each in zip(found, options, strict=True):
        np.testing.assert_array_equal(clean, lmd.denoise(noisy, **each))
    np.testing.assert_array_equal(filled, lmd.inpaint(noisy, mask))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int32])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_images_far_from_0_lose_pixels_as_others_do(kind, make):
    noisy, mask = (1000 * picture(32, 33)).round(), np.random.default_rng(2).random((32, 33)) > 0.3
    found = []
    for level in (0, -10_000_000):
        array = np.where(mask, noisy + level, np.nan if kind is not np.int32 else 0).astype(kind)
        _, info = lmd.inpaint(make(array), mask, info=True)
        assert info.relative <= 1.001e-3
        found.append((info.noise, info.weight))
    np.testing.assert_allclose(*found, rtol=1e-2)


@pytest.mark.parametrize(
    "array", [np.ones((3, 4), bool), np.full((3, 4), 2**60), np.full((3, 4), 7, np.uint16), np.full((3, 4), np.inf)]
)
def test_lost_pixels_of_any_dtype(array):
    mask = np.ones((3, 4), bool)
    mask[1, 1] = False
    for given in (array, torch.from_numpy(array)):
        if array.max() > 2**53:
            with pytest.raises(InputError, match="at most 2\\^53" if array.dtype.kind == "i" else "11 of 12 numbers"):
                lmd.inpaint(given, mask, 0.1)
        else:
            assert lmd.inpaint(given, mask, 0.1)[1, 1] == array[0, 0]


@pytest.mark.parametrize("shape", [(1,), (1, 1), (9, 1), (1, 9), (5, 1, 1), (8, 1, 3)])
def test_images_one_pixel_wide_lose_pixels_as_others_do(shape):
    array, mask = np.random.default_rng(0).random(shape), np.ones(shape, bool)
    array.flat[-1], mask.flat[-1] = np.nan, math.prod(shape) == 1
    filled, info = lmd.inpaint(np.nan_to_num(array) if mask.all() else array, mask, info=True)
    assert filled.shape == shape and np.isfinite(filled).all() and 0 < info.weight < 1


class TestReconstructWithAnAdjointThatIsOff:
    n, weight = 24, 1e-2

    def measured(self, dtype):
        rng = np.random.default_rng(0)
        A, x = rng.normal(size=(self.n, self.n)) / self.n**0.5, np.repeat([0.3, 0.7], self.n // 2)
        A, E = A.astype(dtype).astype(float), rng.normal(size=(self.n, self.n))
        y = (A @ x + 0.02 * rng.normal(size=self.n)).astype(dtype)
        return A, y, E / np.linalg.norm(E, 2) * np.linalg.norm(A, 2)

    def solve(self, y, A, B, dtype, tolerance=1e-4):
        A, B = A.astype(dtype), B.T.astype(dtype)
        forward, adjoint = (lambda x, M=M: M @ x.astype(dtype) for M in (A, B))
        return lmd.reconstruct(
            y, forward, adjoint, shape=(self.n,), weight=self.weight, tolerance=tolerance, info=True
        )[1]

    @pytest.mark.filterwarnings("ignore:tolerance:lmd.errors.PictureWarning")
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_the_bound_holds_or_the_adjoint_is_refused(self, dtype):
        A, y, E = self.measured(dtype)
        value = lambda x: float(((A @ x - y) ** 2).sum() + self.weight * np.abs(np.diff(x)).sum())  # noqa: E731
        best = self.solve(y.astype(float), A, A, np.float64, 1e-9)
        lowest = value(best.result.x.double().flatten().numpy())
        refused = 0
        for size in (0.0, 1e-16, 1e-12, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 1e-1):
            try:
                info = self.solve(y, A, A + size * E, dtype)
            except InputError:
                refused += 1
                continue
            gap = value(info.result.x.double().flatten().numpy()) - lowest
            assert gap <= float(info.certificate.bound)
            reached = info.result.status[0] is lmd.solvers.Status.TOLERANCE_REACHED
            assert reached == (info.relative <= 1e-4)
            if size <= (1e-7 if dtype == np.float64 else 0):
                assert reached or dtype == np.float32
                assert info.relative < 1e-3
        assert 1 <= refused <= 3

    def test_a_tensor_of_float32_has_functions_of_float32(self):
        A, y, _ = self.measured(np.float32)
        matrix = torch.tensor(A, dtype=torch.float32)
        found, info = lmd.reconstruct(
            torch.tensor(y), lambda x: matrix @ x, lambda z: matrix.T @ z, shape=(self.n,), weight=0.01, info=True
        )
        assert found.dtype == torch.float32 and info.relative <= 1.001e-3


@pytest.mark.filterwarnings("ignore:tolerance:lmd.errors.PictureWarning")  # a gap of rounding is left
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 1, 4)])
def test_numbers_that_float32_does_not_hold_are_solved_for_in_float64(shape):
    """In float32 the offset of 8.4e9 is rounded by up to 512, where all differences are below 1."""
    steps = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).round()
    image = 8366528071.3 + steps
    for options in ({"data": "absolute", "order": 2}, {"data": "squares", "order": 2}, {"data": "absolute"}):
        found, info = lmd.denoise(image, 1e-3, info=True, **options)
        assert float((found - image).abs().max()) < 1e-2
        assert float(info.certificate.bound.max()) < 1e-2


class TestWhatIsSaid:
    def test_grey_levels_are_of_the_range(self):
        y = picture(20, 21)
        levels = [lmd.denoise(scale * y, 0.2 * scale, info=True)[1].grey_levels for scale in (1.0, 255.0, 65535.0)]
        np.testing.assert_allclose(levels[1:], levels[1], rtol=0.05)
        assert levels[1] < 2 * levels[0] < 10

    def test_seconds_include_the_choice(self):
        begun = time.perf_counter()
        _, info = lmd.denoise(picture(64, 65), info=True)
        assert 0 < info.choice_seconds < info.seconds <= time.perf_counter() - begun
        assert info.seconds == pytest.approx(info.choice_seconds + info.result.seconds)
        assert "to choose the weight" in str(info)

    def test_a_tolerance_that_is_missed(self):
        mask = np.zeros((16, 16))
        mask[1, 2] = mask[14, 13] = 1
        with pytest.warns(PictureWarning, match=r"^tolerance: 1e-09 was asked for, .* is proven") as caught:
            _, info = lmd.inpaint(picture(16, 16).astype(np.float32), mask, 1e-3, tolerance=1e-9, info=True)
        assert caught[0].filename == __file__ and "the minimum" in str(info)

    def test_weights_beyond_those_that_were_tried(self, monkeypatch):
        y = np.repeat([0.0, 1.0, 0.4], 300) + 0.1 * np.random.default_rng(0).normal(size=900)
        _, info = lmd.denoise(y, info=True)
        assert info.weight > 2 * 1.8 * info.noise and not bool(info.choice.at_end.any())
        chosen = models.choose_by_risk
        monkeypatch.setattr(chosen, "__defaults__", (*chosen.__defaults__[:-1], ()))
        with pytest.warns(PictureWarning, match=r"^weight: .* at the end of those that were tried"):
            lmd.denoise(y)


def test_alpha_is_neither_denoised_nor_part_of_the_estimate():
    colours = (picture(40, 41, 3).clip(0, 1) * 255).astype(np.uint8)
    for alpha in (np.full((40, 41), 255), np.random.default_rng(0).integers(0, 256, (40, 41))):
        both = np.dstack([colours, alpha.astype(np.uint8)])
        found = lmd.denoise(both)
        np.testing.assert_array_equal(found[..., :3], lmd.denoise(colours))
        np.testing.assert_array_equal(found[..., 3], both[..., 3])
        mask = np.random.default_rng(1).random((40, 41)) > 0.3
        filled = lmd.inpaint(both, mask, 0.1)
        np.testing.assert_array_equal(filled[..., :3], lmd.inpaint(colours, mask, 0.1))
        np.testing.assert_array_equal(filled[..., 3], both[..., 3])


def test_a_weight_behind_a_blur_is_near_the_best():
    rng = np.random.default_rng(0)
    clean = np.kron(rng.random((4, 4)), np.ones((8, 8)))
    kernel = gaussian_kernel(1.0)
    blurred = Blur(kernel, 32, 32, "replicate")(torch.tensor(clean)[None, None].float())[0, 0].numpy()
    noisy = blurred + 0.03 * rng.normal(size=blurred.shape).astype(np.float32)
    found, info = lmd.deblur(noisy, kernel, tolerance=1e-2, info=True)
    assert float(info.choice.risk.max()) > 1.02 * float(info.choice.risk.min())
    best = min(
        np.mean((lmd.deblur(noisy, kernel, weight, tolerance=1e-2) - clean) ** 2) for weight in (0.01, 0.02, 0.03)
    )
    assert np.mean((found - clean) ** 2) < 1.12 * best


def test_the_weight_that_is_told_is_the_one_that_the_certificate_holds_for():
    """In float32, 0.3 is rounded: values of F with a weight of 0.3 are other numbers."""
    y = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8).round()
    _, info = lmd.denoise(y, 0.3, info=True)
    assert info.result.x.dtype == torch.float32
    assert info.weight == float(info.result.problem.weight) == pytest.approx(0.3)
