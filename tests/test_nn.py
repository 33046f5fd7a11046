"""Layers that solve: answers of the model, derivatives that learn, kinds and devices of any module."""

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.nn import TVLayer
from lmd.problems import TVDenoising


def noisy(*shape, dtype=torch.float64):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("isotropic", [False, True])
def test_it_is_the_solution_with_derivatives(dtype, isotropic):
    y = noisy(2, 3, 8, 9, dtype=dtype).requires_grad_()
    layer = TVLayer(0.2, isotropic=isotropic).to(dtype)
    x = layer(y)
    assert_close(x.detach(), lmd.solve(TVDenoising(y.detach(), 0.2, isotropic), 1e-6).x, rtol=0, atol=0.02)
    x.square().sum().backward()
    assert y.grad.dtype == layer.log_weight.grad.dtype == dtype and bool(torch.isfinite(y.grad).all())
    assert float(layer.log_weight.grad) < 0


@pytest.mark.parametrize("shape", [(1, 12), (1, 5, 6), (2, 5, 6), (1, 3, 4, 5)])
def test_a_map_of_one_weight_is_that_weight(shape):
    y = noisy(2, 2, *shape[1:])
    number, each = TVLayer(0.1, tolerance=1e-6).double(), TVLayer(torch.full(shape, 0.1), tolerance=1e-6).double()
    assert_close(each(y), number(y), rtol=0, atol=2e-3)
    given = torch.full((2, *shape), 0.1, dtype=torch.float64, requires_grad=True)
    assert_close(each(y, given), number(y), rtol=0, atol=2e-3)
    torch.autograd.backward([layer.square().sum() for layer in (number(y), each(y), each(y, given))])
    assert_close(each.log_weight.grad.sum(), number.log_weight.grad, rtol=1e-2, atol=0)
    assert_close(0.1 * given.grad.sum(), number.log_weight.grad, rtol=1e-2, atol=0)


def test_a_weight_is_learned():
    clean = torch.zeros(1, 1, 16, 16).index_fill_(3, torch.arange(8), 1.0)
    y = clean + 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    layer = TVLayer(0.01)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.25, betas=(0.5, 0.9))
    for _ in range(20):
        optimiser.zero_grad()
        (layer(y) - clean).square().mean().backward()
        optimiser.step()
    with torch.no_grad():
        learned, *others = (
            float((each(y) - clean).square().mean()) for each in (layer, *map(TVLayer, (0.05, 0.1, 0.2, 0.4, 0.8)))
        )
    assert learned < 1.2 * min(others)


def test_nothing_is_recorded_where_nothing_asks_for_it():
    layer = TVLayer(0.1)
    with torch.no_grad():
        assert not layer(noisy(1, 1, 5, 5, dtype=torch.float32)).requires_grad
    assert str(layer) == "TVLayer(weight=0.1, isotropic=False)"
    assert str(TVLayer(torch.ones(1, 5, 5))) == "TVLayer(weight=(1, 5, 5), isotropic=False)"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TVLayer(0.0), "weight: got 0.0"),
        (lambda: TVLayer(torch.tensor([[[0.1, -1.0]]])), "weight: got -1"),
        (lambda: TVLayer(0.1, tolerance=0), "tolerance: got 0"),
        (lambda: TVLayer(torch.ones(1, 4, 4))(torch.rand(1, 1, 5, 5)), "weight: got shape (1, 1, 4, 4)"),
        (lambda: TVLayer(0.1)(noisy(1, 1, 5, 5)), "weight: got torch.float32"),
        (lambda: torch.func.vmap(TVLayer(0.1))(torch.rand(2, 1, 1, 5, 5)), "differentiable: got a transform"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(call, words):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)
