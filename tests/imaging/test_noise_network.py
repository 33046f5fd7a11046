"""The network that tells noise from texture: what it may not depend on, and what it is for."""

import numpy as np
import pytest
import torch

from lmd.imaging.noise import (
    NoiseNetwork,
    block_basis,
    cut_blocks,
    features,
    join_blocks,
    measure,
    mix_channels,
    ring_counts,
    ring_means,
    rings,
    trained_networks,
)
from lmd.reproduction.datasets import image_data


def photographs(side: int = 96) -> torch.Tensor:
    return torch.stack([image[:, :side, :side] for image in image_data("photographs").test_images[:6]]).float() / 255


def noisy(level: float) -> torch.Tensor:
    clean = photographs()
    return clean + level * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))


def block_energies(blocks: int = 50) -> torch.Tensor:
    return torch.rand(blocks, 7, generator=torch.Generator().manual_seed(0)) + 0.1


def test_the_order_of_blocks_says_nothing() -> None:
    energies, level = block_energies(), torch.linspace(0, 1, 50)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    here, there = features(energies, 2 * energies, level), features(energies[order], 2 * energies[order], level[order])
    network = trained_networks()[0]
    torch.testing.assert_close(
        network(here.blocks[None], here.whole[None]), network(there.blocks[None], there.whole[None])
    )


def test_blocks_that_are_not_shown_say_nothing() -> None:
    seen = features(block_energies(), None, torch.linspace(0, 1, 50))
    padded = torch.cat([seen.blocks, torch.full((9, 15), 3.0)])[None]
    shown = torch.arange(59)[None] < 50
    network = NoiseNetwork()
    found = network(padded, seen.whole[None], shown)
    torch.testing.assert_close(found, network(seen.blocks[None], seen.whole[None]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-9, 255.0, 1e9])
def test_the_unit_says_nothing(scale: float) -> None:
    images = noisy(0.05)
    torch.testing.assert_close(measure(images * scale).level, measure(images).level * scale, rtol=2e-3, atol=0)


def test_an_image_of_a_batch_is_judged_alone() -> None:
    images = noisy(0.02)
    torch.testing.assert_close(measure(images[2:3]).spectrum[0], measure(images).spectrum[2], rtol=1e-4, atol=0)
    torch.testing.assert_close(measure(images.double()).level, measure(images).level.double(), rtol=1e-3, atol=0)


def test_clean_photographs_have_little_noise_wherever_an_earlier_file_had_its_blocks() -> None:
    photos = image_data("photographs").test_images[:6]
    found = [
        measure(torch.stack([each[:, at : at + 96, at : at + 96] for each in photos]).float() / 255).level
        for at in range(8)
    ]
    levels = torch.stack(found)
    assert float(levels.median(dim=0).values.median()) < 4e-3
    assert float((levels > 0.01).double().mean()) < 0.1


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("level", [0.03, 0.2])
def test_drawings_of_any_channels(channels: int, level: float) -> None:
    rows = torch.arange(112)
    drawing = ((rows[:, None] // 29 + rows // 23) % 3).float()[None, None].expand(1, channels, -1, -1)
    noise = torch.randn(drawing.shape, generator=torch.Generator().manual_seed(0))
    assert float(measure(drawing / 2 + level * noise).level) == pytest.approx(level, rel=0.15)


@pytest.mark.parametrize("lengths", [(32,), (8, 8), (3, 8), (4, 4, 4), (1, 5)])
def test_blocks_are_transformed_and_put_together(lengths: tuple[int, ...]) -> None:
    counts = [2] * len(lengths)
    coefficients = torch.randn(
        1, 2, 2 ** len(lengths), int(np.prod(lengths)), generator=torch.Generator().manual_seed(0)
    )
    image = join_blocks(coefficients, counts, lengths)
    assert image.shape[2:] == tuple(2 * length for length in lengths)
    torch.testing.assert_close(image.square().sum(), coefficients.square().sum())
    corner = image[(slice(None), slice(None), *(slice(0, length) for length in lengths))].flatten(2)
    torch.testing.assert_close(corner @ block_basis(lengths).T, coefficients[:, :, 0], rtol=1e-4, atol=1e-5)
    assert sum(ring_counts(lengths)) == len(rings(lengths))
    assert torch.equal(
        ring_means(lengths).sum(dim=0) > 0, torch.tensor([bool((rings(lengths) == r).any()) for r in range(1, 8)])
    )


def test_channels_are_mixed_and_mixed_back() -> None:
    images = torch.rand(2, 3, 9, 8)
    torch.testing.assert_close(mix_channels(mix_channels(images), back=True), images)
    assert cut_blocks(images, (8, 8)).shape == (2, 3, 2, 64)
