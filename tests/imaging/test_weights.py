"""The parts of an image that a weight is chosen on, and how data are moved to see how much the answer follows."""

import pytest
import torch

import lmd
from lmd.imaging import models
from lmd.imaging.models import DenoisingModel, cut


@pytest.mark.parametrize(
    ("kernel", "shape"), [((9, 9), (1, 1, 48, 48)), ((1, 61), (1, 1, 122, 122)), ((101, 3), (1, 1, 150, 160))]
)
def test_windows_are_larger_than_the_kernel(kernel: tuple[int, int], shape: tuple[int, ...]) -> None:
    windows, owner = cut(torch.rand(1, 1, 150, 160), kernel=kernel)
    assert windows.shape == shape and torch.equal(owner, torch.zeros(len(windows), dtype=torch.int64))


def test_what_windows_are_of_lies_where_they_do() -> None:
    for size in (8, 200):
        assert cut(torch.empty(3, 1, size, size, device="meta"))[1].device.type == "meta"


def test_counts_are_not_moved_below_0(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.poisson(torch.full((1, 1, 40, 40), 3.0), generator=generator)
    few = torch.where(torch.rand(counts.shape, generator=generator) < 0.1, 0.05, counts)  # 0.05 - 0.3 sqrt(0.05) < 0
    far = float(DenoisingModel(data="poisson").choose(few).weight)
    monkeypatch.setattr(models, "PUSH", 0.1)  # with which none are
    assert far == pytest.approx(float(DenoisingModel(data="poisson").choose(few).weight), rel=0.1)


def test_lengths_of_huber_are_chosen_for_in_any_unit() -> None:
    noisy = torch.linspace(0, 1, 40).expand(40, 40) + 0.1 * torch.randn(
        40, 40, generator=torch.Generator().manual_seed(0)
    )
    small, large = (lmd.denoise(unit * noisy, huber=0.3 * unit, info=True)[1].weight for unit in (1, 4096))
    assert large == pytest.approx(4096 * small, rel=1e-4)
