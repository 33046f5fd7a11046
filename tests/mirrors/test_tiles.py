import pytest
import torch
from torch.testing import assert_close

from lmd.mirrors import ConvPair, convolutional
from lmd.mirrors.convolutional import BORDERS


def wild_pair(**options):
    """A pair whose networks are far from the identity, so that a seam would show."""
    pair = ConvPair(channels=2, filters=4, **options).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in (pair.forward_net.out, pair.forward_net.hidden):
            weight.copy_(torch.rand(weight.shape, generator=generator, dtype=torch.float64) * 3)
        for weight in pair.backward_net.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 0.5)
    return pair


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("backward", ["residual", "gradient"])
@pytest.mark.parametrize("size", [(45, 61), (90, 10), (33, 32)])
def test_tiles_give_what_the_whole_gives(monkeypatch, border, kernel, backward, size):
    pair = wild_pair(border=border, kernel=kernel, backward=backward, layers=1)
    x = torch.rand(2, 2, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        whole = pair.to_dual(x), pair.to_primal(x)
        monkeypatch.setattr(convolutional, "TILE", 12)
        assert_close((pair.to_dual(x), pair.to_primal(x)), whole, rtol=1e-12, atol=1e-12)
    assert_close((pair.to_dual(x), pair.to_primal(x)), whole, rtol=1e-12, atol=1e-12)  # with a graph: whole


@pytest.mark.parametrize("border", BORDERS)
def test_the_margin_is_as_wide_as_it_has_to_be(monkeypatch, border):
    """One pixel less and the tiles would show; the test above is blind to a reach that is far too large or ignored."""
    pair = wild_pair(border=border, layers=1)
    x = torch.rand(1, 2, 45, 61, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        whole = pair.to_dual(x)
        monkeypatch.setattr(convolutional, "TILE", 12)
        narrow = convolutional.in_tiles(pair.forward_net._gradient, x, 3, border)
    assert float((narrow - whole).abs().max()) > 1e-6


def test_a_mean_over_pixels_is_taken_whole(monkeypatch):
    pair = wild_pair(reduction="mean")
    x = torch.rand(1, 2, 45, 61, dtype=torch.float64)
    with torch.no_grad():
        whole = pair.to_dual(x)
        monkeypatch.setattr(convolutional, "TILE", 12)
        assert_close(pair.to_dual(x), whole)


def test_small_images_are_not_cut(monkeypatch):
    monkeypatch.setattr(convolutional, "TILE", 4)
    seen = []
    convolutional.in_tiles(lambda x: seen.append(tuple(x.shape)) or x, torch.ones(1, 1, 8, 8), 1, "circular")
    assert seen == [(1, 1, 8, 8)]
    convolutional.in_tiles(lambda x: seen.append(tuple(x.shape)) or x, torch.ones(1, 1, 8, 9), 1, "replicate")
    assert (1, 1, 5, 6) in seen and max(shape[3] for shape in seen[1:]) == 6
