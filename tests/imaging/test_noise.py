"""Noise found in images is the noise that was added."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

import lmd
from lmd.imaging import noise
from lmd.imaging.noise import UNKNOWN, measure, rough_noise
from lmd.reproduction.datasets import image_data


@pytest.mark.parametrize("size", [(5000,), (96, 96), (20, 21, 22)])
def test_noise_alone(size: tuple[int, ...]) -> None:
    y = torch.randn(3, 2, *size, generator=torch.Generator().manual_seed(0))
    scales = torch.tensor([0.01, 0.3, 4.0])
    found = measure(y * scales.reshape(-1, *(1,) * (y.ndim - 1))).level
    torch.testing.assert_close(found, scales, rtol=0.06, atol=0)


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.05, 0.25])
def test_photographs(noise: float) -> None:
    clean = torch.stack([image[:, :96, :96] for image in image_data("photographs").test_images[:6]]).float() / 255
    found = measure(clean + noise * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))).level
    assert float(found.median()) == pytest.approx(noise, rel=0.15)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 2, 50), (2, 1, 3), (1, 1, 9, 1, 9)])
def test_small_and_thin_images(shape: tuple[int, ...]) -> None:
    found = measure(torch.rand(shape)).level
    assert found.shape == shape[:1] and bool(torch.isfinite(found).all())


def test_noise_of_kept_pixels_is_seen_along_the_axis_that_there_is() -> None:
    y = 0.1 * torch.randn(2, 1, 1, 4000, generator=torch.Generator().manual_seed(0))
    across = rough_noise(y, torch.ones_like(y))
    torch.testing.assert_close(across, torch.full((2,), 0.1), rtol=0.1, atol=0)
    assert torch.equal(rough_noise(y.mT, torch.ones_like(y.mT)), across)
    assert torch.equal(rough_noise(y[..., :1], torch.ones_like(y[..., :1])), torch.full((2,), UNKNOWN))


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("shift", range(8))
def test_squares_that_lie_across_the_blocks(shift: int, noise: float) -> None:
    side = (torch.arange(96) + shift) // 16
    board = ((side[:, None] + side) % 2).float()[None, None]
    found = measure(board + noise * torch.randn(board.shape, generator=torch.Generator().manual_seed(0))).level
    assert float(found) <= 1e-6 + 3 * noise


def photograph(side: int = 96) -> np.ndarray:
    return image_data("photographs").test_images[0][:, :side, :side].permute(1, 2, 0).numpy()


def noisy(deviation: float, side: int = 96) -> np.ndarray:
    clean = photograph(side)
    return (clean + deviation * np.random.default_rng(0).normal(size=clean.shape)).round().clip(0, 255).astype(np.uint8)


def test_it_is_in_the_numbers_of_the_array() -> None:
    found = lmd.estimate_noise(noisy(25))
    assert found.level == pytest.approx(25, rel=0.1) and found.level <= found.most and found.confidence > 0.9
    assert found.correlation == pytest.approx(1, abs=0.2)
    batch = lmd.estimate_noise(np.stack([noisy(25), noisy(10)]).transpose(0, 3, 1, 2))
    assert batch.level.tolist() == pytest.approx([found.level, lmd.estimate_noise(noisy(10)).level], rel=1e-4)
    assert lmd.estimate_noise(noisy(25) / 255).level == pytest.approx(found.level / 255, rel=1e-3)


def test_a_clean_picture_has_little_and_is_not_sure_of_it() -> None:
    assert lmd.estimate_noise(photograph()).level < 1.5


@pytest.mark.parametrize("level", [0.8, 1.5])
@pytest.mark.parametrize("number", [20, 80])
def test_grain_that_neighbours_share_belongs_to_the_picture(number: int, level: float) -> None:
    clean = image_data("photographs").test_images[number].permute(1, 2, 0).numpy()
    normal, shape = np.random.default_rng(0).normal, clean.shape
    grey, colours = (
        gaussian_filter(normal(size=(*shape[:2], channels)), (width, width, 0), mode="wrap")
        for channels, width in ((1, 0.5), (3, 0.9))
    )
    grain = level * (0.8 * grey / grey.std() + 0.6 * colours / colours.std())
    image = (clean + grain).round().clip(0, 255).astype(np.uint8)
    change = lmd.denoise(image).astype(float) - image
    assert float(np.sqrt(np.mean(change**2))) < 0.29  # that of rounding


def test_flat_cut_off_and_alpha_do_not_count() -> None:
    inside, level = noisy(20), lmd.estimate_noise(noisy(20)).level
    for fill in (0, 255, 77):
        framed = np.full((192, 192, 3), fill, np.uint8)
        framed[48:144, 48:144] = inside
        assert lmd.estimate_noise(framed).level == pytest.approx(level, rel=0.1)
    opaque = np.dstack([inside, np.full(inside.shape[:2], 255, np.uint8)])
    assert lmd.estimate_noise(opaque).level == pytest.approx(level, rel=1e-6)


@pytest.mark.parametrize("subsampling", [0, 2])
def test_noisy_jpegs(subsampling: int) -> None:
    file = io.BytesIO()
    Image.fromarray(noisy(25)).save(file, "JPEG", quality=80, subsampling=subsampling)
    saved = np.asarray(Image.open(file))
    true = float(np.std(saved - photograph().astype(float)))
    assert lmd.estimate_noise(saved).level == pytest.approx(true, rel=0.2)


@pytest.mark.parametrize("width", [0.6, 1.0])
def test_noise_that_neighbours_share(width: float) -> None:
    shared = gaussian_filter(np.random.default_rng(0).normal(size=photograph().shape), (width, width, 0), mode="wrap")
    found = lmd.estimate_noise(photograph() + 20 * shared / shared.std())
    assert found.level == pytest.approx(20, rel=0.2) and found.correlation > 1.5


def test_what_is_sampled_has_the_deviations_that_were_found() -> None:
    images = torch.tensor(np.stack([noisy(25), noisy(5)])).permute(0, 3, 1, 2).float()
    noise, owner = measure(images), torch.tensor([0, 1, 1])
    found = noise.sample(torch.zeros(3, 3, 132, 130), owner)
    torch.testing.assert_close(found.flatten(1).std(dim=1), noise.level[owner], rtol=0.05, atol=0)


def test_grey_noise_counts_in_three_equal_channels() -> None:
    grey = np.repeat(noisy(25)[..., 1:2], 3, axis=2)
    assert lmd.estimate_noise(grey).level > 0.4 * lmd.estimate_noise(grey[..., 0]).level


def test_noise_that_may_be_texture_is_followed_with_less_caution(monkeypatch: pytest.MonkeyPatch) -> None:
    white, low = torch.ones(2, 7), torch.tensor([1.0, 0.5, 0.1, 0.0, 0.0, 0.0, 0.0]).expand(2, 7)
    y = image_data("photographs").test_images[:1, :, :96, :96].float() / 255
    cautions = []
    for spectrum in (1e-3 * white, 1e-3 * low, 0 * white, 10 * low):
        monkeypatch.setattr(noise, "find_noise", lambda *_, s=spectrum: (s, torch.tensor(1.2)))
        cautions.append(float(measure(y).caution))
    assert cautions == pytest.approx([1.2, (1 - noise.TEXTURE_DISCOUNT) * 1.2, (1 - noise.TEXTURE_DISCOUNT) * 1.2, 1.2])
