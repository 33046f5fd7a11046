import torch

from lmd.terms import Absolute, Huber, Shifted
from lmd.testing.terms import OFFSET, TermConformance, normal, units


class TestAbsolute(TermConformance):
    def make_term(self, batch, dtype, generator):
        return Absolute(normal(batch, 2, 3, dtype=dtype, generator=generator), 0.7)

    def points(self, term, batch, dtype, generator):
        return 2 * normal(batch, 2, 3, dtype=dtype, generator=generator)

    def make_offset(self, batch, dtype, generator):
        y = OFFSET + units(batch, 4, dtype=dtype, generator=generator)
        return Absolute(y, 0.7), y + units(batch, 4, dtype=dtype, generator=generator)


class TestWeightedAbsolute(TestAbsolute):
    def make_term(self, batch, dtype, generator):
        weight = torch.rand(batch, 1, 3, dtype=torch.float64, generator=generator).to(dtype)
        return Absolute(normal(batch, 2, 3, dtype=dtype, generator=generator), weight)


class TestShiftedHuber(TestAbsolute):
    def make_term(self, batch, dtype, generator):
        weight = torch.linspace(0.5, 2.0, batch, dtype=torch.float64).to(dtype)
        return Shifted(Huber(weight, 0.6), normal(batch, 2, 3, dtype=dtype, generator=generator))

    def make_offset(self, batch, dtype, generator):
        y = OFFSET + units(batch, 4, dtype=dtype, generator=generator)
        return Shifted(Huber(0.1, 5.0), y), y + units(batch, 4, dtype=dtype, generator=generator)


def test_the_prox_lands_on_the_data_exactly():
    y = torch.tensor([[0.1, 1e5 + 0.3]])
    assert torch.equal(Absolute(y).prox(y + torch.tensor([[0.7, -0.7]]), 1.0), y)


def test_the_best_multiple_goes_as_far_as_it_may():
    term, p = Absolute(torch.tensor([[2.0, 0.0]])), torch.tensor([[-0.5, 0.1]])
    assert term.best_multiple(p, 10.0) == 2
    assert term.best_multiple(p, 1.5) == 1.5
    assert term.best_multiple(-p, 10.0) == -2
