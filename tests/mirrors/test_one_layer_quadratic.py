import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.mirrors import OneLayer, OneLayerQuadratic
from lmd.testing.mirrors import MirrorConformance

MATRIX = ((0.1, 1.0, 0.3), (0.2, -0.4, 1.5), (1.2, 0.5, -0.1))
WEIGHT = (0.5, 1.0, 2.0)


def made(dtype=torch.float64, **arguments):
    matrix, weight = torch.tensor(MATRIX, dtype=dtype), torch.tensor(WEIGHT, dtype=dtype)
    return OneLayerQuadratic(3, matrix=matrix, weight=weight, **arguments)


class TestOneLayerQuadratic(MirrorConformance):
    def make_mirror(self, dtype):
        return made(dtype)

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(scale=st.floats(-6, 8), curvature=st.floats(-3, 3), seed=st.integers(0, 1000))
def test_every_dual_point_has_an_inverse(scale: float, curvature: float, seed: int) -> None:
    mirror = made(curvature=10.0**curvature)
    y = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 10.0**scale
    with torch.no_grad():
        assert_close(mirror.to_dual(mirror.to_primal(y)), y, rtol=1e-9, atol=1e-9)


def test_it_never_clips_where_the_plain_one_does() -> None:
    y = torch.full((1, 3), 50.0, dtype=torch.float64)
    plain = OneLayer(3, matrix=torch.tensor(MATRIX).double(), weight=torch.tensor(WEIGHT).double())
    assert int(plain.clipped(y)) > 0
    assert made().clipped(y) is None


def test_derivatives_through_the_inverse_are_those_of_the_implicit_function() -> None:
    mirror = made()
    y = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    names = [name for name, _ in mirror.named_parameters()]
    values = tuple(parameter.detach().clone().requires_grad_() for parameter in mirror.parameters())

    def inverse(y, *values):
        return torch.func.functional_call(
            _Inverse(mirror), dict(zip([f"mirror.{n}" for n in names], values, strict=True)), (y,)
        )

    assert torch.autograd.gradcheck(inverse, (y, *values))


class _Inverse(torch.nn.Module):
    def __init__(self, mirror) -> None:
        super().__init__()
        self.mirror = mirror

    def forward(self, y):
        return self.mirror.to_primal(y)


def test_constraints_and_bad_input() -> None:
    mirror = made()
    with torch.no_grad():
        mirror.curvature.fill_(-1.0)
        mirror.weight.fill_(-1.0)
    mirror.constrain_()
    assert bool((mirror.curvature == 0.01).all() and (mirror.weight == 0.01).all())
    with pytest.raises(InputError, match="curvature: got 0"):
        OneLayerQuadratic(3, curvature=0)
