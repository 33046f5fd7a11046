"""Noise found in images is the noise that was added."""

import pytest
import torch

from lmd.data import image_data
from lmd.pictures.noise import UNKNOWN, estimate_noise, rough_noise


@pytest.mark.parametrize("size", [(5000,), (96, 96), (20, 21, 22)])
def test_noise_alone(size: tuple[int, ...]) -> None:
    y = torch.randn(3, 2, *size, generator=torch.Generator().manual_seed(0))
    scales = torch.tensor([0.01, 0.3, 4.0])
    found = estimate_noise(y * scales.reshape(-1, *(1,) * (y.ndim - 1)))
    torch.testing.assert_close(found, scales, rtol=0.06, atol=0)


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.2])
def test_photographs(noise: float) -> None:
    clean = torch.stack([image[:, :96, :96] for image in image_data("photographs").test_images[:6]]).float() / 255
    found = estimate_noise(clean + noise * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)))
    assert float(found.median()) == pytest.approx(noise, rel=0.15)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 2, 50), (2, 1, 3), (1, 1, 9, 1, 9)])
def test_small_and_thin_images(shape: tuple[int, ...]) -> None:
    found = estimate_noise(torch.rand(shape))
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
    found = estimate_noise(board + noise * torch.randn(board.shape, generator=torch.Generator().manual_seed(0)))
    assert float(found) <= 1e-6 + 3 * noise
