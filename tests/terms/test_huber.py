import pytest
import torch

from lmd.errors import InputError
from lmd.terms import L1, Huber
from lmd.testing.terms import TermConformance, normal


class TestHuber(TermConformance):
    def make_term(self, batch, dtype, generator):
        return Huber(0.7, 0.6)

    def points(self, term, batch, dtype, generator):
        return normal(batch, 2, 3, dtype=dtype, generator=generator)


class TestHuberOfGroups(TestHuber):
    def make_term(self, batch, dtype, generator):
        weight = torch.linspace(0.5, 2.0, batch, dtype=torch.float64).to(dtype)
        delta = torch.rand(batch, 1, 3, dtype=torch.float64, generator=generator).to(dtype) + 0.5
        return Huber(weight, delta, axes=1)


class TestHuberPerEntry(TestHuber):
    def make_term(self, batch, dtype, generator):
        weight = torch.rand(batch, 2, 3, dtype=torch.float64, generator=generator).to(dtype) + 0.1
        return Huber(weight, torch.linspace(0.5, 2.0, batch, dtype=torch.float64).to(dtype))


def test_it_is_the_norm_but_for_half_a_delta():
    z = torch.tensor([[3.0, -2.0]])
    torch.testing.assert_close(Huber(1.0, 1e-6).value(z), L1(1.0).value(z))
    assert Huber(2.0, 1.0).value(z) == 2 * (2.5 + 1.5)


def test_a_delta_has_to_be_positive():
    with pytest.raises(InputError, match=r"delta: got 0.0, expected a positive number"):
        Huber(1.0, 0.0)
