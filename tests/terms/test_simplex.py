import torch

from lmd.terms import Simplex, Zero
from lmd.terms.domains import project_simplex
from lmd.testing.terms import OFFSET, TermConformance, normal, units


class TestSimplex(TermConformance):
    def make_term(self, batch, dtype, generator):
        return Simplex()

    def points(self, term, batch, dtype, generator):
        return normal(batch, 5, dtype=dtype, generator=generator).softmax(dim=-1)

    def _near(self, v):
        """Within the rounding of float32 other points count as inside: neighbours are in it."""
        return (project_simplex(w) for w in super()._near(v))


class TestSimplexOfRows(TestSimplex):
    def points(self, term, batch, dtype, generator):
        return normal(batch, 2, 3, dtype=dtype, generator=generator).softmax(dim=-1)


class TestZero(TermConformance):
    def make_term(self, batch, dtype, generator):
        return Zero()

    def points(self, term, batch, dtype, generator):
        return normal(batch, 2, 3, dtype=dtype, generator=generator)

    def make_offset(self, batch, dtype, generator):
        return Zero(), OFFSET + units(batch, 4, dtype=dtype, generator=generator)


def test_outside_it_is_infinite_and_says_how_far():
    z = torch.tensor([[2.0, 0.0], [0.5, 0.5], [2.0, -1.0]])
    assert Simplex().value(z).tolist() == [torch.inf, 0.0, torch.inf]
    assert Simplex().violation(z).tolist() == [1.0, 0.0, 1.0]
