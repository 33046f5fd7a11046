import torch

from lmd.terms import Hinge
from lmd.testing.terms import TermConformance, normal


class TestHinge(TermConformance):
    def make_term(self, batch, dtype, generator):
        return Hinge(0.7)

    def points(self, term, batch, dtype, generator):
        return 1 + 2 * normal(batch, 2, 3, dtype=dtype, generator=generator)


class TestHingePerInstance(TestHinge):
    def make_term(self, batch, dtype, generator):
        return Hinge(torch.linspace(0.5, 2.0, batch, dtype=torch.float64).to(dtype))


class TestHingePerEntry(TestHinge):
    def make_term(self, batch, dtype, generator):
        return Hinge(torch.rand(batch, 1, 3, dtype=torch.float64, generator=generator).to(dtype) + 0.1)


def test_the_best_multiple_goes_as_far_as_it_may():
    p = torch.tensor([[-0.5, -0.1]])
    assert Hinge(2.0).best_multiple(p, 10.0) == 4
    assert Hinge(2.0).best_multiple(p, 3.0) == 3


def test_what_points_up_has_no_feasible_multiple():
    assert Hinge().gauge(torch.tensor([[-0.5, 0.1]])) == torch.inf
