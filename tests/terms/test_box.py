import math

import pytest
import torch

from lmd.errors import InputError
from lmd.terms import Box
from lmd.testing.terms import OFFSET, TermConformance, units


class TestBox(TermConformance):
    low, high = -0.1, 1.1

    def make_term(self, batch, dtype, generator):
        return Box(self.low, self.high)

    def points(self, term, batch, dtype, generator):
        share = torch.rand(batch, 2, 3, dtype=torch.float64, generator=generator).to(dtype)
        low, high = (end.expand_as(share).clamp(-5, 5) for end in term._ends(share))
        return low.lerp(high, 0.05 + 0.9 * share)

    def make_offset(self, batch, dtype, generator):
        y = OFFSET + units(batch, 4, dtype=dtype, generator=generator)
        return Box(y, y + 20), y + units(batch, 4, dtype=dtype, generator=generator).abs()


class TestBoxPerInstance(TestBox):
    def make_term(self, batch, dtype, generator):
        low = torch.linspace(-2.0, 0.5, batch, dtype=torch.float64).to(dtype)
        return Box(low, low + 1)


class TestBoxPerEntry(TestBox):
    def make_term(self, batch, dtype, generator):
        low = torch.rand(batch, 2, 3, dtype=torch.float64, generator=generator).to(dtype)
        return Box(low, low + 0.5)


class TestNonNegative(TestBox):
    low, high = 0.0, math.inf


class TestHalfLinesPerEntry(TestBox):
    def make_term(self, batch, dtype, generator):
        low = torch.tensor([-1.0, -math.inf, -math.inf], dtype=dtype).expand(batch, 2, 3)
        return Box(low, torch.tensor([math.inf, 2.0, math.inf], dtype=dtype).expand(batch, 2, 3))


def test_outside_it_is_infinite_and_says_how_far():
    term, z = Box(0.0, 1.0), torch.tensor([[4.0, -4.0], [1.0, 0.0]])
    assert term.value(z).tolist() == [torch.inf, 0.0]
    assert term.residual(z, torch.ones(2, 2)).tolist() == [torch.inf, 1.0]
    assert term.violation(z).tolist() == [5.0, 0.0]


def test_ends_that_float32_stores_are_ends_in_float64():
    term = Box(-0.1, 0.1)
    z = term.prox(torch.tensor([[1.0, -1.0]]), 1.0).double()
    assert z.abs().max() > 0.1 and term.double().value(z) == 0
    assert term.value(torch.tensor([[0.1001]], dtype=torch.float64)) == torch.inf


def test_a_direction_without_end_has_no_feasible_multiple():
    term = Box(0.0, math.inf)
    assert term.gauge(torch.tensor([[-1.0, 0.0], [-1.0, 2.0]])).tolist() == [0.0, torch.inf]


def test_the_prox_of_the_conjugate_stays_exactly_in_its_domain():
    p = torch.randn(1, 100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Box(0.0, math.inf).conjugate_prox(p, 0.3), p.clamp(max=0))


def test_ends_in_the_wrong_order():
    for low, high in ((1.0, 0.0), (0.0, math.nan), (torch.ones(2), 0.0)):
        with pytest.raises(InputError, match=r"\Alow, high: got [^\n]+, expected low <= high\Z"):
            Box(low, high)
