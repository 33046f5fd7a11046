import pytest
import torch
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.problems import TVDenoisingFamily, TVInpaintingFamily
from lmd.problems.image_families import add_noise, random_masks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(*shape):
    """An image whose pixels are all different, so that a crop tells where it is from."""
    size = torch.Size(shape).numel()
    return torch.arange(size, dtype=torch.float32).reshape(shape) / size


class TestDenoising:
    def test_without_noise_a_sample_is_crops_and_mirrored_crops(self):
        image = numbered(1, 6, 7)
        problem, x0 = TVDenoisingFamily([image], noise=0.0, crop=3).sample(200, generator())
        pieces = {
            (i, j, tuple(flips)): image[:, i : i + 3, j : j + 3].flip(flips)
            for i in range(4)
            for j in range(5)
            for flips in ([], [1], [2], [1, 2])
        }
        found = {next(place for place, piece in pieces.items() if torch.equal(crop, piece)) for crop in x0}
        assert {place[:2] for place in found} == {place[:2] for place in pieces}  # every corner and border is reached
        assert {place[2] for place in found} == {(), (1,), (2,), (1, 2)}
        assert_close(problem.noisy, x0, rtol=0, atol=0)

    def test_images_of_several_sizes_bytes_and_whole_images(self):
        images = [torch.full((3, 8, 9), 255, dtype=torch.uint8), torch.full((3, 12, 5), 51, dtype=torch.uint8)]
        _, x0 = TVDenoisingFamily(images, noise=0.0, crop=5).sample(50, generator())
        assert x0.shape == (50, 3, 5, 5) and x0.dtype == torch.float32
        assert_close(x0.amax((1, 2, 3)), x0.amin((1, 2, 3)))
        assert_close(x0.unique(), torch.tensor([0.2, 1.0]))
        _, whole = TVDenoisingFamily(numbered(2, 3, 4, 5), noise=0.0, dtype=torch.float64).sample(3, generator())
        assert whole.shape == (3, 3, 4, 5) and whole.dtype == torch.float64

    def test_noise_and_weights_are_drawn_per_image(self):
        flat = torch.full((1, 1, 64, 64), 0.5)
        problem, x0 = TVDenoisingFamily(flat, noise=(0.1, 0.3), weight=(0.2, 0.6)).sample(40, generator())
        levels = (x0 - 0.5).flatten(1).std(dim=1)
        assert 0.09 < float(levels.min()) < 0.15 and 0.25 < float(levels.max()) < 0.31
        assert 0.2 <= float(problem.weight.min()) < 0.25 and 0.55 < float(problem.weight.max()) <= 0.6
        problem, x0 = TVDenoisingFamily(flat, noise=0.05).sample(40, generator())
        assert_close((x0 - 0.5).std().item(), 0.05, rtol=0.02, atol=0)
        assert_close(problem.weight, torch.full((40,), 0.3))

    def test_options_reach_the_problem_and_the_generator_decides_everything(self):
        family = TVDenoisingFamily(numbered(2, 3, 8, 8), crop=4, isotropic=True, halved=True)
        (problem, x0), (_, again), (_, other) = (family.sample(3, generator(seed)) for seed in (1, 1, 2))
        assert problem.isotropic and problem.halved
        assert_close(again, x0, rtol=0, atol=0)
        assert not torch.equal(other, x0)


class TestInpainting:
    def test_lost_pixels_start_at_noise_around_0_and_masks_differ(self):
        family = TVInpaintingFamily(torch.full((1, 3, 20, 20), 0.5), noise=0.01, kept=0.8)
        problem, x0 = family.sample(5, generator())
        assert problem.mask.shape == (5, 1, 20, 20)
        assert_close(problem.mask.flatten(1).sum(1), torch.full((5,), 320.0))
        assert not torch.equal(problem.mask[0], problem.mask[1])
        assert_close(x0, (0.5 * problem.mask).expand_as(x0), rtol=0, atol=0.06)
        assert_close(problem.noisy, x0, rtol=0, atol=0)

    def test_the_share_of_kept_pixels_is_drawn_per_image(self):
        problem, _ = TVInpaintingFamily(torch.ones(1, 1, 10, 10), kept=(0.3, 0.9)).sample(30, generator())
        shares = problem.mask.flatten(1).mean(1)
        assert 0.3 <= float(shares.min()) < 0.4 and 0.8 < float(shares.max()) <= 0.9

    def test_one_mask_for_all(self):
        mask = torch.eye(4)
        problem, _ = TVInpaintingFamily(torch.ones(1, 2, 9, 9), crop=4, mask=mask).sample(3, generator())
        assert_close(problem.mask, mask.expand(3, 1, 4, 4))


def test_masks_keep_at_least_one_pixel():
    assert_close(random_masks(4, 3, 3, 0.01, generator()).flatten(1).sum(1), torch.ones(4))


def test_noise_of_one_level_per_image():
    noisy = add_noise(torch.zeros(2, 1, 100, 100), torch.tensor([0.0, 2.0]), generator())
    assert float(noisy[0].abs().max()) == 0
    assert_close(noisy[1].std().item(), 2.0, rtol=0.03, atol=0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TVDenoisingFamily([]), "images: got none"),
        (lambda: TVDenoisingFamily([torch.ones(4, 4)]), r"images: got an image of shape \(4, 4\)"),
        (lambda: TVDenoisingFamily(["a.png"]), "images: got an image of str"),
        (lambda: TVDenoisingFamily(torch.ones(1, 1, 4, 4).int()), "images: got torch.int32"),
        (
            lambda: TVDenoisingFamily([torch.ones(1, 4, 4), torch.ones(3, 4, 4)]),
            r"images: got images of \[1, 3\] channels",
        ),
        (lambda: TVDenoisingFamily([torch.ones(1, 4, 4), torch.ones(1, 5, 4)]), "crop: got None, expected a size"),
        (lambda: TVDenoisingFamily(torch.ones(1, 1, 4, 6), crop=5), "crop: got 5, expected at most 4"),
        (lambda: TVDenoisingFamily(torch.ones(1, 1, 4, 4), noise=-0.1), "noise: got -0.1"),
        (lambda: TVDenoisingFamily(torch.ones(1, 1, 4, 4), noise=(0.2, 0.1)), r"noise: got \(0.2, 0.1\)"),
        (lambda: TVDenoisingFamily(torch.ones(1, 1, 4, 4), weight=(0.0, 0.1)), "weight: got 0.0"),
        (lambda: TVInpaintingFamily(torch.ones(1, 1, 4, 4), kept=1.5), "kept: got 1.5"),
        (lambda: TVInpaintingFamily(torch.ones(1, 1, 4, 4), mask=torch.ones(3, 3)), r"mask: got shape \(3, 3\)"),
        (lambda: TVDenoisingFamily(torch.ones(1, 1, 4, 4)).sample(0, generator()), "batch: got 0"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(InputError, match=r"^" + words):
        call()
