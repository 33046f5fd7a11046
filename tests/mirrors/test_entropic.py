import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from lmd.errors import DomainError
from lmd.mirrors import Entropic
from lmd.problems.simplex import KLDivergence, uniform_simplex
from lmd.testing.mirrors import MirrorConformance


class TestEntropic(MirrorConformance):
    def make_mirror(self, dtype):
        return Entropic()

    def points(self, batch, dtype, generator):
        return uniform_simplex(batch, 4, generator, dtype)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def test_a_step_is_the_exponentiated_gradient_step():
    x, gradient = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64), torch.tensor([[1.0, -2.0, 0.5]]).double()
    weights = x * torch.exp(-0.7 * gradient)
    mirror = Entropic()
    assert_close(mirror.to_primal(mirror.to_dual(x) - 0.7 * gradient), weights / weights.sum())


def test_coordinates_of_1e_minus_300_come_back_to_twelve_digits():
    x = torch.tensor([[1e-300, 1e-100, 1.0], [1.0, 3e-305, 0.0]], dtype=torch.float64)
    mirror = Entropic()
    again = mirror.to_primal(mirror.to_dual(x))
    kept = x > 0
    assert_close(again[kept], x[kept], rtol=1e-12, atol=0)
    assert bool((again > 0).all())
    assert bool(torch.isfinite(mirror.potential(x)).all())
    assert_close(mirror.divergence(x.flip(1), x)[0].item(), 300 * math.log(10), rtol=1e-12, atol=0)


@DTYPES
@given(signs=st.lists(st.sampled_from([-1e4, 0.0, 1e4]), min_size=3, max_size=3))
def test_gradients_of_1e4_do_no_harm_and_can_be_taken_back(dtype, signs):
    mirror = Entropic()
    start = torch.tensor([[0.2, 0.3, 0.5]], dtype=dtype)
    push = torch.tensor([signs], dtype=dtype)
    pushed = mirror.to_primal(mirror.to_dual(start) - push)
    assert bool((pushed > 0).all()) and bool(torch.isfinite(mirror.to_dual(pushed)).all())
    mirror.domain.check("pushed", pushed)
    winners = push == push.min()
    assert_close(pushed[winners], (start * winners)[winners] / (start * winners).sum(), rtol=1e-3, atol=1e-3)
    # A coordinate that was driven out of the representable range can be brought back to dominate.
    back = mirror.to_primal(mirror.to_dual(pushed) + 2 * push)
    losers = push == push.max()
    assert back[losers].sum() > 0.99


@DTYPES
def test_descent_on_kl_reaches_a_vertex_and_stays_finite(dtype):
    """Steps of 100 on a target with entries down to the smallest normal number."""
    tiny = torch.finfo(dtype).tiny
    problem = KLDivergence(torch.tensor([[1.0, tiny, tiny], [tiny, 0.5, 0.5]], dtype=dtype))
    mirror, x = Entropic(), torch.full((2, 3), 1 / 3, dtype=dtype)
    for step in (1.0, 100.0, 1.0):
        x = mirror.to_primal(mirror.to_dual(x) - step * problem.subgradient(x))
        assert bool(torch.isfinite(problem.value(x)).all())
    assert_close(x, problem.y, rtol=0, atol=1e-3)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6))
def test_to_primal_is_always_inside(row):
    for dtype in (torch.float32, torch.float64):
        x = Entropic().to_primal(torch.tensor([row], dtype=dtype))
        Entropic().domain.check("x", x)
        assert bool((x > 0).all())


def test_divergence_is_not_negative_next_to_the_diagonal():
    x = uniform_simplex(100, 5, torch.Generator().manual_seed(0), torch.float64)
    z = x * (1 + 1e-9 * torch.randn(100, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    second_order = ((x - z).square() / z).sum(dim=1) / 2
    assert_close(Entropic().divergence(x, z), second_order, rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(3,), (2, 1, 3)])
def test_points_are_batches_of_vectors(shape):
    for call, name in ((Entropic().to_dual, "x"), (Entropic().to_primal, "y")):
        with pytest.raises(DomainError, match=rf"^{name}: got shape .*, expected a batch of vectors \(B, d\)$"):
            call(torch.full(shape, 1 / 3))


@pytest.mark.parametrize("x", [[[0.5, 0.6]], [[1.5, -0.5]]])
def test_outside(x):
    with pytest.raises(DomainError, match=r"^x: got instance 0, which is .* outside, expected a point of the simplex"):
        Entropic().to_dual(torch.tensor(x))
